//! Pairing of the rails of two nodes: by reachability, and not by number, name or subnet alone.

use crate::common::wait_until;
use crate::net::{Net, Run};

/// Slow enough that a busy machine keeps up.
const MBIT: u32 = 100;

/// Two nodes as on GCP: each NIC in its own network, with a /32 address and a route to the network by device.
fn host_routes(test: &str, nics: usize) -> Option<Net> {
    let mut net = Net::new(test, &["a", "b"])?;
    for k in 1..=nics {
        for (node, host) in [("a", 11), ("b", 12)] {
            let name = format!("eth{k}");
            net.nic(node, &name, &format!("vpc{k}"), &[&format!("10.{k}.0.{host}/32")]);
            net.ip(node, &format!("route add 10.{k}.0.0/24 dev {name}"));
            net.limit(node, &name, MBIT);
        }
    }
    net.settle();
    Some(net)
}

/// Checks that the rate is what this many rails carry, give or take the bursts of token buckets.
#[track_caller]
fn assert_rate(run: &Run, rails: u32) {
    let wanted = f64::from(rails * MBIT) / 8000.0;
    assert!((wanted * 0.75..wanted * 1.6).contains(&run.rate()), "{} GB/s\n{run}", run.rate());
}

#[test]
fn nics_with_a_32_each_are_paired_by_their_networks() {
    let Some(net) = host_routes("gcp", 4) else { return };
    let run = net.bench(("a", "10.1.0.11:0"), ("b", ""));
    run.assert_carry(&["eth1", "eth2", "eth3", "eth4"]);
    assert_rate(&run, 4);
}

#[test]
fn one_nic_down_leaves_the_others_paired_and_is_named_at_both_ends() {
    let Some(net) = host_routes("gcp-down", 4) else { return };
    net.ip("b", "link set eth2 down");
    let run = net.bench(("a", "10.1.0.11:0"), ("b", ""));
    run.assert_carry(&["eth1", "eth3", "eth4"]);
    run.assert_both_say(&["eth2", "down"]);
}

#[test]
fn the_first_nic_down_keeps_nobody_from_connecting() {
    let Some(net) = host_routes("gcp-first", 4) else { return };
    net.ip("b", "link set eth1 down");
    let run = net.bench(("a", "10.2.0.11:0"), ("b", ""));
    run.assert_carry(&["eth2", "eth3", "eth4"]);
    run.assert_both_say(&["eth1"]);
}

#[test]
fn rails_named_in_another_order_are_paired_by_their_networks() {
    let Some(net) = host_routes("gcp-order", 2) else { return };
    let run = net.bench(("a", "10.2.0.11:0 --rails eth1,eth2"), ("b", "--rails eth2,eth1"));
    run.assert_carry(&["eth1", "eth2"]);
    assert_rate(&run, 2);
}

#[test]
fn fewer_rails_named_at_one_end_are_those_that_carry() {
    let Some(net) = host_routes("gcp-fewer", 4) else { return };
    let run = net.bench(("a", "10.3.0.11:0 --rails eth3,eth4"), ("b", ""));
    run.assert_carry(&["eth3", "eth4"]);
    let run = net.bench(("a", "10.1.0.11:0"), ("b", "--rails eth4"));
    run.assert_carry(&["eth4"]);
}

#[test]
fn nics_in_another_order_at_the_other_node_are_paired_by_their_networks() {
    let Some(mut net) = Net::new("crossed", &["a", "b"]) else { return };
    for (a, b, third) in [("eth1", "eth2", 1), ("eth2", "eth3", 2), ("eth3", "eth1", 3)] {
        net.nic("a", a, &format!("lan{third}"), &[&format!("10.0.{third}.1/24")]);
        net.nic("b", b, &format!("lan{third}"), &[&format!("10.0.{third}.2/24")]);
        net.limit("a", a, MBIT);
        net.limit("b", b, MBIT);
    }
    net.settle();
    let run = net.bench(("a", "10.0.1.1:0"), ("b", ""));
    run.assert_carry(&["eth1", "eth2", "eth3"]);
    assert_rate(&run, 3);
}

#[test]
fn a_31_per_nic_carries() {
    let Some(mut net) = Net::new("p2p", &["a", "b"]) else { return };
    for k in 0..3 {
        let name = format!("eth{k}");
        net.wire(("b", Some(&name)), ("a", &name), &[&format!("10.5.{k}.0/31")]);
        net.address("b", &name, &format!("10.5.{k}.1/31"));
        net.limit("a", &name, MBIT);
        net.limit("b", &name, MBIT);
    }
    net.settle();
    let run = net.bench(("a", ""), ("b", ""));
    run.assert_carry(&["eth0", "eth1", "eth2"]);
}

#[test]
fn nics_with_a_128_each_are_paired_by_their_routes() {
    let Some(mut net) = Net::new("gcp6", &["a", "b"]) else { return };
    for k in 1..=3 {
        for (node, host) in [("a", 1), ("b", 2)] {
            let name = format!("eth{k}");
            net.nic(node, &name, &format!("vpc{k}"), &[&format!("fd00:{k}::{host}/128")]);
            net.ip(node, &format!("-6 route add fd00:{k}::/64 dev {name}"));
            net.limit(node, &name, MBIT);
        }
    }
    net.ip("a", "link set eth1 down");
    net.settle();
    let run = net.bench(("a", "[fd00:2::1]:0"), ("b", ""));
    run.assert_carry(&["eth2", "eth3"]);
}

#[test]
fn a_nic_lost_on_the_way_leaves_the_others_carrying() {
    let Some(net) = host_routes("gcp-lost", 3) else { return };
    let long =
        "--sizes 256KiB --iters 300 --depth 8 --warmup 50ms --rounds 1 --verify sample --json -";
    let run = net.bench_while(("a", "10.1.0.11:0"), ("b", long), || {
        // The middle of the run, which no output marks.
        std::thread::sleep(std::time::Duration::from_millis(1200));
        net.ip("b", "link set eth2 down");
    });
    let carried = run.carried();
    let bytes =
        |name: &str| carried.iter().find(|(rail, _)| rail == name).map_or(0, |(_, bytes)| *bytes);
    assert!(bytes("eth1") > bytes("eth2") && bytes("eth3") > bytes("eth2"), "{carried:?}\n{run}");
    run.assert_both_say(&["eth2"]);
}

#[test]
fn four_nics_against_two_in_one_subnet_make_two_rails() {
    let Some(mut net) = Net::new("four-two", &["a", "b"]) else { return };
    for k in 1..=4 {
        net.nic(
            "a",
            &format!("eth{k}"),
            &format!("lan{}", k % 2),
            &[&format!("10.0.{}.{k}/24", k % 2)],
        );
        net.limit("a", &format!("eth{k}"), MBIT);
    }
    for k in 1..=2 {
        net.nic(
            "b",
            &format!("eth{k}"),
            &format!("lan{}", k % 2),
            &[&format!("10.0.{}.2{k}/24", k % 2)],
        );
        net.limit("b", &format!("eth{k}"), MBIT);
    }
    for node in ["a", "b"] {
        net.sysctl(node, "net.ipv4.conf.all.arp_ignore=1");
        net.sysctl(node, "net.ipv4.conf.all.arp_announce=2");
    }
    net.settle();
    net.bench(("a", "10.0.1.1:0"), ("b", "")).assert_carry(&["eth1", "eth2"]);
}

/// Two nodes with a slow management subnet and two NICs each behind a router: /31 links, as with BGP to the host, or
/// with `rack` one subnet for each NIC.
fn routed(test: &str, rack: bool) -> Option<Net> {
    let mut net = Net::new(test, &["a", "b"])?;
    for (node, k) in [("a", 1), ("b", 2)] {
        net.nic(node, "eth0", "mgmt", &[&format!("192.168.9.{k}/24")]);
        net.limit(node, "eth0", 10);
        for (name, plane) in [("eth1", 20), ("eth2", 21)] {
            let (bits, near, far) = if rack { (24, 11, 1) } else { (31, 1, 0) };
            let to = format!("10.{plane}.{k}");
            net.routed(node, name, &format!("{to}.{near}/{bits}"), &format!("{to}.{far}/{bits}"));
            net.ip(node, &format!("route add 10.{plane}.0.0/16 via {to}.{far} dev {name}"));
            net.limit(node, name, MBIT);
        }
    }
    net.settle();
    Some(net)
}

#[test]
fn routed_data_rails_carry_beside_a_management_subnet() {
    let Some(net) = routed("bgp", false) else { return };
    let run = net.bench(("a", "10.20.1.1:0"), ("b", ""));
    let carried = run.carried();
    let bytes =
        |name: &str| carried.iter().find(|(rail, _)| rail == name).map_or(0, |(_, bytes)| *bytes);
    assert!(bytes("eth1") > 0 && bytes("eth2") > 0, "{carried:?}\n{run}");
    assert!(bytes("eth0") < bytes("eth1") / 2, "the management NIC is slow: {carried:?}\n{run}");
    assert!(run.rate() > 0.018, "{} GB/s\n{run}", run.rate());
}

#[test]
fn without_the_management_nic_the_routed_ones_carry() {
    let Some(net) = routed("bgp-named", false) else { return };
    let run = net.bench(("a", "10.20.1.1:0 --rails ^eth0"), ("b", "--rails ^eth0"));
    run.assert_carry(&["eth1", "eth2"]);
    assert_rate(&run, 2);
}

#[test]
fn a_subnet_per_rack_carries_by_its_routes() {
    let Some(net) = routed("racks", true) else { return };
    let run = net.bench(("a", "10.21.1.11:0 --rails eth1,eth2"), ("b", "--rails eth1,eth2"));
    run.assert_carry(&["eth1", "eth2"]);
}

#[test]
fn a_management_nic_that_is_all_there_is_carries_and_the_others_are_named() {
    let Some(net) = routed("mgmt-only", false) else { return };
    for port in ["p2", "p3"] {
        net.ip("router", &format!("link set {port} down"));
    }
    let run = net.bench(("a", "192.168.9.1:0"), ("b", ""));
    run.assert_carry(&["eth0"]);
    run.assert_both_say(&["eth1", "eth2"]);
}

#[test]
fn one_default_route_serves_several_nics() {
    let Some(mut net) = Net::new("default-route", &["a", "b"]) else { return };
    for (node, k) in [("a", 1), ("b", 2)] {
        for (name, plane) in [("eth0", 20), ("eth1", 21)] {
            let to = format!("10.{plane}.{k}");
            net.routed(node, name, &format!("{to}.1/31"), &format!("{to}.0/31"));
            net.limit(node, name, MBIT);
        }
        net.ip(node, &format!("route add default via 10.20.{k}.0"));
        // The second NIC has its own routing table, as in clouds: the source address decides.
        net.ip(node, &format!("route add default via 10.21.{k}.0 table 21"));
        net.ip(node, &format!("rule add from 10.21.{k}.1 table 21"));
    }
    net.settle();
    let run = net.bench(("a", "10.20.1.1:0"), ("b", ""));
    run.assert_carry(&["eth0", "eth1"]);
    assert_rate(&run, 2);
}

#[test]
fn baselines_take_the_pairs_of_rails_that_the_engine_has_where_the_ends_have_unequal_rails() {
    let Some(mut net) = Net::new("against", &["a", "b"]) else { return };
    for (node, host, nics) in [("a", 1, [1, 2, 3].as_slice()), ("b", 2, &[3, 2])] {
        for (at, k) in nics.iter().enumerate() {
            let name = format!("eth{at}");
            net.nic(node, &name, &format!("lan{k}"), &[&format!("10.0.{k}.{host}/24")]);
            net.limit(node, &name, MBIT);
        }
    }
    net.settle();
    for (listening, connecting) in [(("a", "10.0.2.1:0"), "b"), (("b", "10.0.2.2:0"), "a")] {
        let run = net.bench(listening, (connecting, "--against raw,alone"));
        run.assert_carry(if connecting == "a" { &["eth1", "eth2"] } else { &["eth0", "eth1"] });
    }
}

/// Two nodes with `nics` NICs each on one Ethernet, with the kernel's defaults: each answers for the others' addresses.
fn one_subnet(test: &str, nics: usize) -> Option<Net> {
    let mut net = Net::new(test, &["a", "b"])?;
    for k in 1..=nics {
        for (node, tens) in [("a", 1), ("b", 2)] {
            let name = format!("eth{k}");
            let (v4, v6) = (format!("10.0.0.{tens}{k}/24"), format!("fd00::{tens}{k}/64"));
            net.nic(node, &name, "lan", &[&v4, &v6]);
            net.limit(node, &name, MBIT);
        }
    }
    net.settle();
    Some(net)
}

#[test]
fn several_nics_on_one_ethernet_connect_with_the_kernels_defaults() {
    let Some(net) = one_subnet("flux", 2) else { return };
    let run = net.bench(("a", "10.0.0.11:0"), ("b", ""));
    run.assert_carry(&["eth1", "eth2"]);
    // The kernel routes all traffic of a subnet through its first NIC, so connections are bound to their devices.
    assert_rate(&run, 2);
}

#[test]
fn a_connection_whose_peer_learns_another_nics_address_goes_on_by_the_routes() {
    let Some(net) = one_subnet("flux-moved", 2) else { return };
    let sent = |nic: &str| {
        let count = net.exec("b", &format!("cat /sys/class/net/{nic}/statistics/tx_bytes"));
        count.trim().parse::<u64>().unwrap()
    };
    let options = "--sizes 256KiB --iters 300 --depth 8 --warmup 50ms --rounds 1 --verify sample --json - \
                   --set log_level=info";
    let run = net.bench_while(("a", "10.0.0.11:0"), ("b", options), || {
        wait_until("eth2 to carry", || sent("eth2") > 5_000_000);
        let other = net.exec("b", "cat /sys/class/net/eth1/address");
        for device in ["eth1", "eth2"] {
            let wrong = format!(
                "neigh replace 10.0.0.22 lladdr {} dev {device} nud permanent",
                other.trim()
            );
            net.ip("a", &wrong);
        }
    });
    run.assert_carry(&["eth1", "eth2"]);
    run.connecting.assert_says(&["by the rail's address, not by its device"]);
}

#[test]
fn one_nic_that_receives_for_all_of_its_subnet_is_named_with_the_settings_that_change_it() {
    let Some(net) = one_subnet("flux-named", 2) else { return };
    let mac = net.exec("b", "cat /sys/class/net/eth1/address");
    for (address, device) in [(1, "eth1"), (1, "eth2"), (2, "eth1"), (2, "eth2")] {
        let entry = format!("10.0.0.2{address} lladdr {} dev {device}", mac.trim());
        net.ip("a", &format!("neigh replace {entry} nud permanent"));
    }
    let run = net.bench(("b", "10.0.0.21:0"), ("a", ""));
    let words = "eth1, eth2 at the other side are in one subnet, and 100 % of what they receive arrives by eth1";
    run.connecting.assert_says(&[words, "arp_ignore=1 net.ipv4.conf.all.arp_announce=2"]);
}

#[test]
fn an_address_that_comes_after_the_start_makes_no_rail_and_both_ends_say_so() {
    let Some(net) = host_routes("late", 2) else { return };
    net.ip("b", "-4 addr flush dev eth2");
    let options =
        "--sizes 256KiB --iters 300 --depth 8 --warmup 50ms --rounds 1 --verify sample --json -";
    let run = net.bench_while(("a", "10.1.0.11:0"), ("b", options), || {
        wait_until("eth1 to carry", || {
            let count = net.exec("b", "cat /sys/class/net/eth1/statistics/tx_bytes");
            count.trim().parse::<u64>().unwrap() > 5_000_000
        });
        net.address("b", "eth2", "10.2.0.12/32");
        net.ip("b", "route add 10.2.0.0/24 dev eth2");
    });
    run.assert_carry(&["eth1"]);
    run.assert_both_say(&["eth2 ", "after the program of that end had started"]);
}

#[test]
fn a_strict_filter_of_return_paths_leaves_a_rail_and_a_reason() {
    let Some(net) = one_subnet("flux-filter", 2) else { return };
    for node in ["a", "b"] {
        for name in ["all", "eth1", "eth2"] {
            net.sysctl(node, &format!("net.ipv4.conf.{name}.rp_filter=1"));
        }
        net.ip(node, "neigh flush all");
    }
    let run = net.bench(("a", "10.0.0.11:0"), ("b", ""));
    let carried = run.carried();
    let missing = ["eth1", "eth2"]
        .into_iter()
        .filter(|name| !carried.iter().any(|(rail, bytes)| rail == name && *bytes > 0));
    let missing: Vec<&str> = missing.collect();
    assert!(missing.len() < 2, "{carried:?}\n{run}");
    run.assert_both_say(&missing);
}

#[test]
fn three_nics_on_one_ethernet_connect_by_ipv6() {
    let Some(net) = one_subnet("flux6", 3) else { return };
    for node in ["a", "b"] {
        for name in ["eth1", "eth2", "eth3"] {
            net.ip(node, &format!("-4 addr flush dev {name}"));
        }
    }
    net.bench(("a", "[fd00::11]:0"), ("b", "")).assert_carry(&["eth1", "eth2", "eth3"]);
}

#[test]
fn nics_on_one_ethernet_that_answer_for_themselves_alone_all_carry() {
    let Some(net) = one_subnet("no-flux", 3) else { return };
    for node in ["a", "b"] {
        net.sysctl(node, "net.ipv4.conf.all.arp_ignore=1");
        net.sysctl(node, "net.ipv4.conf.all.arp_announce=2");
        net.ip(node, "neigh flush all");
    }
    let run = net.bench(("a", "10.0.0.12:0"), ("b", ""));
    run.assert_carry(&["eth1", "eth2", "eth3"]);
    assert!(!run.connecting.said().contains("arp_ignore"), "{run}");
    assert_rate(&run, 3);
}
