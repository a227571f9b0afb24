//! Tracks the use of each block of memory. Free blocks contain a marker and must keep it.

use crate::memory::{Memory, Span};
use crate::network::NodeId;
use crate::oracle::OpId;
use crate::rng::Rng;

/// Bytes of a block. Segments begin anywhere in one and extend over as many as they need.
const BLOCK_BYTES: u64 = 4 << 10;
/// Attempts to find a place for a segment before the memory counts as full.
const TRIES: u32 = 8;

/// Role of a block in its operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Source,
    Destination,
}

#[derive(Debug)]
pub(super) struct Ground {
    /// Blocks by node and slot.
    slots: Vec<Vec<Vec<Block>>>,
}

#[derive(Clone, Copy, Debug)]
struct Block {
    user: Option<(OpId, Role)>,
    /// Fill value since the block was last free.
    marker: u8,
}

impl Ground {
    pub(super) fn new(memories: &mut [Memory], rng: &mut Rng) -> Self {
        let slots = |memory: &Memory| {
            let blocks = |slot| memory.slot_bytes(slot as u32) / BLOCK_BYTES as usize;
            let free = Block { user: None, marker: 0 };
            (0..memory.slots()).map(|slot| vec![free; blocks(slot)]).collect::<Vec<_>>()
        };
        let mut ground = Self { slots: memories.iter().map(slots).collect() };
        for node in 0..memories.len() {
            for slot in 0..memories[node].slots() {
                ground.clear(memories, rng, node, slot as u32);
            }
        }
        ground
    }

    /// Finds room for segments of these lengths, in one slot if that is given. `Err(None)` means that there is none
    /// now, and `Err(Some)` that free memory was written to.
    pub(super) fn take(
        &mut self,
        memories: &[Memory],
        rng: &mut Rng,
        node: NodeId,
        (lens, slot): (&[u64], Option<u32>),
        user: (OpId, Role),
    ) -> Result<Vec<Span>, Option<String>> {
        let mut spans = Vec::new();
        for len in lens {
            let span = (0..TRIES).find_map(|_| self.find(&memories[node], rng, node, *len, slot));
            let span = span.ok_or(None)?;
            for index in blocks_of(span) {
                self.check_block(memories, node, span.slot, index).map_err(Some)?;
                self.slots[node][span.slot as usize][index].user = Some(user);
            }
            spans.push(span);
        }
        Ok(spans)
    }

    /// The operation that owns all of `at` as a destination, or a description of the present use.
    pub(super) fn owner(&self, node: NodeId, at: Span) -> Result<OpId, String> {
        let mut owner = None;
        for index in blocks_of(at) {
            let block = self.slots[node][at.slot as usize].get(index);
            match block.map(|block| block.user) {
                Some(Some((op, Role::Destination))) if owner.is_none_or(|o| o == op) => {
                    owner = Some(op);
                }
                Some(None) => return Err("nobody uses that memory any more".to_owned()),
                other => return Err(format!("that memory belongs to {other:?}")),
            }
        }
        owner.ok_or_else(|| "no bytes".to_owned())
    }

    /// Bytes of a span before it was used.
    pub(super) fn before(&self, node: NodeId, span: Span) -> Vec<u8> {
        let blocks = &self.slots[node][span.slot as usize];
        let marker = |offset| blocks[(offset / BLOCK_BYTES) as usize].marker;
        (span.offset..span.offset + span.len).map(marker).collect()
    }

    /// Frees the operation's blocks of that role and marks them.
    pub(super) fn release(&mut self, memories: &mut [Memory], rng: &mut Rng, op: OpId, role: Role) {
        let marker = rng.bits() as u8;
        self.free(memories, marker, |user| user == (op, role));
    }

    /// Undoes the reservation of an operation that was not posted.
    pub(super) fn give_back(&mut self, memories: &mut [Memory], rng: &mut Rng, op: OpId) {
        let marker = rng.bits() as u8;
        self.free(memories, marker, |(user, _)| user == op);
    }

    /// Frees the whole slot, for all its users.
    pub(super) fn clear(
        &mut self,
        memories: &mut [Memory],
        rng: &mut Rng,
        node: NodeId,
        slot: u32,
    ) {
        let marker = rng.bits() as u8;
        let blocks = &mut self.slots[node][slot as usize];
        blocks.fill(Block { user: None, marker });
        let len = blocks.len() as u64 * BLOCK_BYTES;
        memories[node].bytes_mut(Span { slot, offset: 0, len }).fill(marker);
    }

    /// Checks that all memory is free and marked.
    pub(super) fn check(&self, memories: &[Memory]) -> Result<(), String> {
        for (node, slots) in self.slots.iter().enumerate() {
            for (slot, blocks) in slots.iter().enumerate() {
                for (index, block) in blocks.iter().enumerate() {
                    if let Some((op, role)) = block.user {
                        return Err(format!("{op} still holds its {role:?} at node {node}"));
                    }
                    self.check_block(memories, node, slot as u32, index)?;
                }
            }
        }
        Ok(())
    }

    /// Finds a run of free blocks for `len` bytes, which begin anywhere in the first block.
    fn find(
        &self,
        memory: &Memory,
        rng: &mut Rng,
        node: NodeId,
        len: u64,
        slot: Option<u32>,
    ) -> Option<Span> {
        let slot = slot.unwrap_or_else(|| rng.index(memory.slots()) as u32);
        memory.key(slot)?;
        let blocks = &self.slots[node][slot as usize];
        let needed = len.div_ceil(BLOCK_BYTES).max(1) as usize;
        let first = rng.index(blocks.len().saturating_sub(needed) + 1);
        let run = blocks.get(first..first + needed)?;
        let free = run.iter().all(|block| block.user.is_none());
        let slack = needed as u64 * BLOCK_BYTES - len;
        let skip = if rng.per_mille(500) { rng.below(slack + 1) } else { 0 };
        free.then_some(Span { slot, offset: first as u64 * BLOCK_BYTES + skip, len })
    }

    fn check_block(
        &self,
        memories: &[Memory],
        node: NodeId,
        slot: u32,
        index: usize,
    ) -> Result<(), String> {
        let marker = self.slots[node][slot as usize][index].marker;
        let offset = index as u64 * BLOCK_BYTES;
        let block = Span { slot, offset, len: BLOCK_BYTES };
        if memories[node].bytes(block) == [marker; BLOCK_BYTES as usize] {
            return Ok(());
        }
        Err(format!("free memory was written: node {node}, slot {slot}, block at {offset}"))
    }

    fn free(&mut self, memories: &mut [Memory], marker: u8, whose: impl Fn((OpId, Role)) -> bool) {
        for (node, slots) in self.slots.iter_mut().enumerate() {
            for (slot, blocks) in slots.iter_mut().enumerate() {
                for (index, block) in blocks.iter_mut().enumerate() {
                    if block.user.is_some_and(&whose) {
                        *block = Block { user: None, marker };
                        let offset = index as u64 * BLOCK_BYTES;
                        let span = Span { slot: slot as u32, offset, len: BLOCK_BYTES };
                        memories[node].bytes_mut(span).fill(marker);
                    }
                }
            }
        }
    }
}

/// Indices of the blocks under a span. Empty if the span is empty.
fn blocks_of(span: Span) -> std::ops::Range<usize> {
    let first = (span.offset / BLOCK_BYTES) as usize;
    let end = (span.offset + span.len).div_ceil(BLOCK_BYTES) as usize;
    first..if span.len == 0 { first } else { end }
}
