//! Selection of the interfaces that become rails, with the reasons why others do not.

mod interface;
mod leading;
mod left_out;
mod plugin;
mod ports;
mod present;
mod unfit;

use std::cmp::Reverse;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

pub use self::interface::{AddressState, Below, Interface, Kind, Routes};
use self::leading::leading_out;
pub use self::left_out::{LeftOut, left_out, remark, unknown, why_none};
pub use self::plugin::{PluginSpec, bound_as, control_of, split};
pub use self::ports::Ports;
pub use self::present::{of_family, present};
pub use self::unfit::{Allowed, Unfit, check_count, too_many};
use crate::hello::{MAX_RAILS, Network, RailCard};

/// Settings that rails depend on.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// Setting `rails`.
    pub spec: &'a str,
    /// Whether that names interfaces, addresses or a plugin.
    pub is_named: bool,
    /// Setting `address_family`; `None` if any will do.
    pub family: Option<Family>,
}

/// A family of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// IPv4.
    Ipv4,
    /// IPv6.
    Ipv6,
}

/// A rail of this engine before it listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChosenRail {
    /// Name of the interface, or the address if the interface has several rails.
    pub name: String,
    /// Interface of the rail.
    pub interface: String,
    /// Address that it listens on.
    pub address: IpAddr,
    /// Length of the address's network prefix, in bits.
    pub prefix_len: u8,
    /// Speed in Mbit/s, if it is known.
    pub speed_mbps: Option<u32>,
    /// Whether it leads only to this machine.
    pub loopback: bool,
    /// Device of the hosted plugin that carries its payload, by index among those that are rails.
    pub hosted: Option<usize>,
}

impl Family {
    /// Returns whether the address is of this family.
    pub fn has(self, address: IpAddr) -> bool {
        address.is_ipv4() == (self == Self::Ipv4)
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ipv4 => "ipv4",
            Self::Ipv6 => "ipv6",
        })
    }
}

/// Chooses rails as users of `NCCL_SOCKET_IFNAME` expect.
///
/// * `auto`: every interface that is up and leads to other hosts, as `leading_out` judges; if there is none, the
///   loopback interface. If there are more than [`MAX_RAILS`], the [`best`] become rails.
/// * `eth,ib`: interfaces whose names have these prefixes. `=eth1,eth2`: exactly these. `^docker,lo`: all except those
///   with these prefixes; `^=docker0`: all except exactly these.
/// * an address (`10.0.0.5`, `fd00::1`): that one. Addresses and names may be mixed.
///
/// Named interfaces are taken whatever their kind, if they are up. `^` names none: it chooses from the others as `auto`
/// would.
///
/// `all` has every interface, including those without an address.
///
/// # Errors
/// The fault in `spec`.
pub fn select(spec: &str, all: &[Interface]) -> Result<Vec<ChosenRail>, Unfit> {
    let spec = spec.trim();
    let rails = if spec == "auto" {
        match automatic(all.iter(), all) {
            rails if rails.is_empty() => one_per_interface(all.iter().filter(|i| i.loopback)),
            rails => rails,
        }
    } else if let Some(names) = spec.strip_prefix('^') {
        let pattern = Pattern::new(names);
        let others = all.iter().filter(|i| !i.loopback && !pattern.matches(&i.name));
        automatic(others, all)
    } else {
        named(spec, all)?
    };
    let why =
        if spec.starts_with('^') { "no other interface is usable" } else { "no interface is up" };
    match rails.is_empty() {
        true => Err(Unfit::lacking(why.to_owned())),
        false => Ok(rails),
    }
}

impl ChosenRail {
    /// Returns the rail for the engine's card.
    pub fn card(&self, port: u16) -> RailCard {
        RailCard {
            name: self.name.clone(),
            address: SocketAddr::new(self.address, port),
            prefix_len: self.prefix_len,
            speed_mbps: self.speed_mbps.unwrap_or(0),
        }
    }

    /// Returns the network of the rail's address.
    pub fn network(&self) -> Network {
        Network { address: self.address, prefix_len: self.prefix_len }
    }

    /// Returns the rail of an address of an interface.
    pub fn of(interface: &Interface) -> Self {
        Self {
            name: interface.name.clone(),
            interface: interface.name.clone(),
            address: interface.address,
            prefix_len: interface.prefix_len,
            // The speed file is read for rails only, as the kernel then queries some devices.
            speed_mbps: None,
            loopback: interface.loopback,
            hosted: None,
        }
    }
}

/// Returns each rail that shares its network with another rail, and the peer's addresses there.
pub fn crowded(
    rails: &[ChosenRail],
    targets: impl Iterator<Item = SocketAddr> + Clone,
) -> Vec<(&ChosenRail, SocketAddr)> {
    let is_one = |rail: &&ChosenRail| !rail.loopback && rail.address.is_ipv4();
    let mut found = Vec::new();
    for target in targets.filter(SocketAddr::is_ipv4) {
        let near: Vec<&ChosenRail> = rails
            .iter()
            .filter(is_one)
            .filter(|rail| rail.network().contains(target.ip()))
            .collect();
        if near.len() > 1 {
            found.extend(near.into_iter().map(|rail| (rail, target)));
        }
    }
    found
}

/// Returns the rails that an engine takes of those that the user did not name: the fastest if there are too many, in
/// their order. One of unknown speed counts as the slowest.
pub fn best(rails: Vec<ChosenRail>) -> Vec<ChosenRail> {
    let mut order: Vec<usize> = (0..rails.len()).collect();
    order.sort_by_key(|at| Reverse(rails[*at].speed_mbps));
    order.truncate(MAX_RAILS);
    order.sort_unstable();
    order.into_iter().map(|at| rails[at].clone()).collect()
}

/// Reason for an empty list.
const NAMES_NONE: &str = "it names no interface";

struct Pattern<'a> {
    exact: bool,
    names: Vec<&'a str>,
}

impl<'a> Pattern<'a> {
    fn new(text: &'a str) -> Self {
        let (exact, list) = match text.strip_prefix('=') {
            Some(list) => (true, list),
            None => (false, text),
        };
        let names = list.split(',').map(str::trim).filter(|name| !name.is_empty()).collect();
        Self { exact, names }
    }

    /// Returns a pattern for each of its names.
    fn words(&self) -> impl Iterator<Item = Self> {
        self.names.iter().map(|name| Self { exact: self.exact, names: vec![name] })
    }

    fn matches(&self, interface: &str) -> bool {
        self.names
            .iter()
            .any(|name| if self.exact { interface == *name } else { interface.starts_with(name) })
    }
}

impl fmt::Display for Pattern<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.names.join(", "))
    }
}

fn automatic<'a>(
    candidates: impl Iterator<Item = &'a Interface>,
    all: &'a [Interface],
) -> Vec<ChosenRail> {
    let best = best_addresses(candidates.filter(|i| i.up));
    leading_out(&best, all).into_iter().map(ChosenRail::of).collect()
}

/// Returns rails of these interfaces: one address of each.
pub fn one_per_interface<'a>(interfaces: impl Iterator<Item = &'a Interface>) -> Vec<ChosenRail> {
    best_addresses(interfaces).into_iter().map(ChosenRail::of).collect()
}

/// Returns one address of each interface, if peers can reach one: the first permanent one, IPv4 if there is one.
fn best_addresses<'a>(interfaces: impl Iterator<Item = &'a Interface>) -> Vec<&'a Interface> {
    let rank = |one: &Interface| (one.state, one.address.is_ipv6());
    let mut best: Vec<&Interface> = Vec::new();
    for interface in interfaces.filter(|i| i.is_usable()) {
        match best.iter_mut().find(|one| one.name == interface.name) {
            None => best.push(interface),
            Some(one) if rank(interface) < rank(one) => *one = interface,
            Some(_) => {}
        }
    }
    best
}

fn named(spec: &str, all: &[Interface]) -> Result<Vec<ChosenRail>, Unfit> {
    let (exact, list) = match spec.strip_prefix('=') {
        Some(list) => (true, list),
        None => (false, spec),
    };
    let mut rails = Vec::new();
    for word in list.split(',').map(str::trim).filter(|word| !word.is_empty()) {
        let found = match word.parse::<IpAddr>() {
            Ok(address) => vec![by_address(address, all)?],
            Err(_) if word == "auto" => {
                return Err(Unfit::no_interface("`auto` stands alone in a list".to_owned()));
            }
            Err(_) => {
                let pattern = Pattern { exact, names: vec![word] };
                let matching: Vec<_> = all.iter().filter(|i| pattern.matches(&i.name)).collect();
                if matching.is_empty() {
                    return Err(Unfit::no_interface(format!("there is no interface {word}")));
                }
                let up: Vec<_> = matching.into_iter().filter(|i| i.up).collect();
                if up.is_empty() {
                    return Err(Unfit::lacking(format!("interface {word} is down")));
                }
                let rails = one_per_interface(up.iter().copied());
                if rails.is_empty() {
                    let why = no_address(&up);
                    return Err(Unfit::lacking(format!("interface {word} has no address{why}")));
                }
                rails
            }
        };
        for rail in found {
            if !rails.iter().any(|known: &ChosenRail| known.address == rail.address) {
                rails.push(rail);
            }
        }
    }
    if rails.is_empty() {
        return Err(Unfit::no_interface(NAMES_NONE.to_owned()));
    }
    name_apart(&mut rails);
    Ok(rails)
}

/// Returns the text after `no address`: ` that peers can reach: only fe80::1, which is link-local`.
fn no_address(addresses: &[&Interface]) -> String {
    let told = addresses.iter().filter_map(|one| {
        let address = one.address;
        match one.state {
            AddressState::LinkLocal => Some(format!("{address}, which is link-local")),
            AddressState::Tentative => Some(format!(
                "{address}, which is tentative: the kernel asks if another host has it"
            )),
            AddressState::Unnameable => {
                Some(format!("{address}, and the name of the interface is not UTF-8"))
            }
            AddressState::Duplicate => Some(format!("{address}, which another host has, too")),
            _ => None,
        }
    });
    match told.collect::<Vec<_>>() {
        told if told.is_empty() => String::new(),
        told => format!(" that peers can reach: only {}", told.join("; ")),
    }
}

/// An address of the loopback network need not be configured to be usable.
fn by_address(address: IpAddr, all: &[Interface]) -> Result<ChosenRail, Unfit> {
    // No scope is needed, so peers on the same cable can reach it.
    let is_fit =
        |i: &&Interface| i.is_usable() || address.is_ipv4() && i.state == AddressState::LinkLocal;
    let own: Vec<&Interface> = all.iter().filter(|i| i.address == address).collect();
    if let Some(first) = own.first()
        && !address.is_unspecified()
        && !own.iter().any(is_fit)
    {
        let why = no_address(&own);
        return Err(Unfit::lacking(format!("interface {} has no address{why}", first.name)));
    }
    let own = own.into_iter().find(is_fit);
    let network = all
        .iter()
        .find(|i| i.loopback && i.is_usable() && address.is_loopback() && address.is_ipv4());
    // A new network namespace has such an interface without an address.
    if address.is_loopback() && !all.iter().any(|i| i.loopback && i.up && i.is_usable()) {
        let why = format!("the loopback interface is down, and {address} with it");
        return Err(Unfit { allowed: Allowed::Loopback, ..Unfit::lacking(why) });
    }
    match own.or(network) {
        Some(interface) if interface.up => Ok(ChosenRail { address, ..ChosenRail::of(interface) }),
        Some(interface) => {
            Err(Unfit::lacking(format!("interface {} with {address} is down", interface.name)))
        }
        None => Err(Unfit::no_interface(format!("no interface has the address {address}"))),
    }
}

/// Names rails on one interface by their address.
fn name_apart(rails: &mut [ChosenRail]) {
    let interfaces: Vec<String> = rails.iter().map(|rail| rail.interface.clone()).collect();
    for rail in rails {
        if interfaces.iter().filter(|name| **name == rail.interface).count() > 1 {
            rail.name = format!("{}@{}", rail.interface, rail.address);
        }
    }
}

#[cfg(test)]
mod tests;
