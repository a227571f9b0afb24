//! How operations enter, and who is asked to send them.

use std::sync::Arc;

use polyrail_proto::error::{PostError, TransferError};
use polyrail_proto::reason::LostReason;
use polyrail_proto::{Failure, FlowIndex, Time};

use crate::engine::begin::{begin_read, begin_receive};
use crate::engine::op::{Op, OpHandle};
use crate::engine::peer::{Announcing, PeerShared};
use crate::engine::prepared::{OpKind, Prepared};
use crate::engine::proxy_handle::DRIVE_TRIES;
use crate::engine::state::EngineShared;

/// Where proxies spin: small transfers that leave with the caller's own thread though this many
/// others are under way.
const DIRECT_PENDING: usize = 2;
/// Transfers from this size on are worth a proxy each.
const LARGE_BYTES: u64 = 64 << 10;

impl EngineShared {
    /// Enters an operation.
    /// `notification`: instead of the request's own.
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
        let gone = || PostError::PeerGone { peer: prepared.peer_name(), why: peer.lost_reason() };
        if peer.is_gone() || peer.is_parting() {
            return Err(gone());
        }
        if peer.has_closed_here() {
            let why = LostReason::Closed;
            return Err(PostError::PeerGone { peer: prepared.peer_name(), why });
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
                // Its proxies may have looked for the last time.
                self.finish_proxies();
            }
            return Ok(op);
        }
        let announcing = Announcing::begin(peer);
        match prepared.kind {
            OpKind::Write | OpKind::Send { .. } => {
                if peer.posted.push(op.clone()).is_err() {
                    op.fail(TransferError::Cancelled);
                    return Err(busy);
                }
            }
            OpKind::Receive { tag } => begin_receive(self, peer, &op, tag),
            OpKind::Read => begin_read(peer, &op),
        }
        if peer.is_gone() {
            // It went while this was entered: whoever ended its operations may have missed it.
            self.end_posted(peer);
            self.cancel_for(&op, Failure::PeerLost);
            return Ok(op);
        }
        let bytes = prepared.plan.bytes();
        let small = prepared.kind != OpKind::Read && bytes <= self.config.inline_bytes;
        let proxies = match prepared.kind.sends() {
            // Ask one proxy for each chunk that waits, those of operations included that no proxy
            // has fetched yet. A proxy that finds more than it can send asks another.
            true if bytes >= LARGE_BYTES => {
                prepared.plan.chunk_count() as usize + peer.posted.len().saturating_sub(1)
            }
            _ => 1,
        };
        self.send(peer, &announcing, small, proxies, op.posted.0);
        Ok(op)
    }

    /// An operation takes the rails that was to be copied and can't be. Its number is known to the
    /// pool, so there is room for it.
    pub(crate) fn enter_late(self: &Arc<Self>, op: &OpHandle) {
        let peer = &op.prepared.peer;
        if op.prepared.has_ended_regions() {
            return op.fail(TransferError::RegionDropped);
        }
        // A read of many segments makes many requests before anybody is asked to send them.
        let announcing = Announcing::begin(peer);
        match op.prepared.kind {
            OpKind::Read => begin_read(peer, op),
            _ if peer.posted.push(op.clone()).is_err() => return op.fail(TransferError::Cancelled),
            _ => {}
        }
        if peer.is_gone() {
            // Whoever ended its operations may have missed this one.
            self.end_posted(peer);
            return self.cancel_for(op, Failure::PeerLost);
        }
        self.send(peer, &announcing, false, usize::MAX, 0);
    }

    /// There is something to send to the peer that others than the user's thread may begin.
    pub(crate) fn send_soon(self: &Arc<Self>, peer: &Arc<PeerShared>) {
        self.send(peer, &Announcing::begin(peer), false, usize::MAX, 0);
    }

    /// There is something short to send to the peer that others than the user's thread may begin.
    pub(crate) fn send_one_soon(self: &Arc<Self>, peer: &Arc<PeerShared>) {
        self.send(peer, &Announcing::begin(peer), false, 1, 0);
        if self.settings.caller_driven {
            // The post that it belongs to may have been the last call.
            self.proxies.driven[0].send_or_leave(self);
        }
    }

    /// Has everybody look who sends to the peer.
    pub(crate) fn ask_all(&self, peer: &PeerShared) {
        let _announcing = Announcing::begin(peer);
        self.wake_all(peer.tx_proxies.want(usize::MAX).all().iter().copied());
    }

    /// Proxies look after their flows while they know of something in flight. One that went to sleep
    /// with nothing does not know what the thread of a caller has sent meanwhile.
    pub(crate) fn wake_stalled(&self, peer: &PeerShared, time: Time) {
        // A proxy wants to look twice: once to note how far the kernel is.
        let stall = self.settings.rail_stall / 2;
        let tx = peer.tx();
        let is_stalled =
            |index: &usize| tx.sender.is_stalled(time, FlowIndex(*index as u32), stall);
        let stalled: Vec<usize> = (0..peer.flows.len()).filter(is_stalled).collect();
        drop(tx);
        for index in stalled {
            self.proxies.all[peer.flows[index].proxy].check();
        }
    }

    /// Has this proxy look for something to send to the peer.
    pub(crate) fn ask(&self, peer: &PeerShared, proxy: usize) {
        let _announcing = Announcing::begin(peer);
        peer.tx_proxies.join(peer.tx_proxies.place_of(proxy));
        self.proxies.all[proxy].wake();
    }

    /// Has one more proxy send to the peer, if there is one that was not asked.
    pub(crate) fn ask_another(&self, peer: &PeerShared) {
        if !peer.tx_proxies.may_ask_another() {
            return;
        }
        let _announcing = Announcing::begin(peer);
        if let Some(other) = peer.tx_proxies.ask_another() {
            self.proxies.all[other].wake();
        }
    }

    fn wake_all(&self, proxies: impl Iterator<Item = usize>) {
        proxies.for_each(|proxy| self.proxies.all[proxy].wake());
    }

    /// Has someone send: so many proxies are asked to.
    fn send(
        self: &Arc<Self>,
        peer: &Arc<PeerShared>,
        announcing: &Announcing<'_>,
        small: bool,
        proxies: usize,
        now: u64,
    ) {
        self.connect_flows(peer);
        self.control.nudge();
        // A small transfer leaves with the caller's own thread if nothing is under way; while
        // something is, it gathers with others until their number makes a call worth while. Where
        // proxies spin, time counts for more than calls.
        let few = if self.config.proxy_spin_us > 0 { DIRECT_PENDING } else { 0 };
        let direct = small
            && (peer.posted.len() >= self.config.append_batch as usize
                || self.pending_of(peer) <= few);
        if self.settings.caller_driven {
            peer.want_tx(proxies);
            if direct {
                self.proxies.driven[0].send_or_leave(self);
            }
            return;
        }
        let asked = peer.want_tx(proxies);
        if direct && self.drive_one_of(asked.all(), now, few > 0) {
            // It has sent everything.
        } else if announcing.is_alone || self.pollers.are_allowed() {
            self.wake_all(asked.to_wake(|proxy| self.proxies.all[proxy].must_be_told()));
        } else {
            // Whoever asked some of them may have no CPU to wake them with.
            self.wake_all(asked.all().iter().copied());
        }
    }

    /// Sends with this thread what there is to send. Says whether that is all.
    fn drive_one_of(self: &Arc<Self>, proxies: &[usize], now: u64, insists: bool) -> bool {
        // If its thread drives the proxy just now, it will see what is wanted.
        let tries = if insists { DRIVE_TRIES } else { 1 };
        proxies
            .iter()
            .any(|proxy| self.proxies.driven[*proxy].try_send(self, now, tries) == Some(true))
    }

    /// Chunks that wait to be sent. Who sends or takes acknowledgements just now is not waited for:
    /// a proxy with a thread of its own goes on by itself, and callers leave it to each other.
    fn pending_of(&self, peer: &PeerShared) -> usize {
        peer.pending().unwrap_or(if self.settings.caller_driven { 0 } else { usize::MAX })
    }
}
