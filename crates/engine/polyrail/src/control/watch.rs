//! Detection of late peers: peers without flows, silent peers, first words that do not come. Time in which this thread
//! had no CPU does not count.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use polyrail_proto::hello::Capabilities;
use polyrail_proto::life::{PeerEvent, PeerState, overdue};
use polyrail_proto::reason::LostReason;
use polyrail_proto::{FlowIndex, Time};
use polyrail_sys::threads::monotonic_ns;

use super::Control;
use crate::control::handshake::{Cause, Handshake};
use crate::engine::peer::{PeerShared, silent_for};
use crate::engine::proxy_handle::ProxyHandle;

impl Control {
    /// Adds the time that this thread was away to the deadlines of handshakes.
    pub(super) fn excuse(&mut self, now: Time) {
        let away = self.absences.wakes(now);
        self.handshakes.iter_mut().for_each(|(_, handshake)| handshake.deadline += away);
    }

    pub(super) fn tick(&mut self, time: Time) {
        let mut busy = !self.retries.is_empty() || self.engine.settings.caller_driven;
        self.engine.control.ticking.store(false, Ordering::Release);
        busy |= self.look_at_plugin();
        for peer in self.engine.peers() {
            busy |= self.look_after(&peer, time);
        }
        if self.engine.settings.caller_driven {
            // Callers that compute for long must not keep peers waiting for an acknowledgement.
            self.engine.help();
        }
        busy |= self.engine.end_leaving();
        self.cut_off.retain(|(peer, _)| !peer.is_gone());
        if busy || !self.cut_off.is_empty() {
            self.engine.control.ticking.store(true, Ordering::Release);
        }
    }

    /// Looks for a plugin that does not return. A proxy inside a plugin's call moves nothing else. If the plugin does
    /// not return, peers that it carries payload for are lost, because what they wait for will not come. Returns
    /// whether a proxy may be inside, or ends of such peers are left to be made.
    fn look_at_plugin(&mut self) -> bool {
        if self.engine.host.is_none() {
            return false;
        }
        let stuck = polyrail_carrier::stuck();
        for call in &stuck {
            if !self.stuck.contains(&call.function) {
                let (function, thread) = (call.function, call.thread.name());
                let seconds = call.lasted.as_secs_f32();
                tracing::error!(target: "polyrail::carrier", function, thread, seconds,
                    "the plugin does not return from a call; memory that it has stays in use");
            }
        }
        self.stuck = stuck.iter().map(|call| call.function).collect();
        if let Some(call) = stuck.iter().find(|call| call.holds_payload()) {
            for peer in self.engine.peers() {
                if peer.card.capabilities.contains(Capabilities::CARRIERS) {
                    let why = LostReason::Plugin { function: call.function, silence: call.lasted };
                    self.engine.lose_peer(&peer, PeerEvent::Silent, why);
                }
            }
        }
        let is_stuck = |proxy: &ProxyHandle| {
            stuck.iter().any(|call| proxy.thread.get() == Some(&call.thread.id()))
        };
        let proxies = self.engine.proxies.all.iter().enumerate();
        let proxies: Vec<usize> =
            proxies.filter(|(_, proxy)| is_stuck(proxy)).map(|(at, _)| at).collect();
        self.engine.end_held(&proxies) || polyrail_carrier::is_inside()
    }

    /// Checks a peer. Returns whether anything is outstanding with it.
    fn look_after(&mut self, peer: &Arc<PeerShared>, time: Time) -> bool {
        // Before anything that might move work which was left alone.
        self.engine.audit(peer);
        self.engine.end_late(peer, time);
        let timeout = self.engine.settings.peer_timeout;
        peer.note_flows();
        if peer.life.standing.state() == PeerState::Connected {
            self.cut_off.retain(|(other, _)| !Arc::ptr_eq(other, peer));
        }
        let cut_off = self.cut_off.iter().find(|(other, _)| Arc::ptr_eq(other, peer));
        let cut_off = cut_off.map(|(_, since)| self.absences.lasted(*since, time));
        // Time in which this thread was away does not count: the proxies may have been away, too.
        let silence = self.absences.silence(peer.tx().sender.silence(time), time);
        if let Some(event) = overdue(timeout, cut_off, silence, || peer.has_unread()) {
            self.note_waiting(peer);
            let silence = if event == PeerEvent::Silent { silence } else { timeout };
            return !self.engine.lose_peer(peer, event, silent_for(peer, silence));
        }
        self.rouse_stalled(peer, time);
        self.is_waiting(peer, time)
    }

    /// Rouses proxies whose flows have stalled. Proxies check their flows while they know of something in flight. One
    /// that went to sleep with nothing does not know what the thread of a caller has sent meanwhile.
    fn rouse_stalled(&self, peer: &PeerShared, time: Time) {
        // A proxy needs two looks: the first notes how far the kernel is.
        let stall = self.engine.settings.rail_stall / 2;
        let tx = peer.tx();
        let is_stalled =
            |index: &usize| tx.sender.is_stalled(time, FlowIndex(*index as u32), stall);
        let stalled: Vec<usize> = (0..peer.links.flows.len()).filter(is_stalled).collect();
        drop(tx);
        for index in stalled {
            self.engine.proxies.all[peer.links.flows[index].proxy].doorbell.rouse();
        }
    }

    /// Notes what the handshakes of a late peer wait for as its problem, unless one is already noted.
    fn note_waiting(&self, peer: &Arc<PeerShared>) {
        if peer.last_problem().is_some() {
            return;
        }
        for (_, handshake) in &self.handshakes {
            if let Cause::Flow { peer: other, flow, .. } = &handshake.cause
                && Arc::ptr_eq(other, peer)
            {
                let why = handshake.timed_out().to_string();
                let pair = peer.layout.pair_of(*flow);
                return peer.note_problem(self.pair_text(peer, pair, &why));
            }
        }
    }

    /// Returns whether anything is outstanding with the peer. If it is the peer's turn, for instance to send the data
    /// of a receive, it is asked for a sign of life now and then: a stopped process keeps its connections, so that its
    /// silence would otherwise look like patience.
    fn is_waiting(&self, peer: &Arc<PeerShared>, time: Time) -> bool {
        let rx = peer.rx();
        let awaited = rx.is_waiting() || peer.life.watches.load(Ordering::Relaxed) > 0;
        drop(rx);
        let mut tx = peer.tx();
        let awaited = awaited || tx.is_waiting();
        let busy = tx.sender.is_busy() || !peer.posted.is_empty();
        let asked = Time(peer.life.asked.load(Ordering::Relaxed));
        if awaited && !busy && time.since(asked) >= self.engine.settings.peer_timeout / 4 {
            peer.life.asked.store(time.0, Ordering::Relaxed);
            tx.ask(time);
            drop(tx);
            self.engine.announce(peer);
        }
        awaited || busy
    }

    pub(super) fn note_cut_off(&mut self, peer: &Arc<PeerShared>) {
        if !self.cut_off.iter().any(|(other, _)| Arc::ptr_eq(other, peer)) {
            self.cut_off.push((peer.clone(), Time(monotonic_ns())));
        }
    }

    /// Notes that the peer has just answered: the rest of the work for a flow to be up is this side's.
    pub(super) fn note_reached(&mut self, peer: &Arc<PeerShared>) {
        let now = Time(monotonic_ns());
        let cut_off = self.cut_off.iter_mut().filter(|(other, _)| Arc::ptr_eq(other, peer));
        cut_off.for_each(|(_, since)| *since = now);
    }

    /// Fails late handshakes, after reading what came while this thread was away.
    pub(super) fn expire_handshakes(&mut self, now: Instant) {
        for key in self.late_handshakes(now) {
            self.step(key);
        }
        for key in self.late_handshakes(now) {
            let handshake = self.handshakes.remove(key);
            let why = handshake.timed_out();
            self.failed(handshake, why);
        }
    }

    fn late_handshakes(&self, now: Instant) -> Vec<usize> {
        let late = |(_, handshake): &(usize, &Handshake)| handshake.deadline <= now;
        self.handshakes.iter().filter(late).map(|(key, _)| key).collect()
    }
}
