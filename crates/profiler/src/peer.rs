//! Copies between GPUs by themselves: the paths `copy_engine` and `kernel`.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use polyrail_gpu::{DeviceMemory, GpuError, Place, Queue, Ticket};
use polyrail_profile::{End, PathKind};

use crate::carrier::{Carrier, Measured, per_second, stream_of};
use crate::copy::verdict;
use crate::error::ProfilerError;
use crate::station::median;
use crate::{pattern, reference_ns};

/// Bytes of a stream, when transfers are small.
const STREAM_BYTES: u64 = 512 << 20;
/// One background transfer.
const LOAD_BYTES: u64 = 64 << 20;
/// A pair copies at most about this fast, for how much load lasts how long.
const LOAD_BYTES_PER_S: f64 = 450e9;
/// Gated transfers of a sample, up to a size: a copy engine starts within some µs, at random, which is
/// much of what a short transfer takes.
const TRAINS: [(u64, usize); 2] = [(4 << 20, 32), (32 << 20, 8)];
const PATIENCE: Duration = Duration::from_secs(30);

/// A transfer that was held back by a gate until all of it was queued.
#[derive(Clone, Debug, PartialEq)]
pub struct Gated {
    /// The device's clock when the gate opened, in ns.
    pub start_ns: i64,
    /// The device's clock at the end, in ns.
    pub end_ns: i64,
    /// What [`polyrail_profile::Metric::Gpu`] is of it, in ns.
    pub took_ns: f64,
}

/// One GPU with its memory. [`crate::StationOptions`] makes them of NVIDIA's devices; tests have others.
pub trait Accelerator: Send {
    /// A queue for transfers that are timed by the host.
    ///
    /// # Errors
    /// What the device refuses.
    fn open_queue(&self, path: PathKind) -> Result<Queue, GpuError>;

    /// What is sent.
    fn source(&self) -> &DeviceMemory;

    /// Where it arrives.
    fn sink(&self) -> &DeviceMemory;

    /// Makes so many gated copies of the source's first bytes to `sink`, which may be another
    /// device's. Without any it is what the timer itself takes. `None` if the device has no gates.
    ///
    /// # Errors
    /// What the device refuses.
    fn gated(
        &mut self,
        path: PathKind,
        sink: &DeviceMemory,
        bytes: u64,
        count: usize,
        stamp_each: bool,
    ) -> Result<Option<Gated>, GpuError>;

    /// Sets the first bytes of the sink to 0.
    ///
    /// # Errors
    /// What the device refuses.
    fn clear(&mut self, bytes: u64) -> Result<(), GpuError>;

    /// Whether the first bytes of the sink are the pattern of this seed.
    ///
    /// # Errors
    /// What the device refuses.
    fn holds(&mut self, bytes: u64, seed: u64) -> Result<bool, GpuError>;

    /// The number of its clock in the profile.
    fn clock(&self) -> u32;
}

/// A GPU that several paths and the comparison of clocks share.
pub(crate) type SharedAccelerator = Arc<Mutex<Box<dyn Accelerator>>>;

/// Copies between GPUs on one path.
pub struct Peer {
    path: PathKind,
    seed: u64,
    gpus: HashMap<u32, SharedAccelerator>,
    queues: HashMap<u32, Queue>,
    /// Queues of the background, and what is under way on them.
    load_queues: HashMap<u32, Queue>,
    load: Vec<Ticket>,
}

impl Peer {
    /// Copies by `path`, which is [`PathKind::CopyEngine`] or [`PathKind::Kernel`], between GPUs that
    /// reach each other. The source of rank `r` holds the pattern of `r` and `seed`.
    pub(crate) fn new(
        path: PathKind,
        seed: u64,
        gpus: HashMap<u32, SharedAccelerator>,
    ) -> Result<Self, ProfilerError> {
        let mut queues = HashMap::new();
        for (rank, gpu) in &gpus {
            let queue = lock(gpu).open_queue(path);
            queues.insert(
                *rank,
                queue.map_err(ProfilerError::gpu(format!("a queue of rank {rank}")))?,
            );
        }
        Ok(Self { path, seed, gpus, queues, load_queues: HashMap::new(), load: Vec::new() })
    }

    fn gpu(&self, rank: u32) -> Result<SharedAccelerator, ProfilerError> {
        let gpu = self.gpus.get(&rank).cloned();
        gpu.ok_or_else(|| ProfilerError::Choice { what: format!("rank {rank} is no GPU") })
    }

    /// One copy, begun.
    fn begin(
        queue: &mut Queue,
        from: &DeviceMemory,
        to: &DeviceMemory,
        bytes: u64,
    ) -> Result<Ticket, ProfilerError> {
        let outside = |error| ProfilerError::engine("copying between GPUs")(&error);
        queue.push(Place::Device(to, 0), Place::Device(from, 0), bytes).map_err(outside)?;
        queue.begin().map_err(ProfilerError::gpu("copying between GPUs"))
    }

    fn queue(&mut self, rank: u32) -> Result<&mut Queue, ProfilerError> {
        let queue = self.queues.get_mut(&rank);
        queue.ok_or_else(|| ProfilerError::Choice { what: format!("rank {rank} is no GPU") })
    }
}

impl Carrier for Peer {
    fn warm(&mut self, src: u32, dst: u32, bytes: u64) -> Result<(), ProfilerError> {
        let (from, to) = (self.gpu(src)?, self.gpu(dst)?);
        let (source, sink) = (lock(&from).source().clone(), lock(&to).sink().clone());
        let ticket = Self::begin(self.queue(src)?, &source, &sink, bytes)?;
        done(&ticket)?;
        let gated = lock(&from).gated(self.path, &sink, bytes, 1, false);
        gated.map_err(ProfilerError::gpu("a gated copy")).map(|_| ())
    }

    fn measure(
        &mut self,
        src: u32,
        dst: u32,
        bytes: u64,
        verify: bool,
    ) -> Result<Measured, ProfilerError> {
        let (from, to) = (self.gpu(src)?, self.gpu(dst)?);
        let (source, sink) = (lock(&from).source().clone(), lock(&to).sink().clone());
        let (path, seed) = (self.path, pattern::seed_of(src, self.seed));
        let clear = || match verify {
            true => lock(&to).clear(bytes).map_err(ProfilerError::gpu("clearing the sink")),
            false => Ok(()),
        };
        let is_right = || match verify {
            true => lock(&to).holds(bytes, seed).map_err(ProfilerError::gpu("verifying")),
            false => Ok(true),
        };
        let queue = self.queue(src)?;

        clear()?;
        let posted_ns = reference_ns();
        let ticket = Self::begin(queue, &source, &sink, bytes)?;
        done(&ticket)?;
        let host_ns = reference_ns() - posted_ns;
        let mut right = is_right()?;

        clear()?;
        let (gated, t_gpu_ns) = gated_train(&from, path, &sink, bytes)?;
        right &= is_right()?;

        clear()?;
        let (count, window) = stream_of(bytes, STREAM_BYTES);
        let mut under_way = std::collections::VecDeque::with_capacity(window);
        let begin_ns = reference_ns();
        for _ in 0..count {
            if under_way.len() == window
                && let Some(oldest) = under_way.pop_front()
            {
                done(&oldest)?;
            }
            under_way.push_back(Self::begin(queue, &source, &sink, bytes)?);
        }
        for ticket in under_way {
            done(&ticket)?;
        }
        let stream_ns = reference_ns() - begin_ns;
        right &= is_right()?;

        let clock = lock(&from).clock();
        Ok(Measured {
            posted_ns,
            t_gpu_ns,
            t_host_ns: Some(host_ns as f64),
            bandwidth_bytes_per_s: per_second(bytes * count, stream_ns),
            source: End {
                clock: gated.is_some().then_some(clock),
                start_ns: gated.as_ref().map(|gated| gated.start_ns),
                end_ns: gated.as_ref().map(|gated| gated.end_ns),
                ..End::default()
            },
            verify: verdict(verify, right),
            ..Measured::default()
        })
    }

    fn begin_load(&mut self, pairs: &[(u32, u32)], time: Duration) -> Result<(), ProfilerError> {
        for &(src, dst) in pairs {
            let (from, to) = (self.gpu(src)?, self.gpu(dst)?);
            let (source, sink) = (lock(&from).source().clone(), lock(&to).sink().clone());
            if !self.load_queues.contains_key(&src) {
                let queue = lock(&from).open_queue(self.path);
                let queue = queue.map_err(ProfilerError::gpu("a queue for the background"))?;
                self.load_queues.insert(src, queue);
            }
            let Some(queue) = self.load_queues.get_mut(&src) else { continue };
            // It goes to the end of the sink, which a measured transfer of the same sink does not
            // need: the station makes sinks that much larger.
            let Some(offset) = sink.len().checked_sub(LOAD_BYTES) else { continue };
            let bytes = LOAD_BYTES.min(source.len());
            let count = (time.as_secs_f64() * LOAD_BYTES_PER_S / LOAD_BYTES as f64).ceil() as u64;
            for _ in 0..count.clamp(2, 4096) {
                let outside = |error| ProfilerError::engine("background load")(&error);
                let (to, from) = (Place::Device(&sink, offset), Place::Device(&source, 0));
                queue.push(to, from, bytes).map_err(outside)?;
                let begun = queue.begin().map_err(ProfilerError::gpu("background load"))?;
                self.load.push(begun);
            }
        }
        Ok(())
    }

    fn end_load(&mut self) -> Result<(), ProfilerError> {
        self.load.drain(..).try_for_each(|ticket| done(&ticket))
    }
}

/// Gated transfers, each alone, until what one takes is known well enough: the last of them, and the
/// median of what they took.
fn gated_train(
    from: &SharedAccelerator,
    path: PathKind,
    sink: &DeviceMemory,
    bytes: u64,
) -> Result<(Option<Gated>, Option<f64>), ProfilerError> {
    let count = TRAINS.iter().find(|(most, _)| bytes <= *most).map_or(1, |(_, count)| *count);
    let once = || {
        let gated = lock(from).gated(path, sink, bytes, 1, false);
        gated.map_err(ProfilerError::gpu("a gated copy"))
    };
    if count > 1 {
        // The first one wakes the engine.
        once()?;
    }
    let (mut last, mut took_ns) = (None, Vec::with_capacity(count));
    for _ in 0..count {
        last = once()?;
        took_ns.extend(last.as_ref().map(|gated| gated.took_ns));
    }
    let median_ns = (!took_ns.is_empty()).then(|| median(&mut took_ns));
    Ok((last, median_ns))
}

/// How much larger sinks are, for the background.
pub(crate) const LOAD_ROOM_BYTES: u64 = LOAD_BYTES;

pub(crate) fn lock(gpu: &SharedAccelerator) -> MutexGuard<'_, Box<dyn Accelerator>> {
    gpu.lock().unwrap_or_else(PoisonError::into_inner)
}

fn done(ticket: &Ticket) -> Result<(), ProfilerError> {
    let what = "a copy between GPUs";
    match ticket.wait(PATIENCE) {
        Ok(true) => Ok(()),
        Ok(false) => {
            let reason = format!("not done after {} s", PATIENCE.as_secs());
            Err(ProfilerError::Engine { what, reason })
        }
        Err(source) => Err(ProfilerError::Gpu { what: what.into(), source }),
    }
}
