//! Remembers what landed and may come again. Nothing else lets the receiver acknowledge a chunk
//! without landing it.
//!
//! A flow that dies takes acknowledgements with it, so its sender sends chunks again that are in
//! place already. A matching transfer or chunk number proves nothing: whoever got hold of a flow
//! can forge a frame, and a forged frame must not make the real transfer of that number count as
//! landed. So a copy must match something that landed in purpose, size, place and message.

use std::collections::VecDeque;
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
}

impl Proofs {
    /// `of_flow_max`: chunks that a sender may have in flight on a flow. `held_max`: on all flows.
    pub(crate) fn new(of_flow_max: usize, held_max: usize) -> Self {
        let (key, gone) = (RandomState::new(), VecDeque::new());
        Self { flows: Vec::new(), gone, of_flow_max, held: 0, held_max, key }
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
        forget(landed, floor, self.of_flow_max.saturating_sub(1));
        landed.push_back(head);
        self.held += landed.len();
        if self.held > self.held_max {
            self.level();
        }
    }

    /// The flow is gone: its acknowledgements may have been lost, so its chunks may come again.
    pub(crate) fn handle_flow_down(&mut self, flow: FlowIndex, floor: TransferId) {
        let Some(landed) = self.flows.get_mut(flow.0 as usize) else { return };
        let landed = std::mem::take(landed);
        self.held -= landed.len();
        self.gone.extend(landed.into_iter().filter(|head| head.header.transfer >= floor));
        forget(&mut self.gone, floor, GONE_MAX);
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
            forget(landed, TransferId(0), keep);
        }
        self.held = self.flows.iter().map(VecDeque::len).sum();
    }

    /// Whether a copy of the chunk landed. Rarely asked: after a flow died, or when a peer lies.
    pub(crate) fn holds(&self, head: &Head) -> bool {
        self.flows.iter().chain([&self.gone]).any(|landed| landed.contains(head))
    }
}

fn forget(landed: &mut VecDeque<Head>, floor: TransferId, keep: usize) {
    while landed.len() > keep || landed.front().is_some_and(|head| head.header.transfer < floor) {
        landed.pop_front();
    }
    if landed.capacity() > KEPT_CAPACITY && landed.len() < landed.capacity() / 8 {
        landed.shrink_to(KEPT_CAPACITY);
    }
}
