//! Rails that `auto` takes on typical machines of users.

use crate::rails::{
    AddressState, Below, Interface, Kind, LeftOut, Routes, Wanted, best, check_count, left_out,
    remark, select, unknown as unknown_names, why_none,
};

fn wanted(spec: &str) -> Wanted<'_> {
    Wanted { spec, is_named: spec != "auto" && !spec.starts_with('^'), family: None }
}

/// Returns an interface with a number and a prefix (`10.0.0.1/24`), or none.
fn one(index: u32, name: &str, address: &str) -> Interface {
    let (address, prefix) = address.split_once('/').unwrap_or((address, ""));
    let address = if address.is_empty() { "0.0.0.0" } else { address };
    let described = Interface::described(index, name, address.parse().unwrap());
    Interface { prefix_len: prefix.parse().unwrap_or(described.prefix_len), ..described }
}

fn kind(kind: Kind, interface: Interface) -> Interface {
    Interface { kind, ..interface }
}

/// Makes it a member of the interface with this number.
fn member(of: u32, interface: Interface) -> Interface {
    Interface { master: Some(of), ..interface }
}

/// Puts it on the interface with this number; for a veth, its other end.
fn on(below: u32, interface: Interface) -> Interface {
    Interface { below: Below::Link(below), ..interface }
}

/// Puts it on an interface of another network namespace; for a veth, with its other end there.
fn outside(interface: Interface) -> Interface {
    Interface { below: Below::Elsewhere, ..interface }
}

fn by_default(interface: Interface) -> Interface {
    Interface { routes: Routes::Default, ..interface }
}

fn down(interface: Interface) -> Interface {
    Interface { up: false, ..interface }
}

fn lo() -> Interface {
    one(1, "lo", "127.0.0.1/8")
}

struct Seen {
    rails: Vec<String>,
    left_out: String,
    remark: Option<String>,
}

fn seen(spec: &str, mut all: Vec<Interface>) -> Seen {
    all.push(lo());
    all.sort_by_key(|one| one.index);
    let rails = select(spec, &all).unwrap();
    Seen {
        left_out: LeftOut::line(&left_out(wanted(spec), &all, &rails)).unwrap_or_default(),
        remark: remark(wanted(spec), &all, &rails),
        rails: rails.iter().map(|rail| format!("{} {}", rail.interface, rail.address)).collect(),
    }
}

/// Checks a machine: the rails that `auto` takes, the line about the others, and whether there is a remark.
#[track_caller]
fn takes(all: Vec<Interface>, rails: &[&str], left_out: &str, is_remarked: bool) {
    let seen = seen("auto", all);
    assert_eq!(seen.rails, rails);
    assert_eq!(seen.left_out, left_out);
    assert_eq!(seen.remark.is_some(), is_remarked, "{:?}", seen.remark);
}

#[test]
fn a_pod_has_only_its_own_end_of_a_veth() {
    for prefix in [24, 32] {
        let eth0 = outside(kind(Kind::Veth, one(3, "eth0", &format!("10.244.0.11/{prefix}"))));
        takes(vec![by_default(eth0)], &["eth0 10.244.0.11"], "", false);
    }
    // No route was added for it, and it has the same number as its other end.
    let alone = outside(kind(Kind::Veth, one(2, "eth0", "10.244.0.11/24")));
    takes(vec![alone], &["eth0 10.244.0.11"], "", false);
}

#[test]
fn a_pod_with_two_networks_has_both_and_one_with_a_nic_has_that() {
    let eth0 = || by_default(outside(kind(Kind::Veth, one(3, "eth0", "10.244.0.11/24"))));
    let net1 = outside(kind(Kind::Veth, one(5, "net1", "192.168.9.2/24")));
    takes(vec![eth0(), net1], &["eth0 10.244.0.11", "net1 192.168.9.2"], "", false);
    // Multus: a macvlan on a NIC of the host, and a virtual function that was moved here.
    let macvlan = outside(kind(Kind::Macvlan, one(4, "net1", "10.56.0.7/24")));
    let function = one(6, "net2", "10.57.0.7/24");
    takes(
        vec![eth0(), macvlan, function],
        &["net1 10.56.0.7", "net2 10.57.0.7"],
        "eth0 (a veth)",
        false,
    );
}

#[test]
fn a_pod_of_a_host_that_runs_containers_itself_keeps_its_way_out() {
    let eth0 = by_default(outside(kind(Kind::Veth, one(3, "eth0", "10.244.0.11/32"))));
    let docker = kind(Kind::Bridge, one(4, "docker0", "172.17.0.1/16"));
    let port = member(4, outside(kind(Kind::Veth, one(5, "veth1", ""))));
    takes(
        vec![eth0, docker, port],
        &["eth0 10.244.0.11"],
        "docker0 (a bridge without a NIC)",
        false,
    );
}

#[test]
fn a_cloud_node_has_its_nics_whatever_they_are_called() {
    let nics = vec![one(2, "docker7", "10.128.0.5/32"), one(3, "veth1", "10.129.0.5/32")];
    takes(nics, &["docker7 10.128.0.5", "veth1 10.129.0.5"], "", false);
}

#[test]
fn a_node_of_calico_and_tailscale_has_its_nic() {
    let mut all = vec![
        one(2, "eth0", "10.1.1.11/32"),
        kind(Kind::Overlay, one(3, "vxlan.calico", "10.244.10.0/32")),
        kind(Kind::Tunnel, one(4, "tailscale0", "100.101.1.1/32")),
        kind(Kind::Dummy, one(5, "nodelocaldns", "10.96.0.10/32")),
        kind(Kind::Tunnel, one(6, "tunl0", "10.244.10.1/32")),
    ];
    // Host ends of the pods' veths, which have no address themselves.
    for index in 10..200 {
        let cali = one(index, &format!("cali{index}"), "fe80::ecee:eeff:feee:eeee/64");
        all.push(outside(kind(Kind::Veth, cali)));
    }
    let left_out = "vxlan.calico (an overlay); tailscale0, tunl0 (a tunnel or point-to-point link); \
                    nodelocaldns (a dummy)";
    takes(all.clone(), &["eth0 10.1.1.11"], left_out, false);
    assert_eq!(seen("^docker", all.clone()).rails, ["eth0 10.1.1.11"], "it names no tunnel");
    assert_eq!(seen("tailscale0,eth0", all).rails, ["tailscale0 100.101.1.1", "eth0 10.1.1.11"]);
}

#[test]
fn a_node_of_cilium_has_its_nic_and_no_pair_of_veths() {
    let host = on(4, kind(Kind::Veth, one(3, "cilium_host", "10.0.1.7/32")));
    let net = on(3, kind(Kind::Veth, one(4, "cilium_net", "")));
    takes(
        vec![one(2, "ens5", "172.31.4.5/20"), host, net],
        &["ens5 172.31.4.5"],
        "cilium_host (a veth with both ends in this host)",
        false,
    );
}

#[test]
fn a_docker_host_has_its_nic() {
    let docker = kind(Kind::Bridge, one(3, "docker0", "172.17.0.1/16"));
    let port = member(3, outside(kind(Kind::Veth, one(4, "veth1", ""))));
    let left_out = "docker0 (a bridge without a NIC)";
    takes(vec![one(2, "eno1", "10.0.0.5/24"), docker, port], &["eno1 10.0.0.5"], left_out, false);
}

#[test]
fn a_bridge_over_a_nic_has_the_hosts_address_in_place_of_its_members() {
    // Proxmox.
    let all = |nic: &str| {
        vec![
            member(4, one(2, "eno1", nic)),
            down(one(3, "eno2", "")),
            kind(Kind::Bridge, one(4, "vmbr0", "10.0.0.5/24")),
            member(4, kind(Kind::Tunnel, one(5, "tap100i0", ""))),
        ]
    };
    let left_out = "eno1 (a member of vmbr0); eno2 (down)";
    takes(all(""), &["vmbr0 10.0.0.5"], left_out, false);
    takes(all("10.0.0.6/24"), &["vmbr0 10.0.0.5"], left_out, false);
}

#[test]
fn a_bridge_over_a_bond_or_a_vlan_of_it_counts_like_the_nics_below() {
    let all = vec![
        member(4, one(2, "eno1", "")),
        member(4, one(3, "eno2", "")),
        member(6, kind(Kind::Bond, one(4, "bond0", ""))),
        on(4, kind(Kind::Vlan, one(5, "bond0.205", "10.2.0.5/24"))),
        kind(Kind::Bridge, one(6, "br0", "10.0.0.5/24")),
        on(6, kind(Kind::Vlan, one(7, "br0.9", "10.9.0.5/24"))),
    ];
    takes(
        all,
        &["bond0.205 10.2.0.5", "br0 10.0.0.5", "br0.9 10.9.0.5"],
        "eno1, eno2 (a member of bond0); bond0 (a member of br0)",
        false,
    );
}

#[test]
fn azures_interface_has_the_address_of_its_virtual_function() {
    let function = member(2, one(3, "enP51153s1", "fe80::1/64"));
    let all = vec![one(2, "eth0", "10.0.0.4/24"), function];
    takes(all, &["eth0 10.0.0.4"], "enP51153s1 (a member of eth0)", false);
}

#[test]
fn the_members_of_a_vrf_keep_their_addresses() {
    let vrf = kind(Kind::Vrf, one(3, "red", "10.9.9.9/32"));
    let all = vec![member(3, one(2, "eth0", "10.0.0.4/24")), vrf];
    takes(all, &["eth0 10.0.0.4"], "red (a VRF)", false);
}

#[test]
fn of_open_vswitch_the_port_with_the_default_route_counts() {
    let switch =
        |index, name: &str, address: &str| kind(Kind::OpenVswitch, one(index, name, address));
    // OVN-Kubernetes.
    let all = vec![
        member(3, one(2, "eno1", "")),
        switch(3, "ovs-system", ""),
        by_default(switch(4, "br-ex", "10.0.0.5/24")),
        switch(5, "ovn-k8s-mp0", "10.128.0.2/23"),
    ];
    takes(
        all,
        &["br-ex 10.0.0.5"],
        "eno1 (a member of ovs-system); ovn-k8s-mp0 (a port of Open vSwitch without the default route)",
        false,
    );
}

#[test]
fn a_host_of_virtual_machines_without_a_cable_says_that_no_nic_leads_out() {
    let all = |is_up| {
        let bridge = kind(Kind::Bridge, one(3, "virbr0", "192.168.122.1/24"));
        let port = member(3, kind(Kind::Tunnel, one(4, "vnet0", "")));
        let bridge = if is_up { bridge } else { down(bridge) };
        vec![down(one(2, "eno1", "10.0.0.5/24")), bridge, port]
    };
    takes(all(true), &["virbr0 192.168.122.1"], "eno1 (down)", true);
    takes(all(false), &["lo 127.0.0.1"], "eno1, virbr0 (down)", true);
}

#[test]
fn a_tunnel_that_is_the_only_way_out_is_taken_and_said() {
    let tun = |routes| {
        let tap = kind(Kind::Tunnel, one(2, "tap0", "10.0.2.100/24"));
        vec![Interface { routes, ..tap }]
    };
    for routes in [Routes::Default, Routes::Networks, Routes::None] {
        takes(tun(routes), &["tap0 10.0.2.100"], "", true);
    }
    let bare = kind(Kind::Tunnel, one(2, "wg0", "10.9.0.1/32"));
    let left_out = "wg0 (a tunnel or point-to-point link)";
    takes(vec![bare.clone()], &["lo 127.0.0.1"], left_out, true);
    takes(vec![Interface { routes: Routes::Networks, ..bare }], &["wg0 10.9.0.1"], "", true);
    let dummy = kind(Kind::Dummy, one(2, "dummy0", "10.9.0.1/24"));
    takes(vec![dummy.clone()], &["lo 127.0.0.1"], "dummy0 (a dummy)", true);
    takes(vec![by_default(dummy)], &["dummy0 10.9.0.1"], "", true);
}

#[test]
fn a_host_whose_nics_have_no_addresses_takes_its_own() {
    // BGP to the host, with IPv6 link-local next hops.
    let nics = || vec![one(2, "eth0", "fe80::1/64"), one(3, "eth1", "fe80::2/64")];
    let own = one(1, "lo", "10.0.0.21/32");
    let mut all = nics();
    all.push(Interface { kind: Kind::Loopback, loopback: true, ..own });
    let seen = seen("auto", all);
    assert_eq!((seen.rails, seen.remark), (vec!["lo 10.0.0.21".to_owned()], None));
    let left_out = "eth0 (no address that peers can reach: only fe80::1, which is link-local); \
                    eth1 (no address that peers can reach: only fe80::2, which is link-local)";
    takes(nics(), &["lo 127.0.0.1"], left_out, true);
    // A node that is a container, with veths for its uplinks.
    let own = Interface { kind: Kind::Loopback, loopback: true, ..one(1, "lo", "10.50.0.2/32") };
    let veth = |index, address| Interface {
        below: Below::Elsewhere,
        ..kind(Kind::Veth, one(index, &format!("eth{index}"), address))
    };
    let all = vec![veth(2, "fe80::1/64"), veth(3, "fe80::2/64"), own];
    assert_eq!(self::seen("auto", all).rails, ["lo 10.50.0.2"]);
}

#[test]
fn addresses_that_peers_cannot_reach_are_no_rails() {
    let tentative = Interface { state: AddressState::Tentative, ..one(2, "eth0", "fd00::1/64") };
    let all = vec![tentative, one(3, "eth1", ""), one(4, "eth2", "10.0.2.1/24")];
    takes(
        all,
        &["eth2 10.0.2.1"],
        "eth0 (no address that peers can reach: only fd00::1, which is tentative: the kernel asks if \
         another host has it); eth1 (no address)",
        false,
    );
}

#[test]
fn veths_of_a_container_that_are_no_rails_have_a_reason() {
    let veth = |index, address: &str| {
        outside(kind(Kind::Veth, one(index, &format!("eth{}", index - 2), address)))
    };
    let eth0 = || by_default(veth(2, "10.60.0.1/24"));
    takes(
        vec![eth0(), veth(3, ""), veth(4, "fe80::1/64"), down(veth(5, ""))],
        &["eth0 10.60.0.1"],
        "eth1 (no address); eth2 (no address that peers can reach: only fe80::1, which is link-local); \
         eth3 (down)",
        false,
    );
    takes(
        vec![eth0(), veth(3, "10.60.1.1/32")],
        &["eth0 10.60.0.1"],
        "eth1 (a veth without a route)",
        false,
    );
    // The macvlan has the address.
    let macvlan = on(3, kind(Kind::Macvlan, one(4, "net1", "10.56.0.7/24")));
    takes(vec![veth(3, ""), macvlan], &["net1 10.56.0.7"], "", false);
    // Calico in a node that is a container: host ends of its pods' veths, with a route to each pod.
    let pod = Interface { routes: Routes::Networks, ..veth(3, "fe80::ecee:eeff:feee:eeee/64") };
    takes(vec![eth0(), pod], &["eth0 10.60.0.1"], "", false);
    // Cilium there. Its veths have no routes, and each has another address.
    let pods = (3..103).map(|at| veth(at, &format!("fe80::{at}/64")));
    let line = seen("auto", [eth0()].into_iter().chain(pods).collect()).left_out;
    assert!(line.ends_with("fe80::18, which is link-local); and 84 more"), "{line}");
}

#[test]
fn an_interface_whose_name_is_not_utf8_is_no_rail_and_has_that_as_its_reason() {
    let odd = one(3, "rail\\xff", "10.0.1.1/24");
    let odd = Interface { state: AddressState::Unnameable, ..odd };
    takes(
        vec![one(2, "rail0", "10.0.0.1/24"), odd.clone()],
        &["rail0 10.0.0.1"],
        "rail\\xff (its name is not UTF-8)",
        false,
    );
    let unfit = select("rail", &[lo(), odd.clone()]).unwrap_err();
    assert!(unfit.why.ends_with("10.0.1.1, and the name of the interface is not UTF-8"));
    assert!(select("10.0.1.1", &[lo(), odd]).is_err());
}

#[test]
fn of_more_interfaces_than_an_engine_can_have_rails_the_others_are_left_out() {
    let nics =
        (2..68).map(|at: u32| one(at, &format!("eth{}", at - 2), &format!("10.0.{at}.1/24")));
    let all: Vec<_> = [lo()].into_iter().chain(nics).collect();
    for (spec, first) in [("auto", "eth0"), ("^eth0", "eth1")] {
        let rails = best(select(spec, &all).unwrap());
        assert_eq!((rails.len(), rails[0].name.as_str()), (64, first));
        let line = LeftOut::line(&left_out(wanted(spec), &all, &rails)).unwrap();
        let expected = match spec {
            "auto" => "eth64, eth65 (more than 64 rails)",
            _ => "eth0 (`rails` leaves it out); eth65 (more than 64 rails)",
        };
        assert_eq!(line, expected);
    }
    assert_eq!(
        check_count(select("eth", &all).unwrap().len()).unwrap_err().why,
        "these are 66 rails"
    );
}

#[test]
fn names_to_leave_out_that_match_nothing_are_found_and_what_is_left_has_reasons() {
    let all = vec![
        lo(),
        one(2, "eth0", "10.0.0.1/24"),
        one(3, "eth1", ""),
        down(one(4, "eth2", "10.0.2.1/24")),
    ];
    let unknown = |spec| unknown_names(wanted(spec), &all);
    assert_eq!(unknown("^eth9,lo,eth"), ["eth9"]);
    assert_eq!(unknown("^=et,eth1"), ["et"]);
    assert!(unknown("^et,lo").is_empty() && unknown("auto").is_empty());
    let why = why_none(wanted("^eth0"), &all);
    assert_eq!(why.as_deref(), Some("eth1 (no address); eth2 (down)"));
    assert_eq!(why_none(wanted("eth0"), &all), None);
}

#[test]
fn nothing_but_the_loopback_interface_is_taken_and_said() {
    let seen = seen("auto", Vec::new());
    assert_eq!((seen.rails, seen.left_out), (vec!["lo 127.0.0.1".to_owned()], String::new()));
    let remark = seen.remark.unwrap();
    assert!(remark.ends_with("only this host can reach 127.0.0.1"), "{remark}");
}

#[test]
fn the_reason_is_what_the_settings_say_where_they_name_interfaces() {
    let all =
        || (2..14).map(|at| one(at, &format!("eth{at}"), &format!("10.0.{at}.1/24"))).collect();
    let seen_of = |spec| seen(spec, all()).left_out;
    assert_eq!(
        seen_of("=eth2,eth13"),
        "eth3, eth4, eth5, eth6, eth7, eth8, eth9, eth10 and 2 more (`rails` does not name it)"
    );
    assert_eq!(seen_of("^=eth3"), "eth3 (`rails` leaves it out)");
    assert_eq!(seen_of("eth"), "");
}

#[test]
fn interfaces_in_a_circle_end() {
    // No kernel reports that, but a change between two of its answers could cause it.
    let ring = vec![
        on(3, kind(Kind::Vlan, one(2, "a", "10.0.0.1/24"))),
        on(2, kind(Kind::Vlan, one(3, "b", "10.0.1.1/24"))),
        member(4, kind(Kind::Bond, one(4, "c", "10.0.2.1/24"))),
    ];
    assert_eq!(seen("auto", ring).rails, ["lo 127.0.0.1"]);
}
