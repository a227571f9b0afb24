//! Which interfaces become rails.

use std::cmp::Reverse;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use polyrail_proto::hello::{MAX_RAILS, Network, RailCard};
use polyrail_sys::interfaces::{AddressState, Interface};

use crate::engine::automatic_rails::leading_out;

/// A rail of this engine before it listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ChosenRail {
    /// Interface, or the address if the interface has several rails.
    pub(crate) name: String,
    pub(crate) interface: String,
    pub(crate) address: IpAddr,
    pub(crate) prefix_len: u8,
    pub(crate) speed_mbps: Option<u32>,
    pub(crate) loopback: bool,
    /// The device of the hosted plugin that carries its payload, among those that are rails.
    pub(crate) hosted: Option<usize>,
}

/// Why a list of rails can't be used.
#[derive(Debug)]
pub(crate) struct Unfit {
    /// What is wrong with it.
    pub(crate) why: String,
    /// Whether another list mends it; otherwise this machine lacks something.
    pub(crate) is_wrong: bool,
    pub(crate) allowed: Allowed,
}

/// What can stand in a list of rails, as far as it matters for what is wrong with one.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Allowed {
    Interfaces,
    Loopback,
    Plugin,
    Count,
}

impl Unfit {
    pub(super) fn wrong(why: String, allowed: Allowed) -> Self {
        Self { why, is_wrong: true, allowed }
    }

    fn no_interface(why: String) -> Self {
        Self::wrong(why, Allowed::Interfaces)
    }

    fn lacking(why: String) -> Self {
        Self { why, is_wrong: false, allowed: Allowed::Interfaces }
    }
}

impl Allowed {
    /// In words, with what helps.
    pub(super) fn told(&self, interfaces: &[Interface]) -> (String, &'static str) {
        match self {
            Self::Interfaces => (
                format!("auto, ^NAME (auto without it), or what is usable here: {}", usable(interfaces)),
                "name some of these in `rails`; `polyrail topo` lists all interfaces",
            ),
            Self::Loopback => (
                format!("a loopback interface that is up, or what is usable here: {}", usable(interfaces)),
                "`ip link set lo up` (as root) brings it up; or name rails that are usable here",
            ),
            Self::Plugin => (
                "plugin:LIBRARY, or plugin:LIBRARY@DEVICE+DEVICE, once, alone or beside interfaces and addresses that are \
                 named"
                    .to_owned(),
                "name a library as NCCL_NET_PLUGIN does, and its devices by name or number: \
                 eth0,plugin:/opt/libnccl-net.so@eth1+eth2",
            ),
            Self::Count => (
                format!("1 to {MAX_RAILS}"),
                "name fewer interfaces or addresses, and some devices of a plugin as plugin:LIBRARY@NAME+NUMBER",
            ),
        }
    }
}

/// Whether an engine can have so many rails, whoever brings them.
pub(super) fn check_count(rails: usize) -> Result<(), Unfit> {
    if rails <= MAX_RAILS { Ok(()) } else { Err(too_many(rails)) }
}

/// The rails that an engine takes of those that nobody named: the fastest if there are too many, in their order. One whose
/// speed is unknown counts as the slowest.
pub(super) fn best(rails: Vec<ChosenRail>) -> Vec<ChosenRail> {
    let mut order: Vec<usize> = (0..rails.len()).collect();
    order.sort_by_key(|at| Reverse(rails[*at].speed_mbps));
    order.truncate(MAX_RAILS);
    order.sort_unstable();
    order.into_iter().map(|at| rails[at].clone()).collect()
}

pub(super) fn too_many(rails: usize) -> Unfit {
    Unfit::wrong(format!("these are {rails} rails"), Allowed::Count)
}

/// Chooses rails as users of `NCCL_SOCKET_IFNAME` expect.
///
/// * `auto`: every interface that is up and leads to other hosts, as [`leading_out`] judges; if there is none, the
///   loopback interface. Of more than [`MAX_RAILS`] the [`best`] become rails.
/// * `eth,ib`: interfaces whose name begins so. `=eth1,eth2`: exactly these. `^docker,lo`: all but
///   those that begin so; `^=docker0`: all but exactly these.
/// * an address (`10.0.0.5`, `fd00::1`): that one. Addresses and names may be mixed.
///
/// Interfaces that are named are taken whatever they are, if they are up. `^` names none: of the others it takes what
/// `auto` would.
///
/// `all` has every interface, also those without an address.
///
/// # Errors
/// What is wrong with `spec`.
pub(crate) fn select(spec: &str, all: &[Interface]) -> Result<Vec<ChosenRail>, Unfit> {
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
    pub(crate) fn card(&self, port: u16) -> RailCard {
        RailCard {
            name: self.name.clone(),
            address: SocketAddr::new(self.address, port),
            prefix_len: self.prefix_len,
            speed_mbps: self.speed_mbps.unwrap_or(0),
        }
    }

    /// The network that its address is in.
    pub(crate) fn network(&self) -> Network {
        Network { address: self.address, prefix_len: self.prefix_len }
    }

    pub(crate) fn of(interface: &Interface) -> Self {
        Self {
            name: interface.name.clone(),
            interface: interface.name.clone(),
            address: interface.address,
            prefix_len: interface.prefix_len,
            // Its file is read for rails only, as the kernel asks some devices then.
            speed_mbps: None,
            loopback: interface.loopback,
            hosted: None,
        }
    }
}

/// An empty list.
pub(super) const NAMES_NONE: &str = "it names no interface";

pub(super) struct Pattern<'a> {
    exact: bool,
    names: Vec<&'a str>,
}

impl<'a> Pattern<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        let (exact, list) = match text.strip_prefix('=') {
            Some(list) => (true, list),
            None => (false, text),
        };
        let names = list.split(',').map(str::trim).filter(|name| !name.is_empty()).collect();
        Self { exact, names }
    }

    /// Each of its names by itself.
    pub(super) fn words(&self) -> impl Iterator<Item = Self> {
        self.names.iter().map(|name| Self { exact: self.exact, names: vec![name] })
    }

    pub(super) fn matches(&self, interface: &str) -> bool {
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

pub(super) fn one_per_interface<'a>(
    interfaces: impl Iterator<Item = &'a Interface>,
) -> Vec<ChosenRail> {
    best_addresses(interfaces).into_iter().map(ChosenRail::of).collect()
}

/// One address of each interface, if peers can reach one: the first that stays, IPv4 if there is one.
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

/// Words behind `no address`: ` that peers can reach: only fe80::1, which is link-local`.
pub(super) fn no_address(addresses: &[&Interface]) -> String {
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

/// An address of the loopback network needs not be configured to be usable.
fn by_address(address: IpAddr, all: &[Interface]) -> Result<ChosenRail, Unfit> {
    // It needs no scope, so peers of the same cable can reach it.
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

/// Rails on one interface are told apart by their address.
fn name_apart(rails: &mut [ChosenRail]) {
    let interfaces: Vec<String> = rails.iter().map(|rail| rail.interface.clone()).collect();
    for rail in rails {
        if interfaces.iter().filter(|name| **name == rail.interface).count() > 1 {
            rail.name = format!("{}@{}", rail.interface, rail.address);
        }
    }
}

fn usable(all: &[Interface]) -> String {
    let up =
        all.iter().filter(|i| i.up && i.is_usable()).map(|i| format!("{} ({})", i.name, i.address));
    let names: Vec<_> = up.collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

#[cfg(test)]
mod tests {
    use polyrail_sys::interfaces::Kind;

    use super::*;

    fn interface(name: &str, address: &str) -> Interface {
        let index = name.bytes().fold(7, |sum: u32, byte| sum * 3 + u32::from(byte));
        let interface = Interface::described(index, name, address.parse().unwrap());
        match name.starts_with("docker") {
            true => Interface { kind: Kind::Bridge, ..interface },
            false => interface,
        }
    }

    fn host() -> Vec<Interface> {
        vec![
            interface("lo", "127.0.0.1"),
            interface("eth1", "10.0.1.2"),
            interface("eth1", "fd00:1::2"),
            interface("eth10", "10.0.2.2"),
            Interface { up: false, ..interface("eth3", "10.0.3.2") },
            interface("docker0", "172.17.0.1"),
            interface("ib0", "fd00:9::2"),
        ]
    }

    fn names(spec: &str) -> Vec<String> {
        select(spec, &host()).unwrap().into_iter().map(|rail| rail.name).collect()
    }

    fn error(spec: &str) -> String {
        select(spec, &host()).unwrap_err().why
    }

    #[test]
    fn automatic_rails_lead_out_of_the_machine() {
        assert_eq!(names("auto"), ["eth1", "eth10", "ib0"]);
        let down = Interface { up: false, ..interface("docker0", "172.17.0.1") };
        let rails = select("auto", &[interface("lo", "127.0.0.1"), down]).unwrap();
        assert_eq!((rails.len(), rails[0].loopback), (1, true));
    }

    #[test]
    fn names_are_prefixes_unless_exact_and_can_be_negated() {
        assert_eq!(names("eth1"), ["eth1", "eth10"]);
        assert_eq!(names("=eth1"), ["eth1"]);
        assert_eq!(names("=eth10,docker0"), ["eth10", "docker0"]);
        assert_eq!(names("^docker,ib"), ["eth1", "eth10"]);
        assert_eq!(names("^=eth1,docker0"), ["eth10", "ib0"]);
    }

    #[test]
    fn addresses_name_a_rail_each() {
        assert_eq!(names("fd00:1::2,eth10"), ["eth1", "eth10"]);
        let four = names("127.0.0.1,127.0.0.2,127.0.0.3,127.0.0.2");
        assert_eq!(four, ["lo@127.0.0.1", "lo@127.0.0.2", "lo@127.0.0.3"]);
    }

    #[test]
    fn a_wrong_name_is_told_with_what_there_is() {
        assert!(error("eth7").contains("no interface eth7"));
        assert!(error("auto,eth1").contains("`auto` stands alone"));
        for empty in [",", "=", " , "] {
            assert_eq!(error(empty), NAMES_NONE);
        }
        assert!(usable(&host()).contains("eth1 (10.0.1.2)"));
        assert!(error("=eth3").contains("eth3 is down"));
        assert!(error("10.9.9.9").contains("no interface has the address 10.9.9.9"));
        // A new network namespace has its loopback interface without an address.
        let unfit = select("127.0.0.1", &[interface("eth1", "10.0.1.2")]).unwrap_err();
        assert_eq!(unfit.why, "the loopback interface is down, and 127.0.0.1 with it");
        assert!(unfit.allowed.told(&[]).1.contains("`ip link set lo up`") && !unfit.is_wrong);
        assert!(error("^eth,ib,docker").contains("no other interface is usable"));
    }

    #[test]
    fn an_interface_without_an_address_is_there_and_lacks_one() {
        let bare = |name: &str, address: &str, state| {
            vec![Interface { state, ..interface(name, address) }]
        };
        for (all, spec, why) in [
            (
                bare("eth1", "0.0.0.0", AddressState::Missing),
                "eth1",
                "interface eth1 has no address",
            ),
            (
                bare("eth1", "fe80::1", AddressState::LinkLocal),
                "eth1",
                "interface eth1 has no address that peers can reach: only fe80::1, which is link-local",
            ),
            (
                bare("eth1", "fd00::1", AddressState::Duplicate),
                "fd00::1",
                "interface eth1 has no address that peers can reach: only fd00::1, which another host has, too",
            ),
        ] {
            let unfit = select(spec, &all).unwrap_err();
            assert_eq!((unfit.why.as_str(), unfit.is_wrong), (why, false));
        }
        let tentative = bare("eth1", "fd00::1", AddressState::Tentative);
        assert!(
            select("=eth1", &tentative).unwrap_err().why.contains("fd00::1, which is tentative")
        );
        // One that has another address is a rail.
        let both = [tentative, vec![interface("eth1", "fd00::2")]].concat();
        assert_eq!(select("eth1", &both).unwrap()[0].address.to_string(), "fd00::2");
        // Two hosts on one cable, without a server that gives addresses.
        let zeroconf = bare("eth1", "169.254.3.4", AddressState::LinkLocal);
        assert_eq!(select("169.254.3.4", &zeroconf).unwrap().len(), 1);
        assert!(!select("eth1", &zeroconf).unwrap_err().is_wrong);
    }

    #[test]
    fn addresses_that_stay_come_first_and_then_ipv4() {
        let chosen = |addresses: &[(&str, AddressState)]| {
            let each = addresses
                .iter()
                .map(|(address, state)| Interface { state: *state, ..interface("eth1", address) });
            select("auto", &each.collect::<Vec<_>>()).unwrap()[0].address.to_string()
        };
        use AddressState::{LinkLocal, Passing, Preferred, Tentative};
        let v4 = ("10.0.0.1", Preferred);
        assert_eq!(chosen(&[("fd00::1", Preferred), v4, ("10.0.0.2", Preferred)]), "10.0.0.1");
        assert_eq!(
            chosen(&[("fe80::1", LinkLocal), ("fd00::1", Passing), ("fd00::2", Preferred)]),
            "fd00::2"
        );
        assert_eq!(chosen(&[("10.0.0.9", Tentative), ("fd00::1", Passing)]), "fd00::1");
        assert_eq!(chosen(&[("10.0.0.9", Passing), ("fd00::1", Preferred)]), "fd00::1");
    }

    #[test]
    fn more_rails_than_an_engine_takes_are_told_with_how_many_it_does() {
        let rail = |at: usize| ChosenRail {
            speed_mbps: Some(if at == 2 { 1_000 } else { 100_000 }).filter(|_| at != 1),
            ..ChosenRail::of(&Interface::described(
                at as u32,
                &at.to_string(),
                [10, 0, 0, 1].into(),
            ))
        };
        let names = |rails: Vec<ChosenRail>| -> Vec<String> {
            rails.into_iter().map(|rail| rail.name).collect()
        };
        let taken = names(best((0..MAX_RAILS + 2).map(rail).collect()));
        let wanted: Vec<String> =
            [0].into_iter().chain(3..MAX_RAILS + 2).map(|at| at.to_string()).collect();
        assert_eq!(taken, wanted);
        assert!(check_count(MAX_RAILS).is_ok());
        let unfit = check_count(MAX_RAILS + 1).unwrap_err();
        let (allowed, help) = unfit.allowed.told(&host());
        assert_eq!((unfit.why.as_str(), allowed.as_str()), ("these are 65 rails", "1 to 64"));
        assert!(help.contains("plugin:LIBRARY@"), "{help}");
    }
}
