//! Distances between devices, in NCCL's words, and the interface that serves each GPU best.

use std::fmt;

use serde::Serialize;

use super::{Gpu, Nic, PciFunction, Topology};

/// Hardware that traffic between two devices has to cross, the nearest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Distance {
    /// Nothing: both are the same device.
    Loc,
    /// One PCI switch.
    Pix,
    /// Several PCI switches, but no host bridge.
    Pxb,
    /// A host bridge, which is part of a CPU.
    Phb,
    /// The interconnect between host bridges of one NUMA node.
    Node,
    /// The interconnect between NUMA nodes.
    Sys,
}

/// The interface that serves a GPU best.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Choice {
    /// GPU by [`Gpu::index`].
    pub gpu: usize,
    /// The interface; `None` if none is up.
    pub nic: Option<String>,
    /// Distance to the GPU; `None` if the machine does not report it.
    pub distance: Option<Distance>,
    /// Reason for the choice, in a phrase.
    pub why: String,
    /// The other interfaces, the best first.
    pub rivals: Vec<Rival>,
}

/// An interface that was not chosen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Rival {
    pub nic: String,
    /// Distance to the GPU; `None` if the machine does not report it.
    pub distance: Option<Distance>,
    /// Whether the interface lost only by its name, or by the choices of other GPUs.
    pub is_equal: bool,
}

impl Distance {
    /// Returns the distance of two devices with these nodes; `None` if it depends on a node that the machine does not
    /// report.
    pub fn between(
        (a, node_a): (&PciFunction, Option<u32>),
        (b, node_b): (&PciFunction, Option<u32>),
    ) -> Option<Self> {
        if a.address == b.address {
            return Some(Self::Loc);
        }
        let (on_a, on_b) = (a.switches(), b.switches());
        match on_a.iter().position(|switch| on_b.contains(switch)) {
            // The nearest switch is the same for both.
            Some(0) if on_b.first() == on_a.first() => return Some(Self::Pix),
            Some(_) => return Some(Self::Pxb),
            None => {}
        }
        if a.host_bridge == b.host_bridge {
            return Some(Self::Phb);
        }
        match (node_a?, node_b?) {
            (a, b) if a == b => Some(Self::Node),
            _ => Some(Self::Sys),
        }
    }

    /// Returns the word of NCCL and `nvidia-smi topo`.
    pub fn word(self) -> &'static str {
        match self {
            Self::Loc => "LOC",
            Self::Pix => "PIX",
            Self::Pxb => "PXB",
            Self::Phb => "PHB",
            Self::Node => "NODE",
            Self::Sys => "SYS",
        }
    }

    /// Returns the meaning of the word, as a phrase such as "across a host bridge".
    pub fn meaning(self) -> &'static str {
        match self {
            Self::Loc => "the same device",
            Self::Pix => "behind the same PCI switch",
            Self::Pxb => "across several PCI switches, but no host bridge",
            Self::Phb => "across a host bridge",
            Self::Node => "across host bridges of one NUMA node",
            Self::Sys => "across NUMA nodes",
        }
    }
}

impl fmt::Display for Distance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word())
    }
}

impl Topology {
    /// Returns the distance of a GPU and an interface; `None` if the machine does not report it.
    pub fn distance(&self, gpu: &Gpu, nic: &Nic) -> Option<Distance> {
        Distance::between((&gpu.pci, gpu.node), (nic.pci.as_ref()?, nic.node))
    }

    /// Returns one row per GPU and one column per interface, in the order of [`Topology::gpus`] and [`Topology::nics`].
    pub fn matrix(&self) -> Vec<Vec<Option<Distance>>> {
        let row = |gpu| self.nics.iter().map(|nic| self.distance(gpu, nic)).collect();
        self.gpus.iter().map(row).collect()
    }

    /// Returns the best interface of each GPU: by distance, then speed, then the number of GPUs that have it already,
    /// then name. Interfaces that are down and representors are left out. Unknown distances and speeds come last.
    pub fn choices(&self) -> Vec<Choice> {
        let candidates: Vec<&Nic> =
            self.nics.iter().filter(|nic| nic.is_up() && !self.is_representor(&nic.name)).collect();
        let mut taken = vec![0usize; candidates.len()];
        let mut choices = Vec::new();
        for gpu in &self.gpus {
            let merit = |at: usize| {
                let distance = self.distance(gpu, candidates[at]);
                let speed = std::cmp::Reverse(candidates[at].speed_mbps);
                (distance.is_none(), distance, speed)
            };
            let mut order: Vec<usize> = (0..candidates.len()).collect();
            order.sort_unstable_by_key(|at| (merit(*at), taken[*at], *at));
            let Some((best, others)) = order.split_first() else {
                choices.push(Choice::none(gpu.index));
                continue;
            };
            taken[*best] += 1;
            let rivals: Vec<Rival> = others
                .iter()
                .map(|at| Rival {
                    nic: candidates[*at].name.clone(),
                    distance: merit(*at).1,
                    is_equal: merit(*at) == merit(*best),
                })
                .collect();
            let distance = merit(*best).1;
            choices.push(Choice {
                gpu: gpu.index,
                nic: Some(candidates[*best].name.clone()),
                distance,
                why: why(distance, &rivals),
                rivals,
            });
        }
        choices
    }
}

impl Choice {
    fn none(gpu: usize) -> Self {
        let why = "no interface of a device is up".to_owned();
        Self { gpu, nic: None, distance: None, why, rivals: Vec::new() }
    }
}

fn why(distance: Option<Distance>, rivals: &[Rival]) -> String {
    let mut why = distance.map_or("distance unknown", Distance::meaning).to_owned();
    let equal: Vec<&str> =
        rivals.iter().filter(|rival| rival.is_equal).map(|rival| rival.nic.as_str()).collect();
    if !equal.is_empty() {
        why.push_str(&format!("; {} as good, GPUs spread over them", equal.join(", ")));
    } else if let Some(next) = rivals.first() {
        let word = next.distance.map_or("unknown", Distance::word);
        match next.distance == distance {
            true => why.push_str(&format!("; {} is as near, but slower", next.nic)),
            false => why.push_str(&format!("; next is {}, {word}", next.nic)),
        }
    }
    why
}
