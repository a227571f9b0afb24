//! CPUs of a device's progress threads.
//!
//! On a machine with several NUMA nodes, a copy into or out of memory that is far from the interface crosses the link
//! between them. So the progress threads of each interface stay on its node: on all of it, because the ranks of a host
//! don't know of each other, but the kernel does.

use polyrail::{Config, RailInfo};
use polyrail_config::ProxyLayout;
use polyrail_host::{Sysroot, Topology};

use crate::log;

/// Settings that keep the progress threads near the interfaces of these rails. Empty if the user has placed them, or
/// the machine gives no reason to.
pub(crate) fn near(config: &Config, rails: &[RailInfo]) -> Vec<(&'static str, String)> {
    if !(config.tx_bindings.is_empty() && config.rx_bindings.is_empty()) {
        return Vec::new();
    }
    let topology = match Topology::read(&Sysroot::live()) {
        Ok(topology) => topology,
        Err(error) => {
            log::info(&format!("proxies run where the kernel puts them: {error}"));
            return Vec::new();
        }
    };
    let interfaces: Vec<&str> = rails.iter().map(|rail| rail.interface.as_str()).collect();
    let Some(bindings) = bindings(&topology, &interfaces) else { return Vec::new() };
    match config.proxy_layout {
        ProxyLayout::Merged => vec![("tx_bindings", bindings)],
        ProxyLayout::Split => vec![("tx_bindings", bindings.clone()), ("rx_bindings", bindings)],
    }
}

/// Formats bindings for the setting `tx_bindings`. Omits interfaces of unknown node.
fn bindings(topology: &Topology, interfaces: &[&str]) -> Option<String> {
    if topology.nodes_with_cpus() < 2 {
        return None;
    }
    let usable = topology.usable_cpus().difference(&topology.cpus.isolated);
    let mut entries: Vec<String> = Vec::new();
    for interface in interfaces {
        let node = topology.node_of(interface).and_then(|node| topology.node(node));
        let cpus = node.map(|node| node.cpus.intersection(&usable)).unwrap_or_default();
        let entry = format!("{interface}:{cpus}");
        if !cpus.is_empty() && !entries.contains(&entry) {
            entries.push(entry);
        }
    }
    Some(entries.join(";")).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use polyrail_host::fixtures;

    use super::*;

    #[test]
    fn proxies_stay_on_the_node_of_their_interface() {
        let fixture = fixtures::a3_high();
        let mut topology = Topology::read(&fixture.root()).unwrap();
        let two_of_one = ["eth1", "eth4", "eth1", "lo"];
        let all = "eth1:0-51,104-155;eth4:52-103,156-207";
        assert_eq!(bindings(&topology, &two_of_one).as_deref(), Some(all));
        // The launcher has given this rank CPUs of one node only: the other interface's progress threads must not take
        // those of other ranks.
        topology.allowed_cpus = Some((0..26).collect());
        assert_eq!(bindings(&topology, &two_of_one).as_deref(), Some("eth1:0-25"));
    }

    #[test]
    fn one_node_or_interfaces_without_a_device_are_no_reason_to_bind() {
        let fixture = fixtures::laptop();
        let topology = Topology::read(&fixture.root()).unwrap();
        let names: Vec<&str> = topology.nics.iter().map(|nic| nic.name.as_str()).collect();
        assert!(!names.is_empty());
        assert_eq!(bindings(&topology, &names), None);
        let fixture = fixtures::a3_high();
        assert_eq!(bindings(&Topology::read(&fixture.root()).unwrap(), &["lo"]), None);
    }
}
