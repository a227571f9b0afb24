//! Location of devices on the PCI bus, and the GPUs among them.

use std::path::Path;

use serde::Serialize;

use crate::cpuset::CpuSet;
use crate::pci::PciAddress;
use crate::topology::GpuDetails;
use crate::values::Values;

const FOLDER: &str = "/sys/bus/pci/devices";

/// Vendors whose display controllers can compute. Those of other vendors are consoles of servers.
const GPU_VENDORS: &[u16] = &[NVIDIA, 0x1002, 0x8086];
const NVIDIA: u16 = 0x10de;

/// Location of a device on the PCI bus.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PciFunction {
    pub address: PciAddress,
    /// Host bridge above the device, as the kernel names it: `pci0000:07`.
    pub host_bridge: String,
    /// Bridges between host bridge and device, the outermost first.
    pub bridges: Vec<PciBridge>,
    /// PCI class, such as 0x030200 for a 3D controller.
    pub class: Option<u32>,
    /// Vendor number, such as 0x10de.
    pub vendor: Option<u16>,
    /// Device number of the vendor.
    pub device: Option<u16>,
    /// Speed and width of the link; `None` if a virtual machine hides them.
    pub link: Option<PciLink>,
    /// CPUs that the kernel calls local: all of them if the node is unknown.
    pub local_cpus: CpuSet,
}

/// A bridge on the path to a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PciBridge {
    pub address: PciAddress,
    /// Speed and width of its link.
    pub link: Option<PciLink>,
}

/// Speed and width of a PCI link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PciLink {
    /// Current speed as the kernel writes it: `16.0 GT/s PCIe`.
    pub speed: String,
    /// Current lanes.
    pub width: u32,
    /// Highest speed that the device supports.
    pub max_speed: Option<String>,
    /// Most lanes that the device supports.
    pub max_width: Option<u32>,
}

/// A GPU or another accelerator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Gpu {
    /// Number in the order of PCI addresses.
    pub index: usize,
    pub pci: PciFunction,
    /// NUMA node; `None` if the machine does not report it.
    pub node: Option<u32>,
    /// Kernel driver; `None` without one.
    pub driver: Option<String>,
    /// Driver's name for the model, such as `NVIDIA H100 80GB HBM3`.
    pub model: Option<String>,
    /// NVML's answers; `None` if NVML was not queried or does not know this GPU.
    pub details: Option<GpuDetails>,
}

impl PciFunction {
    /// Returns the switches on the path to the device, the nearest first, each by its upstream port.
    ///
    /// A switch is two bridges in a row, its upstream and one of its downstream ports. A single bridge below the host
    /// bridge is a root port. NCCL counts the same way.
    pub fn switches(&self) -> Vec<PciAddress> {
        self.bridges.iter().rev().skip(1).step_by(2).map(|bridge| bridge.address).collect()
    }

    /// Reads the function of the device at `path`, or the function that it belongs to: the device of a virtio interface
    /// is a child of a function. Also returns the function's folder. `None` if the device is not on a PCI bus.
    pub(super) fn read(values: &Values<'_>, path: &Path) -> Option<(Self, String)> {
        let resolved = values.root().resolve(path)?;
        let (host_bridge, chain, folder) = parts(resolved.to_str()?)?;
        let (last, bridges) = chain.split_last()?;
        let bridge = |(address, folder): &Step| PciBridge {
            address: *address,
            link: read_link(values, folder),
        };
        let hex = |name: &str| -> Option<u32> {
            let text = values.text(format!("{folder}/{name}"))?;
            u32::from_str_radix(text.strip_prefix("0x")?, 16).ok()
        };
        let function = Self {
            address: last.0,
            host_bridge,
            bridges: bridges.iter().map(bridge).collect(),
            class: hex("class"),
            vendor: hex("vendor").and_then(|id| id.try_into().ok()),
            device: hex("device").and_then(|id| id.try_into().ok()),
            link: read_link(values, &folder),
            local_cpus: values.cpus(format!("{folder}/local_cpulist")).unwrap_or_default(),
        };
        Some((function, folder))
    }

    fn is_gpu(&self) -> bool {
        let Some(class) = self.class else { return false };
        match class >> 8 {
            // VGA controllers.
            0x0300 => self.vendor.is_some_and(|vendor| GPU_VENDORS.contains(&vendor)),
            // 3D controllers, other display controllers, processing accelerators.
            0x0302 | 0x0380 | 0x1200 => true,
            _ => false,
        }
    }
}

impl Gpu {
    /// Whether the vendor is NVIDIA, whose library NVML is.
    pub fn is_nvidia(&self) -> bool {
        self.pci.vendor == Some(NVIDIA)
    }
}

/// Returns every GPU, in the order of PCI addresses.
pub(super) fn read_gpus(values: &Values<'_>) -> Vec<Gpu> {
    let mut gpus = Vec::new();
    for name in values.names(FOLDER) {
        let path = format!("{FOLDER}/{name}");
        // Read the class first: machines have hundreds of devices, and only a few classes matter.
        let class = values.text(format!("{path}/class")).unwrap_or_default();
        if !["0x0300", "0x0302", "0x0380", "0x1200"].iter().any(|gpu| class.starts_with(gpu)) {
            continue;
        }
        let Some((pci, folder)) = PciFunction::read(values, Path::new(&path)) else { continue };
        if pci.is_gpu() {
            let driver = values.root().link_name(format!("{folder}/driver"));
            let model = read_model(values, &pci);
            let node = read_node(values, &folder);
            gpus.push(Gpu { index: 0, node, driver, model, pci, details: None });
        }
    }
    gpus.sort_unstable_by_key(|gpu| gpu.pci.address);
    for (index, gpu) in gpus.iter_mut().enumerate() {
        gpu.index = index;
    }
    gpus
}

/// Returns the node in a device's folder; −1 and a missing file both mean unknown.
pub(super) fn read_node(values: &Values<'_>, folder: &str) -> Option<u32> {
    let node: i32 = values.parsed(format!("{folder}/numa_node"))?;
    node.try_into().ok()
}

fn read_model(values: &Values<'_>, pci: &PciFunction) -> Option<String> {
    if pci.vendor != Some(NVIDIA) {
        return None;
    }
    let text = values.text(format!("/proc/driver/nvidia/gpus/{}/information", pci.address))?;
    let model = text.lines().find_map(|line| line.strip_prefix("Model:"))?;
    Some(model.trim().to_owned())
}

fn read_link(values: &Values<'_>, folder: &str) -> Option<PciLink> {
    let text = |name: &str| values.text(format!("{folder}/{name}"));
    let (speed, width) = (text("current_link_speed")?, text("current_link_width")?);
    // Devices without their own link, such as those of virtual machines, report `Unknown` and 0.
    let width = width.parse().ok().filter(|width| *width > 0)?;
    Some(PciLink {
        speed,
        width,
        max_speed: text("max_link_speed"),
        max_width: text("max_link_width").and_then(|width| width.parse().ok()),
    })
}

/// An address and its folder.
type Step = (PciAddress, String);

/// Returns the host bridge, the functions on the path with their folders, and the folder of the last one.
fn parts(path: &str) -> Option<(String, Vec<Step>, String)> {
    let mut host_bridge = None;
    let mut chain: Vec<Step> = Vec::new();
    let mut folder = String::new();
    for part in path.split('/').filter(|part| !part.is_empty()) {
        folder = format!("{folder}/{part}");
        let address: Option<PciAddress> = part.parse().ok();
        match address {
            Some(address) if host_bridge.is_some() => chain.push((address, folder.clone())),
            // A controller such as Intel's VMD has its own bus behind it.
            _ if part.starts_with("pci") && part.contains(':') => {
                host_bridge = Some(part.to_owned());
                chain.clear();
            }
            _ if !chain.is_empty() => break,
            _ => {}
        }
    }
    let folder = chain.last()?.1.clone();
    Some((host_bridge?, chain, folder))
}
