//! What this engine connects: flows to its peers, which it tries again when they fail, and
//! introductions to engines that the user names.

use std::borrow::Cow;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use polyrail_config::BindDevice;
use polyrail_proto::hello::{Capabilities, FlowHello, Hello, Metadata, RefusedCode, Reply};
use polyrail_proto::{FlowIndex, InstanceId, Time};
use polyrail_secure::{Proof, Secret};
use polyrail_sys::tcp;
use polyrail_sys::threads::monotonic_ns;

use super::Control;
use crate::base::invitation::Invitation;
use crate::base::reason::{ConnectReason, Refusal};
use crate::control::build::{device, is_forbidden};
use crate::control::handshake::{ANOTHER, Cause, FirstWords, Handshake};
use crate::device::stream_offer::{StreamOffer, are_in_one_place};
use crate::device::wire::Wire;
use crate::engine::peer::PeerShared;
use crate::engine::proxy_handle::{Arriving, ProxyCommand};
use crate::engine::sessions::epoch_of_hello;
use crate::engine::tasks::Answer;

/// Why nobody is welcome where an invitation should have led.
const UNINVITED: &str = "another engine gave the invitation: this one was started again since, or \
                         the address leads elsewhere";

/// A flow that is connected again later.
pub(super) struct Retry {
    pub(super) due: Instant,
    peer: Arc<PeerShared>,
    flow: FlowIndex,
    pause: Duration,
}

impl Retry {
    /// Whether its flow takes the pair of rails at this position.
    pub(super) fn is_of(&self, peer: &Arc<PeerShared>, pair: usize) -> bool {
        Arc::ptr_eq(&self.peer, peer) && peer.layout.pair_index(self.flow) == pair
    }
}

impl Control {
    pub(super) fn introduce(
        &mut self,
        address: SocketAddr,
        invitation: Option<Invitation>,
        answer: Answer<Result<Metadata, ConnectReason>>,
    ) {
        self.engine.credentials.renew();
        let (to, proof) = match invitation {
            Some(Invitation { instance, capability }) => {
                (Some(instance), Some((Proof::Capability, capability.secret())))
            }
            None => (None, self.engine.credentials.keyring.read().to_stranger()),
        };
        match proof {
            Some(proof) => self.introduce_by(address, to, proof, answer),
            None => answer.give(Err(ConnectReason::NoProof)),
        }
    }

    /// The same with this proof, to the engine with this number, if it is known.
    fn introduce_by(
        &mut self,
        address: SocketAddr,
        to: Option<InstanceId>,
        (by, secret): (Proof, Secret),
        answer: Answer<Result<Metadata, ConnectReason>>,
    ) {
        let engine = self.engine.clone();
        let same_family = |rail: &&crate::engine::rail_selection::ChosenRail| {
            rail.address.is_ipv4() == address.is_ipv4()
        };
        // The kernel's routes know best which way leads to a bare address.
        let source = match address {
            SocketAddr::V4(_) => std::net::Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
        };
        if !engine.rails.iter().any(|rail| same_family(&rail)) {
            return answer.give(Err(ConnectReason::NoRail));
        }
        let own = &engine.credentials;
        let hello = Hello::Introduction(own.metadata(&engine.card));
        let greeting = match FirstWords::new(own, (by, &secret), to, hello) {
            Ok(greeting) => greeting,
            Err(why) => return answer.give(Err(why)),
        };
        let options = engine.settings.flow_options(false);
        match tcp::start_connect(source, None, address, &options) {
            Ok(socket) => {
                let deadline = Instant::now() + engine.settings.connect_timeout;
                let cause = Cause::Introduction { answer, by };
                let times = (deadline, Duration::ZERO);
                self.begin(Handshake::connecting(socket, cause, address, times, greeting));
            }
            Err(error) => answer.give(Err(error.into())),
        }
    }

    pub(super) fn start_flow(&mut self, peer: Arc<PeerShared>, flow: FlowIndex, pause: Duration) {
        // Of flows that answer, the other side connects.
        let unwanted = !peer.connects_flows() || peer.is_parting();
        if peer.is_gone() || unwanted || self.engine.is_closing() {
            return;
        }
        let engine = self.engine.clone();
        let (from, to) = peer.layout.pair_of(flow);
        let (rail, target) = (&engine.rails[from], peer.card.rails[to].address);
        let options = engine.settings.flow_options(peer.says_same_host);
        let bound = device(rail, engine.settings.bind_device);
        let result = tcp::start_connect(rail.address, bound, target, &options);
        let result = match result {
            Err(error)
                if is_forbidden(&error) && engine.settings.bind_device == BindDevice::Auto =>
            {
                tcp::start_connect(rail.address, None, target, &options)
            }
            result => result,
        };
        match result {
            Ok(socket) => {
                let epoch = peer.flows[flow.0 as usize].epoch.fetch_add(1, Ordering::Relaxed) + 1;
                let own = &engine.credentials;
                let offer = self.offer_stream(&peer, (rail.address, target.ip()));
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
                    epoch: epoch_of_hello(epoch, &peer),
                    window_chunks: engine.config.window_chunks,
                    // A peer of a version without it need not have it.
                    capabilities: engine
                        .settings
                        .capabilities(false)
                        .without(Capabilities::SHARED_MEMORY)
                        .without(Capabilities::SEALED_PAYLOAD)
                        .without(Capabilities::COPIED_MESSAGES)
                        .without(Capabilities::SHARED_RECEIVES)
                        .without(Capabilities::BYE_TO_SENDER)
                        .without(Capabilities::SHARED_STREAM),
                    stream: offer.as_ref().ok().map(StreamOffer::place),
                });
                let proof = (Proof::Capability, &peer.capability.secret());
                let greeting = match FirstWords::new(own, proof, Some(peer.instance()), hello) {
                    Ok(greeting) => greeting,
                    Err(why) => return self.flow_failed(&peer, flow, &why, pause),
                };
                let deadline = Instant::now() + engine.settings.connect_timeout.min(pause * 10);
                let cause = Cause::Flow { peer, flow, epoch, pair: (from, to), pause, offer };
                // A new try would have to wait for the same thread behind this one.
                let times = (deadline, engine.settings.peer_timeout);
                self.begin(Handshake::connecting(socket, cause, target, times, greeting));
            }
            Err(error) => self.not_connected(&peer, (flow, (from, to)), &error.into(), pause),
        }
    }

    /// Memory through which a connection between these addresses may go, or why there is none.
    fn offer_stream(
        &self,
        peer: &PeerShared,
        (from, to): (IpAddr, IpAddr),
    ) -> Result<StreamOffer, Cow<'static, str>> {
        self.engine.settings.may_share(peer)?;
        are_in_one_place(from, to)?;
        let proofs = &self.engine.proofs;
        let (process, badge) = (peer.process.prove(proofs)?, proofs.badge()?);
        StreamOffer::new(process, &badge, &peer.streams)
    }

    /// A connection that lasted is tried again at once: its reset often means nothing more. One that
    /// did not might be accepted and closed by the other side for ever.
    pub(super) fn reconnect(&mut self, peer: Arc<PeerShared>, flow: FlowIndex) {
        let pause = self.engine.settings.reconnect_min;
        let since = Time(peer.flows[flow.0 as usize].up_since.load(Ordering::Relaxed));
        if Time(monotonic_ns()).since(since) >= self.engine.settings.reconnect_max {
            self.start_flow(peer, flow, pause);
        } else {
            self.retries.push_back(Retry { due: Instant::now() + pause, peer, flow, pause });
        }
    }

    pub(super) fn flow_failed(
        &mut self,
        peer: &Arc<PeerShared>,
        flow: FlowIndex,
        why: &ConnectReason,
        pause: Duration,
    ) {
        let pause = self.note_failure(peer, peer.layout.pair_index(flow), why, pause);
        let text = self.way_text(peer, flow, &why.to_string());
        tracing::debug!(target: "polyrail::flow", peer = peer.name(), %flow, why = %text, "no flow");
        let of_pair = self.addresses_text(peer, flow, &why.to_string());
        peer.layout.pairs.note_problem(peer.layout.pair_index(flow), of_pair);
        peer.note_problem(text);
        self.retries.push_back(Retry {
            due: Instant::now() + pause,
            peer: peer.clone(),
            flow,
            pause: (pause * 2).min(self.engine.settings.reconnect_max),
        });
        self.judge(peer);
    }

    pub(super) fn retry_due(&mut self, now: Instant) {
        for _ in 0..self.retries.len() {
            match self.retries.pop_front() {
                Some(retry) if retry.due <= now => {
                    self.start_flow(retry.peer, retry.flow, retry.pause);
                }
                Some(retry) if !retry.peer.is_gone() => self.retries.push_back(retry),
                _ => {}
            }
        }
    }

    pub(super) fn answered(&mut self, handshake: Handshake, reply: Reply) {
        let _ = self.engine.control.poller.remove(handshake.socket.as_fd());
        let Reply::Accepted(metadata) = reply else {
            return self.refused(handshake, reply);
        };
        self.engine.note_names(metadata.card.instance, handshake.names().clone());
        let Some((socket, cause, keys)) = handshake.into_flow() else { return };
        match cause {
            Cause::Introduction { answer, .. } => answer.give(Ok(metadata)),
            Cause::Flow { peer, flow, epoch, offer, .. } => {
                self.note_reached(&peer);
                if peer.flows[flow.0 as usize].epoch.load(Ordering::Relaxed) == epoch {
                    let proxy = peer.flows[flow.0 as usize].proxy;
                    let stream = peer.streams.conclude(offer);
                    let wire = Wire::new(Arc::new(socket), stream);
                    let keys = peer.keys_over(&wire, keys);
                    let duplex = metadata.card.capabilities.contains(Capabilities::DUPLEX);
                    let command = if duplex {
                        let rail = peer.layout.pair_of(flow).0;
                        let window_chunks = self.engine.config.window_chunks;
                        // This engine made the connection.
                        let place = None;
                        let arriving =
                            Arriving { peer, flow, epoch, rail, window_chunks, wire, keys, place };
                        ProxyCommand::AddBoth { arriving }
                    } else {
                        ProxyCommand::AddTx { peer, flow, wire, keys }
                    };
                    self.hand_over(proxy, command);
                }
            }
            Cause::Accepted { .. } => {}
        }
    }

    fn refused(&mut self, handshake: Handshake, reply: Reply) {
        let Reply::Refused { code, reason } = reply else { return };
        // By the peer that was meant, and not by whoever can write to the connection.
        let proven = handshake.is_proven();
        let Handshake { cause, remote, .. } = handshake;
        match cause {
            Cause::Introduction { answer, by } => {
                // An engine of an older version does not know what was tried.
                let takes_none = [RefusedCode::NoCertificates, RefusedCode::Unproven];
                if by == Proof::Certificate
                    && takes_none.contains(&code)
                    && let Some(secret) = self.first_secret()
                {
                    tracing::info!(target: "polyrail::peer", %remote,
                        "no certificates are taken there: tries secret_file");
                    return self.introduce_by(remote, None, (Proof::Secret, secret), answer);
                }
                let is_other = by == Proof::Capability && code == RefusedCode::Unproven;
                let text = if is_other { UNINVITED.to_owned() } else { self.of_own(code, reason) };
                answer.give(Err(ConnectReason::Refused(Refusal { code, text, proof: Some(by) })));
            }
            Cause::Flow { peer, flow, .. } => {
                // It only knows that a stranger came. Here it is known who was meant.
                let text = if code == RefusedCode::Unproven { ANOTHER.to_owned() } else { reason };
                let refusal = Refusal { code, text, proof: Some(Proof::Capability) };
                self.flow_refused(&peer, flow, ConnectReason::Refused(refusal), proven);
            }
            Cause::Accepted { .. } => {}
        }
    }

    /// The words of the engine that refuses; where they are about this engine's certificate, with which
    /// one that is.
    fn of_own(&self, code: RefusedCode, reason: String) -> String {
        let own = &self.engine.credentials;
        let (Some(certified), Some(files)) = (own.certified(), &own.certificates) else {
            return reason;
        };
        match code {
            RefusedCode::CertificateUntrusted
            | RefusedCode::CertificateExpired
            | RefusedCode::CertificateNotYetValid
            | RefusedCode::CertificateUsage
            | RefusedCode::NameNotAllowed
            | RefusedCode::CertificateMalformed
            | RefusedCode::CertificateStatement => {
                let (names, file) = (certified.names().join(", "), files.file().display());
                format!("{reason}; it is that of {names}, from certificate_file {file}")
            }
            _ => reason,
        }
    }

    /// What is proven where certificates are not taken.
    fn first_secret(&self) -> Option<Secret> {
        self.engine.credentials.keyring.read().shared.first().cloned()
    }
}
