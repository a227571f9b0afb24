//! Layout of a direction's flows on rail pairs and progress threads.

use super::{Never, Pairing, Pairs, Question, RailPair, Reach};
use crate::defaults::channels;
use crate::error::PeerError;
use crate::hello::RailCard;
use crate::id::FlowIndex;
use crate::placement::Placement;

/// Rails of a direction, and the layout of its flows on them.
#[derive(Debug)]
pub struct Layout {
    /// Rail pairs.
    pub pairs: Pairs,
    /// Channels towards the peer, distributed round-robin over the pairs.
    pub channels: u32,
    /// Flows of each channel.
    pub sockets: u32,
}

impl Question<'_> {
    /// Returns the pairs for a new peer. `by_user`: this engine is to connect to it. A peer that connected first can be
    /// answered on its own connections, whatever is known of its addresses.
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
    /// There would be more flows than `flow_limit`.
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

    /// Returns the number of flows.
    #[inline]
    pub fn flows(&self) -> u32 {
        self.channels * self.sockets
    }

    /// Returns the number of rails that a transfer may be spread over.
    #[inline]
    pub fn rails(&self) -> usize {
        self.pairs.len()
    }

    /// Returns the pair of a flow. Channels go round the rails, so that each rail has as many as any other, or one
    /// fewer.
    #[inline]
    pub fn pair_of(&self, flow: FlowIndex) -> RailPair {
        self.pairs.at(self.pair_index(flow))
    }

    /// Returns the position of the pair that a flow takes.
    #[inline]
    pub fn pair_index(&self, flow: FlowIndex) -> usize {
        self.channel_of(flow) as usize % self.pairs.len()
    }

    /// Returns the flows that take the pair at this position.
    #[inline]
    pub fn flows_of(&self, pair: usize) -> impl Iterator<Item = FlowIndex> {
        (0..self.flows()).map(FlowIndex).filter(move |flow| self.pair_index(*flow) == pair)
    }

    /// Returns the channel that a flow belongs to.
    #[inline]
    pub fn channel_of(&self, flow: FlowIndex) -> u32 {
        flow.0 / self.sockets
    }

    /// Returns the progress thread that sends on a flow: one for all flows of a channel.
    pub fn proxy_of(&self, flow: FlowIndex, proxies: &Placement) -> usize {
        let (rail, _) = self.pair_of(flow);
        proxies.proxy(rail, self.channel_of(flow), self.pairs.len() as u32, 1)
    }
}
