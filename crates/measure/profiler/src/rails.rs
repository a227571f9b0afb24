//! The path `tcp`: engines over their rails, both ends in this process.

use std::collections::HashMap;
use std::time::Duration;

use polyrail::{
    Config, DeviceMemory, Engine, Memory, Peer, PreparedTransfer, Region, RemoteRegion, Request,
    Transfer,
};
use polyrail_profile::End;

use crate::carrier::{Cargo, Carrier, Measured, per_second};
use crate::copy::verdict;
use crate::drive::{self, Driver};
use crate::error::ProfilerError;
use crate::pattern::{self, seed_of};
use crate::peer::{SharedAccelerator, lock};
use crate::reference_ns;

/// Bytes of a stream: enough for some milliseconds, so that its start and its end hardly matter.
const STREAM_BYTES: u64 = 128 << 20;
/// Maximum number of transfers of a stream: more than are outstanding at once.
const STREAM_MOST: u64 = 1024;
const STREAM_LEAST: u64 = 3;
/// Messages up to this size also make round trips.
pub(crate) const PING_PONG_MAX_BYTES: u64 = 1 << 20;
/// Round trips of one sample.
pub(crate) const TRIPS: u32 = 4;
const PATIENCE: Duration = Duration::from_secs(60);
/// Maximum rate of background load over tcp, in bytes per second.
const LOAD_BYTES_PER_S: f64 = 20e9;
const LOAD_BYTES: u64 = 16 << 20;

/// The memory of an endpoint, for transfers over rails.
pub(crate) enum EndMemory {
    /// Source and sink in host memory.
    Host(Memory, Memory),
    Gpu(SharedAccelerator),
}

/// An engine for each endpoint, every one a peer of all others.
pub(crate) struct Rails {
    ends: Vec<RailEnd>,
    seed: u64,
    /// Peers of `(from, to)`.
    peers: HashMap<(u32, u32), Peer>,
    remotes: HashMap<u32, RemoteRegion>,
    load: Vec<Transfer>,
}

struct RailEnd {
    engine: Engine,
    memory: EndMemory,
    source: Region,
    sink: Region,
}

impl Rails {
    pub(crate) fn new(
        config: &Config,
        memories: Vec<EndMemory>,
        seed: u64,
    ) -> Result<Self, ProfilerError> {
        let mut ends = Vec::with_capacity(memories.len());
        for (rank, memory) in memories.into_iter().enumerate() {
            let engine = Engine::builder().config(config.clone()).name(&format!("rank{rank}"));
            let engine =
                engine.build().map_err(|error| ProfilerError::NoEngine(Box::new(error)))?;
            let (source, sink) = match &memory {
                EndMemory::Host(source, sink) => {
                    (engine.register(source.clone()), engine.register(sink.clone()))
                }
                EndMemory::Gpu(gpu) => {
                    let gpu = lock(gpu);
                    let register = |memory: &DeviceMemory| engine.register(memory.clone());
                    (register(gpu.source()), register(gpu.sink()))
                }
            };
            let refused = |error| ProfilerError::engine("registering memory")(&error);
            let (source, sink) = (source.map_err(refused)?, sink.map_err(refused)?);
            ends.push(RailEnd { engine, memory, source, sink });
        }
        let (mut peers, mut remotes) = (HashMap::new(), HashMap::new());
        for (from, one) in ends.iter().enumerate() {
            let described = one.engine.import(&one.sink.describe());
            let refused = |error| ProfilerError::engine("describing memory")(&error);
            remotes.insert(from as u32, described.map_err(refused)?);
            for (to, other) in ends.iter().enumerate().filter(|(to, _)| *to != from) {
                let peer = one.engine.add_peer(&other.engine.metadata());
                let peer = peer.map_err(|error| ProfilerError::engine("adding a peer")(&error))?;
                peers.insert((from as u32, to as u32), peer);
            }
        }
        Ok(Self { ends, seed, peers, remotes, load: Vec::new() })
    }

    /// Describes the rails of the first engine, for the folder.
    pub(crate) fn describe(&self) -> Vec<String> {
        let rails = self.ends.first().map(|end| end.engine.rails()).unwrap_or_default();
        rails.into_iter().map(|rail| format!("{} {}", rail.interface, rail.address.ip())).collect()
    }

    fn end(&self, rank: u32) -> Result<&RailEnd, ProfilerError> {
        let unknown = || ProfilerError::Choice { what: format!("rank {rank} has no rails") };
        self.ends.get(rank as usize).ok_or_else(unknown)
    }

    /// Prepares a write of the source's first bytes to the start of the sink.
    fn prepare(
        &self,
        src: u32,
        dst: u32,
        bytes: u64,
        notifies: bool,
    ) -> Result<PreparedTransfer, ProfilerError> {
        self.prepare_at(src, dst, 0, bytes, notifies)
    }

    /// Prepares a write to the same offset as in the source.
    fn prepare_at(
        &self,
        src: u32,
        dst: u32,
        offset: u64,
        bytes: u64,
        notifies: bool,
    ) -> Result<PreparedTransfer, ProfilerError> {
        let end = self.end(src)?;
        let unknown = || ProfilerError::Choice { what: format!("no rails from {src} to {dst}") };
        let peer = self.peers.get(&(src, dst)).ok_or_else(unknown)?;
        let remote = self.remotes.get(&dst).ok_or_else(unknown)?;
        let outside = |error| ProfilerError::engine("a slice of memory")(&error);
        let (local, remote) = (end.source.slice(offset, bytes), remote.slice(offset, bytes));
        let (local, remote) = (local.map_err(outside)?, remote.map_err(outside)?);
        let mut request = Request::write(peer).segment(local, remote).timeout(PATIENCE);
        if notifies {
            request = request.notification(vec![1]);
        }
        let prepared = end.engine.prepare(request);
        prepared.map_err(|error| ProfilerError::engine("preparing a transfer")(&error))
    }

    fn clear(&self, rank: u32, bytes: u64) -> Result<(), ProfilerError> {
        match &self.end(rank)?.memory {
            EndMemory::Host(_, sink) => pattern::clear(sink, bytes),
            EndMemory::Gpu(gpu) => {
                lock(gpu).clear(bytes).map_err(ProfilerError::gpu("clearing the sink"))?;
            }
        }
        Ok(())
    }

    /// Whether the sink of `rank` holds what `from` sends.
    fn holds(&self, rank: u32, from: u32, bytes: u64) -> Result<bool, ProfilerError> {
        let seed = seed_of(from, self.seed);
        match &self.end(rank)?.memory {
            EndMemory::Host(_, sink) => Ok(pattern::holds(sink, bytes, seed)),
            EndMemory::Gpu(gpu) => {
                lock(gpu).holds(bytes, seed).map_err(ProfilerError::gpu("verifying"))
            }
        }
    }

    /// Makes untimed writes next to the compared range. Flows that rested start slowly and their threads sleep; in a
    /// bench no flow rests.
    fn wake(&self, src: u32, dst: u32, bytes: u64, notifies: bool) -> Result<(), ProfilerError> {
        let count = waking_writes(bytes);
        if count == 0 {
            return Ok(());
        }
        let prepared = self.prepare_at(src, dst, bytes, bytes, notifies)?;
        let sink = &self.end(dst)?.engine;
        for _ in 0..count {
            let posted = post(&prepared)?;
            if notifies {
                sink.wait_notification(PATIENCE).ok_or_else(|| lost("a write that wakes"))?;
            }
            done(&posted)?;
        }
        Ok(())
    }

    /// Makes a write whose notification the sink waits for. Returns three times: posted, known to be done at the
    /// source, and notified at the sink.
    fn one_way(&self, src: u32, dst: u32, bytes: u64) -> Result<[i64; 3], ProfilerError> {
        let prepared = self.prepare(src, dst, bytes, true)?;
        let sink = &self.end(dst)?.engine;
        self.wake(src, dst, bytes, true)?;
        let posted_ns = reference_ns();
        let posted = post(&prepared)?;
        let notified = sink.wait_notification(PATIENCE);
        let notified_ns = reference_ns();
        done(&posted)?;
        let done_ns = reference_ns();
        notified.ok_or_else(|| lost("a write with notification"))?;
        Ok([posted_ns, done_ns, notified_ns])
    }

    /// Returns half the mean time of several round trips.
    fn ping_pong(&self, src: u32, dst: u32, bytes: u64) -> Result<f64, ProfilerError> {
        let there = self.prepare(src, dst, bytes, true)?;
        let back = self.prepare(dst, src, bytes, true)?;
        let (one, other) = (&self.end(src)?.engine, &self.end(dst)?.engine);
        let lost = || lost("a ping-pong");
        let mut posted = Vec::with_capacity(2 * TRIPS as usize);
        let begin_ns = reference_ns();
        for _ in 0..TRIPS {
            posted.push(post(&there)?);
            other.wait_notification(PATIENCE).ok_or_else(lost)?;
            posted.push(post(&back)?);
            one.wait_notification(PATIENCE).ok_or_else(lost)?;
        }
        let half_ns = (reference_ns() - begin_ns) as f64 / f64::from(2 * TRIPS);
        posted.iter().try_for_each(done)?;
        Ok(half_ns)
    }

    /// Returns the bytes per second of a stream, driven as in `polyrail bench`.
    fn stream(&self, src: u32, dst: u32, bytes: u64) -> Result<Option<f64>, ProfilerError> {
        let Stream { depth, transfers, slots } = Stream::of(bytes);
        let prepared = (0..slots).map(|slot| self.prepare_at(src, dst, slot * bytes, bytes, false));
        let prepared: Vec<PreparedTransfer> = prepared.collect::<Result<_, _>>()?;
        let driver = Driver::new(&self.end(src)?.engine, prepared, depth);
        let failed = |error| ProfilerError::engine("a stream")(&error);
        let ran = driver.start(transfers).map_err(failed)?.finish(|_| false).map_err(failed)?;
        Ok(per_second(bytes * transfers, (ran.seconds * 1e9) as i64))
    }
}

/// The transfers of a stream of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stream {
    pub(crate) depth: u64,
    pub(crate) transfers: u64,
    /// Number of places that transfers use round-robin.
    pub(crate) slots: u64,
}

impl Stream {
    pub(crate) fn of(bytes: u64) -> Self {
        let depth = drive::default_depth(bytes, u64::MAX);
        let least = (2 * depth).max(STREAM_LEAST);
        let transfers = (STREAM_BYTES / bytes.max(1)).clamp(least, STREAM_MOST);
        Self { depth, transfers, slots: drive::slots(bytes, depth, u64::MAX).min(transfers) }
    }
}

/// Number of writes before one that is timed separately. A few short waits make the engine poll again. Large writes
/// only need open flows, and the largest not even these.
pub(crate) fn waking_writes(bytes: u64) -> u32 {
    const SMALL_MAX: u64 = 1 << 20;
    const MAX: u64 = 64 << 20;
    match bytes {
        _ if bytes <= SMALL_MAX => 16,
        _ if bytes <= MAX => 2,
        _ => 0,
    }
}

/// Memory at each end for measuring a size over rails, in bytes.
pub(crate) fn span_bytes(size: u64) -> u64 {
    Stream::of(size).slots * size
}

impl Carrier for Rails {
    fn warm(&mut self, cargo: Cargo) -> Result<(), ProfilerError> {
        let Cargo { src, dst, bytes } = cargo;
        done(&post(&self.prepare(src, dst, bytes, false)?)?)
    }

    fn measure(&mut self, cargo: Cargo, verify: bool) -> Result<Measured, ProfilerError> {
        let Cargo { src, dst, bytes } = cargo;
        let prepared = self.prepare(src, dst, bytes, false)?;
        let clear = |rank: u32| if verify { self.clear(rank, bytes) } else { Ok(()) };
        clear(dst)?;
        self.wake(src, dst, bytes, false)?;
        let posted_ns = reference_ns();
        done(&post(&prepared)?)?;
        let end_ns = reference_ns();
        let mut right = !verify || self.holds(dst, src, bytes)?;

        clear(dst)?;
        let [sent_ns, known_ns, notified_ns] = self.one_way(src, dst, bytes)?;
        right &= !verify || self.holds(dst, src, bytes)?;

        let mut t_rtt2_ns = None;
        if bytes <= PING_PONG_MAX_BYTES {
            clear(dst)?;
            clear(src)?;
            t_rtt2_ns = Some(self.ping_pong(src, dst, bytes)?);
            right &= !verify || self.holds(dst, src, bytes)? && self.holds(src, dst, bytes)?;
        }

        let span = span_bytes(bytes);
        if verify {
            self.clear(dst, span)?;
        }
        let bandwidth_bytes_per_s = self.stream(src, dst, bytes)?;
        right &= !verify || self.holds(dst, src, span)?;
        // The sink is always ready.
        let end = |end_ns: i64| End {
            clock: Some(0),
            start_ns: Some(sent_ns),
            end_ns: Some(end_ns),
            ..End::default()
        };
        Ok(Measured {
            posted_ns,
            t_oneway_ns: Some((notified_ns - sent_ns) as f64),
            t_rtt2_ns,
            t_host_ns: Some((end_ns - posted_ns) as f64),
            bandwidth_bytes_per_s,
            source: end(known_ns),
            sink: end(notified_ns),
            verify: verdict(verify, right),
            ..Measured::default()
        })
    }

    fn begin_load(&mut self, pairs: &[(u32, u32)], time: Duration) -> Result<(), ProfilerError> {
        let count = (time.as_secs_f64() * LOAD_BYTES_PER_S / LOAD_BYTES as f64).ceil() as u64;
        for &(src, dst) in pairs {
            let bytes = LOAD_BYTES.min(self.end(src)?.source.len());
            let unknown = || ProfilerError::Choice { what: format!("no rails {src} to {dst}") };
            let peer = self.peers.get(&(src, dst)).ok_or_else(unknown)?;
            let remote = self.remotes.get(&dst).ok_or_else(unknown)?;
            let outside = |error| ProfilerError::engine("a slice of memory")(&error);
            // The background load uses the end of the sink, as for copies between GPUs.
            let Some(offset) = remote.len().checked_sub(bytes) else { continue };
            let local = self.end(src)?.source.slice(0, bytes).map_err(outside)?;
            let remote = remote.slice(offset, bytes).map_err(outside)?;
            let request = Request::write(peer).segment(local, remote).timeout(PATIENCE);
            let prepared = self.end(src)?.engine.prepare(request);
            let refused = |error| ProfilerError::engine("preparing background load")(&error);
            let prepared = prepared.map_err(refused)?;
            for _ in 0..count.clamp(2, 256) {
                self.load.push(post(&prepared)?);
            }
        }
        Ok(())
    }

    fn end_load(&mut self) -> Result<(), ProfilerError> {
        // Cancel transfers that have not begun.
        self.load.iter().for_each(Transfer::cancel);
        for transfer in self.load.drain(..) {
            // A cancelled transfer fails, as intended.
            let _ = transfer.wait(PATIENCE);
        }
        Ok(())
    }
}

fn lost(what: &'static str) -> ProfilerError {
    ProfilerError::Engine { what, reason: format!("no message after {} s", PATIENCE.as_secs()) }
}

fn post(prepared: &PreparedTransfer) -> Result<Transfer, ProfilerError> {
    prepared.post().map_err(|error| ProfilerError::engine("posting a transfer")(&error))
}

fn done(transfer: &Transfer) -> Result<(), ProfilerError> {
    // Ends within the deadline of the request.
    let ended = transfer.join().map(drop);
    ended.map_err(|error| ProfilerError::engine("a transfer")(&error))
}

#[cfg(test)]
mod tests {
    use polyrail_profile::Verify;

    use super::*;

    fn rails(bytes: u64) -> Rails {
        let config = Config::builder().set("rails", "127.0.0.1").unwrap().build().unwrap();
        let end = |rank: u32| {
            let memory = || Memory::anonymous(bytes).unwrap();
            let (source, sink) = (memory(), memory());
            pattern::fill(&source, bytes, seed_of(rank, 1));
            EndMemory::Host(source, sink)
        };
        Rails::new(&config, vec![end(0), end(1)], 1).unwrap()
    }

    #[test]
    fn a_stream_has_the_depth_of_the_bench_and_no_place_twice_at_once() {
        for power in 0..=30 {
            let Stream { depth, transfers, slots } = Stream::of(1 << power);
            assert_eq!(depth, drive::default_depth(1 << power, u64::MAX));
            assert!(slots >= depth && transfers >= slots && transfers >= 2 * depth, "{power}");
            assert!(slots << power <= 256 << 20 || slots == 1, "{power}");
        }
        assert_eq!(span_bytes(8), 8 << 10);
        assert_eq!(span_bytes(64 << 10), 64 << 20);
        assert_eq!(span_bytes(16 << 20), 256 << 20);
        assert_eq!(span_bytes(1 << 30), 1 << 30);
    }

    #[test]
    fn a_write_that_wakes_has_a_place_of_its_own() {
        for power in 0..=30 {
            let bytes = 1 << power;
            assert!(waking_writes(bytes) == 0 || span_bytes(bytes) >= 2 * bytes, "{bytes}");
        }
    }

    #[test]
    fn every_byte_of_a_stream_is_compared_and_not_of_its_first_transfer_only() {
        let size = 4 << 10;
        let mut rails = rails(span_bytes(size));
        let cargo = Cargo { src: 0, dst: 1, bytes: size };
        let measured = rails.measure(cargo, true).unwrap();
        assert_eq!(measured.verify, Verify::Ok);
        assert!(measured.bandwidth_bytes_per_s.unwrap() > 0.0);
        // Break the pattern of the source at a place that only the stream sends.
        let EndMemory::Host(source, _) = &rails.ends[0].memory else { panic!("of the host") };
        source.write_at(span_bytes(size) - 1, &[0]).unwrap();
        assert_eq!(rails.measure(cargo, true).unwrap().verify, Verify::Failed);
    }

    #[test]
    fn a_driver_stops_though_its_transfers_go_on() {
        let rails = rails(span_bytes(64 << 10));
        let prepared = vec![rails.prepare_at(0, 1, 0, 64 << 10, false).unwrap()];
        let driver = Driver::new(&rails.ends[0].engine, prepared, 1);
        let asked = std::cell::Cell::new(0);
        let ran = driver.start(1000).unwrap().finish(|is_idle| {
            asked.set(asked.get() + 1);
            !is_idle && asked.get() > 10
        });
        assert!(matches!(ran, Err(drive::DriveError::Interrupted)), "{ran:?}");
    }
}
