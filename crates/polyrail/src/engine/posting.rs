//! How operations enter, and to whom they are announced.

use std::sync::Arc;

use polyrail_proto::Failure;
use polyrail_proto::error::{PostError, TransferError};
use polyrail_proto::reason::LostReason;

use crate::engine::begin::{begin_read, begin_receive};
use crate::engine::op::{Op, OpHandle};
use crate::engine::peer::PeerShared;
use crate::engine::prepared::{OpKind, Prepared};
use crate::engine::proxy_handle::DRIVE_TRIES;
use crate::engine::state::EngineShared;
use crate::wake::ALL;

/// Where proxies spin: small transfers that leave with the caller's own thread though this many
/// others are under way.
const DIRECT_PENDING: usize = 2;
/// Transfers from this size on are worth a proxy each.
const LARGE_BYTES: u64 = 64 << 10;

/// What became of an operation that was to be sent.
enum Entered {
    Waits,
    NoRoom,
    /// It has ended.
    PeerGone,
}

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
        let _posting = peer.wake.posting();
        match self.enter(&op) {
            Entered::NoRoom => return Err(busy),
            Entered::PeerGone => return Ok(op),
            Entered::Waits => {}
        }
        let bytes = prepared.plan.bytes();
        let threads = match prepared.kind.sends() {
            // One for each chunk that waits, those of operations included that nobody has fetched yet. A thread that
            // finds more than it can send shares it.
            true if bytes >= LARGE_BYTES => {
                prepared.plan.chunk_count() as usize + peer.posted.len().saturating_sub(1)
            }
            _ => 1,
        };
        let small = prepared.kind != OpKind::Read && bytes <= self.config.inline_bytes;
        self.begin_sending(peer, threads, small.then_some(op.posted.0));
        Ok(op)
    }

    /// The rails carry an operation that was to be copied and can't be. Its number is known to the pool, so there is
    /// room for it.
    pub(crate) fn post_over_rails(self: &Arc<Self>, op: &OpHandle) {
        let peer = &op.prepared.peer;
        if op.prepared.has_ended_regions() {
            return op.fail(TransferError::RegionDropped);
        }
        // A read of many segments makes many requests before they are announced.
        let _posting = peer.wake.posting();
        if let Entered::Waits = self.enter(op) {
            self.announce(peer);
        }
    }

    /// Puts an operation where progress threads, or the peer's messages, find it.
    fn enter(self: &Arc<Self>, op: &OpHandle) -> Entered {
        let peer = &op.prepared.peer;
        match op.prepared.kind {
            OpKind::Write | OpKind::Send { .. } => {
                if peer.posted.push(op.clone()).is_err() {
                    op.fail(TransferError::Cancelled);
                    return Entered::NoRoom;
                }
            }
            OpKind::Receive { tag } => begin_receive(self, peer, op, tag),
            OpKind::Read => begin_read(peer, op),
        }
        if peer.is_gone() {
            // It went while this was entered: whoever ended its operations may have missed it.
            self.end_posted(peer);
            self.cancel_for(op, Failure::PeerLost);
            return Entered::PeerGone;
        }
        Entered::Waits
    }

    /// There is something to send to the peer that a user's thread need not begin.
    pub(crate) fn announce(self: &Arc<Self>, peer: &Arc<PeerShared>) {
        self.begin_sending(peer, ALL, None);
    }

    /// The same, short, after a post that may have been the caller's last call.
    pub(crate) fn announce_short(self: &Arc<Self>, peer: &Arc<PeerShared>) {
        self.begin_sending(peer, 1, None);
        if self.settings.caller_driven {
            self.proxies.driven[0].send_now(self, 0, 1);
        }
    }

    /// Announces something to send. `small`: it is small, and was posted at that time by the machine's monotonic clock.
    fn begin_sending(self: &Arc<Self>, peer: &Arc<PeerShared>, threads: usize, small: Option<u64>) {
        self.connect_flows(peer);
        self.control.start_ticking();
        // Where proxies spin, time counts for more than calls.
        let few = if self.config.proxy_spin_us > 0 { DIRECT_PENDING } else { 0 };
        // A small transfer leaves with the caller's own thread if nothing is under way; while something is, it gathers
        // with others until their number makes a call worth while. The lock is not waited for: a proxy with a thread of
        // its own goes on by itself, and callers leave it to each other.
        let unknown = if self.settings.caller_driven { 0 } else { usize::MAX };
        let small = small.filter(|_| {
            peer.posted.len() >= self.config.append_batch as usize
                || peer.pending().unwrap_or(unknown) <= few
        });
        // If a flow is down, the first threads may have none.
        let is_any_down = peer.flows_up() < peer.flows.len();
        let offer = peer.wake.offer(if is_any_down { ALL } else { threads });
        let is_sent = small.is_some_and(|now| {
            let tries = if few > 0 { DRIVE_TRIES } else { 1 };
            // A proxy that its thread drives just now sees what is announced.
            offer.threads().any(|proxy| self.proxies.driven[proxy].send_now(self, now, tries))
        });
        if is_sent || self.settings.caller_driven {
            offer.keep();
        }
    }
}
