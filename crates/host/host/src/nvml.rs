//! Answers of NVIDIA's management library NVML about GPUs, as plain data.
//!
//! The library belongs to the driver and is opened at run time. Without the library, [`NvmlReport::ask`] returns the
//! reason why there is no report. [`Topology::add_nvml`](crate::Topology::add_nvml) adds a report to a
//! [`Topology`](crate::Topology). Snapshots hold the report as a separate file.

mod ask;

use serde::{Deserialize, Serialize};

use crate::pci::PciAddress;
use crate::sysroot::{ReadError, Sysroot};

pub use ask::NvmlAbsent;

/// Path of the report in a snapshot.
pub const FILE: &str = "/polyrail/nvml.json";

/// Version of the report's format; raised when a field changes its meaning or goes away.
pub const SCHEMA_VERSION: u32 = 1;

/// All answers of the library. A value that it did not give is `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NvmlReport {
    /// [`SCHEMA_VERSION`] of the program that wrote the report.
    pub schema_version: u32,
    /// Driver version, such as `570.86.15`.
    pub driver_version: Option<String>,
    /// Newest CUDA version that the driver can run, such as `12.8`.
    pub cuda_version: Option<String>,
    /// Version of the library itself.
    pub nvml_version: Option<String>,
    /// GPUs in the library's order.
    pub gpus: Vec<NvmlGpu>,
    /// Calls that failed, with the library's error text.
    pub refusals: Vec<String>,
}

/// The library's answers about one GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NvmlGpu {
    /// PCI address, which identifies the GPU.
    pub address: Option<PciAddress>,
    /// Product, memory and link.
    #[serde(flatten)]
    pub facts: GpuFacts,
    /// NVLinks by number; `None` if the library does not report whether there are any.
    pub nvlinks: Option<Vec<NvLink>>,
    /// The driver's answer for each other GPU: whether this GPU reaches it over NVLink.
    pub nvlink_access: Vec<NvLinkAccess>,
}

/// Product, memory and PCI link of a GPU; `None` is unknown.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuFacts {
    /// Product name, such as `NVIDIA H200`.
    pub name: Option<String>,
    /// UUID, such as `GPU-8f3c…`. Never in a snapshot.
    pub uuid: Option<String>,
    /// Total memory in bytes.
    pub memory_bytes: Option<u64>,
    /// Current PCI Express generation of the link; idle GPUs lower it to 1.
    pub pcie_generation: Option<u32>,
    /// Highest generation that GPU and machine support.
    pub pcie_generation_max: Option<u32>,
    /// Current lanes of the link.
    pub pcie_width_lanes: Option<u32>,
    /// Most lanes that GPU and machine support.
    pub pcie_width_max_lanes: Option<u32>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NvLink {
    /// Whether the link is up.
    pub is_active: Option<bool>,
    /// Device at the other end; `None` also for a switch that a virtual machine hides.
    pub remote: Option<PciAddress>,
}

/// Access of one GPU to the memory of another over NVLink.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NvLinkAccess {
    pub address: PciAddress,
    /// Whether the driver allows it.
    pub is_possible: bool,
}

impl NvmlReport {
    /// Reads the report in a snapshot; `None` if there is none.
    ///
    /// # Errors
    /// [`ReadError::Content`] if the report is damaged, or of an unknown version.
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

    /// Returns the report without the UUIDs, which identify GPUs.
    pub fn redacted(&self) -> Self {
        let mut report = self.clone();
        for gpu in &mut report.gpus {
            gpu.facts.uuid = None;
        }
        report
    }

    /// Returns the text of the file in a snapshot.
    pub fn to_json(&self) -> String {
        // JSON can express every value here: text, numbers and lists of them.
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }

    /// Returns the GPU at this address.
    pub fn gpu(&self, address: PciAddress) -> Option<&NvmlGpu> {
        self.gpus.iter().find(|gpu| gpu.address == Some(address))
    }
}

impl NvmlGpu {
    /// Returns the number of NVLinks that are up; `None` if the library does not report them.
    pub fn active_nvlinks(&self) -> Option<u32> {
        let links = self.nvlinks.as_ref()?;
        let count = links.iter().filter(|link| link.is_active == Some(true)).count();
        u32::try_from(count).ok()
    }

    /// Whether the driver lets this GPU use the memory of the GPU at `address` over NVLink.
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
