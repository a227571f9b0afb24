//! Chunks that the peer had no room for, and how long they wait.

use std::collections::VecDeque;
use std::time::Duration;

use super::{Sender, Source, TransferHandle};
use crate::id::Time;
use crate::wire::RefusalCode;

/// First and longest rest. Rests grow, so a peer that has no room for long is tried less and less often.
const FIRST: Duration = Duration::from_millis(1);
const LONGEST: Duration = Duration::from_millis(64);

/// Postponed chunks alternate with others. Chunks that the peer has room for must not wait behind them, since landing
/// those frees room.
///
/// A rest ends when its time is over, or earlier: as soon as as many other chunks are acknowledged as the rest has
/// milliseconds, or all of them. So an honest peer, which has room again when something is over there, is tried without
/// a timer. And a peer that takes some chunks and never others is sent few of the others in vain.
#[derive(Debug, Default)]
pub(super) struct Postponed {
    chunks: VecDeque<(TransferHandle, u32)>,
    until: Option<Time>,
    /// Number of acknowledgements of other chunks that end the rest.
    acks_left: u32,
    /// Length of the next rest; it doubles until one of the chunks gets through.
    pause: Duration,
    /// Chunks that were handed out again and are neither acknowledged nor refused yet.
    tried: Vec<(TransferHandle, u32)>,
    /// Reason of the last refusal.
    why: Option<RefusalCode>,
}

impl<S: Source> Sender<S> {
    /// Returns why the peer had no room for chunks that have not landed since.
    pub fn held_back(&self) -> Option<RefusalCode> {
        self.postponed.why()
    }

    /// Records that something that the peer did for this end is over, so it may have room. Returns whether chunks
    /// rested for want of that: they may be sent now.
    pub fn peer_may_have_room(&mut self) -> bool {
        self.postponed.may_go_on()
    }

    /// Records that the peer has no room because of its work for this end, which makes progress.
    pub fn handle_peer_at_work(&mut self, now: Time) {
        self.made_progress(now);
    }
}

impl Postponed {
    /// Postpones a chunk that the peer has no room for now. The first time the sender tries again at once: usually the
    /// peer is just reading another copy of it.
    pub(super) fn push(&mut self, now: Time, chunk: (TransferHandle, u32), why: RefusalCode) {
        self.take_tried(chunk);
        self.why = Some(why);
        self.chunks.push_back(chunk);
        // Chunks that were in flight with it are refused with it.
        if self.until.is_none() {
            self.until = (!self.pause.is_zero()).then(|| now.after(self.pause));
            // At most LONGEST.
            self.acks_left = self.pause.as_millis() as u32;
            self.pause = (self.pause * 2).clamp(FIRST, LONGEST);
        }
    }

    /// Takes the oldest, unless they rest.
    pub(super) fn pop(&mut self) -> Option<(TransferHandle, u32)> {
        if self.until.is_some() {
            return None;
        }
        let chunk = self.chunks.pop_front()?;
        self.tried.push(chunk);
        Some(chunk)
    }

    /// Returns the chunk that [`Self::pop`] would return.
    pub(super) fn front(&self) -> Option<(TransferHandle, u32)> {
        self.chunks.front().copied().filter(|_| self.until.is_none())
    }

    /// Returns whether there is one that may be sent.
    pub(super) fn is_ready(&self) -> bool {
        self.until.is_none() && !self.chunks.is_empty()
    }

    /// Returns until when they rest.
    pub(super) fn until(&self) -> Option<Time> {
        self.until.filter(|_| !self.chunks.is_empty())
    }

    /// Returns why they wait.
    pub(super) fn why(&self) -> Option<RefusalCode> {
        self.why.filter(|_| !self.chunks.is_empty() || !self.tried.is_empty())
    }

    pub(super) fn end_rest(&mut self, now: Time) {
        self.until = self.until.filter(|until| *until > now);
    }

    /// Ends the rest, if there is one; returns whether any chunks rested.
    pub(super) fn may_go_on(&mut self) -> bool {
        let rested = self.until().is_some();
        self.until = None;
        rested
    }

    /// Records that a chunk was acknowledged. `is_last`: no other one can be, except those that rest.
    pub(super) fn acknowledged(&mut self, chunk: (TransferHandle, u32), is_last: bool) {
        if self.take_tried(chunk) {
            // The peer has room again.
            (self.until, self.pause) = (None, Duration::ZERO);
            return;
        }
        self.acks_left = self.acks_left.saturating_sub(1);
        if self.acks_left == 0 || is_last {
            self.until = None;
        }
    }

    pub(super) fn forget(&mut self, handle: TransferHandle) {
        self.chunks.retain(|(other, _)| *other != handle);
        self.tried.retain(|(other, _)| *other != handle);
    }

    fn take_tried(&mut self, chunk: (TransferHandle, u32)) -> bool {
        let index = self.tried.iter().position(|other| *other == chunk);
        index.is_some_and(|index| {
            self.tried.swap_remove(index);
            true
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn chunk(id: u64) -> (TransferHandle, u32) {
        (TransferHandle { slot: 0, id }, 0)
    }

    #[test]
    fn a_peer_that_takes_some_chunks_and_never_others_is_sent_few_of_the_others() {
        let mut postponed = Postponed::default();
        postponed.push(Time(0), chunk(1), RefusalCode::Busy);
        let mut tries = 0;
        for other in 2..10_000 {
            if let Some(again) = postponed.pop() {
                tries += 1;
                postponed.push(Time(0), again, RefusalCode::Busy);
            }
            postponed.acknowledged(chunk(other), false);
        }
        assert!((100..200).contains(&tries), "{tries} for 10000 that were taken");
        assert_eq!(postponed.why(), Some(RefusalCode::Busy));
        // The last one ends the rest, whatever time it is.
        postponed.acknowledged(chunk(10_000), true);
        assert_eq!(postponed.pop(), Some(chunk(1)));
        // The chunk gets through, so the next one is tried at once, too.
        postponed.acknowledged(chunk(1), false);
        assert_eq!(postponed.why(), None);
        postponed.push(Time(0), chunk(2), RefusalCode::Busy);
        assert_eq!(postponed.pop(), Some(chunk(2)));
    }

    #[test]
    fn a_peer_that_is_always_busy_is_asked_less_and_less_often() {
        let mut postponed = Postponed::default();
        let mut tries = 0;
        postponed.push(Time(0), chunk(1), RefusalCode::Busy);
        for ms in 0..1000 {
            let now = Time(0).after(Duration::from_millis(ms));
            postponed.end_rest(now);
            if let Some(again) = postponed.pop() {
                tries += 1;
                postponed.push(now, again, RefusalCode::Busy);
            }
        }
        assert!((15..40).contains(&tries), "{tries} in a second");
    }
}
