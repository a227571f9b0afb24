//! The way in which a chunk lands, by its head, and what it needs for that: room in the flow's ring, the sender's ring
//! opened, or the plugin's connection. A chunk whose need is not met yet waits here, or is refused.

use std::sync::Arc;
use std::time::Duration;

use polyrail_gpu::Device;
use polyrail_proto::budget::Stock;
use polyrail_proto::peer::carriers::must_stage;
use polyrail_proto::wire::{ChunkHeader, Flags, RefusalCode};
use polyrail_proto::{FrameReader, Time};

use super::RxFlow;
use super::current::Current;
use super::device_chunks::Arrivals;
use super::landing::{Goal, Landing, Need, Room};
use crate::device::connection::Connection;
use crate::device::shared_memory::ring::PeersRing;
use crate::device::staging::{CopyError, Ring};
use crate::engine::pass::Pass;
use crate::engine::peer::Down;

/// Result when there is no memory for a ring, and the chunk is refused.
struct Refused;

impl RxFlow {
    /// Tries to meet the need of the current chunk, and if it is met goes on with the bytes that came. Returns whether
    /// it is.
    pub(super) fn go_on(
        &mut self,
        connection: &mut Connection,
        pass: &mut Pass<'_>,
    ) -> Result<bool, Down> {
        let Landing::Waits(need) = self.current.landing else { return Ok(false) };
        let Some(landing) = self.meet(need, pass)? else { return Ok(false) };
        self.current.landing = landing;
        self.take_in(connection, false, pass)?;
        Ok(true)
    }

    /// Returns how the chunk lands; `None` while its need is not met.
    fn meet(&mut self, need: Need, pass: &mut Pass<'_>) -> Result<Option<Landing>, Down> {
        Ok(match need {
            Need::Room => match self.find_room(pass) {
                Ok(room) => room.map(Landing::Staged),
                Err(Refused) => Some(Landing::Scratch),
            },
            Need::PeersRing { at } => self.find_in_peers_ring(at, pass),
            Need::Carrier { is_wanted } => {
                self.take_carrier(pass)?;
                if !is_wanted || !self.arrivals.must_stage(&self.current) {
                    return Ok(self.arrivals.carried(&self.current, is_wanted));
                }
                match self.find_room(pass) {
                    Ok(room) => room.map(|room| Landing::Carried(Goal::Ring(room))),
                    Err(Refused) => Some(Landing::Carried(Goal::Scratch)),
                }
            }
        })
    }

    /// Finds room in the flow's ring, and makes a larger ring if need be; `None` while there is no room.
    fn find_room(&mut self, pass: &mut Pass<'_>) -> Result<Option<Room>, Refused> {
        let payload = u64::from(self.current.payload_len());
        let size = self.arrivals.ring.as_ref().map_or(0, |ring| ring.memory().len());
        if size < payload {
            if !self.arrivals.is_empty() {
                return Ok(None);
            }
            // The old ring, which is too small, returns its memory to the stock first. Copies from it are done, and
            // queues and the plugin need not keep it.
            self.arrivals.drop_ring();
            pass.copiers.let_go();
            let stock = self.peer.beside.rx_stock.clone();
            let wanted = pass.engine.settings.staging_bytes;
            let make = |device: &Arc<dyn Device>| Ring::new(&**device, wanted, payload, &stock);
            let mut made = self.current.device().map_or(Err(CopyError::RegionDropped), make);
            if made.is_err() && self.arrivals.peers_ring.as_mut().is_some_and(PeersRing::close) {
                // There may be enough for one of the two rings.
                pass.copiers.let_go();
                made = self.current.device().map_or(Err(CopyError::RegionDropped), make);
            }
            match made {
                Ok(ring) => self.arrivals.ring = Some(ring),
                Err(error) => {
                    let code = self.refusal_without_ring(&error, &stock, pass);
                    self.peer.rx().receiver.bar(self.flow, code);
                    return Err(Refused);
                }
            }
        }
        Ok(self.arrivals.take_room(payload))
    }

    /// Returns the refusal for a flow without a ring. Its sender sends the chunk again later, or by another flow, if
    /// that can help.
    fn refusal_without_ring(
        &self,
        error: &CopyError,
        stock: &Stock,
        pass: &Pass<'_>,
    ) -> RefusalCode {
        let why = format!("{error:?}");
        if stock.holders() > 0 {
            self.tell_short(stock, &why);
            return RefusalCode::NoStaging;
        }
        let (name, others) =
            (self.peer.name(), self.peer.account.quotas.logs.no_staging.left_out(Time(pass.now)));
        if let CopyError::Short(why) = error {
            // The peer sends the chunk again, until others have released some memory.
            pass.engine.want_staging(pass.now);
            if let Some(others) = others {
                tracing::warn!(target: "polyrail::staging", peer = name, why, others,
                    "it waits for pinned memory that other peers have");
            }
            return RefusalCode::NoStaging;
        }
        if let Some(others) = others {
            tracing::error!(target: "polyrail::staging", peer = name, why, others, "no staging");
        }
        RefusalCode::Device
    }

    /// Returns how a chunk lands that lies in the sender's ring, and opens that ring if need be; `None` while too many
    /// chunks wait.
    fn find_in_peers_ring(&mut self, at: u64, pass: &mut Pass<'_>) -> Option<Landing> {
        if self.arrivals.is_full() {
            return None;
        }
        let stock = self.peer.beside.rx_stock.clone();
        let lacks = |ring: &PeersRing| ring.memory().is_none() && !stock.has_left(ring.place.bytes);
        let is_short = |arrivals: &Arrivals| arrivals.peers_ring.as_ref().is_some_and(lacks);
        if self.arrivals.ring.is_some() && is_short(&self.arrivals) {
            if !self.arrivals.is_empty() {
                return None;
            }
            // There may be enough for one of the two rings.
            self.arrivals.drop_ring();
            pass.copiers.let_go();
        }
        let code = if is_short(&self.arrivals) && stock.holders() > 0 {
            self.tell_short(&stock, "no room for the peer's ring");
            RefusalCode::NoStaging
        } else {
            let device = self.current.device().map(|device| &**device);
            let peers_ring = self.arrivals.peers_ring.as_mut();
            let process = self.peer.beside.process.prove(&pass.engine.copying.proofs);
            let opened = peers_ring.map_or(Ok(()), |ring| ring.open(process, device, &stock));
            if let Err(why) = opened
                && let Some(others) =
                    self.peer.account.quotas.logs.no_staging.left_out(Time(pass.now))
            {
                let name = self.peer.name();
                tracing::error!(target: "polyrail::staging", peer = name, why, others,
                    "no shared memory");
            }
            RefusalCode::NoRing
        };
        let Some(memory) = self.arrivals.peers_ring.as_ref().and_then(PeersRing::memory) else {
            self.peer.rx().receiver.bar(self.flow, code);
            return Some(Landing::Scratch);
        };
        Some(Landing::Shared(Room { memory: memory.clone(), at }))
    }

    /// Whether the flow holds pinned memory for a payload of which no byte has come for twice the time after which its
    /// sender gives up a stalled flow. Notes the bytes that have come by now.
    pub(crate) fn holds_memory_in_vain(&mut self, reader: &FrameReader, pass: &Pass<'_>) -> bool {
        let left = reader.left();
        if left == 0 || !matches!(self.current.landing, Landing::Staged(_)) {
            self.arrivals.seen_left = None;
            return false;
        }
        let now = (self.current.began_ns, left);
        match self.arrivals.seen_left {
            Some((seen, since_ns)) if seen == now => {
                let patience = 2 * self.peer.stall(&pass.engine.settings, Time(pass.now));
                Duration::from_nanos(pass.now.saturating_sub(since_ns)) >= patience
            }
            _ => {
                self.arrivals.seen_left = Some((now, pass.now));
                false
            }
        }
    }

    /// Frees rings that are empty: peers that have none wait for the memory.
    pub(crate) fn give_back(&mut self) {
        if !self.arrivals.is_empty() {
            return;
        }
        if self.arrivals.ring.as_ref().is_some_and(Ring::is_idle) {
            self.arrivals.drop_ring();
        }
        if self.current.header.is_none()
            && let Some(ring) = &mut self.arrivals.peers_ring
        {
            ring.close();
        }
    }

    /// Warns once that only some flows of the peer have pinned memory.
    fn tell_short(&self, stock: &Stock, why: &str) {
        if stock.is_news() {
            let name = self.peer.name();
            tracing::warn!(target: "polyrail::staging", peer = name, why,
                "only flows that have pinned memory are used");
        }
    }
}

impl Arrivals {
    /// Returns how a new chunk lands, under the peer's lock. An error if it lies outside of the announced ring.
    pub(super) fn landing_of(
        &mut self,
        chunk: &Current,
        header: &ChunkHeader,
        is_wanted: bool,
    ) -> Result<Landing, Down> {
        if header.flags.contains(Flags::CARRIED) {
            let carried = self.carrier.is_some().then(|| self.carried(chunk, is_wanted)).flatten();
            return Ok(carried.unwrap_or(Landing::Waits(Need::Carrier { is_wanted })));
        }
        if let Some(at) = header.place_in_ring() {
            let ring = self.peers_ring.as_ref();
            let ring = ring.filter(|ring| ring.holds(at, header.payload_len.into()));
            let ring =
                ring.ok_or_else(|| Down("a chunk lies outside of what was announced".into()))?;
            if !is_wanted {
                return Ok(Landing::Scratch);
            }
            let is_ready = ring.is_open(chunk.device().is_some()) && !self.is_full();
            return Ok(match ring.memory().filter(|_| is_ready) {
                Some(memory) => Landing::Shared(Room { memory: memory.clone(), at }),
                None => Landing::Waits(Need::PeersRing { at }),
            });
        }
        if !is_wanted {
            return Ok(Landing::Scratch);
        }
        if chunk.places.is_empty() {
            return Ok(Landing::InPlace { is_open: false });
        }
        let room = self.take_room(header.payload_len.into());
        Ok(room.map_or(Landing::Waits(Need::Room), Landing::Staged))
    }

    /// Returns how a chunk lands that a plugin carries whose connection is there; `None` while there is no room.
    pub(super) fn carried(&mut self, chunk: &Current, is_wanted: bool) -> Option<Landing> {
        if is_wanted && self.must_stage(chunk) {
            let room = self.take_room(chunk.payload_len().into())?;
            return Some(Landing::Carried(Goal::Ring(room)));
        }
        let goal = if is_wanted { Goal::InPlace } else { Goal::Scratch };
        (!self.is_full()).then_some(Landing::Carried(goal))
    }

    /// Whether a device has to copy the chunk from the ring into place: because the plugin takes no address of one of
    /// the devices, or because a checksum is verified, which takes bytes in host memory.
    fn must_stage(&self, current: &Current) -> bool {
        let takes_cuda = self.carrier.as_ref().is_some_and(|carrier| carrier.conduit.takes_cuda());
        must_stage(
            current.devices().map(|device| device.is_cuda()),
            takes_cuda,
            current.is_checked(),
        )
    }

    /// Room for `len` bytes in the ring, if there is any.
    pub(super) fn take_room(&mut self, len: u64) -> Option<Room> {
        if self.is_full() {
            return None;
        }
        let ring = self.ring.as_mut()?;
        let at = ring.take(len)?;
        Some(Room { memory: ring.memory().clone(), at })
    }
}
