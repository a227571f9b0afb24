//! How the flows of a direction lie on pairs of rails and on proxies.

use super::{Pairs, RailPair};
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

impl Layout {
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
