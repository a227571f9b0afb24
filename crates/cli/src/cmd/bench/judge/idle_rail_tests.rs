//! Verdicts for ends with idle rails or with unequal rails.

use super::*;
use crate::cmd::bench::judge::silent_rails;
use crate::cmd::bench::talk::Silent;

/// Returns a rail whose flows were not connected.
fn rail3() -> Vec<DownRail> {
    vec![down("rail3", WhyDown::Disconnected)]
}

/// Returns a rail whose own connections fail, and which receives.
fn one_way() -> Vec<DownRail> {
    let rail = down("eth1", WhyDown::Disconnected);
    vec![DownRail { because: Some("timed out".into()), receives: true, ..rail }]
}

fn because(name: &str, why: WhyDown, because: &str) -> DownRail {
    DownRail { because: Some(because.into()), ..down(name, why) }
}

/// Lets enough transfers be outstanding, and leaves the rates of the rails unknown.
fn unknown_rates(e: &mut Evidence) {
    (e.line, e.depth) = (None, 1 << 10);
}

/// Recorded: four NICs connect to an end with two, and packets are lost where four rails meet two.
fn unequal(e: &mut Evidence, rates: &[f64]) {
    let rail = |(rail, rate): (usize, &f64)| (format!("eth{rail}"), *rate);
    let source = format!("{} rails at the other side", rates.len());
    e.line = Some(Line { rails: rails([0.0125; 4]), source: "4 rails here".into() });
    e.peer_line = Some(Line { rails: rates.iter().enumerate().map(rail).collect(), source });
    (e.gb_per_s, e.depth, e.lost) = (0.024, 4, thread("rail2", 0.023));
}

/// Recorded with `--lab 4x200mbit --set channels=1`.
fn one_channel(e: &mut Evidence) {
    let silent = |name| down(name, WhyDown::NoChannel { channels: 1, rails: 4 });
    let all = ["rail1", "rail2", "rail3"].map(silent).to_vec();
    e.line = Some(Line { rails: rails([0.025; 4]), source: "4 rails in the lab".into() });
    (e.gb_per_s, e.local.down, e.peer.down) = (0.024, all.clone(), all);
    e.rails = rails([1.0, 0.0, 0.0, 0.0]);
}

const CASES: &[Case] = &[
    ("a rail is down, the others are full", Network, |e| {
        (e.gb_per_s, e.local.down) = (7.6, rail3())
    }),
    ("it does not hold up transfers", Depth, |e| {
        (e.gb_per_s, e.line, e.depth, e.local.down) = (2.0, None, 4, rail3());
    }),
    ("it holds up transfers, which is not for want of depth", Network, |e| {
        (e.gb_per_s, e.line, e.depth, e.local.down) = (2.0, None, 4, rail3());
        e.has_resent = true;
    }),
    ("it was down in one sample of two, and the rate is their mean", Network, |e| {
        (e.gb_per_s, e.local.down, e.down_in_some) = (9.9, rail3(), true);
    }),
    ("its flows died and came up again within the sample", Network, |e| {
        let lost = because("rail3", WhyDown::Lost, "no acknowledgement for 200 ms");
        e.local.down = vec![DownRail { went: true, ..lost }];
        (e.gb_per_s, e.depth, e.has_resent) = (9.9, 4, true);
    }),
    ("it went down after the sample that the verdict is about", Network, |e| {
        (e.gb_per_s, e.down_elsewhen) = (9.5, [vec![], rail3()]);
    }),
    ("a rail has no partner", Memory, |e| {
        unknown_rates(e);
        e.peer.down = vec![because("rail3", WhyDown::NoPartner, "no route from 10.3.0.1")];
    }),
    ("a rail is down, and nothing else is the limit", Network, |e| {
        (unknown_rates(e), e.local.down = rail3()).1
    }),
    ("another limit counts, too", Cpu, |e| (e.local.process_cpus, e.peer.down) = (7.9, rail3())),
    ("fewer rails there are full", Network, |e| unequal(e, &[0.0125; 2])),
    ("one of them carries nothing", Network, |e| {
        unequal(e, &[0.0125; 3]);
        e.peer.down = vec![down("eth2", WhyDown::NoPartner)];
    }),
    ("the rails there carry more", Network, |e| (unequal(e, &[1.0; 4]), e.gb_per_s = 0.048).1),
    ("the rates there are not known", Network, |e| {
        unequal(e, &[]);
        (e.gb_per_s, e.peer_line) = (0.048, None);
    }),
    ("a rail there can't connect, and receives", Network, |e| {
        (e.peer.down, e.depth) = (one_way(), 1 << 10);
    }),
    ("a rail here can't connect, and receives", Network, |e| {
        (e.local.down, e.depth) = (one_way(), 1 << 10);
    }),
    ("the other direction is in use, too", Network, |e| {
        (e.peer.down, e.depth, e.ways) = (one_way(), 1 << 10, 2);
    }),
    ("an interface is down", Network, |e| {
        (e.local.down, e.depth) = (vec![down("eth1", WhyDown::Interface)], 1 << 10);
    }),
    ("an interface is no rail", Network, |e| {
        (e.local.down, e.depth) = (vec![down("eth1", WhyDown::NoRail)], 1 << 10);
    }),
    ("a rail that went is no yardstick, as it carried its part for a while", Network, |e| {
        let rail = down("eth1", WhyDown::Interface);
        (e.gb_per_s, e.peer.down) = (9.9, vec![DownRail { went: true, ..rail }]);
    }),
    ("one channel for four rails", Network, one_channel),
    ("no transfer reaches rails without a channel, however many there are", Depth, |e| {
        one_channel(e);
        (e.gb_per_s, e.depth, e.size) = (0.01, 2, 8 << 10);
    }),
    ("rails there receive by one NIC", Network, |e| {
        (unknown_rates(e), e.peer.one_nic = one_nic()).1
    }),
    ("rails here receive by one NIC, and CPUs are busy", Cpu, |e| {
        (e.local.process_cpus, e.local.one_nic) = (7.9, one_nic());
    }),
    ("the depth is not blamed for a full NIC", Network, |e| {
        (e.line, e.peer.one_nic, e.depth, e.size) = (None, one_nic(), 4, 512 << 10);
    }),
    ("one transfer at a time is bound by its latency", Depth, |e| {
        (e.line, e.peer.one_nic, e.depth, e.size) = (None, one_nic(), 1, 512 << 10);
    }),
];

#[test]
fn rails_that_carry_nothing_are_named_behind_the_limit() {
    check("bench/verdicts_of_idle_rails", CASES);
}

/// The listener's lines tell the user of that end what to change.
#[test]
fn a_listener_names_rails_with_where_to_look_and_each_once() {
    let own = |down| (Silent { down, ..Silent::default() }, Silent::default());
    let alone = |name, why, reason| own(vec![because(name, why, reason)]);
    let spare = "only 2 rails of the other end can reach it, all paired";
    let unsent = ["rail2", "rail3"].map(|name| because(name, WhyDown::NoPartner, spare)).to_vec();
    let client = Silent { unsent, ..Silent::default() };
    let cases = [
        own(vec![down("eth1", WhyDown::Interface)]),
        own(vec![down("eth1", WhyDown::NoRail)]),
        own(vec![down("eth1", WhyDown::Disconnected)]),
        alone("eth1", WhyDown::Disconnected, "timed out (a firewall drops it)"),
        alone("eth1", WhyDown::Disconnected, "no progress: a smaller MTU on the way"),
        alone("eth1", WhyDown::Gone, "its interface eth1 does not exist any more"),
        (Silent { one_nic: one_nic(), ..Silent::default() }, Silent::default()),
        (alone("rail3", WhyDown::NoPartner, "no route").0, client),
    ];
    let lines = cases.map(|(own, client)| silent_rails(&own, &client).join("\n") + "\n");
    golden::assert_golden("bench/silent_rails", &lines.concat());
}
