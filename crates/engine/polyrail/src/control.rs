//! The control thread: listens, connects, says hello, watches deadlines. It handles no payload, and sleeps while
//! nothing changes.

mod asking_user;
pub(crate) mod build;
mod connecting;
pub(crate) mod handshake;
mod incoming_connections;
mod introductions;
mod leaving;
mod neighbours;
mod presence;
mod replacing;
mod second_try;
pub(crate) mod second_way;
mod secrets;
mod watch;

use std::collections::VecDeque;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use polyrail_proto::exchange::{
    Admissions, Event, Fault, Introduction, refusal_of, refusal_of_words,
};
use polyrail_proto::hello::{HelloError, Metadata, RefusedCode};
use polyrail_proto::liveness::{Absences, SecondTries};
use polyrail_proto::reason::{ConnectReason, Unmet};
use polyrail_proto::{FlowIndex, Time};
use polyrail_sys::PollEvent;
use polyrail_sys::threads::monotonic_ns;
use slab::Slab;
use socket2::Socket;

use crate::control::asking_user::Desk;
use crate::control::connecting::Retry;
use crate::control::handshake::{Cause, Handshake};
use crate::control::incoming_connections::Accepting;
use crate::control::leaving::Leaving;
use crate::control::presence::Probe;
use crate::device::host_proof::LOOKED_AT;
use crate::diag::dump::DumpSignal;
use crate::engine::control_handle::ControlCommand;
use crate::engine::peer::PeerShared;
use crate::engine::proxy_handle::ProxyCommand;
use crate::engine::state::EngineShared;
use crate::engine::tasks::Answer;
use crate::path::asking::ask_patiently;
use crate::path::try_shared;

/// Interval at which peers are looked after while anything is outstanding.
const TICK: Duration = Duration::from_millis(50);
/// Tokens from here on are listeners; those below are handshakes.
const LISTENER: u64 = 1 << 32;
/// Tokens from here on are probes.
const PROBE: u64 = 1 << 33;

pub(crate) struct Control {
    engine: Arc<EngineShared>,
    accepting: Accepting,
    handshakes: Slab<Handshake>,
    introductions: Slab<(Introduction, Answer<Result<Metadata, Unmet>>)>,
    second_tries: SecondTries,
    retries: VecDeque<Retry>,
    /// Peers without any flow, and the time since which they have none.
    cut_off: Vec<(Arc<PeerShared>, Time)>,
    /// Functions from which a plugin does not return, as far as logged.
    stuck: Vec<&'static str>,
    probes: Slab<Probe>,
    leaving: Vec<Leaving>,
    absences: Absences,
    admissions: Admissions,
    desk: Option<Arc<Desk>>,
    dump: DumpSignal,
}

impl Control {
    pub(crate) fn new(engine: Arc<EngineShared>, listeners: Vec<Socket>) -> io::Result<Self> {
        let accepting = Accepting::new(&engine, listeners)?;
        let dump = DumpSignal::new(engine.config.dump_signal)?;
        Ok(Self {
            admissions: Admissions::default(),
            desk: Desk::new(&engine),
            engine,
            accepting,
            handshakes: Slab::new(),
            introductions: Slab::new(),
            second_tries: SecondTries::default(),
            retries: VecDeque::new(),
            cut_off: Vec::new(),
            stuck: Vec::new(),
            probes: Slab::new(),
            leaving: Vec::new(),
            absences: Absences::new(Time(monotonic_ns())),
            dump,
        })
    }

    pub(crate) fn run(&mut self) {
        let mut events: Vec<PollEvent> = Vec::new();
        let mut next_tick = Instant::now();
        loop {
            let limit = self.limit(next_tick);
            self.absences.sleeps(Time(monotonic_ns()), limit);
            if let Err(error) = self.engine.control.poller.wait(&mut events, limit) {
                tracing::error!(target: "polyrail::engine", %error, "epoll failed");
                return;
            }
            // In this order: the time that one computes from the other is never too long.
            let time = Time(monotonic_ns());
            let now = Instant::now();
            self.excuse(time);
            if self.engine.is_closing() {
                self.give_up_second_tries();
                self.engine.control.forget_commands();
                // A proxy that had ended when it was given a connection would keep it open, and the connection's peer
                // would take this engine for a busy one.
                return self.engine.finish_proxies();
            }
            while let Some(command) = self.engine.control.commands.pop() {
                self.obey(command);
            }
            for event in events.drain(..) {
                match event.token {
                    LOOKED_AT => self.engine.copying.proofs.forget_who_looked(),
                    token if token >= PROBE => self.probed((token - PROBE) as usize, now),
                    token if token >= LISTENER => self.accept((token - LISTENER) as usize),
                    token => self.step(token as usize),
                }
            }
            self.end_leaving(now);
            self.accept_again(now);
            self.end_second_tries(time);
            self.begin_second_ways(now);
            self.go_on_introducing(time);
            if self.engine.settings.caller_driven {
                self.engine.proxies.driven[0].send_left(&self.engine);
            }
            self.retry_due(now);
            self.probe_due(now);
            self.expire_handshakes(now);
            self.dump.run(&self.engine);
            if next_tick <= now {
                next_tick = now + TICK;
                self.tick(time);
            }
        }
    }

    /// Time until the next deadline; `None` while nothing can change by itself.
    fn limit(&self, next_tick: Instant) -> Option<Duration> {
        let settings = &self.engine.settings;
        let retries = self.retries.iter().map(|retry| retry.due);
        let handshakes = self.handshakes.iter().map(|(_, handshake)| handshake.deadline);
        let ticking = self.engine.control.ticking.load(Ordering::Acquire);
        let tick = ticking.then_some(next_tick);
        let probes = self.probes.iter().map(|(_, probe)| probe.due);
        let leaving = self.leaving.iter().map(|leaving| leaving.until);
        let due = retries.chain(handshakes).chain(probes).chain(tick).chain(leaving);
        let until = |due: Time| Instant::now() + due.since(Time(monotonic_ns()));
        let timed = self.second_tries.due().into_iter().chain(self.introduction_due());
        // Nothing reports that a proxy is inside a plugin that does not return.
        let look = self.engine.host.as_ref().map(|_| Instant::now() + settings.peer_timeout / 8);
        let due = due
            .chain(self.second_way_due())
            .chain(self.accepting.again)
            .chain(look)
            .chain(timed.min().map(until))
            .min();
        let limit = due.map(|due| due.saturating_duration_since(Instant::now()));
        // A signal handler can only set a flag, which this thread must read.
        if self.dump.is_on() { Some(limit.unwrap_or(TICK * 4).min(TICK * 4)) } else { limit }
    }

    fn obey(&mut self, command: ControlCommand) {
        match command {
            ControlCommand::Connect { peer } => {
                self.note_cut_off(&peer);
                try_shared::prepare(&self.engine, &peer);
                self.ask_for_neighbours(&peer);
                for flow in 0..peer.layout.flows() {
                    self.start_flow(peer.clone(), FlowIndex(flow));
                }
                self.engine.control.start_ticking();
            }
            ControlCommand::FlowLost { peer, flow, why, life } => {
                let text = format!("rail {}: {why}", self.rail_name(&peer, flow));
                let name = peer.name();
                tracing::info!(target: "polyrail::flow", peer = name, %flow, why = %text, "flow down");
                let index = peer.layout.pair_index(flow);
                peer.layout.pairs.note_loss(index, why.to_string());
                if !peer.is_pair_up(index) {
                    peer.layout.pairs.note_problem(index, why.to_string());
                }
                peer.note_problem(text);
                if !peer.is_gone() && !self.is_leaving(&peer) {
                    self.note_cut_off(&peer);
                    self.reconnect(peer.clone(), flow, &life);
                    self.flows_lost(&peer);
                }
                self.engine.control.start_ticking();
            }
            ControlCommand::ArrivalLost { peer, flow, why } => {
                let name = peer.name();
                tracing::debug!(target: "polyrail::flow", peer = name, %flow, why, "arrival down");
                if !peer.is_gone() && !self.is_leaving(&peer) {
                    self.note_cut_off(&peer);
                    self.flows_lost(&peer);
                    self.engine.control.start_ticking();
                }
            }
            ControlCommand::Ask { peer, question } => {
                ask_patiently(&self.engine, &peer, &question);
            }
            ControlCommand::PeerLeft { peer, says } => self.hears_bye(peer, says, Instant::now()),
            ControlCommand::Decided { question, verdict } => self.decide(question, &verdict),
            ControlCommand::Introduce { addresses, invitation, answer } => {
                self.introduce(addresses, invitation, answer);
            }
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
            None => {}
            Some(Event::Hello(hello)) => {
                let (remote, by) = (handshake.remote, handshake.exchange.proven_by());
                let names = handshake.exchange.names().into();
                self.engine.note_names(hello.card().instance, names);
                self.note_proven(remote, by);
                self.receive(key, hello);
            }
            Some(Event::Fault(Fault::Failed(why))) if self.goes_another_way(key, &why) => {
                self.step(key);
            }
            Some(Event::Fault(Fault::Failed(why))) => {
                let handshake = self.handshakes.remove(key);
                self.failed(handshake, why);
            }
            Some(Event::Fault(Fault::Rejected(error))) => {
                let handshake = self.handshakes.remove(key);
                self.rejected(handshake, error);
            }
            Some(Event::Fault(Fault::Unproven(error))) => {
                let handshake = self.handshakes.remove(key);
                let (code, reason) = refusal_of(&error);
                handshake.say_goodbye(code, reason);
                if let Cause::Accepted { rail, .. } = handshake.cause
                    && self.awaits_second_try(rail, handshake.remote, &error)
                {
                    return;
                }
                self.failed(handshake, error.into());
            }
            Some(Event::Reply(reply)) => {
                let handshake = self.handshakes.remove(key);
                self.answered(handshake, reply);
            }
            Some(Event::ReplySent) => {
                let handshake = self.handshakes.remove(key);
                self.hand_over_arrival(handshake);
            }
        }
    }

    fn hand_over(&self, proxy: usize, command: ProxyCommand) {
        self.engine.proxies.all[proxy].command(command);
        if self.engine.settings.caller_driven {
            self.engine.help();
            self.engine.control.start_ticking();
        }
    }

    fn rejected(&mut self, handshake: Handshake, error: HelloError) {
        match (&handshake.cause, refusal_of_words(&error)) {
            (Cause::Accepted { .. }, Some((code, reason))) => {
                handshake.say_goodbye(code, &reason);
            }
            // The peer will not change its version while it runs.
            (Cause::Flow { peer, flow, pair, .. }, Some((RefusedCode::Version, _))) => {
                return self.flow_refused(&peer.clone(), (*flow, *pair), error.into(), false);
            }
            _ => {}
        }
        self.failed(handshake, error.into());
    }

    fn failed(&mut self, handshake: Handshake, why: ConnectReason) {
        if handshake.is_undecided() {
            handshake.say_goodbye(RefusedCode::Undecided, "its user has not decided in time");
        }
        let is_connecting = handshake.is_connecting;
        let is_quiet = handshake.exchange.is_unheard() && why.is_closed();
        let Handshake { cause, remote, mut race, .. } = handshake;
        let why = race.reason(why);
        match cause {
            Cause::Accepted { rail, .. } if is_quiet => self.closed_unheard(rail, remote),
            Cause::Accepted { rail, then } => self.arrival_failed(rail, then, remote, &why),
            Cause::Flow { peer, flow, pair, .. } if is_connecting => {
                self.not_connected(&peer, (flow, pair), &why);
            }
            Cause::Flow { peer, flow, pair, .. } => {
                if matches!(why, ConnectReason::TimedOut { .. }) {
                    self.note_dead_end(&peer, pair, race.way);
                }
                self.flow_failed(&peer, (flow, pair), &why);
            }
            Cause::Introduction { of, .. } => self.not_introduced(of, remote, why),
        }
    }

    fn pair_text(&self, peer: &PeerShared, (from, to): (usize, usize), why: &str) -> String {
        let (local, target) = (&self.engine.card.rails[from], &peer.card.rails[to]);
        format!("rail {} ({} to {}): {why}", local.name, local.address.ip(), target.address)
    }

    /// As [`Self::pair_text`], where the rail is already named.
    fn addresses_text(&self, peer: &PeerShared, (from, to): (usize, usize), why: &str) -> String {
        let (local, target) = (&self.engine.card.rails[from], &peer.card.rails[to]);
        format!("{} to {}: {why}", local.address.ip(), target.address)
    }

    fn rail_name(&self, peer: &PeerShared, flow: FlowIndex) -> String {
        self.engine.card.rails[peer.layout.pair_of(flow).0].name.clone()
    }
}
