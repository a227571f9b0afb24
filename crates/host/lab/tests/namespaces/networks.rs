//! Tests of labs whose rails are not one subnet each.

use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use polyrail_lab::{Firewall, Lab, LabGuard, Network, RailEnd, Side};

use crate::common::{
    PATIENCE, connect, listen, on, output, root_turn, round_trip, skipped, spec, v4, v6,
};

fn network(network: Network, rails: &str) -> LabGuard {
    let mut spec = spec(network.name(), rails);
    spec.network = network;
    Lab::up(&spec).unwrap().guard()
}

/// Rails that each network is tested with.
fn rails(network: Network) -> &'static str {
    if network == Network::Pod { "unlimited" } else { "unlimited,unlimited,unlimited" }
}

/// Checks that bytes pass over a rail. On one Ethernet the kernel chooses the source among all addresses of the subnet.
fn carries(lab: &Lab, rail: usize) {
    for address in [v4 as fn(&RailEnd) -> IpAddr, v6] {
        if lab.network() == Network::OneSubnet {
            let listener = listen(lab, rail, address);
            let near = connect(lab, &listener).unwrap();
            let (mut far, _) = listener.accept().unwrap();
            std::io::Write::write_all(&mut &near, b"there").unwrap();
            near.shutdown(Shutdown::Write).unwrap();
            assert_eq!(std::io::read_to_string(&mut far).unwrap(), "there");
        } else {
            let result = round_trip(lab, rail, address);
            result.unwrap_or_else(|error| panic!("{} {rail}: {error}", lab.network()));
        }
    }
}

#[test]
fn every_rail_of_every_network_carries_ipv4_and_ipv6() {
    let Some(_turn) = root_turn() else { return };
    for kind in Network::ALL {
        let lab = network(kind, rails(kind));
        assert_eq!(lab.network(), kind);
        for rail in 0..lab.rails().len() {
            carries(&lab, rail);
        }
    }
}

#[test]
fn a_rail_that_was_cut_and_mended_has_its_routes_again() {
    let Some(_turn) = root_turn() else { return };
    for kind in Network::ALL {
        let lab = network(kind, rails(kind));
        let last = lab.rails().len() - 1;
        for side in Side::BOTH {
            lab.cut_at(last, side).unwrap();
            lab.set_link(last, true).unwrap();
            carries(&lab, last);
        }
        assert!(lab.observe().unwrap().iter().all(|rail| rail.up), "{kind}");
    }
}

#[test]
fn a_lab_that_is_opened_again_knows_its_network() {
    let Some(_turn) = root_turn() else { return };
    let lab = network(Network::Management, "3x1gbit");
    let again = Lab::open(lab.name()).unwrap();
    assert_eq!(again.network(), Network::Management);
    assert_eq!(again.rails(), lab.rails());
    let listed = Lab::list().unwrap().into_iter().find(|listed| listed.name == lab.name()).unwrap();
    assert_eq!((listed.network, listed.rails.as_slice()), (Network::Management, lab.rails()));
}

#[test]
fn the_routes_are_those_of_the_network() {
    let Some(_turn) = root_turn() else { return };
    for (kind, wanted) in [
        (Network::HostRoutes, "10.77.0.0/24 dev rail0 proto static scope link"),
        (Network::Routed, "10.77.0.0/24 via 10.77.0.2 dev rail0"),
        (Network::Management, "10.77.1.0/24 via 10.77.1.2 dev rail1"),
        (Network::OneSubnet, "10.77.0.0/16 dev rail0"),
        (Network::Pod, "default via 10.77.1.1 dev rail0"),
    ] {
        let lab = network(kind, rails(kind));
        let routes = output(&lab, Side::A, &["ip", "route"]);
        assert!(routes.contains(wanted), "{kind}: {routes}");
    }
}

#[test]
fn a_switch_with_a_small_mtu_loses_large_packets_until_it_is_set_back() {
    let Some(_turn) = root_turn() else { return };
    let mut spec = spec("mtu", "unlimited");
    spec.nodes = Some(2);
    let lab = Lab::up(&spec).unwrap().guard();
    let passes = |bytes: usize| {
        let listener = listen(&lab, 0, v4);
        let address = listener.local_addr().unwrap();
        let near = on(&lab, Side::A, || TcpStream::connect_timeout(&address, PATIENCE).unwrap());
        let (far, _) = listener.accept().unwrap();
        far.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
        near.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
        let is_sent = std::io::Write::write_all(&mut &near, &vec![1; bytes]).is_ok();
        near.shutdown(Shutdown::Write).unwrap();
        std::io::Read::read_to_end(&mut &far, &mut Vec::new())
            .is_ok_and(|read| is_sent && read == bytes)
    };
    assert!(passes(100_000));
    lab.set_mtu(0, 1300).unwrap();
    assert!(passes(1000), "what fits passes");
    assert!(!passes(100_000), "the rest vanishes");
    lab.set_mtu(0, 1500).unwrap();
    assert!(passes(100_000));
    let error = lab.set_mtu(0, 9000).unwrap_err().to_string();
    assert!(error.contains("mtu `9000`") && error.contains("1280 to 1500"), "{error}");
}

#[test]
fn without_a_switch_no_mtu_can_be_set() {
    let Some(_turn) = root_turn() else { return };
    let lab = network(Network::Subnet, "unlimited");
    let error = lab.set_mtu(0, 1300).unwrap_err().to_string();
    assert!(error.contains("mtu `1300`") && error.contains("--nodes"), "{error}");
}

#[test]
fn a_firewall_lets_one_way_in_and_ends_when_it_is_off() {
    let Some(_turn) = root_turn() else { return };
    let lab = network(Network::Routed, "unlimited");
    // Connects from one side to the other.
    let connects = |from: Side| {
        let ip = v4(lab.rails()[0].end(from.other()));
        let listener =
            on(&lab, from.other(), || TcpListener::bind(SocketAddr::new(ip, 0)).unwrap());
        let address = listener.local_addr().unwrap();
        on(&lab, from, || TcpStream::connect_timeout(&address, Duration::from_millis(400)).is_ok())
    };
    match lab.set_firewall(0, Side::B, Firewall::Drop) {
        Err(error) if error.to_string() == "the `nft` program is missing" => {
            return skipped("the `nft` program is missing (nftables)");
        }
        result => result.unwrap(),
    }
    assert!(!connects(Side::A) && connects(Side::B));
    lab.set_firewall(0, Side::B, Firewall::Reject).unwrap();
    assert!(!connects(Side::A) && connects(Side::B));
    lab.set_firewall(0, Side::B, Firewall::Off).unwrap();
    assert!(connects(Side::A) && connects(Side::B));
}
