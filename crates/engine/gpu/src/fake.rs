//! A device that needs no GPU: host memory behind addresses that the CPU can't use, and a thread for each queue that
//! copies late, at random times, and fails on request of a test.

use std::alloc::Layout;
use std::any::Any;
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use polyrail_sys::Memory;

use crate::device::{Device, DeviceMemory, Identity, PciAddress};
use crate::error::GpuError;
use crate::export::{Export, Source, bad, process};
use crate::raw_queue::{Completion, RawCopy, RawQueue};

/// A bit set in the addresses of the device's memory, so that a CPU that uses one crashes.
const DEVICE_BIT: u64 = 1 << 60;
/// Longest hold. A test that panics while it holds a device waits for it at its end, and would otherwise never report
/// the panic.
const HELD_AT_MOST: Duration = Duration::from_secs(30);

/// Exported memory by the number in its handle. Unlike a real device's it can be imported in the
/// same process, where tests have both ends.
static EXPORTED: Mutex<Vec<Exported>> = Mutex::new(Vec::new());

/// An export, which ends with its owner, as a real one does.
struct Exported {
    owner: Weak<dyn Any + Send + Sync>,
    base: u64,
    len: u64,
}

/// The device. Tests decide how late copies are and when they fail.
#[derive(Debug)]
pub struct FakeDevice {
    identity: Identity,
    behaviour: Arc<Behaviour>,
}

#[derive(Debug)]
struct Behaviour {
    /// Upper limit of the random time that a batch takes.
    late_ns: AtomicU64,
    /// Batches take exactly `late_ns`.
    exactly: AtomicBool,
    /// Sum of the times from the beginning of each batch to its end.
    copied_ns: AtomicU64,
    seed: AtomicU64,
    /// Batches until one fails; negative for never.
    fail_in: AtomicI64,
    pinned_left: AtomicI64,
    /// The device reaches no other device.
    alone: AtomicBool,
    pci_folder: Mutex<Option<PathBuf>>,
    held: Mutex<Held>,
    released: Condvar,
}

#[derive(Debug, Default)]
struct Held {
    is_on: bool,
    /// Batches that wait only because a test holds copies back.
    batches: usize,
}

impl FakeDevice {
    /// Makes a device whose copies are done after a random time up to `late`.
    pub fn new(index: u32, late: Duration, seed: u64) -> Arc<Self> {
        let pci = PciAddress { domain: 0, bus: 0x10 + index as u8, device: 0, function: 0 };
        let name = "fake device".to_owned();
        let uuid = [index as u8; 16];
        let late_ns = AtomicU64::new(late.as_nanos() as u64);
        let behaviour = Arc::new(Behaviour {
            late_ns,
            exactly: AtomicBool::new(false),
            copied_ns: AtomicU64::new(0),
            seed: AtomicU64::new(seed),
            fail_in: AtomicI64::new(-1),
            pinned_left: AtomicI64::new(i64::MAX),
            alone: AtomicBool::new(false),
            pci_folder: Mutex::default(),
            held: Mutex::default(),
            released: Condvar::new(),
        });
        Arc::new(Self {
            identity: Identity { index, name, pci, uuid, memory_bytes: 1 << 40 },
            behaviour,
        })
    }

    /// Lets `batches` more batches succeed and then fails one batch, and its queue with it.
    pub fn fail_after(&self, batches: u32) {
        self.behaviour.fail_in.store(batches.into(), Ordering::SeqCst);
    }

    /// Limits the pinned memory that is left to this many bytes.
    pub fn limit_pinned(&self, bytes: u64) {
        self.behaviour.pinned_left.store(bytes as i64, Ordering::SeqCst);
    }

    /// Makes the device reach no other device from now on.
    pub fn set_alone(&self) {
        self.behaviour.alone.store(true, Ordering::SeqCst);
    }

    /// Sets the folder that stands for the device's folder in sysfs.
    pub fn set_pci_folder(&self, folder: PathBuf) {
        *self.behaviour.pci_folder.lock() = Some(folder);
    }

    /// Makes each batch of copies take exactly this long from now on.
    pub fn set_late(&self, late: Duration) {
        self.behaviour.late_ns.store(late.as_nanos() as u64, Ordering::SeqCst);
        self.behaviour.exactly.store(true, Ordering::SeqCst);
    }

    /// Returns the total time that its queues have worked on batches so far.
    pub fn copied(&self) -> Duration {
        Duration::from_nanos(self.behaviour.copied_ns.load(Ordering::SeqCst))
    }

    /// Holds all copies back, until it is called with `false`, for 30 s at most.
    pub fn hold(&self, held: bool) {
        self.behaviour.held().is_on = held;
        self.behaviour.released.notify_all();
    }

    /// Whether a test holds back a copy that waits.
    pub fn is_holding(&self) -> bool {
        self.behaviour.held().batches > 0
    }

    /// Makes memory of the device that holds these bytes.
    pub fn memory(self: &Arc<Self>, bytes: &[u8]) -> DeviceMemory {
        let owner = Arc::new(Allocation::new(bytes.len()));
        // SAFETY: the allocation has that many bytes, and no other code knows of it yet.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), owner.base.as_ptr(), bytes.len()) };
        let base = owner.base.as_ptr() as u64 | DEVICE_BIT;
        // SAFETY: `owner` keeps the allocation.
        unsafe { DeviceMemory::owned(self.clone(), base, bytes.len() as u64, owner) }
    }

    /// Returns the content of memory of a fake device. No copy to it may be under way.
    pub fn contents(memory: &DeviceMemory) -> Vec<u8> {
        let mut out = vec![0; memory.len() as usize];
        if let Ok(address) = memory.address(0, memory.len()) {
            // SAFETY: memory of a fake device is an allocation of that size, by its address.
            unsafe { std::ptr::copy_nonoverlapping(real(address), out.as_mut_ptr(), out.len()) };
        }
        out
    }
}

impl Device for FakeDevice {
    fn identity(&self) -> &Identity {
        &self.identity
    }

    fn pci_folder(&self) -> Option<PathBuf> {
        self.behaviour.pci_folder.lock().clone()
    }

    fn pinned(&self, bytes: u64) -> Result<Memory, GpuError> {
        self.behaviour.take_pinned(bytes)?;
        Ok(Memory::from(vec![0; bytes as usize]))
    }

    fn pin(&self, memory: &Memory) -> Result<Memory, GpuError> {
        self.behaviour.take_pinned(memory.len())?;
        Ok(memory.clone())
    }

    fn open_queue(self: Arc<Self>) -> Result<Box<dyn RawQueue>, GpuError> {
        let progress = Arc::new(Progress::default());
        let (sender, batches) = channel();
        let (behaviour, theirs) = (self.behaviour.clone(), progress.clone());
        let worker = std::thread::spawn(move || work(&behaviour, &theirs, &batches));
        Ok(Box::new(FakeQueue { sender: Some(sender), worker: Some(worker), progress, begun: 0 }))
    }

    fn reaches(&self, other: &dyn Device) -> Result<bool, GpuError> {
        Ok(self.reaches_uuid(other.identity().uuid))
    }

    fn export(&self, memory: &DeviceMemory) -> Result<Export, GpuError> {
        let unsupported = |what| GpuError::Unsupported { device: self.identity.to_string(), what };
        let owner = memory.owner().ok_or_else(|| unsupported("exporting memory of others"))?;
        let len = memory.len();
        let base = memory.address(0, len).map_err(|_| unsupported("exporting no memory"))?;
        let mut exported = EXPORTED.lock();
        let mut handle = [0; 64];
        handle[..8].copy_from_slice(&(exported.len() as u64).to_le_bytes());
        exported.push(Exported { owner: Arc::downgrade(owner), base, len });
        let source = Source::Handle { handle, size: len };
        Ok(Export { process: process(), device: self.identity.uuid, offset: 0, len, source })
    }

    fn import(self: Arc<Self>, export: &Export) -> Result<DeviceMemory, GpuError> {
        let Source::Handle { handle, .. } = &export.source else { return Err(bad("is of CUDA")) };
        if !self.reaches_uuid(export.device()) {
            return Err(failed("import", "FAKE_OUT_OF_REACH"));
        }
        let mut number = [0; 8];
        number.copy_from_slice(&handle[..8]);
        let exported = EXPORTED.lock();
        let found = exported.get(u64::from_le_bytes(number) as usize).filter(|_| export.is_own());
        let found = found.ok_or_else(|| bad("is of another process"))?;
        let owner = found.owner.upgrade().ok_or_else(|| bad("is gone"))?;
        // SAFETY: the owner keeps the allocation.
        let whole = unsafe { DeviceMemory::owned(self, found.base, found.len, owner) };
        whole.part(export.offset, export.len).map_err(|_| bad("goes beyond its allocation"))
    }
}

struct FakeQueue {
    sender: Option<Sender<Vec<RawCopy>>>,
    worker: Option<JoinHandle<()>>,
    progress: Arc<Progress>,
    begun: u64,
}

#[derive(Default)]
struct Progress {
    done: AtomicU64,
    failed: AtomicBool,
}

// SAFETY: the worker counts a batch only after its copies, and is joined when the queue is dropped.
unsafe impl RawQueue for FakeQueue {
    unsafe fn begin(&mut self, copies: &[RawCopy]) -> Result<u64, GpuError> {
        self.progress.completed()?;
        if let Some(sender) = &self.sender {
            let _ = sender.send(copies.to_vec());
        }
        self.begun += 1;
        Ok(self.begun)
    }

    fn completion(&self) -> Arc<dyn Completion> {
        self.progress.clone()
    }
}

impl Drop for FakeQueue {
    fn drop(&mut self) {
        self.sender = None;
        if let Some(worker) = self.worker.take() {
            let _ = worker.join();
        }
    }
}

impl Completion for Progress {
    fn completed(&self) -> Result<u64, GpuError> {
        if self.failed.load(Ordering::Acquire) {
            return Err(failed("copy", "FAKE_COPY_FAILED"));
        }
        Ok(self.done.load(Ordering::Acquire))
    }
}

fn work(behaviour: &Behaviour, progress: &Progress, batches: &Receiver<Vec<RawCopy>>) {
    while let Ok(copies) = batches.recv() {
        let mut held = behaviour.held();
        held.batches += 1;
        behaviour.released.wait_while_for(&mut held, |held| held.is_on, HELD_AT_MOST);
        held.is_on = false;
        held.batches -= 1;
        drop(held);
        let began = Instant::now();
        std::thread::sleep(behaviour.lateness());
        if behaviour.fails() {
            progress.failed.store(true, Ordering::Release);
            return;
        }
        for copy in copies {
            let (to, from) = (real(copy.to), real(copy.from));
            // SAFETY: the code that began the batch keeps both places valid until it is done.
            unsafe { std::ptr::copy(from, to, copy.len as usize) };
        }
        let took = began.elapsed().as_nanos() as u64;
        behaviour.copied_ns.fetch_add(took, Ordering::SeqCst);
        progress.done.fetch_add(1, Ordering::Release);
    }
}

impl FakeDevice {
    fn reaches_uuid(&self, uuid: [u8; 16]) -> bool {
        uuid == self.identity.uuid || !self.behaviour.alone.load(Ordering::SeqCst)
    }
}

impl Behaviour {
    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock()
    }

    fn take_pinned(&self, bytes: u64) -> Result<(), GpuError> {
        let left = self.pinned_left.fetch_sub(bytes as i64, Ordering::SeqCst);
        if left < bytes as i64 {
            self.pinned_left.fetch_add(bytes as i64, Ordering::SeqCst);
            return Err(failed("pinned memory", "FAKE_OUT_OF_MEMORY"));
        }
        Ok(())
    }

    fn lateness(&self) -> Duration {
        if self.exactly.load(Ordering::SeqCst) {
            return Duration::from_nanos(self.late_ns.load(Ordering::SeqCst));
        }
        // Knuth's multiplier for 64-bit linear congruential generators (MMIX).
        let next = |seed: u64| seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let seed = self.seed.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |s| Some(next(s)));
        let limit = self.late_ns.load(Ordering::SeqCst);
        Duration::from_nanos((seed.unwrap_or(0) >> 33) % (limit + 1))
    }

    fn fails(&self) -> bool {
        let counted = |left: i64| (left >= 0).then_some(left - 1);
        self.fail_in.fetch_update(Ordering::SeqCst, Ordering::SeqCst, counted) == Ok(0)
    }
}

fn failed(call: &'static str, name: &str) -> GpuError {
    GpuError::Driver { call, name: name.into(), text: "as the test asked".into() }
}

fn real(address: u64) -> *mut u8 {
    (address & !DEVICE_BIT) as *mut u8
}

/// Bytes that are accessed by pointer only.
struct Allocation {
    base: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the pointer owns its allocation and is used only to free it.
unsafe impl Send for Allocation {}
// SAFETY: as above.
unsafe impl Sync for Allocation {}

impl Allocation {
    fn new(len: usize) -> Self {
        let layout = Layout::from_size_align(len.max(1), 64).unwrap_or(Layout::new::<u64>());
        // SAFETY: the layout is not of size 0.
        let base = NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) });
        let Some(base) = base else { std::alloc::handle_alloc_error(layout) };
        Self { base, layout }
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        // SAFETY: the allocation was made with this layout and is freed once, here.
        unsafe { std::alloc::dealloc(self.base.as_ptr(), self.layout) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::{CopyPlace, Queue};

    const LATE: Duration = Duration::from_millis(2);
    const LIMIT: Duration = Duration::from_secs(10);

    #[test]
    fn copies_are_done_in_order_and_later() {
        let device = FakeDevice::new(0, LATE, 1);
        let bytes: Vec<u8> = (0..=255).collect();
        let (from, to) = (device.memory(&bytes), device.memory(&[0; 256]));
        let host = device.pinned(256).unwrap();
        let device: Arc<dyn Device> = device;
        let mut queue = Queue::new(&device).unwrap();
        queue.push(CopyPlace::Host(&host, 0), CopyPlace::Device(&from, 0), 256).unwrap();
        let first = queue.begin().unwrap();
        queue.push(CopyPlace::Device(&to, 16), CopyPlace::Host(&host, 16), 240).unwrap();
        let second = queue.begin().unwrap();
        assert!(second.wait(LIMIT).unwrap() && first.is_done().unwrap());
        assert_eq!(FakeDevice::contents(&to)[16..], bytes[16..]);
        assert_eq!(FakeDevice::contents(&to)[..16], [0; 16]);
        assert_eq!(queue.under_way(), 0);
    }

    #[test]
    fn a_range_outside_is_refused() {
        let device = FakeDevice::new(0, LATE, 1);
        let memory = device.memory(&[0; 8]);
        let device: Arc<dyn Device> = device;
        let host = device.pinned(8).unwrap();
        let mut queue = Queue::new(&device).unwrap();
        assert!(queue.push(CopyPlace::Host(&host, 0), CopyPlace::Device(&memory, 1), 8).is_err());
        assert!(queue.push(CopyPlace::Host(&host, 8), CopyPlace::Device(&memory, 0), 1).is_err());
    }

    #[test]
    fn a_copy_that_fails_fails_its_queue_and_no_other() {
        let fake = FakeDevice::new(0, Duration::ZERO, 1);
        let memory = fake.memory(&[7; 8]);
        let device: Arc<dyn Device> = fake.clone();
        let host = device.pinned(8).unwrap();
        let (mut one, mut other) = (Queue::new(&device).unwrap(), Queue::new(&device).unwrap());
        fake.fail_after(0);
        one.push(CopyPlace::Host(&host, 0), CopyPlace::Device(&memory, 0), 8).unwrap();
        let ticket = one.begin().unwrap();
        ticket.wait(LIMIT).unwrap_err();
        one.push(CopyPlace::Host(&host, 0), CopyPlace::Device(&memory, 0), 8).unwrap();
        one.begin().unwrap_err();
        other.push(CopyPlace::Host(&host, 0), CopyPlace::Device(&memory, 0), 8).unwrap();
        assert!(other.begin().unwrap().wait(LIMIT).unwrap());
    }

    #[test]
    fn exported_memory_is_the_same_bytes_until_its_owner_is_gone() {
        let (one, other) =
            (FakeDevice::new(0, LATE, 1), FakeDevice::new(1, LATE, 1) as Arc<dyn Device>);
        let memory = one.memory(b"0123456789");
        let export = one.export(&memory.part(2, 4).unwrap()).unwrap();
        let (bytes, none) = export.into_parts();
        let export = Export::from_parts(&bytes, none).unwrap();
        let imported = other.clone().import(&export).unwrap();
        assert_eq!(FakeDevice::contents(&imported), b"2345");
        drop(memory);
        assert_eq!(FakeDevice::contents(&imported), b"2345", "an import keeps it");
        drop(imported);
        assert_eq!(other.import(&export).unwrap_err(), bad("is gone"));
    }

    #[test]
    fn a_queue_that_is_dropped_waits_for_its_copies() {
        let fake = FakeDevice::new(0, LATE, 3);
        let (from, to) = (fake.memory(&[9; 64]), fake.memory(&[0; 64]));
        let device: Arc<dyn Device> = fake;
        let mut queue = Queue::new(&device).unwrap();
        queue.push(CopyPlace::Device(&to, 0), CopyPlace::Device(&from, 0), 64).unwrap();
        let ticket = queue.begin().unwrap();
        drop(queue);
        assert_eq!(ticket.is_done(), Ok(true));
    }
}
