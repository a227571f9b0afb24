//! A descriptor that one thread makes readable for another.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd};
use rustix::time::Timespec;

/// Readable from [`Self::set`] to [`Self::clear`]. Never blocks; any thread may call.
#[derive(Debug)]
pub struct EventFd(OwnedFd);

impl EventFd {
    /// One that is not readable.
    pub fn new() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// Makes it readable.
    pub fn set(&self) {
        // Fails only when the counter is full, and then it is readable already.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Makes it not readable.
    pub fn clear(&self) {
        // Only resets the counter; if it was reset already there is nothing to do.
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }

    /// Whether it is readable.
    pub fn is_set(&self) -> bool {
        let mut ready = [PollFd::new(&self.0, PollFlags::IN)];
        matches!(rustix::event::poll(&mut ready, Some(&Timespec::default())), Ok(1))
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_readable_until_it_is_cleared_however_often_it_was_set() {
        let event = EventFd::new().unwrap();
        assert!(!event.is_set());
        event.set();
        event.set();
        assert!(event.is_set());
        event.clear();
        assert!(!event.is_set());
        event.clear();
        event.set();
        assert!(event.is_set());
    }
}
