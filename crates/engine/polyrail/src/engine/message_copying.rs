//! Messages that CPUs copy directly into the memory of their receive, at a peer of this host.
//!
//! A receive permits that where its sender has its regions open (`path/messages.rs`). The first messages use the rails
//! meanwhile. This module is the sender. `polyrail_proto::peer::Outbound` notes each copy by the receive's number. A
//! sender that finds no note copies nothing: the peer has withdrawn the receive. The thread that reads the withdrawal
//! stops the job, and the peer's receive ends when no more bytes of it can land. When all bytes have landed, the data
//! of the send, now without payload, reports that over the rails.

use std::sync::Arc;

use polyrail_proto::copying::{Stop, message_parts};
use polyrail_proto::message::PostedReceive;
use polyrail_proto::wire::{Place, RefusalCode};
use polyrail_proto::{Failure, InstanceId, Time};
use polyrail_sys::threads::monotonic_ns;

use crate::device::host_copy::job::{HostJob, Order};
use crate::engine::carriage::{Carriage, CpuCopies};
use crate::engine::finish::drain_tx;
use crate::engine::local_engines::engine_here;
use crate::engine::peer::{Op, OpHandle, OpRef};
use crate::engine::proxy_handle::ProxyCommand;
use crate::engine::state::EngineShared;

/// The error for a withdrawn receive, as over the rails.
const WITHDRAWN: Failure = Failure::Refused(RefusalCode::NotExpected);

impl EngineShared {
    /// Asks the peer where these places are, for later messages.
    pub(super) fn ask_for_places(self: &Arc<Self>, op: &Op, places: &[Place]) {
        let peer = &op.prepared.peer;
        for (at, place) in places.iter().enumerate() {
            if places[..at].iter().rev().take(4).any(|known| known.key == place.key) {
                continue;
            }
            if let Err(why) = self.message_paths.region(self, peer, place.key) {
                return self.copying.imports.note_obstacle(peer.instance(), Some(&why));
            }
        }
    }

    /// Copies a send into its receive, has workers copy it, or gives it to the rails. The caller must hold no lock.
    pub(super) fn copy_message(self: &Arc<Self>, op: &OpHandle, receive: PostedReceive) {
        let peer = &op.prepared.peer;
        let send = (op.prepared.plan.segments(), &op.prepared.regions[..]);
        let find = |key| self.message_paths.region(self, peer, key);
        let parts = match message_parts(send, &receive.places, find, |far| far.memory.len()) {
            Ok(Some(parts)) => parts.into(),
            // The peer has not described its memory, or has ended it.
            Ok(None) => return self.send_over_rails(op, &receive),
            Err(why) => {
                self.copying.imports.note_obstacle(peer.instance(), Some(&why));
                return self.send_over_rails(op, &receive);
            }
        };
        let (bytes, instance) = (op.prepared.plan.bytes(), peer.instance());
        let job =
            HostJob::new(Order { parts: &parts, bytes, peer: instance, deadline: op.deadline });
        if let Some(other) = engine_here(instance)
            && !other.lend_receive(self.card.instance, &receive, &job)
        {
            // The receive is over. Its engine reports that to the sender.
            return self.send_over_rails(op, &receive);
        }
        let number = receive.receive;
        let mut tx = peer.tx();
        if !tx.begin_copy(&OpRef(op.clone()), number, job.clone()) {
            drop(tx);
            job.stop(Stop::For(WITHDRAWN));
            return self.end_message(op, number, WITHDRAWN);
        }
        op.set_carriage(Carriage::Cpus(CpuCopies::new(job.clone(), Some(receive))));
        drop(tx);
        self.copying.imports.note_obstacle(instance, None);
        self.copying.host_copies.run(&job);
        if self.follow_message(op, monotonic_ns()) {
            self.watcher(peer).command(ProxyCommand::Copying(op.clone()));
            if self.is_closing() {
                // The engine's proxies may have made their last look.
                self.finish_proxies();
            }
        }
    }

    /// Continues a send when all of it is copied, or can't be. Returns true while it must still be checked. The caller
    /// must hold no lock of a peer.
    pub(super) fn follow_message(self: &Arc<Self>, op: &OpHandle, now: u64) -> bool {
        let Some((job, receive)) = op.message_job() else { return false };
        match job.ended() {
            None => return true,
            Some(Ok(())) => self.message_copied(op, receive.receive, now),
            Some(Err(Stop::For(failure))) => self.end_message(op, receive.receive, failure),
            // No device copies messages.
            Some(Err(Stop::RegionEnded | Stop::Device(_))) => self.send_over_rails(op, receive),
            Some(Err(Stop::Impossible(why))) => {
                let peer = &op.prepared.peer;
                self.note_copy_trouble(peer, &job.parts, &why);
                self.copying.imports.note_obstacle(peer.instance(), Some(&why));
                self.send_over_rails(op, receive);
            }
        }
        false
    }

    /// Finishes a send whose bytes have all landed.
    fn message_copied(self: &Arc<Self>, op: &OpHandle, receive: u64, now: u64) {
        let peer = &op.prepared.peer;
        let mut tx = peer.tx();
        if peer.is_gone() || !tx.handle_copied(Time(now), &OpRef(op.clone()), receive) {
            drop(tx);
            return self.end_message(op, receive, WITHDRAWN);
        }
        drop(tx);
        peer.account.tally.peer_copy_bytes.add(op.prepared.plan.bytes());
        self.announce_short(peer);
    }

    /// Ends a send of which nothing is copied any more, and its receive if that still waits.
    fn end_message(self: &Arc<Self>, op: &OpHandle, receive: u64, failure: Failure) {
        let peer = &op.prepared.peer;
        let mut tx = peer.tx();
        let is_gone = peer.is_gone();
        let tells = !is_gone && tx.handle_copy_failed(Time(monotonic_ns()), receive);
        drop(tx);
        if tells {
            self.announce_short(peer);
        }
        op.fail_for(if is_gone { Failure::PeerLost } else { failure });
    }

    /// Gives the rails a send that CPUs can't copy, unless it is over.
    fn send_over_rails(self: &Arc<Self>, op: &OpHandle, receive: &PostedReceive) {
        let peer = &op.prepared.peer;
        if op.prepared.has_ended_regions() {
            return self.end_message(op, receive.receive, Failure::RegionDropped);
        }
        let mut ends = self.ends();
        let mut tx = peer.tx();
        let (now, send) = (Time(ends.now), OpRef(op.clone()));
        if peer.is_gone() || !tx.copy_over_rails(now, &send, receive, &mut ends) {
            drop(tx);
            return self.end_message(op, receive.receive, WITHDRAWN);
        }
        op.take_rails();
        drain_tx(&mut tx, &mut ends);
        drop(tx);
        ends.tell();
        self.announce(peer);
    }

    /// Lends a receive of this engine to an engine of this process that is about to copy into it. Returns whether it
    /// may. The thread that ends the receive ends the job first.
    fn lend_receive(&self, to: InstanceId, receive: &PostedReceive, job: &Arc<HostJob>) -> bool {
        let Some(peer) = self.peer(to) else { return false };
        let mut rx = peer.rx();
        rx.lend_receive(receive, job.clone())
    }
}
