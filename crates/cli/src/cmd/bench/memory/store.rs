//! Place of an end's memory: on the host or on a device.

use std::sync::Arc;

use parking_lot::Mutex;
use polyrail::{DeviceMemory, Engine, GpuError, Memory, Region, RegionError};
use polyrail_gpu::cuda::Cuda;
use polyrail_gpu::{CopyPlace, Device, Queue};
use polyrail_host::Sysroot;
use polyrail_report::MemoryPlace;

use crate::cmd::bench::faults;
use crate::cmd::bench::options::MemoryKind;
use crate::fault::Fault;

/// Source of the memory of one end's regions.
pub(crate) enum Bank {
    Host,
    Device(DeviceBank),
}

/// Device, and the way to allocate memory on it.
pub(crate) struct DeviceBank {
    device: Arc<dyn Device>,
    allocate: Box<dyn Fn(u64) -> Result<DeviceMemory, GpuError> + Send + Sync>,
}

/// Registered memory, with a way for the CPU to write and read it.
pub(crate) struct Store {
    region: Region,
    device: Option<OnDevice>,
}

/// Device memory, which the CPU reaches by copies through a block of pinned memory.
struct OnDevice {
    memory: DeviceMemory,
    bounce: Mutex<Bounce>,
}

struct Bounce {
    queue: Queue,
    block: Memory,
}

/// Reader of a store at any offset. Bytes that it has read ahead may be as old as the reader.
pub(crate) struct Reader<'s> {
    store: &'s Store,
    /// Offset and bytes of the last read from a device.
    ahead: Option<(u64, Vec<u8>)>,
    ahead_bytes: u64,
}

impl Bank {
    /// Opens a bank of this kind. Opens the driver if the memory is on a device.
    pub(crate) fn open(kind: MemoryKind) -> Result<Self, Fault> {
        let MemoryKind::Cuda(index) = kind else { return Ok(Self::Host) };
        let device = Cuda::load()?.device(index)?;
        let owner = Arc::clone(&device);
        let allocate = Box::new(move |bytes| owner.allocate(bytes));
        Ok(Self::Device(DeviceBank { device, allocate }))
    }

    /// Returns the number in this process of the device at an address of the PCI bus. All processes agree on that
    /// address.
    pub(crate) fn find(pci: &str) -> Result<MemoryKind, Fault> {
        let cuda = Cuda::load()?;
        for index in 0..cuda.count() {
            if cuda.device(index)?.identity().pci.to_string() == pci {
                return Ok(MemoryKind::Cuda(index));
            }
        }
        let text = format!("this process can't see the other end's device at {pci}");
        Err(Fault::environment(text).with_help("let CUDA_VISIBLE_DEVICES name both devices here"))
    }

    /// Returns the description of the place for reports.
    pub(crate) fn place(&self) -> MemoryPlace {
        let Self::Device(bank) = self else { return MemoryPlace::host() };
        let identity = bank.device.identity();
        let pci = identity.pci.to_string();
        MemoryPlace {
            place: format!("cuda:{}", identity.index),
            device: Some(identity.name.clone()),
            numa_node: numa_node(&Sysroot::live(), &pci),
            pci: Some(pci),
        }
    }

    pub(crate) fn kind(&self) -> MemoryKind {
        match self {
            Self::Host => MemoryKind::Host,
            Self::Device(bank) => MemoryKind::Cuda(bank.device.identity().index),
        }
    }

    /// Whether the memory is host memory.
    pub(crate) fn is_host(&self) -> bool {
        matches!(self, Self::Host)
    }

    /// Allocates and registers memory of this size.
    pub(crate) fn store(&self, engine: &Engine, bytes: u64) -> Result<Store, Fault> {
        let Self::Device(bank) = self else {
            let memory =
                Memory::anonymous(bytes).map_err(|source| faults::mapping(bytes, source))?;
            return Ok(Store { region: engine.register(memory)?, device: None });
        };
        let memory = (bank.allocate)(bytes)?;
        let region = engine.register(memory.clone())?;
        let queue = Queue::new(&bank.device)?;
        let block = bank.device.pinned(BOUNCE_BYTES.min(bytes))?;
        let bounce = Mutex::new(Bounce { queue, block });
        Ok(Store { region, device: Some(OnDevice { memory, bounce }) })
    }
}

impl DeviceBank {
    pub(crate) fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// Allocates memory without registering it.
    pub(crate) fn memory(&self, bytes: u64) -> Result<DeviceMemory, GpuError> {
        (self.allocate)(bytes)
    }
}

impl Store {
    pub(crate) fn region(&self) -> &Region {
        &self.region
    }

    /// Returns the memory if it is on a device.
    pub(crate) fn device_memory(&self) -> Option<&DeviceMemory> {
        self.device.as_ref().map(|device| &device.memory)
    }

    pub(crate) fn len(&self) -> u64 {
        self.region.len()
    }

    /// Writes the whole store. `fill` gets the offset of each block and fills it.
    pub(crate) fn fill(&self, mut fill: impl FnMut(u64, &mut [u8])) -> Result<(), RegionError> {
        let mut block = vec![0; BLOCK.min(self.len() as usize)];
        let mut offset = 0;
        while offset < self.len() {
            let room = self.device.as_ref().map_or(BLOCK as u64, |_| BOUNCE_BYTES);
            let end = self.len().min(offset + room);
            match &self.device {
                None => {
                    let bytes = &mut block[..(end - offset) as usize];
                    fill(offset, bytes);
                    self.region.write_at(offset, bytes)?;
                }
                Some(device) => {
                    let mut bounce = device.bounce();
                    for at in (offset..end).step_by(BLOCK) {
                        let bytes = &mut block[..(end - at).min(BLOCK as u64) as usize];
                        fill(at, bytes);
                        bounce.block.write_at(at - offset, bytes)?;
                    }
                    bounce.put(&device.memory, offset, end - offset)?;
                }
            }
            offset = end;
        }
        Ok(())
    }

    /// Returns a reader. It reads host memory directly, and a device's memory in blocks of up to `ahead_bytes`.
    pub(crate) fn reader(&self, ahead_bytes: u64) -> Reader<'_> {
        Reader { store: self, ahead: None, ahead_bytes: ahead_bytes.clamp(1, BOUNCE_BYTES) }
    }
}

impl Reader<'_> {
    pub(crate) fn read_at(&mut self, offset: u64, out: &mut [u8]) -> Result<(), RegionError> {
        let Some(device) = &self.store.device else {
            return self.store.region.read_at(offset, out);
        };
        let end = offset + out.len() as u64;
        let covers = |(start, bytes): &(u64, Vec<u8>)| {
            *start <= offset && end <= *start + bytes.len() as u64
        };
        if !self.ahead.as_ref().is_some_and(covers) {
            let wanted = self.ahead_bytes.max(out.len() as u64);
            let len = wanted.min(self.store.len().saturating_sub(offset)).min(BOUNCE_BYTES);
            let mut bytes = vec![0; len as usize];
            let mut bounce = device.bounce();
            bounce.get(&device.memory, offset, len)?;
            bounce.block.read_at(0, &mut bytes)?;
            self.ahead = Some((offset, bytes));
        }
        let found = self.ahead.as_ref().filter(|ahead| covers(ahead));
        let Some((start, bytes)) = found else {
            // The range exceeds the store.
            let (len, size) = (out.len() as u64, self.store.len());
            return Err(RegionError::OutOfBounds { offset, len, size });
        };
        out.copy_from_slice(&bytes[(offset - start) as usize..][..out.len()]);
        Ok(())
    }
}

impl OnDevice {
    /// Locks the block. Each copy is complete, so a panic elsewhere leaves the block usable.
    fn bounce(&self) -> parking_lot::MutexGuard<'_, Bounce> {
        self.bounce.lock()
    }
}

impl Bounce {
    /// Copies the start of the block to the device, and waits.
    fn put(&mut self, memory: &DeviceMemory, offset: u64, len: u64) -> Result<(), RegionError> {
        self.queue.push(CopyPlace::Device(memory, offset), CopyPlace::Host(&self.block, 0), len)?;
        self.finish()
    }

    /// Copies from the device to the start of the block, and waits.
    fn get(&mut self, memory: &DeviceMemory, offset: u64, len: u64) -> Result<(), RegionError> {
        self.queue.push(CopyPlace::Host(&self.block, 0), CopyPlace::Device(memory, offset), len)?;
        self.finish()
    }

    fn finish(&mut self) -> Result<(), RegionError> {
        let ticket = self.queue.begin()?;
        while !ticket.is_done()? {
            std::thread::yield_now();
        }
        Ok(())
    }
}

/// Bytes filled or compared at once, which stay in the cache.
const BLOCK: usize = 64 << 10;
/// Bytes that go to or come from a device at once.
const BOUNCE_BYTES: u64 = 16 << 20;

/// Returns the NUMA node of a device on the PCI bus, if the kernel knows it.
fn numa_node(root: &Sysroot, pci: &str) -> Option<u32> {
    let text = root.read(format!("/sys/bus/pci/devices/{pci}/numa_node")).ok()?;
    // The file has -1 if the firmware does not report the node.
    text.trim().parse().ok()
}

#[cfg(test)]
pub(crate) mod tests {
    use std::time::Duration;

    use polyrail_gpu::fake::FakeDevice;

    use super::*;

    /// Returns a bank on a fake device, which needs no GPU and whose copies complete late.
    pub(crate) fn fake_bank() -> Bank {
        let device = FakeDevice::new(3, Duration::from_micros(50), 1);
        let owner = Arc::clone(&device);
        let allocate = Box::new(move |bytes: u64| Ok(owner.memory(&vec![0; bytes as usize])));
        Bank::Device(DeviceBank { device, allocate })
    }

    #[test]
    fn what_was_filled_is_read_back_from_the_host_and_from_a_device() {
        let engine = Engine::builder().build().unwrap();
        for bank in [Bank::Host, fake_bank()] {
            let bytes = 2 * BOUNCE_BYTES + 12_345;
            let store = bank.store(&engine, bytes).unwrap();
            let byte = |at: u64| (at * 7 + at / 1000) as u8;
            store
                .fill(|offset, block| {
                    (offset..).zip(block).for_each(|(at, place)| *place = byte(at))
                })
                .unwrap();
            let mut reader = store.reader(1 << 20);
            for (offset, len) in [(0, 10), (5, 100_000), (bytes - 3, 3), (BOUNCE_BYTES - 1, 2)] {
                let mut out = vec![0; len];
                reader.read_at(offset, &mut out).unwrap();
                assert!((offset..).zip(&out).all(|(at, got)| *got == byte(at)), "{offset}+{len}");
            }
            let beyond = reader.read_at(bytes - 2, &mut [0; 3]);
            assert!(matches!(beyond, Err(RegionError::OutOfBounds { .. })), "{beyond:?}");
        }
    }

    #[test]
    fn the_node_of_a_device_is_known_or_not() {
        let folder = tempfile::tempdir().unwrap();
        let root = Sysroot::at(folder.path());
        for (pci, text, node) in [("0000:19:00.0", "1\n", Some(1)), ("0000:1a:00.0", "-1\n", None)]
        {
            let device = root.path(format!("/sys/bus/pci/devices/{pci}"));
            std::fs::create_dir_all(&device).unwrap();
            std::fs::write(device.join("numa_node"), text).unwrap();
            assert_eq!(numa_node(&root, pci), node);
        }
        assert_eq!(numa_node(&root, "0000:1b:00.0"), None);
    }
}
