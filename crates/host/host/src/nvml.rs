//! What NVIDIA's management library NVML tells about GPUs, as plain data.
//!
//! The library belongs to the driver and is opened at run time. Machines without it work as well:
//! [`NvmlReport::ask`] then says why there is no report. A report goes into a
//! [`Topology`](crate::Topology) with [`Topology::add_nvml`](crate::Topology::add_nvml), and into
//! snapshots as a file of its own.

mod ask;

use serde::{Deserialize, Serialize};

use crate::pci::PciAddress;
use crate::sysroot::{ReadError, Sysroot};

pub use ask::NvmlAbsent;

/// Where a snapshot keeps the report.
pub const FILE: &str = "/polyrail/nvml.json";

/// The version of the report's form; raised when a field changes its meaning or goes away.
pub const SCHEMA_VERSION: u32 = 1;

/// Everything that the library was asked. What it did not tell is `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NvmlReport {
    /// [`SCHEMA_VERSION`] of the program that wrote it.
    pub schema_version: u32,
    /// Such as `570.86.15`.
    pub driver_version: Option<String>,
    /// The newest CUDA that the driver can run, such as `12.8`.
    pub cuda_version: Option<String>,
    /// The version of the library itself.
    pub nvml_version: Option<String>,
    /// The GPUs in the library's order.
    pub gpus: Vec<NvmlGpu>,
    /// The calls that failed, with the library's words.
    pub refusals: Vec<String>,
}

/// One GPU, as the library tells.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NvmlGpu {
    /// The PCI address, which identifies it.
    pub address: Option<PciAddress>,
    /// Its product, memory and link.
    #[serde(flatten)]
    pub facts: GpuFacts,
    /// Its NVLinks by number; `None` if the library does not tell whether it has any.
    pub nvlinks: Option<Vec<NvLink>>,
    /// Whether it reaches other GPUs over NVLink, as the driver judges.
    pub nvlink_access: Vec<NvLinkAccess>,
}

/// The product of a GPU, its memory, and its link to the machine; `None` is unknown.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuFacts {
    /// The product, such as `NVIDIA H200`.
    pub name: Option<String>,
    /// Such as `GPU-8f3c…`. Never in a snapshot.
    pub uuid: Option<String>,
    /// The memory that it has.
    pub memory_bytes: Option<u64>,
    /// PCI Express generation of the link now; idle GPUs go down to 1.
    pub pcie_generation: Option<u32>,
    /// The generation that GPU and machine can do.
    pub pcie_generation_max: Option<u32>,
    /// Lanes of the link now.
    pub pcie_width_lanes: Option<u32>,
    /// The lanes that GPU and machine can do.
    pub pcie_width_max_lanes: Option<u32>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NvLink {
    /// Whether it is up.
    pub is_active: Option<bool>,
    /// What is at its other end; `None` also for a switch that a virtual machine hides.
    pub remote: Option<PciAddress>,
}

/// Whether one GPU can use the memory of another over NVLink.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NvLinkAccess {
    pub address: PciAddress,
    /// Whether the driver lets it.
    pub is_possible: bool,
}

impl NvmlReport {
    /// The report in a snapshot; `None` if there is none.
    ///
    /// # Errors
    /// [`ReadError::Content`] if it is damaged, or of a version that is not known here.
    pub fn read(root: &Sysroot) -> Result<Option<Self>, ReadError> {
        let Some(text) = root.read_optional(FILE)? else { return Ok(None) };
        let report: Self = serde_json::from_str(&text)
            .map_err(|error| root.content(FILE, format!("is not an NVML report: {error}")))?;
        if report.schema_version != SCHEMA_VERSION {
            let fault =
                format!("has schema_version {}; allowed: {SCHEMA_VERSION}", report.schema_version);
            return Err(root.content(FILE, fault));
        }
        Ok(Some(report))
    }

    /// The report without what tells one GPU from another of its kind.
    pub fn redacted(&self) -> Self {
        let mut report = self.clone();
        for gpu in &mut report.gpus {
            gpu.facts.uuid = None;
        }
        report
    }

    /// The text of the file in a snapshot.
    pub fn to_json(&self) -> String {
        // JSON can express every value here: text, numbers and lists of them.
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }

    /// The GPU at this address.
    pub fn gpu(&self, address: PciAddress) -> Option<&NvmlGpu> {
        self.gpus.iter().find(|gpu| gpu.address == Some(address))
    }
}

impl NvmlGpu {
    /// How many NVLinks are up; `None` if the library does not tell.
    pub fn active_nvlinks(&self) -> Option<u32> {
        let links = self.nvlinks.as_ref()?;
        let count = links.iter().filter(|link| link.is_active == Some(true)).count();
        u32::try_from(count).ok()
    }

    /// Whether the driver lets it use the memory of the GPU at `address` over NVLink.
    pub fn reaches(&self, address: PciAddress) -> Option<bool> {
        let access = self.nvlink_access.iter().find(|access| access.address == address)?;
        Some(access.is_possible)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_reads_back_as_written_and_another_version_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let root = Sysroot::at(folder.path());
        assert_eq!(NvmlReport::read(&root).unwrap(), None);
        let address = "0000:04:00.0".parse().unwrap();
        let link = NvLink { is_active: Some(true), remote: Some(address) };
        let gpu = NvmlGpu {
            address: Some(address),
            facts: GpuFacts { memory_bytes: Some(1 << 37), ..GpuFacts::default() },
            nvlinks: Some(vec![link, NvLink::default()]),
            ..NvmlGpu::default()
        };
        let report = NvmlReport {
            schema_version: SCHEMA_VERSION,
            cuda_version: Some("12.8".to_owned()),
            gpus: vec![gpu],
            ..NvmlReport::default()
        };
        std::fs::create_dir_all(root.path("/polyrail")).unwrap();
        std::fs::write(root.path(FILE), report.to_json()).unwrap();
        assert_eq!(NvmlReport::read(&root).unwrap(), Some(report));

        for (text, fault) in [
            ("{\"schema_version\":2}", "schema_version 2; allowed: 1"),
            ("{\"schema_version\":1,\"gpus\":[{\"address\":\"x\"}]}", "is not a PCI address"),
            ("{", "is not an NVML report"),
        ] {
            std::fs::write(root.path(FILE), text).unwrap();
            let error = NvmlReport::read(&root).unwrap_err().to_string();
            assert!(error.contains("nvml.json") && error.contains(fault), "{error}");
        }
    }
}
