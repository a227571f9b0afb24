//! Assembles messages in GPU memory.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use polyrail_gpu::{CopyPlace, Device, DeviceMemory, Fragment, GpuError, Queue, Ticket};
use polyrail_sys::{Memory, OutOfRange};

/// GPU bytes read at a time. A plugin's device handle has 24.
const READ_BYTES: u64 = 64;

/// A host's gatherers, one per GPU. A driver allocates when it makes one, which takes milliseconds and blocks calls of
/// other threads. So connections share them, and no message waits for one to be made.
#[derive(Default)]
pub(crate) struct Gatherers(Vec<Arc<Gatherer>>);

pub(crate) struct Gatherer {
    device: Arc<dyn Device>,
    queue: Mutex<Queue>,
    /// GPUs that were checked, and whether kernels of this GPU reach their memory.
    others: Mutex<Vec<([u8; 16], bool)>>,
    /// Pinned memory.
    read: Mutex<Memory>,
}

impl Gatherers {
    /// Returns the gatherer of the GPU. A failed one copies nothing more and is replaced.
    pub(crate) fn of(&mut self, device: &Arc<dyn Device>) -> Result<Arc<Gatherer>, GpuError> {
        let uuid = device.identity().uuid;
        self.0.retain(|known| !known.queue.lock().has_failed());
        if let Some(known) = self.0.iter().find(|known| known.device.identity().uuid == uuid) {
            return Ok(known.clone());
        }
        let gatherer = Arc::new(Gatherer {
            device: device.clone(),
            queue: Mutex::new(Queue::from(device.clone().open_gather_queue()?)),
            others: Mutex::default(),
            read: Mutex::new(device.pinned(READ_BYTES)?),
        });
        self.0.push(gatherer.clone());
        Ok(gatherer)
    }
}

impl Gatherer {
    /// Starts to copy the fragments of a message of `bytes` bytes from a bounce buffer of this GPU to memory from `to`
    /// on; by way of `pinned` memory if given.
    pub(crate) fn gather(
        &self,
        (to, bytes): (CopyPlace<'_>, u64),
        pinned: Option<&Memory>,
        bounce: &DeviceMemory,
        fragments: &[Fragment],
    ) -> Result<Ticket, String> {
        let bounce = CopyPlace::Device(bounce, 0);
        let mut queue = self.queue.lock();
        let Some(pinned) = pinned else {
            return queue.gather(to, bounce, fragments).map_err(|error| error.to_string());
        };
        let stage = CopyPlace::Host(pinned, 0);
        queue.gather(stage, bounce, fragments).map_err(|error| error.to_string())?;
        queue.push(to, stage, bytes).map_err(|error| error.to_string())?;
        queue.begin().map_err(|error| error.to_string())
    }

    /// Releases memory whose copies are done. Otherwise the queue does that at its next use.
    pub(crate) fn let_go(&self) {
        self.queue.lock().under_way();
    }

    pub(crate) fn pinned(&self, bytes: u64) -> Result<Memory, String> {
        self.device.pinned(bytes).map_err(|error| error.to_string())
    }

    /// Reads a few bytes of this GPU.
    pub(crate) fn read(&self, memory: &DeviceMemory) -> Result<Vec<u8>, String> {
        let outside = |error: OutOfRange| error.to_string();
        let failed = |error: GpuError| format!("the plugin's device handle: {error}");
        let (pinned, len) = (self.read.lock(), memory.len());
        let ticket = {
            let mut queue = self.queue.lock();
            let (to, from) = (CopyPlace::Host(&pinned, 0), CopyPlace::Device(memory, 0));
            queue.push(to, from, len).map_err(outside)?;
            queue.begin().map_err(failed)?
        };
        if !ticket.wait(Duration::from_secs(5)).map_err(failed)? {
            return Err("the GPU did not copy the plugin's device handle within 5 s".to_owned());
        }
        self.let_go();
        let mut bytes = vec![0; len as usize];
        pinned.read_at(0, &mut bytes).map_err(outside)?;
        Ok(bytes)
    }

    /// True if kernels of this GPU reach the other GPU's memory. Otherwise a copy engine copies each fragment
    /// separately, which is a hundred times slower.
    pub(crate) fn reaches(&self, other: &Arc<dyn Device>) -> bool {
        let uuid = other.identity().uuid;
        if uuid == self.device.identity().uuid {
            return true;
        }
        let mut others = self.others.lock();
        if let Some((_, reached)) = others.iter().find(|(known, _)| *known == uuid) {
            return *reached;
        }
        let answer = self.device.reaches(&**other);
        let reached = matches!(answer, Ok(true));
        if !reached {
            let (gpu, other) = (self.device.identity(), other.identity());
            tracing::info!(target: "polyrail::carrier", %gpu, %other, ?answer,
                "no kernel reaches the other GPU: what comes for it into this one's bounce buffer goes by pinned memory");
        }
        others.push((uuid, reached));
        reached
    }
}

#[cfg(test)]
mod tests {
    use polyrail_gpu::fake::FakeDevice;

    use super::*;

    #[test]
    fn messages_for_another_gpu_come_together_whether_kernels_reach_it_or_not() {
        for alone in [false, true] {
            let (near, far) =
                (FakeDevice::new(0, Duration::ZERO, 1), FakeDevice::new(1, Duration::ZERO, 1));
            if alone {
                near.set_alone();
            }
            let device: Arc<dyn Device> = near.clone();
            let mut gatherers = Gatherers::default();
            let gatherer = gatherers.of(&device).unwrap();
            assert!(Arc::ptr_eq(&gatherer, &gatherers.of(&device).unwrap()), "one for each GPU");
            let bounce = near.memory(b"....world..hello ");
            let target = far.memory(&[b'-'; 13]);
            let fragment = |from, len, to| Fragment { from, len, to };
            let fragments = [fragment(11, 6, 0), fragment(4, 5, 6)];
            let reached = gatherer.reaches(target.device());
            assert_eq!(reached, !alone);
            let pinned = gatherer.pinned(64).unwrap();
            let via = (!reached).then_some(&pinned);
            let to = (CopyPlace::Device(&target, 1), 11);
            let ticket = gatherer.gather(to, via, &bounce, &fragments).unwrap();
            assert!(ticket.wait(Duration::from_secs(30)).unwrap());
            assert_eq!(FakeDevice::contents(&target), b"-hello world-");
        }
    }

    #[test]
    fn a_gatherer_that_has_failed_is_replaced() {
        let fake = FakeDevice::new(0, Duration::ZERO, 1);
        let device: Arc<dyn Device> = fake.clone();
        let mut gatherers = Gatherers::default();
        let failed = gatherers.of(&device).unwrap();
        fake.fail_after(0);
        assert!(failed.read(&fake.memory(&[7; 24])).is_err());
        let next = gatherers.of(&device).unwrap();
        assert!(!Arc::ptr_eq(&failed, &next));
        assert_eq!(next.read(&fake.memory(&[7; 24])).unwrap(), [7; 24]);
    }

    #[test]
    fn a_gatherer_lets_go_of_what_it_has_copied() {
        let fake = FakeDevice::new(0, Duration::ZERO, 1);
        let device: Arc<dyn Device> = fake.clone();
        let gatherer = Gatherers::default().of(&device).unwrap();
        let users = Arc::strong_count(&device);
        let memory = fake.memory(&[7; 24]);
        assert_eq!(gatherer.read(&memory).unwrap(), [7; 24]);
        drop(memory);
        assert_eq!(Arc::strong_count(&device), users, "nobody keeps memory of it");
    }
}
