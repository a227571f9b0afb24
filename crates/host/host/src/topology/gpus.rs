//! What NVML adds to the GPUs of the PCI bus, and how GPUs reach each other.

use std::fmt;

use serde::{Serialize, Serializer};

use super::{Distance, Gpu, Topology};
use crate::nvml::{GpuFacts, NvmlGpu, NvmlReport};
use crate::pci::PciAddress;
use crate::sysroot::{ReadError, Sysroot};

/// What NVML tells about the machine as a whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NvmlSystem {
    /// Such as `570.86.15`.
    pub driver_version: Option<String>,
    /// The newest CUDA that the driver can run, such as `12.8`.
    pub cuda_version: Option<String>,
    /// The version of the library itself.
    pub nvml_version: Option<String>,
    /// The calls that failed, with the library's words.
    pub refusals: Vec<String>,
}

/// What NVML tells about a GPU; `None` is unknown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GpuDetails {
    /// Its product, memory and link.
    #[serde(flatten)]
    pub facts: GpuFacts,
    /// How many NVLinks are up.
    pub nvlinks_active: Option<u32>,
    /// The GPUs that NVLinks lead to, directly or through switches; `None` if the links are unknown.
    pub nvlink_peers: Option<Vec<NvLinkPeer>>,
}

/// A GPU at the other end of NVLinks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct NvLinkPeer {
    /// [`Gpu::index`].
    pub gpu: usize,
    /// How many links are up between the two: as many as the GPU with fewer has to the switches,
    /// where switches are in between.
    pub links: u32,
    /// Whether all of them lead through switches.
    pub is_switched: bool,
    /// Whether the driver lets one use the memory of the other over them.
    pub is_accessible: Option<bool>,
}

/// The best way between two GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GpuPath {
    /// This many NVLinks: `NV18`.
    NvLink(u32),
    /// The PCI bus and what is above it.
    Pci(Distance),
}

impl GpuPath {
    /// The word of `nvidia-smi topo`.
    pub fn word(self) -> String {
        self.to_string()
    }
}

impl fmt::Display for GpuPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NvLink(links) => f.pad(&format!("NV{links}")),
            Self::Pci(distance) => distance.fmt(f),
        }
    }
}

impl Serialize for GpuPath {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Topology {
    /// Adds what NVML tells. GPUs are matched by their PCI addresses; those that it does not list
    /// stay as they are, and [`Topology::unknown`] says so.
    pub fn add_nvml(&mut self, report: &NvmlReport) {
        self.nvml = Some(NvmlSystem {
            driver_version: report.driver_version.clone(),
            cuda_version: report.cuda_version.clone(),
            nvml_version: report.nvml_version.clone(),
            refusals: report.refusals.clone(),
        });
        let places: Vec<PciAddress> = self.gpus.iter().map(|gpu| gpu.pci.address).collect();
        for gpu in &mut self.gpus {
            let Some(told) = report.gpu(gpu.pci.address) else {
                if gpu.is_nvidia() {
                    self.unknown.push(format!(
                        "memory and NVLinks of GPU {}: NVML does not list it, as when it has \
                         failed or belongs to another container",
                        gpu.index
                    ));
                }
                continue;
            };
            if gpu.model.is_none() {
                gpu.model.clone_from(&told.facts.name);
            }
            gpu.details = Some(GpuDetails {
                facts: told.facts.clone(),
                nvlinks_active: told.active_nvlinks(),
                nvlink_peers: peers(report, told, &places),
            });
        }
    }

    /// Records why NVML told nothing, if the machine has a GPU that NVML would know.
    pub fn add_nvml_absent(&mut self, reason: &impl fmt::Display) {
        if self.gpus.iter().any(Gpu::is_nvidia) {
            self.unknown.push(format!("memory, UUIDs and NVLinks of GPUs: {reason}"));
        }
    }

    /// The best way between two GPUs; `None` if the machine does not tell.
    pub fn gpu_path(&self, a: &Gpu, b: &Gpu) -> Option<GpuPath> {
        let of = |gpu: &Gpu, other: &Gpu| {
            let peers = gpu.details.as_ref()?.nvlink_peers.as_ref()?;
            peers.iter().find(|peer| peer.gpu == other.index).map(|peer| peer.links)
        };
        // One end may list links that the library refuses to list at the other end.
        match of(a, b).or_else(|| of(b, a)) {
            Some(links) => Some(GpuPath::NvLink(links)),
            None => Distance::between((&a.pci, a.node), (&b.pci, b.node)).map(GpuPath::Pci),
        }
    }

    /// One row and one column per GPU, in the order of [`Topology::gpus`].
    pub fn gpu_matrix(&self) -> Vec<Vec<Option<GpuPath>>> {
        let row = |a| self.gpus.iter().map(|b| self.gpu_path(a, b)).collect();
        self.gpus.iter().map(row).collect()
    }

    /// Adds what a snapshot has of NVML.
    pub(super) fn add_recorded_nvml(&mut self, root: &Sysroot) -> Result<(), ReadError> {
        if let Some(report) = NvmlReport::read(root)? {
            self.add_nvml(&report);
        }
        Ok(())
    }
}

/// The GPUs that links of `gpu` lead to, in the order of `places`.
///
/// An end that is no GPU of this machine is a switch: virtual machines hide theirs, so that often
/// there is no such device at all. NCCL reads it in the same way.
fn peers(report: &NvmlReport, gpu: &NvmlGpu, places: &[PciAddress]) -> Option<Vec<NvLinkPeer>> {
    gpu.nvlinks.as_ref()?;
    let switched = links_to(gpu, |remote| remote.is_none_or(|end| !places.contains(&end)));
    let mut found = Vec::new();
    for (index, place) in places.iter().enumerate() {
        if gpu.address == Some(*place) {
            continue;
        }
        let direct = links_to(gpu, |remote| remote == Some(*place));
        let other = report.gpu(*place);
        let is_accessible = gpu.reaches(*place);
        let through = other.map_or(0, |other| {
            links_to(other, |remote| remote.is_none_or(|end| !places.contains(&end)))
        });
        // Hidden ends might also be GPUs of another tenant; then the driver lets nobody through.
        let through = if is_accessible == Some(false) { 0 } else { switched.min(through) };
        if direct + through > 0 {
            let (links, is_switched) = (direct + through, direct == 0);
            found.push(NvLinkPeer { gpu: index, links, is_switched, is_accessible });
        }
    }
    Some(found)
}

/// How many links are up whose other end matches.
fn links_to(gpu: &NvmlGpu, is_wanted: impl Fn(Option<PciAddress>) -> bool) -> u32 {
    let links = gpu.nvlinks.iter().flatten();
    let active = links.filter(|link| link.is_active == Some(true) && is_wanted(link.remote));
    active.count().try_into().unwrap_or(u32::MAX)
}
