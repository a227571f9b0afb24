//! Copies by the GPUs themselves: the paths `copy_engine` and `kernel`.

use std::any::Any;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use polyrail_gpu::{CopyPlace, DeviceMemory, GpuError, Queue, Ticket};
use polyrail_profile::{End, PathKind};
use polyrail_report::median;

use crate::carrier::{Cargo, Carrier, Measured, per_second, stream_of};
use crate::copy::verdict;
use crate::error::ProfilerError;
use crate::{pattern, reference_ns};

/// Bytes of a stream of small transfers.
const STREAM_BYTES: u64 = 512 << 20;
const LOAD_BYTES: u64 = 64 << 20;
/// Maximum copy rate of a pair in bytes per second, to size the background load.
const LOAD_BYTES_PER_S: f64 = 450e9;
/// Gated transfers per sample, by size: a copy engine starts with a random delay of some µs, which is a large part of a
/// short transfer.
const TRAINS: [(u64, usize); 2] = [(4 << 20, 64), (32 << 20, 16)];
/// One of this many transfers of a train runs first and is not counted, so that earlier work, such as verifying a GiB,
/// does not affect the result.
const UNCOUNTED: usize = 8;
const PATIENCE: Duration = Duration::from_secs(30);

/// A transfer that a gate held back until all of it was queued.
#[derive(Clone, Debug, PartialEq)]
pub struct Gated {
    /// Device clock when the gate opened, in ns.
    pub start_ns: i64,
    /// Device clock at the end, in ns.
    pub end_ns: i64,
    /// [`polyrail_profile::Metric::Gpu`] of the transfer, in ns.
    pub took_ns: f64,
}

/// A transfer on the clocks of both ends, in ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TwoEnds {
    /// Source clock when its gate opened, and after the transfer.
    pub source_ns: [i64; 2],
    /// Sink clock when the sink was ready, and when it knew that everything had arrived.
    pub sink_ns: [i64; 2],
}

/// One GPU with its memory. [`crate::StationOptions`] creates them from NVIDIA's devices; tests use others.
pub trait Accelerator: Any + Send {
    /// Opens a queue for transfers that the host times.
    ///
    /// # Errors
    /// If the device refuses.
    fn open_queue(&self, path: PathKind) -> Result<Queue, GpuError>;

    fn source(&self) -> &DeviceMemory;

    fn sink(&self) -> &DeviceMemory;

    /// Makes `count` gated copies of the source's first bytes to `sink`, which may be on another device. With zero
    /// copies, measures the timer itself. `None` if the device has no gates.
    ///
    /// # Errors
    /// If the device refuses.
    fn gated(
        &mut self,
        path: PathKind,
        sink: &DeviceMemory,
        bytes: u64,
        count: usize,
        stamp_each: bool,
    ) -> Result<Option<Gated>, GpuError>;

    /// Makes one gated copy of the source's first bytes to the sink of `other`, which reads its own clock on arrival.
    /// `None` if these two have no such clocks.
    ///
    /// # Errors
    /// If the device refuses.
    fn one_way(
        &mut self,
        path: PathKind,
        other: &mut dyn Accelerator,
        bytes: u64,
    ) -> Result<Option<TwoEnds>, GpuError>;

    /// Sets the first bytes of the sink to 0.
    ///
    /// # Errors
    /// If the device refuses.
    fn clear(&mut self, bytes: u64) -> Result<(), GpuError>;

    /// Whether the first bytes of the sink match the pattern of this seed.
    ///
    /// # Errors
    /// If the device refuses.
    fn holds(&mut self, bytes: u64, seed: u64) -> Result<bool, GpuError>;

    /// Number of the device's clock in the profile.
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
    /// Queues of the background load, and the transfers in flight on them.
    load_queues: HashMap<u32, Queue>,
    load: Vec<Ticket>,
    /// Reason for missing one-way times, if they are missing.
    no_one_way: Option<String>,
}

impl Peer {
    /// Copies by `path`, which is [`PathKind::CopyEngine`] or [`PathKind::Kernel`], between GPUs that reach each other.
    /// The source of rank `r` holds the pattern of `r` and `seed`.
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
        let (load_queues, load) = (HashMap::new(), Vec::new());
        let mut peer = Self { path, seed, gpus, queues, load_queues, load, no_one_way: None };
        peer.try_one_way();
        Ok(peer)
    }

    /// Returns a note on missing one-way times.
    pub(crate) fn note(&self) -> Option<String> {
        let why = self.no_one_way.as_ref()?;
        Some(format!("{} has no t_oneway: {why}", self.path))
    }

    /// Tries one transfer between the first two GPUs. If the driver refuses it, this metric is left out and everything
    /// else is still measured.
    fn try_one_way(&mut self) {
        let mut ranks: Vec<u32> = self.gpus.keys().copied().collect();
        ranks.sort_unstable();
        let [src, dst, ..] = ranks[..] else { return };
        let (from, to) = (self.gpus[&src].clone(), self.gpus[&dst].clone());
        // The first launch of a kernel may have to wait for all others, and so for a gate.
        let plain = self.copy(src, dst, 1);
        self.no_one_way = match plain.and_then(|()| one_way(&from, &to, self.path, 1)) {
            Ok(Some(_)) => None,
            Ok(None) => Some("these devices have no clocks for it".into()),
            Err(error) => Some(error.to_string()),
        };
    }

    fn gpu(&self, rank: u32) -> Result<SharedAccelerator, ProfilerError> {
        let gpu = self.gpus.get(&rank).cloned();
        gpu.ok_or_else(|| ProfilerError::Choice { what: format!("rank {rank} is no GPU") })
    }

    fn copy(&mut self, src: u32, dst: u32, bytes: u64) -> Result<(), ProfilerError> {
        let (from, to) = (self.gpu(src)?, self.gpu(dst)?);
        let (source, sink) = (lock(&from).source().clone(), lock(&to).sink().clone());
        done(&Self::begin(self.queue(src)?, &source, &sink, bytes)?)
    }

    fn begin(
        queue: &mut Queue,
        from: &DeviceMemory,
        to: &DeviceMemory,
        bytes: u64,
    ) -> Result<Ticket, ProfilerError> {
        let outside = |error| ProfilerError::engine("copying between GPUs")(&error);
        queue.push(CopyPlace::Device(to, 0), CopyPlace::Device(from, 0), bytes).map_err(outside)?;
        queue.begin().map_err(ProfilerError::gpu("copying between GPUs"))
    }

    fn queue(&mut self, rank: u32) -> Result<&mut Queue, ProfilerError> {
        let queue = self.queues.get_mut(&rank);
        queue.ok_or_else(|| ProfilerError::Choice { what: format!("rank {rank} is no GPU") })
    }
}

impl Carrier for Peer {
    fn warm(&mut self, cargo: Cargo) -> Result<(), ProfilerError> {
        let Cargo { src, dst, bytes } = cargo;
        self.copy(src, dst, bytes)?;
        let (from, to) = (self.gpu(src)?, self.gpu(dst)?);
        let sink = lock(&to).sink().clone();
        let gated = lock(&from).gated(self.path, &sink, bytes, 1, false);
        gated.map_err(ProfilerError::gpu("a gated copy"))?;
        if self.no_one_way.is_none() {
            one_way(&from, &to, self.path, bytes)?;
        }
        Ok(())
    }

    fn measure(&mut self, cargo: Cargo, verify: bool) -> Result<Measured, ProfilerError> {
        let Cargo { src, dst, bytes } = cargo;
        let (from, to) = (self.gpu(src)?, self.gpu(dst)?);
        let (source, sink) = (lock(&from).source().clone(), lock(&to).sink().clone());
        let (path, seed) = (self.path, pattern::seed_of(src, self.seed));
        let has_one_way = self.no_one_way.is_none();
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
        let t_gpu_ns = gated_train(&from, path, &sink, bytes)?;
        right &= is_right()?;

        let mut ends = None;
        if has_one_way {
            // The first one wakes the engine.
            one_way(&from, &to, path, bytes)?;
            clear()?;
            ends = one_way(&from, &to, path, bytes)?;
            right &= is_right()?;
        }

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

        let (clock_src, clock_dst) = (lock(&from).clock(), lock(&to).clock());
        let end = |clock: u32, stamps: Option<[i64; 2]>| End {
            clock: stamps.map(|_| clock),
            start_ns: stamps.map(|[start, _]| start),
            end_ns: stamps.map(|[_, end]| end),
            ..End::default()
        };
        Ok(Measured {
            posted_ns,
            t_gpu_ns,
            t_host_ns: Some(host_ns as f64),
            bandwidth_bytes_per_s: per_second(bytes * count, stream_ns),
            source: end(clock_src, ends.map(|ends| ends.source_ns)),
            sink: end(clock_dst, ends.map(|ends| ends.sink_ns)),
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
            // The background writes to the end of the sink, beyond the reach of measured transfers: the station makes
            // sinks larger by this much.
            let Some(offset) = sink.len().checked_sub(LOAD_BYTES) else { continue };
            let bytes = LOAD_BYTES.min(source.len());
            let count = (time.as_secs_f64() * LOAD_BYTES_PER_S / LOAD_BYTES as f64).ceil() as u64;
            for _ in 0..count.clamp(2, 4096) {
                let outside = |error| ProfilerError::engine("background load")(&error);
                let (to, from) = (CopyPlace::Device(&sink, offset), CopyPlace::Device(&source, 0));
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

/// Makes one transfer, timed by the clocks of both ends.
fn one_way(
    from: &SharedAccelerator,
    to: &SharedAccelerator,
    path: PathKind,
    bytes: u64,
) -> Result<Option<TwoEnds>, ProfilerError> {
    let timed = lock(from).one_way(path, lock(to).as_mut(), bytes);
    timed.map_err(ProfilerError::gpu("a one-way copy"))
}

/// Makes gated transfers, each isolated, and returns their median. `None` if the device has no gates.
fn gated_train(
    from: &SharedAccelerator,
    path: PathKind,
    sink: &DeviceMemory,
    bytes: u64,
) -> Result<Option<f64>, ProfilerError> {
    let count = TRAINS.iter().find(|(most, _)| bytes <= *most).map_or(1, |(_, count)| *count);
    let once = || {
        let gated = lock(from).gated(path, sink, bytes, 1, false);
        gated.map_err(ProfilerError::gpu("a gated copy"))
    };
    for _ in 0..count / UNCOUNTED {
        once()?;
    }
    let mut took_ns = Vec::with_capacity(count);
    for _ in 0..count {
        took_ns.extend(once()?.map(|gated| gated.took_ns));
    }
    Ok(median(took_ns))
}

/// Extra size of sinks, for the background load.
pub(crate) const LOAD_ROOM_BYTES: u64 = LOAD_BYTES;

pub(crate) fn lock(gpu: &SharedAccelerator) -> MutexGuard<'_, Box<dyn Accelerator>> {
    gpu.lock()
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
