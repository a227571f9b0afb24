//! Schedule of a flow's cumulative acknowledgements.

use std::time::Duration;

use crate::id::Time;

/// Minimum number of acknowledgements per window.
const ACKS_PER_WINDOW: u32 = 4;
/// Minimum time between two acknowledgements within a frame. Where the wire is slower than this end, a chunk is
/// acknowledged before the next one is complete, so that the sender knows the rail's speed and its data in flight.
const ACK_PAUSE: Duration = Duration::from_micros(200);

/// Input left on a flow when its driver polls for acknowledgements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Burst {
    /// More bytes are there, or a received chunk is still being copied.
    GoesOn,
    /// Nothing is left, in the middle of a frame.
    Pauses,
    /// Nothing is left, between two frames.
    Over,
}

/// Counts the chunk frames of a flow, and decides when to acknowledge them.
///
/// An acknowledgement is due when a burst is over, four times per window, when the sender waits for it, and within a
/// frame if the last one was made 200 us ago.
#[derive(Clone, Copy, Debug)]
pub struct AckPolicy {
    /// Completed frames: in place, or refused.
    through: u64,
    /// Frames covered by an acknowledgement or a refusal so far.
    noted: u64,
    /// Frames after which an acknowledgement is due.
    every: u64,
    is_awaited: bool,
    /// Time of the last acknowledgement that was due.
    noted_at: Time,
}

impl AckPolicy {
    /// Returns the policy for a flow of a channel with this window.
    pub fn new(window_chunks: u32) -> Self {
        Self {
            through: 0,
            noted: 0,
            every: u64::from((window_chunks / ACKS_PER_WINDOW).max(1)),
            is_awaited: false,
            noted_at: Time::default(),
        }
    }

    /// Records that the next chunk is in place.
    pub fn handle_landed(&mut self) {
        self.through += 1;
    }

    /// Records that the next chunk is refused. Returns its number, which the refusal names.
    pub fn handle_refused(&mut self) -> u64 {
        self.through += 1;
        self.noted = self.through;
        self.through
    }

    /// Records that the sender waits for the next acknowledgement.
    pub fn handle_awaited(&mut self) {
        self.is_awaited = true;
    }

    /// Returns whether completed frames are not covered yet.
    pub fn is_behind(&self) -> bool {
        self.through > self.noted
    }

    /// Returns the number of frames covered by acknowledgements and refusals.
    pub fn noted(&self) -> u64 {
        self.noted
    }

    /// Returns the number for an acknowledgement, if one is due.
    pub fn poll_due(&mut self, burst: Burst, now: Time) -> Option<u64> {
        let is_late = burst == Burst::Pauses && now.since(self.noted_at) >= ACK_PAUSE;
        let is_many = self.through - self.noted >= self.every;
        let is_due = burst == Burst::Over || is_late || self.is_awaited || is_many;
        (self.is_behind() && is_due).then(|| {
            self.noted_at = now;
            self.note()
        })
    }

    /// Returns the number for an acknowledgement that is made now, due or not.
    pub fn note(&mut self) -> u64 {
        self.noted = self.through;
        self.is_awaited = false;
        self.through
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: u64 = 1000;

    #[test]
    fn acknowledgements_are_due_at_the_times_in_this_table() {
        // Window, chunks, whether the sender waits, the burst, us since the last one; whether an acknowledgement is
        // due.
        let table = [
            (16, 0, true, Burst::Over, 1000, false),
            (16, 1, false, Burst::Over, 0, true),
            (16, 1, false, Burst::GoesOn, 1000, false),
            (16, 3, false, Burst::GoesOn, 1000, false),
            (16, 4, false, Burst::GoesOn, 0, true),
            (2, 1, false, Burst::GoesOn, 0, true),
            (16, 1, true, Burst::GoesOn, 0, true),
            (16, 1, false, Burst::Pauses, 199, false),
            (16, 1, false, Burst::Pauses, 200, true),
        ];
        for row @ (window, chunks, is_awaited, burst, us, is_due) in table {
            let mut policy = AckPolicy::new(window);
            let start = Time(1 << 40);
            policy.handle_landed();
            assert_eq!(policy.poll_due(Burst::Over, start), Some(1));
            (0..chunks).for_each(|_| policy.handle_landed());
            if is_awaited {
                policy.handle_awaited();
            }
            let due = policy.poll_due(burst, Time(start.0 + us * US));
            assert_eq!(due, is_due.then_some(1 + chunks), "{row:?}");
            assert_eq!(policy.is_behind(), !is_due && chunks > 0, "{row:?}");
        }
    }

    #[test]
    fn a_refused_chunk_needs_no_acknowledgement_and_covers_those_before_it() {
        let mut policy = AckPolicy::new(16);
        policy.handle_landed();
        assert_eq!(policy.handle_refused(), 2);
        assert!(!policy.is_behind());
        assert_eq!(policy.poll_due(Burst::Over, Time(0)), None);
        policy.handle_landed();
        assert_eq!((policy.noted(), policy.note(), policy.noted()), (2, 3, 3));
    }
}
