//! The receiving end of a flow. This file has the visit of its proxy. `receiving` reads payload into its place,
//! `parsing` parses the bytes that came, `current` is the chunk being read, `landing` its destination, `acks` sends
//! acknowledgements. `device_chunks` are copied into place later, `room` finds the memory where they wait, and
//! `delivering` hands on complete transfers.

mod acks;
mod carried;
mod current;
mod delivering;
mod device_chunks;
mod landing;
mod parsing;
mod receiving;
mod room;

use std::sync::Arc;
use std::time::Duration;

use polyrail_proto::budget::Taken;
use polyrail_proto::progress::Visit;
use polyrail_proto::tally::ArrivalStats;
use polyrail_proto::wire::AckFrame;
use polyrail_proto::{AckQueue, Burst, FlowIndex, Time};
use polyrail_secure::Sealer;
use polyrail_sys::threads::monotonic_ns;
use smallvec::SmallVec;

use self::acks::{AckSender, seal};
use self::current::Current;
use self::device_chunks::Arrivals;
use self::landing::Landing;
use crate::device::connection::Connection;
use crate::engine::pass::Pass;
use crate::engine::peer::{Delivery, Down, PeerShared, RxSide};
use crate::engine::proxy_handle::Arriving;

/// Payload that one visit reads before other flows get their turn.
const VISIT_BYTES: usize = 4 << 20;

pub(crate) struct RxFlow {
    pub(crate) peer: Arc<PeerShared>,
    pub(crate) flow: FlowIndex,
    /// Number of this connection among those of the flow.
    pub(crate) epoch: u64,
    /// Start of this connection, in ns of the monotonic clock.
    pub(crate) since_ns: u64,
    _place: Option<Taken>,
    rail: usize,
    current: Current,
    /// Chunks on their way to a device's memory.
    arrivals: Arrivals,
    /// The buffer holds frames that were left to the next visit.
    has_more: bool,
    /// The peer's share of the inbox was full at the last visit.
    is_paused: bool,
    acks: AckQueue,
    /// Used where no data goes the other way on the connection; otherwise that data takes the acknowledgements along.
    ack_sender: AckSender,
    delivery: Delivery,
    /// Acknowledgements that came and were not taken yet, if data goes the other way on the connection.
    heard: Option<SmallVec<[AckFrame; 4]>>,
}

impl RxFlow {
    /// `is_duplex`: whether data goes the other way on the connection.
    pub(crate) fn new(
        (peer, flow): (Arc<PeerShared>, FlowIndex),
        arriving: Arriving,
        is_duplex: bool,
        now: u64,
    ) -> Self {
        let Arriving { epoch, rail, window_chunks, place } = arriving;
        Self {
            peer,
            flow,
            epoch,
            since_ns: now,
            _place: place,
            rail,
            current: Current::default(),
            arrivals: Arrivals::default(),
            has_more: false,
            is_paused: false,
            acks: AckQueue::new(window_chunks),
            ack_sender: AckSender::default(),
            delivery: Delivery::default(),
            heard: is_duplex.then(SmallVec::new),
        }
    }

    /// Acknowledgements that came since the last call, in order.
    pub(crate) fn take_acks(&mut self) -> SmallVec<[AckFrame; 4]> {
        self.heard.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Moves the acknowledgements that may leave to `out`, for the thread that writes to the connection. With `all`,
    /// also those of chunks that landed and need not be acknowledged yet.
    pub(crate) fn take_unsent(&mut self, all: bool, sealer: &mut Sealer, out: &mut Vec<u8>) {
        let is_more = all && self.acks.is_behind();
        if (is_more || self.acks.are_withheld()) && self.peer.rx().is_quiet() {
            if is_more {
                self.acks.note();
            }
            self.acks.clear();
        }
        self.acks.drain(|frames| seal(frames, sealer, out));
    }

    /// Shows the sender that the rail is not slow, while devices copy what came or the chunks that acknowledgements
    /// have to wait for. A device may be silent for as long as a peer may.
    pub(crate) fn show_life(&mut self, pass: &Pass<'_>) {
        let withheld = self.acks.are_withheld();
        let settings = &pass.engine.settings;
        // Over all flows of the peer: a copy for a flow that is gone delays the acknowledgements of all.
        let unquiet = || withheld.then(|| self.peer.rx().unquiet_since(pass.now));
        let since = self.arrivals.oldest_ns().or_else(unquiet);
        let Some(since) = since else { return };
        // A plugin's connection may be dead while this one lives.
        if self.arrivals.carrier_is_silent(self.peer.stall(settings, Time(pass.now))) {
            return;
        }
        if Duration::from_nanos(pass.now.saturating_sub(since)) < settings.peer_timeout {
            self.acks.show_life(Time(pass.now), settings.rail_stall / 4);
        }
    }

    /// Repeats the last acknowledgement.
    pub(crate) fn say_something(&mut self, pass: &Pass<'_>) {
        self.acks.show_life(Time(pass.now), Duration::ZERO);
    }

    /// Prepares for the end of the connection: acknowledges all that landed, whether or not it is due, and adds a
    /// goodbye if `says_bye`. To be called until [`Self::is_settled`].
    pub(crate) fn settle(&mut self, says_bye: bool) {
        if self.acks.is_behind() {
            self.acks.note();
        }
        if says_bye && !self.is_copying() {
            self.acks.say_bye();
        }
    }

    /// Queues the reason for giving the peer up; it goes out with the next acknowledgements.
    pub(crate) fn say_why(&mut self, words: &str) {
        self.acks.say_why(words);
    }

    /// Whether all that came has been acknowledged to the sender.
    pub(crate) fn is_settled(&self) -> bool {
        !self.is_copying() && !self.acks.is_behind() && !self.owes_acks()
    }

    /// Reads as long as there are bytes. Returns whether any came.
    pub(crate) fn read(
        &mut self,
        connection: &mut Connection,
        pass: &mut Pass<'_>,
    ) -> Result<bool, Down> {
        let mut has_parsed = false;
        let mut visit = Visit::new(VISIT_BYTES, monotonic_ns());
        let mut is_over = false;
        self.is_paused = false;
        loop {
            // The bytes that wait are in the buffer already, whether or not the socket has more.
            while self.waits() && self.go_on(connection, pass)? {}
            if self.waits() || is_over || !(connection.readable || self.has_more) {
                break;
            }
            if pass.engine.arrived.inbox.limits.must_pause(&self.peer.account.inbox_share) {
                // The window holds the sender back until the application takes notifications.
                self.is_paused = true;
                break;
            }
            // Bytes left in the buffer come before those of the socket.
            let bytes = if self.has_more { 0 } else { self.receive_once(connection, pass)? };
            if bytes > 0 || self.has_more {
                has_parsed = true;
                is_over = visit.is_over_after(bytes, monotonic_ns());
                let goes_on = connection.readable && !is_over;
                self.take_in(connection, goes_on, pass)?;
            }
        }
        if self.is_paused {
            self.end_landing();
            return Ok(has_parsed);
        }
        self.end_landing();
        self.let_go();
        self.acknowledge(connection, pass.now);
        let unsent = self.ack_sender.unsent();
        self.acks.check_quota(unsent).map_err(|error| self.peer.breach(&error))?;
        Ok(has_parsed)
    }

    /// Drops references to regions of the last chunk: these may have ended, with owners that wait for the memory. Not
    /// under the peer's lock, since those owners may run any code then.
    fn let_go(&mut self) {
        if self.current.header.is_none() {
            self.current.targets.clear();
        }
    }

    /// Whether the flow leaves available bytes unread: the thread that ends this state notifies the flow's proxy.
    pub(crate) fn is_held_back(&self) -> bool {
        self.is_paused || self.waits()
    }

    /// Whether the current chunk waits for something that it needs to land.
    fn waits(&self) -> bool {
        matches!(self.current.landing, Landing::Waits(_))
    }

    /// Whether devices copy for this flow.
    pub(crate) fn is_copying(&self) -> bool {
        !self.arrivals.is_empty()
    }

    /// Concludes the chunks that devices have copied into place, and goes on with the chunks that waited for those.
    /// Returns whether any were concluded.
    pub(crate) fn collect(
        &mut self,
        connection: &mut Connection,
        pass: &mut Pass<'_>,
    ) -> Result<bool, Down> {
        let mut any = false;
        let peer = self.peer.clone();
        self.arrivals.poll_carrier(&peer, pass)?;
        let next = loop {
            match self.arrivals.next(&peer, pass) {
                Ok(Some((arrival, settled))) => {
                    any = true;
                    self.conclude(&arrival, settled, pass);
                }
                Ok(None) => break Ok(()),
                Err(down) => break Err(down),
            }
        };
        // Also before an error: concluded chunks are acknowledged.
        if any {
            peer.rx().take(&mut self.delivery);
            self.deliver(connection, false, pass)?;
            while self.waits() && self.go_on(connection, pass)? {}
            self.acknowledge(connection, pass.now);
        }
        next.map(|()| any)
    }

    /// Gives up a flow that is gone. Returns whether devices still copy chunks that it brought.
    pub(crate) fn abandon(&self, rx: &mut RxSide) -> bool {
        self.arrivals.abandon(rx);
        rx.landings.has_orphans()
    }

    /// Acknowledges the chunks that landed, if that is due.
    fn acknowledge(&mut self, connection: &Connection, now: u64) {
        let burst = match !connection.readable && self.arrivals.is_empty() {
            false => Burst::GoesOn,
            true if connection.reader.is_between_frames() => Burst::Over,
            true => Burst::Pauses,
        };
        self.acks.note_if_due(burst, Time(now));
    }

    /// Processes all that the last call brought. `goes_on`: another call follows at once.
    fn take_in(
        &mut self,
        connection: &mut Connection,
        goes_on: bool,
        pass: &mut Pass<'_>,
    ) -> Result<(), Down> {
        let parsed = self.parse(connection, goes_on, pass);
        // No event announces bytes that are left in the buffer.
        connection.readable |= self.has_more;
        // Before anything is delivered: a cancel among the messages waits until nothing is landing.
        let peer = self.peer.clone();
        self.arrivals.begin_copies(&peer, pass);
        // Also after an error: what came before it has landed, and a later copy of it would not be delivered.
        let delivered = self.deliver(connection, goes_on && parsed.is_ok(), pass);
        parsed.and(delivered)
    }

    /// Whether acknowledgements wait to be sent.
    pub(crate) fn owes_acks(&self) -> bool {
        !self.acks.is_empty() || self.ack_sender.unsent() > 0
    }

    /// Sends as many acknowledgements as the socket takes, where no data goes the same way.
    pub(crate) fn flush_acks(&mut self, connection: &mut Connection) -> Result<(), Down> {
        if self.acks.are_withheld() && self.peer.rx().is_quiet() {
            self.acks.clear();
        }
        Ok(self.ack_sender.send(&mut self.acks, &mut connection.sealer, &connection.wire)?)
    }

    /// Whether acknowledgements have to wait: another flow is inside a system call for a chunk that was taken from it,
    /// or a device copies such a chunk.
    pub(crate) fn withholds_acks(&self) -> bool {
        self.acks.are_withheld()
    }

    /// Ends the landing: other flows are visited before the next call into a region.
    fn end_landing(&mut self) {
        if matches!(self.current.landing, Landing::InPlace { is_open: true }) {
            let peer = self.peer.clone();
            self.landing_ended(&mut peer.rx());
        }
    }

    fn stats(&self) -> &ArrivalStats {
        &self.peer.account.arrivals[self.rail]
    }
}
