//! Messages that CPUs copy straight into the memory of their receive, at a peer of this host.
//!
//! A receive gives leave to that where its sender has its regions open (`path/messages.rs`); the first ones
//! come over the rails meanwhile. Here is the sender. `polyrail_proto::peer::Outbound` notes what is copied by
//! the receive's number. A sender that finds no note there copies nothing: the peer has withdrawn the receive. The
//! thread that reads the withdrawal stops the job, and the peer's receive is over when no byte of it lands any
//! more. When all bytes are in place, the data of the send, which then has no payload, says so over the rails.

use std::borrow::Cow;
use std::sync::Arc;

use polyrail_proto::message::{CopyLeave, PostedReceive};
use polyrail_proto::path::{is_message_worth_a_copy, is_worth_leaving};
use polyrail_proto::peer::pair_places;
use polyrail_proto::wire::{Place, RefusalCode};
use polyrail_proto::{Failure, InstanceId, RegionKey, Time};
use polyrail_sys::threads::monotonic_ns;

use crate::device::host_copy::job::{HostJob, Order};
use crate::device::host_copy::piece::Stop;
use crate::device::peer_copy::CopyPart;
use crate::engine::carriage::{Carriage, CpuCopies};
use crate::engine::finish::drain_tx;
use crate::engine::local_engines::engine_here;
use crate::engine::op::{Op, OpHandle, OpRef};
use crate::engine::peer::PeerShared;
use crate::engine::prepared::Prepared;
use crate::engine::proxy_handle::ProxyCommand;
use crate::engine::settings::EngineSettings;
use crate::engine::state::EngineShared;
use crate::memory::region::RegionCore;

/// The ways of messages between the processes of a host.
pub(crate) trait MessagePaths: Send + Sync {
    /// Whether the peer may copy into a receive.
    fn leave(&self, engine: &EngineShared, peer: &Arc<PeerShared>, receive: &Prepared)
    -> CopyLeave;

    /// The peer's region, as CPUs can copy there, or why they can't; `None` if that is not known and the
    /// peer was asked. Waits for nothing.
    fn region(
        &self,
        engine: &Arc<EngineShared>,
        peer: &Arc<PeerShared>,
        key: RegionKey,
    ) -> Result<Option<Arc<RegionCore>>, Cow<'static, str>>;

    /// The peer is asked whether it opens memory of this process, if it was not. Waits for nothing.
    fn ask_to_share(&self, engine: &Arc<EngineShared>, peer: &Arc<PeerShared>);
}

/// The withdrawn receive's answer, as over the rails.
const WITHDRAWN: Failure = Failure::Refused(RefusalCode::NotExpected);

/// Whether a send and its receive are such that CPUs should copy.
pub(super) fn is_wanted(op: &Op, receive: &PostedReceive, settings: &EngineSettings) -> bool {
    let prepared = &op.prepared;
    let pieces = prepared.plan.segments().len().max(receive.places.len());
    settings.single_copy
        && prepared.peer.says_same_host
        && !prepared.touches_device
        && is_message_worth_a_copy(prepared.plan.bytes(), pieces)
}

/// Whether the payload of a send is best left in memory that its peer has open, since the receive is in a
/// device's memory.
pub(super) fn is_shared(op: &Op, receive: &PostedReceive, settings: &EngineSettings) -> bool {
    receive.leave == CopyLeave::Share
        && settings.shares
        && !op.prepared.touches_device
        && is_worth_leaving(op.prepared.plan.bytes())
}

impl EngineShared {
    /// The peer is to say where these places are, for the sake of later messages.
    pub(super) fn ask_for_places(self: &Arc<Self>, op: &Op, places: &[Place]) {
        let peer = &op.prepared.peer;
        for (at, place) in places.iter().enumerate() {
            if places[..at].iter().rev().take(4).any(|known| known.key == place.key) {
                continue;
            }
            if let Err(why) = self.message_paths.region(self, peer, place.key) {
                return self.imports.note_obstacle(peer.instance(), Some(&why));
            }
        }
    }

    /// Copies a send into its receive, or has others copy it; or it takes the rails. No lock may be held.
    pub(super) fn copy_message(self: &Arc<Self>, op: &OpHandle, receive: PostedReceive) {
        let peer = &op.prepared.peer;
        let parts = match self.message_parts(op, &receive) {
            Ok(Some(parts)) => parts,
            Ok(None) => return self.send_over_rails(op, &receive),
            Err(why) => {
                self.imports.note_obstacle(peer.instance(), Some(&why));
                return self.send_over_rails(op, &receive);
            }
        };
        let (bytes, instance) = (op.prepared.plan.bytes(), peer.instance());
        let job =
            HostJob::new(Order { parts: &parts, bytes, peer: instance, deadline: op.deadline });
        if let Some(other) = engine_here(instance)
            && !other.lend_receive(self.card.instance, &receive, &job)
        {
            // It is over, which its engine says to whoever sends.
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
        self.imports.note_obstacle(instance, None);
        self.host_copies.run(&job);
        if self.follow_message(op, monotonic_ns()) {
            self.watcher(peer).command(ProxyCommand::Copying(op.clone()));
            if self.is_closing() {
                // Its proxies may have looked for the last time.
                self.finish_proxies();
            }
        }
    }

    /// Goes on with a send when all of it is copied, or can't be; says whether it is still to be looked
    /// at. No lock of a peer may be held.
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
                tracing::warn!(target: "polyrail::share", peer = peer.name(), why, "no single copy");
                for region in job.foreign().filter(|region| !region.gate.is_closed()) {
                    self.imports.give_up((region.owner, region.key), &why);
                }
                self.imports.note_obstacle(peer.instance(), Some(&why));
                self.send_over_rails(op, receive);
            }
        }
        false
    }

    /// All bytes are in place.
    fn message_copied(self: &Arc<Self>, op: &OpHandle, receive: u64, now: u64) {
        let peer = &op.prepared.peer;
        let mut tx = peer.tx();
        if peer.is_gone() || !tx.handle_copied(Time(now), &OpRef(op.clone()), receive) {
            drop(tx);
            return self.end_message(op, receive, WITHDRAWN);
        }
        drop(tx);
        peer.tally.peer_copy_bytes.add(op.prepared.plan.bytes());
        self.announce_short(peer);
    }

    /// Nothing of the send is copied any more: it ends, and its receive if that still waits.
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

    /// CPUs can't copy the send: the rails carry it, unless it is over.
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

    /// The copies that a message takes, or why they are not possible; `None` if the peer has not said where
    /// its memory is, or has ended it.
    fn message_parts(
        self: &Arc<Self>,
        op: &Op,
        receive: &PostedReceive,
    ) -> Result<Option<Arc<[CopyPart]>>, Cow<'static, str>> {
        let prepared = &op.prepared;
        let segments = pair_places(prepared.plan.segments(), &receive.places);
        let mut known: Option<(RegionKey, Arc<RegionCore>)> = None;
        let mut parts = Vec::with_capacity(segments.len());
        for segment in segments {
            let far = match &known {
                Some((key, far)) if *key == segment.remote => far.clone(),
                _ => match self.message_paths.region(self, &prepared.peer, segment.remote)? {
                    Some(far) => far,
                    None => return Ok(None),
                },
            };
            let end = segment.remote_offset.checked_add(segment.len);
            if end.is_none_or(|end| end > far.memory.len()) {
                return Ok(None);
            }
            parts.push(CopyPart {
                from: prepared.regions[segment.local_region as usize].clone(),
                from_offset: segment.local_offset,
                to: far.clone(),
                to_offset: segment.remote_offset,
                len: segment.len,
            });
            known = Some((segment.remote, far));
        }
        Ok(Some(parts.into()))
    }

    /// An engine of this process is about to copy into a receive of this one: says whether it may. Whoever
    /// ends the receive ends the job first.
    fn lend_receive(&self, to: InstanceId, receive: &PostedReceive, job: &Arc<HostJob>) -> bool {
        let Some(peer) = self.peer(to) else { return false };
        let mut rx = peer.rx();
        rx.lend_receive(receive, job.clone())
    }
}
