//! Interfaces that are not rails, with the reason for each.

use polyrail_text::harmless;

use super::interface::{AddressState, Below, Interface, Kind, Routes};
use super::leading::{Way, is_routed, upper, way_of};
use super::{ChosenRail, Pattern, Wanted, no_address};
use crate::hello::MAX_RAILS;

/// An interface that is not a rail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// Name of the interface.
    pub name: String,
    /// Reason why it is not a rail, such as `down`.
    pub reason: String,
}

impl LeftOut {
    /// Returns one line for all, or `None` without any: `eth2, eth3 (down); docker0 (a bridge without a NIC)`.
    pub fn line(left_out: &[Self]) -> Option<String> {
        let mut groups: Vec<(&str, Vec<&str>)> = Vec::new();
        for Self { name, reason } in left_out {
            match groups.iter_mut().find(|(known, _)| known == reason) {
                Some((_, names)) => names.push(name),
                None => groups.push((reason, vec![name])),
            }
        }
        let told = groups.iter().map(|(reason, names)| {
            let shown = names[..names.len().min(NAMES_SHOWN)].join(", ");
            match names.len().saturating_sub(NAMES_SHOWN) {
                0 => format!("{shown} ({reason})"),
                more => format!("{shown} and {more} more ({reason})"),
            }
        });
        let mut told: Vec<String> = told.take(REASONS_SHOWN).collect();
        let others: usize = groups.iter().skip(REASONS_SHOWN).map(|(_, names)| names.len()).sum();
        told.extend((others > 0).then(|| format!("and {others} more")));
        (!groups.is_empty()).then(|| told.join("; "))
    }
}

/// Maximum names for one reason in a line; the others are counted.
const NAMES_SHOWN: usize = 8;
/// Maximum reasons in a line. Each link-local address has its own reason.
const REASONS_SHOWN: usize = 16;

/// Returns the interfaces of this machine that are not among the rails. It omits interfaces that no user expects to be
/// a rail: the loopback interface, and virtual ones without an address. Virtual ones are listed in two cases: no rail
/// reaches another host, or a rail leads out of a container and so does the interface. Interfaces without an address
/// that have routes lead to containers inside this one.
pub fn left_out(wanted: Wanted<'_>, all: &[Interface], rails: &[ChosenRail]) -> Vec<LeftOut> {
    let is_host_only = !wanted.is_named && rails.iter().all(|rail| rail.address.is_loopback());
    let is_container = is_container(all, rails);
    let mut found: Vec<LeftOut> = Vec::new();
    for (at, interface) in all.iter().enumerate() {
        let is_first = at == 0 || all[at - 1].index != interface.index;
        let is_rail = rails.iter().any(|rail| rail.interface == interface.name);
        if !is_first || is_rail || interface.loopback {
            continue;
        }
        let addresses: Vec<&Interface> =
            all.iter().filter(|one| one.index == interface.index).collect();
        // Every interface that is up has the others.
        let is_own = |state| !matches!(state, AddressState::LinkLocal | AddressState::Missing);
        let has_one = addresses.iter().any(|one| is_own(one.state));
        let is_card = matches!(interface.kind, Kind::Nic | Kind::Bond | Kind::Vlan | Kind::Macvlan);
        let is_single = interface.master.is_none();
        let is_below = all.iter().any(|one| one.below == Below::Link(interface.index));
        let is_like_rails = is_container
            && !is_below
            && is_single
            && interface.routes == Routes::None
            && way_of(interface, all) == Way::Container;
        if has_one || is_card || is_like_rails || is_host_only && interface.up && is_single {
            found.push(LeftOut {
                name: harmless(&interface.name, &[]),
                reason: reason(wanted, &addresses, all, rails),
            });
        }
    }
    found
}

/// Returns the interfaces that `^` leaves to choose from, with the reasons why none is a rail.
pub fn why_none(wanted: Wanted<'_>, all: &[Interface]) -> Option<String> {
    let excluded = excluded(wanted)?;
    let mut found = left_out(wanted, all, &[]);
    found.retain(|one| !excluded.matches(&one.name));
    LeftOut::line(&found)
}

/// Returns the names after `^` that match no interface.
pub fn unknown(wanted: Wanted<'_>, all: &[Interface]) -> Vec<String> {
    let excluded = excluded(wanted);
    let matches_none =
        |pattern: &Pattern<'_>| !all.iter().any(|interface| pattern.matches(&interface.name));
    let words = excluded.iter().flat_map(Pattern::words).filter(matches_none);
    words.map(|word| harmless(&word.to_string(), &[])).collect()
}

/// Returns the interfaces that `rails` leaves out.
fn excluded(wanted: Wanted<'_>) -> Option<Pattern<'_>> {
    wanted.spec.trim().strip_prefix('^').map(Pattern::new)
}

/// Returns whether a rail leads out of a container.
fn is_container(all: &[Interface], rails: &[ChosenRail]) -> bool {
    all.iter().any(|one| {
        way_of(one, all) == Way::Container && rails.iter().any(|rail| rail.interface == one.name)
    })
}

/// Returns a remark about rails that the user did not name: they are not NICs, or reach no other host.
pub fn remark(wanted: Wanted<'_>, all: &[Interface], rails: &[ChosenRail]) -> Option<String> {
    let is_of_nic = |rail: &ChosenRail| {
        let interface = all.iter().find(|one| one.name == rail.interface);
        let is_own = rail.loopback && !rail.address.is_loopback();
        is_own || interface.is_some_and(|one| way_of(one, all) >= Way::Container)
    };
    if wanted.is_named || rails.iter().any(is_of_nic) {
        return None;
    }
    let first = rails.first()?;
    if first.loopback {
        let address = first.address;
        return Some(format!(
            "no interface leads to other hosts: only this host can reach {address}"
        ));
    }
    let kind = all.iter().find(|one| one.name == first.interface)?.kind;
    Some(format!("no NIC leads to other hosts: rail {} is {kind}", first.name))
}

fn reason(
    wanted: Wanted<'_>,
    addresses: &[&Interface],
    all: &[Interface],
    rails: &[ChosenRail],
) -> String {
    let interface = addresses[0];
    if interface.state == AddressState::Unnameable {
        return "its name is not UTF-8".to_owned();
    }
    if let Some(upper) = upper(interface, all) {
        return format!("a member of {}", harmless(&upper.name, &[]));
    }
    if !interface.up {
        return "down".to_owned();
    }
    let usable: Vec<&&Interface> = addresses.iter().filter(|one| one.is_usable()).collect();
    if usable.is_empty() {
        return format!("no address{}", no_address(addresses));
    }
    if let Some(family) = wanted.family
        && !usable.iter().any(|one| family.has(one.address))
    {
        return format!("no address for address_family = {family}");
    }
    if wanted.is_named {
        return "`rails` does not name it".to_owned();
    }
    if excluded(wanted).is_some_and(|names| names.matches(&interface.name)) {
        return "`rails` leaves it out".to_owned();
    }
    let is_container = is_container(all, rails);
    let way = way_of(interface, all);
    let is_like_rail = |rail: &ChosenRail| {
        all.iter().any(|one| one.name == rail.interface && way_of(one, all) == way)
    };
    match (interface.kind, way) {
        _ if rails.len() == MAX_RAILS
            && rails.iter().any(is_like_rail)
            && (way == Way::Wire || is_routed(interface, all)) =>
        {
            format!("more than {MAX_RAILS} rails")
        }
        (Kind::Bridge, _) => "a bridge without a NIC".to_owned(),
        (Kind::OpenVswitch, _) => "a port of Open vSwitch without the default route".to_owned(),
        (Kind::Veth, Way::Host) => "a veth with both ends in this host".to_owned(),
        (kind, Way::Container) if is_container && !is_routed(interface, all) => {
            format!("{kind} without a route")
        }
        (Kind::Bond, _) => "a bond without a NIC".to_owned(),
        (Kind::Vlan | Kind::Macvlan, _) => match interface.below {
            Below::Link(below) => {
                let below = all.iter().find(|one| one.index == below);
                let kind = below.map_or(interface.kind, |below| below.kind);
                format!("{} on {kind}", interface.kind)
            }
            _ => interface.kind.to_string(),
        },
        (kind, _) => kind.to_string(),
    }
}
