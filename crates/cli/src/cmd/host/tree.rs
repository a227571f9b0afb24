//! The tree of nodes, host bridges, switches and devices, as text.

use std::fmt::Write;

use polyrail_host::{
    CacheKind, CpuSet, Gpu, GpuDetails, Nic, Node, NvmlSystem, PciFunction, PciLink, Topology,
};

/// One device in the tree.
struct Entry<'a> {
    node: Option<u32>,
    /// `None` if the device is not on a PCI bus.
    pci: Option<&'a PciFunction>,
    text: String,
}

/// Renders the whole tree, with a newline at the end.
pub(super) fn render(topology: &Topology) -> String {
    let mut text = heading(topology);
    let entries = entries(topology);
    for node in &topology.nodes {
        put(&mut text, &format!("\n{}\n", node_line(topology, node)));
        branch(&mut text, entries.iter().filter(|entry| entry.node == Some(node.id)));
    }
    // Treat a node that does not exist like an unknown one.
    let is_elsewhere = |entry: &&Entry<'_>| entry.node.is_none_or(|id| topology.node(id).is_none());
    if entries.iter().any(|entry| is_elsewhere(&entry)) {
        let name = match topology.nodes_with_cpus() {
            0 => "devices",
            1 => "node unknown, but there is only one",
            _ => "node unknown",
        };
        put(&mut text, &format!("\n{name}\n"));
        branch(&mut text, entries.iter().filter(is_elsewhere));
    }
    if !topology.virtual_interfaces.is_empty() {
        let name = |name: &String| match topology.below(name) {
            [] => name.clone(),
            below => format!("{name} (above {})", below.join(" and ")),
        };
        let names: Vec<String> = topology.virtual_interfaces.iter().map(name).collect();
        let names = names.join(", ");
        put(&mut text, &format!("\nvirtual interfaces: {names}\n"));
    }
    if !topology.unknown.is_empty() {
        text.push_str("\nunknown:\n");
        for sentence in &topology.unknown {
            put(&mut text, &format!("  {sentence}\n"));
        }
    }
    text
}

fn heading(topology: &Topology) -> String {
    let cpus = &topology.cpus;
    let cores = cpus.cores(&cpus.online).len();
    let mut parts = vec![format!("{} CPUs in {cores} cores", cpus.online.len())];
    if let Some(rule) = cpus.sibling_rule() {
        parts[0].push_str(&format!(" ({rule})"));
    }
    if !cpus.offline.is_empty() {
        parts.push(format!("CPU {} offline", cpus.offline));
    }
    let hidden = cpus.possible.difference(&cpus.online).difference(&cpus.offline);
    if !hidden.is_empty() {
        parts.push(format!("CPU {hidden} hidden by a container"));
    }
    if !cpus.isolated.is_empty() {
        parts.push(format!("CPU {} isolated", cpus.isolated));
    }
    if let Some(allowed) = topology.allowed_cpus.as_ref().filter(|set| **set != cpus.online) {
        parts.push(format!("CPU {allowed} allowed to this process"));
    }
    for (count, name) in [
        (topology.nodes.len(), "node"),
        (topology.nics.len(), "hardware NIC"),
        (topology.gpus.len(), "GPU"),
    ] {
        parts.push(format!("{count} {name}{}", if count == 1 { "" } else { "s" }));
    }
    let model = cpus.model_name.as_ref().map(|model| format!("{model}\n")).unwrap_or_default();
    let nvidia = topology.nvml.as_ref().and_then(nvidia_line).unwrap_or_default();
    format!("{model}{}\n{nvidia}", parts.join(", "))
}

/// Returns `None` if NVML reports neither version.
fn nvidia_line(nvml: &NvmlSystem) -> Option<String> {
    let driver = nvml.driver_version.as_ref().map(|version| format!("NVIDIA driver {version}"));
    let cuda = nvml.cuda_version.as_ref().map(|version| format!("CUDA up to {version}"));
    let parts: Vec<String> = driver.into_iter().chain(cuda).collect();
    (!parts.is_empty()).then(|| format!("{}\n", parts.join(", ")))
}

fn node_line(topology: &Topology, node: &Node) -> String {
    let mut parts = vec![match node.cpus.is_empty() {
        true => "no CPUs".to_owned(),
        false => format!("CPUs {}", node.cpus),
    }];
    if let Some(bytes) = node.memory_bytes {
        parts.push(format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30)));
    }
    parts.extend(last_level_caches(topology, &node.cpus));
    let others = node.distances.iter().filter(|(other, _)| *other != node.id);
    let others: Vec<String> = others.map(|(other, far)| format!("{far} to node {other}")).collect();
    if !others.is_empty() {
        parts.push(format!("distance {}", others.join(", ")));
    }
    format!("node {}: {}", node.id, parts.join("; "))
}

/// `L3 105 MiB`, or `4 × L3 32 MiB` where several share the node.
fn last_level_caches(topology: &Topology, cpus: &CpuSet) -> Option<String> {
    let caches = topology.cpus.caches.iter();
    let data: Vec<_> = caches.filter(|cache| cache.kind != CacheKind::Instruction).collect();
    let last = data.iter().map(|cache| cache.level).max()?;
    let here = data.iter().filter(|cache| cache.level == last && cache.cpus.intersects(cpus));
    let here: Vec<_> = here.collect();
    let size = here.first()?.size_bytes.map(|bytes| format!(" {} MiB", bytes >> 20));
    let count = if here.len() > 1 { format!("{} × ", here.len()) } else { String::new() };
    Some(format!("{count}L{last}{}", size.unwrap_or_default()))
}

fn entries(topology: &Topology) -> Vec<Entry<'_>> {
    let gpus = topology.gpus.iter().map(|gpu| Entry {
        node: gpu.node,
        pci: Some(&gpu.pci),
        text: gpu_text(gpu),
    });
    let nics = topology.nics.iter().map(|nic| Entry {
        node: nic.node,
        pci: nic.pci.as_ref(),
        text: nic_text(topology, nic),
    });
    let mut entries: Vec<Entry<'_>> = gpus.chain(nics).collect();
    entries.sort_by_key(|entry| {
        entry.pci.map(|pci| (pci.host_bridge.clone(), pci.switches(), pci.address))
    });
    entries
}

fn branch<'a>(text: &mut String, entries: impl Iterator<Item = &'a Entry<'a>>) {
    let mut bridge = None;
    let mut switch = None;
    for entry in entries {
        let Some(pci) = entry.pci else {
            put(text, &format!("  {}\n", entry.text));
            continue;
        };
        if bridge != Some(&pci.host_bridge) {
            put(text, &format!("  host bridge {}\n", pci.host_bridge.trim_start_matches("pci")));
            (bridge, switch) = (Some(&pci.host_bridge), None);
        }
        let nearest = pci.switches().first().copied();
        if nearest != switch
            && let Some(address) = nearest
        {
            put(text, &format!("    switch {address}\n"));
        }
        switch = nearest;
        let indent = if nearest.is_some() { "      " } else { "    " };
        put(text, &format!("{indent}{}  {}\n", pci.address, entry.text));
    }
}

fn gpu_text(gpu: &Gpu) -> String {
    let vendor = gpu.pci.vendor.zip(gpu.pci.device);
    let ids = vendor.map(|(vendor, device)| format!("{vendor:04x}:{device:04x}"));
    let mut parts = vec![gpu.model.clone().or(ids).unwrap_or_else(|| "unknown model".to_owned())];
    parts.push(gpu.driver.clone().unwrap_or_else(|| "no driver".to_owned()));
    let details = gpu.details.as_ref();
    let gib = |bytes: u64| format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30));
    parts.extend(details.and_then(|details| details.facts.memory_bytes).map(gib));
    // Virtual machines hide the link of the device, but NVML knows it.
    let link = gpu.pci.link.as_ref().map(link_text);
    parts.extend(link.or_else(|| details.and_then(pcie_text)));
    parts.extend(details.and_then(nvlink_text));
    // CUDA_VISIBLE_DEVICES takes this name of the GPU.
    parts.extend(details.and_then(|details| details.facts.uuid.clone()));
    format!("GPU {}  {}", gpu.index, parts.join(", "))
}

/// `18 NVLinks to 7 GPUs`; `None` if the GPU has no active NVLinks, or their number is unknown.
fn nvlink_text(details: &GpuDetails) -> Option<String> {
    let plural =
        |count: usize, one: &str| format!("{count} {one}{}", if count == 1 { "" } else { "s" });
    let active = details.nvlinks_active.filter(|active| *active > 0)?;
    let links = plural(active as usize, "NVLink");
    match details.nvlink_peers.as_ref().map_or(0, Vec::len) {
        0 => Some(links),
        peers => Some(format!("{links} to {}", plural(peers, "GPU"))),
    }
}

/// `PCIe 5 x16`, and the maximum if that is more.
fn pcie_text(details: &GpuDetails) -> Option<String> {
    let (generation, width) = (details.facts.pcie_generation?, details.facts.pcie_width_lanes?);
    let mut text = format!("PCIe {generation} x{width}");
    if let (Some(max), Some(max_width)) =
        (details.facts.pcie_generation_max, details.facts.pcie_width_max_lanes)
        && (max > generation || max_width > width)
    {
        put(&mut text, &format!(" (could be {max} x{max_width})"));
    }
    Some(text)
}

fn nic_text(topology: &Topology, nic: &Nic) -> String {
    let mut parts = vec![nic.driver.clone().unwrap_or_else(|| "no driver".to_owned())];
    parts.push(match nic.speed_mbps {
        Some(speed) if speed.is_multiple_of(1000) => format!("{} Gbit/s", speed / 1000),
        Some(speed) => format!("{speed} Mbit/s"),
        None => "speed unknown".to_owned(),
    });
    parts.extend(nic.operstate.clone());
    parts.push(format!("{} RX and {} TX queues", nic.rx_queues, nic.tx_queues));
    if topology.is_representor(&nic.name) {
        let carriers = topology.carriers(&nic.name);
        let names: Vec<&str> = carriers.iter().map(|nic| nic.name.as_str()).collect();
        parts.push(format!("representor, its packets use the queues of {}", names.join(" and ")));
    } else if topology.rail_of(&nic.name) != nic.name {
        parts.push(format!("part of {}", topology.rail_of(&nic.name)));
    }
    if !nic.vectors.is_empty() {
        parts.push(format!("{} interrupts", nic.vectors.len()));
    }
    if let Some(details) = &nic.details {
        let of = |name: &str, now: Option<u32>, max: Option<u32>| {
            Some(format!("{name} {} of {}", now?, max?))
        };
        parts.extend(of("RX rings", details.rx_ring, details.rx_ring_max));
        parts.extend(of("TX rings", details.tx_ring, details.tx_ring_max));
        parts.extend(details.rss_queues.map(|queues| format!("RSS over {queues}")));
        parts.extend(details.rx_coalesce_us.map(|us| match details.adaptive_rx {
            Some(true) => "RX coalescing adaptive".to_owned(),
            _ => format!("RX coalescing {us} us"),
        }));
    }
    parts.extend(nic.pci.as_ref().and_then(|pci| pci.link.as_ref()).map(link_text));
    format!("{}  {}", nic.name, parts.join(", "))
}

/// `32.0 GT/s PCIe x16`, and the maximum if that is more.
fn link_text(link: &PciLink) -> String {
    let mut text = format!("{} x{}", link.speed, link.width);
    let is_less = link.max_width.is_some_and(|max| max > link.width)
        || link.max_speed.as_ref().is_some_and(|max| *max != link.speed);
    if let (true, Some(speed), Some(width)) = (is_less, &link.max_speed, link.max_width) {
        put(&mut text, &format!(" (could be {speed} x{width})"));
    }
    text
}

fn put(text: &mut String, more: &str) {
    // Writing to a string cannot fail.
    let _ = text.write_str(more);
}
