//! The path `nccl`: NCCL's sends and receives between GPUs of this process.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use polyrail_gpu::cuda::measure::{Crossing, Meter, RawStream};
use polyrail_gpu::{DeviceMemory, GpuError};
use polyrail_nccl_ref::{Nccl, RefError, World, WorldEnd};
use polyrail_profile::End;

use crate::carrier::{Cargo, Carrier, Measured, per_second, stream_of};
use crate::copy::verdict;
use crate::cuda::{SharedMeter, lock as lock_meter};
use crate::error::ProfilerError;
use crate::pattern::seed_of;
use crate::peer::{SharedAccelerator, TwoEnds, lock};
use crate::reference_ns;

/// Bytes of a stream of small transfers.
const STREAM_BYTES: u64 = 512 << 20;
/// Messages up to this size also make round trips, this many per sample.
const PING_PONG_MAX_BYTES: u64 = 1 << 20;
const TRIPS: u32 = 8;
const PATIENCE: Duration = Duration::from_secs(30);
/// Time limit for all ranks to join.
const MEETING: Duration = Duration::from_secs(90);

/// Sends between ranks; tests replace NCCL here.
pub(crate) trait Messenger: Send {
    /// Sends `count` times, and returns when all bytes are in place.
    fn send(&mut self, src: u32, dst: u32, bytes: u64, count: u64) -> Result<(), ProfilerError>;

    /// Sends once, behind a gate.
    fn one_way(&mut self, src: u32, dst: u32, bytes: u64) -> Result<TwoEnds, ProfilerError>;

    /// Makes `count` round trips behind a gate; returns their duration by the source's clock, in ns.
    fn trips(&mut self, src: u32, dst: u32, bytes: u64, count: u32) -> Result<f64, ProfilerError>;

    /// Returns the number of a rank's clock in the profile.
    fn clock(&self, rank: u32) -> Option<u32>;
}

pub(crate) struct NcclPath {
    messenger: Box<dyn Messenger>,
    gpus: HashMap<u32, SharedAccelerator>,
    seed: u64,
}

impl NcclPath {
    pub(crate) fn new(
        messenger: Box<dyn Messenger>,
        gpus: HashMap<u32, SharedAccelerator>,
        seed: u64,
    ) -> Self {
        Self { messenger, gpus, seed }
    }

    fn gpu(&self, rank: u32) -> Result<&SharedAccelerator, ProfilerError> {
        let unknown = || ProfilerError::Choice { what: format!("rank {rank} is no GPU") };
        self.gpus.get(&rank).ok_or_else(unknown)
    }

    fn clear(&self, rank: u32, bytes: u64) -> Result<(), ProfilerError> {
        lock(self.gpu(rank)?).clear(bytes).map_err(ProfilerError::gpu("clearing the sink"))
    }

    fn holds(&self, rank: u32, from: u32, bytes: u64) -> Result<bool, ProfilerError> {
        let seed = seed_of(from, self.seed);
        lock(self.gpu(rank)?).holds(bytes, seed).map_err(ProfilerError::gpu("verifying"))
    }
}

impl Carrier for NcclPath {
    fn warm(&mut self, cargo: Cargo) -> Result<(), ProfilerError> {
        let Cargo { src, dst, bytes } = cargo;
        self.messenger.send(src, dst, bytes, 1)?;
        if bytes <= PING_PONG_MAX_BYTES {
            // NCCL connects a pair when it is first used.
            self.messenger.send(dst, src, bytes, 1)?;
        }
        Ok(())
    }

    fn measure(&mut self, cargo: Cargo, verify: bool) -> Result<Measured, ProfilerError> {
        let Cargo { src, dst, bytes } = cargo;
        let mut right = true;
        if verify {
            self.clear(dst, bytes)?;
        }
        let posted_ns = reference_ns();
        self.messenger.send(src, dst, bytes, 1)?;
        let host_ns = reference_ns() - posted_ns;
        if verify {
            right &= self.holds(dst, src, bytes)?;
            self.clear(dst, bytes)?;
        }
        let ends = self.messenger.one_way(src, dst, bytes)?;
        if verify {
            right &= self.holds(dst, src, bytes)?;
        }

        let mut t_rtt2_ns = None;
        if bytes <= PING_PONG_MAX_BYTES {
            if verify {
                self.clear(dst, bytes)?;
                self.clear(src, bytes)?;
            }
            // Connect a pair that has never sent before opening a gate; otherwise NCCL would connect behind the gate.
            self.messenger.send(dst, src, bytes, 1)?;
            let took_ns = self.messenger.trips(src, dst, bytes, TRIPS)?;
            t_rtt2_ns = Some(took_ns / f64::from(2 * TRIPS));
            if verify {
                right &= self.holds(dst, src, bytes)? && self.holds(src, dst, bytes)?;
            }
        }

        if verify {
            self.clear(dst, bytes)?;
        }
        let (count, _) = stream_of(bytes, STREAM_BYTES);
        let begin_ns = reference_ns();
        self.messenger.send(src, dst, bytes, count)?;
        let stream_ns = reference_ns() - begin_ns;
        if verify {
            right &= self.holds(dst, src, bytes)?;
        }
        let end = |rank: u32, [start_ns, end_ns]: [i64; 2]| End {
            clock: self.messenger.clock(rank),
            start_ns: Some(start_ns),
            end_ns: Some(end_ns),
            ..End::default()
        };
        Ok(Measured {
            posted_ns,
            t_rtt2_ns,
            t_host_ns: Some(host_ns as f64),
            bandwidth_bytes_per_s: per_second(bytes * count, stream_ns),
            source: end(src, ends.source_ns),
            sink: end(dst, ends.sink_ns),
            verify: verdict(verify, right),
            ..Measured::default()
        })
    }

    fn begin_load(&mut self, _: &[(u32, u32)], _: Duration) -> Result<(), ProfilerError> {
        Err(ProfilerError::Choice { what: "the path nccl has no background load".into() })
    }

    fn end_load(&mut self) -> Result<(), ProfilerError> {
        Ok(())
    }
}

/// A rank of NCCL.
pub(crate) struct Member {
    pub(crate) rank: u32,
    pub(crate) clock: u32,
    pub(crate) meter: SharedMeter,
    pub(crate) source: DeviceMemory,
    pub(crate) sink: DeviceMemory,
}

/// NCCL itself, on the streams of meters.
pub(crate) struct CudaMessenger {
    world: World,
    /// Indexed by NCCL rank.
    members: Vec<Member>,
}

impl CudaMessenger {
    /// Joins all members in one communicator.
    pub(crate) fn open(nccl: &Arc<Nccl>, members: Vec<Member>) -> Result<Self, ProfilerError> {
        let end = |member: &Member| WorldEnd {
            device: lock_meter(&member.meter).device().clone(),
            source: member.source.clone(),
            sink: member.sink.clone(),
        };
        let ends: Vec<WorldEnd> = members.iter().map(end).collect();
        let (nccl, (met, meeting)) = (nccl.clone(), mpsc::channel());
        // NCCL waits without a limit for a rank that does not join.
        let meet = move || {
            let _ = met.send(World::open(&nccl, ends));
        };
        std::thread::Builder::new().spawn(meet).map_err(|error| ProfilerError::thread(&error))?;
        match meeting.recv_timeout(MEETING) {
            Ok(world) => Ok(Self { world: world?, members }),
            Err(_) => Err(ProfilerError::Machine {
                what: format!("NCCL's ranks did not meet within {} s", MEETING.as_secs()),
                help: "NCCL_DEBUG=INFO tells more; --paths leaves it out".into(),
            }),
        }
    }

    fn place(&self, rank: u32) -> Result<usize, ProfilerError> {
        let place = self.members.iter().position(|member| member.rank == rank);
        place.ok_or_else(|| ProfilerError::Choice { what: format!("rank {rank} is not NCCL's") })
    }

    /// Enqueues the sends of `queue` behind a gate of the source's stream.
    fn behind_gate(
        &mut self,
        src: u32,
        dst: u32,
        queue: impl FnOnce(&mut World, [usize; 2], [RawStream<'_>; 2]) -> Result<(), RefError>,
    ) -> Result<Crossing, ProfilerError> {
        let ranks = [self.place(src)?, self.place(dst)?];
        let meters = ranks.map(|rank| self.members[rank].meter.clone());
        let (mut source, mut sink) = (lock_meter(&meters[0]), lock_meter(&meters[1]));
        let world = Mutex::new(&mut self.world);
        let queue = |streams: [RawStream<'_>; 2]| {
            queue(&mut hold(&world), ranks, streams).map_err(Refused::from)
        };
        let crossing = source.crossing(&mut sink, PATIENCE, queue, || hold(&world).give_up());
        crossing.map_err(ProfilerError::from)
    }
}

impl Messenger for CudaMessenger {
    fn send(&mut self, src: u32, dst: u32, bytes: u64, count: u64) -> Result<(), ProfilerError> {
        let ranks = (self.place(src)?, self.place(dst)?);
        let (source, sink) = (&self.members[ranks.0].meter, &self.members[ranks.1].meter);
        let (source, sink) = (lock_meter(source), lock_meter(sink));
        for _ in 0..count {
            self.world.send(ranks, bytes, [source.stream(), sink.stream()])?;
        }
        let is_over = |meter: &MutexGuard<'_, Meter>| meter.is_idle_within(PATIENCE);
        let outside = || ProfilerError::gpu("a transfer by NCCL");
        if is_over(&sink).map_err(outside())? && is_over(&source).map_err(outside())? {
            return Ok(());
        }
        self.world.give_up();
        let reason = format!("not done after {} s", PATIENCE.as_secs());
        Err(ProfilerError::Engine { what: "a transfer by NCCL", reason })
    }

    fn one_way(&mut self, src: u32, dst: u32, bytes: u64) -> Result<TwoEnds, ProfilerError> {
        let send = |world: &mut World, [src, dst]: [usize; 2], streams: [RawStream<'_>; 2]| {
            world.send((src, dst), bytes, streams)
        };
        let crossing = self.behind_gate(src, dst, send)?;
        Ok(TwoEnds {
            source_ns: [crossing.start_ns, crossing.end_ns],
            sink_ns: [crossing.sink_start_ns, crossing.sink_end_ns],
        })
    }

    fn trips(&mut self, src: u32, dst: u32, bytes: u64, count: u32) -> Result<f64, ProfilerError> {
        let send = |world: &mut World, [src, dst]: [usize; 2], [out, into]: [RawStream<'_>; 2]| {
            for _ in 0..count {
                world.send((src, dst), bytes, [out, into])?;
                world.send((dst, src), bytes, [into, out])?;
            }
            Ok(())
        };
        let crossing = self.behind_gate(src, dst, send)?;
        Ok((crossing.end_ns - crossing.start_ns) as f64)
    }

    fn clock(&self, rank: u32) -> Option<u32> {
        self.members.iter().find(|member| member.rank == rank).map(|member| member.clock)
    }
}

/// Reason why a gated transfer failed.
enum Refused {
    Nccl(RefError),
    Gpu(GpuError),
}

impl From<RefError> for Refused {
    fn from(error: RefError) -> Self {
        Self::Nccl(error)
    }
}

impl From<GpuError> for Refused {
    fn from(error: GpuError) -> Self {
        Self::Gpu(error)
    }
}

impl From<Refused> for ProfilerError {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Nccl(error) => error.into(),
            Refused::Gpu(error) => Self::gpu("a transfer by NCCL behind a gate")(error),
        }
    }
}

fn hold<'a, T>(mutex: &'a Mutex<T>) -> MutexGuard<'a, T> {
    mutex.lock()
}
