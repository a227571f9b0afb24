//! Chunks in a device's memory. They are copied to the flow's ring, or to one that the peer has open, while other
//! chunks are on the wire.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::time::Duration;

use polyrail_gpu::{Device, Ticket};
use polyrail_proto::liveness::Rest;
use polyrail_proto::progress::Outlook;
use polyrail_proto::wire::{AckFrame, RefusalCode};
use polyrail_proto::{Chunk, Failure, Source, Time, TransferId};
use polyrail_secure::Sealer;

use super::TxFlow;
use super::frame::Body;
use crate::device::shared_memory::ring::SharedRing;
use crate::device::staging::{ChunkPart, Copiers, CopyError, Direction, Ring};
use crate::engine::finish::drain_tx;
use crate::engine::outgoing::Outgoing;
use crate::engine::pass::Pass;
use crate::engine::peer::Down;
use crate::memory::tickets::{Tickets, all_done};
use crate::wake::ALL;

/// Pinned memory that a flow sends from, and the chunks that are copied to it.
#[derive(Default)]
pub(super) struct Staging {
    /// Chunks that a device copies to the ring, and chunks pulled after them: sent in this order.
    chunks: VecDeque<Staged>,
    /// Pinned memory, made for the first chunk in a device's memory.
    pub(super) ring: Option<Ring>,
    /// On while this flow, or the peer for this flow, lacks pinned memory, so that other flows send instead.
    rest: Rest,
    /// Time, by the monotonic clock, since when the peer has had no pinned memory because other peers have all of it.
    short_since: Option<u64>,
}

/// A chunk that is pulled and has no frame yet.
struct Staged {
    chunk: Chunk<Outgoing>,
    body: Body,
    tickets: Tickets,
    began_ns: u64,
}

impl Staging {
    /// Returns whether no chunk waits for a frame.
    pub(super) fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// Returns when the oldest chunk without a frame was pulled, by the monotonic clock.
    pub(super) fn oldest_ns(&self) -> Option<u64> {
        self.chunks.front().map(|staged| staged.began_ns)
    }

    /// Returns whether the flow takes nothing at the moment.
    pub(super) fn is_resting(&self, now: Time) -> bool {
        self.rest.is_on(now)
    }

    /// Returns when to visit the flow again if nothing moves. While a device copies a chunk, every pass asks for it
    /// until the chunk has a frame, whatever the device says at this moment: the next pass finds chunks that are copied
    /// and not sent. If the socket is full (not `writable`), that can wait for room.
    pub(super) fn outlook(&self, writable: bool, now: Time) -> Outlook {
        let copies = Outlook::ask_if(!self.is_empty() && writable);
        // No event ends a rest. At a later moment than `now`, which is the pass's, the rest may be over, and no one has
        // looked since.
        let rest = self.rest.until(now).map_or(Outlook::Told, |until| Outlook::Until(until.0));
        copies.and(rest)
    }

    /// Returns whether there is an empty ring.
    fn has_idle_ring(&self) -> bool {
        self.ring.as_ref().is_some_and(Ring::is_idle)
    }

    /// Frees the empty ring, and what finished copies keep of it.
    fn drop_ring(&mut self, copiers: &mut Copiers) {
        self.ring = None;
        copiers.let_go();
    }
}

impl TxFlow {
    /// Returns whether a chunk is copied to a ring before it is sent.
    pub(super) fn is_staged(&self, chunk: &Chunk<Outgoing>) -> bool {
        !self.is_carried(chunk) && (is_on_device(chunk) || self.is_shared(chunk))
    }

    /// Returns whether there is a ring for a staged chunk.
    pub(super) fn has_ring_for(&self, chunk: &Chunk<Outgoing>) -> bool {
        self.shared.is_some() || self.staging.ring.is_some() && !self.is_shared(chunk)
    }

    /// Returns whether the peer takes the payload of a chunk itself.
    fn is_shared(&self, chunk: &Chunk<Outgoing>) -> bool {
        chunk.header.payload_len > 0
            && chunk.source.is_shared()
            && self.peer.beside.sharing.may_work()
    }

    /// Has a chunk copied to a ring that has room for it. Returns false if there is no memory for a ring and other
    /// flows have some: the chunk is left to them.
    pub(super) fn stage(
        &mut self,
        chunk: Chunk<Outgoing>,
        pass: &mut Pass<'_>,
    ) -> Result<bool, Down> {
        let mut is_shared = self.is_shared(&chunk);
        if is_shared && let Err(why) = self.prepare_shared(&chunk, pass) {
            if self.shared.is_none() && self.others_have_memory() {
                self.leave_to_others(&why, pass);
                return Ok(false);
            }
            self.stop_sharing(why);
            is_shared = false;
        }
        if !is_shared && !is_on_device(&chunk) {
            self.put_behind(chunk, pass);
            return Ok(true);
        }
        let ready = if is_shared { Ok(()) } else { self.prepare_ring(&chunk, pass) };
        if let Err(CopyError::Device(why) | CopyError::Short(why)) = &ready
            && (self.others_have_memory()
                || matches!(ready, Err(CopyError::Short(_))) && self.waits_for_memory(pass))
        {
            self.leave_to_others(why, pass);
            return Ok(false);
        }
        self.staging.short_since = None;
        let len = u64::from(chunk.header.payload_len);
        match ready.and_then(|()| self.copy_to_ring(&chunk, len, is_shared, pass)) {
            Ok((body, tickets)) => {
                let began_ns = pass.now;
                self.staging.chunks.push_back(Staged { chunk, body, tickets, began_ns });
                Ok(true)
            }
            Err(error) => Err(self.fail(&chunk, error, pass)),
        }
    }

    /// Returns whether the flow takes nothing at the moment.
    pub(super) fn rests(&mut self, pass: &mut Pass<'_>) -> bool {
        let now = Time(pass.now);
        // Only a flow on which the peer takes bytes has a use for the ring.
        if self.staging.rest.gives_up(now) && self.staging.has_idle_ring() {
            self.staging.drop_ring(&mut pass.copiers);
        }
        self.staging.is_resting(now)
    }

    /// Begins a rest, in which the flow takes nothing.
    fn begin_rest(&mut self, now: u64, gives_up: bool) {
        let until = self.staging.rest.begin(Time(now), gives_up);
        let slot = &self.peer.links.flows[self.flow.0 as usize];
        slot.rests_until.store(until.0, Ordering::Relaxed);
    }

    /// Returns whether other flows to the peer have pinned memory. If several flows fail to get any at the same time,
    /// the last of them sees that no flow has any.
    fn others_have_memory(&self) -> bool {
        let shared = self.shared.as_ref().is_some_and(SharedRing::is_pinned);
        let own = usize::from(self.staging.ring.is_some()) + usize::from(shared);
        self.peer.beside.tx_stock.holders() > own
    }

    /// Handles the case that no flow to the peer has pinned memory, because flows to other peers have all of it.
    /// Returns whether to wait for some: for as long as a peer may be silent.
    fn waits_for_memory(&mut self, pass: &Pass<'_>) -> bool {
        let since = *self.staging.short_since.get_or_insert(pass.now);
        let waited = Duration::from_nanos(pass.now.saturating_sub(since));
        if waited >= pass.engine.settings.peer_timeout {
            return false;
        }
        pass.engine.want_staging(pass.now);
        // The peer waits for this engine.
        self.peer.tx().sender.handle_peer_at_work(Time(pass.now));
        true
    }

    /// Frees an empty ring: peers without one wait for the memory.
    pub(crate) fn give_back(&mut self) {
        if self.staging.is_empty() && self.staging.has_idle_ring() {
            self.staging.ring = None;
        }
    }

    /// Leaves chunks to other flows, because the chunk that was pulled last needs pinned memory and there is none.
    fn leave_to_others(&mut self, why: &str, pass: &mut Pass<'_>) {
        self.begin_rest(pass.now, false);
        let peer = self.peer.clone();
        if peer.beside.tx_stock.is_news() {
            let name = peer.name();
            tracing::warn!(target: "polyrail::staging", peer = name, why,
                "only flows that have pinned memory are used");
        }
        let mut tx = peer.tx();
        tx.sender.hand_back(self.flow);
        tx.sender.rest(self.flow);
        drain_tx(&mut tx, pass);
        drop(tx);
        // A proxy that found nothing to send meanwhile may sleep.
        peer.wake.announce(ALL);
    }

    /// Queues a chunk that needs no device after those that do.
    pub(super) fn put_behind(&mut self, chunk: Chunk<Outgoing>, pass: &Pass<'_>) {
        let (body, tickets, began_ns) = (self.body_of(&chunk), Tickets::new(), pass.now);
        self.staging.chunks.push_back(Staged { chunk, body, tickets, began_ns });
    }

    /// Returns whether a staged chunk of any kind would have no room.
    pub(super) fn lacks_room(&self, pass: &Pass<'_>) -> bool {
        let settings = &pass.engine.settings;
        let is_full = |ring: &Ring, bytes: u64| !ring.has_room(bytes);
        let ring = self.staging.ring.as_ref();
        ring.is_some_and(|ring| is_full(ring, settings.gpu_chunk_bytes))
            || self.shared.as_ref().is_some_and(|it| is_full(&it.ring, settings.largest_chunk()))
    }

    /// Handles the peer's answer: it is done with all frames up to one, and with their payload in shared memory.
    pub(super) fn heard(&mut self, ack: AckFrame, now: u64) {
        let (AckFrame::Ack { sequence } | AckFrame::Refusal { sequence, .. }) = ack else { return };
        self.acknowledged = self.acknowledged.max(sequence);
        if let Some(shared) = &mut self.shared {
            shared.release(sequence);
        }
        match ack {
            AckFrame::Ack { .. } => self.staging.rest.end(),
            AckFrame::Refusal { code: RefusalCode::NoRing, .. } => {
                self.stop_sharing("the peer could not open or pin a ring".to_owned());
            }
            AckFrame::Refusal { code: RefusalCode::NoStaging, .. } => {
                self.begin_rest(now, true);
            }
            AckFrame::Refusal { .. } | AckFrame::Bye | AckFrame::Words(_) => {}
        }
    }

    /// Sends payload for this peer over the rails for a while.
    fn stop_sharing(&self, why: String) {
        let peer = self.peer.name();
        if self.peer.beside.sharing.fail(why.clone()) {
            tracing::warn!(target: "polyrail::staging", peer, why, "no shared memory for a while");
        }
    }

    fn prepare_shared(
        &mut self,
        chunk: &Chunk<Outgoing>,
        pass: &mut Pass<'_>,
    ) -> Result<(), String> {
        let device = device_of(chunk);
        if let Some(shared) = &mut self.shared {
            return shared.pin_for(device);
        }
        debug_assert!(!pass.hasty, "a caller makes no ring");
        let settings = &pass.engine.settings;
        let (wanted, least) = (settings.staging_bytes, settings.largest_chunk());
        let proofs = &pass.engine.copying.proofs;
        let (process, badge) = (self.peer.beside.process.prove(proofs)?, proofs.badge()?);
        let stock = &self.peer.beside.tx_stock;
        let make = || SharedRing::new(process, &badge, device, wanted, least, stock);
        let mut made = make();
        if made.is_err() && self.staging.has_idle_ring() {
            // The memory may be enough for one of the two.
            self.staging.drop_ring(&mut pass.copiers);
            made = make();
        }
        self.shared = Some(made?);
        Ok(())
    }

    /// Ensures that there is a ring to send from. Memory that the peer has open will do.
    fn prepare_ring(&mut self, chunk: &Chunk<Outgoing>, pass: &Pass<'_>) -> Result<(), CopyError> {
        let device = device_of(chunk).ok_or(CopyError::RegionDropped)?;
        let lent = |shared: &mut SharedRing| shared.pin_for(Some(device)).is_ok();
        if self.staging.ring.is_some() || self.shared.as_mut().is_some_and(lent) {
            return Ok(());
        }
        let settings = &pass.engine.settings;
        let least = settings.gpu_chunk_bytes.max(chunk.header.payload_len.into());
        let stock = &self.peer.beside.tx_stock;
        self.staging.ring = Some(Ring::new(device, settings.staging_bytes, least, stock)?);
        Ok(())
    }

    fn copy_to_ring(
        &mut self,
        chunk: &Chunk<Outgoing>,
        len: u64,
        is_shared: bool,
        pass: &mut Pass<'_>,
    ) -> Result<(Body, Tickets), CopyError> {
        let parts = parts_of(&chunk.source, chunk.header.chunk);
        // `pull` has checked for room.
        let no_room = || CopyError::Device("no room in the staging ring".into());
        let (ring, body): (_, fn(u64) -> Body) = match (&mut self.shared, &mut self.staging.ring) {
            (Some(shared), _) if is_shared => (&mut shared.ring, Body::Shared),
            (_, Some(ring)) => (ring, Body::Ring),
            (Some(shared), None) => (&mut shared.ring, Body::Lent),
            (None, None) => return Err(no_room()),
        };
        let at = ring.take(len).ok_or_else(no_room)?;
        let tickets = pass.copiers.copy(Direction::Out, parts, ring.memory(), at)?;
        Ok((body(at), tickets))
    }

    /// Copies that devices may still make when the flow is gone.
    pub(crate) fn into_tickets(self) -> impl Iterator<Item = Ticket> {
        self.staging.chunks.into_iter().flat_map(|staged| staged.tickets)
    }

    /// Makes frames of the copied chunks.
    pub(super) fn send_staged(
        &mut self,
        sealer: &mut Sealer,
        pass: &mut Pass<'_>,
    ) -> Result<(), Down> {
        while let Some(first) = self.staging.chunks.front() {
            match all_done(&first.tickets) {
                Ok(false) => break,
                Ok(true) => {
                    let Some(Staged { chunk, body, .. }) = self.staging.chunks.pop_front() else {
                        break;
                    };
                    self.queue(chunk, body, sealer, pass)?;
                }
                Err(error) => {
                    let Some(Staged { chunk, .. }) = self.staging.chunks.pop_front() else { break };
                    pass.copiers.renew();
                    return Err(self.fail(&chunk, error.into(), pass));
                }
            }
        }
        Ok(())
    }

    /// Ends the transfer of a chunk that was promised to the peer and can't be read any more, and the flow with it.
    fn fail(&self, chunk: &Chunk<Outgoing>, error: CopyError, pass: &mut Pass<'_>) -> Down {
        let (failure, why) = match error {
            CopyError::RegionDropped => (Failure::RegionDropped, "a region was dropped".into()),
            CopyError::Device(why) | CopyError::Short(why) => (Failure::Device, why),
        };
        self.lose((&chunk.source, chunk.header.transfer), failure, why, pass)
    }

    /// Ends the transfer of bytes that were promised to the peer and can't be read any more, and the flow with it. If
    /// they were sent again, they would fail again on every flow.
    pub(super) fn lose(
        &self,
        (source, transfer): (&Outgoing, TransferId),
        failure: Failure,
        why: String,
        pass: &mut Pass<'_>,
    ) -> Down {
        source.note_device_error(why.clone());
        let mut tx = self.peer.tx();
        tx.sender.end(transfer, failure);
        drain_tx(&mut tx, pass);
        Down(why)
    }
}

/// The parts of a chunk, each in its region.
pub(super) fn parts_of(source: &Outgoing, chunk: u32) -> impl Iterator<Item = ChunkPart<'_>> {
    let pieces = source.plan().pieces(chunk);
    pieces.map(|piece| (source.region(piece.local_region), piece.local_offset, piece.len))
}

fn is_on_device(chunk: &Chunk<Outgoing>) -> bool {
    device_of(chunk).is_some()
}

/// A device that has a part of the chunk.
fn device_of(chunk: &Chunk<Outgoing>) -> Option<&dyn Device> {
    let mut pieces = chunk.source.plan().pieces(chunk.header.chunk);
    let device = |region: u32| chunk.source.region(region).memory.device();
    pieces.find_map(|piece| device(piece.local_region)).map(|device| &**device)
}
