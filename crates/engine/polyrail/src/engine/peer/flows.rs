//! Flows to a peer: which are up, and whose rail may be dead.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use polyrail_proto::hello::Capabilities;
use polyrail_proto::life::{Epoch, Live};
use polyrail_proto::liveness::Reconnect;
use polyrail_proto::pairing::Layout;
use polyrail_proto::placement::Placement;
use polyrail_proto::reason::Flows;
use polyrail_proto::tally::FlowStats;
use polyrail_proto::{FlowIndex, Time};

use super::{PeerShared, TxSide};
use crate::device::wire::Wire;
use crate::engine::settings::EngineSettings;

/// A flow to the peer.
pub(crate) struct FlowSlot {
    pub(crate) proxy: usize,
    pub(crate) up: AtomicBool,
    /// Time at which it last came up, by the monotonic clock.
    pub(crate) up_since: AtomicU64,
    /// Time until which it accepts nothing, by the monotonic clock.
    pub(crate) rests_until: AtomicU64,
    pub(crate) epoch: AtomicU64,
    /// Time of the next connection attempt, which the control thread reads.
    pub(crate) reconnect: Mutex<Reconnect>,
    pub(crate) stats: FlowStats,
    /// Locked only to read its counters. The proxy owns the bytes.
    pub(crate) wire: Mutex<Option<Wire>>,
}

/// The flows of a new peer with this number, all down.
pub(super) fn flow_slots(layout: &Layout, number: u32, proxies: &Placement) -> Vec<FlowSlot> {
    (0..layout.flows())
        .map(|flow| FlowSlot {
            proxy: layout.proxy_of(FlowIndex(flow), proxies),
            up: AtomicBool::new(false),
            up_since: AtomicU64::new(0),
            rests_until: AtomicU64::new(0),
            epoch: AtomicU64::new(Epoch::first(number).0),
            reconnect: Mutex::default(),
            stats: FlowStats::default(),
            wire: Mutex::new(None),
        })
        .collect()
}

impl PeerShared {
    pub(crate) fn all_flows(&self) -> Flows {
        Flows { up: self.flows_up(), total: self.links.flows.len() }
    }

    pub(crate) fn flows_up(&self) -> usize {
        self.links.flows.iter().filter(|flow| flow.up.load(Ordering::Relaxed)).count()
    }

    /// Whether flows of the peer are up, as far as known.
    pub(crate) fn has_arrivals(&self) -> bool {
        self.links.rx_flows_up.load(Ordering::Acquire) > 0
    }

    /// State of its session, for a hello of the peer.
    pub(crate) fn live(&self) -> Live {
        let standing = &self.life.standing;
        Live {
            own: Epoch::first(self.number).session(),
            heard: standing.heard_session(),
            state: standing.state(),
            has_flows_up: self.has_arrivals(),
        }
    }

    /// Whether flows are up to the peer, or, if this engine does not want flows, from it.
    pub(crate) fn is_reached(&self) -> bool {
        let has_arrivals = self.has_arrivals();
        self.flows_up() > 0 || (!self.life.standing.wants_flows() && has_arrivals)
    }

    /// Notes whether flows are up.
    pub(crate) fn note_flows(&self) {
        self.life.standing.note_flows(|| self.is_reached());
    }

    /// Makes those flows pull that the sender core wants to: it has left chunks to them, or denied them until now.
    pub(crate) fn announce_wanted(&self, tx: &mut TxSide, now: u64) {
        for flow in tx.sender.wakes(Time(now)) {
            let proxy = self.links.flows[flow.0 as usize].proxy;
            self.wake.announce_to(self.wake.place_of(proxy));
        }
    }

    /// Whether the peer has sent something on a flow to it that is still unread.
    pub(crate) fn has_unread(&self) -> bool {
        let has_unread = |slot: &FlowSlot| slot.wire.lock().as_ref().is_some_and(Wire::has_unread);
        self.links.flows.iter().any(has_unread)
    }

    /// Notes that a flow has connected.
    pub(crate) fn flow_up(&self, flow: FlowIndex, now: Time) {
        let mut tx = self.tx();
        tx.sender.handle_flow_up(now, flow);
        tx.suspects.clear(self.layout.pair_index(flow));
        drop(tx);
        self.layout.pairs.note_up(self.layout.pair_index(flow));
    }

    /// Whether connections of the pair at this position come up and soon fail.
    pub(crate) fn dies_young(&self, pair: usize) -> bool {
        let dies_young =
            |flow: FlowIndex| self.links.flows[flow.0 as usize].reconnect.lock().dies_young();
        self.layout.flows_of(pair).any(dies_young)
    }

    /// Whether a flow is up on the pair at this position.
    pub(crate) fn is_pair_up(&self, pair: usize) -> bool {
        let is_up = |flow: FlowIndex| self.links.flows[flow.0 as usize].up.load(Ordering::Relaxed);
        self.layout.flows_of(pair).any(is_up)
    }

    /// Time for which a rail may make no progress. A plugin that accepts a connection may delay all other work
    /// of its engine meanwhile, without a fault of the rails.
    pub(crate) fn stall(&self, settings: &EngineSettings, now: Time) -> Duration {
        if self.beside.carriers.lock().are_coming(now) {
            return settings.rail_stall.max(settings.peer_timeout / 2);
        }
        settings.rail_stall
    }

    /// Returns whether a connection to the peer may use shared memory, or why not.
    pub(crate) fn may_share(&self, settings: &EngineSettings) -> Result<(), &'static str> {
        let knows = self.card.capabilities.contains(Capabilities::SHARED_STREAM);
        match (self.says_same_host, settings.caller_driven, settings.shared_stream, knows) {
            (true, _, true, true) => Ok(()),
            (false, ..) => Err("the peer is on another host"),
            (_, false, ..) => Err("the setting progress says proxy"),
            (_, _, false, _) => Err("the setting path says tcp"),
            (.., false) => Err("the peer does not want it: its progress or path setting says so"),
        }
    }

    /// Notes that a flow has stalled, so its rail may be dead. Does nothing where there is no other rail.
    pub(crate) fn suspect_rail_of(&self, tx: &mut TxSide, flow: FlowIndex, now: Time) {
        let pair = self.layout.pair_index(flow);
        let is_elsewhere = |index: usize| self.layout.pair_index(FlowIndex(index as u32)) != pair;
        let mut up =
            self.links.flows.iter().enumerate().filter(|(_, f)| f.up.load(Ordering::Relaxed));
        if up.any(|(index, _)| is_elsewhere(index)) {
            tx.suspects.note(pair, now);
        }
    }

    /// Whether the rail of a flow may be dead, as far as the flow has seen.
    pub(crate) fn is_suspect(&self, tx: &TxSide, flow: FlowIndex, quiet: Duration) -> bool {
        tx.suspects.hold(self.layout.pair_index(flow), tx.sender.flow_progress(flow), quiet)
    }
}

pub(super) fn proxies_of(flows: &[FlowSlot]) -> Vec<usize> {
    let mut proxies: Vec<usize> = Vec::new();
    for flow in flows {
        if !proxies.contains(&flow.proxy) {
            proxies.push(flow.proxy);
        }
    }
    proxies
}
