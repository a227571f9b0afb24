//! A descriptor that one thread makes readable for another.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd};
use rustix::time::Timespec;

/// Descriptor that is readable from [`Self::set`] to [`Self::clear`]. Never blocks, and may be used from any thread.
#[derive(Debug)]
pub struct EventFd(OwnedFd);

impl EventFd {
    /// Creates one that is not readable.
    pub fn new() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// Makes the descriptor readable.
    pub fn set(&self) {
        // Fails only if the counter is full, and then the descriptor is already readable.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Makes the descriptor not readable.
    pub fn clear(&self) {
        // Resets the counter. Fails if it is already 0, which is fine.
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }

    /// True if the descriptor is readable.
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
