//! Acknowledgements of a flow that arrives: which are due, and which may leave.

use std::io;
use std::time::Duration;

use polyrail_proto::QuotaExceeded;
use polyrail_proto::wire::{ACK_BYTES, AckFrame, RefusalCode, Words};
use polyrail_secure::{MAX_SEALED_BYTES, Sealer};
use polyrail_sys::{IoVecs, Out};

use crate::device::wire::Wire;

/// Acknowledgements come at least this many times per window.
const ACKS_PER_WINDOW: u32 = 4;
/// Where the wire is slower than this end, a chunk is acknowledged before the next one is through,
/// but not sooner than this after the last: the sender is to know how fast the rail is, and what is
/// on it.
const ACK_PAUSE_NS: u64 = 200_000;

/// Bytes that may wait to be sent. A sender has at most a window of frames in flight, and each
/// frame makes one acknowledgement at most, so an honest sender leaves fewer unread.
const OWED_BYTES_MAX: usize = 2 * MAX_WINDOW * ACK_BYTES;
/// The largest window of a channel.
const MAX_WINDOW: usize = 1024;

/// What the sender of a flow is told.
pub(super) struct Acks {
    /// Chunk frames that are through.
    through: u64,
    /// Those that an acknowledgement was made of.
    noted: u64,
    /// Those that acknowledgements cover which were sent or may be sent.
    told: u64,
    every: u64,
    hurry: bool,
    /// When the last one was made because it was time to.
    noted_ns: u64,
    /// Acknowledgements to hold back while a flow that has lost its chunk still writes it.
    withheld: Vec<u8>,
    /// May be sent.
    cleared: Vec<u8>,
    /// Sealed, and not wholly out.
    sealed: Vec<u8>,
    /// When it was last said that this end lives.
    life_ns: u64,
    bye: Bye,
    /// The reason in front of the good-bye, in frames.
    why: Vec<u8>,
}

/// The last word of this end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Bye {
    NotYet,
    /// Once all else is said.
    Due,
    Said,
}

impl Acks {
    pub(super) fn new(window_chunks: u32) -> Self {
        Self {
            through: 0,
            noted: 0,
            told: 0,
            every: u64::from((window_chunks / ACKS_PER_WINDOW).max(1)),
            hurry: false,
            noted_ns: 0,
            withheld: Vec::new(),
            cleared: Vec::new(),
            sealed: Vec::new(),
            life_ns: 0,
            bye: Bye::NotYet,
            why: Vec::new(),
        }
    }

    /// The next chunk is in place.
    pub(super) fn landed(&mut self) {
        self.through += 1;
    }

    /// The next chunk is not taken.
    pub(super) fn refused(&mut self, code: RefusalCode) {
        self.through += 1;
        let refusal = AckFrame::Refusal { sequence: self.through, code };
        self.withheld.extend_from_slice(&refusal.encode());
        self.noted = self.through;
    }

    /// The sender waits for the next one.
    pub(super) fn hurry(&mut self) {
        self.hurry = true;
    }

    /// Whether chunks are in place that no acknowledgement was made of.
    pub(super) fn is_behind(&self) -> bool {
        self.through > self.noted
    }

    /// Acknowledges what is in place, if it is time to: at the end of a burst, which may be within a
    /// frame (`is_drained`) or not (`is_idle`), when there are many, or if the sender waits.
    pub(super) fn note_if_due(&mut self, is_idle: bool, is_drained: bool, now: u64) {
        let is_late = is_drained && now.saturating_sub(self.noted_ns) >= ACK_PAUSE_NS;
        let is_due = is_idle || is_late || self.hurry || self.through - self.noted >= self.every;
        if self.is_behind() && is_due {
            self.noted_ns = now;
            self.note();
        }
    }

    /// Acknowledges what is in place.
    pub(super) fn note(&mut self) {
        drop_last_ack(&mut self.withheld);
        self.withheld.extend_from_slice(&AckFrame::Ack { sequence: self.through }.encode());
        self.noted = self.through;
        self.hurry = false;
    }

    /// Whether some wait for [`Self::clear`].
    pub(super) fn are_withheld(&self) -> bool {
        !self.withheld.is_empty()
    }

    /// Nothing lands that was taken from its flow: all may leave.
    pub(super) fn clear(&mut self) {
        if self.are_withheld() {
            drop_last_ack(&mut self.cleared);
            self.cleared.append(&mut self.withheld);
            self.told = self.noted;
        }
    }

    /// Says once more what the sender was told, if the last time is so long ago: that says that this
    /// end lives, and may be said at any time.
    pub(super) fn show_life(&mut self, now: u64, pause: Duration) {
        if Duration::from_nanos(now.saturating_sub(self.life_ns)) >= pause {
            self.life_ns = now;
            if self.cleared.is_empty() {
                let told = AckFrame::Ack { sequence: self.told };
                self.cleared.extend_from_slice(&told.encode());
            }
        }
    }

    /// This end leaves: it says so, once, behind all that is withheld now.
    pub(super) fn say_bye(&mut self) {
        if self.bye == Bye::NotYet {
            self.bye = Bye::Due;
        }
    }

    /// This end gives the sender up: says why, then [`Self::say_bye`].
    pub(super) fn say_why(&mut self, words: &str) {
        if self.bye != Bye::Said {
            self.why = Words::of(words).flat_map(AckFrame::encode).collect();
            self.bye = Bye::Due;
        }
    }

    /// Whether there is nothing to send, now or later.
    pub(super) fn are_out(&self) -> bool {
        let is_empty =
            self.cleared.is_empty() && self.withheld.is_empty() && self.sealed.is_empty();
        is_empty && self.bye != Bye::Due
    }

    /// An error if the sender takes no acknowledgements and goes on sending.
    pub(super) fn check_quota(&self) -> Result<(), QuotaExceeded> {
        let owed = self.cleared.len() + self.withheld.len() + self.sealed.len();
        QuotaExceeded::check("bytes of acknowledgements not taken", owed, OWED_BYTES_MAX)
    }

    /// Moves what may leave to `out`, sealed.
    pub(super) fn take(&mut self, sealer: &mut Sealer, out: &mut Vec<u8>) {
        self.conclude();
        seal(&mut self.cleared, sealer, out);
    }

    /// Sends of what may leave what the socket takes.
    pub(super) fn send(&mut self, sealer: &mut Sealer, wire: &Wire) -> io::Result<()> {
        self.conclude();
        loop {
            if self.sealed.is_empty() {
                seal(&mut self.cleared, sealer, &mut self.sealed);
            }
            if self.sealed.is_empty() {
                return Ok(());
            }
            let mut from = IoVecs::<Out>::new();
            from.push_bytes(&self.sealed);
            match wire.send(&mut from) {
                Ok(bytes) => drop(self.sealed.drain(..bytes)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    /// Says the last word, if it is time for it.
    fn conclude(&mut self) {
        if self.bye == Bye::Due && !self.are_withheld() {
            self.cleared.append(&mut self.why);
            self.cleared.extend_from_slice(&AckFrame::Bye.encode());
            self.bye = Bye::Said;
        }
    }
}

/// Seals frames: few records, none too long.
fn seal(frames: &mut Vec<u8>, sealer: &mut Sealer, out: &mut Vec<u8>) {
    const MOST: usize = MAX_SEALED_BYTES / ACK_BYTES * ACK_BYTES;
    for part in frames.chunks(MOST) {
        let begin = sealer.begin(out);
        out.extend_from_slice(part);
        sealer.seal(out, begin, 0);
    }
    frames.clear();
}

/// A cumulative acknowledgement makes an unsent earlier one superfluous.
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

    fn taken(acks: &mut Acks) -> Vec<AckFrame> {
        let out = std::mem::take(&mut acks.cleared);
        out.as_chunks().0.iter().map(|frame| AckFrame::decode(frame).unwrap()).collect()
    }

    #[test]
    fn what_is_withheld_leaves_when_it_is_cleared_and_later_acks_replace_earlier_ones() {
        let mut acks = Acks::new(8);
        acks.landed();
        acks.note_if_due(false, false, 0);
        assert!(acks.are_out() && acks.is_behind(), "every second one");
        acks.landed();
        acks.note_if_due(false, false, 0);
        assert_eq!((taken(&mut acks), acks.are_withheld()), (vec![], true));
        acks.landed();
        acks.note();
        acks.clear();
        assert_eq!(taken(&mut acks), [AckFrame::Ack { sequence: 3 }]);
        acks.refused(RefusalCode::Busy);
        acks.landed();
        acks.hurry();
        acks.note_if_due(false, false, 0);
        acks.clear();
        let refusal = AckFrame::Refusal { sequence: 4, code: RefusalCode::Busy };
        assert_eq!(taken(&mut acks), [refusal, AckFrame::Ack { sequence: 5 }]);
        assert!(acks.are_out() && !acks.is_behind());
    }

    #[test]
    fn a_chunk_is_acknowledged_in_mid_frame_when_nothing_more_came_but_not_too_often() {
        let mut acks = Acks::new(16);
        acks.landed();
        acks.note_if_due(false, true, ACK_PAUSE_NS);
        acks.clear();
        assert_eq!(taken(&mut acks), [AckFrame::Ack { sequence: 1 }]);
        acks.landed();
        acks.note_if_due(false, true, 2 * ACK_PAUSE_NS - 1);
        acks.note_if_due(false, false, 2 * ACK_PAUSE_NS);
        assert!(acks.are_out() && acks.is_behind(), "too soon, and then more came");
        acks.note_if_due(false, true, 2 * ACK_PAUSE_NS);
        acks.clear();
        assert_eq!(taken(&mut acks), [AckFrame::Ack { sequence: 2 }]);
    }

    #[test]
    fn the_reason_for_giving_a_peer_up_is_said_once_behind_the_last_acknowledgement() {
        let mut acks = Acks::new(8);
        acks.landed();
        acks.note();
        acks.say_why("no way there");
        acks.conclude();
        assert_eq!(taken(&mut acks), [], "what is withheld comes first");
        acks.clear();
        acks.conclude();
        let said = taken(&mut acks);
        assert_eq!(said[0], AckFrame::Ack { sequence: 1 });
        assert_eq!(said[1..2], Words::of("no way there").collect::<Vec<_>>());
        assert_eq!(said[2..], [AckFrame::Bye]);
        acks.say_why("another");
        acks.conclude();
        assert_eq!(taken(&mut acks), []);
    }

    #[test]
    fn a_sign_of_life_says_nothing_new() {
        const PAUSE: Duration = Duration::from_nanos(100);
        let mut acks = Acks::new(8);
        acks.show_life(1000, PAUSE);
        assert_eq!(taken(&mut acks), [AckFrame::Ack { sequence: 0 }]);
        acks.landed();
        acks.note();
        acks.show_life(1050, PAUSE);
        assert_eq!(taken(&mut acks), [], "too soon");
        acks.show_life(1100, PAUSE);
        assert_eq!(taken(&mut acks), [AckFrame::Ack { sequence: 0 }], "1 is withheld");
        acks.clear();
        acks.show_life(1200, PAUSE);
        assert_eq!(taken(&mut acks), [AckFrame::Ack { sequence: 1 }], "which is one, too");
    }
}
