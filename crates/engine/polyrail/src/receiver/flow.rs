//! The receiving end of a flow. Here is a visit of its proxy; `receiving` reads payload into its place,
//! `parsing` makes sense of what came, `current` is the chunk that is read, `landing` where it goes,
//! `acks` sends answers.
//! `device_chunks` are copied into place later, `room` finds the memory where they wait, and `delivering`
//! hands on what is complete.

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
    /// Which connection of the flow this is.
    pub(crate) epoch: u64,
    /// Since when, by the monotonic clock.
    pub(crate) since_ns: u64,
    _place: Option<Taken>,
    rail: usize,
    current: Current,
    /// Chunks on their way to a device's memory.
    arrivals: Arrivals,
    /// The buffer holds frames that were left to the next turn.
    has_more: bool,
    /// The peer's share of the inbox was full at the last visit.
    is_paused: bool,
    acks: AckQueue,
    /// Where no data goes the other way on the connection, which takes them along otherwise.
    ack_sender: AckSender,
    delivery: Delivery,
    /// Where data goes the other way on the connection: acknowledgements of it that came and were not
    /// taken.
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

    /// Moves the acknowledgements that may leave to `out`, for whoever writes to the connection; if
    /// `all`, with one of what landed and need not be acknowledged yet.
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

    /// While devices copy what came, or what acknowledgements have to wait for, the sender hears
    /// that it is not the rail that is slow. A device is waited for as long as a peer may be
    /// silent.
    pub(crate) fn show_life(&mut self, pass: &Pass<'_>) {
        let withheld = self.acks.are_withheld();
        let settings = &pass.engine.settings;
        // Over all flows of the peer: a copy for a flow that is gone delays the acknowledgements of
        // all.
        let unquiet = || withheld.then(|| self.peer.rx().unquiet_since(pass.now));
        let since = self.arrivals.oldest_ns().or_else(unquiet);
        let Some(since) = since else { return };
        // A plugin's connection may be dead though this one is not.
        if self.arrivals.carrier_is_silent(self.peer.stall(settings, Time(pass.now))) {
            return;
        }
        if Duration::from_nanos(pass.now.saturating_sub(since)) < settings.peer_timeout {
            self.acks.show_life(Time(pass.now), settings.rail_stall / 4);
        }
    }

    /// Says once more what the peer was told.
    pub(crate) fn say_something(&mut self, pass: &Pass<'_>) {
        self.acks.show_life(Time(pass.now), Duration::ZERO);
    }

    /// The connection is about to end: all that landed is to be acknowledged, whether or not it is time to, and
    /// if `says_bye`, a good-bye follows. To be called until [`Self::is_settled`].
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

    /// Whether the sender has been told of all that came.
    pub(crate) fn is_settled(&self) -> bool {
        !self.is_copying() && !self.acks.is_behind() && !self.owes_acks()
    }

    /// Reads as long as there are bytes. Says whether any came.
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
            // What waits is in the buffer already, whether or not the socket has more.
            while self.waits() && self.go_on(connection, pass)? {}
            if self.waits() || is_over || !(connection.readable || self.has_more) {
                break;
            }
            if pass.engine.arrived.inbox.limits.must_pause(&self.peer.account.inbox_share) {
                // The sender is held back by its window until somebody takes notifications.
                self.is_paused = true;
                break;
            }
            // What was left in the buffer comes before what the socket has.
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

    /// Regions of the last chunk may have ended, and their owners wait for their memory. Not under
    /// the peer's lock, since what an owner does then is its own affair.
    fn let_go(&mut self) {
        if self.current.header.is_none() {
            self.current.targets.clear();
        }
    }

    /// Whether it leaves bytes alone that are there: whoever changes that tells its proxy.
    pub(crate) fn is_held_back(&self) -> bool {
        self.is_paused || self.waits()
    }

    /// Whether the chunk that has begun waits for what it needs to land.
    fn waits(&self) -> bool {
        matches!(self.current.landing, Landing::Waits(_))
    }

    /// Whether devices copy for it.
    pub(crate) fn is_copying(&self) -> bool {
        !self.arrivals.is_empty()
    }

    /// Concludes the chunks that devices have copied into place, and goes on with what waited for
    /// that. Says whether there were any.
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
        // Also before an error: what was concluded is acknowledged.
        if any {
            peer.rx().take(&mut self.delivery);
            self.deliver(connection, false, pass)?;
            while self.waits() && self.go_on(connection, pass)? {}
            self.acknowledge(connection, pass.now);
        }
        next.map(|()| any)
    }

    /// The flow is gone. Says whether devices still copy what it brought.
    pub(crate) fn abandon(&self, rx: &mut RxSide) -> bool {
        self.arrivals.abandon(rx);
        rx.landings.has_orphans()
    }

    /// Acknowledges what landed, if it is time to.
    fn acknowledge(&mut self, connection: &Connection, now: u64) {
        let burst = match !connection.readable && self.arrivals.is_empty() {
            false => Burst::GoesOn,
            true if connection.reader.is_between_frames() => Burst::Over,
            true => Burst::Pauses,
        };
        self.acks.note_if_due(burst, Time(now));
    }

    /// Takes in all that the last call brought. `goes_on`: another call follows at once.
    fn take_in(
        &mut self,
        connection: &mut Connection,
        goes_on: bool,
        pass: &mut Pass<'_>,
    ) -> Result<(), Down> {
        let parsed = self.parse(connection, goes_on, pass);
        // Nobody announces what is left in the buffer.
        connection.readable |= self.has_more;
        // Before anything is delivered: a cancel among it waits until nothing is landing.
        let peer = self.peer.clone();
        self.arrivals.begin_copies(&peer, pass);
        // Also after something wrong: what came before it has landed, and a later copy would not be
        // told of.
        let delivered = self.deliver(connection, goes_on && parsed.is_ok(), pass);
        parsed.and(delivered)
    }

    /// Whether acknowledgements wait to be sent.
    pub(crate) fn owes_acks(&self) -> bool {
        !self.acks.is_empty() || self.ack_sender.unsent() > 0
    }

    /// Sends what acknowledgements the socket takes, where no data goes the same way.
    pub(crate) fn flush_acks(&mut self, connection: &mut Connection) -> Result<(), Down> {
        if self.acks.are_withheld() && self.peer.rx().is_quiet() {
            self.acks.clear();
        }
        Ok(self.ack_sender.send(&mut self.acks, &mut connection.sealer, &connection.wire)?)
    }

    /// Whether acknowledgements have to wait: another flow is inside a system call for a chunk that was
    /// taken from it, or a device copies such a chunk.
    pub(crate) fn withholds_acks(&self) -> bool {
        self.acks.are_withheld()
    }

    /// No call into a region follows before others get their turn.
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
