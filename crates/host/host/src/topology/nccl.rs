//! The topology file of NCCL (`NCCL_TOPO_FILE`).
//!
//! NCCL fills in values that a file leaves out, so this writes only the facts that the machine reports. NCCL gets GPU
//! numbers and compute capabilities from the driver.

use std::fmt::Write;

use polyrail_config::markup;

use super::{PciBridge, PciFunction, PciLink, Topology};
use crate::cpuset::CpuSet;
use crate::pci::PciAddress;

/// A switch, or a device at the end of a path.
struct Branch<'a> {
    address: PciAddress,
    link: Option<&'a PciLink>,
    content: Content<'a>,
}

enum Content<'a> {
    Switch(Vec<Branch<'a>>),
    Gpu(&'a PciFunction),
    /// Name and Mbit/s.
    Nic(&'a PciFunction, Vec<(&'a str, Option<u32>)>),
}

/// PCI class of a switch: that of a bridge.
const BRIDGE_CLASS: u32 = 0x06_0400;

pub(super) fn xml(topology: &Topology) -> String {
    let mut groups: Vec<Option<u32>> = topology.nodes.iter().map(|node| Some(node.id)).collect();
    let nodes = topology.gpus.iter().map(|gpu| gpu.node);
    let nodes = nodes.chain(topology.nics.iter().map(|nic| nic.node));
    for node in nodes {
        if !groups.contains(&node) {
            groups.push(node);
        }
    }
    let mut text = String::from("<system version=\"1\">\n");
    for group in groups {
        let branches = branches(topology, group);
        let cpus = match group {
            Some(id) => topology.node(id).map(|node| node.cpus.clone()).unwrap_or_default(),
            None => topology.cpus.online.clone(),
        };
        if branches.is_empty() && cpus.is_empty() {
            continue;
        }
        open_cpu(&mut text, topology, group, &cpus);
        for branch in &branches {
            write_branch(&mut text, branch, 2);
        }
        text.push_str("  </cpu>\n");
    }
    text.push_str("</system>\n");
    text
}

fn open_cpu(text: &mut String, topology: &Topology, node: Option<u32>, cpus: &CpuSet) {
    let ids = topology.cpus.possible.last().map_or(1, |last| last + 1);
    let numa_id = node.map_or(-1, i64::from);
    push(text, 1, &format!("<cpu numaid=\"{numa_id}\" affinity=\"{}\"", cpus.to_mask(ids)));
    if let (Some(vendor), Some((family, model))) =
        (&topology.cpus.vendor, topology.cpus.family_model)
    {
        let vendor = markup(vendor);
        put(
            text,
            &format!(
                " arch=\"x86_64\" vendor=\"{vendor}\" familyid=\"{family}\" modelid=\"{model}\""
            ),
        );
    }
    text.push_str(">\n");
}

fn branches(topology: &Topology, node: Option<u32>) -> Vec<Branch<'_>> {
    let mut roots = Vec::new();
    for gpu in topology.gpus.iter().filter(|gpu| gpu.node == node) {
        insert(&mut roots, &gpu.pci, Content::Gpu(&gpu.pci));
    }
    for nic in topology.nics.iter().filter(|nic| nic.node == node) {
        if let Some(pci) = &nic.pci {
            insert(&mut roots, pci, Content::Nic(pci, vec![(&nic.name, nic.speed_mbps)]));
        }
    }
    roots
}

fn insert<'a>(roots: &mut Vec<Branch<'a>>, pci: &'a PciFunction, content: Content<'a>) {
    let mut level = roots;
    for address in pci.switches().into_iter().rev() {
        let at = level.iter().position(|branch| branch.address == address);
        let at = at.unwrap_or_else(|| {
            let is_it = |bridge: &&PciBridge| bridge.address == address;
            let link = pci.bridges.iter().find(is_it).and_then(|bridge| bridge.link.as_ref());
            level.push(Branch { address, link, content: Content::Switch(Vec::new()) });
            level.len() - 1
        });
        // A switch is never the address of a device: devices have no children.
        let Content::Switch(children) = &mut level[at].content else { return };
        level = children;
    }
    // Two interfaces of one function are one NIC.
    for branch in level.iter_mut().filter(|branch| branch.address == pci.address) {
        if let (Content::Nic(_, names), Content::Nic(_, more)) = (&mut branch.content, &content) {
            names.extend(more.iter().copied());
            return;
        }
    }
    level.push(Branch { address: pci.address, link: pci.link.as_ref(), content });
}

fn write_branch(text: &mut String, branch: &Branch<'_>, depth: usize) {
    let class = match &branch.content {
        Content::Switch(_) => BRIDGE_CLASS,
        Content::Gpu(pci) | Content::Nic(pci, _) => pci.class.unwrap_or_default(),
    };
    push(text, depth, &format!("<pci busid=\"{}\" class=\"0x{class:06x}\"", branch.address));
    if let Some(link) = branch.link {
        let speed = markup(&link.speed);
        put(text, &format!(" link_speed=\"{speed}\" link_width=\"{}\"", link.width));
    }
    match &branch.content {
        Content::Gpu(_) => text.push_str("/>\n"),
        Content::Switch(children) => {
            text.push_str(">\n");
            for child in children {
                write_branch(text, child, depth + 1);
            }
            push(text, depth, "</pci>\n");
        }
        Content::Nic(_, names) => {
            text.push_str(">\n");
            push(text, depth + 1, "<nic>\n");
            for (name, speed) in names {
                push(text, depth + 2, &format!("<net name=\"{}\"", markup(name)));
                if let Some(speed) = speed {
                    put(text, &format!(" speed=\"{speed}\""));
                }
                text.push_str("/>\n");
            }
            push(text, depth + 1, "</nic>\n");
            push(text, depth, "</pci>\n");
        }
    }
}

fn push(text: &mut String, depth: usize, line: &str) {
    put(text, &format!("{:1$}{line}", "", depth * 2));
}

fn put(text: &mut String, more: &str) {
    // Writing to a string cannot fail.
    let _ = text.write_str(more);
}
