//! Remembers what landed and may come again. Nothing else lets the receiver acknowledge a chunk
//! without landing it.
//!
//! A flow that dies takes acknowledgements with it, so its sender sends chunks again that are in
//! place already. A matching transfer or chunk number proves nothing: whoever got hold of a flow
//! can forge a frame, and a forged frame must not make the real transfer of that number count as
//! landed. So a copy must match something that landed in purpose, size, place and message.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};

use crate::id::{FlowIndex, TransferId};
use crate::wire::{ChunkHeader, Flags, Place};

/// The most chunks remembered from flows that are gone. An honest sender sends what those had in
/// flight again before anything else.
const GONE_MAX: usize = 1 << 16;
/// A list that was long once keeps this capacity and gives the rest back.
const KEPT_CAPACITY: usize = 64;

/// A chunk, by what all copies of it have in common.
///
/// The first place stands for all of them: whoever can name it may write there anyway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) header: ChunkHeader,
    first: Option<Place>,
    message: u64,
}

/// Chunks that landed and whose acknowledgement may not have reached their sender.
#[derive(Debug)]
pub(crate) struct Proofs {
    /// By flow, the newest last.
    flows: Vec<VecDeque<Head>>,
    /// Of flows that are gone.
    gone: VecDeque<Head>,
    of_flow_max: usize,
    /// Of flows that are there.
    held: usize,
    held_max: usize,
    /// A random hash key: nobody can construct a message that passes for another.
    key: RandomState,
    /// Exists while copies come.
    index: Option<Index>,
}

/// Counts the remembered chunks by hash. A peer that sends copies on purpose, one after another, costs
/// one look at the lists for as many chunks as they hold.
#[derive(Debug)]
struct Index {
    key: RandomState,
    counts: HashMap<u64, u32>,
    /// Chunks that landed since the last copy came.
    landed: usize,
}

impl Index {
    fn new<'a>(key: &RandomState, heads: impl Iterator<Item = &'a Head>) -> Self {
        let mut index = Self { key: key.clone(), counts: HashMap::new(), landed: 0 };
        heads.for_each(|head| index.add(head));
        index
    }

    fn hash(&self, head: &Head) -> u64 {
        // `Proofs::head` made the other fields equal.
        let Head { header, first, message } = head;
        let first = first.map(|place| (place.key, place.offset, place.len));
        let numbers = (header.transfer.0, header.chunk, header.chunk_count, header.context);
        let sizes = (header.meta_len, header.payload_len, header.pieces, header.op as u8);
        self.key.hash_one((numbers, sizes, header.flags.contains(Flags::NOTIFY), first, message))
    }

    fn add(&mut self, head: &Head) {
        *self.counts.entry(self.hash(head)).or_insert(0) += 1;
    }

    fn remove(&mut self, head: &Head) {
        let hash = self.hash(head);
        if let Some(count) = self.counts.get_mut(&hash) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&hash);
            }
        }
    }

    fn holds(&mut self, head: &Head) -> bool {
        self.landed = 0;
        self.counts.contains_key(&self.hash(head))
    }
}

impl Proofs {
    /// `of_flow_max`: chunks that a sender may have in flight on a flow. `held_max`: on all flows.
    pub(crate) fn new(of_flow_max: usize, held_max: usize) -> Self {
        let (key, gone) = (RandomState::new(), VecDeque::new());
        Self { flows: Vec::new(), gone, of_flow_max, held: 0, held_max, key, index: None }
    }

    /// What copies of a chunk have in common.
    pub(crate) fn head(&self, header: &ChunkHeader, places: &[Place], meta: &[u8]) -> Head {
        // The other flags say how this copy travels.
        let is_notice = header.flags.contains(Flags::NOTIFY);
        let flags = if is_notice { Flags::NOTIFY } else { Flags::NONE };
        let header = ChunkHeader { flags, floor: TransferId(0), checksum: 0, place: 0, ..*header };
        let message = if meta.is_empty() { 0 } else { self.key.hash_one(meta) };
        Head { header, first: places.first().copied(), message }
    }

    /// The chunk landed on `flow`, or a copy of it came there. `floor`: everything below is over for
    /// the sender, who sends nothing of it again.
    pub(crate) fn note(&mut self, flow: FlowIndex, head: Head, floor: TransferId) {
        let index = flow.0 as usize;
        if self.flows.len() <= index {
            self.flows.resize_with(index + 1, VecDeque::new);
        }
        let landed = &mut self.flows[index];
        self.held -= landed.len();
        forget(landed, floor, self.of_flow_max.saturating_sub(1), &mut self.index);
        if let Some(index) = &mut self.index {
            index.add(&head);
            index.landed += 1;
        }
        landed.push_back(head);
        self.held += landed.len();
        if self.index.as_ref().is_some_and(|index| index.landed > self.len()) {
            self.index = None;
        }
        if self.held > self.held_max {
            self.level();
        }
    }

    /// The flow is gone: its acknowledgements may have been lost, so its chunks may come again.
    pub(crate) fn handle_flow_down(&mut self, flow: FlowIndex, floor: TransferId) {
        let Some(landed) = self.flows.get_mut(flow.0 as usize) else { return };
        let mut landed = std::mem::take(landed);
        self.held -= landed.len();
        landed.retain(|head| {
            let may_come_again = head.header.transfer >= floor;
            if !may_come_again && let Some(index) = &mut self.index {
                index.remove(head);
            }
            may_come_again
        });
        self.gone.append(&mut landed);
        forget(&mut self.gone, floor, GONE_MAX, &mut self.index);
    }

    /// How many chunks are remembered.
    pub(crate) fn len(&self) -> usize {
        self.held + self.gone.len()
    }

    /// Flows with long lists forget their oldest, so that there is room for a while.
    fn level(&mut self) {
        let goal = self.held_max - self.held_max / 8;
        let held = |keep| self.flows.iter().map(|landed| landed.len().min(keep)).sum::<usize>();
        let mut keep = self.of_flow_max;
        while keep > 1 && held(keep) > goal {
            keep -= keep.div_ceil(8);
        }
        for landed in &mut self.flows {
            forget(landed, TransferId(0), keep, &mut self.index);
        }
        self.held = self.flows.iter().map(VecDeque::len).sum();
    }

    /// Whether a copy of the chunk landed. Rarely asked: after a flow died, or when a peer lies.
    pub(crate) fn holds(&mut self, head: &Head) -> bool {
        let heads = || self.flows.iter().chain([&self.gone]).flatten();
        self.index.get_or_insert_with(|| Index::new(&self.key, heads())).holds(head)
    }
}

fn forget(landed: &mut VecDeque<Head>, floor: TransferId, keep: usize, index: &mut Option<Index>) {
    while landed.len() > keep || landed.front().is_some_and(|head| head.header.transfer < floor) {
        if let (Some(head), Some(index)) = (landed.pop_front(), index.as_mut()) {
            index.remove(&head);
        }
    }
    if landed.capacity() > KEPT_CAPACITY && landed.len() < landed.capacity() / 8 {
        landed.shrink_to(KEPT_CAPACITY);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::id::RegionKey;
    use crate::wire::WireOp;

    pub(crate) fn head(proofs: &Proofs, transfer: u64, chunk: u32) -> Head {
        let header = ChunkHeader {
            op: WireOp::Write,
            flags: Flags::NONE,
            meta_len: 0,
            payload_len: 10,
            pieces: 1,
            transfer: TransferId(transfer),
            chunk,
            chunk_count: 4,
            floor: TransferId(0),
            context: 0,
            checksum: 0,
            place: 0,
        };
        proofs.head(
            &header,
            &[Place { key: RegionKey { slot: 1, generation: 1, nonce: 1 }, offset: 0, len: 10 }],
            b"",
        )
    }

    fn is_listed(proofs: &Proofs, head: &Head) -> bool {
        proofs.flows.iter().chain([&proofs.gone]).any(|landed| landed.contains(head))
    }

    proptest! {
        #[test]
        fn the_index_knows_exactly_the_listed_chunks(
            steps in prop::collection::vec((0u8..5, 0u32..3, 0u64..12, 0u32..2), 1..200),
        ) {
            let mut proofs = Proofs::new(6, 12);
            let mut floor = 0;
            for (step, flow, transfer, chunk) in steps {
                let one = head(&proofs, transfer, chunk);
                match step {
                    0 | 1 => proofs.note(FlowIndex(flow), one, TransferId(floor)),
                    2 => proofs.handle_flow_down(FlowIndex(flow), TransferId(floor)),
                    3 => floor = floor.max(transfer / 2),
                    _ => {
                        let listed = is_listed(&proofs, &one);
                        prop_assert_eq!(proofs.holds(&one), listed);
                    }
                }
            }
        }
    }

    #[test]
    fn copies_one_after_another_are_found_without_another_look_at_the_lists() {
        let mut proofs = Proofs::new(100, 1000);
        for transfer in 0..100 {
            let one = head(&proofs, transfer, 0);
            proofs.note(FlowIndex(0), one, TransferId(0));
        }
        let copy = head(&proofs, 7, 0);
        assert!(proofs.holds(&copy));
        proofs.note(FlowIndex(1), copy, TransferId(0));
        assert!(proofs.index.is_some(), "the next copy needs no look at the lists");
        // Honest peers send no copies for long: then landing costs nothing for the index.
        for transfer in 100..202 {
            let one = head(&proofs, transfer, 0);
            proofs.note(FlowIndex(0), one, TransferId(0));
        }
        assert!(proofs.index.is_none());
    }
}
