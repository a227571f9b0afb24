//! Reachability of a peer's rails from the rails here, by the kernel's routes.
//!
//! Addresses of one network need no route. For all others the kernel looks up a route from the rail's address, through
//! its interface, in the network namespace that the engine was started in. Where netlink is forbidden, as in some
//! sandboxes, only the networks decide.

use std::net::IpAddr;

use polyrail_netlink::{LinkState, Route};
use polyrail_proto::hello::RailCard;
use polyrail_proto::pairing::{Never, Question, Reach};
use polyrail_proto::rails::ChosenRail;

use crate::engine::kernel_routes::Round;
use crate::engine::state::EngineShared;

impl EngineShared {
    /// Reachability of each of these rails, by local rail.
    pub(crate) fn reach(&self, remote: &[RailCard]) -> Vec<Vec<Reach>> {
        let mut round = self.kernel_routes.round();
        let mut row = |(at, rail): (usize, &ChosenRail)| {
            let card = &self.card.rails[at];
            let link = round.ask(|routes| routes.link(&rail.interface)).flatten();
            let reach = |other: &RailCard| match link {
                Some(link) if !link.is_up && !rail.loopback => Reach::Down,
                link => self.reach_of(rail, card, other, &mut round, link),
            };
            // A separate closure, because it borrows `round`.
            remote.iter().map(reach).collect()
        };
        self.rails.iter().enumerate().map(&mut row).collect()
    }

    fn reach_of(
        &self,
        rail: &ChosenRail,
        card: &RailCard,
        other: &RailCard,
        round: &mut Round<'_>,
        link: Option<LinkState>,
    ) -> Reach {
        let (from, to) = (rail.address, other.address.ip());
        if from.is_ipv4() != to.is_ipv4() {
            return Reach::Unreachable(Never::Family);
        }
        if card.network().overlaps(&other.network()) {
            return Reach::SameSubnet;
        }
        let Some(link) = link else { return Reach::Unknown };
        let through = (!rail.loopback).then_some(link.index);
        let Some(found) = round.ask(|routes| routes.find(to, Some(from), through)) else {
            return Reach::Unknown;
        };
        let reach = found.map_or(Reach::NoRoute, |route| of_route(&route, link.index, from));
        match reach {
            Reach::NoRoute if from.is_loopback() => Reach::Unreachable(Never::Loopback),
            reach => reach,
        }
    }

    /// The pairing problem for these rails of a peer.
    pub(crate) fn pairing_of<'a>(
        &'a self,
        remote: &'a [RailCard],
        reach: &'a [Vec<Reach>],
    ) -> Question<'a> {
        let is_named = self.config.names_rails();
        Question { local: &self.card.rails, remote, reach, is_named }
    }
}

/// Classifies a route for the rail with this interface and address.
fn of_route(route: &Route, interface: u32, from: IpAddr) -> Reach {
    if route.is_local {
        let prefix_len = if from.is_ipv4() { 32 } else { 128 };
        return Reach::OnLinkRoute { prefix_len };
    }
    // The route would leave through another interface, and share that one's wire.
    if route.interface.is_some_and(|found| found != interface) {
        return Reach::NoRoute;
    }
    match (route.prefix_len, route.gateway) {
        _ if route.is_down => Reach::Down,
        (Some(0), _) => Reach::DefaultRoute,
        (Some(prefix_len), None) => Reach::OnLinkRoute { prefix_len },
        (Some(prefix_len), Some(_)) => Reach::Route { prefix_len },
        // Kernels that don't report which prefix matched.
        (None, None) => Reach::OnLinkRoute { prefix_len: 0 },
        (None, Some(_)) => Reach::DefaultRoute,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(prefix_len: Option<u8>, gateway: bool) -> Route {
        Route {
            interface: Some(3),
            prefix_len,
            gateway: gateway.then(|| [10, 0, 0, 1].into()),
            source: None,
            is_local: false,
            is_down: false,
        }
    }

    #[test]
    fn a_route_counts_by_its_prefix_and_only_through_the_rail() {
        let of = |route: Route| of_route(&route, 3, [10, 0, 0, 2].into());
        assert_eq!(of(route(Some(24), false)), Reach::OnLinkRoute { prefix_len: 24 });
        assert_eq!(of(route(Some(16), true)), Reach::Route { prefix_len: 16 });
        assert_eq!(of(route(Some(0), true)), Reach::DefaultRoute);
        assert_eq!(of(route(Some(0), false)), Reach::DefaultRoute);
        assert_eq!(of(route(None, true)), Reach::DefaultRoute);
        assert_eq!(of(Route { is_down: true, ..route(Some(16), true) }), Reach::Down);
        assert_eq!(of(Route { interface: Some(4), ..route(Some(16), true) }), Reach::NoRoute);
        let own = Route { is_local: true, interface: Some(1), ..route(Some(32), false) };
        assert_eq!(of(own), Reach::OnLinkRoute { prefix_len: 32 });
    }
}
