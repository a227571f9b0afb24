//! Flows towards a peer: which are up, and whose rail may be dead.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use polyrail_proto::life::Epoch;
use polyrail_proto::liveness::Reconnect;
use polyrail_proto::pairing::Layout;
use polyrail_proto::placement::Placement;
use polyrail_proto::reason::Flows;
use polyrail_proto::tally::FlowStats;
use polyrail_proto::{FlowIndex, Time};

use super::{PeerShared, TxSide};
use crate::device::wire::Wire;
use crate::engine::settings::EngineSettings;

/// A flow towards the peer.
pub(crate) struct FlowSlot {
    pub(crate) proxy: usize,
    pub(crate) up: AtomicBool,
    /// When it came up last, by the monotonic clock.
    pub(crate) up_since: AtomicU64,
    /// Until when it takes nothing, by the monotonic clock.
    pub(crate) rests_until: AtomicU64,
    pub(crate) epoch: AtomicU64,
    /// When it is connected again; the control thread asks.
    pub(crate) reconnect: Mutex<Reconnect>,
    pub(crate) stats: FlowStats,
    /// Held for looking at its counters only; the proxy owns the bytes.
    pub(crate) wire: Mutex<Option<Wire>>,
}

/// The flows of a new peer with this number: all are down.
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
        Flows { up: self.flows_up(), total: self.flows.len() }
    }

    pub(crate) fn flows_up(&self) -> usize {
        self.flows.iter().filter(|flow| flow.up.load(Ordering::Relaxed)).count()
    }

    /// Has the flows pull that the sender core wants to: chunks were left to them, or denied to them until now.
    pub(crate) fn announce_wanted(&self, tx: &mut TxSide, now: u64) {
        for flow in tx.sender.wakes(Time(now)) {
            let proxy = self.flows[flow.0 as usize].proxy;
            self.wake.announce_to(self.wake.place_of(proxy));
        }
    }

    /// Whether it has said something on a flow towards it that nobody has read yet.
    pub(crate) fn has_unread(&self) -> bool {
        let has_unread = |slot: &FlowSlot| slot.wire.lock().as_ref().is_some_and(Wire::has_unread);
        self.flows.iter().any(has_unread)
    }

    /// A flow is connected.
    pub(crate) fn flow_up(&self, flow: FlowIndex, now: Time) {
        let mut tx = self.tx();
        tx.sender.handle_flow_up(now, flow);
        tx.suspects.clear(self.layout.pair_index(flow));
        drop(tx);
        self.layout.pairs.note_up(self.layout.pair_index(flow));
    }

    /// Whether connections of the pair at this position come up and die young.
    pub(crate) fn dies_young(&self, pair: usize) -> bool {
        let flows = self.flows.iter().enumerate();
        let mut of_pair = flows
            .filter(|(index, _)| self.layout.pair_index(FlowIndex(*index as u32)) == pair)
            .map(|(_, slot)| slot);
        of_pair.any(|slot| slot.reconnect.lock().dies_young())
    }

    /// Whether a flow is up on the pair at this position.
    pub(crate) fn is_pair_up(&self, pair: usize) -> bool {
        let of_pair = |index: &usize| self.layout.pair_index(FlowIndex(*index as u32)) == pair;
        let is_up = |index: usize| self.flows[index].up.load(Ordering::Relaxed);
        (0..self.flows.len()).filter(of_pair).any(is_up)
    }

    /// For how long nothing may go on with a rail. A plugin that accepts a connection may hold up whatever else its engine
    /// does meanwhile: that is no fault of the rails.
    pub(crate) fn stall(&self, settings: &EngineSettings) -> Duration {
        match self.carriers.are_coming() {
            true => settings.rail_stall.max(settings.peer_timeout / 2),
            false => settings.rail_stall,
        }
    }

    /// A flow has stalled, so its rail may be dead. Where there is no other one, nothing is gained
    /// by knowing that.
    pub(crate) fn suspect_rail_of(&self, tx: &mut TxSide, flow: FlowIndex, now: Time) {
        let pair = self.layout.pair_index(flow);
        let is_elsewhere = |index: usize| self.layout.pair_index(FlowIndex(index as u32)) != pair;
        let mut up = self.flows.iter().enumerate().filter(|(_, f)| f.up.load(Ordering::Relaxed));
        if up.any(|(index, _)| is_elsewhere(index)) {
            tx.suspects.note(pair, now);
        }
    }

    /// Whether the rail of a flow may be dead, for all that the flow has seen.
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
