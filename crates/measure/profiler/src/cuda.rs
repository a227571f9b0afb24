//! NVIDIA's devices as endpoints.

use std::any::Any;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use polyrail_gpu::cuda::measure::{Bracket, Meter, Mover, RoundTrip};
use polyrail_gpu::cuda::{CudaDevice, Method, QueueOptions};
use polyrail_gpu::{DeviceMemory, GpuError, Queue};
use polyrail_profile::PathKind;

use crate::pattern::seed_of;
use crate::peer::{Accelerator, Gated, TwoEnds};

/// A device with its memory and its meter, which the clock comparison also uses.
pub(crate) struct CudaGpu {
    device: Arc<CudaDevice>,
    meter: SharedMeter,
    source: DeviceMemory,
    sink: DeviceMemory,
    clock: u32,
}

pub(crate) type SharedMeter = Arc<Mutex<Meter>>;

impl CudaGpu {
    /// Allocates memory of the device, fills the source and clears the sink.
    pub(crate) fn open(
        device: &Arc<CudaDevice>,
        rank: u32,
        clock: u32,
        source_bytes: u64,
        sink_bytes: u64,
        seed: u64,
    ) -> Result<Self, GpuError> {
        let mut meter = Meter::open(device)?;
        let (source, sink) = (device.allocate(source_bytes)?, device.allocate(sink_bytes)?);
        meter.fill(&source, source_bytes, seed_of(rank, seed))?;
        meter.clear(&sink, sink_bytes)?;
        let meter = Arc::new(Mutex::new(meter));
        Ok(Self { device: device.clone(), meter, source, sink, clock })
    }

    pub(crate) fn meter(&self) -> SharedMeter {
        self.meter.clone()
    }
}

impl Accelerator for CudaGpu {
    fn open_queue(&self, path: PathKind) -> Result<Queue, GpuError> {
        let method = match path {
            PathKind::Kernel => Method::Kernel,
            _ => Method::Engines,
        };
        let options = QueueOptions { method, ..QueueOptions::default() };
        Ok(Queue::from(self.device.open_queue_with(options)?))
    }

    fn source(&self) -> &DeviceMemory {
        &self.source
    }

    fn sink(&self) -> &DeviceMemory {
        &self.sink
    }

    fn gated(
        &mut self,
        path: PathKind,
        sink: &DeviceMemory,
        bytes: u64,
        count: usize,
        stamp_each: bool,
    ) -> Result<Option<Gated>, GpuError> {
        let mover = mover(path);
        let copies = vec![(sink, &self.source); count];
        let timing = lock(&self.meter).time(mover, &copies, bytes, stamp_each)?;
        let ends = timing.stamps_ns.first().zip(timing.stamps_ns.last());
        // After a copy engine's copy to a peer, a stamp comes up to 10 µs late; an event does not.
        Ok(ends.map(|(start, end)| Gated {
            start_ns: *start,
            end_ns: *end,
            took_ns: timing.elapsed_ns.unwrap_or((end - start) as f64),
        }))
    }

    fn one_way(
        &mut self,
        path: PathKind,
        other: &mut dyn Accelerator,
        bytes: u64,
    ) -> Result<Option<TwoEnds>, GpuError> {
        let Some(other) = (other as &mut dyn Any).downcast_mut::<Self>() else { return Ok(None) };
        let memory = (&other.sink, &self.source);
        let mut sink = lock(&other.meter);
        let ends = lock(&self.meter).one_way(&mut sink, mover(path), memory, bytes)?;
        Ok(Some(TwoEnds {
            source_ns: [ends.start_ns, ends.end_ns],
            sink_ns: [ends.sink_ready_ns, ends.sink_seen_ns],
        }))
    }

    fn clear(&mut self, bytes: u64) -> Result<(), GpuError> {
        lock(&self.meter).clear(&self.sink, bytes)
    }

    fn holds(&mut self, bytes: u64, seed: u64) -> Result<bool, GpuError> {
        Ok(lock(&self.meter).differing(&self.sink, bytes, seed)? == 0)
    }

    fn clock(&self) -> u32 {
        self.clock
    }
}

fn mover(path: PathKind) -> Mover {
    match path {
        PathKind::Kernel => Mover::Kernel,
        _ => Mover::Engine,
    }
}

pub(crate) fn lock(meter: &SharedMeter) -> MutexGuard<'_, Meter> {
    meter.lock()
}

/// Compares the clock of a device with the host's, for [`crate::clocks`].
pub(crate) fn brackets(
    meter: &SharedMeter,
    count: u32,
    at_edge: bool,
) -> Result<Vec<Bracket>, GpuError> {
    lock(meter).brackets(count, at_edge)
}

/// Sends flags between two devices. `one` and `other` must differ.
pub(crate) fn flags(
    one: &SharedMeter,
    other: &SharedMeter,
    count: u32,
) -> Result<Vec<RoundTrip>, GpuError> {
    lock(one).ping_pong(&mut lock(other), count)
}
