//! Properties of a host, as names and values to compare with another host's.

use std::collections::BTreeMap;

use crate::context::Context;

/// Settings that should be the same on all hosts of a fleet.
const FILES: &[&str] = &[
    "/proc/sys/kernel/io_uring_disabled",
    "/proc/sys/kernel/numa_balancing",
    "/proc/sys/kernel/osrelease",
    "/proc/sys/kernel/perf_event_paranoid",
    "/proc/sys/net/core/default_qdisc",
    "/proc/sys/net/core/netdev_budget",
    "/proc/sys/net/core/netdev_max_backlog",
    "/proc/sys/net/core/optmem_max",
    "/proc/sys/net/core/rmem_max",
    "/proc/sys/net/core/somaxconn",
    "/proc/sys/net/core/wmem_max",
    "/proc/sys/net/ipv4/conf/all/arp_announce",
    "/proc/sys/net/ipv4/conf/all/arp_ignore",
    "/proc/sys/net/ipv4/conf/all/rp_filter",
    "/proc/sys/net/ipv4/tcp_allowed_congestion_control",
    "/proc/sys/net/ipv4/tcp_congestion_control",
    "/proc/sys/net/ipv4/tcp_mtu_probing",
    "/proc/sys/net/ipv4/tcp_no_metrics_save",
    "/proc/sys/net/ipv4/tcp_rmem",
    "/proc/sys/net/ipv4/tcp_sack",
    "/proc/sys/net/ipv4/tcp_slow_start_after_idle",
    "/proc/sys/net/ipv4/tcp_timestamps",
    "/proc/sys/net/ipv4/tcp_window_scaling",
    "/proc/sys/net/ipv4/tcp_wmem",
    "/sys/devices/system/clocksource/clocksource0/current_clocksource",
    "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor",
    "/sys/devices/system/cpu/isolated",
    "/sys/devices/system/cpu/online",
    "/sys/devices/system/cpu/smt/active",
    "/sys/kernel/mm/transparent_hugepage/enabled",
];

/// Returns every fact of the host, except those that must differ between hosts, such as addresses.
pub(crate) fn facts(cx: &Context) -> BTreeMap<String, String> {
    let mut facts = BTreeMap::new();
    let mut put = |name: String, value: Option<String>| {
        facts.extend(value.map(|value| (name, value)));
    };
    for path in FILES {
        let text = cx.root().read(path).ok();
        put((*path).into(), text.map(|text| text.split_whitespace().collect::<Vec<_>>().join(" ")));
    }
    let topology = cx.topology();
    put("cpu model".into(), topology.cpus.model_name.clone());
    put("nodes".into(), Some(topology.nodes.len().to_string()));
    put("gpus".into(), Some(topology.gpus.len().to_string()));
    put("nics".into(), Some(topology.nics.len().to_string()));
    for gpu in &topology.gpus {
        put(format!("gpu {}: driver", gpu.index), gpu.driver.clone());
        put(format!("gpu {}: model", gpu.index), gpu.model.clone());
        put(format!("gpu {}: node", gpu.index), gpu.node.map(|node| node.to_string()));
        put(
            format!("gpu {}: link", gpu.index),
            gpu.pci.link.as_ref().map(|link| format!("x{}", link.width)),
        );
    }
    for plugin in cx.probes().plugins.iter().flatten() {
        let tables: Vec<String> = plugin.tables.iter().map(u32::to_string).collect();
        let name = plugin.path.file_name().unwrap_or_default().to_string_lossy();
        put(format!("net plugin {name}: tables"), Some(tables.join(",")));
    }
    for nic in &topology.nics {
        let mut put =
            |what: &str, value: Option<String>| put(format!("{}: {what}", nic.name), value);
        put("driver", nic.driver.clone());
        put("node", nic.node.map(|node| node.to_string()));
        put("speed in Mbit/s", nic.speed_mbps.map(|speed| speed.to_string()));
        put("MTU", nic.mtu.map(|mtu| mtu.to_string()));
        put("state", nic.operstate.clone());
        put("receive queues", Some(nic.rx_queues.to_string()));
        put("vectors", Some(nic.vectors.len().to_string()));
        let link = nic.pci.as_ref().and_then(|pci| pci.link.as_ref());
        put("PCIe link", link.map(|link| format!("{}, x{}", link.speed, link.width)));
        let probe = cx.probes().nics.get(&nic.name);
        let ring = probe.and_then(|probe| probe.rx_ring);
        put("receive ring", ring.map(|ring| ring.now.to_string()));
        let usecs = probe.and_then(|probe| probe.coalesce?.rx_usecs);
        put("rx-usecs", usecs.map(|usecs| usecs.to_string()));
    }
    facts
}
