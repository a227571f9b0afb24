//! Checks that the links are up, alike, and at full speed.

use super::topology::no_rails_means_nothing;
use crate::check::{Check, Cost, Finding, Group, Outcome, Unknown};
use crate::context::{Context, kind};

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "link-down",
        group: Group::Topology,
        title: "a NIC has no link",
        cost: Cost::Breaks,
        why: "A rail that is down carries nothing, and a job that counts on it runs on fewer rails \
              without saying so. A NIC that nobody ever configured is left out of this.",
        remedy: "Look at cable, transceiver and switch port; `dmesg` has the driver's words.",
        needs_root: true,
        reversible: true,
        reads: &["/sys/class/net/*/operstate", "/sys/class/net/*/flags"],
        run: link_down,
    },
    Check {
        id: "speed-mismatch",
        group: Group::Topology,
        title: "NICs of one kind run at different speeds",
        cost: Cost::Large,
        why: "A NIC that negotiated a lower speed than its siblings is mostly a bad cable or switch \
              port. Polyrail gives it less to carry, other programs wait for it. Rails of one driver and \
              device are compared; a NIC that is there for the host itself is left out.",
        remedy: "Look at cable, transceiver and switch port of the slower one.",
        needs_root: false,
        reversible: true,
        reads: &["/sys/class/net/*/speed"],
        run: speed_mismatch,
    },
    Check {
        id: "mtu-mismatch",
        group: Group::Topology,
        title: "NICs of one kind have different MTUs",
        cost: Cost::Large,
        why: "Rails of different MTU have different speeds, and a host with a larger MTU than its \
              peers' switches loses its large packets. `--fleet` compares between hosts.",
        remedy: "Give all rails the MTU of the network, on every host and switch.",
        needs_root: true,
        reversible: true,
        reads: &["/sys/class/net/*/mtu"],
        run: mtu_mismatch,
    },
    Check {
        id: "mtu-small",
        group: Group::Topology,
        title: "a fast NIC uses small packets",
        cost: Cost::Large,
        why: "At 25 Gbit/s and more, packets of 1500 bytes cost more CPU time than the copies do where \
              the NIC does not merge them well. Clouds offer 8 to 9 kB.",
        remedy: "Raise the MTU to what the network carries, on every host and switch of it.",
        needs_root: true,
        reversible: true,
        reads: &["/sys/class/net/*/mtu", "/sys/class/net/*/speed"],
        run: mtu_small,
    },
];

fn link_down(cx: &Context) -> Result<Outcome, Unknown> {
    let mut outcome = Outcome::default();
    for nic in cx.links() {
        let name = &nic.name;
        let path = format!("/sys/class/net/{name}/operstate");
        // IFF_UP means that the interface was switched on. Spare ports of a card count as rails only if the user names
        // them.
        let flags = cx.optional(&format!("/sys/class/net/{name}/flags")).ok().flatten();
        let flags =
            flags.and_then(|text| u32::from_str_radix(text.trim_start_matches("0x"), 16).ok());
        let is_wanted =
            flags.is_some_and(|flags| flags & 1 != 0) || !cx.options().interfaces.is_empty();
        match nic.operstate.as_deref() {
            Some("up") => outcome.saw(path, "up"),
            Some(state @ ("down" | "lowerlayerdown" | "dormant" | "notpresent")) if is_wanted => {
                outcome.found(
                    Finding::new("the NIC is configured and has no link")
                        .about(name)
                        .because(path, state)
                        .command(format!("ethtool {name}")),
                );
            }
            Some("down") if flags.is_some() => outcome.saw(path, "down, and nobody configured it"),
            state => outcome.unknown(format!("{name}: {path} says {}", state.unwrap_or("nothing"))),
        }
    }
    Ok(no_rails_means_nothing(outcome))
}

/// Compares one number across the rails of one kind that are up. `value` returns `None` if the number is unknown.
fn alike(
    cx: &Context,
    file: &str,
    value: impl Fn(&polyrail_host::Nic) -> Option<u32>,
    finding: impl Fn(&polyrail_host::Nic, u32, u32) -> Finding,
) -> Outcome {
    let mut outcome = Outcome::default();
    let (rails, aside) = cx.data_rails();
    let rails: Vec<_> = rails.into_iter().filter(|nic| nic.is_up()).collect();
    let mut kinds: Vec<_> = rails.iter().map(|nic| kind(nic)).collect();
    kinds.sort_unstable();
    kinds.dedup();
    for kind_here in kinds {
        let group: Vec<_> = rails.iter().filter(|nic| kind(nic) == kind_here).collect();
        if group.len() < 2 {
            continue;
        }
        let known: Vec<u32> = group.iter().filter_map(|nic| value(nic)).collect();
        // The most frequent value counts as intended; in a tie, the larger one.
        let count = |wanted: u32| known.iter().filter(|value| **value == wanted).count();
        let usual = known.iter().copied().max_by_key(|value| (count(*value), *value));
        for nic in group {
            let path = format!("/sys/class/net/{}/{file}", nic.name);
            match (value(nic), usual) {
                (Some(value), Some(usual)) if value != usual => {
                    outcome.found(finding(nic, value, usual).about(&nic.name).because(path, value));
                }
                (Some(value), _) => outcome.saw(path, value),
                (None, _) => outcome.unknown(format!("{}: its {file} is not known", nic.name)),
            }
        }
    }
    if outcome.findings.is_empty() && outcome.seen.is_empty() && outcome.unknown.is_empty() {
        return Outcome::not_applicable("no two NICs of one kind are up");
    }
    for (nic, why) in aside {
        let path = format!("/sys/class/net/{}/{file}", nic.name);
        outcome.saw(path, format!("not compared, for {why}"));
    }
    outcome
}

fn speed_mismatch(cx: &Context) -> Result<Outcome, Unknown> {
    Ok(alike(
        cx,
        "speed",
        |nic| nic.speed_mbps,
        |nic, value, usual| {
            Finding::new(format!("the link runs at {value} Mbit/s, its siblings at {usual}"))
                .command(format!("ethtool {}", nic.name))
        },
    ))
}

fn mtu_mismatch(cx: &Context) -> Result<Outcome, Unknown> {
    Ok(alike(
        cx,
        "mtu",
        |nic| nic.mtu,
        |nic, value, usual| {
            Finding::new(format!("the MTU is {value}, that of its siblings {usual}"))
                .command(format!("ip link set {} mtu {usual}", nic.name))
        },
    ))
}

const FAST_MBPS: u32 = 25_000;
const SMALL_MTU: u32 = 4_000;

fn mtu_small(cx: &Context) -> Result<Outcome, Unknown> {
    let mut outcome = Outcome::default();
    for nic in cx.links() {
        let path = format!("/sys/class/net/{}/mtu", nic.name);
        match (nic.mtu, nic.speed_mbps) {
            (Some(mtu), _) if mtu >= SMALL_MTU => outcome.saw(path, mtu),
            (Some(mtu), Some(speed)) if speed >= FAST_MBPS => outcome.found(
                Finding::new(format!("the MTU is {mtu} at {speed} Mbit/s"))
                    .about(&nic.name)
                    .because(path, mtu)
                    .because(format!("/sys/class/net/{}/speed", nic.name), speed)
                    .command(format!(
                        "ip link set {} mtu 8896   # or what the network carries",
                        nic.name
                    )),
            ),
            (Some(mtu), Some(_)) => outcome.saw(path, mtu),
            // A virtual interface does not have the speed of the NIC below it.
            (Some(mtu), None) if cx.rails().is_empty() => outcome.saw(path, mtu),
            _ => outcome.unknown(format!("{}: its speed is not known", nic.name)),
        }
    }
    Ok(no_rails_means_nothing(outcome))
}
