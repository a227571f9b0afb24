//! From a verdict to the end of a chunk: which flow, or which device, may write where, and the resulting
//! acknowledgement. `judging` comes before, and `incoming` counts landed chunks.

use super::{LandingId, Permission, Receiver, Settled, Verdict};
use crate::id::{FlowIndex, TransferId};
use crate::proof::Head;
use crate::wire::{RefusalCode, WireError};

/// Result where nothing is known to have landed.
const NOTHING_LANDED: Settled = Settled::Refuse(RefusalCode::Busy);

/// The chunk that a flow is landing, from its header to its end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Claim {
    pub(super) flow: FlowIndex,
    pub(super) target: Option<(TransferId, u32)>,
    /// Header of the chunk.
    pub(super) head: Head,
    pub(super) reading: bool,
    pub(super) verdict: Option<Verdict>,
    /// A connection of its flow is gone since a device began to copy it.
    pub(super) is_orphan: bool,
}

impl Receiver {
    /// Returns whether the next bytes of the flow's chunk may go in place. If so, [`Self::end_landing`] must follow; if
    /// not, they go to scratch.
    pub fn begin_landing(&mut self, flow: FlowIndex) -> bool {
        match self.claims.get_mut(flow) {
            Some(claim) if claim.target.is_some() => {
                claim.reading = true;
                true
            }
            _ => false,
        }
    }

    /// Records that the bytes are written. Returns whether the rest of the chunk may still go in place.
    pub fn end_landing(&mut self, flow: FlowIndex) -> bool {
        let Some(claim) = self.claims.get_mut(flow) else { return false };
        claim.reading = false;
        if claim.verdict != Some(Verdict::Land) {
            claim.target = None;
        }
        claim.target.is_some()
    }

    /// Handles the end of the flow's chunk: all bytes are read. `intact` is the result of the checksum, if any.
    pub fn handle_chunk_end(&mut self, flow: FlowIndex, intact: bool) -> Settled {
        let Some(ended) = self.claims.end(flow) else { return NOTHING_LANDED };
        debug_assert!(!ended.reading, "end_landing comes first");
        self.settle(ended, if intact { Ok(()) } else { Err(RefusalCode::Checksum) })
    }

    /// Hands the flow's chunk to a device: all bytes are read into another place, the device begins to copy them, and
    /// the flow is free for its next chunk. [`Self::handle_landed`] must follow the copy.
    ///
    /// `None` if the bytes are no longer wanted: then nothing may be copied, and [`Self::handle_chunk_end`] returns how
    /// the chunk ended.
    pub fn detach(&mut self, flow: FlowIndex) -> Option<LandingId> {
        if !self.begin_landing(flow) {
            return None;
        }
        let claim = self.claims.end(flow)?;
        self.proofs.handle_detached(flow);
        self.next_landing += 1;
        self.detached.insert(self.next_landing, claim);
        Some(LandingId(self.next_landing))
    }

    /// Records the end of the copy, even if its flow is gone meanwhile. `landed` tells whether the bytes are in place,
    /// or why not.
    pub fn handle_landed(&mut self, id: LandingId, landed: Permission) -> Settled {
        let Some(mut ended) = self.detached.remove(&id.0) else { return NOTHING_LANDED };
        if ended.verdict != Some(Verdict::Land) {
            ended.target = None;
        }
        let settled = self.settle(ended, landed);
        if let Some((transfer, _)) = ended.target {
            // The flow that acknowledges the chunk is perhaps not the one that delivers the transfer.
            self.deliveries.await_transfer(transfer);
        }
        settled
    }

    fn settle(&mut self, ended: Claim, landed: Permission) -> Settled {
        let head = ended.head;
        match (ended.target, ended.verdict, landed) {
            (_, Some(Verdict::Refuse(code)), _) => return Settled::Refuse(code),
            (Some(_), _, Err(code)) => return Settled::Refuse(code),
            (Some((transfer, chunk)), Some(Verdict::Land), Ok(())) => {
                if !self.land(transfer, chunk, head.header.payload_len) {
                    return NOTHING_LANDED;
                }
            }
            // Only if a copy provably landed.
            (None, Some(Verdict::Discard), _) => {}
            _ => return NOTHING_LANDED,
        }
        match ended.is_orphan {
            true => self.proofs.note_gone(head, self.floor),
            false => self.proofs.note(ended.flow, head, self.floor),
        }
        Settled::Ack
    }

    /// Records that a connection of the flow is up, whose sender has at most `window_chunks` in flight on it. No more
    /// landed chunks than that are remembered, unless the end of an earlier connection is not known, or a device has
    /// copied a chunk of this one. In any case the maximum is
    /// [`ReceiverLimits::window`](super::ReceiverLimits::window). Each call is followed by one of
    /// [`Self::handle_flow_down`], maybe after the next connection is up.
    pub fn handle_flow_up(&mut self, flow: FlowIndex, window_chunks: u32) {
        if self.check_flow(flow).is_ok() {
            self.proofs.handle_flow_up(flow, window_chunks);
        }
    }

    /// Records that the flow is gone, maybe in the middle of a chunk: it lands nothing more.
    pub fn handle_flow_down(&mut self, flow: FlowIndex) {
        self.claims.end(flow);
        // Acknowledgements of these copies may never be sent. The chunks are then sent again, however much the next
        // connection brings before.
        let copied = self.detached.values_mut().filter(|claim| claim.flow == flow);
        copied.for_each(|claim| claim.is_orphan = true);
        self.proofs.handle_flow_down(flow, self.floor);
    }

    /// Bars the places of the chunk on `flow`, for instance because their region was dropped: the rest goes to scratch,
    /// and the sender gets the refusal `code`.
    ///
    /// Returns whether that is already true. If the flow is inside a system call, ask again.
    pub fn bar(&mut self, flow: FlowIndex, code: RefusalCode) -> bool {
        match self.claims.get_mut(flow) {
            Some(claim) if claim.target.is_some() => {
                claim.revoke(Verdict::Refuse(code));
                !claim.reading
            }
            _ => true,
        }
    }

    /// Returns whether acknowledgements may be sent: no flow is inside a system call for a chunk that was taken from
    /// it, and no thread delivers a transfer that the peer has cancelled, or of which it has sent a chunk again. If
    /// false, the driver sends no acknowledgement on any flow; that is a matter of microseconds.
    pub fn is_quiet(&self) -> bool {
        !self.deliveries.is_awaited()
            && !self.all_claims().any(|c| c.reading && c.verdict != Some(Verdict::Land))
    }

    pub(super) fn all_claims(&self) -> impl Iterator<Item = &Claim> {
        self.claims.iter().chain(self.detached.values())
    }

    pub(super) fn check_flow(&self, flow: FlowIndex) -> Result<(), WireError> {
        let (field, allowed) = ("flow", "less than the limit on flows of a peer");
        let is_allowed = flow.0 < self.limits.flows;
        is_allowed.then_some(()).ok_or(WireError::Field { field, got: flow.0.into(), allowed })
    }
}

impl Claim {
    /// Sends the rest of the chunk to scratch; a system call in progress keeps its target until it ends.
    pub(super) fn revoke(&mut self, verdict: Verdict) {
        self.verdict = Some(verdict);
        if !self.reading {
            self.target = None;
        }
    }
}
