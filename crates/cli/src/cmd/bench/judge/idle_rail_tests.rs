//! Verdicts where rails of one end carry nothing, or the ends have unequal rails.

use super::*;
use crate::cmd::bench::judge::silent_rails;
use crate::cmd::bench::talk::Silent;

#[test]
fn a_rail_that_is_down_is_named_and_the_rate_is_held_against_the_others() {
    let down = || DownRail {
        name: "rail3".into(),
        interface: "eth3".into(),
        why: WhyDown::Disconnected,
        because: None,
        receives: false,
        went: false,
    };
    let named = "\nrail3 here was not connected: none of its flows was connected (look at `ip -s link show eth3`";
    let (kind, because) = verdict(|e| (e.gb_per_s, e.local.down) = (7.6, vec![down()]));
    assert_eq!(kind, LimitKind::Network);
    let words = "7.60 GB/s one way are 95 % of the 8.00 GB/s of 4 rails in the lab without rail3";
    assert!(because.starts_with(words) && because.contains(named), "{because}");

    // What it held up is not for want of depth.
    for resent in [false, true] {
        let (kind, because) = verdict(|e| {
            (e.gb_per_s, e.line, e.local.down) = (2.0, None, vec![down()]);
            (e.depth, e.has_resent) = (4, resent);
        });
        assert_eq!(because.starts_with("2.00 GB/s were what the rails"), resent, "{because}");
        assert_eq!(kind == LimitKind::Network, resent, "{because}");
    }

    // It was down in one sample of two, and the rate is their mean.
    let (_, because) =
        verdict(|e| (e.gb_per_s, e.local.down, e.down_in_some) = (9.9, vec![down()], true));
    let words = "9.90 GB/s were what the rails carried that were up, of 4 here\nrail3";
    assert!(because.starts_with(words), "{because}");

    // Its flows died and came up again within the sample, which is not for want of depth.
    let because = Some("no acknowledgement for 200 ms".to_owned());
    let lost = DownRail { why: WhyDown::Lost, because, went: true, ..down() };
    let (_, because) = verdict(|e| {
        (e.gb_per_s, e.depth, e.has_resent, e.local.down) = (9.9, 4, true, vec![lost]);
    });
    let words =
        "\nrail3 here lost its connections for a time: no acknowledgement for 200 ms (look at";
    assert!(because.starts_with("9.90 GB/s were what the rails"), "{because}");
    assert!(because.contains(words), "{because}");

    // It went down after the sample that the verdict is about.
    let (_, because) = verdict(|e| (e.gb_per_s, e.down_elsewhen) = (9.5, [vec![], vec![down()]]));
    let words =
        "95 % of the 10.0 GB/s of 4 rails in the lab\nrail3 at the other side was not connected";
    assert!(because.contains(words), "{because}");

    // The settings have it left out.
    let because = Some("no route from 10.3.0.1".to_owned());
    let unused = |why| DownRail { why, because: because.clone(), ..down() };
    let (kind, because) = verdict(|e| {
        (e.line, e.peer.down, e.depth) = (None, vec![unused(WhyDown::NoPartner)], 1 << 10);
    });
    assert_ne!(kind, LimitKind::Network);
    let words = "\nrail3 at the other side is not used: no route from 10.3.0.1";
    assert!(because.contains(words) && !because.contains("down"), "{because}");

    // Their rates are not known, and nothing else is the limit.
    let (kind, because) =
        verdict(|e| (e.line, e.local.down, e.depth) = (None, vec![down()], 1 << 10));
    assert_eq!(kind, LimitKind::Network);
    let words = "1.00 GB/s were what the rails carried that were up, of 4 here\nrail3 here was not connected";
    assert!(because.starts_with(words), "{because}");

    // Another limit still counts, and so does one at the other side.
    let (kind, because) = verdict(|e| (e.local.process_cpus, e.peer.down) = (7.9, vec![down()]));
    assert_eq!(kind, LimitKind::Cpu);
    assert!(because.contains("\nrail3 at the other side was not connected"), "{because}");
}

#[test]
fn fewer_rails_at_the_other_side_are_the_limit_when_they_are_full() {
    // Recorded: four NICs connect, two listen, and packets are lost where four meet two.
    let there = |rates: &[f64]| {
        let rail = |(rail, rate): (usize, &f64)| (format!("eth{rail}"), *rate);
        let source = format!("{} rails at the other side", rates.len());
        Some(Line { rails: rates.iter().enumerate().map(rail).collect(), source })
    };
    let meet = |e: &mut Evidence, rates: &[f64]| {
        e.line = Some(Line { rails: rails([0.0125; 4]), source: "4 rails here".into() });
        (e.gb_per_s, e.peer_line, e.depth) = (0.024, there(rates), 4);
        e.lost = Some(("rail2".into(), 0.023));
    };
    let (kind, because) = verdict(|e| meet(e, &[0.0125; 2]));
    assert_eq!(kind, LimitKind::Network);
    let words = "0.024 GB/s one way are 96 % of the 0.025 GB/s of 2 rails at the other side";
    assert_eq!(because, words);
    // One of its rails carries nothing.
    let (kind, because) = verdict(|e| {
        meet(e, &[0.0125, 0.0125, 0.0125]);
        let (name, interface, why) = ("eth2".into(), "eth2".into(), WhyDown::NoPartner);
        e.peer.down =
            vec![DownRail { name, interface, why, because: None, receives: false, went: false }];
    });
    assert_eq!(kind, LimitKind::Network);
    assert!(because.starts_with(&words.replace("2 rails", "3 rails")), "{because}");
    assert!(because.contains("at the other side without eth2"), "{because}");
    // Its rails carry more than those here, or it can't say.
    for peer_line in [there(&[1.0; 4]), None] {
        let (kind, because) = verdict(|e| {
            meet(e, &[]);
            (e.gb_per_s, e.peer_line) = (0.048, peer_line);
        });
        assert!(kind == LimitKind::Network && because.contains("of 4 rails here"), "{because}");
    }
}

#[test]
fn a_rail_that_connects_one_way_only_is_named_with_its_direction() {
    let one_way = || DownRail {
        name: "eth1".into(),
        interface: "eth1".into(),
        why: WhyDown::Disconnected,
        because: Some("timed out".into()),
        receives: true,
        went: false,
    };
    let (_, because) = verdict(|e| (e.peer.down, e.depth) = (vec![one_way()], 1 << 10));
    let words = "\neth1 at the other side: connections from the other side to here failed: timed out; what this end sent \
                 passed";
    assert!(because.contains(words), "{because}");
    assert!(because.starts_with("no limit is reached"), "it carries: {because}");
    let (_, because) = verdict(|e| (e.local.down, e.depth) = (vec![one_way()], 1 << 10));
    let words = "\neth1 here: connections from here to the other side failed: timed out; what the other side sent passed";
    assert!(because.contains(words), "{because}");
    // The other direction is in use, too.
    let (kind, because) = verdict(|e| {
        (e.peer.down, e.depth, e.ways) = (vec![one_way()], 1 << 10, 2);
    });
    assert!(kind == LimitKind::Network && because.starts_with("1.00 GB/s were what"), "{because}");
}

#[test]
fn both_ends_tell_of_faults_in_the_past_and_a_rail_that_went_is_no_yardstick() {
    let down = |why, went| DownRail {
        name: "eth1".into(),
        interface: "eth1".into(),
        why,
        because: None,
        receives: false,
        went,
    };
    for (why, fault) in [
        (WhyDown::Interface, "down: its interface was down or had no carrier"),
        (WhyDown::NoRail, "down: its interface was down or had no carrier, so the engine"),
        (WhyDown::Disconnected, "not connected: none of its flows was connected"),
    ] {
        let own = Silent { down: vec![down(why, false)], ..Silent::default() };
        let listener = silent_rails(&own, &Silent::default());
        assert!(listener[0].starts_with(&format!("eth1 here was {fault}")), "{listener:?}");
        let (_, then) = verdict(|e| (e.local.down, e.depth) = (vec![down(why, false)], 1 << 10));
        assert!(then.contains(&format!("\neth1 here was {fault}")), "{then}");
    }
    // More than the others carry, as it carried its part for a while.
    let (kind, because) = verdict(|e| {
        (e.gb_per_s, e.peer.down) = (9.9, vec![down(WhyDown::Interface, true)]);
    });
    let words = "9.90 GB/s were what the rails carried that were up, of 4 here\neth1 at the other side was down";
    assert_eq!(kind, LimitKind::Network);
    assert!(because.starts_with(words) && !because.contains("too low"), "{because}");
}

#[test]
fn rails_without_a_channel_are_named_together_with_how_many_channels_there_are() {
    // Recorded: `--lab 4x200mbit --set channels=1`.
    let silent = |name: &str| DownRail {
        name: name.into(),
        interface: name.into(),
        why: WhyDown::NoChannel { channels: 1, rails: 4 },
        because: None,
        receives: false,
        went: false,
    };
    let all = ["rail1", "rail2", "rail3"].map(silent).to_vec();
    let one_channel = |e: &mut Evidence| {
        e.line = Some(Line { rails: rails([0.025; 4]), source: "4 rails in the lab".into() });
        (e.gb_per_s, e.local.down, e.peer.down) = (0.024, all.clone(), all.clone());
        e.rails = rails([1.0, 0.0, 0.0, 0.0]);
    };
    let (kind, because) = verdict(one_channel);
    assert_eq!(kind, LimitKind::Network);
    let words = "0.024 GB/s one way are 96 % of the 0.025 GB/s of 4 rails in the lab without rail1, rail2, rail3\n\
                 rail1, rail2, rail3 here are not used: this end has 1 channel for 4 rails (setting `channels`)\n\
                 rail1, rail2, rail3 at the other side are not used: that end has 1 channel for 4 rails (setting `channels`)";
    assert_eq!(because, words);
    // No transfer reaches them, however many there are.
    let (_, because) = verdict(|e| {
        one_channel(e);
        (e.gb_per_s, e.depth, e.size) = (0.01, 2, 8 << 10);
    });
    assert!(!because.contains("rails busy"), "{because}");
}

#[test]
fn rails_of_one_subnet_that_receive_by_one_nic_are_named_with_the_settings_that_change_it() {
    // Recorded: two nodes with two NICs each on one Ethernet, and the kernel's defaults.
    let one_nic = || {
        let (rails, interface) = (vec!["eth1".into(), "eth2".into()], "eth1".into());
        Some(OneNic { rails, interface, share: 0.996 })
    };
    let (kind, because) =
        verdict(|e| (e.line, e.peer.one_nic, e.depth) = (None, one_nic(), 1 << 10));
    assert_eq!(kind, LimitKind::Network);
    let words = "1.00 GB/s arrive, nearly all by NIC eth1\neth1, eth2 at the other side are in one subnet, and 100 % of \
                 what they receive arrives by eth1: by the kernel's defaults any NIC answers ARP for all addresses of \
                 its host (at the other side: `sysctl -w net.ipv4.conf.all.arp_ignore=1 \
                 net.ipv4.conf.all.arp_announce=2`; then here: `ip neigh flush all`)";
    assert_eq!(because, words);
    // Behind another verdict, too.
    let (kind, because) = verdict(|e| (e.local.process_cpus, e.local.one_nic) = (7.9, one_nic()));
    assert_eq!(kind, LimitKind::Cpu);
    assert!(because.contains("\neth1, eth2 here are in one subnet"), "{because}");
    // The end that is to change something says so, too; and the depth is not blamed for a full NIC.
    let lines =
        silent_rails(&Silent { one_nic: one_nic(), ..Silent::default() }, &Silent::default());
    assert!(lines[0].starts_with("eth1, eth2 here are in one subnet"), "{lines:?}");
    let of_depth = |depth| {
        verdict(|e| {
            (e.line, e.peer.one_nic, e.depth, e.size) = (None, one_nic(), depth, 512 << 10);
        })
    };
    assert_eq!(of_depth(4).0, LimitKind::Network);
    assert_eq!(of_depth(1).0, LimitKind::Depth, "one at a time is bound by its latency");
}

#[test]
fn rails_here_to_which_the_client_sends_nothing_are_told_once() {
    let rail = |name: &str, because: &str| DownRail {
        name: name.into(),
        interface: name.into(),
        why: WhyDown::NoPartner,
        because: Some(because.into()),
        receives: false,
        went: false,
    };
    let spare = "only 2 rails of the other end can reach it, all paired";
    let unsent = vec![rail("rail2", spare), rail("rail3", spare)];
    let client = Silent { unsent, ..Silent::default() };
    let own = Silent { down: vec![rail("rail3", "no route")], ..Silent::default() };
    let lines = silent_rails(&own, &client);
    let wanted =
        ["rail3 here is not used: no route".to_owned(), format!("rail2 here is not used: {spare}")];
    assert_eq!(lines, wanted);
}

#[test]
fn where_to_look_follows_from_the_reason() {
    let line = |why, because: &str| {
        let down = DownRail {
            name: "rail1".into(),
            interface: "eth1".into(),
            why,
            because: Some(because.to_owned()),
            receives: false,
            went: false,
        };
        silent_rails(&Silent { down: vec![down], ..Silent::default() }, &Silent::default())
            .remove(0)
    };
    let firewall = line(WhyDown::Disconnected, "timed out (a firewall drops it)");
    assert!(
        firewall.ends_with(
            "(look at firewalls and routes of both ends and between them, and at `polyrail doctor` of both)"
        ),
        "{firewall}"
    );
    let mtu = line(WhyDown::Disconnected, "no progress: a smaller MTU on the way");
    assert!(mtu.contains("`ip link show eth1` at both ends"), "{mtu}");
    let gone = line(WhyDown::Gone, "its interface eth1 does not exist any more");
    assert!(
        gone.starts_with("rail1 here was lost: its interface eth1") && gone.contains("again"),
        "{gone}"
    );
}
