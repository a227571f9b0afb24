//! Incoming connections to this engine's listeners, their acceptance, and the flows that go to their proxies.

use std::borrow::Cow;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use polyrail_proto::hello::{Capabilities, Card, Hello, RefusedCode, Reply};
use polyrail_proto::reason::ConnectReason;
use polyrail_proto::seldom::Seldom;
use polyrail_proto::wire::SharedPlace;
use polyrail_proto::{FlowIndex, Time};
use polyrail_sys::tcp;
use polyrail_sys::threads::monotonic_ns;
use socket2::Socket;

use super::{Control, LISTENER};
use crate::control::handshake::{Cause, Handshake, Then};
use crate::device::shared_memory::offer::{accept, are_in_one_place};
use crate::device::shared_memory::stream::SharedStream;
use crate::device::wire::Wire;
use crate::engine::peer::PeerShared;
use crate::engine::proxy_handle::{Arriving, Connected, ProxyCommand};
use crate::engine::state::EngineShared;
use crate::path::try_shared;

/// Pause of accepting when the process has no descriptor left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// The listeners, one for each rail, and log state for refused connections.
pub(super) struct Accepting {
    listeners: Vec<Socket>,
    /// Time at which the process may have descriptors again, if it had none left.
    pub(super) again: Option<Instant>,
    turned_away: Seldom,
    not_added: Seldom,
    not_accepted: Seldom,
}

impl Accepting {
    pub(super) fn new(engine: &EngineShared, listeners: Vec<Socket>) -> io::Result<Self> {
        for (index, listener) in listeners.iter().enumerate() {
            engine.control.poller.add(listener.as_fd(), LISTENER + index as u64)?;
        }
        Ok(Self {
            listeners,
            again: None,
            turned_away: Seldom::default(),
            not_added: Seldom::default(),
            not_accepted: Seldom::default(),
        })
    }
}

impl Control {
    pub(super) fn accept_again(&mut self, now: Instant) {
        if self.accepting.again.is_some_and(|at| at <= now) {
            self.accepting.again = None;
            (0..self.accepting.listeners.len()).for_each(|rail| self.accept(rail));
        }
    }

    pub(super) fn accept(&mut self, rail: usize) {
        self.engine.credentials.renew();
        loop {
            let (socket, remote) = match self.accepting.listeners[rail].accept() {
                Ok(accepted) => accepted,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => continue,
                Err(error) => {
                    // Out of descriptors, most likely. The connections that wait in the queue are not lost.
                    if let Some(others) = self.accepting.not_accepted.left_out(Time(monotonic_ns()))
                    {
                        let name = &self.engine.rails[rail].name;
                        tracing::error!(target: "polyrail::rail", rail = %name, %error, others, "can't accept");
                    }
                    self.accepting.again = Some(Instant::now() + ACCEPT_PAUSE);
                    return;
                }
            };
            let Some(remote) = remote.as_socket() else { continue };
            self.make_room();
            if socket.set_nonblocking(true).is_err() {
                continue;
            }
            let deadline = Instant::now() + self.engine.settings.hello_timeout;
            self.begin(Handshake::accepted(socket, rail, remote, deadline));
        }
    }

    /// Drops the connection that has waited longest while unauthenticated clients fill every place: a peer sends all of
    /// its hello at once, a deliberately slow client does not. Authenticated ones go last, because they may wait for
    /// the user's decision.
    fn make_room(&mut self) {
        let limit = self.engine.settings.most_handshakes;
        let accepted = |(_, h): &(usize, &Handshake)| matches!(h.cause, Cause::Accepted { .. });
        let waiting = || self.handshakes.iter().filter(accepted);
        if waiting().count() < limit as usize {
            return;
        }
        let least = |(_, handshake): &(usize, &Handshake)| {
            (handshake.exchange.is_proven(), handshake.deadline)
        };
        if let Some((key, _)) = waiting().min_by_key(least) {
            let handshake = self.handshakes.remove(key);
            self.failed(handshake, ConnectReason::Crowded { limit });
        }
    }

    pub(super) fn reply(&mut self, key: usize, hello: Hello) {
        let (reply, then) = self.answer(key, hello);
        if let Some(handshake) = self.handshakes.get_mut(key) {
            handshake.reply(&reply, then);
        }
        self.step(key);
    }

    /// The reply to a hello, and the flow to hand over if it is welcome.
    fn answer(&mut self, key: usize, hello: Hello) -> (Reply, Option<Then>) {
        let refused = |code, reason: String| (Reply::Refused { code, reason }, None);
        let own = self.engine.card.capabilities;
        let welcome = |capabilities| {
            let card = Card { capabilities, ..self.engine.card.clone() };
            Reply::Accepted(self.engine.credentials.metadata(&card))
        };
        let flow = match hello {
            Hello::Introduction(_) => return (welcome(own), None),
            Hello::Flow(flow) => flow,
        };
        let limit = self.engine.config.flow_limit;
        if let Err((code, reason)) = flow.check(&self.engine.card, limit) {
            return refused(code, reason);
        }
        let duplex = flow.capabilities.contains(Capabilities::DUPLEX);
        // Before a newcomer becomes a peer.
        let limit = self.engine.connection_limit();
        if self.engine.budgets.connections.taken() >= limit.into() {
            return refused(RefusedCode::Limit, format!("flow limit of {limit} is reached"));
        }
        match self.engine.greet(&flow) {
            Ok((peer, place)) => {
                let duplex = duplex
                    && own.contains(Capabilities::DUPLEX)
                    && peer.life.standing.answers(&peer.layout, flow.flows);
                let stream = self.accept_stream(&peer, key, flow.stream);
                try_shared::prepare(&self.engine, &peer);
                let then = Then {
                    duplex,
                    stream,
                    peer,
                    flow: FlowIndex(flow.flow),
                    from_rail: flow.from_rail.into(),
                    epoch: flow.epoch,
                    window_chunks: flow.window_chunks,
                    place,
                };
                let agreed = if duplex { own } else { own.without(Capabilities::DUPLEX) };
                (welcome(agreed), Some(then))
            }
            Err((code, why)) => {
                // A peer that has parted sometimes comes late, with a connection that was under way. The refusal is all
                // it needs.
                if matches!(code, RefusedCode::SessionOver | RefusedCode::Removed) {
                    tracing::debug!(target: "polyrail::peer", key, why, "peer not added");
                } else if let Some(others) = self.accepting.not_added.left_out(Time(monotonic_ns()))
                {
                    tracing::warn!(target: "polyrail::peer", key, why, others, "peer not added");
                }
                refused(code, why)
            }
        }
    }

    /// Opens the memory that a peer offers for its connection. Without it the connection uses the socket.
    fn accept_stream(
        &self,
        peer: &PeerShared,
        key: usize,
        place: Option<SharedPlace>,
    ) -> Option<Arc<SharedStream>> {
        let handshake = self.handshakes.get(key)?;
        let made = self.open_stream(peer, handshake, place);
        if let Err(why) = &made
            && place.is_some()
            && let Some(others) = peer.account.quotas.logs.no_stream.left_out(Time(monotonic_ns()))
        {
            tracing::info!(target: "polyrail::share", peer = peer.name(), %why, others,
                "no shared memory for a connection");
        }
        // This end's own reason says more than the peer's, which only points here.
        if place.is_none() && peer.beside.streams.last().is_some_and(|last| last.is_err()) {
            return None;
        }
        peer.beside.streams.note(made)
    }

    fn open_stream(
        &self,
        peer: &PeerShared,
        handshake: &Handshake,
        place: Option<SharedPlace>,
    ) -> Result<Arc<SharedStream>, Cow<'static, str>> {
        peer.may_share(&self.engine.settings)?;
        let place = place.ok_or("the peer offered no memory, and its dump says why")?;
        let own = handshake.socket.local_addr().map_err(|error| error.to_string())?;
        let own = own.as_socket().ok_or("its connection has no address")?;
        are_in_one_place(own.ip(), handshake.remote.ip())?;
        let process = peer.beside.process.prove(&self.engine.copying.proofs)?;
        Ok(accept(process, place, &peer.beside.streams)?)
    }

    pub(super) fn hand_over_arrival(&mut self, handshake: Handshake) {
        let remote = handshake.remote;
        let Some((socket, cause, keys)) = handshake.into_flow() else { return };
        let Cause::Accepted { rail, then: Some(then) } = cause else { return };
        let _ = self.engine.control.poller.remove(socket.as_fd());
        let options = self.engine.settings.flow_options(then.peer.says_same_host);
        if let Err(error) = tcp::apply(&socket, &options) {
            tracing::warn!(target: "polyrail::rail", %error, "socket options");
        }
        let Then { peer, flow, from_rail, epoch, window_chunks, duplex, stream, place } = then;
        peer.account.arrivals[rail].connections.add(1);
        let wire = Wire::new(Arc::new(socket), stream);
        let keys = peer.keys_over(&wire, keys);
        // The peer has paired the rails.
        if duplex && self.engine.host.is_none() && from_rail < peer.card.rails.len() {
            let index = peer.layout.pair_index(flow);
            peer.life.standing.change_pair(&peer.layout.pairs, index, (rail, from_rail));
        }
        peer.life.standing.note_origin(&peer.layout.pairs, &peer.card.rails, remote.ip());
        let proxy = if duplex {
            self.bind_arrival(wire.socket(), rail, remote);
            peer.links.flows[flow.0 as usize].proxy
        } else {
            // The peer numbers its flows as this engine does if its settings are the same. Otherwise the flows are
            // spread less evenly.
            let (rails, width) = (self.engine.rails.len() as u32, self.engine.config.sockets);
            self.engine.proxies.rx.proxy(rail, flow.0, rails, width)
        };
        let arriving = Some(Arriving { epoch, rail, window_chunks, place: Some(place) });
        let connected = Connected { peer, flow, wire, keys, sends: duplex, arriving };
        self.hand_over(proxy, ProxyCommand::Add(Box::new(connected)));
    }

    /// Handles a failed connection from a client.
    pub(super) fn arrival_failed(
        &mut self,
        rail: usize,
        then: Option<Then>,
        remote: SocketAddr,
        why: &ConnectReason,
    ) {
        if let Some(then) = then {
            // The peer is known by its hello alone, and forgotten unless it comes again.
            self.note_cut_off(&then.peer);
            self.engine.control.start_ticking();
        }
        self.turn_away(rail, remote, why);
    }

    /// Counts a connection that was closed before its first byte, as the slower one of two ways to a rail is
    /// (`second_way.rs`). Port scanners do the same, so it counts as refused.
    pub(super) fn closed_unheard(&self, rail: usize, remote: SocketAddr) {
        self.engine.control.refused.fetch_add(1, Ordering::Relaxed);
        let rail = &*self.engine.rails[rail].name;
        tracing::debug!(target: "polyrail::peer", rail, %remote, "closed before its first byte");
    }

    pub(super) fn turn_away(&mut self, rail: usize, remote: SocketAddr, why: &ConnectReason) {
        self.engine.control.refused.fetch_add(1, Ordering::Relaxed);
        // Unauthenticated clients come in thousands, as port scanners do.
        if let Some(others) = self.accepting.turned_away.left_out(Time(monotonic_ns())) {
            let (rail, why) = (&*self.engine.rails[rail].name, why.of_arrival());
            tracing::warn!(target: "polyrail::peer", rail, %remote, why, others, "turned away");
        }
    }
}
