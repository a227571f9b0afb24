//! The path `tcp`: the engine over its rails, both ends in this process.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use polyrail::{
    Config, DeviceMemory, Engine, Memory, Peer, PreparedTransfer, Region, RemoteRegion, Request,
    Transfer,
};
use polyrail_profile::End;

use crate::carrier::{Carrier, Measured, per_second, stream_of};
use crate::copy::verdict;
use crate::error::ProfilerError;
use crate::pattern::{self, seed_of};
use crate::peer::{SharedAccelerator, lock};
use crate::reference_ns;

/// Bytes of a stream, when transfers are small.
pub(crate) const STREAM_BYTES: u64 = 64 << 20;
/// A stream takes up no more transfers after so long.
const STREAM_TIME_NS: i64 = 500_000_000;
/// Messages up to this size are also sent to and fro.
pub(crate) const PING_PONG_MAX_BYTES: u64 = 1 << 20;
/// Round trips of one sample.
pub(crate) const TRIPS: u32 = 4;
const PATIENCE: Duration = Duration::from_secs(60);
/// A load of tcp moves at most about this fast.
const LOAD_BYTES_PER_S: f64 = 20e9;
const LOAD_BYTES: u64 = 16 << 20;

/// The memory of an endpoint, as a carrier of rails needs it.
pub(crate) enum EndMemory {
    /// Of the machine: source and sink.
    Host(Memory, Memory),
    /// Of a GPU.
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
            let engine = engine.build().map_err(|error| ProfilerError::Machine {
                what: format!("no engine: {error}"),
                help: "its settings are given by --set; `polyrail topo` shows the interfaces for rails"
                    .into(),
            })?;
            let (source, sink) = match &memory {
                EndMemory::Host(source, sink) => {
                    (engine.register(source.clone()), engine.register(sink.clone()))
                }
                EndMemory::Gpu(gpu) => {
                    let gpu = lock(gpu);
                    let register = |memory: &DeviceMemory| {
                        engine.register_device(memory.clone(), polyrail::Access::ALL)
                    };
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

    /// The rails of the first engine, for the folder.
    pub(crate) fn describe(&self) -> Vec<String> {
        let rails = self.ends.first().map(|end| end.engine.rails()).unwrap_or_default();
        rails.into_iter().map(|rail| format!("{} {}", rail.interface, rail.address.ip())).collect()
    }

    fn end(&self, rank: u32) -> Result<&RailEnd, ProfilerError> {
        let unknown = || ProfilerError::Choice { what: format!("rank {rank} has no rails") };
        self.ends.get(rank as usize).ok_or_else(unknown)
    }

    /// A write of the source's first bytes to the start of the sink.
    fn prepare(
        &self,
        src: u32,
        dst: u32,
        bytes: u64,
        notifies: bool,
    ) -> Result<PreparedTransfer, ProfilerError> {
        let end = self.end(src)?;
        let unknown = || ProfilerError::Choice { what: format!("no rails from {src} to {dst}") };
        let peer = self.peers.get(&(src, dst)).ok_or_else(unknown)?;
        let remote = self.remotes.get(&dst).ok_or_else(unknown)?;
        let outside = |error| ProfilerError::engine("a slice of memory")(&error);
        let (local, remote) = (end.source.slice(0, bytes), remote.slice(0, bytes));
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

    /// A write whose notification the sink waits for: when it was posted, when the source knew that it
    /// was done, and when the sink had the notification.
    fn one_way(&self, src: u32, dst: u32, bytes: u64) -> Result<[i64; 3], ProfilerError> {
        let prepared = self.prepare(src, dst, bytes, true)?;
        let sink = &self.end(dst)?.engine;
        let posted_ns = reference_ns();
        let posted = post(&prepared)?;
        let notified = sink.wait_notification(PATIENCE);
        let notified_ns = reference_ns();
        done(&posted)?;
        let done_ns = reference_ns();
        notified.ok_or_else(|| lost("a write with notification"))?;
        Ok([posted_ns, done_ns, notified_ns])
    }

    /// Half the mean time of some messages there and back.
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

    /// Bytes per second of a stream.
    fn stream(
        &self,
        prepared: &PreparedTransfer,
        bytes: u64,
    ) -> Result<Option<f64>, ProfilerError> {
        let (count, window) = stream_of(bytes, STREAM_BYTES);
        let mut under_way = VecDeque::with_capacity(window);
        let (begin_ns, mut posted) = (reference_ns(), 0);
        while posted < count && (posted < 3 || reference_ns() - begin_ns < STREAM_TIME_NS) {
            if under_way.len() == window
                && let Some(oldest) = under_way.pop_front()
            {
                done(&oldest)?;
            }
            under_way.push_back(post(prepared)?);
            posted += 1;
        }
        under_way.iter().try_for_each(done)?;
        Ok(per_second(bytes * posted, reference_ns() - begin_ns))
    }
}

impl Carrier for Rails {
    fn warm(&mut self, src: u32, dst: u32, bytes: u64) -> Result<(), ProfilerError> {
        done(&post(&self.prepare(src, dst, bytes, false)?)?)
    }

    fn measure(
        &mut self,
        src: u32,
        dst: u32,
        bytes: u64,
        verify: bool,
    ) -> Result<Measured, ProfilerError> {
        let prepared = self.prepare(src, dst, bytes, false)?;
        let clear = |rank: u32| if verify { self.clear(rank, bytes) } else { Ok(()) };
        clear(dst)?;
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

        clear(dst)?;
        let bandwidth_bytes_per_s = self.stream(&prepared, bytes)?;
        right &= !verify || self.holds(dst, src, bytes)?;
        // The sink is ready all the time.
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
            // The end of the sink is the background's, see the copies between GPUs.
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
        // What has not begun yet need not.
        self.load.iter().for_each(Transfer::cancel);
        for transfer in self.load.drain(..) {
            // A cancelled one has failed, as it should.
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
    let ended = transfer.wait(PATIENCE).map(drop);
    ended.map_err(|error| ProfilerError::engine("a transfer")(&error))
}
