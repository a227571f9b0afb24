//! Entry of operations, and their announcement to threads.

use std::sync::Arc;

use polyrail_config::Spin;
use polyrail_proto::Failure;
use polyrail_proto::error::{PostError, TransferError};
use polyrail_proto::reason::LostReason;

use crate::engine::begin::{begin_read, begin_receive};
use crate::engine::peer::{Op, OpHandle, OpKind, PeerShared, Prepared};
use crate::engine::proxy_handle::DRIVE_TRIES;
use crate::engine::state::EngineShared;
use crate::wake::{ALL, CHECKS};

/// Number of transfers under way up to which small ones leave with the caller's own thread, where proxies spin.
const DIRECT_PENDING: usize = 2;
/// Transfers from this size on are worth a proxy each.
const LARGE_BYTES: u64 = 64 << 10;

impl EngineShared {
    /// Enters an operation.
    /// `notification`: replaces the request's own.
    pub(crate) fn post(
        self: &Arc<Self>,
        prepared: &Arc<Prepared>,
        notification: Option<Vec<u8>>,
    ) -> Result<OpHandle, PostError> {
        if self.is_forked() {
            return Err(PostError::Forked);
        }
        if self.is_closed() {
            return Err(PostError::Closed);
        }
        let peer = &prepared.peer;
        let gone = |why| PostError::PeerGone { peer: prepared.peer_name(), why };
        if peer.is_gone() || peer.life.standing.is_parting() {
            return Err(gone(peer.lost_reason()));
        }
        if peer.has_closed_here() {
            return Err(gone(LostReason::Closed));
        }
        if let OpKind::Send { .. } | OpKind::Receive { .. } = prepared.kind {
            prepared.regions.iter().for_each(|region| region.note_waiting());
        }
        prepared.check_regions()?;
        let busy = PostError::Busy { limit: self.pool.limit() };
        let op = Op::new(prepared.clone(), notification, &self.pool).ok_or_else(|| busy.clone())?;
        if let Some(copies) = &prepared.copies
            && self.post_copies(&op, copies)
        {
            if self.is_closing() {
                // The engine's proxies may have made their last look.
                self.finish_proxies();
            }
            return Ok(op);
        }
        let _posting = CHECKS.then(|| peer.wake.posting());
        if !self.enter(&op) {
            return Err(busy);
        }
        if peer.is_gone() {
            self.end_left_behind(&op);
            return Ok(op);
        }
        let bytes = prepared.plan.bytes();
        let threads = if prepared.kind.sends() && bytes >= LARGE_BYTES {
            // One for each waiting chunk, including those of operations that no thread has fetched yet. A thread that
            // finds more than it can send shares it.
            prepared.plan.chunk_count() as usize + peer.posted.len().saturating_sub(1)
        } else {
            1
        };
        if prepared.kind != OpKind::Read && bytes <= self.config.inline_bytes {
            self.send_here(peer, threads, op.posted.0);
        } else {
            self.announce_for(peer, threads);
        }
        Ok(op)
    }

    /// Gives the rails an operation that can't be copied as planned. The pool has counted it, so there is room for it.
    pub(crate) fn post_over_rails(self: &Arc<Self>, op: &OpHandle) {
        let peer = &op.prepared.peer;
        if op.prepared.has_ended_regions() {
            return op.fail(TransferError::RegionDropped);
        }
        // A read of many segments makes many requests before they are announced.
        let _posting = CHECKS.then(|| peer.wake.posting());
        if !self.enter(op) {
            return;
        }
        match peer.is_gone() {
            true => self.end_left_behind(op),
            false => self.announce(peer),
        }
    }

    /// Enters an operation where threads find it. Returns false if there is no room, which ends the operation.
    #[inline]
    fn enter(self: &Arc<Self>, op: &OpHandle) -> bool {
        let peer = &op.prepared.peer;
        match op.prepared.kind {
            OpKind::Write | OpKind::Send { .. } => {
                let is_in = peer.posted.push(op.clone()).is_ok();
                if !is_in {
                    op.fail(TransferError::Cancelled);
                }
                return is_in;
            }
            OpKind::Receive { tag } => begin_receive(self, peer, op, tag),
            OpKind::Read => begin_read(peer, op),
        }
        true
    }

    /// Ends an operation whose peer went while it was entered: the thread that ended the peer's operations may have
    /// missed it.
    #[cold]
    fn end_left_behind(self: &Arc<Self>, op: &OpHandle) {
        self.end_posted(&op.prepared.peer);
        self.cancel_for(op, Failure::PeerLost);
    }

    /// Announces something to send to the peer that a user's thread need not begin.
    pub(crate) fn announce(self: &Arc<Self>, peer: &Arc<PeerShared>) {
        self.announce_for(peer, ALL);
    }

    /// Announces something short, after a post that may have been the caller's last call.
    pub(crate) fn announce_short(self: &Arc<Self>, peer: &Arc<PeerShared>) {
        self.announce_for(peer, 1);
        if self.settings.caller_driven {
            self.proxies.driven[0].send_now(self, 0, 1);
        }
    }

    /// Announces work for this many threads.
    #[inline]
    fn announce_for(&self, peer: &Arc<PeerShared>, threads: usize) {
        let threads = self.look_after(peer, threads);
        if self.settings.caller_driven {
            peer.wake.offer(threads).keep();
        } else {
            peer.wake.announce(threads);
        }
    }

    /// Makes the control thread connect the peer's flows and watch its deadlines, if it does not yet. Returns the number
    /// of threads to announce to: all while a flow is down, because the first threads may have none then.
    #[inline]
    fn look_after(&self, peer: &Arc<PeerShared>, threads: usize) -> usize {
        if !(peer.life.standing.wants_flows() && self.control.is_ticking()) {
            self.look_after_peer(peer);
        }
        if peer.flows_up() == peer.links.flows.len() { threads } else { ALL }
    }

    /// Makes the control thread connect the peer's flows, and watch its deadlines.
    #[cold]
    fn look_after_peer(&self, peer: &Arc<PeerShared>) {
        self.connect_flows(peer);
        self.control.start_ticking();
    }

    /// Announces something small that was posted at `posted` on the machine's monotonic clock. It leaves with the
    /// caller's own thread if nothing is under way. Otherwise it is batched with others until their number makes a call
    /// worthwhile.
    fn send_here(self: &Arc<Self>, peer: &Arc<PeerShared>, threads: usize, posted: u64) {
        let threads = self.look_after(peer, threads);
        // With a time in `spin` latency matters more than the number of calls.
        let few = if matches!(self.config.spin, Spin::AtLeast(_)) { DIRECT_PENDING } else { 0 };
        // Doesn't wait for the lock: a proxy with its own thread goes on by itself, and callers leave the work to each
        // other.
        let unknown = if self.settings.caller_driven { 0 } else { usize::MAX };
        let is_due = peer.posted.len() >= self.config.append_batch as usize
            || peer.pending().unwrap_or(unknown) <= few;
        let offer = peer.wake.offer(threads);
        let tries = if few > 0 { DRIVE_TRIES } else { 1 };
        // A proxy that its thread is driving sees what is announced.
        let send = |proxy: usize| self.proxies.driven[proxy].send_now(self, posted, tries);
        if is_due && offer.threads().any(send) || self.settings.caller_driven {
            offer.keep();
        }
    }
}
