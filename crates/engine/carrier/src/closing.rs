//! A host's thread that closes connections. Plugins may take long for that. If another plugin call takes long, closing
//! must not wait for it, because memory registered with a connection stays in use until then.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use crate::unpack::Gathering;
use crate::way::Way;

/// Maximum time for a GPU to finish pending copies, which normally takes microseconds.
const GATHER_LIMIT: Duration = Duration::from_secs(10);

/// Sender to the closing thread, which ends by [`Closer::stop`].
#[derive(Clone)]
pub(crate) struct Closer(Sender<Work>);

/// Work of the thread, in order.
enum Work {
    Close(Closing),
    Run(Box<dyn FnOnce() + Send>),
    Stop,
}

/// A connection with no more posts. Dropping it closes it, on any thread.
pub(crate) struct Closing {
    way: Option<Way>,
    /// Copies that may still read its bounce buffer.
    gathered: Vec<Gathering>,
    is_closed: Arc<AtomicBool>,
}

impl Closer {
    pub(crate) fn start() -> std::io::Result<(Self, JoinHandle<()>)> {
        let (closer, inbox) = channel();
        let run = move || {
            for work in inbox {
                match work {
                    Work::Close(closing) => drop(closing),
                    Work::Run(run) => run(),
                    Work::Stop => return,
                }
            }
        };
        let thread = Builder::new().name("pr-carrier-end".to_owned()).spawn(run)?;
        Ok((Self(closer), thread))
    }

    /// Closes the connection soon on the thread, or at once on this one if that has stopped.
    pub(crate) fn close(&self, closing: Closing) {
        let _ = self.0.send(Work::Close(closing));
    }

    /// Runs the closure soon on the thread, or drops it if that has stopped.
    pub(crate) fn run(&self, run: impl FnOnce() + Send + 'static) {
        let _ = self.0.send(Work::Run(Box::new(run)));
    }

    /// Ends the thread after it has closed everything submitted before.
    pub(crate) fn stop(&self) {
        let _ = self.0.send(Work::Stop);
    }
}

impl Closing {
    /// `is_closed` is set when the plugin has closed the connection.
    pub(crate) fn new(way: Way, gathered: Vec<Gathering>, is_closed: Arc<AtomicBool>) -> Self {
        Self { way: Some(way), gathered, is_closed }
    }

    /// True if no kernel reads the bounce buffer any more. A failed GPU reads nothing.
    fn is_read(&mut self) -> bool {
        let until = Instant::now() + GATHER_LIMIT;
        while self.gathered.iter().any(|one| matches!(one.ticket.is_done(), Ok(false))) {
            if Instant::now() > until {
                return false;
            }
            std::thread::sleep(Duration::from_micros(50));
        }
        self.gathered.drain(..).for_each(|one| one.gatherer.let_go());
        true
    }
}

impl Drop for Closing {
    fn drop(&mut self) {
        if !self.is_read() {
            tracing::error!(target: "polyrail::carrier", limit = ?GATHER_LIMIT,
                "a GPU does not finish copying from a plugin's bounce buffer: the connection stays open, and memory that it knows is never free");
            return std::mem::forget(self.way.take());
        }
        if let Err(error) = self.way.take().map_or(Ok(()), Way::close) {
            tracing::debug!(target: "polyrail::carrier", %error, "closing a connection of the plugin");
        }
        self.is_closed.store(true, Ordering::Release);
    }
}
