//! Waiting for sockets, with a way to be woken.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, epoll};
use rustix::time::Timespec;

use crate::EventFd;

/// Token of the wake-up itself. Sockets can't use it.
const WAKE: u64 = u64::MAX;

/// Edge-triggered epoll with an eventfd. One thread at a time may wait; [`Self::wake`] and registration may be called
/// from any thread.
#[derive(Debug)]
pub struct Poller {
    epoll: OwnedFd,
    wake: EventFd,
}

/// Event of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PollEvent {
    /// Token that the socket was registered with.
    pub token: u64,
    /// There may be bytes, the end of the stream, or an error to read.
    pub readable: bool,
    /// There may be room to write, or an error that writing returns.
    pub writable: bool,
    /// The end of the stream, or an error, follows any remaining bytes. Epoll reports it only once, so a reader that
    /// gets fewer bytes than it had room for must read on.
    pub ended: bool,
}

impl Poller {
    /// A poller without sockets.
    pub fn new() -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let wake = EventFd::new()?;
        let data = epoll::EventData::new_u64(WAKE);
        epoll::add(&epoll, &wake, data, epoll::EventFlags::IN | epoll::EventFlags::ET)?;
        Ok(Self { epoll, wake })
    }

    /// Watches a socket for both directions, edge-triggered.
    pub fn add(&self, socket: BorrowedFd<'_>, token: u64) -> io::Result<()> {
        let flags = epoll::EventFlags::IN
            | epoll::EventFlags::OUT
            | epoll::EventFlags::RDHUP
            | epoll::EventFlags::ET;
        Ok(epoll::add(&self.epoll, socket, epoll::EventData::new_u64(token), flags)?)
    }

    /// Stops watching a socket. Closing it does the same.
    pub fn remove(&self, socket: BorrowedFd<'_>) -> io::Result<()> {
        Ok(epoll::delete(&self.epoll, socket)?)
    }

    /// Waits for events, [`Self::wake`] or the time limit (`None`: no limit; zero: only checks). Appends the events,
    /// and returns true if a wake-up was among them.
    pub fn wait(&self, events: &mut Vec<PollEvent>, limit: Option<Duration>) -> io::Result<bool> {
        const BATCH: usize = 64;
        let empty =
            epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) };
        let mut batch = [empty; BATCH];
        let mut limit = limit.map(|limit| Timespec {
            tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: limit.subsec_nanos().into(),
        });
        // Before Linux 5.11 epoll can't wait for less than a millisecond.
        let is_short =
            |limit: &Timespec| limit.tv_sec == 0 && (1..1_000_000).contains(&limit.tv_nsec);
        if let Some(short) = limit.filter(is_short) {
            let mut ready = [PollFd::new(&self.epoll, PollFlags::IN)];
            match rustix::event::poll(&mut ready, Some(&short)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => limit = Some(Timespec::default()),
                Err(error) => return Err(error.into()),
            }
        }
        let count = match epoll::wait(&self.epoll, &mut batch[..], limit.as_ref()) {
            Ok(count) => count,
            Err(rustix::io::Errno::INTR) => 0,
            Err(error) => return Err(error.into()),
        };
        let mut is_woken = false;
        for event in &batch[..count] {
            let (flags, token) = (event.flags, event.data.u64());
            if token == WAKE {
                self.wake.clear();
                is_woken = true;
                continue;
            }
            let broken = flags.intersects(
                epoll::EventFlags::ERR | epoll::EventFlags::HUP | epoll::EventFlags::RDHUP,
            );
            events.push(PollEvent {
                token,
                readable: broken || flags.contains(epoll::EventFlags::IN),
                writable: broken || flags.contains(epoll::EventFlags::OUT),
                ended: broken,
            });
        }
        Ok(is_woken)
    }

    /// Ends the current wait, or the next one if no thread is waiting.
    pub fn wake(&self) {
        self.wake.set();
    }
}

impl AsFd for Poller {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_wait_of_less_than_a_millisecond_is_not_one_of_a_millisecond() {
        let poller = Poller::new().unwrap();
        let mut events = Vec::new();
        let mut wait = || {
            let begin = Instant::now();
            poller.wait(&mut events, Some(Duration::from_micros(50))).unwrap();
            begin.elapsed()
        };
        // The machine may be busy: one short wait among many is enough.
        let shortest = (0..200).map(|_| wait()).min().unwrap();
        assert!((Duration::from_micros(50)..Duration::from_micros(500)).contains(&shortest));
        assert!(events.is_empty());
    }

    #[test]
    fn a_wake_up_ends_a_wait_also_when_it_comes_first() {
        let poller = Poller::new().unwrap();
        let mut events = Vec::new();
        poller.wake();
        poller.wait(&mut events, None).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| poller.wake());
            poller.wait(&mut events, None).unwrap();
        });
        assert_eq!(events, []);
    }

    #[test]
    fn a_socket_reports_bytes_once_until_it_is_drained() {
        let poller = Poller::new().unwrap();
        let (mut a, b) = UnixStream::pair().unwrap();
        poller.add(b.as_fd(), 5).unwrap();
        let mut events = Vec::new();
        a.write_all(b"x").unwrap();
        poller.wait(&mut events, Some(Duration::from_secs(5))).unwrap();
        let came = PollEvent { token: 5, readable: true, writable: true, ended: false };
        assert_eq!(events, [came]);
        events.clear();
        poller.wait(&mut events, Some(Duration::ZERO)).unwrap();
        assert_eq!(events, [], "edge-triggered");
        drop(a);
        poller.wait(&mut events, Some(Duration::from_secs(5))).unwrap();
        assert_eq!(events, [PollEvent { ended: true, ..came }]);
    }
}
