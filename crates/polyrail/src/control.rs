//! The control thread: listens, connects, says hello, watches deadlines. No payload passes here,
//! and it sleeps while nothing changes.

mod admission;
pub(crate) mod build;
pub(crate) mod handshake;
mod lateness;
mod presence;
mod secrets;
mod watch;

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use polyrail_config::BindDevice;
use polyrail_proto::hello::{
    Capabilities, Card, FlowHello, Hello, HelloError, Metadata, RefusedCode, Reply,
};
use polyrail_proto::wire::WIRE_VERSION;
use polyrail_proto::{FlowIndex, Time};
use polyrail_secure::Proof;
use polyrail_sys::threads::monotonic_ns;
use polyrail_sys::{PollEvent, tcp};
use slab::Slab;
use socket2::Socket;

use crate::base::invitation::Invitation;
use crate::base::reason::{ConnectReason, LostReason, Refusal};
use crate::base::seldom::Seldom;
use crate::control::admission::Admissions;
use crate::control::build::{device, is_forbidden};
use crate::control::handshake::{Cause, Greeting, Handshake, Step, Then, TurnedAway};
use crate::control::lateness::Absences;
use crate::control::presence::Probe;
use crate::diag::dump::DumpSignal;
use crate::engine::control_handle::ControlCommand;
use crate::engine::known_peers::epoch_of_hello;
use crate::engine::life::Event;
use crate::engine::peer::PeerShared;
use crate::engine::proxy_handle::{Arriving, ProxyCommand};
use crate::engine::state::EngineShared;
use crate::engine::tasks::Answer;

/// How often peers are looked after while anything is outstanding.
const TICK: Duration = Duration::from_millis(50);
/// How long accepting pauses when the process has no descriptor left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);
/// Tokens from here on are listeners; those below are handshakes.
const LISTENER: u64 = 1 << 32;
/// Tokens from here on are probes.
const PROBE: u64 = 1 << 33;

/// Why a flow is not welcome where its peer should be.
const ANOTHER: &str =
    "another engine listens there: it was started again, or the address leads elsewhere";

/// The same, where an invitation should have led to it.
const UNINVITED: &str = "another engine gave the invitation: this one was started again since, or \
                         the address leads elsewhere";

pub(crate) struct Control {
    engine: Arc<EngineShared>,
    listeners: Vec<Socket>,
    handshakes: Slab<Handshake>,
    retries: VecDeque<Retry>,
    /// Peers without any flow, and since when.
    cut_off: Vec<(Arc<PeerShared>, Instant)>,
    probes: Slab<Probe>,
    absences: Absences,
    accept_again: Option<Instant>,
    turned_away: TurnedAway,
    not_added: Seldom,
    admissions: Admissions,
    dump: DumpSignal,
}

struct Retry {
    due: Instant,
    peer: Arc<PeerShared>,
    flow: FlowIndex,
    pause: Duration,
}

impl Control {
    pub(crate) fn new(engine: Arc<EngineShared>, listeners: Vec<Socket>) -> io::Result<Self> {
        for (index, listener) in listeners.iter().enumerate() {
            engine.control.poller.add(listener.as_fd(), LISTENER + index as u64)?;
        }
        let dump = DumpSignal::new(engine.config.dump_signal)?;
        Ok(Self {
            admissions: Admissions::new(&engine),
            engine,
            listeners,
            handshakes: Slab::new(),
            retries: VecDeque::new(),
            cut_off: Vec::new(),
            probes: Slab::new(),
            absences: Absences::new(Instant::now()),
            accept_again: None,
            turned_away: TurnedAway::default(),
            not_added: Seldom::default(),
            dump,
        })
    }

    pub(crate) fn run(&mut self) {
        let mut events: Vec<PollEvent> = Vec::new();
        let mut next_tick = Instant::now();
        loop {
            let limit = self.limit(next_tick);
            self.absences.sleeps(Instant::now(), limit);
            if let Err(error) = self.engine.control.poller.wait(&mut events, limit) {
                tracing::error!(target: "polyrail::engine", %error, "epoll failed");
                return;
            }
            // In this order: what one sees of the other is never too long.
            let time = Time(monotonic_ns());
            let now = Instant::now();
            self.excuse(now);
            if self.engine.is_closing() {
                return self.engine.control.forget_commands();
            }
            while let Some(command) = self.engine.control.commands.pop() {
                self.obey(command);
            }
            for event in events.drain(..) {
                match event.token {
                    token if token >= PROBE => self.probed((token - PROBE) as usize, now),
                    token if token >= LISTENER => self.accept((token - LISTENER) as usize),
                    token => self.step(token as usize),
                }
            }
            if self.accept_again.is_some_and(|at| at <= now) {
                self.accept_again = None;
                (0..self.listeners.len()).for_each(|rail| self.accept(rail));
            }
            self.engine.send_what_is_left();
            self.retry_due(now);
            self.probe_due(now);
            self.expire_handshakes(now);
            self.dump.run(&self.engine);
            if next_tick <= now {
                next_tick = now + TICK;
                self.tick(now, time);
            }
        }
    }

    /// Until when to sleep; `None` while nothing can change by itself.
    fn limit(&self, next_tick: Instant) -> Option<Duration> {
        let retries = self.retries.iter().map(|retry| retry.due);
        let handshakes = self.handshakes.iter().map(|(_, handshake)| handshake.deadline);
        let ticking = self.engine.control.ticking.load(Ordering::Acquire);
        let tick = ticking.then_some(next_tick);
        let probes = self.probes.iter().map(|(_, probe)| probe.due);
        let due = retries.chain(handshakes).chain(probes).chain(tick).chain(self.accept_again);
        let due = due.min();
        let limit = due.map(|due| due.saturating_duration_since(Instant::now()));
        // A signal handler can only set a flag; somebody has to look at it.
        if self.dump.is_on() { Some(limit.unwrap_or(TICK * 4).min(TICK * 4)) } else { limit }
    }

    fn obey(&mut self, command: ControlCommand) {
        match command {
            ControlCommand::Connect { peer } => {
                self.note_cut_off(&peer);
                for flow in 0..peer.layout.flows() {
                    self.start_flow(
                        peer.clone(),
                        FlowIndex(flow),
                        self.engine.settings.reconnect_min,
                    );
                }
                self.engine.control.nudge();
            }
            ControlCommand::FlowLost { peer, flow, why } => {
                let text = format!("rail {}: {why}", self.rail_name(&peer, flow));
                let name = peer.name();
                tracing::info!(target: "polyrail::rail", peer = name, %flow, why = %text, "flow down");
                peer.note_problem(text);
                if !peer.is_gone() {
                    self.note_cut_off(&peer);
                    self.reconnect(peer.clone(), flow);
                    self.flows_lost(&peer);
                }
                self.engine.control.nudge();
            }
            ControlCommand::ArrivalLost { peer, flow, why } => {
                let name = peer.name();
                tracing::debug!(target: "polyrail::rail", peer = name, %flow, why, "arrival down");
                if !peer.is_gone() {
                    self.note_cut_off(&peer);
                    self.flows_lost(&peer);
                    self.engine.control.nudge();
                }
            }
            ControlCommand::PeerLeft { peer } => {
                self.engine.lose_peer(&peer, Event::Bye, LostReason::Closed);
            }
            ControlCommand::Decided { question, verdict } => self.decide(question, &verdict),
            ControlCommand::Introduce { address, invitation, answer } => {
                self.introduce(address, invitation, answer);
            }
        }
    }

    fn introduce(
        &mut self,
        address: SocketAddr,
        invitation: Option<Invitation>,
        answer: Answer<Result<Metadata, ConnectReason>>,
    ) {
        let engine = self.engine.clone();
        let same_family = |rail: &&crate::engine::rail_selection::Rail| {
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
        let invited = invitation.is_some();
        let greeting = match invitation {
            Some(Invitation { instance, capability }) => {
                let proof = (Proof::Capability, &capability.secret());
                Greeting::new(own, proof, Some(instance), hello)
            }
            None => own
                .keyring
                .to_stranger()
                .ok_or(ConnectReason::NoProof)
                .and_then(|(proof, secret)| Greeting::new(own, (proof, &secret), None, hello)),
        };
        let greeting = match greeting {
            Ok(greeting) => greeting,
            Err(why) => return answer.give(Err(why)),
        };
        let options = engine.settings.flow_options(false);
        match tcp::start_connect(source, None, address, &options) {
            Ok(socket) => {
                let deadline = Instant::now() + engine.settings.connect_timeout;
                let cause = Cause::Introduction { answer, invited };
                let times = (deadline, Duration::ZERO);
                self.begin(Handshake::connecting(socket, cause, address, times, greeting));
            }
            Err(error) => answer.give(Err(error.into())),
        }
    }

    fn start_flow(&mut self, peer: Arc<PeerShared>, flow: FlowIndex, pause: Duration) {
        // Of flows that answer, the other side connects.
        let unwanted = !peer.connects_flows() || peer.is_parting();
        if peer.is_gone() || unwanted || self.engine.is_closing() {
            return;
        }
        let engine = self.engine.clone();
        let (from, to) = peer.layout.pair_of(flow);
        let (rail, target) = (&engine.rails[from], peer.card.rails[to].address);
        let options = engine.settings.flow_options(peer.same_host);
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
                        .capabilities()
                        .without(Capabilities::SHARED_MEMORY)
                        .without(Capabilities::SEALED_PAYLOAD),
                });
                let proof = (Proof::Capability, &peer.capability.secret());
                let greeting = match Greeting::new(own, proof, Some(peer.instance()), hello) {
                    Ok(greeting) => greeting,
                    Err(why) => return self.flow_failed(&peer, flow, &why, pause),
                };
                let deadline = Instant::now() + engine.settings.connect_timeout.min(pause * 10);
                let cause = Cause::Flow { peer, flow, epoch, pause };
                // A new try would have to wait for the same thread behind this one.
                let times = (deadline, engine.settings.peer_timeout);
                self.begin(Handshake::connecting(socket, cause, target, times, greeting));
            }
            Err(error) => self.flow_failed(&peer, flow, &error.into(), pause),
        }
    }

    /// A connection that lasted is tried again at once: its reset often means nothing more. One that
    /// did not might be accepted and closed by the other side for ever.
    fn reconnect(&mut self, peer: Arc<PeerShared>, flow: FlowIndex) {
        let pause = self.engine.settings.reconnect_min;
        let since = Time(peer.flows[flow.0 as usize].up_since.load(Ordering::Relaxed));
        if Time(monotonic_ns()).since(since) >= self.engine.settings.reconnect_max {
            self.start_flow(peer, flow, pause);
        } else {
            self.retries.push_back(Retry { due: Instant::now() + pause, peer, flow, pause });
        }
    }

    fn flow_failed(
        &mut self,
        peer: &Arc<PeerShared>,
        flow: FlowIndex,
        why: &ConnectReason,
        pause: Duration,
    ) {
        let pause = self.note_failure(peer, peer.layout.pair_index(flow), why, pause);
        let text = self.way_text(peer, flow, &why.to_string());
        tracing::debug!(target: "polyrail::rail", peer = peer.name(), %flow, why = %text, "no flow");
        peer.note_problem(text);
        self.retries.push_back(Retry {
            due: Instant::now() + pause,
            peer: peer.clone(),
            flow,
            pause: (pause * 2).min(self.engine.settings.reconnect_max),
        });
        self.judge(peer);
    }

    fn retry_due(&mut self, now: Instant) {
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

    fn accept(&mut self, rail: usize) {
        loop {
            let (socket, remote) = match self.listeners[rail].accept() {
                Ok(accepted) => accepted,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => continue,
                Err(error) => {
                    // Out of descriptors, most likely: those who wait in the queue are not lost.
                    let name = &self.engine.rails[rail].name;
                    tracing::error!(target: "polyrail::rail", rail = %name, %error, "can't accept");
                    self.accept_again = Some(Instant::now() + ACCEPT_PAUSE);
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

    /// While strangers fill every place, whoever has waited longest has to go: a peer says all of
    /// its hello at once, a stranger that is slow on purpose does not.
    fn make_room(&mut self) {
        let limit = self.engine.config.handshake_limit;
        let accepted = |(_, h): &(usize, &Handshake)| matches!(h.cause, Cause::Accepted { .. });
        let waiting = || self.handshakes.iter().filter(accepted);
        if waiting().count() < limit as usize {
            return;
        }
        if let Some((key, _)) = waiting().min_by_key(|(_, handshake)| handshake.deadline) {
            let handshake = self.handshakes.remove(key);
            self.failed(handshake, ConnectReason::Crowded { limit });
        }
    }

    fn begin(&mut self, handshake: Handshake) {
        let entry = self.handshakes.vacant_entry();
        let key = entry.key();
        let socket = handshake.socket.as_fd();
        match self.engine.control.poller.add(socket, key as u64) {
            Ok(()) => {
                entry.insert(handshake);
                self.step(key);
            }
            Err(error) => self.failed(handshake, error.into()),
        }
    }

    fn step(&mut self, key: usize) {
        let Some(handshake) = self.handshakes.get_mut(key) else { return };
        match handshake.step(&self.engine.credentials) {
            Step::Waiting => {}
            Step::Hello(hello) => self.receive(key, hello),
            Step::Failed(why) => {
                let handshake = self.handshakes.remove(key);
                self.failed(handshake, why);
            }
            Step::Rejected(error) => {
                let handshake = self.handshakes.remove(key);
                self.rejected(handshake, error);
            }
            Step::Unproven(error) => {
                let handshake = self.handshakes.remove(key);
                let reason = "no proof that counts here: another secret, or none";
                handshake.say_goodbye(RefusedCode::Unproven, reason);
                self.failed(handshake, ConnectReason::Impostor(error));
            }
            Step::Reply(reply) => {
                let handshake = self.handshakes.remove(key);
                self.answered(handshake, reply);
            }
            Step::ReplySent => {
                let handshake = self.handshakes.remove(key);
                self.hand_over_arrival(handshake);
            }
        }
    }

    fn reply(&mut self, key: usize, hello: Hello) {
        let (reply, then) = self.answer(key, hello);
        if let Some(handshake) = self.handshakes.get_mut(key) {
            handshake.reply(&reply, then);
        }
        self.step(key);
    }

    /// Whether a connection is welcome.
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
        if flow.target != self.engine.card.instance {
            return refused(RefusedCode::WrongInstance, ANOTHER.to_owned());
        }
        let duplex = flow.capabilities.contains(Capabilities::DUPLEX);
        let needed = flow.capabilities.without(Capabilities::DUPLEX);
        if !self.engine.card.capabilities.contains(needed) {
            return refused(RefusedCode::Capability, "a feature in use is unknown here".to_owned());
        }
        let limit = self.engine.config.flow_limit;
        if flow.flows > limit {
            let reason = format!("{} flows asked for, flow_limit is {limit}", flow.flows);
            return refused(RefusedCode::Limit, reason);
        }
        let limit = self.engine.connection_limit();
        let arrivals: u32 =
            self.engine.peers().iter().map(|p| p.quotas.flows.load(Ordering::Relaxed)).sum();
        if arrivals >= limit {
            return refused(RefusedCode::Limit, format!("flow limit of {limit} is reached"));
        }
        match self.engine.greet(&flow) {
            Ok((peer, place)) => {
                let duplex =
                    duplex && own.contains(Capabilities::DUPLEX) && peer.answers(flow.flows);
                let then = Then {
                    duplex,
                    peer,
                    flow: FlowIndex(flow.flow),
                    epoch: flow.epoch,
                    window_chunks: flow.window_chunks,
                    place,
                };
                let agreed = if duplex { own } else { own.without(Capabilities::DUPLEX) };
                (welcome(agreed), Some(then))
            }
            Err((code, why)) => {
                if let Some(others) = self.not_added.left_out() {
                    tracing::warn!(target: "polyrail::peer", key, why, others, "peer not added");
                }
                refused(code, why)
            }
        }
    }

    fn answered(&mut self, handshake: Handshake, reply: Reply) {
        let _ = self.engine.control.poller.remove(handshake.socket.as_fd());
        let Reply::Accepted(metadata) = reply else {
            let proven = handshake.is_proven();
            return self.refused(handshake.cause, reply, proven);
        };
        let Some((socket, cause, keys)) = handshake.into_flow() else { return };
        match cause {
            Cause::Introduction { answer, .. } => answer.give(Ok(metadata)),
            Cause::Flow { peer, flow, epoch, .. } => {
                self.note_reached(&peer);
                if peer.flows[flow.0 as usize].epoch.load(Ordering::Relaxed) == epoch {
                    let proxy = peer.flows[flow.0 as usize].proxy;
                    let socket = Arc::new(socket);
                    let duplex = metadata.card.capabilities.contains(Capabilities::DUPLEX);
                    let command = if duplex {
                        let rail = peer.layout.pair_of(flow).0;
                        let window_chunks = self.engine.config.window_chunks;
                        // This engine made the connection.
                        let place = None;
                        let arriving = Arriving {
                            peer,
                            flow,
                            epoch,
                            rail,
                            window_chunks,
                            socket,
                            keys,
                            place,
                        };
                        ProxyCommand::AddBoth { arriving }
                    } else {
                        ProxyCommand::AddTx { peer, flow, socket, keys }
                    };
                    self.hand_over(proxy, command);
                }
            }
            Cause::Accepted { .. } => {}
        }
    }

    /// `proven`: by the peer that was meant, and not by whoever can write to the connection.
    fn refused(&mut self, cause: Cause, reply: Reply, proven: bool) {
        let Reply::Refused { code, reason } = reply else { return };
        match cause {
            Cause::Introduction { answer, invited } => {
                let is_other = invited && code == RefusedCode::Unproven;
                let text = if is_other { UNINVITED.to_owned() } else { reason };
                answer.give(Err(ConnectReason::Refused(Refusal { code, text })));
            }
            Cause::Flow { peer, flow, .. } => {
                // It only knows that a stranger came. Here it is known who was meant.
                let text = if code == RefusedCode::Unproven { ANOTHER.to_owned() } else { reason };
                let refusal = Refusal { code, text };
                self.flow_refused(&peer, flow, ConnectReason::Refused(refusal), proven);
            }
            Cause::Accepted { .. } => {}
        }
    }

    fn hand_over_arrival(&mut self, handshake: Handshake) {
        let remote = handshake.remote;
        let Some((socket, cause, keys)) = handshake.into_flow() else { return };
        let Cause::Accepted { rail, then: Some(then) } = cause else { return };
        then.peer.note_origin(remote.ip());
        let _ = self.engine.control.poller.remove(socket.as_fd());
        let options = self.engine.settings.flow_options(then.peer.same_host);
        if let Err(error) = tcp::apply(&socket, &options) {
            tracing::warn!(target: "polyrail::rail", %error, "socket options");
        }
        let Then { peer, flow, epoch, window_chunks, duplex, place } = then;
        let place = Some(place);
        let socket = Arc::new(socket);
        if duplex {
            let proxy = peer.flows[flow.0 as usize].proxy;
            let arriving = Arriving { peer, flow, epoch, rail, window_chunks, socket, keys, place };
            self.hand_over(proxy, ProxyCommand::AddBoth { arriving });
        } else {
            // The peer numbers its flows as this engine does, if it is set up alike; if it is not,
            // they are spread less evenly.
            let (rails, width) = (self.engine.rails.len() as u32, self.engine.config.sockets);
            let proxy = self.engine.proxies.rx.proxy(rail, flow.0, rails, width);
            let arriving = Arriving { peer, flow, epoch, rail, window_chunks, socket, keys, place };
            self.hand_over(proxy, ProxyCommand::AddRx { arriving });
        }
    }

    fn hand_over(&self, proxy: usize, command: ProxyCommand) {
        self.engine.proxies.all[proxy].command(command);
        if self.engine.settings.caller_driven {
            self.engine.help();
            self.engine.control.nudge();
        }
    }

    fn rejected(&mut self, handshake: Handshake, error: HelloError) {
        match (&handshake.cause, &error) {
            (Cause::Accepted { .. }, HelloError::NotPolyrail { .. }) => {}
            (Cause::Accepted { .. }, HelloError::Version { .. }) => {
                let reason = format!("this engine speaks version {WIRE_VERSION}");
                handshake.say_goodbye(RefusedCode::Version, &reason);
            }
            (Cause::Accepted { .. }, _) => {
                handshake.say_goodbye(RefusedCode::Malformed, &error.to_string());
            }
            // It will not change its version while it runs.
            (Cause::Flow { peer, flow, .. }, HelloError::Version { .. }) => {
                return self.flow_refused(&peer.clone(), *flow, error.into(), false);
            }
            _ => {}
        }
        self.failed(handshake, error.into());
    }

    fn failed(&mut self, handshake: Handshake, why: ConnectReason) {
        if handshake.is_undecided() {
            handshake.say_goodbye(RefusedCode::Undecided, "its user has not decided in time");
        }
        let Handshake { cause, remote, .. } = handshake;
        match cause {
            Cause::Accepted { rail, then } => {
                if let Some(then) = then {
                    // Known by its hello alone: it is forgotten unless it comes again.
                    self.note_cut_off(&then.peer);
                    self.engine.control.nudge();
                }
                self.engine.control.refused.fetch_add(1, Ordering::Relaxed);
                self.turned_away.log(&self.engine.rails[rail].name, remote, &why);
            }
            Cause::Flow { peer, flow, pause, .. } => self.flow_failed(&peer, flow, &why, pause),
            Cause::Introduction { answer, .. } => answer.give(Err(why)),
        }
    }

    fn way_text(&self, peer: &PeerShared, flow: FlowIndex, why: &str) -> String {
        self.pair_text(peer, peer.layout.pair_of(flow), why)
    }

    fn pair_text(&self, peer: &PeerShared, (from, to): (usize, usize), why: &str) -> String {
        let (local, target) = (&self.engine.card.rails[from], &peer.card.rails[to]);
        format!("rail {} ({} to {}): {why}", local.name, local.address.ip(), target.address)
    }

    fn rail_name(&self, peer: &PeerShared, flow: FlowIndex) -> String {
        self.engine.card.rails[peer.layout.pair_of(flow).0].name.clone()
    }
}
