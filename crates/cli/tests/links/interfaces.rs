//! Interfaces and paths in an odd state: without an address, gone, renamed, behind a firewall, with a small MTU.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::common::fit::fits;
use crate::common::wait_until;
use crate::net::{Net, Run};

/// Options of a run of some 2 s over two rails of 100 Mbit/s.
const LONG: &str =
    "--sizes 256KiB --iters 200 --depth 8 --warmup 50ms --rounds 1 --verify sample --json -";

/// Two nodes with `nics` NICs each, every pair in its own subnet.
fn plain(test: &str, nics: usize) -> Option<Net> {
    let mut net = Net::new(test, &["a", "b"])?;
    for k in 1..=nics {
        for (node, host) in [("a", 1), ("b", 2)] {
            let name = format!("eth{k}");
            net.nic(node, &name, &format!("lan{k}"), &[&format!("10.0.{k}.{host}/24")]);
            net.limit(node, &name, 100);
        }
    }
    net.settle();
    Some(net)
}

/// Waits for the middle of a run of [`LONG`] over two NICs: until eth1 of the sending node has sent 10 of its 26 MB.
fn middle(net: &Net) {
    wait_until("the middle of the run", || sent(net) > 10_000_000);
}

/// Bytes that eth1 of the sending node has sent.
fn sent(net: &Net) -> u64 {
    let count = net.exec("b", "cat /sys/class/net/eth1/statistics/tx_bytes");
    count.trim().parse().unwrap()
}

/// Checks that a lost rail did no harm: the run ended with 0, another rail carried more, and both ends name the lost
/// one.
#[track_caller]
fn assert_went_on(run: &Run, lost: &str) {
    let carried = run.carried();
    let of =
        |name: &str| carried.iter().find(|(rail, _)| rail == name).map_or(0, |(_, bytes)| *bytes);
    let most = carried.iter().map(|(_, bytes)| *bytes).max().unwrap_or(0);
    assert!(of(lost) < most, "{carried:?}\n{run}");
    run.assert_both_say(&[lost]);
}

#[test]
fn an_interface_without_a_usable_address_is_told_from_one_that_is_not_there() {
    let Some(mut net) = Net::new("no-address", &["a"]) else { return };
    net.nic("a", "eth1", "lan", &[]);
    net.ip("a", "link add eth9 type bridge");
    net.ip("a", "link set eth9 addrgenmode none up");
    net.settle();
    for (name, code, words) in [
        ("eth1", 3, &["eth1", "fe80", "address"][..]),
        ("eth9", 3, &["eth9", "no address"]),
        ("nosuch", 2, &["nosuch", "no interface"]),
    ] {
        let end = net.polyrail("a", &format!("bench --rails {name} --sizes 8 --iters 1"));
        assert_eq!(end.code, Some(code), "{name}: {end:?}");
        end.assert_says(words);
        assert_eq!(end.said().contains("there is no interface"), code == 2, "{end:?}");
    }
}

#[test]
fn an_interface_without_an_address_is_left_out_with_a_reason() {
    let Some(net) = plain("auto-no-address", 2) else { return };
    net.ip("a", "addr flush dev eth2");
    let run = net.bench(("a", ""), ("b", ""));
    run.assert_carry(&["eth1"]);
    run.assert_both_say(&["eth2"]);
}

#[test]
fn an_interface_that_is_off_is_told_so() {
    let Some(net) = plain("off", 1) else { return };
    net.ip("a", "link set eth1 down");
    let end = net.polyrail("a", "bench --rails eth1 --sizes 8 --iters 1");
    assert_eq!(end.code, Some(3), "{end:?}");
    end.assert_says(&["eth1", "down"]);
}

#[test]
fn an_address_that_is_not_certain_yet_is_told_so_or_waited_for() {
    let Some(mut net) = Net::new("tentative", &["a", "b"]) else { return };
    net.nic("a", "eth1", "lan", &[]);
    net.nic("b", "eth1", "lan", &["fd00::1/64"]);
    net.settle();
    net.sysctl("a", "net.ipv6.conf.eth1.accept_dad=1");
    // The other node has this address, too: the kernel finds the duplicate within some seconds and never lets it be
    // used.
    net.ip("a", "addr add fd00::1/64 dev eth1");
    let end = net.polyrail("a", "bench --rails eth1 --sizes 8 --iters 1");
    assert_eq!(end.code, Some(3), "{end:?}");
    end.assert_says(&["eth1", "fd00::1"]);
}

#[test]
fn a_hundred_addresses_on_an_interface_make_one_rail() {
    let Some(net) = plain("hundred", 2) else { return };
    for last in 100..200 {
        net.ip("a", &format!("addr add 10.0.1.{last}/24 dev eth1"));
    }
    let begin = Instant::now();
    let run = net.bench(("a", ""), ("b", ""));
    run.assert_carry(&["eth1", "eth2"]);
    assert!(begin.elapsed() < Duration::from_secs(10), "{:?}\n{run}", begin.elapsed());
}

#[test]
fn sixty_four_interfaces_are_listened_on_soon() {
    let Some(mut net) = Net::new("many", &["a"]) else { return };
    for k in 1..=64 {
        net.nic("a", &format!("eth{k}"), "lan", &[&format!("10.{k}.0.1/24")]);
    }
    net.settle();
    let begin = Instant::now();
    let mut listening = net.start("a", "bench --listen");
    assert!(listening.wait_for_line("listening on").is_some());
    // The target is 50 ms; this leaves room for a debug build on a busy machine.
    assert!(begin.elapsed() < Duration::from_secs(2), "{:?}", begin.elapsed());
}

#[test]
fn an_interface_that_vanishes_leaves_the_others_carrying() {
    let Some(net) = plain("vanishes", 2) else { return };
    let run = net.bench_while(("a", ""), ("b", LONG), || {
        middle(&net);
        net.ip("b", "link del eth2");
    });
    assert_went_on(&run, "eth2");
}

#[test]
fn a_cut_in_the_middle_of_a_run_is_in_the_report_with_its_rounds() {
    let Some(net) = plain("events", 2) else { return };
    // A round is 16 MB, so that the cut lasts for two of them and many follow.
    let options =
        "--sizes 256KiB --iters 60 --depth 8 --warmup 50ms --rounds 12 --verify sample --json -";
    let run = net.bench_while(("a", ""), ("b", options), || {
        wait_until("the third round", || sent(&net) > 20_000_000);
        net.ip("b", "link set eth2 down");
        wait_until("rounds without eth2", || sent(&net) > 50_000_000);
        net.ip("b", "link set eth2 up");
    });
    let report: Value = serde_json::from_str(&run.connecting.stdout).unwrap();
    fits("bench", &report, "a cut");
    let events = report["results"][0]["events"].as_array().unwrap();
    let first = |what: &str| {
        let of_kind = |event: &&Value| event["what"] == what && event["rail"] == "eth2";
        let event = events.iter().find(of_kind);
        event.unwrap_or_else(|| panic!("{what}: {events:?}\n{run}"))["round"].as_u64().unwrap()
    };
    let (down, back) = (first("down"), first("back"));
    assert!(1 < down && down < back, "{events:?}");
    let notes = report["notes"].to_string();
    assert!(
        notes.contains("eth2: down at ") && notes.contains(&format!("back in round {back}")),
        "{notes}"
    );
}

#[test]
fn an_interface_that_is_renamed_costs_no_transfer() {
    let Some(net) = plain("renamed", 2) else { return };
    let run = net.bench_while(("a", ""), ("b", LONG), || {
        middle(&net);
        net.ip("b", "link set eth2 down");
        net.ip("b", "link set eth2 name lan2");
        net.ip("b", "link set lan2 up");
    });
    assert!(run.carried().iter().any(|(name, bytes)| name == "eth1" && *bytes > 0), "{run}");
}

#[test]
fn an_interface_that_loses_its_address_leaves_the_others_carrying() {
    let Some(net) = plain("loses", 2) else { return };
    let run = net.bench_while(("a", ""), ("b", LONG), || {
        middle(&net);
        net.ip("a", "addr del 10.0.2.1/24 dev eth2");
    });
    assert!(run.carried().iter().any(|(name, bytes)| name == "eth1" && *bytes > 0), "{run}");
}

#[test]
fn an_interface_that_gets_its_address_late_hinders_nobody() {
    let Some(net) = plain("late", 2) else { return };
    net.ip("a", "addr del 10.0.2.1/24 dev eth2");
    let run = net.bench_while(("a", ""), ("b", LONG), || {
        middle(&net);
        net.ip("a", "addr add 10.0.2.1/24 dev eth2");
    });
    assert!(run.carried().iter().any(|(name, bytes)| name == "eth1" && *bytes > 0), "{run}");
    run.assert_both_say(&["eth2"]);
}

/// Checks a run through a firewall: it carries, or both ends say which address can't be reached.
#[track_caller]
fn assert_carries_or_both_say(run: &Run, rails: &[&str], words: &[&str]) {
    if run.connecting.code == Some(0) {
        run.assert_carry(rails);
    } else {
        assert_eq!(run.connecting.code, Some(4), "{run}");
        run.assert_both_say(words);
    }
}

#[test]
fn a_firewall_that_lets_one_way_in_is_passed_or_named_at_both_ends() {
    let Some(net) = plain("firewall", 1) else { return };
    if !Net::has_firewall() {
        return;
    }
    net.firewall("b", "iifname eth1 tcp flags & ( syn | ack ) == syn drop");
    let run = net.bench(("a", ""), ("b", ""));
    assert_carries_or_both_say(&run, &["eth1"], &["10.0.1.2", "firewall"]);
}

#[test]
fn a_firewall_that_rejects_is_passed_or_named_at_both_ends() {
    let Some(net) = plain("rejects", 1) else { return };
    if !Net::has_firewall() {
        return;
    }
    net.firewall("b", "iifname eth1 tcp flags & ( syn | ack ) == syn reject with tcp reset");
    let run = net.bench(("a", ""), ("b", ""));
    assert_carries_or_both_say(&run, &["eth1"], &["10.0.1.2", "refused"]);
}

#[test]
fn a_firewall_on_one_of_two_nics_leaves_the_other_carrying_and_is_named() {
    let Some(net) = plain("firewall-one", 2) else { return };
    if !Net::has_firewall() {
        return;
    }
    for node in ["a", "b"] {
        net.firewall(node, "iifname eth2 tcp flags & ( syn | ack ) == syn drop");
    }
    let run = net.bench(("a", "10.0.1.1:0"), ("b", ""));
    run.assert_carry(&["eth1"]);
    run.assert_both_say(&["eth2"]);
}

#[test]
fn a_firewall_that_lets_nobody_in_is_named_by_who_connects() {
    let Some(net) = plain("firewall-all", 1) else { return };
    if !Net::has_firewall() {
        return;
    }
    net.firewall("a", "iifname eth1 tcp flags & ( syn | ack ) == syn drop");
    let run = net.bench(("a", ""), ("b", ""));
    assert_eq!(run.connecting.code, Some(4), "{run}");
    run.connecting.assert_says(&["10.0.1.1", "firewall"]);
}

#[test]
fn a_way_that_loses_large_packets_is_named() {
    let Some(mut net) = Net::new("black-hole", &["a", "b"]) else { return };
    let ports = [
        net.nic("a", "eth1", "lan", &["10.0.1.1/24"]),
        net.nic("b", "eth1", "lan", &["10.0.1.2/24"]),
    ];
    net.settle();
    for port in ports {
        net.ip("switch", &format!("link set {port} mtu 1300"));
    }
    for node in ["a", "b"] {
        // Otherwise packets that the kernel has not segmented yet pass a switch in the same kernel.
        net.ip(node, "link set eth1 gso_max_segs 1");
    }
    let run = net.bench(("a", ""), ("b", ""));
    // Either a size that passes is found, or the error says what is wrong.
    match run.connecting.code {
        Some(0) => run.assert_carry(&["eth1"]),
        _ => run.connecting.assert_says(&["MTU"]),
    }
}

/// The flows of the bad rail come up again and again, each time in vain.
#[test]
fn a_rail_of_two_that_loses_large_packets_is_named_with_its_reason_and_the_other_carries() {
    let Some(mut net) = Net::new("black-hole-one", &["a", "b"]) else { return };
    for (node, host) in [("a", 1), ("b", 2)] {
        net.nic(node, "eth1", "lan1", &[&format!("10.0.1.{host}/24")]);
        let port = net.nic(node, "eth2", "lan2", &[&format!("10.0.2.{host}/24")]);
        net.limit(node, "eth1", 100);
        net.ip("switch", &format!("link set {port} mtu 1300"));
        // Otherwise packets that the kernel has not segmented yet pass a switch in the same kernel.
        net.ip(node, "link set eth2 gso_max_segs 1");
    }
    net.settle();
    // Long enough for the kernel to retransmit a segment, which reveals the cause.
    let run = net.bench_while(("a", ""), ("b", &format!("{LONG} --set rail_stall_ms=1200")), || {});
    assert!(run.carried().iter().any(|(name, bytes)| name == "eth1" && *bytes > 0), "{run}");
    run.connecting.assert_says(&["eth2", "MTU"]);
}

#[test]
fn two_peers_with_the_same_address_behind_nat_are_told_apart() {
    let Some(mut net) = Net::new("nat", &["a", "b", "c", "rb", "rc"]) else { return };
    if !Net::has_firewall() {
        return;
    }
    net.nic("a", "eth0", "lan", &["10.0.0.1/24"]);
    for (node, router, outside) in [("b", "rb", "10.0.0.2/24"), ("c", "rc", "10.0.0.3/24")] {
        net.nic(router, "out", "lan", &[outside]);
        net.wire((router, Some("in")), (node, "eth0"), &["192.168.0.2/24"]);
        net.address(router, "in", "192.168.0.1/24");
        net.ip(node, "route add default via 192.168.0.1");
        net.sysctl(router, "net.ipv4.ip_forward=1");
        net.exec(router, "nft add table ip n");
        net.exec(router, "nft add chain ip n post { type nat hook postrouting priority 100 ; }");
        net.exec(router, "nft add rule ip n post oifname out masquerade");
    }
    net.settle();
    for node in ["b", "c"] {
        let run = net.bench(("a", ""), (node, ""));
        assert_carries_or_both_say(&run, &["eth0"], &["192.168.0.2"]);
    }
}
