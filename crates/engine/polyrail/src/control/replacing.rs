//! Replacement of pairs of rails that do not come up. Flows that are up stay where they are: a pair is replaced only
//! while none of its flows is up, and only if another pair may work.

use std::net::Shutdown;
use std::sync::Arc;
use std::time::Instant;

use polyrail_proto::hello::Capabilities;
use polyrail_proto::liveness::RETURN_MAX;
use polyrail_proto::pairing::Replacement;
use polyrail_proto::reason::ConnectReason;
use polyrail_proto::{FlowIndex, Time};
use polyrail_sys::threads::monotonic_ns;

use super::Control;
use crate::control::presence::Probe;
use crate::engine::peer::{PeerShared, RailPair};

impl Control {
    /// Handles a failed TCP connection between the rails `pair`, which the flow had then.
    pub(super) fn not_connected(
        &mut self,
        peer: &Arc<PeerShared>,
        (flow, pair): (FlowIndex, RailPair),
        why: &ConnectReason,
    ) {
        self.flow_failed(peer, (flow, pair), why);
        let (index, now) = (peer.layout.pair_index(flow), Time(monotonic_ns()));
        if !why.is_about_the_way() || peer.is_gone() || peer.is_pair_up(index) {
            return;
        }
        let times = peer.layout.pairs.trials().handle_failed(pair, now);
        // A peer that has ended refuses on all of its rails.
        let may_have_ended = why.is_nobody() && peer.flows_up() == 0;
        if may_have_ended
            && (times < 2
                || peer.life.standing.pairs_that_lead_there(&peer.layout.pairs).contains(&index))
        {
            return;
        }
        if peer.layout.pairs.at(index) == pair {
            self.replace_pairs(peer, now);
        }
    }

    /// Tries other rails for all pairs that failed.
    fn replace_pairs(&mut self, peer: &Arc<PeerShared>, now: Time) {
        let engine = self.engine.clone();
        // A plugin's connections are made for the rails that the flows began with.
        if engine.host.is_some() && peer.card.capabilities.contains(Capabilities::CARRIERS) {
            return;
        }
        let rails = (engine.rails.len(), peer.card.rails.len());
        let is_up = |index| peer.is_pair_up(index);
        // Asks the kernel only if there may be another pair.
        let Some(wanted) = Replacement::new(&peer.layout, rails, is_up, now) else { return };
        let reach = engine.reach(&peer.card.rails);
        let question = engine.pairing_of(&peer.card.rails, &reach);
        for (index, pair) in wanted.choose(&question, peer.flows_up() == 0) {
            self.move_pair(peer, index, pair);
        }
    }

    fn move_pair(&mut self, peer: &Arc<PeerShared>, index: usize, new: RailPair) {
        let old = peer.layout.pairs.at(index);
        let why = peer.layout.pairs.problem(index);
        tracing::info!(target: "polyrail::rail", peer = peer.name(), pair = self.pair_name(peer, old),
            instead = self.pair_name(peer, new), why, "no connection: tries another pair of rails");
        peer.life.standing.change_pair(&peer.layout.pairs, index, new);
        let now = Instant::now();
        for retry in &mut self.retries {
            if retry.is_of(peer, index) {
                retry.due = now;
            }
        }
        self.ask_for_return(peer, index, now);
    }

    fn pair_name(&self, peer: &PeerShared, (from, to): RailPair) -> String {
        let (local, remote) = (&self.engine.card.rails[from], &peer.card.rails[to]);
        let (from, to) = (local.address.ip(), remote.address);
        format!("{} ({from}) to {} ({to})", local.name, remote.name)
    }

    /// Starts to probe now and then whether the preferred pair works again.
    fn ask_for_return(&mut self, peer: &Arc<PeerShared>, index: usize, now: Instant) {
        let pairs = &peer.layout.pairs;
        let is_asked = |probe: &Probe| {
            probe.is_return && probe.pair == index && Arc::ptr_eq(&probe.peer, peer)
        };
        if pairs.at(index) != pairs.preferred(index)
            && !self.probes.iter().any(|(_, probe)| is_asked(probe))
        {
            let (pair, peer, pause) = (index, peer.clone(), pairs.trials().return_pause(index));
            let due = now + pause;
            self.probes.insert(Probe { peer, pair, is_return: true, socket: None, due, pause });
        }
    }

    /// Whether nothing is left to ask about the preferred pair.
    pub(super) fn has_returned(probe: &Probe) -> bool {
        let pairs = &probe.peer.layout.pairs;
        probe.peer.is_gone() || pairs.at(probe.pair) == pairs.preferred(probe.pair)
    }

    /// Handles a probe of the preferred pair. If the pair works, its flows move back: their data in flight is sent
    /// again.
    pub(super) fn return_probed(&mut self, key: usize, works: bool, now: Instant) {
        let Some(probe) = self.probes.get_mut(key) else { return };
        probe.pause = (probe.pause * 2).min(RETURN_MAX);
        probe.due = now + probe.pause;
        let (peer, index) = (probe.peer.clone(), probe.pair);
        let pairs = &peer.layout.pairs;
        let (from, to) = pairs.preferred(index);
        let is_taken = (0..pairs.len())
            .filter(|other| *other != index && peer.is_pair_up(*other))
            .any(|other| pairs.at(other).0 == from || pairs.at(other).1 == to);
        if !works || is_taken {
            return;
        }
        let pair = self.pair_name(&peer, peer.layout.pairs.preferred(index));
        tracing::info!(target: "polyrail::rail", peer = peer.name(), pair,
            "the rails work again: their flows move back");
        peer.life.standing.change_pair(pairs, index, (from, to));
        for flow in peer.layout.flows_of(index) {
            // The flow's proxy reads the end of the connection, and the flow is reconnected.
            if let Some(wire) = peer.links.flows[flow.0 as usize].wire.lock().as_ref() {
                let _ = wire.socket().shutdown(Shutdown::Both);
            }
        }
    }
}
