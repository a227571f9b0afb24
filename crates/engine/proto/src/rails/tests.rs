use super::unfit::usable;
use super::*;

fn interface(name: &str, address: &str) -> Interface {
    let index = name.bytes().fold(7, |sum: u32, byte| sum * 3 + u32::from(byte));
    let interface = Interface::described(index, name, address.parse().unwrap());
    match name.starts_with("docker") {
        true => Interface { kind: Kind::Bridge, ..interface },
        false => interface,
    }
}

fn host() -> Vec<Interface> {
    vec![
        interface("lo", "127.0.0.1"),
        interface("eth1", "10.0.1.2"),
        interface("eth1", "fd00:1::2"),
        interface("eth10", "10.0.2.2"),
        Interface { up: false, ..interface("eth3", "10.0.3.2") },
        interface("docker0", "172.17.0.1"),
        interface("ib0", "fd00:9::2"),
    ]
}

fn names(spec: &str) -> Vec<String> {
    select(spec, &host()).unwrap().into_iter().map(|rail| rail.name).collect()
}

fn error(spec: &str) -> String {
    select(spec, &host()).unwrap_err().why
}

#[test]
fn automatic_rails_lead_out_of_the_machine() {
    assert_eq!(names("auto"), ["eth1", "eth10", "ib0"]);
    let down = Interface { up: false, ..interface("docker0", "172.17.0.1") };
    let rails = select("auto", &[interface("lo", "127.0.0.1"), down]).unwrap();
    assert_eq!((rails.len(), rails[0].loopback), (1, true));
}

#[test]
fn names_are_prefixes_unless_exact_and_can_be_negated() {
    assert_eq!(names("eth1"), ["eth1", "eth10"]);
    assert_eq!(names("=eth1"), ["eth1"]);
    assert_eq!(names("=eth10,docker0"), ["eth10", "docker0"]);
    assert_eq!(names("^docker,ib"), ["eth1", "eth10"]);
    assert_eq!(names("^=eth1,docker0"), ["eth10", "ib0"]);
}

#[test]
fn addresses_name_a_rail_each() {
    assert_eq!(names("fd00:1::2,eth10"), ["eth1", "eth10"]);
    let four = names("127.0.0.1,127.0.0.2,127.0.0.3,127.0.0.2");
    assert_eq!(four, ["lo@127.0.0.1", "lo@127.0.0.2", "lo@127.0.0.3"]);
}

#[test]
fn a_wrong_name_is_told_with_what_there_is() {
    assert!(error("eth7").contains("no interface eth7"));
    assert!(error("auto,eth1").contains("`auto` stands alone"));
    for empty in [",", "=", " , "] {
        assert_eq!(error(empty), NAMES_NONE);
    }
    assert!(usable(&host()).contains("eth1 (10.0.1.2)"));
    assert!(error("=eth3").contains("eth3 is down"));
    assert!(error("10.9.9.9").contains("no interface has the address 10.9.9.9"));
    // A new network namespace has its loopback interface without an address.
    let unfit = select("127.0.0.1", &[interface("eth1", "10.0.1.2")]).unwrap_err();
    assert_eq!(unfit.why, "the loopback interface is down, and 127.0.0.1 with it");
    assert!(unfit.allowed.told(&[]).1.contains("`ip link set lo up`") && !unfit.is_wrong);
    assert!(error("^eth,ib,docker").contains("no other interface is usable"));
}

#[test]
fn an_interface_without_an_address_is_there_and_lacks_one() {
    let bare =
        |name: &str, address: &str, state| vec![Interface { state, ..interface(name, address) }];
    for (all, spec, why) in [
        (bare("eth1", "0.0.0.0", AddressState::Missing), "eth1", "interface eth1 has no address"),
        (
            bare("eth1", "fe80::1", AddressState::LinkLocal),
            "eth1",
            "interface eth1 has no address that peers can reach: only fe80::1, which is link-local",
        ),
        (
            bare("eth1", "fd00::1", AddressState::Duplicate),
            "fd00::1",
            "interface eth1 has no address that peers can reach: only fd00::1, which another host has, too",
        ),
    ] {
        let unfit = select(spec, &all).unwrap_err();
        assert_eq!((unfit.why.as_str(), unfit.is_wrong), (why, false));
    }
    let tentative = bare("eth1", "fd00::1", AddressState::Tentative);
    assert!(select("=eth1", &tentative).unwrap_err().why.contains("fd00::1, which is tentative"));
    // One that has another address is a rail.
    let both = [tentative, vec![interface("eth1", "fd00::2")]].concat();
    assert_eq!(select("eth1", &both).unwrap()[0].address.to_string(), "fd00::2");
    // Two hosts on one cable, without a server that gives addresses.
    let zeroconf = bare("eth1", "169.254.3.4", AddressState::LinkLocal);
    assert_eq!(select("169.254.3.4", &zeroconf).unwrap().len(), 1);
    assert!(!select("eth1", &zeroconf).unwrap_err().is_wrong);
}

#[test]
fn addresses_that_stay_come_first_and_then_ipv4() {
    let chosen = |addresses: &[(&str, AddressState)]| {
        let each = addresses
            .iter()
            .map(|(address, state)| Interface { state: *state, ..interface("eth1", address) });
        select("auto", &each.collect::<Vec<_>>()).unwrap()[0].address.to_string()
    };
    use AddressState::{LinkLocal, Passing, Preferred, Tentative};
    let v4 = ("10.0.0.1", Preferred);
    assert_eq!(chosen(&[("fd00::1", Preferred), v4, ("10.0.0.2", Preferred)]), "10.0.0.1");
    assert_eq!(
        chosen(&[("fe80::1", LinkLocal), ("fd00::1", Passing), ("fd00::2", Preferred)]),
        "fd00::2"
    );
    assert_eq!(chosen(&[("10.0.0.9", Tentative), ("fd00::1", Passing)]), "fd00::1");
    assert_eq!(chosen(&[("10.0.0.9", Passing), ("fd00::1", Preferred)]), "fd00::1");
}

#[test]
fn more_rails_than_an_engine_takes_are_told_with_how_many_it_does() {
    let rail = |at: usize| ChosenRail {
        speed_mbps: Some(if at == 2 { 1_000 } else { 100_000 }).filter(|_| at != 1),
        ..ChosenRail::of(&Interface::described(at as u32, &at.to_string(), [10, 0, 0, 1].into()))
    };
    let names = |rails: Vec<ChosenRail>| -> Vec<String> {
        rails.into_iter().map(|rail| rail.name).collect()
    };
    let taken = names(best((0..MAX_RAILS + 2).map(rail).collect()));
    let wanted: Vec<String> =
        [0].into_iter().chain(3..MAX_RAILS + 2).map(|at| at.to_string()).collect();
    assert_eq!(taken, wanted);
    assert!(check_count(MAX_RAILS).is_ok());
    let unfit = check_count(MAX_RAILS + 1).unwrap_err();
    let (allowed, help) = unfit.allowed.told(&host());
    assert_eq!((unfit.why.as_str(), allowed.as_str()), ("these are 65 rails", "1 to 64"));
    assert!(help.contains("plugin:LIBRARY@"), "{help}");
}

#[test]
fn rails_that_share_a_network_ask_for_the_peers_addresses_there() {
    let rail = |name: &str, address: &str| {
        let interface =
            Interface { prefix_len: 24, ..Interface::described(1, name, address.parse().unwrap()) };
        ChosenRail::of(&interface)
    };
    let rails = [rail("eth1", "10.0.0.11"), rail("eth2", "10.0.0.12"), rail("eth3", "10.0.1.13")];
    let targets = ["10.0.0.21:1", "10.0.1.22:1", "10.9.0.23:1"]
        .map(|text| text.parse::<SocketAddr>().unwrap());
    let found = crowded(&rails, targets.into_iter());
    let found: Vec<_> =
        found.iter().map(|(rail, target)| (rail.name.as_str(), target.to_string())).collect();
    let to = "10.0.0.21:1".to_owned();
    assert_eq!(found, [("eth1", to.clone()), ("eth2", to)]);
}
