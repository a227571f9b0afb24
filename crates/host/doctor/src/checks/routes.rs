//! Checks that packets leave by the right NIC.

use std::collections::BTreeMap;

use super::topology::no_rails_means_nothing;
use crate::check::{Check, Cost, Finding, Group, Outcome, Unknown};
use crate::context::{Context, ROUTE};

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "one-subnet",
        group: Group::Tcp,
        title: "several NICs are on one subnet",
        cost: Cost::Breaks,
        why: "The kernel sends everything for a subnet by the first route to it, so that all rails' \
              packets leave by one NIC. It works with a routing table and a rule for each address, \
              which `wrong-nic-route` checks.",
        remedy: "Give each NIC a subnet of its own, or a routing table with a rule for its address.",
        needs_root: true,
        reversible: true,
        reads: &["/proc/net/route"],
        run: one_subnet,
    },
    Check {
        id: "wrong-nic-route",
        group: Group::Tcp,
        title: "packets with a NIC's address leave by another NIC",
        cost: Cost::Breaks,
        why: "Connections bound to the address of a rail then share another rail's link, and strict \
              reverse-path filters drop the answers. Binding to the device avoids this, binding \
              to the address alone does not.",
        remedy: "Add a routing table for the NIC and a rule for its address.",
        needs_root: true,
        reversible: true,
        reads: &["ip route get DESTINATION from ADDRESS"],
        run: wrong_nic_route,
    },
    Check {
        id: "rp-filter-strict",
        group: Group::Tcp,
        title: "reverse-path filtering is strict on a host with several NICs",
        cost: Cost::Breaks,
        why: "The kernel silently drops a packet if its answer would leave by another NIC, which is \
              usual where several NICs have routes to the peers. The larger of `all` and the \
              interface's own value counts; 2 is loose.",
        remedy: "Set it to 2 (loose), or make sure by rules that each answer leaves where it should.",
        needs_root: true,
        reversible: true,
        reads: &["/proc/sys/net/ipv4/conf/*/rp_filter"],
        run: rp_filter_strict,
    },
    Check {
        id: "arp-flux",
        group: Group::Tcp,
        title: "NICs on one subnet answer for each other's addresses",
        cost: Cost::Breaks,
        why: "Any NIC answers ARP for any address of the host, so that peers send one rail's packets to \
              another rail's NIC. It matters only where several NICs are on one subnet.",
        remedy: "Set arp_ignore to 1 and arp_announce to 2, or arp_filter to 1 with rules per address.",
        needs_root: true,
        reversible: true,
        reads: &["/proc/sys/net/ipv4/conf/*/arp_{ignore,announce,filter}", "/proc/net/route"],
        run: arp_flux,
    },
];

const CONF: &str = "/proc/sys/net/ipv4/conf";

/// Returns the subnets on the link, by destination and mask as in `/proc/net/route`, with the rails on each.
fn subnets(cx: &Context) -> Result<BTreeMap<(String, String), Vec<String>>, Unknown> {
    let text = cx.text(ROUTE)?;
    let rails: Vec<&str> = cx.links().iter().map(|nic| nic.name.as_str()).collect();
    let mut subnets: BTreeMap<(String, String), Vec<String>> = BTreeMap::new();
    for line in text.lines().skip(1) {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [name, destination, gateway, _, _, _, _, mask, ..] = fields.as_slice() else {
            return Err(Unknown(format!("{ROUTE} has the line `{line}`")));
        };
        // Ignore a route to a single host, which clouds use for their router: it is not a subnet.
        let is_subnet = *mask != "00000000" && *mask != "FFFFFFFF" && *gateway == "00000000";
        if is_subnet && rails.contains(name) {
            let names = subnets.entry(((*destination).into(), (*mask).into())).or_default();
            if !names.iter().any(|known| known == name) {
                names.push((*name).into());
            }
        }
    }
    Ok(subnets)
}

fn one_subnet(cx: &Context) -> Result<Outcome, Unknown> {
    if cx.links().len() < 2 {
        return Ok(Outcome::not_applicable("there is one NIC, or none"));
    }
    let mut outcome = Outcome::default();
    // Policy rules that send each address through its own NIC fix this. Only a route query shows them.
    let probes = &cx.probes().routes;
    let is_routed = |name: &String| {
        let mut own = probes.iter().filter(|route| route.nic == *name).peekable();
        own.peek().is_some() && own.all(|route| route.leaves_by.as_ref() == Some(name))
    };
    for ((destination, mask), names) in subnets(cx)? {
        let subnet = subnet_text(&destination, &mask);
        if names.len() < 2 || names.iter().all(is_routed) {
            outcome.saw(ROUTE, format!("{subnet} by {}", names.join(", ")));
            continue;
        }
        outcome.found(
            Finding::new(format!("{} are all on {subnet}", names.join(", ")))
                .about(names.join(","))
                .because(ROUTE, format!("{subnet} by {}", names.join(", ")))
                .command("ip route add SUBNET dev NIC table N; ip rule add from ADDRESS table N"),
        );
    }
    if outcome.seen.is_empty() && outcome.findings.is_empty() {
        outcome.saw(ROUTE, "no subnet on a NIC's link");
    }
    Ok(outcome)
}

fn wrong_nic_route(cx: &Context) -> Result<Outcome, Unknown> {
    let mut outcome = Outcome::default();
    let rails = cx.links();
    if rails.len() < 2 {
        return Ok(Outcome::not_applicable("there is one NIC, or none"));
    }
    let is_rail = |name: &String| rails.iter().any(|nic| nic.name == *name);
    for route in cx.probes().routes.iter().filter(|route| is_rail(&route.nic)) {
        let asked = format!("ip route get {} from {}", route.destination, route.source);
        match &route.leaves_by {
            Some(name) if *name == route.nic => outcome.saw(asked, format!("dev {name}")),
            Some(name) => outcome.found(
                Finding::new(format!("packets from {} leave by {name}", route.source))
                    .about(&route.nic)
                    .because(asked, format!("dev {name}"))
                    .command(format!("ip route add default via GATEWAY dev {} table N", route.nic))
                    .command(format!("ip rule add from {} table N", route.source)),
            ),
            None => outcome.unknown(format!("{}: no route from {}", route.nic, route.source)),
        }
    }
    for (asked, why) in &cx.probes().errors {
        outcome.unknown(format!("{asked}: {why}"));
    }
    let said_nothing = outcome.seen.is_empty() && outcome.findings.is_empty();
    if said_nothing && outcome.unknown.is_empty() {
        outcome.unknown("the kernel was not asked, or the NICs have no IPv4 addresses");
    }
    Ok(outcome)
}

/// Returns the value of a switch for a NIC: the larger of `all` and the NIC's own value.
fn effective(cx: &Context, nic: &str, file: &str) -> Result<u64, Unknown> {
    let all = cx.number(&format!("{CONF}/all/{file}"))?;
    Ok(all.max(cx.number(&format!("{CONF}/{nic}/{file}"))?))
}

fn rp_filter_strict(cx: &Context) -> Result<Outcome, Unknown> {
    let rails = cx.links();
    if rails.len() < 2 {
        return Ok(Outcome::not_applicable("there is one NIC, or none"));
    }
    let mut outcome = Outcome::default();
    for nic in rails {
        let own = format!("{CONF}/{}/rp_filter", nic.name);
        match effective(cx, &nic.name, "rp_filter") {
            Ok(1) => {
                let all = cx.number(&format!("{CONF}/all/rp_filter"))?;
                let value = cx.number(&own)?;
                outcome.found(
                    Finding::new("packets whose answer would leave by another NIC are dropped")
                        .about(&nic.name)
                        .because(format!("{CONF}/all/rp_filter"), all)
                        .because(&own, value)
                        .write(&own, value, 2),
                );
            }
            Ok(value) => outcome.saw(own, value),
            Err(Unknown(why)) => outcome.unknown(why),
        }
    }
    Ok(no_rails_means_nothing(outcome))
}

fn arp_flux(cx: &Context) -> Result<Outcome, Unknown> {
    let mut outcome = Outcome::default();
    for names in subnets(cx)?.into_values().filter(|names| names.len() > 1) {
        for name in names {
            let value = |file| effective(cx, &name, file);
            let (ignore, announce, filter) =
                (value("arp_ignore")?, value("arp_announce")?, value("arp_filter")?);
            let folder = format!("{CONF}/{name}");
            if filter >= 1 || ignore >= 1 && announce >= 2 {
                outcome.saw(format!("{folder}/arp_*"), format!("{ignore}, {announce}, {filter}"));
                continue;
            }
            let own = |file: &str| cx.number(&format!("{folder}/{file}"));
            outcome.found(
                Finding::new("the NIC answers for addresses of other NICs on its subnet")
                    .about(&name)
                    .because(format!("{folder}/arp_ignore"), ignore)
                    .because(format!("{folder}/arp_announce"), announce)
                    .because(format!("{folder}/arp_filter"), filter)
                    .write(&format!("{folder}/arp_ignore"), own("arp_ignore")?, 1)
                    .write(&format!("{folder}/arp_announce"), own("arp_announce")?, 2),
            );
        }
    }
    if outcome.seen.is_empty() && outcome.findings.is_empty() {
        return Ok(Outcome::not_applicable("no two NICs are on one subnet"));
    }
    Ok(outcome)
}

/// Formats a subnet such as `10.0.1.0/24` from the hexadecimal numbers of `/proc/net/route`, which are in network
/// order.
fn subnet_text(destination: &str, mask: &str) -> String {
    // The kernel prints the bytes in memory order, as one number of this machine.
    let in_order = |number: u32| u32::from_be_bytes(number.to_ne_bytes());
    let number = |text: &str| u32::from_str_radix(text, 16).map(in_order);
    match (number(destination), number(mask)) {
        (Ok(address), Ok(mask)) => {
            format!("{}/{}", std::net::Ipv4Addr::from(address), mask.count_ones())
        }
        _ => format!("{destination}/{mask}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subnets_are_written_as_people_do() {
        assert_eq!(subnet_text("0001A8C0", "00FFFFFF"), "192.168.1.0/24");
    }
}
