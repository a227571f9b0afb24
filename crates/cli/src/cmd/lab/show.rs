//! Labs as text and JSON.

use std::fmt::Write;

use polyrail_lab::{Lab, LabInfo, LabState, Network, Node, RailEnd, RailInfo, Rate, Side};
use serde_json::{Value, json};

/// Version of the JSON, raised when a field changes its meaning or goes away.
const SCHEMA_VERSION: u32 = 1;

/// Table with a line per rail: rate, state, and the addresses of the ends. With a switch it has a line per end.
pub(super) fn table(rails: &[RailInfo]) -> String {
    if rails.iter().any(|rail| rail.ends[0].port_rate.is_some()) {
        return switched_table(rails);
    }
    let header = ["rail", "rate", "link", "a", "b", "a (IPv6)", "b (IPv6)"].map(String::from);
    let row = |rail: &RailInfo| {
        let ipv6 = |end: &RailEnd| end.ipv6.map_or("-".into(), |address| address.to_string());
        let (a, b) = (rail.end(Side::A), rail.end(Side::B));
        let (rate, link) = (rate(rail), link(rail).into());
        [rail.name.clone(), rate, link, a.ipv4.to_string(), b.ipv4.to_string(), ipv6(a), ipv6(b)]
    };
    columns(std::iter::once(header).chain(rails.iter().map(row)))
}

fn switched_table(rails: &[RailInfo]) -> String {
    let header = ["rail", "node", "sends", "gets", "link", "IPv4", "IPv6"].map(String::from);
    let row = |rail: &RailInfo, node: usize, end: &RailEnd| {
        let ipv6 = end.ipv6.map_or("-".into(), |address| address.to_string());
        let gets = end.port_rate.map_or("-".into(), |rate| rate.to_string());
        let (name, link) = (rail.name.clone(), if end.up { "up" } else { "off" }.into());
        [name, node.to_string(), end.rate.to_string(), gets, link, end.ipv4.to_string(), ipv6]
    };
    let mut rows = vec![header];
    for rail in rails {
        rows.extend(rail.ends.iter().enumerate().map(|(node, end)| row(rail, node, end)));
    }
    columns(rows.into_iter())
}

/// All labs, as text or JSON.
pub(super) fn list(labs: &[LabInfo], json: bool) -> String {
    if json {
        let labs = labs.iter().map(lab_json).collect::<Vec<_>>();
        return format!("{:#}\n", json!({ "schema_version": SCHEMA_VERSION, "labs": labs }));
    }
    if labs.is_empty() {
        return "no labs\n".into();
    }
    let mut text = String::new();
    for (index, lab) in labs.iter().enumerate() {
        let gap = if index > 0 { "\n" } else { "" };
        let (privilege, processes) = (lab.privilege.name(), lab.processes);
        let plural = if processes == 1 { "" } else { "es" };
        let network = match lab.network {
            Network::Subnet => String::new(),
            network => format!("{network}, "),
        };
        let remedy = match lab.state {
            LabState::Broken { .. } => {
                format!("; remove it with `polyrail lab down {}`", lab.name)
            }
            _ => String::new(),
        };
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "{gap}{}  {}{remedy}  ({network}{privilege}, {processes} process{plural} inside)",
            lab.name, lab.state
        );
        if !lab.rails.is_empty() {
            text.push_str(&table(&lab.rails));
        }
    }
    text
}

/// Commands to try in a lab that has just come up. Each line runs as printed.
pub(super) fn next_steps(lab: &Lab) -> String {
    let name = lab.name();
    let paths = Side::BOTH.map(|side| lab.namespace_path(side).display().to_string());
    let ([a, b], rest) = match lab.switch_path() {
        None => (["a", "b"], format!(" and {}", paths[1])),
        Some(switch) => (["0", "1"], format!(" and so on, and {} of the switch", switch.display())),
    };
    let polyrail = program(std::env::args_os().next().and_then(|called| called.into_string().ok()));
    let at =
        lab.rails().first().map_or(String::new(), |rail| format!("{}:5000", rail.ends[1].ipv4));
    format!(
        "polyrail: lab `{name}` is up; its namespaces are {}{rest}\n\
         try:  {polyrail} lab exec {name} {b} -- {polyrail} bench --listen {at}    # in another terminal\n      \
         {polyrail} lab exec {name} {a} -- {polyrail} bench --connect {at}\n      \
         {polyrail} lab set {name} rail0 --link down\n      \
         {polyrail} lab down {name}",
        paths[0]
    )
}

/// This program as it was called, for a shell in the same folder.
fn program(called: Option<String>) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+".contains(c);
    match called.filter(|called| called.contains('/')) {
        Some(called) if called.chars().all(is_plain) => called,
        Some(called) => format!("'{}'", called.replace('\'', r"'\''")),
        None => "polyrail".to_owned(),
    }
}

/// Names the end where a rail was cut, and the end that lost its carrier.
pub(super) fn cut(lab: &Lab, at: Node) -> String {
    if lab.is_switched() {
        return format!("on node {at}; its port at the switch has lost its carrier");
    }
    let [at, other] = if at == Side::A.into() { Side::BOTH } else { [Side::B, Side::A] };
    format!("on side {at}; side {other} has lost its carrier")
}

fn lab_json(lab: &LabInfo) -> Value {
    let (state, because) = match &lab.state {
        LabState::Ready => ("ready", None),
        LabState::Changing => ("changing", None),
        LabState::Broken { because } => ("broken", Some(because)),
        LabState::Elsewhere => ("elsewhere", None),
    };
    json!({
        "name": lab.name,
        "state": state,
        "because": because,
        "privilege": lab.privilege.name(),
        "namespaces": { "a": lab.namespaces[0], "b": lab.namespaces[1] },
        "nodes": lab.namespaces,
        "is_switched": lab.is_switched,
        "switch": lab.switch,
        "network": lab.network.name(),
        "queue_ms": lab.queue_ms,
        "mtu_bytes": lab.mtu,
        "processes": lab.processes,
        "rails": lab.rails.iter().map(rail_json).collect::<Vec<_>>(),
    })
}

fn rail_json(rail: &RailInfo) -> Value {
    let end = |end: &RailEnd| {
        json!({
            "ipv4": end.ipv4,
            "ipv6": end.ipv6,
            "up": end.up,
            "rate_bits_per_s": end.rate.bits_per_second(),
            // Null is unlimited, or no switch: `is_switched` of the lab says which.
            "port_rate_bits_per_s": end.port_rate.and_then(Rate::bits_per_second),
        })
    };
    json!({
        "index": rail.index,
        "name": rail.name,
        "up": rail.up,
        // Null is unlimited.
        "rate_bits_per_s": rail.rate.bits_per_second(),
        "a": end(rail.end(Side::A)),
        "b": end(rail.end(Side::B)),
        "ends": rail.ends.iter().map(end).collect::<Vec<_>>(),
    })
}

/// The rate of a rail, or both rates if they differ by direction.
fn rate(rail: &RailInfo) -> String {
    let (a, b) = (rail.end(Side::A), rail.end(Side::B));
    if a.rate == b.rate {
        return rail.rate.to_string();
    }
    format!("{} a>b, {} b>a", a.rate, b.rate)
}

fn link(rail: &RailInfo) -> &'static str {
    match (rail.end(Side::A).up, rail.end(Side::B).up) {
        (true, true) => "up",
        (false, true) => "off at a",
        (true, false) => "off at b",
        (false, false) => "off at a, b",
    }
}

fn columns<const N: usize>(rows: impl Iterator<Item = [String; N]>) -> String {
    let rows = rows.collect::<Vec<_>>();
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let widths = std::array::from_fn::<_, N, _>(width);
    let line = |row: &[String; N]| {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
        format!("{}\n", cells.collect::<Vec<_>>().join("  ").trim_end())
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::program;

    #[test]
    fn the_program_is_named_as_it_was_called() {
        let named = |called: &str| program(Some(called.to_owned()));
        assert_eq!((named("polyrail"), program(None)), ("polyrail".into(), "polyrail".into()));
        assert_eq!(named("target/release/polyrail"), "target/release/polyrail");
        assert_eq!(named("/home/a b/polyrail"), "'/home/a b/polyrail'");
    }
}
