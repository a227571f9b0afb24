//! How the flows of a direction lie on pairs of rails and on proxies.

use super::{Never, Pairing, Pairs, Question, RailPair, Reach};
use crate::defaults::channels;
use crate::error::PeerError;
use crate::hello::RailCard;
use crate::id::FlowIndex;
use crate::placement::Placement;

/// Which rails a direction uses, and how its flows lie on them.
#[derive(Debug)]
pub struct Layout {
    /// The pairs of rails.
    pub pairs: Pairs,
    /// Channels towards the peer. They go round the pairs.
    pub channels: u32,
    /// Flows of each channel.
    pub sockets: u32,
}

impl Question<'_> {
    /// The pairs for a new peer. `by_user`: this engine is to connect to it. One that came can answer on its own
    /// connections, whatever is known of its addresses.
    ///
    /// # Errors
    /// No rail of one side can reach a rail of the other.
    pub fn for_peer(&self, by_user: bool) -> Result<Pairing, PeerError> {
        let pairing = self.pair();
        if !pairing.pairs.is_empty() {
            return Ok(pairing);
        }
        if !by_user {
            let mut reach = self.reach.to_vec();
            let loopback = Reach::Unreachable(Never::Loopback);
            let unknown = reach.iter_mut().flatten().filter(|reach| **reach == loopback);
            unknown.for_each(|reach| *reach = Reach::Unknown);
            return Question { reach: &reach, ..*self }.for_peer(true);
        }
        let names = |rails: &[RailCard]| {
            let named = rails.iter().map(|rail| format!("{} {}", rail.name, rail.address));
            named.collect::<Vec<_>>().join(", ")
        };
        let (local, remote) = (names(self.local), names(self.remote));
        Err(PeerError::NoRailPair { local, remote, why: self.why_none() })
    }
}

impl Layout {
    /// Lays flows over these pairs, by the settings: `setting` channels in all (0: `per_rail` for each pair), and
    /// `sockets` flows for each channel.
    ///
    /// # Errors
    /// They are more flows than `flow_limit`.
    pub fn new(
        pairing: Pairing,
        (setting, per_rail): (u32, u32),
        sockets: u32,
        flow_limit: u32,
    ) -> Result<Self, PeerError> {
        let pairs = Pairs::new(pairing);
        let channels = channels(setting, pairs.len(), per_rail);
        let flows = u64::from(channels) * u64::from(sockets);
        if flows > flow_limit.into() {
            return Err(PeerError::FlowLimit { flows, limit: flow_limit });
        }
        Ok(Self { pairs, channels, sockets })
    }

    /// How many flows there are.
    #[inline]
    pub fn flows(&self) -> u32 {
        self.channels * self.sockets
    }

    /// Rails that a transfer may be spread over.
    #[inline]
    pub fn rails(&self) -> usize {
        self.pairs.len()
    }

    /// Channels go round the rails, so that each rail has as many as any other, or one fewer.
    #[inline]
    pub fn pair_of(&self, flow: FlowIndex) -> RailPair {
        self.pairs.at(self.pair_index(flow))
    }

    /// The position of the pair that a flow takes.
    #[inline]
    pub fn pair_index(&self, flow: FlowIndex) -> usize {
        self.channel_of(flow) as usize % self.pairs.len()
    }

    /// The flows that take the pair at this position.
    #[inline]
    pub fn flows_of(&self, pair: usize) -> impl Iterator<Item = FlowIndex> {
        (0..self.flows()).map(FlowIndex).filter(move |flow| self.pair_index(*flow) == pair)
    }

    /// The channel that a flow belongs to.
    #[inline]
    pub fn channel_of(&self, flow: FlowIndex) -> u32 {
        flow.0 / self.sockets
    }

    /// The proxy that sends on a flow: one for all flows of a channel.
    pub fn proxy_of(&self, flow: FlowIndex, proxies: &Placement) -> usize {
        let (rail, _) = self.pair_of(flow);
        proxies.proxy(rail, self.channel_of(flow), self.pairs.len() as u32, 1)
    }
}
