//! Operations that devices or CPUs copy from end to end. The caller's own thread gives them the copies,
//! which takes microseconds. A waiting thread looks at the ticket, which is a load; a proxy looks for those
//! that nobody waits for. Chunks that are staged for rails: `sender/flow/device_chunks.rs` and
//! `receiver/flow/device_chunks.rs`.

use std::sync::Arc;

use polyrail_proto::copying::Stop;
use polyrail_proto::error::TransferError;
use polyrail_proto::wire::RefusalCode;
use polyrail_proto::{Failure, Time};
use polyrail_sys::threads::monotonic_ns;

use crate::device::host_copy::job::Order;
use crate::device::host_copy::{Begun, posts};
use crate::device::peer_copy::{Copies, CopyPart, Copying};
use crate::device::staging::CopyError;
use crate::engine::carriage::{Carriage, CpuCopies};
use crate::engine::peer::{Op, OpHandle, OpRef, PeerShared};
use crate::engine::proxy_handle::{ProxyCommand, ProxyHandle};
use crate::engine::state::EngineShared;
use crate::memory::region_memory::RegionMemory;

impl EngineShared {
    /// Begins the copies of an operation. Says whether that is so, or the operation is over; if not,
    /// it takes the rails.
    pub(crate) fn post_copies(self: &Arc<Self>, op: &OpHandle, copies: &Copies) -> bool {
        let device = match &copies.by {
            Copying::Cpus => return self.post_host_copies(op, copies),
            Copying::Device(device) => device,
        };
        match self.copying.peer_copies.begin(device, &copies.parts) {
            Ok(tickets) => self.copies_begun(op, Carriage::Devices(tickets)),
            Err(CopyError::RegionDropped) => {
                let local = op.prepared.check_regions().is_err();
                op.fail(match local {
                    true => TransferError::RegionDropped,
                    false => TransferError::Refused {
                        peer: op.prepared.peer_name(),
                        code: RefusalCode::RegionDropped,
                    },
                });
            }
            Err(CopyError::Device(why) | CopyError::Short(why)) => {
                op.fail(TransferError::Device { why });
            }
        }
        true
    }

    fn post_host_copies(self: &Arc<Self>, op: &OpHandle, copies: &Copies) -> bool {
        let prepared = &op.prepared;
        let (parts, bytes) = (&copies.parts, prepared.plan.bytes());
        let order = Order { parts, bytes, peer: prepared.peer.instance(), deadline: op.deadline };
        // A listener that posts is called by the thread that ended the one before.
        let outstanding = if prepared.listener.is_some() { 0 } else { posts::note_post::<Op>(op) };
        match self.copying.host_copies.begin(order, outstanding) {
            Begun::Done => {
                op.set_carriage(Carriage::Caller);
                prepared.peer.account.tally.peer_copy_bytes.add(bytes);
                // With no proxy in between.
                self.follow_copies(op, monotonic_ns());
                true
            }
            Begun::UnderWay(job) => {
                self.copies_begun(op, Carriage::Cpus(CpuCopies::new(job, None)));
                true
            }
            // The peer refuses it, unless it is a region of this engine.
            Begun::RegionDropped if prepared.has_ended_regions() => {
                op.fail(TransferError::RegionDropped);
                true
            }
            Begun::RegionDropped => false,
            Begun::Impossible(why) => {
                self.note_copy_trouble(&prepared.peer, parts, &why);
                false
            }
        }
    }

    /// Whoever waits, or asks, looks for himself, and a proxy for all others.
    fn copies_begun(&self, op: &OpHandle, carriage: Carriage) {
        op.set_carriage(carriage);
        let prepared = &op.prepared;
        prepared.peer.account.tally.peer_copy_bytes.add(prepared.plan.bytes());
        let proxy = self.watcher(&prepared.peer);
        let command = ProxyCommand::Copying(op.clone());
        let is_told = op.notifies() || prepared.listener.is_some();
        match is_told || self.arrived.bells.are_used() {
            true => proxy.command(command),
            false => proxy.command_later(command),
        }
    }

    /// Goes on with an operation when all of it is copied, or can't be; says whether it is still to
    /// be looked at. No lock of a peer may be held.
    pub(crate) fn follow_copies(self: &Arc<Self>, op: &OpHandle, now: u64) -> bool {
        if op.message_job().is_some() {
            return self.follow_message(op, now);
        }
        let peer = &op.prepared.peer;
        if let Some(stop) = op.copy_trouble() {
            match (&stop, &op.prepared.copies) {
                (Stop::Impossible(why), Some(it)) => self.note_copy_trouble(peer, &it.parts, why),
                (Stop::Device(why), _) => {
                    let peer = peer.name();
                    tracing::warn!(target: "polyrail::share", peer, why, "a device has not copied");
                }
                _ => {}
            }
            op.take_rails();
            self.post_over_rails(op);
            return false;
        }
        if !op.notifies() {
            op.end_if_copied();
            return !op.is_over();
        }
        if !op.is_copied() {
            return !op.is_over();
        }
        let mut tx = peer.tx();
        // Whoever loses a peer ends what it has under way after that, with this lock.
        if peer.is_gone() {
            drop(tx);
            op.fail_for(Failure::PeerLost);
            return false;
        }
        let notification = op.notification().unwrap_or_default().to_vec();
        tx.notify(Time(now), &OpRef(op.clone()), notification);
        drop(tx);
        self.announce(peer);
        false
    }

    /// CPUs can't copy to or from the peer: from now on its rails carry what they carry.
    pub(super) fn note_copy_trouble(&self, peer: &PeerShared, parts: &[CopyPart], why: &str) {
        tracing::warn!(target: "polyrail::share", peer = peer.name(), why, "no single copy");
        for region in parts.iter().flat_map(|part| [&part.from, &part.to]) {
            if matches!(&*region.memory, RegionMemory::Foreign(_)) && !region.gate.is_closed() {
                self.copying.imports.give_up((region.owner, region.key), why);
            }
        }
    }

    /// Nobody asks any more how the operation goes: a proxy does.
    pub(crate) fn watch_copies(&self, op: &Op) {
        // The wake-up of a forked process would reach the original.
        if op.is_copying() && !self.is_forked() {
            self.watcher(&op.prepared.peer).doorbell.ring();
        }
    }

    /// The proxy that looks when devices are done.
    pub(super) fn watcher(&self, peer: &PeerShared) -> &ProxyHandle {
        &self.proxies.all[peer.wake.threads().next().unwrap_or_default()]
    }
}
