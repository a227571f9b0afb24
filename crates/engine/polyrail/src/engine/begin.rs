//! Entry of operations into the sides of their peer.

use std::sync::Arc;

use polyrail_proto::message::{MAX_MESSAGE_PIECES, PostedReceive};
use polyrail_proto::path::PathKind;
use polyrail_proto::peer::{NewReceive, ReadQuestion, SendHost, SendPath};
use polyrail_proto::{Failure, Plan, PlanError, Segment, Time};

use crate::engine::carriage::Carriage;
use crate::engine::finish::{Ends, Finish, drain_tx};
use crate::engine::outgoing::{Cause, Made, Outgoing};
use crate::engine::peer::{OpHandle, OpKind, OpRef, PeerShared, TxSide};
use crate::engine::state::EngineShared;

impl TxSide {
    /// Submits an operation that was taken out of the pool.
    pub(crate) fn submit_op(&mut self, now: Time, op: OpHandle, ends: &mut Ends<'_>) {
        if !op.may_begin() {
            return;
        }
        match op.prepared.kind {
            OpKind::Write => {
                let (source, notifies) = (Outgoing::Write(op.clone()), op.notifies());
                self.write(now, OpRef(op), source, notifies);
            }
            // The end of the region found no send of it here, and does not come again.
            OpKind::Send { .. } if op.prepared.has_ended_regions() => {
                ends.finishes.push(Finish::Failed(op, Failure::RegionDropped));
            }
            OpKind::Send { tag } => {
                self.send(now, OpRef(op), tag, ends);
                drain_tx(self, ends);
            }
            // These begin with the caller: they start on the receiving side.
            OpKind::Read | OpKind::Receive { .. } => {}
        }
    }
}

impl SendHost<OpRef> for Ends<'_> {
    fn path(&mut self, OpRef(op): &OpRef, receive: &PostedReceive) -> SendPath {
        let (prepared, settings) = (&op.prepared, &self.engine.settings);
        let plan = &prepared.plan;
        let may_share = settings.shares && !prepared.touches_device;
        let may_copy =
            settings.single_copy && prepared.peer.says_same_host && !prepared.touches_device;
        let length = (plan.bytes(), plan.segments().len());
        let path = SendPath::into_receive(receive, length, may_copy, may_share);
        if path == SendPath::Shared {
            match prepared.peer.beside.sharing.works() {
                true => op.set_carriage(Carriage::Shared),
                // For later messages.
                false => self.finishes.push(Finish::AskToShare(op.clone())),
            }
        }
        path
    }

    fn source(&mut self, OpRef(op): &OpRef, segments: Vec<Segment>) -> Result<Outgoing, PlanError> {
        let prepared = &op.prepared;
        let chunk_bytes = self.engine.settings.chunk_bytes_of(&prepared.regions);
        let made = Made {
            plan: Plan::for_rails(segments, chunk_bytes, prepared.peer.layout.rails())?,
            regions: prepared.regions.clone(),
            meta: Vec::new(),
            near: prepared.near,
            cause: Cause::Send(op.clone()),
        };
        Ok(Outgoing::Made(Arc::new(made)))
    }
}

/// Starts a receive and announces it to the peer. From now on a message may land in it.
///
/// Receives count in the order of this call.
pub(crate) fn begin_receive(
    engine: &EngineShared,
    peer: &Arc<PeerShared>,
    op: &OpHandle,
    tag: u64,
) {
    let key = |region: u32| op.prepared.regions[region as usize].key;
    let leave = engine.message_paths.leave(engine, peer, &op.prepared);
    let new = NewReceive::new(OpRef(op.clone()), tag, leave, key);
    let mut rx = peer.rx();
    // Under the lock: the thread that ends a region looks for its receives afterwards.
    if op.prepared.has_ended_regions() {
        drop(rx);
        return op.fail_for(Failure::RegionDropped);
    }
    let news = rx.begin_receive(new);
    drop(rx);
    peer.tx().announce(op.posted, news);
}

/// Starts a read: asks the peer for the data, in as many messages as needed.
pub(crate) fn begin_read(peer: &PeerShared, op: &OpHandle) {
    let prepared = &op.prepared;
    let key = |region: u32| prepared.regions[region as usize].key;
    let parts: Vec<&[Segment]> = prepared.plan.segments().chunks(MAX_MESSAGE_PIECES).collect();
    if parts.is_empty() {
        return op.part_done(0);
    }
    // At most MAX_CHUNKS segments, which fits.
    op.set_parts(parts.len() as u32);
    let shared = prepared.path.kind == PathKind::Shared;
    for segments in parts {
        let question = ReadQuestion::new(segments, key);
        let news = peer.rx().begin_read(OpRef(op.clone()), question, shared);
        peer.tx().announce(op.posted, news);
    }
}
