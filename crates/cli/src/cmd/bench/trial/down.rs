//! Detection of rails that carry nothing: their flows are not connected, they have no channel or no partner, or their
//! interface is down.

use std::collections::BTreeSet;
use std::net::IpAddr;

use polyrail::{Engine, LeftOut, RailStats, Stats};
use polyrail_sys::interfaces::{self, Below, Interface};

use crate::cmd::bench::talk::{DownRail, RailDelta, WhyDown};

/// Returns the rails of an engine that are down at this moment, while others are up.
pub(crate) fn rails_down(engine: &Engine, stats: &Stats) -> Vec<DownRail> {
    let rails: Vec<Rail> = engine
        .rails()
        .into_iter()
        .map(|rail| (rail.name, rail.interface, rail.address.ip()))
        .collect();
    let left_out = engine.left_out();
    let lacked = |name: &str| lacked(engine.config().names_rails(), &left_out, name);
    find(stats, &rails, &interfaces::survey().unwrap_or_default(), lacked)
}

/// Returns the rails of peers to which this end sends nothing, if only this end sends. If both ends send, the peer may
/// use those rails to send.
pub(super) fn unsent(stats: &Stats, moved: &[RailDelta]) -> Vec<DownRail> {
    let is_sender = moved.iter().any(|rail| rail.tx_bytes > 0);
    if !is_sender || moved.iter().any(|rail| rail.rx_bytes > 0) {
        return Vec::new();
    }
    let unused = stats.peers.iter().flat_map(|peer| &peer.unused_rails);
    let told = unused.map(|rail| DownRail {
        name: rail.name.clone(),
        interface: rail.name.clone(),
        why: WhyDown::NoPartner,
        because: Some(rail.because.clone()),
        receives: false,
        went: false,
    });
    told.collect()
}

/// Name of a rail, its interface, and its address.
type Rail = (String, String, IpAddr);

/// Part that an interface lacked when the engine began. With it, the interface would be a rail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lacked {
    Link,
    Address,
    /// The interface did not exist.
    All,
}

fn lacked(names_rails: bool, left_out: &[LeftOut], name: &str) -> Option<Lacked> {
    match left_out.iter().find(|one| one.name == name) {
        Some(LeftOut { reason, .. }) if reason == "down" => Some(Lacked::Link),
        Some(LeftOut { reason, .. }) => {
            let has_none = reason == "no address" || reason.starts_with("no address that");
            has_none.then_some(Lacked::Address)
        }
        None => (!names_rails).then_some(Lacked::All),
    }
}

/// Returns the rails that were down at the begin or the end of an interval, and those that lost flows in it with chunks
/// under way. `before`: the rails that were down at its begin. `stats`: those of its end. On a rail that had no
/// connection of this end all the time, payload may have arrived over connections of the opposite end.
pub(super) fn down_meanwhile(
    before: &[DownRail],
    later: &[DownRail],
    moved: &[RailDelta],
    stats: &Stats,
) -> Vec<DownRail> {
    let has_no_flow = |all: &[DownRail], name: &str| {
        all.iter().any(|one| one.name == name && one.why == WhyDown::Disconnected)
    };
    let arrived = |name: &str| moved.iter().any(|rail| rail.name == name && rail.rx_bytes > 0);
    let mark = |rail: &DownRail| {
        let name = &rail.name;
        let receives = has_no_flow(before, name) && has_no_flow(later, name) && arrived(name);
        let carried = |one: &RailDelta| one.name == *name && one.tx_bytes + one.rx_bytes > 0;
        let was_down = before.iter().any(|one| one.name == *name);
        let went = !was_down && rail.why.is_fault() && moved.iter().any(carried);
        DownRail { receives, went, ..rail.clone() }
    };
    let mut down: Vec<DownRail> = later.iter().map(mark).collect();
    // These rails are up again by now. Flows that were never up have no reason yet.
    let was_down = |rail: &&DownRail| {
        let has_reason = rail.why != WhyDown::Disconnected || rail.because.is_some();
        rail.why.is_fault() && has_reason
    };
    for rail in before.iter().filter(was_down) {
        if down.iter().all(|known| known.name != rail.name) {
            down.push(DownRail { went: true, ..rail.clone() });
        }
    }
    let all: u64 = moved.iter().map(|rail| rail.tx_bytes).sum();
    let last_loss = |name: &str| {
        let mut rails = stats.peers.iter().flat_map(|peer| &peer.rails);
        rails.find(|rail| rail.name == name)?.last_loss.clone()
    };
    for rail in moved.iter().filter(|rail| rail.resent_chunks > 0) {
        if down.iter().all(|known| known.name != rail.name) {
            down.push(DownRail {
                name: rail.name.clone(),
                interface: rail.name.clone(),
                why: WhyDown::Lost,
                because: last_loss(&rail.name),
                receives: false,
                went: rail.tx_bytes as f64 >= CARRIES_SHARE * all as f64,
            });
        }
    }
    down
}

/// Minimum share of all sent bytes. A rail that lost flows and sent less carried nothing.
const CARRIES_SHARE: f64 = 0.01;

/// Finds the rails that are down. `interfaces`: all of this machine, one for each address, and those without an
/// address. `lacked`: the part that an interface lacks to be a rail.
fn find(
    stats: &Stats,
    rails: &[Rail],
    interfaces: &[Interface],
    lacked: impl Fn(&str) -> Option<Lacked>,
) -> Vec<DownRail> {
    let each = || stats.peers.iter().flat_map(|peer| &peer.rails);
    let of = |name: &str| each().filter(|rail| rail.name == name).collect::<Vec<_>>();
    // Flows of a rail with a reason to be idle come up without effect.
    let works =
        |rail: &RailStats| rail.idle_because.is_none() && rail.flows.iter().any(|flow| flow.up);
    let is_up = |name: &str| of(name).into_iter().any(works);
    if !rails.iter().any(|(name, ..)| is_up(name)) {
        return Vec::new();
    }
    let is_down = |interface: &str| interfaces.iter().any(|one| one.name == interface && !one.up);
    // Flows on an interface that is down count as up until something is sent on them.
    let gone = |(_, interface, address): &Rail| {
        let mut same = interfaces.iter().filter(|one| one.name == *interface).peekable();
        // An interface with the address under another name is the same one, or a replacement for it.
        let has_it = |one: &Interface| one.address == *address && one.is_usable() && one.up;
        if interfaces.is_empty() || address.is_loopback() || interfaces.iter().any(has_it) {
            return None;
        }
        if same.peek().is_none() {
            return Some(format!("its interface {interface} does not exist any more"));
        }
        Some(format!("its interface {interface} no longer has the address {address}"))
    };
    // Channels are dealt to the rails that have a partner, so the channels of all rails together are all that exist.
    let channels: BTreeSet<u32> =
        each().flat_map(|rail| &rail.flows).map(|flow| flow.channel).collect();
    let led: BTreeSet<&str> =
        each().filter(|rail| rail.partner.is_some()).map(|rail| rail.name.as_str()).collect();
    let is_idle = |rail: &&Rail| !is_up(&rail.0) || is_down(&rail.1) || gone(rail).is_some();
    let of_engine = rails.iter().filter(is_idle).map(|rail| {
        let (name, interface, _) = rail;
        let lost = gone(rail);
        let why = if is_down(interface) {
            WhyDown::Interface
        } else if lost.is_some() {
            WhyDown::Gone
        } else if of(name).iter().any(|rail| !rail.flows.is_empty()) {
            WhyDown::Disconnected
        } else if led.contains(name.as_str()) {
            let [channels, rails] = [channels.len(), led.len()].map(|count| count as u32);
            WhyDown::NoChannel { channels, rails }
        } else {
            WhyDown::NoPartner
        };
        let told = of(name).into_iter().find_map(|rail| rail.idle_because.clone());
        let because = lost.or(told);
        let (name, interface) = (name.clone(), interface.clone());
        DownRail { name, interface, why, because, receives: false, went: false }
    });
    // An interface that was down or had no address when the engine began is not a rail. With a name like the rails'
    // interfaces, it would have been one.
    let is_like_rails = |one: &&Interface| {
        let same = |(_, rail, _): &Rail| stem(rail) == stem(&one.name);
        let lacks = one.master.is_none() && lacked(&one.name).is_some();
        // An interface made on top of this one has the address.
        let is_below = interfaces.iter().any(|other| other.below == Below::Link(one.index));
        !one.loopback && !is_below && rails.iter().any(same) && (!one.up || lacks)
    };
    let has = |name: &str, address: &IpAddr| {
        interfaces.iter().any(|one| one.name == name && one.address == *address)
    };
    let is_rail = |one: &&Interface| {
        rails.iter().any(|(_, rail, address)| *rail == one.name || has(&one.name, address))
    };
    let mut others: Vec<DownRail> = Vec::new();
    for one in interfaces.iter().filter(is_like_rails).filter(|one| !is_rail(one)) {
        let name = one.name.clone();
        // An interface may have several addresses.
        if others.iter().all(|other| other.name != name) {
            let interface = name.clone();
            let is_usable = interfaces.iter().any(|other| other.name == name && other.is_usable());
            let lacks_address = !is_usable && (one.up || lacked(&name) == Some(Lacked::Address));
            let (why, because) = match one.up {
                _ if lacks_address => (WhyDown::NoPartner, Some(NO_ADDRESS.to_owned())),
                true => (WhyDown::NoPartner, Some(LATE.to_owned())),
                false => (WhyDown::NoRail, None),
            };
            others.push(DownRail { name, interface, why, because, receives: false, went: false });
        }
    }
    of_engine.chain(others).collect()
}

const LATE: &str = "it got its address, or came up, after the program of that end had started, which has to be started again to use it";

const NO_ADDRESS: &str = "it has no address that peers can reach";

/// Returns `eth` for `eth3`.
fn stem(interface: &str) -> &str {
    interface.trim_end_matches(|one: char| one.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use polyrail::{FlowSnapshot, PeerStats, UnusedRail};
    use polyrail_sys::interfaces::AddressState;

    use super::*;

    /// Name of a rail, whether the rail has a partner, and its flows: the channel number of each, and whether the flow
    /// is up.
    type Rail<'a> = (&'a str, bool, &'a [(u32, bool)]);

    fn found(rails: &[Rail<'_>], interfaces: &[(&str, bool)]) -> Vec<(String, WhyDown)> {
        let flow = |(channel, up): &(u32, bool)| FlowSnapshot {
            channel: *channel,
            up: *up,
            ..FlowSnapshot::default()
        };
        let stats = |(name, has_partner, flows): &Rail<'_>| RailStats {
            name: (*name).to_owned(),
            partner: has_partner.then(|| "theirs".to_owned()),
            flows: flows.iter().map(flow).collect(),
            ..RailStats::default()
        };
        let peer = PeerStats { rails: rails.iter().map(stats).collect(), ..PeerStats::default() };
        let stats = Stats { peers: vec![peer], ..Stats::default() };
        let address = |name: &str| IpAddr::from([10, 0, 0, name.as_bytes()[name.len() - 1]]);
        let names: Vec<_> = rails
            .iter()
            .map(|(name, ..)| ((*name).to_owned(), (*name).to_owned(), address(name)))
            .collect();
        let interface = |(name, up): &(&str, bool)| Interface {
            up: *up,
            loopback: *name == "lo",
            ..Interface::described(1, name, address(name))
        };
        let interfaces: Vec<_> = interfaces.iter().map(interface).collect();
        let lacked = |name: &str| (name == "r9").then_some(Lacked::All);
        find(&stats, &names, &interfaces, lacked)
            .into_iter()
            .map(|rail| (rail.name, rail.why))
            .collect()
    }

    #[test]
    fn a_rail_without_a_connected_flow_is_down_and_the_reason_is_told() {
        let up = [("r0", true), ("r1", true)];
        let first: Rail<'_> = ("r0", true, &[(0, true), (2, false)]);
        assert_eq!(found(&[first, ("r1", true, &[(1, true)])], &up), []);
        let down =
            |interfaces| found(&[first, ("r1", true, &[(1, false), (3, false)])], interfaces);
        let told = |why: WhyDown| vec![("r1".to_owned(), why)];
        assert_eq!(down(&up), told(WhyDown::Disconnected));
        let without = [("r0", true), ("r1", false)];
        assert_eq!(down(&without), told(WhyDown::Interface));
    }

    #[test]
    fn a_rail_whose_interface_is_down_or_gone_is_told_though_its_flows_count_as_up() {
        let rails: [Rail<'_>; 2] = [("r0", true, &[(0, true)]), ("r1", true, &[(1, true)])];
        let told = |why: WhyDown| vec![("r1".to_owned(), why)];
        assert_eq!(found(&rails, &[("r0", true), ("r1", false)]), told(WhyDown::Interface));
        assert_eq!(found(&rails, &[("r0", true)]), told(WhyDown::Gone));
        assert_eq!(found(&rails, &[]), [], "nothing is known of interfaces");
    }

    #[test]
    fn a_rail_without_flows_has_no_channel_or_no_partner_as_the_engine_paired_it() {
        let up = [("r0", true), ("r1", true), ("r2", true)];
        let one: Rail<'_> = ("r0", true, &[(0, true)]);
        let why = WhyDown::NoChannel { channels: 1, rails: 2 };
        let found = found(&[one, ("r1", true, &[]), ("r2", false, &[])], &up);
        let told = [("r1".to_owned(), why), ("r2".to_owned(), WhyDown::NoPartner)];
        assert_eq!(found, told);
    }

    #[test]
    fn a_rail_without_a_flow_on_which_payload_arrives_is_down_one_way_only() {
        let rail = |why| DownRail {
            name: "r1".into(),
            interface: "r1".into(),
            why,
            because: None,
            receives: false,
            went: false,
        };
        let moved = |rx_bytes| [RailDelta { name: "r1".into(), rx_bytes, ..RailDelta::default() }];
        let none = Stats::default();
        let receives = |before: &[DownRail], why, rx_bytes| {
            down_meanwhile(before, &[rail(why)], &moved(rx_bytes), &none)[0].receives
        };
        let down = [rail(WhyDown::Disconnected)];
        assert!(receives(&down, WhyDown::Disconnected, 9));
        assert!(!receives(&down, WhyDown::Disconnected, 0), "nothing arrived");
        assert!(!receives(&[], WhyDown::Disconnected, 9), "it was cut in the middle");
        let went = |before: &[DownRail], rx_bytes| {
            down_meanwhile(before, &[rail(WhyDown::Disconnected)], &moved(rx_bytes), &none)[0].went
        };
        assert!(went(&[], 9) && !went(&[], 0) && !went(&down, 9));
        // The rail's flows come up again and again, and no data gets through.
        let resent = |tx_bytes, resent_chunks| {
            let others = RailDelta { name: "r0".into(), tx_bytes: 1000, ..RailDelta::default() };
            let rail = RailDelta { tx_bytes, resent_chunks, ..moved(0)[0].clone() };
            let last_loss = Some("segments of 1448 bytes".to_owned());
            let lost = RailStats { name: "r1".into(), last_loss, ..RailStats::default() };
            let peer = PeerStats { rails: vec![lost], ..PeerStats::default() };
            down_meanwhile(
                &[],
                &[],
                &[others, rail],
                &Stats { peers: vec![peer], ..Stats::default() },
            )
        };
        let found = resent(5, 4);
        assert_eq!((found.len(), found[0].name.as_str(), found[0].why), (1, "r1", WhyDown::Lost));
        assert_eq!(found[0].because.as_deref(), Some("segments of 1448 bytes"));
        assert!(!found[0].went && resent(500, 4)[0].went, "its bytes count in the rate");
        assert!(resent(5, 0).is_empty(), "no flow died under a chunk");
        // The rail came back.
        let came_back = |rail| down_meanwhile(&[rail], &[], &moved(9), &none);
        assert!(came_back(rail(WhyDown::Interface))[0].went);
        assert!(came_back(rail(WhyDown::Disconnected)).is_empty(), "it was connecting");
        assert!(!receives(&down, WhyDown::Interface, 9));
    }

    #[test]
    fn rails_of_a_peer_are_told_as_unused_by_the_end_that_sends() {
        let unused_rails = vec![UnusedRail { name: "r2".into(), because: "spare".into() }];
        let peer = PeerStats { unused_rails, ..PeerStats::default() };
        let stats = Stats { peers: vec![peer], ..Stats::default() };
        let moved = |tx_bytes| [RailDelta { name: "r0".into(), tx_bytes, ..RailDelta::default() }];
        assert_eq!(unsent(&stats, &moved(0)), []);
        let both = [RailDelta { rx_bytes: 1, ..moved(1)[0].clone() }];
        assert_eq!(unsent(&stats, &both), [], "the peer sends, too");
        let found = unsent(&stats, &moved(1));
        assert_eq!(
            (found.len(), found[0].name.as_str(), found[0].why),
            (1, "r2", WhyDown::NoPartner)
        );
    }

    #[test]
    fn an_interface_like_those_of_rails_that_was_down_from_the_start_is_named_once() {
        let interfaces =
            [("lo", true), ("r0", true), ("r1", false), ("r1", false), ("wlan0", false)];
        let found = found(&[("r0", true, &[(0, true)])], &interfaces);
        assert_eq!(found, [("r1".to_owned(), WhyDown::NoRail)]);
    }

    #[test]
    fn an_interface_that_got_its_address_after_the_engine_began_is_named() {
        let interfaces = [("r0", true), ("r8", true), ("r9", true)];
        let found = found(&[("r0", true, &[(0, true)])], &interfaces);
        assert_eq!(found, [("r9".to_owned(), WhyDown::NoPartner)]);
        let left_out = |reason: &str| [LeftOut { name: "r9".into(), reason: reason.into() }];
        let of = |names_rails, reason| lacked(names_rails, &left_out(reason), "r9");
        assert_eq!(of(true, "down"), Some(Lacked::Link));
        let only = "no address that peers can reach: only fe80::1";
        assert_eq!(of(false, only), Some(Lacked::Address));
        assert_eq!(of(false, "a bridge without a NIC"), None);
        assert_eq!(of(false, "no address for address_family = ipv6"), None);
        assert_eq!(lacked(false, &[], "r9"), Some(Lacked::All), "it was not there");
        assert_eq!(lacked(true, &[], "r9"), None);
    }

    #[test]
    fn an_interface_like_those_of_rails_without_an_address_is_named() {
        let bare = |name: &str, master| Interface {
            state: AddressState::Missing,
            master,
            ..Interface::described(2, name, IpAddr::from([0, 0, 0, 0]))
        };
        let interfaces = [
            Interface::described(1, "r0", [10, 0, 0, 1].into()),
            bare("r8", None),
            bare("r9", None),
            bare("r9", Some(7)),
        ];
        let flow = FlowSnapshot { up: true, ..FlowSnapshot::default() };
        let rail = RailStats { name: "r0".into(), flows: vec![flow], ..RailStats::default() };
        let peer = PeerStats { rails: vec![rail], ..PeerStats::default() };
        let stats = Stats { peers: vec![peer], ..Stats::default() };
        let rails = [("r0".to_owned(), "r0".to_owned(), [10, 0, 0, 1].into())];
        let lacked = |name: &str| (name == "r9").then_some(Lacked::Address);
        // The missing address is still the reason when the interface goes down later.
        for up in [true, false] {
            let mut interfaces = interfaces[..3].to_vec();
            interfaces[2].up = up;
            let found = find(&stats, &rails, &interfaces, lacked);
            let told = found.iter().map(|one| (&*one.name, one.because.as_deref()));
            assert_eq!(told.collect::<Vec<_>>(), [("r9", Some(NO_ADDRESS))]);
        }
        // A NIC whose macvlan has the address is not named either.
        let mut below = [interfaces[0].clone(), interfaces[2].clone()];
        (below[0].below, below[1].index) = (Below::Link(9), 9);
        assert_eq!(find(&stats, &rails, &below, lacked), []);
        // A NIC that was renamed keeps its address, and its flows.
        let renamed = Interface::described(1, "r7", [10, 0, 0, 1].into());
        assert_eq!(find(&stats, &rails, &[renamed], |_| Some(Lacked::All)), []);
        // A member of a bond has no address, and needs none.
        let member = [interfaces[0].clone(), interfaces[3].clone()];
        assert_eq!(find(&stats, &rails, &member, lacked), []);
    }

    #[test]
    fn where_nothing_is_connected_no_rail_is_worse_than_others() {
        let rails: [Rail<'_>; 2] = [("r0", true, &[(0, false)]), ("r1", true, &[])];
        assert_eq!(found(&rails, &[("r2", false)]), []);
    }
}
