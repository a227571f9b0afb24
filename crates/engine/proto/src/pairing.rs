//! Pairs of local rails and rails of the peer, and replacements for pairs that do not come up. The driver queries the
//! kernel for reachability.
//!
//! The pairs are a matching of the greatest weight: as many pairs as possible first, then the more direct ones, the
//! faster ones, equal names, and equal positions. Pairs whose reachability only an attempt would show are taken where
//! there is nothing better.

mod layout;
mod matching;
mod pairs;
mod replacing;

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::hello::{MAX_RAILS, RailCard};

pub use crate::liveness::RailPair;
pub use layout::Layout;
pub use pairs::Pairs;
pub use replacing::Replacement;

/// Reachability of a rail of the peer from a local rail, as far as this host knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Both addresses are in one network.
    SameSubnet,
    /// A route shows that the address is on the rail's link, or that it is this host's own.
    OnLinkRoute {
        /// Prefix length of the route.
        prefix_len: u8,
    },
    /// A route leads there through the rail and a gateway.
    Route {
        /// Prefix length of the route.
        prefix_len: u8,
    },
    /// Only the default route through the rail leads there.
    DefaultRoute,
    /// The kernel could not be queried.
    Unknown,
    /// No route leads there through the rail.
    NoRoute,
    /// The rail's interface is down or has no carrier.
    Down,
    /// The addresses can never reach each other.
    Unreachable(Never),
}

/// Reason why a connection between two addresses is impossible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Never {
    /// One is IPv4 and the other IPv6.
    Family,
    /// The local rail is a loopback address, and the other one is not of this host.
    Loopback,
}

/// Chosen pairs, and why the other rails are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pairing {
    /// Local and remote rails by their positions on the cards, in this order.
    pub pairs: Vec<(usize, usize)>,
    /// By local rail: why it is in no pair.
    pub idle_local: Vec<Option<String>>,
    /// By rail of the peer: why it is in no pair.
    pub idle_remote: Vec<Option<String>>,
}

/// Rails to be paired.
pub struct Question<'a> {
    /// Local rails.
    pub local: &'a [RailCard],
    /// Rails of the peer.
    pub remote: &'a [RailCard],
    /// Reachability by local rail, then by remote rail.
    pub reach: &'a [Vec<Reach>],
    /// The user has named the local rails, so slow ones are wanted as well.
    pub is_named: bool,
}

/// Speed factor, compared with the fastest pair, from which on a rail is left out.
const SLOW: u32 = 10;
/// Maximum addresses that a reason lists.
const LISTED: usize = 4;

impl Question<'_> {
    /// Pairs the rails.
    pub fn pair(&self) -> Pairing {
        let mut pairs = self.matched(&|reach| reach.is_way());
        let has_way = !pairs.is_empty();
        if has_way {
            self.share(&mut pairs, &|reach| reach.is_specific());
        } else {
            pairs = self.matched(&|reach| reach.is_try());
            self.share(&mut pairs, &|reach| reach.is_try());
        }
        let slow = self.leave_out_slow(&mut pairs);
        if has_way {
            self.keep_for_later(&mut pairs);
        }
        pairs.sort_unstable();
        let idle_local = (0..self.local.len()).map(|at| self.why_idle(at, &pairs, &slow)).collect();
        let idle_remote = (0..self.remote.len()).map(|at| self.why_unused(at, &pairs, &slow));
        Pairing { idle_remote: idle_remote.collect(), idle_local, pairs }
    }

    /// Returns pairs for these rails only, of which these have `failed`; each rail is in one pair at most.
    fn instead(
        &self,
        local: &[usize],
        remote: &[usize],
        failed: &[(usize, usize)],
    ) -> Vec<(usize, usize)> {
        let may = |at: &(usize, usize), reach: Reach, fits: &dyn Fn(Reach) -> bool| {
            local.contains(&at.0) && remote.contains(&at.1) && !failed.contains(at) && fits(reach)
        };
        let pairs = self.matched_where(&|at, reach| may(&at, reach, &Reach::is_way));
        match pairs.is_empty() {
            false => pairs,
            // Only an attempt would show.
            true => self.matched_where(&|at, reach| may(&at, reach, &|it| it == Reach::Unknown)),
        }
    }

    fn matched(&self, fits: &dyn Fn(Reach) -> bool) -> Vec<(usize, usize)> {
        self.matched_where(&|_, reach| fits(reach))
    }

    /// Matches the rails. The end whose addresses sort first is always the rows, so that both ends break ties alike.
    fn matched_where(&self, fits: &dyn Fn((usize, usize), Reach) -> bool) -> Vec<(usize, usize)> {
        let key = |rails: &[RailCard]| rails.iter().map(|rail| rail.address).collect::<Vec<_>>();
        let weight = |local: usize, remote: usize| {
            let reach = self.reach[local][remote];
            fits((local, remote), reach).then(|| self.weight(local, remote, reach))
        };
        let (here, there) = (self.local.len(), self.remote.len());
        if key(self.remote) < key(self.local) {
            let turned = matching::heaviest(there, here, |remote, local| weight(local, remote));
            turned.into_iter().map(|(remote, local)| (local, remote)).collect()
        } else {
            matching::heaviest(here, there, weight)
        }
    }

    /// Returns the weight of a pair. Each criterion outweighs the sum of all that follow, over 64 pairs.
    fn weight(&self, local: usize, remote: usize, reach: Reach) -> i128 {
        let (here, there) = (&self.local[local], &self.remote[remote]);
        let speed = self.speed((local, remote)).unwrap_or_default().min(1 << 28);
        // Names of loopback rails are their addresses, and show nothing beyond their order.
        let is_named_alike = here.name == there.name && !here.address.ip().is_loopback();
        let apart = local.abs_diff(remote) as i128;
        const ONE_MORE: i128 = 1 << 100;
        ONE_MORE
            + (i128::from(reach.directness()) << 80)
            + (i128::from(speed) << 40)
            + (i128::from(is_named_alike) << 30)
            + ((1 << 13) - apart * apart)
    }

    /// Pairs the remaining rails with rails that are taken: all local ones, as they may add to the send rate, and one
    /// remote if the local rail is fast enough for all of its pairs.
    fn share(&self, pairs: &mut Vec<(usize, usize)>, fits: &dyn Fn(Reach) -> bool) {
        for local in 0..self.local.len() {
            if pairs.len() >= MAX_RAILS || pairs.iter().any(|(taken, _)| *taken == local) {
                continue;
            }
            let taken = |remote: usize| pairs.iter().filter(|(_, other)| *other == remote).count();
            let best = (0..self.remote.len())
                .filter(|remote| fits(self.reach[local][*remote]))
                .min_by_key(|remote| {
                    let directness = self.reach[local][*remote].directness();
                    let own = local % self.remote.len();
                    (taken(*remote), u32::MAX - directness, *remote != own, *remote)
                });
            pairs.extend(best.map(|remote| (local, remote)));
        }
        for remote in 0..self.remote.len() {
            let speed = u64::from(self.remote[remote].speed_mbps);
            // The remote speeds are the peer's claim, and each pair has its own flows.
            let is_enough = pairs.len() >= MAX_RAILS.min(self.local.len() * 4);
            if is_enough || speed == 0 || pairs.iter().any(|(_, taken)| *taken == remote) {
                continue;
            }
            // A partner of unknown speed may take all.
            let room = |local: usize| {
                let partners = pairs.iter().filter(|(taken, _)| *taken == local);
                let speeds = partners.map(|(_, other)| match self.remote[*other].speed_mbps {
                    0 => u64::from(u32::MAX),
                    speed => u64::from(speed),
                });
                u64::from(self.local[local].speed_mbps).saturating_sub(speeds.sum())
            };
            let fit = (0..self.local.len())
                .filter(|local| fits(self.reach[*local][remote]) && room(*local) >= speed);
            let best = fit.max_by_key(|local| room(*local));
            pairs.extend(best.map(|local| (local, remote)));
        }
    }

    /// Removes pairs that are far slower than the fastest; returns them.
    fn leave_out_slow(&self, pairs: &mut Vec<(usize, usize)>) -> Vec<(usize, usize)> {
        let fastest = pairs.iter().filter_map(|pair| self.speed(*pair)).max();
        let (slow, others) = pairs.iter().partition(|pair| self.is_slow(**pair, fastest));
        *pairs = others;
        slow
    }

    /// Keeps, for an interface that is down now, the rail that it would reach: it may come up again.
    fn keep_for_later(&self, pairs: &mut Vec<(usize, usize)>) {
        let is_free = |(local, remote): (usize, usize), reach: Reach| {
            reach == Reach::Down && !pairs.iter().any(|pair| pair.0 == local || pair.1 == remote)
        };
        pairs.extend(self.matched_where(&is_free));
    }

    /// Returns whether the first pair is far slower than the second, and the user has not named the rails.
    fn is_slow_beside(&self, one: (usize, usize), other: (usize, usize)) -> bool {
        self.is_slow(one, self.speed(other))
    }

    /// Returns whether the pair is far slower than one of this speed, and the user has not named the rails.
    fn is_slow(&self, pair: (usize, usize), fastest: Option<u32>) -> bool {
        let most = fastest.unwrap_or_default() / SLOW;
        !self.is_named && self.speed(pair).is_some_and(|speed| speed <= most)
    }

    /// Returns the speed of a pair in Mbit/s: the lower one of its two rails, as far as they are known.
    fn speed(&self, (local, remote): (usize, usize)) -> Option<u32> {
        let both = [self.local[local].speed_mbps, self.remote[remote].speed_mbps];
        both.into_iter().filter(|speed| *speed > 0).min()
    }

    /// Returns the reason why no local rail can be paired with any of the peer, for an error.
    pub fn why_none(&self) -> String {
        let mut reasons: Vec<String> = Vec::new();
        for local in 0..self.local.len() {
            reasons.extend(self.why_idle(local, &[], &[]).filter(|why| !reasons.contains(why)));
        }
        reasons.join("; ")
    }

    fn why_idle(
        &self,
        local: usize,
        pairs: &[(usize, usize)],
        slow: &[(usize, usize)],
    ) -> Option<String> {
        if pairs.iter().any(|(taken, _)| *taken == local) {
            return None;
        }
        let rail = &self.local[local];
        let (address, row) = (rail.address.ip(), &self.reach[local]);
        if let Some(pair) = slow.iter().find(|pair| pair.0 == local) {
            return Some(self.why_slow(*pair));
        }
        let there = |fits: &dyn Fn(&Reach) -> bool| -> Vec<usize> {
            (0..row.len()).filter(|remote| fits(&row[*remote])).collect()
        };
        let ways = there(&|reach| reach.is_way());
        if !ways.is_empty() {
            // Both ends show the reasons of both, so no sentence says which end is the local one.
            return Some(format!(
                "it reaches only {} of the end opposite, all paired",
                rails(ways.len())
            ));
        }
        if !there(&|reach| *reach == Reach::Down).is_empty() {
            return Some("its interface is down or has no carrier".to_owned());
        }
        let no_route = there(&|reach| *reach == Reach::NoRoute);
        if !no_route.is_empty() {
            let to = self.listed(self.remote, &no_route);
            return Some(match network(rail) {
                None => format!(
                    "no route from {address} through this interface to {to} when the two ends met"
                ),
                // A rail of the peer in that network would need no route.
                Some(network) => format!(
                    "no rail of the end opposite is in {network}, and no route led from {address} through this \
                     interface to {to} when the two ends met"
                ),
            });
        }
        let unknown = there(&|reach| *reach == Reach::Unknown);
        if !unknown.is_empty() {
            let to = self.listed(self.remote, &unknown);
            return Some(format!(
                "{address}/{} is in no network of the rails of the end opposite ({to}), and whether a route leads there is not known",
                rail.prefix_len
            ));
        }
        if there(&|reach| *reach == Reach::Unreachable(Never::Loopback)).is_empty() {
            let family = if address.is_ipv4() { "IPv4" } else { "IPv6" };
            return Some(format!(
                "no rail of the end opposite has an {family} address; an interface that has both gives its rail the \
                 one that `address_family` there says, or IPv4"
            ));
        }
        Some(format!("{address} is a loopback address, which reaches this host only"))
    }

    fn why_unused(
        &self,
        remote: usize,
        pairs: &[(usize, usize)],
        slow: &[(usize, usize)],
    ) -> Option<String> {
        if pairs.iter().any(|(_, taken)| *taken == remote) {
            return None;
        }
        if let Some(pair) = slow.iter().find(|pair| pair.1 == remote) {
            return Some(self.why_slow(*pair));
        }
        let ways = (0..self.local.len()).filter(|local| self.reach[*local][remote].is_way());
        Some(match ways.count() {
            0 => format!(
                "no route was found from the rails of the other end to {}",
                self.remote[remote].address.ip()
            ),
            ways => format!("only {} of the other end can reach it, all paired", rails(ways)),
        })
    }

    fn why_slow(&self, pair: (usize, usize)) -> String {
        let speed = self.speed(pair).unwrap_or_default();
        format!(
            "{} at {speed} Mbit/s is left out beside rails that are {SLOW} times faster or more; \
             name it in `rails` to use it",
            self.local[pair.0].name
        )
    }

    fn listed(&self, rails: &[RailCard], at: &[usize]) -> String {
        let addresses: BTreeSet<IpAddr> = at.iter().map(|at| rails[*at].address.ip()).collect();
        let shown = addresses.iter().take(LISTED).map(IpAddr::to_string);
        let shown = shown.collect::<Vec<_>>().join(", ");
        match addresses.len().saturating_sub(LISTED) {
            0 => shown,
            more => format!("{shown} and {more} more"),
        }
    }
}

impl Reach {
    /// Returns whether this host knows a way.
    pub fn is_way(self) -> bool {
        self.is_specific() || self == Self::DefaultRoute
    }

    /// Returns whether there is more than a default route.
    fn is_specific(self) -> bool {
        matches!(self, Self::SameSubnet | Self::OnLinkRoute { .. } | Self::Route { .. })
    }

    /// Returns whether a connection might come up.
    fn is_try(self) -> bool {
        !matches!(self, Self::Unreachable(_))
    }

    /// Returns a value that is greater for fewer hops and a longer prefix.
    fn directness(self) -> u32 {
        match self {
            Self::SameSubnet => 500,
            Self::OnLinkRoute { prefix_len } => 200 + u32::from(prefix_len),
            Self::Route { prefix_len } => 10 + u32::from(prefix_len),
            Self::DefaultRoute => 4,
            Self::Unknown => 3,
            Self::NoRoute => 2,
            Self::Down => 1,
            Self::Unreachable(_) => 0,
        }
    }
}

/// Returns the network of a rail, such as `10.0.1.0/24`, if it has room for a rail of the peer.
fn network(rail: &RailCard) -> Option<String> {
    let bits = u32::from(rail.prefix_len);
    let first = match rail.address.ip() {
        IpAddr::V4(address) => {
            let host = u32::MAX.checked_shr(bits).filter(|host| *host != u32::MAX)?;
            IpAddr::V4(Ipv4Addr::from_bits(address.to_bits() & !host))
        }
        IpAddr::V6(address) => {
            let host = u128::MAX.checked_shr(bits).filter(|host| *host != u128::MAX)?;
            IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & !host))
        }
    };
    Some(format!("{first}/{bits}"))
}

fn rails(count: usize) -> String {
    format!("{count} rail{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests;
