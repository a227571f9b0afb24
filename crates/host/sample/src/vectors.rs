//! The interrupts of the NICs and their counts by CPU.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use polyrail_host::{CpuSet, Interrupts, PciAddress, Ports, Sysroot};

use crate::counters::per_cpu_counts;
use crate::record::{NicStart, VectorStart};
use crate::reread::Reread;

/// The counts of one vector: CPUs in ascending order, each with its count. Counts have 32 bits and wrap.
pub(crate) type Counts = Vec<(u32, u32)>;

/// The vectors of all NICs.
#[derive(Debug)]
pub(crate) struct Vectors {
    /// The file of counts of each vector. Empty where the kernel has no such files; then the whole
    /// table is read.
    files: BTreeMap<u32, Reread>,
    numbers: Vec<u32>,
    /// The CPUs that the positions in a file of counts stand for.
    possible: Vec<u32>,
}

impl Vectors {
    /// Opens the vectors listed in `nics`.
    pub(crate) fn open(root: &Sysroot, nics: &[NicStart]) -> Self {
        let numbers: Vec<u32> =
            nics.iter().flat_map(|nic| &nic.vectors).map(|vector| vector.irq).collect();
        let file = |irq: &u32| {
            let file = Reread::open(root, format!("/sys/kernel/irq/{irq}/per_cpu_count")).ok()?;
            Some((*irq, file))
        };
        let files: Option<BTreeMap<u32, Reread>> = numbers.iter().map(file).collect();
        let possible = root.read("/sys/devices/system/cpu/possible").ok();
        let possible = possible.and_then(|text| CpuSet::parse_list(&text).ok());
        let possible: Vec<u32> = possible.map_or_else(Vec::new, |cpus| cpus.iter().collect());
        let files = files.filter(|_| !possible.is_empty()).unwrap_or_default();
        Self { files, numbers, possible }
    }

    /// Returns the counts of each vector that still exists.
    pub(crate) fn read(
        &self,
        root: &Sysroot,
        buffer: &mut Vec<u8>,
    ) -> Result<BTreeMap<u32, Counts>, String> {
        if self.numbers.is_empty() {
            return Ok(BTreeMap::new());
        }
        if self.files.is_empty() {
            return self.read_table(root);
        }
        let mut vectors = BTreeMap::new();
        for (irq, file) in &self.files {
            // If the driver has freed a vector, its file of counts is gone.
            if file.read(buffer).is_ok()
                && let Some(counts) = per_cpu_counts(buffer)
            {
                vectors.insert(*irq, self.possible.iter().copied().zip(counts).collect());
            }
        }
        Ok(vectors)
    }

    fn read_table(&self, root: &Sysroot) -> Result<BTreeMap<u32, Counts>, String> {
        let table = Interrupts::read(root).map_err(|error| error.to_string())?;
        let ours = table.irqs.iter().filter(|irq| self.numbers.contains(&irq.number));
        let counts = |counts: &[u64]| {
            table.cpus.iter().copied().zip(counts.iter().map(|count| *count as u32)).collect()
        };
        Ok(ours.map(|irq| (irq.number, counts(&irq.counts))).collect())
    }
}

/// Returns all NICs that are devices, with the vectors that have a handler.
pub(crate) fn nics(root: &Sysroot, missing: &mut Vec<String>) -> Vec<NicStart> {
    let names = match root.list("/sys/class/net") {
        Ok(names) => names,
        Err(error) => {
            missing.push(error.to_string());
            return Vec::new();
        }
    };
    let table = Interrupts::read(root).map_err(|error| missing.push(error.to_string())).ok();
    let ports = Ports::read(root);
    let nic = |name: String| {
        let device = root.resolve(Path::new("/sys/class/net").join(&name).join("device"))?;
        let vectors = table.as_ref().map_or_else(Vec::new, |table| {
            let numbers = msi_irqs(root, &device);
            let named = table.irqs.iter().filter(|irq| numbers.contains(&irq.number));
            let handled = named.filter(|irq| !irq.actions.is_empty());
            let function = function(&device);
            let own = handled.filter(|irq| {
                let served = |function| {
                    ports.served(function, &irq.actions.join(", ")).contains(&name.as_str())
                };
                function.is_none_or(served)
            });
            own.map(|irq| vector(root, irq.number, &irq.actions)).collect()
        });
        Some(NicStart { name, vectors })
    };
    names.into_iter().filter_map(nic).collect()
}

/// Returns the PCI function that a device is, or belongs to.
fn function(device: &Path) -> Option<PciAddress> {
    device.iter().rev().find_map(|part| part.to_str()?.parse().ok())
}

/// Returns the vectors of the PCI function that a device belongs to; for virtio, that is the parent
/// device.
fn msi_irqs(root: &Sysroot, device: &Path) -> Vec<u32> {
    let mut folder: PathBuf = device.to_owned();
    loop {
        let names = root.list_optional(folder.join("msi_irqs")).unwrap_or_default();
        if !names.is_empty() {
            return names.iter().filter_map(|name| name.parse().ok()).collect();
        }
        if !folder.pop() || folder == Path::new("/sys/devices") {
            return Vec::new();
        }
    }
}

fn vector(root: &Sysroot, irq: u32, actions: &[String]) -> VectorStart {
    let read = |file: &str| root.read(format!("/proc/irq/{irq}/{file}")).ok();
    VectorStart {
        irq,
        action: actions.join(", "),
        affinity: read("smp_affinity_list"),
        effective: read("effective_affinity_list"),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    fn root_with_a_nic() -> (tempfile::TempDir, Sysroot) {
        let folder = tempfile::tempdir().unwrap();
        let root = Sysroot::at(folder.path());
        let put = |path: &str, text: &str| {
            let path = root.path(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        put("/sys/devices/pci0000:00/0000:00:03.0/msi_irqs/38", "msix\n");
        put("/sys/devices/pci0000:00/0000:00:03.0/msi_irqs/40", "msix\n");
        put("/sys/devices/pci0000:00/0000:00:03.0/virtio2/net/eth0/mtu", "1500\n");
        put("/sys/devices/virtual/net/lo/mtu", "65536\n");
        put(
            "/proc/interrupts",
            "  CPU0 CPU2\n 38: 5 6 PCI-MSIX-0000:00:03.0 1-edge virtio2-input.0\n \
             40: 0 0 PCI-MSIX-0000:00:03.0 2-edge\n 41: 7 7 PCI-MSIX-0000:00:04.0 1-edge nvme0\n",
        );
        put("/proc/irq/38/smp_affinity_list", "0,2\n");
        fs::create_dir_all(root.path("/sys/class/net")).unwrap();
        let links = [
            ("../../../virtio2", "/sys/devices/pci0000:00/0000:00:03.0/virtio2/net/eth0/device"),
            ("../../devices/pci0000:00/0000:00:03.0/virtio2/net/eth0", "/sys/class/net/eth0"),
            ("../../devices/virtual/net/lo", "/sys/class/net/lo"),
        ];
        for (target, link) in links {
            symlink(target, root.path(link)).unwrap();
        }
        (folder, root)
    }

    #[test]
    fn a_virtio_nic_has_the_vectors_of_the_function_above_it() {
        let (_folder, root) = root_with_a_nic();
        let mut missing = Vec::new();
        let nics = nics(&root, &mut missing);
        assert_eq!(nics.len(), 1, "lo is no device: {nics:?}");
        let vector = &nics[0].vectors[0];
        assert_eq!(vector.irq, 38);
        assert_eq!((nics[0].name.as_str(), vector.action.as_str()), ("eth0", "virtio2-input.0"));
        assert_eq!((vector.affinity.as_deref(), vector.effective.as_deref()), (Some("0,2"), None));
        assert_eq!(nics[0].vectors.len(), 1, "40 has no handler, 41 is another device's");
        assert!(missing.is_empty(), "{missing:?}");
    }

    #[test]
    fn counts_come_from_the_vectors_own_file_or_else_from_the_table() {
        let (_folder, root) = root_with_a_nic();
        let nics = nics(&root, &mut Vec::new());
        let mut buffer = Vec::new();
        let vectors = Vectors::open(&root, &nics).read(&root, &mut buffer).unwrap();
        assert_eq!(vectors[&38], [(0, 5), (2, 6)]);

        let put = |path: &str, text: &str| {
            fs::create_dir_all(root.path(path).parent().unwrap()).unwrap();
            fs::write(root.path(path), text).unwrap();
        };
        put("/sys/kernel/irq/38/per_cpu_count", "7,0,8\n");
        put("/sys/devices/system/cpu/possible", "0-2\n");
        let vectors = Vectors::open(&root, &nics).read(&root, &mut buffer).unwrap();
        assert_eq!(vectors[&38], [(0, 7), (1, 0), (2, 8)]);
    }
}
