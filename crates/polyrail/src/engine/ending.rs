//! How operations end before they are complete: by the user's will, by their deadline, with a region of
//! theirs, or with their peer.

use std::sync::Arc;
use std::time::Duration;

use polyrail_proto::message::{CopyLeave, Message};
use polyrail_proto::wire::{RefusalCode, WireOp};
use polyrail_proto::{Failure, Time};

use crate::base::pause::wait_patiently;
use crate::device::host_copy::{HostJob, Stop};
use crate::engine::finish::{Finish, drain_tx};
use crate::engine::local_engines::engine_here;
use crate::engine::op::OpHandle;
use crate::engine::outgoing::Purpose;
use crate::engine::pass::Ends;
use crate::engine::peer::{OpRef, PeerShared, TxSide};
use crate::engine::prepared::OpKind;
use crate::engine::state::EngineShared;
use crate::memory::lanes::wait_for_lanes;
use crate::memory::region::RegionCore;

impl EngineShared {
    /// The user wants an operation to end.
    pub(crate) fn cancel(self: &Arc<Self>, op: &OpHandle) {
        self.cancel_for(op, Failure::Cancelled);
    }

    pub(crate) fn cancel_for(self: &Arc<Self>, op: &OpHandle, failure: Failure) {
        // First of all: a thread of the original may have held the lock of its copies for ever.
        if self.is_forked() {
            return;
        }
        // Who looks for the end of the copies finds it.
        if op.transfer().is_none() && op.stop_copying(failure) {
            return;
        }
        // What a device has begun can't be stopped, and is over soon; its notification can.
        if op.is_over() || op.is_copying() && op.transfer().is_none() {
            return;
        }
        let peer = &op.prepared.peer;
        let mut ends = self.ends();
        match op.prepared.kind {
            OpKind::Write | OpKind::Send { .. } => {
                let mut tx = peer.tx();
                match op.transfer() {
                    Some(id) => {
                        tx.sender.end(id, failure);
                        drain_tx(&mut tx, &mut ends);
                    }
                    // It has met its receive meanwhile.
                    None if op.stop_copying(failure) => {}
                    None => {
                        if let OpKind::Send { tag } = op.prepared.kind {
                            tx.matcher.cancel_send(tag, &OpRef(op.clone()));
                        }
                        // Still in the pool, where somebody may fetch it before it is over.
                        op.withdraw();
                        ends.finishes.push(Finish::Failed(op.clone(), failure));
                    }
                }
            }
            OpKind::Read | OpKind::Receive { .. } => {
                self.end_awaited(peer, |other| other.is(op), failure, &mut ends);
            }
        }
        ends.tell();
        self.send_soon(peer);
    }

    /// Ends operations whose deadline has passed.
    pub(crate) fn end_late(self: &Arc<Self>, peer: &Arc<PeerShared>, now: Time) {
        let late = |op: &OpHandle| op.deadline.is_some_and(|deadline| deadline <= now);
        let mut ends = self.ends();
        let mut tx = peer.tx();
        let was_idle = !tx.sender.has_work();
        fetch_old(peer, &mut tx, now, &mut ends);
        tx.sender.handle_timeout(now);
        peer.note_served_reads(&mut tx, now);
        let waiting: Vec<OpHandle> =
            tx.matcher.sends().map(|(_, OpRef(op))| op.clone()).filter(late).collect();
        drain_tx(&mut tx, &mut ends);
        let has_begun = was_idle && tx.sender.has_work();
        drop(tx);
        if has_begun {
            self.send_soon(peer);
        }
        self.end_awaited(peer, late, Failure::Deadline, &mut ends);
        ends.tell();
        for op in waiting {
            self.cancel_for(&op, Failure::Deadline);
        }
    }

    /// A region of this engine has ended. Sends and receives that wait for each other don't use it yet, and
    /// the other half may never come.
    pub(crate) fn end_waiting(self: &Arc<Self>, region: &Arc<RegionCore>) {
        let uses = |op: &OpHandle| op.prepared.regions.iter().any(|used| Arc::ptr_eq(used, region));
        for peer in self.peers() {
            let sends: Vec<OpHandle> = {
                let tx = peer.tx();
                tx.matcher.sends().map(|(_, OpRef(op))| op).filter(|op| uses(op)).cloned().collect()
            };
            for op in sends {
                self.cancel_for(&op, Failure::RegionDropped);
            }
            let receives = |op: &OpHandle| matches!(op.prepared.kind, OpKind::Receive { .. });
            let mut ends = self.ends();
            let which = |op: &OpHandle| receives(op) && uses(op);
            self.end_awaited(&peer, which, Failure::RegionDropped, &mut ends);
            ends.tell();
        }
    }

    /// Ends reads and receives: when this returns, nothing of them lands any more. A receive into which its
    /// sender may copy ends when the peer has confirmed that, or is gone.
    pub(crate) fn end_awaited(
        self: &Arc<Self>,
        peer: &Arc<PeerShared>,
        which: impl Fn(&OpHandle) -> bool,
        failure: Failure,
        ends: &mut Ends<'_>,
    ) {
        struct Over {
            wire_op: WireOp,
            context: u64,
            op: OpHandle,
            is_copied_to: bool,
            job: Option<Arc<HostJob>>,
        }
        let mut over: Vec<Over> = Vec::new();
        {
            let mut rx = peer.rx();
            let rx = &mut *rx;
            // What is complete by now is not ended any more.
            rx.settle();
            rx.note_arrived();
            let reads = rx.reads.extract_if(|_, part| which(&part.op));
            over.extend(reads.map(|(context, part)| Over {
                wire_op: WireOp::ReadData,
                context,
                op: part.op,
                is_copied_to: false,
                job: None,
            }));
            let receives = rx.receives.extract_if(|_, receive| which(&receive.op));
            over.extend(receives.map(|(context, receive)| Over {
                wire_op: WireOp::SendData,
                context,
                is_copied_to: receive.leave == CopyLeave::Yes,
                op: receive.op,
                job: receive.job,
            }));
            // And what is not, can't become so.
            for it in &over {
                rx.receiver.expel(it.wire_op, it.context);
            }
        }
        for Over { wire_op, context, op, is_copied_to, job } in over {
            // A flow may be inside a non-blocking system call, or a device copy, or a plugin has it.
            wait_for_lanes(|| peer.rx().busy_lanes(), || peer.rx().expel(wire_op, context));
            if let Some(job) = &job {
                job.stop(Stop::For(Failure::Refused(RefusalCode::NotExpected)));
                // It copies a piece at most.
                wait_patiently(|| job.ended().is_some());
            }
            let message = match wire_op {
                WireOp::ReadData => Message::ReadCancelled { read: context },
                _ => Message::ReceiveWithdrawn { receive: context },
            };
            if self.must_hear(peer, is_copied_to, failure) {
                let mut tx = peer.tx();
                // With the lock held: whoever loses the peer ends what it was told before.
                if !peer.is_gone() {
                    tx.tell(Time(ends.now), &message, Purpose::Cancel(op, failure));
                    drop(tx);
                    self.send_soon(peer);
                    continue;
                }
            } else if failure != Failure::PeerLost {
                peer.tx().tell(Time(ends.now), &message, Purpose::Tell);
                self.send_soon(peer);
            }
            ends.finishes.push(Finish::Failed(op, failure));
        }
    }

    /// Whether a receive is over only when the peer has heard: another process may be copying there.
    fn must_hear(&self, peer: &PeerShared, is_copied_to: bool, failure: Failure) -> bool {
        is_copied_to && failure != Failure::PeerLost && engine_here(peer.instance()).is_none()
    }

    /// Ends what waits in the pool of a peer that is gone.
    pub(crate) fn end_posted(&self, peer: &PeerShared) {
        while let Some(op) = peer.posted.pop() {
            op.fail_for(Failure::PeerLost);
        }
    }
}

/// Moves what was posted long ago and never fetched, because no flow is up or none takes bytes,
/// to where its deadline is looked after. In order, so sends of one tag keep theirs.
fn fetch_old(peer: &Arc<PeerShared>, tx: &mut TxSide, now: Time, ends: &mut Ends<'_>) {
    const OLD: Duration = Duration::from_millis(50);
    // Once the peer is gone its operations have been ended, and no more may enter.
    while !peer.is_gone()
        && let Some(op) = peer.posted.pop()
    {
        let old = now.since(op.posted) >= OLD;
        tx.submit_op(now, op, ends);
        if !old {
            break;
        }
    }
}
