//! Operations that devices or CPUs copy end to end. The caller's own thread starts the copies, which takes
//! microseconds. A waiting thread checks the ticket, which is a load. A proxy checks the tickets of operations without
//! a waiting thread. For chunks that are staged for rails see `sender/flow/device_chunks.rs` and
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
    /// Begins the copies of an operation. Returns true if they have begun or the operation is over, and false if the
    /// operation takes the rails.
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
        // The listener of the previous operation calls this on the thread that ended that operation.
        let outstanding = if prepared.listener.is_some() { 0 } else { posts::note_post::<Op>(op) };
        match self.copying.host_copies.begin(order, outstanding) {
            Begun::Done => {
                op.set_carriage(Carriage::Caller);
                prepared.peer.account.tally.peer_copy_bytes.add(bytes);
                // Without a proxy in between.
                self.follow_copies(op, monotonic_ns());
                true
            }
            Begun::UnderWay(job) => {
                self.copies_begun(op, Carriage::Cpus(CpuCopies::new(job, None)));
                true
            }
            // The peer refuses the operation, unless the region is one of this engine.
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

    /// Threads that wait or poll check the copies themselves. A proxy checks all others.
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

    /// Continues an operation when all of it is copied, or can't be. Returns true while the operation must still be
    /// checked. The caller must hold no lock of a peer.
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
        // The thread that loses a peer ends the operations under way after that, with this lock.
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

    /// Notes that CPUs can't copy to or from the peer. From now on the rails carry these transfers.
    pub(super) fn note_copy_trouble(&self, peer: &PeerShared, parts: &[CopyPart], why: &str) {
        tracing::warn!(target: "polyrail::share", peer = peer.name(), why, "no single copy");
        for region in parts.iter().flat_map(|part| [&part.from, &part.to]) {
            if matches!(&*region.memory, RegionMemory::Foreign(_)) && !region.gate.is_closed() {
                self.copying.imports.give_up((region.owner, region.key), why);
            }
        }
    }

    /// Makes a proxy follow the copies of the operation, which no thread waits for any more.
    pub(crate) fn watch_copies(&self, op: &Op) {
        // The wake-up of a forked process would reach the original.
        if op.is_copying() && !self.is_forked() {
            self.watcher(&op.prepared.peer).doorbell.ring();
        }
    }

    /// The proxy that checks when devices are done.
    pub(super) fn watcher(&self, peer: &PeerShared) -> &ProxyHandle {
        &self.proxies.all[peer.wake.threads().next().unwrap_or_default()]
    }
}
