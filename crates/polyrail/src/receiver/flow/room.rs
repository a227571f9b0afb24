//! Pinned memory for a chunk of a device: whether a chunk that begins has to wait for room in the flow's ring,
//! or for the sender's ring to be opened, and what becomes of it without.

use std::sync::Arc;
use std::time::Duration;

use polyrail_gpu::Device;
use polyrail_proto::FrameReader;
use polyrail_proto::wire::{ChunkHeader, RefusalCode};

use super::RxFlow;
use super::device_chunks::Arrivals;
use crate::device::budget::Stock;
use crate::device::connection::Connection;
use crate::device::shared_ring::PeersRing;
use crate::device::staging::{CopyError, Ring};
use crate::engine::pass::{Down, Pass};

impl RxFlow {
    /// Looks for room in the ring, and if there is goes on with what came. Says whether there is.
    pub(super) fn go_on(
        &mut self,
        connection: &mut Connection,
        pass: &mut Pass<'_>,
    ) -> Result<bool, Down> {
        if self.current.in_peers_ring.is_some() {
            return self.go_on_in_peers_ring(connection, pass);
        }
        if self.current.is_carried {
            self.take_carrier(pass)?;
        }
        if self.current.is_carried
            && (!self.current.land || !self.arrivals.must_stage(&self.current))
        {
            if self.arrivals.is_full() {
                return Ok(false);
            }
            self.waits_for_room = false;
            self.take_in(connection, false, pass)?;
            return Ok(true);
        }
        let payload = self.current.header.map_or(0, |header| header.payload_len);
        let size = self.arrivals.ring.as_ref().map_or(0, |ring| ring.memory().len());
        if size < payload.into() {
            if !self.arrivals.is_empty() {
                return Ok(false);
            }
            // The old one, which is too small, gives its part back first. Copies from it are done, and queues and
            // the plugin need not keep it.
            self.arrivals.drop_ring();
            pass.copiers.let_go();
            let stock = self.peer.rx_stock.clone();
            let wanted = pass.engine.settings.staging_bytes;
            let make =
                |device: &Arc<dyn Device>| Ring::new(&**device, wanted, payload.into(), &stock);
            let mut made = self.current.device().map(make);
            if matches!(made, Some(Err(_)))
                && self.arrivals.peers_ring.as_mut().is_some_and(PeersRing::close)
            {
                // There may be enough for one of both.
                pass.copiers.let_go();
                made = self.current.device().map(make);
            }
            match made {
                Some(Ok(ring)) => self.arrivals.ring = Some(ring),
                Some(Err(error)) => {
                    let code = self.refusal_without_ring(&error, &stock, pass);
                    self.peer.rx().receiver.bar(self.flow, code);
                    self.current.land = false;
                }
                None => self.current.land = false,
            }
        }
        if self.current.land {
            self.current.at = self.arrivals.take_room(payload.into());
            if self.current.at.is_none() {
                return Ok(false);
            }
        }
        self.waits_for_room = false;
        self.take_in(connection, false, pass)?;
        Ok(true)
    }

    /// There is no ring for the flow: the code for its sender, which sends the chunk again later, or by another flow, if
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
        let (name, others) = (self.peer.name(), self.peer.quotas.logs.no_staging.left_out());
        if let CopyError::Short(why) = error {
            // The peer sends the chunk again, until others have given some back.
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

    /// A chunk lies in the sender's ring, which may have to be opened. Goes on with what came unless
    /// too many wait. Says whether it did.
    fn go_on_in_peers_ring(
        &mut self,
        connection: &mut Connection,
        pass: &mut Pass<'_>,
    ) -> Result<bool, Down> {
        if self.arrivals.is_full() {
            return Ok(false);
        }
        let stock = self.peer.rx_stock.clone();
        let lacks = |ring: &PeersRing| ring.memory().is_none() && !stock.has_left(ring.place.bytes);
        let is_short = |arrivals: &Arrivals| arrivals.peers_ring.as_ref().is_some_and(lacks);
        if self.arrivals.ring.is_some() && is_short(&self.arrivals) {
            if !self.arrivals.is_empty() {
                return Ok(false);
            }
            // There may be enough for one of both.
            self.arrivals.drop_ring();
            pass.copiers.let_go();
        }
        let code = if is_short(&self.arrivals) && stock.holders() > 0 {
            self.tell_short(&stock, "no room for the peer's ring");
            RefusalCode::NoStaging
        } else {
            let device = self.current.device().map(|device| &**device);
            let peers_ring = self.arrivals.peers_ring.as_mut();
            let process = self.peer.process.prove(&pass.engine.proofs);
            let opened = peers_ring.map_or(Ok(()), |ring| ring.open(process, device, &stock));
            if let Err(why) = opened
                && let Some(others) = self.peer.quotas.logs.no_staging.left_out()
            {
                let name = self.peer.name();
                tracing::error!(target: "polyrail::staging", peer = name, why, others,
                    "no shared memory");
            }
            RefusalCode::NoRing
        };
        if self.arrivals.peers_ring.as_ref().is_none_or(|ring| ring.memory().is_none()) {
            self.peer.rx().receiver.bar(self.flow, code);
            self.current.land = false;
        }
        self.waits_for_room = false;
        self.take_in(connection, false, pass)?;
        Ok(true)
    }

    /// Whether a chunk that begins has to wait for [`Self::go_on`], in the middle of a pass under
    /// the peer's lock.
    pub(super) fn must_wait(&mut self, header: &ChunkHeader) -> Result<bool, Down> {
        if self.current.is_carried && self.arrivals.carrier.is_none() {
            return Ok(true);
        }
        let Some(at) = self.current.in_peers_ring else {
            if self.current.is_carried && !self.arrivals.must_stage(&self.current) {
                return Ok(self.arrivals.is_full());
            }
            if !self.current.land || self.current.places.is_empty() {
                return Ok(false);
            }
            self.current.at = self.arrivals.take_room(header.payload_len.into());
            return Ok(self.current.at.is_none());
        };
        let ring = self.arrivals.peers_ring.as_ref();
        let ring = ring.filter(|ring| ring.holds(at, header.payload_len.into()));
        let ring = ring.ok_or_else(|| Down("a chunk lies outside of what was announced".into()))?;
        let is_ready = ring.is_open(self.current.device().is_some()) && !self.arrivals.is_full();
        Ok(self.current.land && !is_ready)
    }

    /// Whether the flow holds pinned memory for a payload of which no byte has come for twice the time after which its
    /// sender gives up a stalled flow. Notes what has come by now.
    pub(crate) fn holds_memory_in_vain(&mut self, reader: &FrameReader, pass: &Pass<'_>) -> bool {
        let left = reader.left();
        if left == 0 || self.current.at.is_none() || self.current.is_carried {
            self.seen_left = None;
            return false;
        }
        let now = (self.current.began_ns, left);
        match self.seen_left {
            Some((seen, since_ns)) if seen == now => {
                let patience = 2 * self.peer.stall(&pass.engine.settings);
                Duration::from_nanos(pass.now.saturating_sub(since_ns)) >= patience
            }
            _ => {
                self.seen_left = Some((now, pass.now));
                false
            }
        }
    }

    /// Frees rings that nothing is in: peers without any wait for the memory.
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

    /// Says once that there is pinned memory for some flows of the peer only.
    fn tell_short(&self, stock: &Stock, why: &str) {
        if stock.is_news() {
            let name = self.peer.name();
            tracing::warn!(target: "polyrail::staging", peer = name, why,
                "only flows that have pinned memory are used");
        }
    }
}
