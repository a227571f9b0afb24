//! What a peer makes this engine remember for it, and how much that may be.
//!
//! | what | how much | past that |
//! |---|---|---|
//! | unfinished transfers, their chunks and messages | `proto::ReceiverLimits` | refused, and sent again later |
//! | reads that are served | `ops_pool`, or [`READS_MIN`] if that is more; [`READ_PARTS_MAX`] | likewise |
//! | twice as many of these | | the read fails there |
//! | receives that wait for a message | `ops_pool`, or [`RECEIVES_MIN`]; [`RECEIVE_PLACES_MAX`] | the receive fails there |
//! | twice as many of these | [`MatcherLimits`] | a breach: the flow ends |
//! | answers that it has not taken | [`ANSWERS_MAX`] | reads are refused, other questions not answered |
//! | notifications that nobody has taken | its share of the inbox | nothing is read from it |
//! | acknowledgements that it has not read | twice the largest window | a breach: the flow ends |
//! | connections | [`FlowPlace`] | refused |
//! | lines in the log | one of a kind per second: [`Seldom`] | counted |
//!
//! The receiving half decides where a frame begins whether its message may be taken. The sending
//! half counts what messages take up, and leaves its counts here. Several flows may bring messages
//! before the first is counted, so a quota may be exceeded by what their buffers hold.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;
use polyrail_proto::matching::{Matcher, MatcherLimits};
use polyrail_proto::message::{Message, Takes};
use polyrail_proto::wire::RefusalCode;
use polyrail_proto::{Plan, QuotaExceeded};

use polyrail_sys::process::descriptor_limit;

use crate::base::budget::{PeerShare, Taken, Wanted};
use crate::base::seldom::Seldom;
use crate::engine::counters::Counter;
use crate::engine::peer::{OpRef, PeerShared};
use crate::engine::state::EngineShared;

/// Reads of a peer that are served at once even if `ops_pool` is smaller: this engine may have a
/// smaller pool than the peer.
const READS_MIN: usize = 4096;
/// Segments and chunks of all these reads, of at most 56 bytes each: 1 TiB in chunks of 512 KiB.
const READ_PARTS_MAX: usize = 1 << 21;
/// Receives of a peer that wait here even if `ops_pool` is smaller.
const RECEIVES_MIN: usize = 1 << 16;
/// Places of all these receives, of 40 bytes each.
const RECEIVE_PLACES_MAX: usize = 1 << 18;
/// Answers that a peer has not acknowledged.
const ANSWERS_MAX: u32 = 1024;
/// Connections of a peer for each flow that it says it has: old ones end later than new ones begin.
const CONNECTIONS_PER_FLOW: u32 = 4;

/// What a peer takes up at this moment.
pub(crate) struct Quotas {
    ops_pool: usize,
    receives: AtomicUsize,
    receive_places: AtomicUsize,
    reads: AtomicUsize,
    read_parts: AtomicUsize,
    answers: AtomicU32,
    /// Connections from the peer, among those of all peers.
    connections: Arc<PeerShare>,
    /// How often it was refused a connection for that.
    pub(crate) flows_refused: Counter,
    pub(crate) logs: Logs,
    /// The last rule that it broke.
    pub(crate) breach: Mutex<Option<String>>,
    /// Bytes from it that had landed when its reads were looked at last.
    landed: AtomicU64,
}

/// What the log says of a peer, one line of a kind in a while.
#[derive(Default)]
pub(crate) struct Logs {
    pub(crate) breach: Seldom,
    pub(crate) not_understood: Seldom,
    pub(crate) no_staging: Seldom,
    pub(crate) no_stream: Seldom,
    pub(crate) device: Seldom,
}

/// A place among the connections that an engine accepts, held as long as the connection is.
pub(crate) struct FlowPlace {
    _taken: Taken,
}

impl Quotas {
    pub(crate) fn new(ops_pool: u32, connections: Arc<PeerShare>) -> Self {
        Self {
            ops_pool: ops_pool as usize,
            connections,
            receives: AtomicUsize::new(0),
            receive_places: AtomicUsize::new(0),
            reads: AtomicUsize::new(0),
            read_parts: AtomicUsize::new(0),
            answers: AtomicU32::new(0),
            flows_refused: Counter::default(),
            logs: Logs::default(),
            breach: Mutex::default(),
            landed: AtomicU64::new(0),
        }
    }

    /// Whether a message of the peer may be taken, for all that it takes up.
    pub(crate) fn admit(&self, message: &[u8]) -> Result<(), RefusalCode> {
        // Relaxed: a moment earlier or later makes no difference.
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

    /// Whether a read of so many parts may be served that was taken while there was room.
    pub(crate) fn may_serve(&self, parts: usize) -> bool {
        self.has_room_for_reads(parts, 2)
    }

    /// `times`: so many times as many as there should be. A read of any size has room if it is
    /// alone.
    fn has_room_for_reads(&self, parts: usize, times: usize) -> bool {
        let reads = self.reads.load(Ordering::Relaxed);
        let known = self.read_parts.load(Ordering::Relaxed);
        let fits = known.saturating_add(parts) <= times * READ_PARTS_MAX;
        reads < times * self.ops_pool.max(READS_MIN) && (fits || reads == 0) && self.may_answer()
    }

    /// Whether a question of the peer may be answered. One that asks and takes no answers is not
    /// let fill the memory with them.
    pub(crate) fn may_answer(&self) -> bool {
        self.answers.load(Ordering::Relaxed) < ANSWERS_MAX
    }

    /// Whether the peer may be told that a read of it fails. Reads that were taken while there was
    /// room may bring the answers to twice [`ANSWERS_MAX`].
    pub(crate) fn has_answers_left(&self) -> bool {
        self.answers.load(Ordering::Relaxed) < 2 * ANSWERS_MAX
    }

    pub(crate) fn too_many_answers(&self) -> QuotaExceeded {
        let value = u64::from(self.answers.load(Ordering::Relaxed)) + 1;
        QuotaExceeded { quota: "answers not taken", value, limit: (2 * ANSWERS_MAX).into() }
    }

    /// A matcher that stops a peer which is not stopped by being refused.
    pub(crate) fn matcher(&self) -> Matcher<OpRef> {
        let receives = 2 * self.ops_pool.max(RECEIVES_MIN);
        Matcher::new(MatcherLimits { receives, places: 2 * RECEIVE_PLACES_MAX })
    }

    /// Receives came, were withdrawn, or have met their sends.
    pub(crate) fn note_receives(&self, matcher: &Matcher<OpRef>) {
        self.receives.store(matcher.waiting_receives(), Ordering::Relaxed);
        self.receive_places.store(matcher.waiting_places(), Ordering::Relaxed);
    }

    /// A read is served from now on.
    pub(crate) fn read_begins(&self, plan: &Plan) {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.read_parts.fetch_add(parts_of(plan), Ordering::Relaxed);
    }

    pub(crate) fn read_ends(&self, plan: &Plan) {
        self.reads.fetch_sub(1, Ordering::Relaxed);
        self.read_parts.fetch_sub(parts_of(plan), Ordering::Relaxed);
    }

    /// An answer is on its way.
    pub(crate) fn answered(&self) {
        self.answers.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn answer_taken(&self) {
        self.answers.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether bytes of the peer have landed since the last call, of `landed` in all.
    pub(crate) fn is_bringing(&self, landed: u64) -> bool {
        self.landed.swap(landed, Ordering::Relaxed) != landed
    }

    /// For people: what the peer takes up, if anything.
    pub(crate) fn text(&self) -> Option<String> {
        let [reads, receives] =
            [&self.reads, &self.receives].map(|number| number.load(Ordering::Relaxed));
        let answers = self.answers.load(Ordering::Relaxed);
        let any = reads > 0 || receives > 0 || answers > 0;
        any.then(|| {
            format!("reads served {reads}, receives posted {receives}, answers not taken {answers}")
        })
    }
}

fn parts_of(plan: &Plan) -> usize {
    plan.segments().len() + plan.chunk_count() as usize
}

impl FlowPlace {
    /// A place for one more connection of the peer, which says that it has so many flows; or why
    /// there is none. `limit`: connections of all peers.
    pub(crate) fn take(peer: &Arc<PeerShared>, flows: u32, limit: u32) -> Result<Self, String> {
        let connections = &peer.quotas.connections;
        let (known, most) = (connections.taken(), flows.saturating_mul(CONNECTIONS_PER_FLOW));
        let refuse = |why| {
            peer.quotas.flows_refused.add(1);
            Err(why)
        };
        if known >= most.into() {
            return refuse(format!(
                "{known} connections of this peer are here, its quota is {most}: \
                 {CONNECTIONS_PER_FLOW} for each of {flows} flows"
            ));
        }
        match connections.take(Wanted::ONE, limit.into()) {
            Some(taken) => Ok(Self { _taken: taken }),
            None => refuse(format!(
                "{known} connections of this peer and {} of all peers are here; flow_limit is {limit}, \
                 and an eighth of it is for peers that have none",
                connections.taken_by_all()
            )),
        }
    }
}

impl EngineShared {
    /// The most connections of all peers together. Some descriptors stay for other things, whatever
    /// `flow_limit` allows.
    pub(crate) fn connection_limit(&self) -> u32 {
        let descriptors = descriptor_limit();
        let most = descriptors - descriptors / 4;
        u32::try_from(most).unwrap_or(u32::MAX).min(self.config.flow_limit)
    }
}

#[cfg(test)]
mod tests {
    use polyrail_proto::RegionKey;
    use polyrail_proto::message::{CopyLeave, PostedReceive, ReadPiece};
    use polyrail_proto::wire::Place;

    use super::*;
    use crate::api::engine::Engine;
    use crate::base::budget::Budget;

    fn quotas() -> Quotas {
        Quotas::new(64, Budget::new().share())
    }

    #[test]
    fn a_peer_that_replaces_its_connections_quickly_has_few_at_once() {
        let [a, b] = [(); 2].map(|()| Engine::builder().build().unwrap());
        let peer = a.add_peer(&b.metadata()).unwrap().shared;
        let take = |flows| FlowPlace::take(&peer, flows, 64);
        let before = peer.quotas.connections.taken() as u32;
        let mut places: Vec<FlowPlace> = std::iter::from_fn(|| take(1).ok()).take(100).collect();
        assert_eq!(places.len() as u32, CONNECTIONS_PER_FLOW - before.min(CONNECTIONS_PER_FLOW));
        let why = take(1).err().unwrap();
        assert!(why.contains("its quota is 4: 4 for each of 1 flows"), "{why}");
        places.pop();
        assert!(take(1).is_ok());
        // With more flows it has more connections, up to its share of all.
        places.extend(std::iter::from_fn(|| take(1000).ok()).take(100));
        assert!(places.len() <= 56 && peer.quotas.connections.taken() == 56);
        assert!(peer.quotas.flows_refused.get() >= 3);
    }

    #[test]
    fn what_is_over_makes_room() {
        let quotas = quotas();
        let key = RegionKey { slot: 0, generation: 1, nonce: 0 };
        let place = Place { key, offset: 0, len: 1 };
        let leave = CopyLeave::No;
        let posted = |receive, places| PostedReceive { receive, tag: 1, places, leave };
        let announcement = Message::ReceivePosted(posted(1, vec![place])).encode();
        let pieces = vec![ReadPiece { from: place, to_key: key, to_offset: 0 }];
        let read = Message::ReadRequest { read: 1, pieces, shared: false }.encode();
        let plan = Plan::empty();
        for _ in 0..READS_MIN {
            assert_eq!(quotas.admit(&read), Ok(()));
            quotas.read_begins(&plan);
        }
        assert_eq!(quotas.admit(&read), Err(RefusalCode::ReadQuota));
        assert!(quotas.may_serve(1), "it came with those");
        quotas.read_ends(&plan);
        assert_eq!(quotas.admit(&read), Ok(()));
        for _ in 0..ANSWERS_MAX {
            quotas.answered();
        }
        assert_eq!(quotas.admit(&read), Err(RefusalCode::ReadQuota));
        assert_eq!(quotas.admit(&Message::Bye.encode()), Ok(()));
        let mut matcher = quotas.matcher();
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
        let quotas = quotas();
        assert!(quotas.may_serve(usize::MAX));
        quotas.read_begins(&Plan::empty());
        assert!(quotas.may_serve(2 * READ_PARTS_MAX - 1) && !quotas.may_serve(2 * READ_PARTS_MAX));
    }
}
