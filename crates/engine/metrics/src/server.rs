//! A server with limits on everything: one thread, a few connections, small request heads, deadlines.

use std::cmp::Reverse;
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::exposition::{Exposition, Format};
use crate::http::{Asked, Connection, Listener, Step};

/// Maximum number of connections. One more replaces the one that needs its place least.
const MOST_CONNECTIONS: usize = 64;
/// Time for which a text is used again, so that scrapers can't keep the engine busy.
const FRESH: Duration = Duration::from_millis(100);
/// The same as a multiple of the time that it took to make.
const FRESH_TIMES: u32 = 4;
/// Number of connections accepted before existing ones have their turn again.
const MOST_ACCEPTED: usize = 32;
/// So a connection has had a turn before others can take its place.
const _: () = assert!(MOST_ACCEPTED < MOST_CONNECTIONS);
/// Pause of accepting when the system has no room for another connection.
const PAUSE: Duration = Duration::from_millis(100);

const ROOT: &str = "Metrics are at /metrics.\n";

/// Name of the thread that serves what a setting or an option requested.
pub(crate) const THREAD: &str = "pr-metrics";

/// Makes the text of all metrics, in the format of OpenMetrics.
pub(crate) type Render = Box<dyn FnMut() -> String + Send>;

/// A running server, which ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Running {
    thread: Option<JoinHandle<()>>,
    /// A byte written here wakes the thread.
    wake: UnixStream,
    stop: Arc<AtomicBool>,
}

impl Running {
    /// Starts the server on a thread of this name.
    pub(crate) fn start(name: &str, listener: Listener, render: Render) -> io::Result<Self> {
        match &listener {
            Listener::Tcp(listener) => listener.set_nonblocking(true)?,
            Listener::Unix(listener) | Listener::Abstract(listener) => {
                listener.set_nonblocking(true)?;
            }
        }
        let (wake, woken) = UnixStream::pair()?;
        woken.set_nonblocking(true)?;
        let stop = Arc::new(AtomicBool::new(false));
        let server = Server {
            listener,
            woken,
            stop: stop.clone(),
            connections: Vec::new(),
            pages: Pages { render, fresh: None },
            paused_until: None,
        };
        let builder = thread::Builder::new().name(name.to_owned());
        let thread = builder.spawn(move || server.run())?;
        Ok(Self { thread: Some(thread), wake, stop })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        // If the socket is full the thread is awake.
        let _ = (&self.wake).write(&[0]);
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != thread::current().id()
            && thread.join().is_err()
        {
            tracing::error!(target: "polyrail::engine", "the thread of the metrics panicked");
        }
    }
}

struct Server {
    listener: Listener,
    woken: UnixStream,
    stop: Arc<AtomicBool>,
    connections: Vec<Connection>,
    pages: Pages,
    paused_until: Option<Instant>,
}

/// The text, kept for a moment.
struct Pages {
    render: Render,
    fresh: Option<Fresh>,
}

struct Fresh {
    until: Instant,
    open_metrics: Arc<[u8]>,
    classic: Option<Arc<[u8]>>,
}

impl Server {
    fn run(mut self) {
        while !self.stop.load(Ordering::Acquire) {
            if let Err(error) = self.turn() {
                tracing::error!(target: "polyrail::engine", %error, "the metrics are no longer served");
                return;
            }
        }
    }

    fn turn(&mut self) -> io::Result<()> {
        let now = Instant::now();
        let (is_called, ready) = self.wait(now)?;
        let Self { connections, pages, .. } = self;
        let mut ready = ready.into_iter();
        connections.retain_mut(|connection| {
            let is_ready = ready.next().unwrap_or(false);
            let step = match is_ready {
                true => connection.step(&mut |asked| pages.of(asked)),
                false => Step::Waits,
            };
            step == Step::Waits && now < connection.deadline()
        });
        if is_called {
            self.accept();
        }
        Ok(())
    }

    /// Waits for something to do. Returns whether a client is connecting, and which connections can continue.
    fn wait(&mut self, now: Instant) -> io::Result<(bool, Vec<bool>)> {
        self.paused_until = self.paused_until.filter(|until| *until > now);
        let deadlines = self.connections.iter().map(Connection::deadline);
        let next = deadlines.chain(self.paused_until).min();
        let timeout = next.map(|next| timespec(next.saturating_duration_since(now)));
        let calls = if self.paused_until.is_none() { PollFlags::IN } else { PollFlags::empty() };
        let mut fds =
            vec![PollFd::new(&self.woken, PollFlags::IN), PollFd::new(&self.listener, calls)];
        fds.extend(self.connections.iter().map(|one| PollFd::new(one, one.awaits())));
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return Ok((false, Vec::new())),
            Err(error) => return Err(error.into()),
        }
        let has_event: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        if has_event[0] {
            let _ = (&self.woken).read(&mut [0; 16]);
        }
        Ok((has_event[1], has_event[2..].to_vec()))
    }

    fn accept(&mut self) {
        for _ in 0..MOST_ACCEPTED {
            let mut connection = match self.listener.accept() {
                Ok(connection) => connection,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                // The client has hung up, or may not ask.
                Err(error)
                    if [ErrorKind::ConnectionAborted, ErrorKind::Interrupted]
                        .contains(&error.kind()) =>
                {
                    continue;
                }
                Err(error) => {
                    tracing::warn!(target: "polyrail::engine", %error, "can't accept a scraper");
                    self.paused_until = Some(Instant::now() + PAUSE);
                    return;
                }
            };
            // Mostly the request is there already, and the answer fits into the socket.
            let pages = &mut self.pages;
            if connection.step(&mut |asked| pages.of(asked)) == Step::Over {
                continue;
            }
            if self.connections.len() >= MOST_CONNECTIONS {
                self.make_room();
            }
            self.connections.push(connection);
        }
    }

    /// Drops a connection of the client that has most: the oldest one of those that need their places least.
    fn make_room(&mut self) {
        let all = &self.connections;
        let of_client = |client| all.iter().filter(|one| one.client == client).count();
        let need = |one: &Connection| (Reverse(of_client(one.client)), one.rank(), one.since);
        let places = all.iter().enumerate();
        let least = places.min_by_key(|(_, one)| need(one)).map(|(place, _)| place);
        if let Some(place) = least {
            self.connections.swap_remove(place);
        }
    }
}

impl Pages {
    fn of(&mut self, asked: Asked) -> Option<Arc<[u8]>> {
        let Asked::Metrics(format) = asked else { return Some(Arc::from(ROOT.as_bytes())) };
        let now = Instant::now();
        if self.fresh.as_ref().is_none_or(|fresh| fresh.until <= now) {
            let text = (self.render)();
            self.fresh = Some(Fresh {
                until: until(now),
                open_metrics: Arc::from(text.as_bytes()),
                classic: None,
            });
        }
        let fresh = self.fresh.as_mut()?;
        if format == Format::OpenMetrics {
            return Some(fresh.open_metrics.clone());
        }
        if fresh.classic.is_none() {
            fresh.classic = classic(&fresh.open_metrics);
            fresh.until = fresh.until.max(until(now));
        }
        fresh.classic.clone()
    }
}

/// Time until which a text is used again whose making began at `begun`.
fn until(begun: Instant) -> Instant {
    Instant::now() + FRESH.max(begun.elapsed() * FRESH_TIMES)
}

fn classic(open_metrics: &[u8]) -> Option<Arc<[u8]>> {
    let text = std::str::from_utf8(open_metrics).ok()?;
    let mut all = Exposition::default();
    if let Err(error) = all.add(text, &[], |_| true) {
        tracing::error!(target: "polyrail::engine", %error, "the metrics can't be read");
        return None;
    }
    Some(Arc::from(all.text(Format::Classic).as_bytes()))
}

pub(crate) fn timespec(time: Duration) -> Timespec {
    // Rounded up, or the thread would look again and again shortly before a deadline.
    let time = time + Duration::from_millis(1);
    Timespec {
        tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: time.subsec_nanos().into(),
    }
}
