//! Verdict on a chunk that begins: land it, discard it, or refuse it. `landing` handles the rest of the chunk, and
//! `incoming` keeps the state of its transfer.

use super::incoming::IncomingTransfer;
use super::landing::Claim;
use super::{OVER, Permission, Receiver, Verdict};
use crate::id::{FlowIndex, TransferId};
use crate::proof::{Head, Proofs};
use crate::wire::{ChunkHeader, Place, RefusalCode, WireError};

impl Receiver {
    /// Handles the start of a chunk on `flow`; `admit` returns the driver's decision whether its `places` may be
    /// written.
    ///
    /// An error means that the peer violates the protocol: close the flow, and acknowledge nothing.
    pub fn handle_chunk(
        &mut self,
        flow: FlowIndex,
        header: &ChunkHeader,
        places: &[Place],
        meta: &[u8],
        admit: impl FnOnce() -> Permission,
    ) -> Result<Verdict, WireError> {
        self.check_flow(flow)?;
        self.raise_floor(header.floor)?;
        let head = self.proofs.head(header, places, meta);
        let verdict = self.judge(header, &head, meta, admit)?;
        self.claims.begin(Claim {
            flow,
            target: (verdict == Verdict::Land).then_some((header.transfer, header.chunk)),
            head,
            reading: false,
            verdict: Some(verdict),
            is_orphan: false,
        });
        Ok(verdict)
    }

    fn judge(
        &mut self,
        header: &ChunkHeader,
        head: &Head,
        meta: &[u8],
        admit: impl FnOnce() -> Permission,
    ) -> Result<Verdict, WireError> {
        let id = header.transfer.0;
        let known = |proofs: &mut Proofs| if proofs.holds(head) { Verdict::Discard } else { OVER };
        if header.transfer < self.floor || self.done.contains(id) {
            self.deliveries.await_transfer(header.transfer);
            return Ok(known(&mut self.proofs));
        }
        if let Some(incoming) = self.active.get(id) {
            let allowed = "the same in all chunks of a transfer";
            let differs = |field, got| Err(WireError::Field { field, got, allowed });
            if incoming.chunk_count != header.chunk_count {
                return differs("chunk_count", header.chunk_count.into());
            }
            if incoming.op != header.op {
                return differs("op", header.op as u64);
            }
            if incoming.context != header.context {
                return differs("context", header.context);
            }
            if incoming.has_landed(header.chunk) {
                return Ok(known(&mut self.proofs));
            }
        }
        if let Err(code) = admit().and_then(|()| self.within_quotas(header, meta)) {
            let is_quota = code.frees_itself() || code == RefusalCode::ReceiveQuota;
            self.quota_refusals += u64::from(is_quota);
            return Ok(Verdict::Refuse(code));
        }
        if !self.is_alone() && !self.take_over((header.transfer, header.chunk)) {
            return Ok(Verdict::Refuse(RefusalCode::Busy));
        }
        if self.active.get(id).is_none() {
            self.tracked_chunks += u64::from(header.chunk_count);
            self.active.insert(id, IncomingTransfer::new(header));
        }
        if header.chunk == 0
            && let Some(incoming) = self.active.get_mut(id)
        {
            self.held_meta = self.held_meta - incoming.meta.len() + meta.len();
            incoming.flags = header.flags;
            incoming.meta.clear();
            incoming.meta.extend_from_slice(meta);
        }
        Ok(Verdict::Land)
    }

    /// Returns whether there is room for the chunk. There always is for chunks without a message of active transfers,
    /// so a peer at its limits can continue those and free room for others.
    fn within_quotas(&self, header: &ChunkHeader, meta: &[u8]) -> Permission {
        let id = header.transfer.0;
        let known = self.active.get(id);
        if known.is_none()
            && (self.active.len() >= self.limits.transfers
                || self.tracked_chunks + u64::from(header.chunk_count) > self.limits.chunks
                || self.leaves_one_gap_too_many(id))
        {
            return Err(RefusalCode::TransferQuota);
        }
        let of_others = self.held_meta - known.map_or(0, |incoming| incoming.meta.len());
        if of_others > 0 && of_others + meta.len() > self.limits.meta_bytes && !meta.is_empty() {
            return Err(RefusalCode::MessageQuota);
        }
        Ok(())
    }

    /// Returns whether the transfer would leave one gap too many. Finished transfers form one range unless numbers are
    /// missing. A peer that leaves gaps and never raises its low-water mark would make this end remember each gap. An
    /// honest peer can always continue, at least with its oldest transfer.
    fn leaves_one_gap_too_many(&self, id: u64) -> bool {
        let neighbour = |id: Option<u64>| id.is_some_and(|id| self.done.contains(id));
        self.done.range_count() >= self.limits.transfers
            && id != self.floor.0
            && !neighbour(id.checked_sub(1))
            && !neighbour(id.checked_add(1))
    }

    /// Returns whether no chunk is in progress: then no flow holds the one that begins.
    #[inline]
    fn is_alone(&self) -> bool {
        self.claims.is_empty() && self.detached.is_empty()
    }

    /// Takes the chunk from the flow that was landing it, unless that is inside a system call.
    fn take_over(&mut self, target: (TransferId, u32)) -> bool {
        let mut claims = self.claims.iter_mut().chain(self.detached.values_mut());
        match claims.find(|claim| claim.target == Some(target)) {
            Some(older) if older.reading => false,
            // The sender has given the older flow up, so it never receives this refusal. If it received an
            // acknowledgement instead, a chunk that never landed would count as landed.
            Some(older) => {
                older.revoke(Verdict::Refuse(RefusalCode::Busy));
                true
            }
            None => true,
        }
    }

    /// Raises the low-water mark. Every transfer below it is over for the sender, so nothing of it lands here. A sender
    /// raises it only up to something that it knows to have landed.
    fn raise_floor(&mut self, floor: TransferId) -> Result<(), WireError> {
        if floor <= self.floor {
            return Ok(());
        }
        if floor.0 - 1 > self.highest {
            let allowed = "at most one more than the highest transfer of which something landed";
            return Err(WireError::Field { field: "floor", got: floor.0, allowed });
        }
        self.floor = floor;
        self.done.forget_below(floor.0);
        // Rare: a transfer below the mark is active only if its sender gave it up.
        let mut has_dropped = false;
        while let Some(id) = self.active.lowest_below(floor.0) {
            self.forget(TransferId(id));
            has_dropped = true;
        }
        if has_dropped {
            // One pass over the claims for all of them.
            let is_below = |claim: &&mut Claim| claim.target.is_some_and(|(id, _)| id < floor);
            let claims = self.claims.iter_mut().chain(self.detached.values_mut());
            claims.filter(is_below).for_each(|claim| claim.revoke(OVER));
        }
        Ok(())
    }
}
