//! Active transfers: which chunks have landed, and how transfers become complete or are dropped.

use smallvec::SmallVec;

use super::{Landed, Receiver, Verdict};
use crate::id::TransferId;
use crate::wire::{ChunkHeader, Flags, WireOp};

#[derive(Debug)]
pub(super) struct IncomingTransfer {
    pub(super) chunk_count: u32,
    landed_count: u32,
    /// One bit per chunk; empty for a transfer of one chunk.
    landed: SmallVec<[u64; 2]>,
    bytes: u64,
    pub(super) op: WireOp,
    pub(super) flags: Flags,
    pub(super) context: u64,
    pub(super) meta: Vec<u8>,
}

impl Receiver {
    /// Records that the bytes are in place. Returns whether that counts.
    pub(super) fn land(&mut self, transfer: TransferId, chunk: u32, payload: u32) -> bool {
        let Some(incoming) = self.active.get_mut(transfer.0) else { return false };
        if !incoming.set_landed(chunk) {
            return false;
        }
        self.highest = self.highest.max(transfer.0);
        incoming.bytes += u64::from(payload);
        if incoming.landed_count < incoming.chunk_count {
            return true;
        }
        let Some(incoming) = self.forget(transfer) else { return false };
        self.done.insert(transfer.0);
        let landed = Landed {
            op: incoming.op,
            flags: incoming.flags,
            context: incoming.context,
            transfer,
            meta: incoming.meta,
            bytes: incoming.bytes,
        };
        self.deliveries.add(&landed);
        self.events.push_back(landed);
        true
    }

    pub(super) fn forget(&mut self, transfer: TransferId) -> Option<IncomingTransfer> {
        let incoming = self.active.remove(transfer.0)?;
        self.tracked_chunks -= u64::from(incoming.chunk_count);
        self.held_meta -= incoming.meta.len();
        Some(incoming)
    }

    pub(super) fn drop_incoming(&mut self, transfer: TransferId, verdict: Verdict) {
        self.forget(transfer);
        for claim in self.claims.iter_mut().chain(self.detached.values_mut()) {
            if claim.target.is_some_and(|(t, _)| t == transfer) {
                claim.revoke(verdict);
            }
        }
    }
}

impl IncomingTransfer {
    pub(super) fn new(header: &ChunkHeader) -> Self {
        let words = if header.chunk_count == 1 { 0 } else { header.chunk_count.div_ceil(64) };
        Self {
            chunk_count: header.chunk_count,
            landed_count: 0,
            landed: SmallVec::from_elem(0, words as usize),
            bytes: 0,
            op: header.op,
            flags: Flags::NONE,
            context: header.context,
            meta: Vec::new(),
        }
    }

    pub(super) fn has_landed(&self, chunk: u32) -> bool {
        match self.landed.get(chunk as usize / 64) {
            Some(word) => word >> (chunk % 64) & 1 == 1,
            None => self.landed_count > 0,
        }
    }

    /// Returns whether the chunk was missing.
    fn set_landed(&mut self, chunk: u32) -> bool {
        let missing = !self.has_landed(chunk);
        if let Some(word) = self.landed.get_mut(chunk as usize / 64) {
            *word |= 1 << (chunk % 64);
        }
        self.landed_count += u32::from(missing);
        missing
    }
}
