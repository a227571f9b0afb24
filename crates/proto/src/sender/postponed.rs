//! Chunks that the peer had no room for, and how long they wait.

use std::collections::VecDeque;
use std::time::Duration;

use super::Ticket;
use crate::id::Time;

/// The first rest, and the longest. Rests grow, so a peer that has no room for long is asked less
/// and less often.
const FIRST: Duration = Duration::from_millis(1);
const LONGEST: Duration = Duration::from_millis(64);

/// Postponed chunks take turns with others. Chunks that the peer has room for must not wait behind
/// them, since landing those makes room.
#[derive(Debug, Default)]
pub(super) struct Postponed {
    chunks: VecDeque<(Ticket, u32)>,
    until: Option<Time>,
    /// How long they rest when the next one is refused; it doubles until something is acknowledged.
    pause: Duration,
}

impl Postponed {
    /// The peer has no room for a chunk now. The first time the sender tries again at once: mostly
    /// the peer is just reading another copy of it.
    pub(super) fn push(&mut self, now: Time, chunk: (Ticket, u32)) {
        self.chunks.push_back(chunk);
        // Chunks that were in flight with it are refused with it.
        if self.until.is_none() {
            self.until = (!self.pause.is_zero()).then(|| now.after(self.pause));
            self.pause = (self.pause * 2).clamp(FIRST, LONGEST);
        }
    }

    /// The oldest, unless they rest.
    pub(super) fn pop(&mut self) -> Option<(Ticket, u32)> {
        if self.until.is_none() { self.chunks.pop_front() } else { None }
    }

    /// What [`Self::pop`] would give.
    pub(super) fn front(&self) -> Option<(Ticket, u32)> {
        self.chunks.front().copied().filter(|_| self.until.is_none())
    }

    /// Whether there is one that may go out.
    pub(super) fn is_ready(&self) -> bool {
        self.until.is_none() && !self.chunks.is_empty()
    }

    /// Until when they rest.
    pub(super) fn until(&self) -> Option<Time> {
        self.until.filter(|_| !self.chunks.is_empty())
    }

    pub(super) fn end_rest(&mut self, now: Time) {
        self.until = self.until.filter(|until| *until > now);
    }

    /// The peer has room again.
    pub(super) fn made_progress(&mut self) {
        (self.until, self.pause) = (None, Duration::ZERO);
    }

    pub(super) fn forget(&mut self, ticket: Ticket) {
        self.chunks.retain(|(other, _)| *other != ticket);
    }
}
