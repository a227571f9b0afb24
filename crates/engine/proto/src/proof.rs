//! Record of chunks that landed and may be sent again. Only this record lets the receiver acknowledge a chunk without
//! landing it.
//!
//! A flow that dies loses acknowledgements, so its sender sends chunks again that are in place already. A matching
//! transfer or chunk number proves nothing: an attacker on a flow can forge a frame, and a forged frame must not make
//! the real transfer of that number count as landed. So a copy must match a landed chunk in purpose, size, place and
//! message.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};

use crate::id::{FlowIndex, TransferId};
use crate::wire::{ChunkHeader, Flags, Place};

/// Maximum chunks remembered from flows that are gone. An honest sender sends the chunks that those had in flight again
/// before anything else.
const GONE_MAX: usize = 1 << 16;
/// Capacity that a list keeps after it was long once.
const KEPT_CAPACITY: usize = 64;

/// A chunk, by the properties that all copies of it share.
///
/// The first place stands for all of them: a sender that can name it may write there anyway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) header: ChunkHeader,
    first: Option<Place>,
    message: u64,
}

/// Chunks that landed and whose acknowledgement may not have reached their sender.
#[derive(Debug)]
pub(crate) struct Proofs {
    flows: Vec<OfFlow>,
    /// Chunks of flows that are gone.
    gone: VecDeque<Head>,
    of_flow_max: u32,
    /// Chunks of flows that are up.
    held: usize,
    held_max: usize,
    /// Random hash key: no peer can construct a message that passes for another.
    key: RandomState,
    /// Exists while copies arrive.
    index: Option<Box<Index>>,
}

/// Chunks of a flow.
#[derive(Debug)]
struct OfFlow {
    /// Newest last.
    landed: VecDeque<Head>,
    /// Maximum number to remember.
    most: u32,
    /// Connections that are up. More than one where the end of an earlier one is not known yet.
    connections: u32,
}

/// Count of the remembered chunks by hash. A peer that deliberately sends copies, one after another, costs one pass
/// over the lists for as many chunks as they hold.
#[derive(Debug)]
struct Index {
    key: RandomState,
    counts: HashMap<u64, u32>,
    /// Chunks that landed since the last copy arrived.
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

impl OfFlow {
    fn new(most: u32) -> Self {
        Self { landed: VecDeque::new(), most, connections: 0 }
    }
}

impl Proofs {
    /// `of_flow_max`: chunks that a sender may have in flight on a flow, unless [`Self::handle_flow_up`] sets less.
    /// `held_max`: chunks on all flows.
    pub(crate) fn new(of_flow_max: usize, held_max: usize) -> Self {
        let of_flow_max = u32::try_from(of_flow_max).unwrap_or(u32::MAX).max(1);
        let (key, gone) = (RandomState::new(), VecDeque::new());
        Self { flows: Vec::new(), gone, of_flow_max, held: 0, held_max, key, index: None }
    }

    /// Returns the properties that copies of a chunk share.
    pub(crate) fn head(&self, header: &ChunkHeader, places: &[Place], meta: &[u8]) -> Head {
        // The other flags describe how this copy travels.
        let is_notice = header.flags.contains(Flags::NOTIFY);
        let flags = if is_notice { Flags::NOTIFY } else { Flags::NONE };
        let header = ChunkHeader { flags, floor: TransferId(0), checksum: 0, place: 0, ..*header };
        let message = if meta.is_empty() { 0 } else { self.key.hash_one(meta) };
        Head { header, first: places.first().copied(), message }
    }

    /// Records that a connection of the flow is up, whose sender has at most `window_chunks` in flight on it.
    pub(crate) fn handle_flow_up(&mut self, flow: FlowIndex, window_chunks: u32) {
        let of_flow_max = self.of_flow_max;
        let of_flow = self.of_flow(flow);
        of_flow.connections += 1;
        // Chunks of an earlier connection may land in addition to those of this one.
        let is_alone = of_flow.connections == 1 && of_flow.landed.is_empty();
        of_flow.most = if is_alone { window_chunks.clamp(1, of_flow_max) } else { of_flow_max };
    }

    /// Records that a device copies a chunk of the flow, which lands after later chunks. So more than a window of newer
    /// ones may have landed while a chunk is still unacknowledged.
    pub(crate) fn handle_detached(&mut self, flow: FlowIndex) {
        self.of_flow(flow).most = self.of_flow_max;
    }

    /// Records that the chunk landed on `flow`, or that a copy of it arrived there. `floor`: everything below is over
    /// for the sender, which does not send it again.
    pub(crate) fn note(&mut self, flow: FlowIndex, head: Head, floor: TransferId) {
        self.of_flow(flow);
        let OfFlow { landed, most, .. } = &mut self.flows[flow.0 as usize];
        self.held -= landed.len();
        forget(landed, floor, most.saturating_sub(1) as usize, &mut self.index);
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

    /// Records that the chunk landed after a connection of its flow was gone, so its acknowledgement may never be sent.
    pub(crate) fn note_gone(&mut self, head: Head, floor: TransferId) {
        if let Some(index) = &mut self.index {
            index.add(&head);
        }
        self.gone.push_back(head);
        forget(&mut self.gone, floor, GONE_MAX, &mut self.index);
    }

    /// Records that the flow is gone: its acknowledgements may have been lost, so its chunks may be sent again.
    pub(crate) fn handle_flow_down(&mut self, flow: FlowIndex, floor: TransferId) {
        let Some(of_flow) = self.flows.get_mut(flow.0 as usize) else { return };
        of_flow.connections = of_flow.connections.saturating_sub(1);
        let mut landed = std::mem::take(&mut of_flow.landed);
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

    /// Returns the number of remembered chunks.
    pub(crate) fn len(&self) -> usize {
        self.held + self.gone.len()
    }

    /// Makes flows with long lists forget their oldest, so that there is room for a while.
    fn level(&mut self) {
        let goal = self.held_max - self.held_max / 8;
        let held = |keep| self.flows.iter().map(|it| it.landed.len().min(keep)).sum::<usize>();
        let mut keep = self.of_flow_max as usize;
        while keep > 1 && held(keep) > goal {
            keep -= keep.div_ceil(8);
        }
        for OfFlow { landed, .. } in &mut self.flows {
            forget(landed, TransferId(0), keep, &mut self.index);
        }
        self.held = self.flows.iter().map(|it| it.landed.len()).sum();
    }

    fn of_flow(&mut self, flow: FlowIndex) -> &mut OfFlow {
        let index = flow.0 as usize;
        if self.flows.len() <= index {
            // With many peers, one flow more or less matters.
            self.flows.reserve_exact(index + 1 - self.flows.len());
            self.flows.resize_with(index + 1, || OfFlow::new(self.of_flow_max));
        }
        &mut self.flows[index]
    }

    /// Returns whether a copy of the chunk landed. Rarely called: after a flow died, or when a peer lies.
    pub(crate) fn holds(&mut self, head: &Head) -> bool {
        let heads = || self.flows.iter().map(|it| &it.landed).chain([&self.gone]).flatten();
        let index = || Box::new(Index::new(&self.key, heads()));
        self.index.get_or_insert_with(index).holds(head)
    }
}

fn forget(
    landed: &mut VecDeque<Head>,
    floor: TransferId,
    keep: usize,
    index: &mut Option<Box<Index>>,
) {
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
        proofs
            .flows
            .iter()
            .map(|it| &it.landed)
            .chain([&proofs.gone])
            .any(|landed| landed.contains(head))
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
    fn of_a_flow_as_many_are_remembered_as_its_sender_may_have_in_flight() {
        let mut proofs = Proofs::new(100, 1000);
        let remembered = |proofs: &mut Proofs| {
            for transfer in 0..200 {
                let one = head(proofs, transfer, 0);
                proofs.note(FlowIndex(1), one, TransferId(0));
            }
            proofs.flows[1].landed.len()
        };
        assert_eq!(remembered(&mut proofs), 100);
        proofs.handle_flow_down(FlowIndex(1), TransferId(0));
        for (window_chunks, most) in [(4, 4), (70, 70), (1024, 100), (0, 1)] {
            proofs.handle_flow_up(FlowIndex(1), window_chunks);
            assert_eq!(remembered(&mut proofs), most);
            proofs.handle_detached(FlowIndex(1));
            assert_eq!(remembered(&mut proofs), 100);
            proofs.handle_flow_down(FlowIndex(1), TransferId(0));
        }
        // A second connection is made before the end of the first.
        proofs.handle_flow_up(FlowIndex(1), 4);
        proofs.handle_flow_up(FlowIndex(1), 4);
        assert_eq!(remembered(&mut proofs), 100);
        for most in [100, 4] {
            proofs.handle_flow_down(FlowIndex(1), TransferId(0));
            proofs.handle_flow_up(FlowIndex(1), 4);
            assert_eq!(remembered(&mut proofs), most);
            proofs.handle_flow_down(FlowIndex(1), TransferId(0));
        }
        // Chunks of an earlier connection have landed since its end.
        assert_eq!(remembered(&mut proofs), 4);
        proofs.handle_flow_up(FlowIndex(1), 4);
        assert_eq!(remembered(&mut proofs), 100);
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
