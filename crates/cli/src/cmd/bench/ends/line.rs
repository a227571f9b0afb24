//! Maximum rates of the rails of each end.

use std::collections::{BTreeMap, BTreeSet};

use polyrail::Engine;
use polyrail_lab::Rate;
use polyrail_report::counted;
use polyrail_sys::interfaces::{self, Below, Interface, Kind};

use crate::cmd::bench::judge::Line;

/// Returns the maximum rates of the rails, if the rate of each is known.
pub(super) fn line(engine: &Engine, rates: Option<&[Rate]>) -> Option<Line> {
    let rails = engine.rails();
    // In a user's own lab, or on a share of a link, the rate is below the driver's speed.
    let buckets = if rates.is_some() { Ok(Vec::new()) } else { polyrail_lab::token_buckets() };
    let buckets: BTreeMap<String, u64> = buckets.unwrap_or_default().into_iter().collect();
    let all = interfaces::survey().unwrap_or_default();
    // An interface made on a link may have its own token bucket, which then bounds it.
    let wire = |rail: &polyrail::RailInfo| match buckets.contains_key(&rail.interface) {
        true => rail.interface.clone(),
        false => wire_of(&rail.interface, &all).to_owned(),
    };
    let bucket = |rail: &polyrail::RailInfo| buckets.get(&wire(rail)).copied();
    let speed = |(place, rail): (usize, &polyrail::RailInfo)| match rates {
        Some(rates) => rates.get(place)?.bytes_per_second(),
        // Loopback's reported speed is meaningless.
        None if rail.address.ip().is_loopback() => None,
        None if bucket(rail).is_some() => bucket(rail),
        None => rail.speed_mbps.map(|mbps| u64::from(mbps) * 125_000),
    };
    // Rails of one interface share its link, and so do interfaces made on it.
    let sharing = |rail: &polyrail::RailInfo| {
        if rates.is_some() { 1 } else { rails.iter().filter(|one| wire(one) == wire(rail)).count() }
    };
    let each = rails.iter().enumerate();
    let each = each.map(|rail| {
        let gb_per_s = speed(rail)? as f64 / 1e9;
        Some((rail.1.name.clone(), gb_per_s / sharing(rail.1) as f64))
    });
    let each: Vec<(String, f64)> = each.collect::<Option<_>>()?;
    let source = match rates {
        Some(_) => "in the lab",
        None if rails.iter().all(|rail| bucket(rail).is_some()) => "by their token buckets",
        None if rails.iter().any(|rail| bucket(rail).is_some()) => {
            "by their drivers and token buckets"
        }
        None => "by their drivers",
    };
    let links = rails.iter().map(wire).collect::<BTreeSet<_>>().len();
    let shared = match links < rails.len() && rates.is_none() {
        true => {
            format!(", which share {links} {}", if links == 1 { "interface" } else { "interfaces" })
        }
        false => String::new(),
    };
    let source = format!("{} {source}{shared}", counted(each.len() as u64, "rail"));
    Some(Line { rails: each, source })
}

/// Returns the interface whose link carries the traffic of this one: VLANs and macvlans are made on another interface.
fn wire_of<'a>(name: &'a str, all: &'a [Interface]) -> &'a str {
    let mut wire = name;
    // The kernel allows eight levels.
    for _ in 0..8 {
        let Some(one) = all.iter().find(|one| one.name == wire) else { break };
        let (Kind::Vlan | Kind::Macvlan, Below::Link(below)) = (one.kind, one.below) else { break };
        let Some(below) = all.iter().find(|one| one.index == below) else { break };
        wire = &below.name;
    }
    wire
}

/// Returns the maximum rates of the other end's rails. That end reports them, so the numbers are checked.
pub(super) fn line_there(rails: Vec<(String, f64)>) -> Option<Line> {
    let are_rates = rails.iter().all(|(_, rate)| rate.is_finite() && *rate > 0.0);
    let source = format!("{} at the other side", counted(rails.len() as u64, "rail"));
    (are_rates && !rails.is_empty()).then_some(Line { rails, source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_made_on_an_interface_uses_its_link() {
        let address = [10, 0, 0, 1].into();
        let on = |index, name: &str, kind, below| Interface {
            kind,
            below,
            ..Interface::described(index, name, address)
        };
        let all = [
            Interface::described(2, "eth0", address),
            on(3, "eth0.7", Kind::Vlan, Below::Link(2)),
            on(4, "net1", Kind::Macvlan, Below::Link(3)),
            on(5, "net2", Kind::Macvlan, Below::Elsewhere),
            on(6, "odd", Kind::Macvlan, Below::Link(6)),
        ];
        let wires = ["eth0", "eth0.7", "net1", "net2", "odd", "gone"].map(|one| wire_of(one, &all));
        assert_eq!(wires, ["eth0", "eth0", "eth0", "net2", "odd", "gone"]);
    }

    #[test]
    fn rates_of_the_other_end_that_are_none_count_for_nothing() {
        let there = |rates: &[f64]| {
            line_there(rates.iter().map(|rate| ("eth0".to_owned(), *rate)).collect())
        };
        let line = there(&[1.0, 0.5]).unwrap();
        assert_eq!((line.gb_per_s(), line.source.as_str()), (1.5, "2 rails at the other side"));
        for rates in [&[][..], &[1.0, 0.0], &[-1.0], &[f64::INFINITY]] {
            assert_eq!(there(rates), None, "{rates:?}");
        }
    }
}
