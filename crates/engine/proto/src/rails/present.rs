//! Rails of a list that is shared by several machines: `?eno1,eth0`, and addresses of one family.

use std::net::{IpAddr, Ipv4Addr};

use super::{AddressState, Allowed, Family, Interface, NAMES_NONE, Unfit, select};

/// Removes the interfaces and addresses of an optional list that are missing or down, and returns those as well. Other
/// lists are unchanged.
///
/// # Errors
/// None of them is present.
pub fn present(spec: &str, all: &[Interface]) -> Result<(String, String), Unfit> {
    let Some(list) = spec.trim().strip_prefix('?') else {
        return Ok((spec.to_owned(), String::new()));
    };
    let (exact, list) = match list.strip_prefix('=') {
        Some(list) => ("=", list),
        None => ("", list),
    };
    let words = list.split(',').map(str::trim).filter(|word| !word.is_empty());
    let (there, missing): (Vec<&str>, Vec<&str>) =
        words.partition(|word| select(&format!("{exact}{word}"), all).is_ok());
    if there.is_empty() {
        let why = match missing.join(", ") {
            names if names.is_empty() => NAMES_NONE.to_owned(),
            names => format!("there is no interface {names} that is up"),
        };
        return Err(Unfit::wrong(why, Allowed::Interfaces));
    }
    Ok((format!("{exact}{}", there.join(",")), missing.join(", ")))
}

/// Returns the addresses that rails may have: those of a family, and those that `spec` names. An interface with only
/// other ones stays, without an address.
pub fn of_family(family: Option<Family>, spec: &str, all: &[Interface]) -> Vec<Interface> {
    let words = spec.trim_start_matches(['?', '=', '^']).split(',');
    let named: Vec<IpAddr> = words.filter_map(|word| word.trim().parse().ok()).collect();
    let is_wanted = |interface: &&Interface| {
        let is_it = |named: &IpAddr| {
            *named == interface.address || named.is_loopback() && interface.loopback
        };
        family.is_none_or(|family| family.has(interface.address)) || named.iter().any(is_it)
    };
    let mut rest: Vec<Interface> = Vec::with_capacity(all.len());
    for interface in all {
        if is_wanted(&interface) {
            rest.push(interface.clone());
        } else if !rest.iter().any(|one| one.index == interface.index) {
            let address = Ipv4Addr::UNSPECIFIED.into();
            rest.push(Interface { address, state: AddressState::Missing, ..interface.clone() });
        }
    }
    rest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(name: &str, address: &str) -> Interface {
        let index = name.bytes().fold(7, |sum: u32, byte| sum * 3 + u32::from(byte));
        Interface::described(index, name, address.parse().unwrap())
    }

    fn host() -> Vec<Interface> {
        vec![
            interface("lo", "127.0.0.1"),
            interface("eth0", "10.0.0.1"),
            interface("eth0", "fd00::1"),
            interface("eth1", "10.0.1.1"),
            Interface { up: false, ..interface("eth2", "10.0.2.1") },
        ]
    }

    fn chosen(family: Option<Family>, spec: &str) -> Result<Vec<String>, String> {
        let all = of_family(family, spec, &host());
        let rails = present(spec, &all).and_then(|(spec, _)| select(&spec, &all));
        let rails = rails.map_err(|unfit| unfit.among(family).why)?;
        Ok(rails.into_iter().map(|rail| rail.address.to_string()).collect())
    }

    #[test]
    fn a_list_with_a_question_mark_takes_those_that_are_there_and_up() {
        let chosen = |spec| chosen(None, spec);
        let one = Ok(vec!["10.0.0.1".to_owned()]);
        for spec in
            ["?eno1,eth0", "?=eno1,eth0", "?=eth0,=eth1", "? eth0 , eth2", "?10.0.0.1,10.9.9.9"]
        {
            assert_eq!(chosen(spec), one, "{spec}");
        }
        assert_eq!(chosen("?eth").unwrap().len(), 2);
        assert_eq!(
            chosen("?eno1,eth2").unwrap_err(),
            "there is no interface eno1, eth2 that is up"
        );
        assert_eq!(chosen("eno1,eth0").unwrap_err(), "there is no interface eno1");
    }

    #[test]
    fn a_family_chooses_among_the_addresses_that_are_not_named() {
        use Family::{Ipv4, Ipv6};
        for (family, spec, wanted) in [
            (Ipv6, "auto", vec!["fd00::1"]),
            (Ipv6, "?eth0,eth1", vec!["fd00::1"]),
            (Ipv4, "eth0", vec!["10.0.0.1"]),
            (Ipv6, "10.0.1.1,eth0", vec!["10.0.1.1", "fd00::1"]),
            (Ipv6, "127.0.0.5", vec!["127.0.0.5"]),
        ] {
            assert_eq!(chosen(Some(family), spec).unwrap(), wanted, "{family} {spec}");
        }
        let why = chosen(Some(Ipv6), "eth1").unwrap_err();
        assert_eq!(why, "interface eth1 has no address, with address_family = ipv6");
    }
}
