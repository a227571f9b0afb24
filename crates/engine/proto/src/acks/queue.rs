//! Frames for the sender of a flow: made when due, withheld while they might be untrue, then sent.

use std::time::Duration;

use super::policy::{AckPolicy, Burst};
use crate::id::Time;
use crate::quota::QuotaExceeded;
use crate::wire::{ACK_BYTES, AckFrame, RefusalCode, Words};

/// Maximum bytes waiting to be sent. A sender has at most a window of frames in flight, and each frame makes one
/// acknowledgement at most, so an honest sender leaves fewer unread.
const OWED_BYTES_MAX: usize = 2 * MAX_WINDOW * ACK_BYTES;
/// Largest window of a channel.
const MAX_WINDOW: usize = 1024;

/// Acknowledgement frames for the sender of a flow, in order.
///
/// A frame is withheld until [`Self::clear`]: while another flow, or a device, still writes a chunk that was taken from
/// it, an acknowledgement would free memory that is being written.
#[derive(Debug)]
pub struct AckQueue {
    policy: AckPolicy,
    /// Frames covered by acknowledgements that were sent or may be sent.
    told: u64,
    withheld: Vec<u8>,
    /// Frames that may be sent.
    cleared: Vec<u8>,
    /// When the last sign of life was sent.
    life_at: Time,
    bye: Bye,
    /// Reason in front of the goodbye, in frames.
    why: Vec<u8>,
}

/// State of the goodbye.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bye {
    NotYet,
    /// To be sent after all other frames.
    Due,
    Said,
}

impl AckQueue {
    /// Returns the queue for a flow of a channel with this window.
    pub fn new(window_chunks: u32) -> Self {
        Self {
            policy: AckPolicy::new(window_chunks),
            told: 0,
            withheld: Vec::new(),
            cleared: Vec::new(),
            life_at: Time::default(),
            bye: Bye::NotYet,
            why: Vec::new(),
        }
    }

    /// Records that the next chunk is in place.
    pub fn handle_landed(&mut self) {
        self.policy.handle_landed();
    }

    /// Records that the next chunk is refused.
    pub fn handle_refused(&mut self, code: RefusalCode) {
        let refusal = AckFrame::Refusal { sequence: self.policy.handle_refused(), code };
        self.withheld.extend_from_slice(&refusal.encode());
    }

    /// Records that the sender waits for the next acknowledgement.
    pub fn handle_awaited(&mut self) {
        self.policy.handle_awaited();
    }

    /// Returns whether chunks are in place that no acknowledgement covers.
    pub fn is_behind(&self) -> bool {
        self.policy.is_behind()
    }

    /// Acknowledges the chunks in place, if that is due.
    pub fn note_if_due(&mut self, burst: Burst, now: Time) {
        if let Some(sequence) = self.policy.poll_due(burst, now) {
            self.push(sequence);
        }
    }

    /// Acknowledges the chunks in place.
    pub fn note(&mut self) {
        let sequence = self.policy.note();
        self.push(sequence);
    }

    /// Returns whether frames wait for [`Self::clear`].
    pub fn are_withheld(&self) -> bool {
        !self.withheld.is_empty()
    }

    /// Releases all frames: no chunk taken from the flow is being written any longer.
    pub fn clear(&mut self) {
        if self.are_withheld() {
            drop_last_ack(&mut self.cleared);
            self.cleared.append(&mut self.withheld);
            self.told = self.policy.noted();
        }
    }

    /// Repeats the last acknowledgement as a sign of life, if the previous sign is at least `pause` ago. That may be
    /// sent at any time.
    pub fn show_life(&mut self, now: Time, pause: Duration) {
        if now.since(self.life_at) >= pause {
            self.life_at = now;
            if self.cleared.is_empty() {
                let told = AckFrame::Ack { sequence: self.told };
                self.cleared.extend_from_slice(&told.encode());
            }
        }
    }

    /// Sends a goodbye, once, after all frames withheld now.
    pub fn say_bye(&mut self) {
        if self.bye == Bye::NotYet {
            self.bye = Bye::Due;
        }
    }

    /// Sends the reason for giving the sender up, then a goodbye as [`Self::say_bye`] does.
    pub fn say_why(&mut self, words: &str) {
        if self.bye != Bye::Said {
            self.why = Words::of(words).flat_map(AckFrame::encode).collect();
            self.bye = Bye::Due;
        }
    }

    /// Returns whether there is nothing to send, now or later.
    pub fn is_empty(&self) -> bool {
        self.cleared.is_empty() && self.withheld.is_empty() && self.bye != Bye::Due
    }

    /// Returns an error if the sender reads no acknowledgements and goes on sending. `unsent`: bytes that the driver
    /// has taken and not sent.
    pub fn check_quota(&self, unsent: usize) -> Result<(), QuotaExceeded> {
        let owed = self.cleared.len() + self.withheld.len() + unsent;
        QuotaExceeded::check("bytes of acknowledgements not taken", owed, OWED_BYTES_MAX)
    }

    /// Hands all frames that may be sent to `send`, which takes them; does not call it if there are none.
    pub fn drain(&mut self, send: impl FnOnce(&[u8])) {
        if self.bye == Bye::Due && !self.are_withheld() {
            self.cleared.append(&mut self.why);
            self.cleared.extend_from_slice(&AckFrame::Bye.encode());
            self.bye = Bye::Said;
        }
        if !self.cleared.is_empty() {
            send(&self.cleared);
            self.cleared.clear();
        }
    }

    fn push(&mut self, sequence: u64) {
        drop_last_ack(&mut self.withheld);
        self.withheld.extend_from_slice(&AckFrame::Ack { sequence }.encode());
    }
}

/// Drops an unsent acknowledgement, which a later cumulative one makes superfluous.
fn drop_last_ack(frames: &mut Vec<u8>) {
    if let Some(last) = frames.last_chunk::<ACK_BYTES>()
        && matches!(AckFrame::decode(last), Ok(AckFrame::Ack { .. }))
    {
        frames.truncate(frames.len() - ACK_BYTES);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(acks: &mut AckQueue) -> Vec<AckFrame> {
        let mut out = Vec::new();
        acks.drain(|frames| out.extend_from_slice(frames));
        out.as_chunks().0.iter().map(|frame| AckFrame::decode(frame).unwrap()).collect()
    }

    #[test]
    fn what_is_withheld_leaves_when_it_is_cleared_and_later_acks_replace_earlier_ones() {
        let mut acks = AckQueue::new(8);
        acks.handle_landed();
        acks.note_if_due(Burst::GoesOn, Time(0));
        assert!(acks.is_empty() && acks.is_behind(), "every second one");
        acks.handle_landed();
        acks.note_if_due(Burst::GoesOn, Time(0));
        assert_eq!((taken(&mut acks), acks.are_withheld()), (vec![], true));
        acks.handle_landed();
        acks.note();
        acks.clear();
        assert_eq!(taken(&mut acks), [AckFrame::Ack { sequence: 3 }]);
        acks.handle_refused(RefusalCode::Busy);
        acks.handle_landed();
        acks.handle_awaited();
        acks.note_if_due(Burst::GoesOn, Time(0));
        acks.clear();
        let refusal = AckFrame::Refusal { sequence: 4, code: RefusalCode::Busy };
        assert_eq!(taken(&mut acks), [refusal, AckFrame::Ack { sequence: 5 }]);
        assert!(acks.is_empty() && !acks.is_behind());
    }

    #[test]
    fn the_reason_for_giving_a_peer_up_is_said_once_behind_the_last_acknowledgement() {
        let mut acks = AckQueue::new(8);
        acks.handle_landed();
        acks.note();
        acks.say_why("no way there");
        assert_eq!(taken(&mut acks), [], "what is withheld comes first");
        acks.clear();
        let said = taken(&mut acks);
        assert_eq!(said[0], AckFrame::Ack { sequence: 1 });
        assert_eq!(said[1..2], Words::of("no way there").collect::<Vec<_>>());
        assert_eq!(said[2..], [AckFrame::Bye]);
        acks.say_why("another");
        assert_eq!(taken(&mut acks), []);
    }

    #[test]
    fn a_sign_of_life_says_nothing_new() {
        const PAUSE: Duration = Duration::from_nanos(100);
        let mut acks = AckQueue::new(8);
        acks.show_life(Time(1000), PAUSE);
        assert_eq!(taken(&mut acks), [AckFrame::Ack { sequence: 0 }]);
        acks.handle_landed();
        acks.note();
        acks.show_life(Time(1050), PAUSE);
        assert_eq!(taken(&mut acks), [], "too soon");
        acks.show_life(Time(1100), PAUSE);
        assert_eq!(taken(&mut acks), [AckFrame::Ack { sequence: 0 }], "1 is withheld");
        acks.clear();
        acks.show_life(Time(1200), PAUSE);
        assert_eq!(taken(&mut acks), [AckFrame::Ack { sequence: 1 }], "which is one, too");
    }
}
