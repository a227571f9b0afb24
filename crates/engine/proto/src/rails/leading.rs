//! Interfaces that `rails = auto` takes: those that lead to other hosts.

use super::interface::{AddressState, Below, Interface, Kind, Routes};

/// Place that an interface leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Way {
    /// Only this host.
    Host,
    /// Over a tunnel, an overlay or a point-to-point link.
    Tunnel,
    /// To containers and virtual machines, by a bridge that has no NIC.
    Switch,
    /// Out of a container.
    Container,
    /// To a NIC's network.
    Wire,
}

/// Maximum number of interfaces made on each other, which is the kernel's limit.
const STACKED: usize = 8;

/// Returns the candidates that `auto` takes, one address of each interface: the interfaces that reach other hosts best.
///
/// NICs come first, with interfaces made on them; then a container's own interfaces. Without those `auto` takes any
/// interface with the default route, then bridges without a NIC, then tunnels, and at last nothing.
pub(super) fn leading_out<'a>(
    candidates: &[&'a Interface],
    all: &'a [Interface],
) -> Vec<&'a Interface> {
    let could =
        |one: &&Interface| one.up && one.is_usable() && !one.loopback && upper(one, all).is_none();
    let usable: Vec<&Interface> = candidates.iter().copied().filter(could).collect();
    let those = |wanted: &dyn Fn(&Interface) -> bool| -> Vec<&'a Interface> {
        usable.iter().copied().filter(|one| wanted(one)).collect()
    };
    let leads = |one: &Interface, way| way_of(one, all) == way;
    let choices = [
        those(&|one| leads(one, Way::Wire)),
        those(&|one| leads(one, Way::Container) && is_routed(one, all)),
        those(&|one| leads(one, Way::Container)),
        // The host has its own address, and its NICs have none (BGP unnumbered).
        if is_unnumbered(all) { own_addresses(all) } else { Vec::new() },
        those(&|one| one.routes == Routes::Default),
        those(&|one| leads(one, Way::Switch)),
        those(&|one| leads(one, Way::Tunnel) && is_routed(one, all)),
    ];
    choices.into_iter().find(|choice| !choice.is_empty()).unwrap_or_default()
}

/// Returns where an interface leads, which follows from the interfaces below it.
pub(super) fn way_of(interface: &Interface, all: &[Interface]) -> Way {
    way(interface, all, STACKED)
}

fn way(interface: &Interface, all: &[Interface], depth: usize) -> Way {
    let Some(depth) = depth.checked_sub(1) else { return Way::Host };
    let members = || all.iter().filter(|one| one.master == Some(interface.index));
    let best = |ways: &mut dyn Iterator<Item = Way>| ways.max().unwrap_or(Way::Host);
    match interface.kind {
        Kind::Nic => Way::Wire,
        Kind::Loopback | Kind::Dummy | Kind::Vrf => Way::Host,
        Kind::Tunnel | Kind::Overlay => Way::Tunnel,
        Kind::Veth => match interface.below {
            Below::Link(_) => Way::Host,
            Below::Elsewhere | Below::Nothing => Way::Container,
        },
        Kind::Vlan | Kind::Macvlan => match interface.below {
            Below::Link(below) => {
                let below = all.iter().find(|one| one.index == below);
                below.map_or(Way::Wire, |below| way(below, all, depth))
            }
            // A NIC of the host, as far as a container can tell.
            Below::Elsewhere | Below::Nothing => Way::Wire,
        },
        Kind::Bond => best(&mut members().map(|one| way(one, all, depth))),
        Kind::Bridge => match best(&mut members().map(|one| way(one, all, depth))) {
            Way::Wire => Way::Wire,
            // Also without members: whether it is up shows whether it leads anywhere.
            _ => Way::Switch,
        },
        // The bridge's ports are members of one datapath, and only its daemon knows which of them belong together.
        Kind::OpenVswitch if interface.routes == Routes::Default => {
            let is_datapath = |index: u32| {
                all.iter().any(|one| one.index == index && one.kind == Kind::OpenVswitch)
            };
            let is_port = |one: &&Interface| one.master.is_some_and(is_datapath);
            let ports = all.iter().filter(|one| one.kind != Kind::OpenVswitch).filter(is_port);
            best(&mut ports.map(|one| way(one, all, depth))).max(Way::Container)
        }
        Kind::OpenVswitch => Way::Switch,
        _ => Way::Container,
    }
}

/// Returns the interface that has the address instead of this one: a bond, a bridge, Azure's interface above its
/// virtual function. Members of a VRF keep theirs.
pub(super) fn upper<'a>(interface: &Interface, all: &'a [Interface]) -> Option<&'a Interface> {
    let master = interface.master?;
    all.iter().find(|one| one.index == master && one.kind != Kind::Vrf)
}

/// Returns whether any route leads over the interface: one of its own networks, or another one.
pub(super) fn is_routed(interface: &Interface, all: &[Interface]) -> bool {
    let has_network = |one: &Interface| {
        one.index == interface.index
            && one.state.is_usable()
            && one.prefix_len < if one.address.is_ipv4() { 32 } else { 128 }
    };
    interface.routes != Routes::None || all.iter().any(has_network)
}

/// Returns whether NICs are up that have only link-local addresses, or a container's interfaces.
fn is_unnumbered(all: &[Interface]) -> bool {
    all.iter().any(|one| {
        one.up
            && one.state == AddressState::LinkLocal
            && upper(one, all).is_none()
            && way_of(one, all) >= Way::Container
    })
}

/// Returns addresses of the loopback interface that lead here from other hosts.
fn own_addresses(all: &[Interface]) -> Vec<&Interface> {
    let is_own = |one: &&Interface| one.loopback && one.is_usable() && !one.address.is_loopback();
    all.iter().filter(is_own).take(1).collect()
}

#[cfg(test)]
mod tests;
