//! Flows that this engine connects, and reconnects when they fail.

use std::borrow::Cow;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use polyrail_proto::FlowIndex;
use polyrail_proto::hello::{ANOTHER, Capabilities, FlowHello, Hello, RefusedCode, Reply};
use polyrail_proto::life::Epoch;
use polyrail_proto::liveness::{FlowLife, Reconnect};
use polyrail_proto::reason::{ConnectReason, Refusal};
use polyrail_secure::Proof;

use super::Control;
use crate::control::handshake::{Cause, Handshake};
use crate::control::second_way::dial;
use crate::device::shared_memory::offer::{StreamOffer, are_in_one_place};
use crate::device::wire::Wire;
use crate::engine::peer::{PeerShared, RailPair};
use crate::engine::proxy_handle::{Arriving, Connected, ProxyCommand};

const OTHER_CARD: &str = "it calls itself otherwise than the metadata that was added";

/// A flow that is reconnected later.
pub(super) struct Retry {
    pub(super) due: Instant,
    peer: Arc<PeerShared>,
    flow: FlowIndex,
}

impl Retry {
    /// Whether its flow uses the pair of rails at this position.
    pub(super) fn is_of(&self, peer: &Arc<PeerShared>, pair: usize) -> bool {
        Arc::ptr_eq(&self.peer, peer) && peer.layout.pair_index(self.flow) == pair
    }
}

impl Control {
    pub(super) fn start_flow(&mut self, peer: Arc<PeerShared>, flow: FlowIndex) {
        // Flows that answer are connected by the other side.
        let unwanted = !peer.life.standing.connects_flows() || peer.life.standing.is_parting();
        if peer.is_gone() || unwanted || self.engine.is_closing() {
            return;
        }
        let engine = self.engine.clone();
        let (from, to) = peer.layout.pair_of(flow);
        let (rail, target) = (&engine.rails[from], peer.card.rails[to].address);
        let slot = &peer.links.flows[flow.0 as usize];
        let patience = slot.reconnect.lock().attempt_timeout(&engine.settings.reconnect);
        match dial(&peer, (from, to), rail, &engine.settings, patience) {
            Ok(dialed) => {
                let epoch = slot.epoch.fetch_add(1, Ordering::Relaxed) + 1;
                let own = &engine.credentials;
                let offer = self.offer_stream(&peer, (rail.address, target.ip()));
                let was_acknowledged = peer.tx().sender.was_acknowledged();
                let has_taken = !peer.rx().receiver.is_unused();
                let heard = peer.life.standing.heard_session();
                let hello = Hello::Flow(FlowHello {
                    card: engine.card.clone(),
                    capability: own.capability.clone(),
                    target: peer.instance(),
                    // Both are positions on a card, of at most 64 rails.
                    from_rail: from as u16,
                    to_rail: to as u16,
                    channel: peer.layout.channel_of(flow),
                    flow: flow.0,
                    flows: peer.layout.flows(),
                    epoch: Epoch(epoch).in_hello(heard, was_acknowledged, has_taken).0,
                    window_chunks: engine.config.window_chunks,
                    capabilities: engine.settings.capabilities(false).of_flow(),
                    stream: offer.as_ref().ok().map(StreamOffer::place),
                });
                let proof = (Proof::Capability, &peer.capability.secret());
                let greeting = match own.first_words(proof, Some(peer.instance()), hello) {
                    Ok(greeting) => greeting,
                    Err(why) => return self.flow_failed(&peer, (flow, (from, to)), &why),
                };
                let deadline = Instant::now() + patience;
                let cause = Cause::Flow { peer, flow, epoch, pair: (from, to), offer };
                // A new attempt would have to wait for the same thread behind this one.
                let times = (deadline, engine.settings.peer_timeout);
                self.begin(Handshake::connecting(dialed, cause, target, times, greeting));
            }
            Err(error) => self.not_connected(&peer, (flow, (from, to)), &error.into()),
        }
    }

    /// Returns memory for a connection between these addresses, or the reason why there is none.
    fn offer_stream(
        &self,
        peer: &PeerShared,
        (from, to): (IpAddr, IpAddr),
    ) -> Result<StreamOffer, Cow<'static, str>> {
        peer.may_share(&self.engine.settings)?;
        are_in_one_place(from, to)?;
        let proofs = &self.engine.copying.proofs;
        let (process, badge) = (peer.beside.process.prove(proofs)?, proofs.badge()?);
        StreamOffer::new(process, &badge, &peer.beside.streams)
    }

    /// Reconnects a lost flow.
    pub(super) fn reconnect(&mut self, peer: Arc<PeerShared>, flow: FlowIndex, life: &FlowLife) {
        let slot = &peer.links.flows[flow.0 as usize];
        let pause = slot.reconnect.lock().handle_lost(&self.engine.settings.reconnect, life);
        if pause.is_zero() {
            self.start_flow(peer, flow);
        } else {
            self.retries.push_back(Retry { due: Instant::now() + pause, peer, flow });
        }
    }

    /// Retries a flow that failed to connect on the rails `pair`.
    pub(super) fn flow_failed(
        &mut self,
        peer: &Arc<PeerShared>,
        at: (FlowIndex, RailPair),
        why: &ConnectReason,
    ) {
        let slot = &peer.links.flows[at.0.0 as usize];
        let pause = slot.reconnect.lock().handle_failed(&self.engine.settings.reconnect);
        self.retry_after(peer, at, why, pause);
    }

    /// Notes why a flow failed to connect, and retries after at most a pause.
    pub(super) fn retry_after(
        &mut self,
        peer: &Arc<PeerShared>,
        (flow, pair): (FlowIndex, RailPair),
        why: &ConnectReason,
        pause: Duration,
    ) {
        let index = peer.layout.pair_index(flow);
        let text = self.pair_text(peer, pair, &why.to_string());
        tracing::debug!(target: "polyrail::flow", peer = peer.name(), %flow, why = %text, "no flow");
        // Other rails may have taken the position meanwhile, and this failure says nothing of them.
        let is_current = peer.layout.pairs.at(index) == pair;
        let pause = if is_current { self.note_failure(peer, index, why, pause) } else { pause };
        if is_current {
            let of_pair = self.addresses_text(peer, pair, &why.to_string());
            peer.layout.pairs.note_problem(index, of_pair);
        }
        peer.note_problem(text);
        self.retries.push_back(Retry { due: Instant::now() + pause, peer: peer.clone(), flow });
        self.judge(peer);
    }

    pub(super) fn retry_due(&mut self, now: Instant) {
        for _ in 0..self.retries.len() {
            match self.retries.pop_front() {
                Some(retry) if retry.due <= now => {
                    self.start_flow(retry.peer, retry.flow);
                }
                Some(retry) if !retry.peer.is_gone() => self.retries.push_back(retry),
                _ => {}
            }
        }
    }

    pub(super) fn answered(&mut self, handshake: Handshake, reply: Reply) {
        let _ = self.engine.control.poller.remove(handshake.socket.as_fd());
        let reply = match (&handshake.cause, reply) {
            // The source of its metadata may have put another engine's name to it.
            (Cause::Flow { peer, .. }, Reply::Accepted(metadata))
                if !peer.card.may_say(&metadata.card, true) =>
            {
                Reply::Refused { code: RefusedCode::OtherCard, reason: OTHER_CARD.to_owned() }
            }
            (_, reply) => reply,
        };
        let Reply::Accepted(metadata) = reply else {
            return self.refused(handshake, reply);
        };
        self.engine.note_names(metadata.card.instance, handshake.exchange.names().into());
        let way = handshake.race.way;
        let Some((socket, cause, keys)) = handshake.into_flow() else { return };
        match cause {
            // The engine there has given its metadata.
            Cause::Introduction { of, .. } => self.end_introduction(of, Ok(metadata)),
            Cause::Flow { peer, flow, epoch, pair, offer, .. } => {
                self.note_reached(&peer);
                self.note_way(&peer, pair, way);
                let index = peer.layout.pair_index(flow);
                if pair != peer.layout.pairs.at(index) {
                    // Other rails were tried meanwhile. All flows of a position use the same rails.
                    if peer.is_pair_up(index) {
                        *peer.links.flows[flow.0 as usize].reconnect.lock() = Reconnect::default();
                        return self.start_flow(peer, flow);
                    }
                    peer.life.standing.change_pair(&peer.layout.pairs, index, pair);
                }
                if peer.links.flows[flow.0 as usize].epoch.load(Ordering::Relaxed) == epoch {
                    let proxy = peer.links.flows[flow.0 as usize].proxy;
                    let stream = peer.beside.streams.conclude(offer);
                    let wire = Wire::new(Arc::new(socket), stream);
                    let keys = peer.keys_over(&wire, keys);
                    let duplex = metadata.card.capabilities.contains(Capabilities::DUPLEX);
                    let window_chunks = self.engine.config.window_chunks;
                    // This engine made the connection, which uses none of the peer's places.
                    let arriving = duplex.then(|| Arriving {
                        epoch,
                        rail: pair.0,
                        window_chunks,
                        place: None,
                    });
                    let connected = Connected { peer, flow, wire, keys, sends: true, arriving };
                    self.hand_over(proxy, ProxyCommand::Add(Box::new(connected)));
                }
            }
            Cause::Accepted { .. } => {}
        }
    }

    fn refused(&mut self, handshake: Handshake, reply: Reply) {
        let Reply::Refused { code, reason } = reply else { return };
        // Proven: refused by the intended peer, and not by any other program that can write to the connection.
        let proven = handshake.exchange.is_proven();
        let Handshake { cause, remote, .. } = handshake;
        match cause {
            Cause::Introduction { of, by } => {
                self.introduction_refused(of, by, remote, (code, reason));
            }
            Cause::Flow { peer, flow, pair, .. } => {
                // That engine only knows that the client was unauthenticated. Here the intended peer is known.
                let text = if code == RefusedCode::Unproven { ANOTHER.to_owned() } else { reason };
                let refusal = Refusal::new(code, text, Some(Proof::Capability));
                self.flow_refused(&peer, (flow, pair), ConnectReason::Refused(refusal), proven);
            }
            Cause::Accepted { .. } => {}
        }
    }
}
