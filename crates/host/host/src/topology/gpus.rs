//! NVML's additions to the GPUs of the PCI bus, and the paths between GPUs.

use std::fmt;

use serde::{Serialize, Serializer};

use super::{Distance, Gpu, Topology};
use crate::nvml::{GpuFacts, NvmlGpu, NvmlReport};
use crate::pci::PciAddress;
use crate::sysroot::{ReadError, Sysroot};

/// NVML's answers about the machine as a whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NvmlSystem {
    /// Driver version, such as `570.86.15`.
    pub driver_version: Option<String>,
    /// Newest CUDA version that the driver can run, such as `12.8`.
    pub cuda_version: Option<String>,
    /// Version of the library itself.
    pub nvml_version: Option<String>,
    /// Calls that failed, with the library's error text.
    pub refusals: Vec<String>,
}

/// NVML's answers about a GPU; `None` is unknown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GpuDetails {
    /// Product, memory and link.
    #[serde(flatten)]
    pub facts: GpuFacts,
    /// Number of NVLinks that are up.
    pub nvlinks_active: Option<u32>,
    /// GPUs that NVLinks lead to, directly or through switches; `None` if the links are unknown.
    pub nvlink_peers: Option<Vec<NvLinkPeer>>,
}

/// A GPU at the other end of NVLinks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct NvLinkPeer {
    /// GPU by [`Gpu::index`].
    pub gpu: usize,
    /// Number of links that are up between the two. Through switches, it is the smaller of both GPUs' numbers of links
    /// to switches.
    pub links: u32,
    /// Whether all of these links lead through switches.
    pub is_switched: bool,
    /// Whether the driver lets one GPU use the memory of the other over these links.
    pub is_accessible: Option<bool>,
}

/// The best path between two GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GpuPath {
    /// This many NVLinks: `NV18`.
    NvLink(u32),
    /// The PCI bus, and the hardware above it.
    Pci(Distance),
}

impl GpuPath {
    /// Returns the word of `nvidia-smi topo`.
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
    /// Adds NVML's answers. GPUs are matched by their PCI addresses. Those that NVML does not list stay unchanged;
    /// [`Topology::unknown`] names the NVIDIA ones among them.
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

    /// Records why NVML gave no answer, if the machine has a GPU that NVML should know.
    pub fn add_nvml_absent(&mut self, reason: &impl fmt::Display) {
        if self.gpus.iter().any(Gpu::is_nvidia) {
            self.unknown.push(format!("memory, UUIDs and NVLinks of GPUs: {reason}"));
        }
    }

    /// Returns the best path between two GPUs; `None` if the machine does not report it.
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

    /// Returns one row and one column per GPU, in the order of [`Topology::gpus`].
    pub fn gpu_matrix(&self) -> Vec<Vec<Option<GpuPath>>> {
        let row = |a| self.gpus.iter().map(|b| self.gpu_path(a, b)).collect();
        self.gpus.iter().map(row).collect()
    }

    /// Adds the NVML report of a snapshot.
    pub(super) fn add_recorded_nvml(&mut self, root: &Sysroot) -> Result<(), ReadError> {
        if let Some(report) = NvmlReport::read(root)? {
            self.add_nvml(&report);
        }
        Ok(())
    }
}

/// Returns the GPUs that links of `gpu` lead to, in the order of `places`.
///
/// A remote end that is not a GPU of this machine counts as a switch: virtual machines hide switches, so there is often
/// no such device at all. NCCL reads it the same way.
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
        // Hidden ends might also be GPUs of another tenant. In that case the driver denies access.
        let through = if is_accessible == Some(false) { 0 } else { switched.min(through) };
        if direct + through > 0 {
            let (links, is_switched) = (direct + through, direct == 0);
            found.push(NvLinkPeer { gpu: index, links, is_switched, is_accessible });
        }
    }
    Some(found)
}

/// Counts the active links whose other end matches.
fn links_to(gpu: &NvmlGpu, is_wanted: impl Fn(Option<PciAddress>) -> bool) -> u32 {
    let links = gpu.nvlinks.iter().flatten();
    let active = links.filter(|link| link.is_active == Some(true) && is_wanted(link.remote));
    active.count().try_into().unwrap_or(u32::MAX)
}
