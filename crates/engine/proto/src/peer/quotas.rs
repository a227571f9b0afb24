//! Counts of the resources that a peer's messages take up here, and their limits.
//!
//! [`Outbound`](super::Outbound) counts, and [`Inbound`](super::Inbound) decides at the start of a frame whether its
//! message may be taken. Several flows may bring messages before the first is counted, so a quota may be exceeded by
//! the contents of their buffers.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use crate::matching::{Matcher, MatcherLimits};
use crate::message::{Message, ReadPiece, Takes};
use crate::plan::Plan;
use crate::quota::QuotaExceeded;
use crate::receiver::Permission;
use crate::wire::RefusalCode;

/// Minimum number of a peer's reads served at once, even if `ops_pool` is smaller: this engine may have a smaller pool
/// than the peer.
const READS_MIN: usize = 4096;
/// Maximum segments and chunks of all these reads, of at most 56 bytes each: 1 TiB in chunks of 512 KiB.
const READ_PARTS_MAX: usize = 1 << 21;
/// Minimum number of a peer's receives that may wait here, even if `ops_pool` is smaller.
const RECEIVES_MIN: usize = 1 << 16;
/// Maximum places of all these receives, of 40 bytes each.
const RECEIVE_PLACES_MAX: usize = 1 << 18;
/// Maximum answers that a peer has not acknowledged.
const ANSWERS_MAX: u32 = 1024;

/// Counts of a peer's current resources. Both sides of the peer share them.
#[derive(Debug)]
pub struct Quotas {
    ops_pool: usize,
    // Relaxed: a moment earlier or later makes no difference.
    receives: AtomicUsize,
    receive_places: AtomicUsize,
    reads: AtomicUsize,
    read_parts: AtomicUsize,
    answers: AtomicU32,
}

impl Quotas {
    /// Returns the counts of a peer without any resources, at an engine that has at most `ops_pool` operations
    /// outstanding.
    pub fn new(ops_pool: u32) -> Self {
        Self {
            ops_pool: ops_pool as usize,
            receives: AtomicUsize::new(0),
            receive_places: AtomicUsize::new(0),
            reads: AtomicUsize::new(0),
            read_parts: AtomicUsize::new(0),
            answers: AtomicU32::new(0),
        }
    }

    /// Returns whether a message of the peer may be taken, given its resources.
    pub fn admit(&self, message: &[u8]) -> Permission {
        let get = |number: &AtomicUsize| number.load(Ordering::Relaxed);
        match Message::takes(message) {
            Takes::Nothing => Ok(()),
            Takes::Read if self.has_room_for_reads(1, 1) => Ok(()),
            Takes::Read => Err(RefusalCode::ReadQuota),
            Takes::Receive
                if get(&self.receives) < self.ops_pool.max(RECEIVES_MIN)
                    && get(&self.receive_places) < RECEIVE_PLACES_MAX =>
            {
                Ok(())
            }
            Takes::Receive => Err(RefusalCode::ReceiveQuota),
        }
    }

    /// Returns whether a read that was taken while there was room may be served. Called before memory is allocated for
    /// its plan.
    pub fn admit_read(&self, pieces: &[ReadPiece], chunk_bytes: u64) -> Permission {
        let bytes = pieces.iter().fold(0u64, |sum, piece| sum.saturating_add(piece.from.len));
        let parts = (bytes / chunk_bytes).saturating_add(pieces.len() as u64);
        match self.has_room_for_reads(usize::try_from(parts).unwrap_or(usize::MAX), 2) {
            true => Ok(()),
            false => Err(RefusalCode::ReadQuota),
        }
    }

    /// Returns whether a question of the peer may be answered. A peer that asks and takes no answers may not fill the
    /// memory with them.
    pub fn may_answer(&self) -> bool {
        self.answers.load(Ordering::Relaxed) < ANSWERS_MAX
    }

    /// Returns a description of the peer's resources; `None` if it takes up none.
    pub fn text(&self) -> Option<String> {
        let [reads, receives] =
            [&self.reads, &self.receives].map(|number| number.load(Ordering::Relaxed));
        let answers = self.answers.load(Ordering::Relaxed);
        let any = reads > 0 || receives > 0 || answers > 0;
        any.then(|| {
            format!("reads served {reads}, receives posted {receives}, answers not taken {answers}")
        })
    }

    /// Returns whether reads have room. `times`: factor on the limits. A read of any size has room if it is the only
    /// one.
    fn has_room_for_reads(&self, parts: usize, times: usize) -> bool {
        let reads = self.reads.load(Ordering::Relaxed);
        let known = self.read_parts.load(Ordering::Relaxed);
        let fits = known.saturating_add(parts) <= times * READ_PARTS_MAX;
        reads < times * self.ops_pool.max(READS_MIN) && (fits || reads == 0) && self.may_answer()
    }

    /// Checks whether the failure of a read may be sent to the peer. Reads that were taken while there was room may
    /// bring the answers to twice [`ANSWERS_MAX`].
    pub(super) fn check_one_more_answer(&self) -> Result<(), QuotaExceeded> {
        let answers = self.answers.load(Ordering::Relaxed) as usize;
        QuotaExceeded::check("answers not taken", answers + 1, 2 * ANSWERS_MAX as usize)
    }

    /// Returns a matcher whose limits stop a peer that ignores refusals.
    pub(super) fn matcher<S: PartialEq>(&self) -> Matcher<S> {
        let receives = 2 * self.ops_pool.max(RECEIVES_MIN);
        Matcher::new(MatcherLimits { receives, places: 2 * RECEIVE_PLACES_MAX })
    }

    /// Records that receives were posted, withdrawn, or matched.
    pub(super) fn note_receives<S: PartialEq>(&self, matcher: &Matcher<S>) {
        self.receives.store(matcher.waiting_receives(), Ordering::Relaxed);
        self.receive_places.store(matcher.waiting_places(), Ordering::Relaxed);
    }

    /// Records that a read of this many parts is served from now on.
    pub(super) fn read_begins(&self, parts: usize) {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.read_parts.fetch_add(parts, Ordering::Relaxed);
    }

    pub(super) fn read_ends(&self, parts: usize) {
        self.reads.fetch_sub(1, Ordering::Relaxed);
        self.read_parts.fetch_sub(parts, Ordering::Relaxed);
    }

    /// Records that an answer is in flight.
    pub(super) fn answered(&self) {
        self.answers.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn answer_taken(&self) {
        self.answers.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Returns the number of parts of a read, as the quotas count them.
pub(super) fn parts_of(plan: &Plan) -> usize {
    plan.segments().len() + plan.chunk_count() as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::RegionKey;
    use crate::message::{CopyLeave, PostedReceive};
    use crate::wire::Place;

    const KEY: RegionKey = RegionKey { slot: 0, generation: 1, nonce: 0 };

    fn pieces(len: u64) -> Vec<ReadPiece> {
        vec![ReadPiece { from: Place { key: KEY, offset: 0, len }, to_key: KEY, to_offset: 0 }]
    }

    #[test]
    fn what_is_over_makes_room() {
        let quotas = Quotas::new(64);
        let place = Place { key: KEY, offset: 0, len: 1 };
        let leave = CopyLeave::No;
        let posted = |receive, places| PostedReceive { receive, tag: 1, places, leave };
        let announcement = Message::ReceivePosted(posted(1, vec![place])).encode();
        let read = Message::ReadRequest { read: 1, pieces: pieces(1), shared: false }.encode();
        for _ in 0..READS_MIN {
            assert_eq!(quotas.admit(&read), Ok(()));
            quotas.read_begins(1);
        }
        assert_eq!(quotas.admit(&read), Err(RefusalCode::ReadQuota));
        assert_eq!(quotas.admit_read(&pieces(1), 1), Ok(()), "it came with those");
        quotas.read_ends(1);
        assert_eq!(quotas.admit(&read), Ok(()));
        for _ in 0..ANSWERS_MAX {
            quotas.answered();
        }
        assert_eq!(quotas.admit(&read), Err(RefusalCode::ReadQuota));
        assert_eq!(quotas.admit(&Message::Bye.encode()), Ok(()));
        let mut matcher = quotas.matcher::<u32>();
        assert_eq!(quotas.admit(&announcement), Ok(()));
        for receive in 1..=RECEIVES_MIN as u64 {
            matcher.handle_posted(posted(receive, Vec::new()), &mut Vec::new()).unwrap();
        }
        quotas.note_receives(&matcher);
        assert_eq!(quotas.admit(&announcement), Err(RefusalCode::ReceiveQuota));
        matcher.handle_withdrawn(5, &mut Vec::new()).unwrap();
        quotas.note_receives(&matcher);
        assert_eq!(quotas.admit(&announcement), Ok(()));
    }

    #[test]
    fn a_read_of_any_size_is_served_if_it_is_alone() {
        let quotas = Quotas::new(64);
        assert_eq!(quotas.admit_read(&pieces(u64::MAX), 1), Ok(()));
        quotas.read_begins(1);
        let most = 2 * READ_PARTS_MAX as u64 - 2;
        assert_eq!(quotas.admit_read(&pieces(most), 1), Ok(()));
        assert_eq!(quotas.admit_read(&pieces(most + 1), 1), Err(RefusalCode::ReadQuota));
    }
}
