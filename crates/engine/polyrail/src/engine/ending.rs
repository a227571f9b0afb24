//! Early ends of operations: by the user, by their deadline, with one of their regions, or with their peer.

use std::sync::Arc;
use std::time::Duration;

use polyrail_proto::copying::Stop;
use polyrail_proto::peer::Leaving;
use polyrail_proto::wire::RefusalCode;
use polyrail_proto::{Failure, Time};

use crate::base::pause::wait_patiently;
use crate::engine::device_landings::busy_lanes;
use crate::engine::finish::{Ends, drain_tx};
use crate::engine::local_engines::engine_here;
use crate::engine::peer::{OpHandle, OpKind, OpRef, PeerShared, TxSide};
use crate::engine::state::EngineShared;
use crate::memory::lanes::wait_for_lanes;
use crate::memory::region_core::RegionCore;

impl EngineShared {
    /// Ends an operation for the user.
    pub(crate) fn cancel(self: &Arc<Self>, op: &OpHandle) {
        self.cancel_for(op, Failure::Cancelled);
    }

    pub(crate) fn cancel_for(self: &Arc<Self>, op: &OpHandle, failure: Failure) {
        // First: in a forked copy, a thread of the original may hold the lock of its copies forever.
        if self.is_forked() {
            return;
        }
        // The thread that checks for the end of the copies finds it.
        if op.transfer().is_none() && op.stop_copying(failure) {
            return;
        }
        // A device's copy can't be stopped, and is over soon; its notification can.
        if op.is_over() || op.is_copying() && op.transfer().is_none() {
            return;
        }
        let peer = &op.prepared.peer;
        let mut ends = self.ends();
        match op.prepared.kind {
            OpKind::Write | OpKind::Send { .. } => {
                let mut tx = peer.tx();
                // The send may have met its receive meanwhile.
                if op.transfer().is_some() || !op.stop_copying(failure) {
                    let tag = match op.prepared.kind {
                        OpKind::Send { tag } => Some(tag),
                        _ => None,
                    };
                    tx.cancel(&OpRef(op.clone()), tag, failure);
                    drain_tx(&mut tx, &mut ends);
                }
            }
            OpKind::Read | OpKind::Receive { .. } => {
                self.end_awaited(peer, |other| other.is(op), failure, &mut ends);
            }
        }
        ends.tell();
        self.announce(peer);
    }

    /// Ends operations whose deadline has passed.
    pub(crate) fn end_late(self: &Arc<Self>, peer: &Arc<PeerShared>, now: Time) {
        let mut ends = self.ends();
        let mut tx = peer.tx();
        let was_idle = !tx.sender.has_work();
        fetch_old(peer, &mut tx, now, &mut ends);
        tx.handle_timeout(now);
        tx.note_landed(now, peer.account.arrivals.iter().map(|rail| rail.rx_bytes.get()).sum());
        drain_tx(&mut tx, &mut ends);
        let has_begun = was_idle && tx.sender.has_work();
        drop(tx);
        if has_begun {
            self.announce(peer);
        }
        let leaving = {
            let mut rx = peer.rx();
            rx.settle();
            rx.handle_timeout(now).0
        };
        self.see_off(peer, leaving, Failure::Deadline, &mut ends);
        ends.tell();
    }

    /// Ends the waiting sends and receives that use a region of this engine, which has ended. They don't use the region
    /// yet, and the matching receive or send may never come.
    pub(crate) fn end_waiting(self: &Arc<Self>, region: &Arc<RegionCore>) {
        let uses = |op: &OpHandle| op.prepared.regions.iter().any(|used| Arc::ptr_eq(used, region));
        for peer in self.peers() {
            let mut ends = self.ends();
            let mut tx = peer.tx();
            tx.end_waiting(|OpRef(op)| uses(op), Failure::RegionDropped);
            drain_tx(&mut tx, &mut ends);
            drop(tx);
            let receives = |op: &OpHandle| matches!(op.prepared.kind, OpKind::Receive { .. });
            let which = |op: &OpHandle| receives(op) && uses(op);
            self.end_awaited(&peer, which, Failure::RegionDropped, &mut ends);
            ends.tell();
        }
    }

    /// Ends reads and receives: when this returns, nothing of them lands any more. A receive into which its sender may
    /// copy ends when the peer has confirmed that, or is gone.
    pub(crate) fn end_awaited(
        self: &Arc<Self>,
        peer: &Arc<PeerShared>,
        which: impl Fn(&OpHandle) -> bool,
        failure: Failure,
        ends: &mut Ends<'_>,
    ) {
        let leaving = {
            let mut rx = peer.rx();
            rx.settle();
            rx.end(|OpRef(op)| which(op))
        };
        self.see_off(peer, leaving, failure, ends);
    }

    /// Waits until nothing of these reads and receives can land any more, and then ends them.
    fn see_off(
        self: &Arc<Self>,
        peer: &Arc<PeerShared>,
        leaving: Vec<Leaving<OpRef>>,
        failure: Failure,
        ends: &mut Ends<'_>,
    ) {
        for it in leaving {
            // A flow may be inside a non-blocking system call or a device copy, or a plugin holds it.
            wait_for_lanes(|| busy_lanes(&peer.rx().landings), || peer.rx().has_left(&it));
            if let Some(job) = &it.lent {
                job.stop(Stop::For(Failure::Refused(RefusalCode::NotExpected)));
                // The job copies one more piece at most.
                wait_patiently(|| job.ended().is_some());
            }
            let is_here = it.lent.is_some() || engine_here(peer.instance()).is_some();
            let mut tx = peer.tx();
            tx.let_go(Time(ends.now), it, failure, is_here);
            drain_tx(&mut tx, ends);
            drop(tx);
            if failure != Failure::PeerLost {
                self.announce(peer);
            }
        }
    }

    /// Ends the operations that wait in the pool of a peer that is gone.
    pub(crate) fn end_posted(&self, peer: &PeerShared) {
        while let Some(op) = peer.posted.pop() {
            op.fail_for(Failure::PeerLost);
        }
    }
}

/// Submits operations that were posted long ago and never fetched, because no flow is up or none accepts bytes, so that
/// their deadlines are watched. In order, so sends of one tag keep theirs.
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
