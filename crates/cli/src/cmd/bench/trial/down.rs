//! Rails that carry nothing: their flows are not connected, they have no partner, or their interface is down.

use polyrail::{Engine, Stats};
use polyrail_sys::interfaces::{self, Interface};

use crate::cmd::bench::talk::{DownRail, NO_PARTNER};

/// The rails of an engine that are down at this moment, while others are up.
pub(crate) fn rails_down(engine: &Engine, stats: &Stats) -> Vec<DownRail> {
    let rails: Vec<(String, String)> =
        engine.rails().into_iter().map(|rail| (rail.name, rail.interface)).collect();
    find(stats, &rails, &interfaces::list().unwrap_or_default())
}

/// `rails`: their names and interfaces.
fn find(stats: &Stats, rails: &[(String, String)], interfaces: &[Interface]) -> Vec<DownRail> {
    let flows = |name: &str| {
        let rails = stats.peers.iter().flat_map(|peer| &peer.rails);
        rails.filter(|rail| rail.name == name).flat_map(|rail| &rail.flows).collect::<Vec<_>>()
    };
    let is_up = |name: &str| flows(name).iter().any(|flow| flow.up);
    if !rails.iter().any(|(name, _)| is_up(name)) {
        return Vec::new();
    }
    let is_down = |interface: &str| interfaces.iter().any(|one| one.name == interface && !one.up);
    let of_engine = rails.iter().filter(|(name, _)| !is_up(name)).map(|(name, interface)| {
        let why = match flows(name).len() {
            _ if is_down(interface) => "its interface is down or has no carrier".to_owned(),
            0 => NO_PARTNER.to_owned(),
            _ => "none of its flows is connected".to_owned(),
        };
        DownRail { name: name.clone(), interface: interface.clone(), why }
    });
    // An interface that was down when the engine began is no rail. One that is called like those of the rails would be.
    let is_like_rails = |one: &&Interface| {
        let same = |(_, rail): &(String, String)| stem(rail) == stem(&one.name);
        !one.up && !one.loopback && rails.iter().any(same)
    };
    let is_rail = |one: &&Interface| rails.iter().any(|(_, rail)| *rail == one.name);
    let mut others: Vec<DownRail> = Vec::new();
    for one in interfaces.iter().filter(is_like_rails).filter(|one| !is_rail(one)) {
        let name = one.name.clone();
        // It may have several addresses.
        if others.iter().all(|other| other.name != name) {
            let why = "its interface is down or has no carrier, so the engine has no such rail";
            others.push(DownRail { interface: name.clone(), name, why: why.to_owned() });
        }
    }
    of_engine.chain(others).collect()
}

/// `eth` of `eth3`.
fn stem(interface: &str) -> &str {
    interface.trim_end_matches(|one: char| one.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use polyrail::{FlowSnapshot, PeerStats, RailStats};

    use super::*;

    /// Rails `r0`, `r1` … with flows that are up or not, and interfaces of the same names that are up or not.
    fn found(rails: &[(&str, &[bool])], interfaces: &[(&str, bool)]) -> Vec<(String, String)> {
        let flow = |up: &bool| FlowSnapshot { up: *up, ..FlowSnapshot::default() };
        let stats = |(name, flows): &(&str, &[bool])| RailStats {
            name: (*name).to_owned(),
            flows: flows.iter().map(flow).collect(),
            ..RailStats::default()
        };
        let peer = PeerStats { rails: rails.iter().map(stats).collect(), ..PeerStats::default() };
        let stats = Stats { peers: vec![peer], ..Stats::default() };
        let names: Vec<_> =
            rails.iter().map(|(name, _)| ((*name).to_owned(), (*name).to_owned())).collect();
        let interface = |(name, up): &(&str, bool)| Interface {
            name: (*name).to_owned(),
            address: [10, 0, 0, 1].into(),
            prefix_len: 24,
            up: *up,
            loopback: *name == "lo",
            virtual_kind: None,
            speed_mbps: None,
        };
        let interfaces: Vec<_> = interfaces.iter().map(interface).collect();
        find(&stats, &names, &interfaces).into_iter().map(|rail| (rail.name, rail.why)).collect()
    }

    #[test]
    fn a_rail_without_a_connected_flow_is_down_and_the_reason_is_told() {
        let up = [("r0", true), ("r1", true)];
        assert_eq!(found(&[("r0", &[true, false]), ("r1", &[true])], &up), []);
        let down =
            |interfaces| found(&[("r0", &[true, true]), ("r1", &[false, false])], interfaces);
        let told = |why: &str| vec![("r1".to_owned(), why.to_owned())];
        assert_eq!(down(&up), told("none of its flows is connected"));
        let without = [("r0", true), ("r1", false)];
        assert_eq!(down(&without), told("its interface is down or has no carrier"));
        let alone = found(&[("r0", &[true]), ("r1", &[])], &up);
        assert_eq!(alone, told(NO_PARTNER));
    }

    #[test]
    fn an_interface_like_those_of_rails_that_was_down_from_the_start_is_named_once() {
        let interfaces =
            [("lo", true), ("r0", true), ("r1", false), ("r1", false), ("wlan0", false)];
        let found = found(&[("r0", &[true])], &interfaces);
        assert_eq!(found.len(), 1);
        assert!(found[0].0 == "r1" && found[0].1.contains("no such rail"), "{found:?}");
    }

    #[test]
    fn where_nothing_is_connected_no_rail_is_worse_than_others() {
        assert_eq!(found(&[("r0", &[false]), ("r1", &[])], &[("r2", false)]), []);
    }
}
