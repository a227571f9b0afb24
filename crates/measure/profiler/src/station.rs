//! The station of a profile: endpoints, their memory, paths and clocks.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use parking_lot::Mutex;
use polyrail::Config;
use polyrail_gpu::cuda::CudaDevice;
use polyrail_gpu::{Device, Identity};
use polyrail_nccl_ref::Nccl;
use polyrail_profile::{Endpoint, EndpointKind, Metadata, PathKind};
use polyrail_report::median;
use polyrail_sys::Memory;
use serde_json::{Value, json};

use crate::carrier::{Cargo, Carrier};
use crate::clocks::{ClockSource, PeerLatency, latencies};
use crate::copy::Copier;
use crate::cuda::CudaGpu;
use crate::error::ProfilerError;
use crate::nccl::{CudaMessenger, Member, NcclPath};
use crate::pattern;
use crate::peer::{Accelerator, LOAD_ROOM_BYTES, Peer, SharedAccelerator, lock};
use crate::rails::{EndMemory, Rails};
use crate::reference_ns;
use crate::thermal::uuid_text;

/// An endpoint before it is opened.
#[derive(Clone, Debug)]
pub enum Spot {
    Gpu(Arc<CudaDevice>),
    /// Memory of this host.
    Host,
}

/// Paths that can warm GPUs; the first one in use does.
pub const WARMING: [PathKind; 3] = [PathKind::CopyEngine, PathKind::Kernel, PathKind::Nccl];

/// Options of a station.
#[derive(Clone, Debug)]
pub struct StationOptions {
    /// Endpoints in the order of their ranks.
    pub spots: Vec<Spot>,
    pub hostname: String,
    /// Engine settings, for the path tcp.
    pub config: Config,
    /// Largest transfer, in bytes.
    pub max_bytes: u64,
    /// Seed of the pattern.
    pub seed: u64,
    /// Whether to prepare for background load.
    pub has_load: bool,
    /// Library of the path nccl.
    pub nccl: Option<Arc<Nccl>>,
}

/// Resources of a profile. One thread uses them.
pub struct Station {
    pub(crate) endpoints: Vec<Endpoint>,
    pub(crate) carriers: HashMap<PathKind, Box<dyn Carrier>>,
    pub(crate) clocks: Vec<ClockSource>,
    /// Whether all GPUs reach each other.
    pub(crate) peers: bool,
    gpus: HashMap<u32, SharedAccelerator>,
    identities: Vec<(u32, Identity)>,
    rails: Vec<String>,
    notes: Vec<String>,
}

impl StationOptions {
    /// Returns the endpoints, as a plan lists them. Creates no context on any device.
    pub fn endpoints(&self) -> Vec<Endpoint> {
        let mut hosts = 0;
        let endpoint = |(rank, spot): (usize, &Spot)| {
            let (kind, name, device) = match spot {
                Spot::Gpu(device) => {
                    let identity = device.identity();
                    let name = format!("gpu{}", identity.index);
                    (EndpointKind::Gpu, name, identity.pci.to_string())
                }
                Spot::Host => {
                    hosts += 1;
                    let name = format!("memory{}", hosts - 1);
                    (EndpointKind::Host, name.clone(), name)
                }
            };
            Endpoint { rank: rank as u32, kind, name, host: self.hostname.clone(), device }
        };
        self.spots.iter().enumerate().map(endpoint).collect()
    }

    /// Returns the paths that these endpoints have.
    pub fn paths(&self) -> Vec<PathKind> {
        let all = [
            PathKind::CopyEngine,
            PathKind::Kernel,
            PathKind::Nccl,
            PathKind::Tcp,
            PathKind::HostMemory,
        ];
        all.into_iter().filter(|path| !self.pairs(*path).is_empty()).collect()
    }

    /// Returns the directed pairs that a path has, by kind of endpoint.
    pub fn pairs(&self, path: PathKind) -> Vec<(u32, u32)> {
        let has = |spot: &Spot| match path {
            PathKind::CopyEngine | PathKind::Kernel => matches!(spot, Spot::Gpu(_)),
            PathKind::HostMemory => matches!(spot, Spot::Host),
            PathKind::Tcp => true,
            PathKind::Nccl => self.nccl.is_some() && matches!(spot, Spot::Gpu(_)),
            PathKind::SharedMemory | PathKind::HostStaged => false,
        };
        let ranks = (0_u32..).zip(&self.spots).filter(|(_, spot)| has(spot)).map(|(rank, _)| rank);
        let ranks: Vec<u32> = ranks.collect();
        let all = ranks.iter().flat_map(|src| ranks.iter().map(|dst| (*src, *dst)));
        all.filter(|(src, dst)| src != dst).collect()
    }

    /// Returns the bytes of host memory that a station takes.
    pub fn host_bytes(&self) -> u64 {
        let hosts = self.spots.iter().filter(|spot| matches!(spot, Spot::Host)).count() as u64;
        hosts * (self.source_bytes() + self.sink_bytes() + self.source_bytes())
    }

    pub fn devices(&self) -> Vec<(u32, Identity)> {
        let gpu = |(rank, spot): (u32, &Spot)| match spot {
            Spot::Gpu(device) => Some((rank, device.identity().clone())),
            Spot::Host => None,
        };
        (0_u32..).zip(&self.spots).filter_map(gpu).collect()
    }

    fn source_bytes(&self) -> u64 {
        self.max_bytes.next_multiple_of(4096)
    }

    fn sink_bytes(&self) -> u64 {
        self.source_bytes() + if self.has_load { LOAD_ROOM_BYTES } else { 0 }
    }
}

impl Station {
    /// Allocates and fills the memory, opens the paths, and enables access between all GPUs.
    ///
    /// # Errors
    /// If memory is short, GPUs don't reach each other although a path needs it, or an engine does
    /// not start.
    pub fn open(options: &StationOptions, paths: &[PathKind]) -> Result<Self, ProfilerError> {
        let mut station = Self {
            endpoints: options.endpoints(),
            carriers: HashMap::new(),
            clocks: Vec::new(),
            peers: false,
            gpus: HashMap::new(),
            identities: options.devices(),
            rails: Vec::new(),
            notes: Vec::new(),
        };
        let mut hosts = HashMap::new();
        for (rank, spot) in (0_u32..).zip(&options.spots) {
            match spot {
                Spot::Gpu(device) => station.open_gpu(options, rank, device)?,
                Spot::Host => {
                    let host = host_memory(options, rank)?;
                    hosts.insert(rank, host);
                }
            }
        }
        station.peers = station.reach(options)?;
        for path in paths {
            let carrier: Box<dyn Carrier> = match path {
                PathKind::CopyEngine | PathKind::Kernel => {
                    station.refuse_without_peers()?;
                    let peer = Peer::new(*path, options.seed, station.gpus.clone())?;
                    station.notes.extend(peer.note());
                    Box::new(peer)
                }
                PathKind::HostMemory => {
                    let seed = |rank| pattern::seed_of(rank, options.seed);
                    let sources =
                        hosts.iter().map(|(rank, (source, _)): (&u32, &(Memory, Memory))| {
                            (*rank, (source.clone(), seed(*rank)))
                        });
                    Box::new(Copier::new(sources.collect()))
                }
                PathKind::Tcp => {
                    let memory = |rank: u32| match (hosts.get(&rank), station.gpus.get(&rank)) {
                        (Some((source, sink)), _) => {
                            Some(EndMemory::Host(source.clone(), sink.clone()))
                        }
                        (None, gpu) => Some(EndMemory::Gpu(gpu?.clone())),
                    };
                    let memories = (0..options.spots.len() as u32).filter_map(memory).collect();
                    let rails = Rails::new(&options.config, memories, options.seed)?;
                    station.rails = rails.describe();
                    Box::new(rails)
                }
                PathKind::Nccl => Box::new(station.open_nccl(options)?),
                PathKind::SharedMemory | PathKind::HostStaged => {
                    let what = format!("the path {path} is not measured by this version");
                    return Err(ProfilerError::Choice { what });
                }
            };
            station.carriers.insert(*path, carrier);
        }
        Ok(station)
    }

    /// Creates a station of GPUs that the caller opened, for paths between GPUs only.
    ///
    /// # Errors
    /// If a GPU does not open a queue.
    pub fn of_gpus(
        endpoints: Vec<Endpoint>,
        gpus: Vec<Box<dyn Accelerator>>,
        paths: &[PathKind],
        seed: u64,
    ) -> Result<Self, ProfilerError> {
        let shared = |gpu| Arc::new(Mutex::new(gpu));
        let gpus: HashMap<u32, SharedAccelerator> =
            (0_u32..).zip(gpus).map(|(rank, gpu)| (rank, shared(gpu))).collect();
        let mut carriers: HashMap<PathKind, Box<dyn Carrier>> = HashMap::new();
        let mut notes = Vec::new();
        for path in paths {
            let peer = Peer::new(*path, seed, gpus.clone())?;
            notes.extend(peer.note());
            carriers.insert(*path, Box::new(peer));
        }
        Ok(Self {
            endpoints,
            carriers,
            clocks: Vec::new(),
            peers: false,
            gpus,
            identities: Vec::new(),
            rails: Vec::new(),
            notes,
        })
    }

    /// Replaces the carrier of a path.
    #[cfg(test)]
    pub(crate) fn with(mut self, path: PathKind, carrier: Box<dyn Carrier>) -> Self {
        self.carriers.insert(path, carrier);
        self
    }

    /// Returns the GPUs, which a path of a test shares.
    #[cfg(test)]
    pub(crate) fn gpus(&self) -> HashMap<u32, SharedAccelerator> {
        self.gpus.clone()
    }

    /// Returns the clocks of the GPUs.
    pub fn clocks(&self) -> &[ClockSource] {
        &self.clocks
    }

    /// Returns what could not be opened, one sentence each.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Returns the rails of the path tcp.
    pub fn rails(&self) -> &[String] {
        &self.rails
    }

    /// Measures the floor of the host's timer, without a transfer, in ns.
    pub fn host_floor_ns(&self) -> f64 {
        let apart = (0..1000).map(|_| {
            let before = reference_ns();
            (reference_ns() - before) as f64
        });
        median(apart).unwrap_or(0.0)
    }

    /// Measures the floor of gated times of a path, without a transfer, in ns; `None` without GPUs.
    ///
    /// # Errors
    /// If a device refuses.
    pub fn gpu_floor_ns(&self, path: PathKind) -> Result<Option<f64>, ProfilerError> {
        let Some((rank, gpu)) = self.gpus.iter().min_by_key(|(rank, _)| **rank) else {
            return Ok(None);
        };
        let mut gpu = lock(gpu);
        let sink = gpu.sink().clone();
        let mut empty = Vec::new();
        for _ in 0..50 {
            let gated = gpu.gated(path, &sink, 0, 0, false);
            let what = format!("the timer of rank {rank}");
            empty.extend(gated.map_err(ProfilerError::gpu(what))?.map(|gated| gated.took_ns));
        }
        Ok(median(empty))
    }

    /// Measures the cost of stamps between copies, for eight copies in a row between the first two GPUs, in percent, by
    /// size in bytes. Empty without GPUs, or if they don't reach each other.
    ///
    /// # Errors
    /// If a device refuses.
    pub fn stamps_percent(&self) -> Result<BTreeMap<String, f64>, ProfilerError> {
        const COPIES: usize = 8;
        let mut found = BTreeMap::new();
        let (Some(one), Some(other)) = (self.gpus.get(&0), self.gpus.get(&1)) else {
            return Ok(found);
        };
        if !self.peers {
            return Ok(found);
        }
        let sink = lock(other).sink().clone();
        let mut one = lock(one);
        for bytes in [1_u64 << 20, 16 << 20, 256 << 20] {
            if bytes > one.source().len() {
                continue;
            }
            let (mut plain, mut stamped) = (Vec::new(), Vec::new());
            for _ in 0..9 {
                for (times, each) in [(&mut plain, false), (&mut stamped, true)] {
                    let gated = one.gated(PathKind::CopyEngine, &sink, bytes, COPIES, each);
                    if let Some(gated) =
                        gated.map_err(ProfilerError::gpu("measuring what stamps take"))?
                    {
                        times.push((gated.end_ns - gated.start_ns) as f64);
                    }
                }
            }
            if let (Some(plain), Some(stamped)) = (median(plain), median(stamped)) {
                found.insert(bytes.to_string(), (stamped / plain - 1.0) * 100.0);
            }
        }
        Ok(found)
    }

    /// Measures the time of a flag between GPUs; empty if they don't reach each other.
    ///
    /// # Errors
    /// If a device refuses.
    pub fn peer_latencies(&self) -> Result<Vec<PeerLatency>, ProfilerError> {
        if self.peers { latencies(&self.clocks) } else { Ok(Vec::new()) }
    }

    /// Returns the description of each endpoint.
    pub fn metadata(&self, driver: Option<&str>) -> Vec<Metadata> {
        let metadata = |endpoint: &Endpoint| {
            let identity = self.identities.iter().find(|(rank, _)| *rank == endpoint.rank);
            let identity = identity.map(|(_, identity)| identity);
            let mut details: BTreeMap<String, Value> = BTreeMap::new();
            if let Some(identity) = identity {
                details.insert("memory_bytes".into(), json!(identity.memory_bytes));
            }
            Metadata {
                rank: endpoint.rank,
                pid: std::process::id(),
                model: identity.map(|identity| identity.name.clone()),
                uuid: identity.map(uuid_text),
                pci_address: identity.map(|identity| identity.pci.to_string()),
                numa_node: identity.and_then(|identity| numa_node(&identity.pci.to_string())),
                driver: identity.and(driver).map(str::to_owned),
                details,
            }
        };
        self.endpoints.iter().map(metadata).collect()
    }

    /// Whether a path between GPUs can warm them, see [`Self::warm_gpus`].
    pub fn can_warm(&self) -> bool {
        WARMING.iter().any(|path| self.carriers.contains_key(path))
    }

    /// Copies between all GPUs for this time, to warm them.
    ///
    /// # Errors
    /// If a copy failed.
    pub fn warm_gpus(&mut self, time: std::time::Duration) -> Result<(), ProfilerError> {
        let ranks: Vec<u32> = self.gpus.keys().copied().collect();
        let bytes = self.gpus.values().map(|gpu| lock(gpu).source().len()).min().unwrap_or(0);
        let begin = std::time::Instant::now();
        let path = WARMING.into_iter().find(|path| self.carriers.contains_key(path));
        let Some(carrier) = path.and_then(|path| self.carriers.get_mut(&path)) else {
            return Ok(());
        };
        while begin.elapsed() < time {
            for src in &ranks {
                for dst in ranks.iter().filter(|dst| *dst != src) {
                    carrier.warm(Cargo { src: *src, dst: *dst, bytes: bytes.min(256 << 20) })?;
                }
            }
        }
        Ok(())
    }

    fn open_gpu(
        &mut self,
        options: &StationOptions,
        rank: u32,
        device: &Arc<CudaDevice>,
    ) -> Result<(), ProfilerError> {
        let id = self.clocks.len() as u32 + 1;
        let (source, sink) = (options.source_bytes(), options.sink_bytes());
        let opened = CudaGpu::open(device, rank, id, source, sink, options.seed);
        let gpu = opened.map_err(ProfilerError::gpu(device.identity().to_string()))?;
        let name = format!("gpu{}", device.identity().index);
        self.clocks.push(ClockSource::new(gpu.meter(), id, rank, name)?);
        self.gpus.insert(rank, Arc::new(Mutex::new(Box::new(gpu))));
        Ok(())
    }

    fn open_nccl(&self, options: &StationOptions) -> Result<NcclPath, ProfilerError> {
        let missing = || ProfilerError::Choice { what: "the path nccl has no library".into() };
        let nccl = options.nccl.as_ref().ok_or_else(missing)?;
        let member = |clock: &ClockSource| {
            let gpu = lock(self.gpus.get(&clock.rank)?);
            let (source, sink) = (gpu.source().clone(), gpu.sink().clone());
            let (rank, id, meter) = (clock.rank, clock.id, clock.meter.clone());
            Some(Member { rank, clock: id, meter, source, sink })
        };
        let members = self.clocks.iter().filter_map(member).collect();
        let messenger = CudaMessenger::open(nccl, members)?;
        Ok(NcclPath::new(Box::new(messenger), self.gpus.clone(), options.seed))
    }

    /// Enables access between all GPUs; returns whether all reach each other.
    fn reach(&self, options: &StationOptions) -> Result<bool, ProfilerError> {
        let devices: Vec<&Arc<CudaDevice>> = options
            .spots
            .iter()
            .filter_map(|spot| match spot {
                Spot::Gpu(device) => Some(device),
                Spot::Host => None,
            })
            .collect();
        let mut all = devices.len() > 1;
        for one in &devices {
            for other in &devices {
                let reaches = one.reaches(other.as_ref());
                let what = format!("{} reaching {}", one.identity(), other.identity());
                all &= reaches.map_err(ProfilerError::gpu(what))?;
            }
        }
        Ok(all)
    }

    fn refuse_without_peers(&self) -> Result<(), ProfilerError> {
        if self.peers {
            return Ok(());
        }
        Err(ProfilerError::Machine {
            what: "these GPUs can't copy to each other directly".into(),
            help: "give --paths tcp, or choose others with --gpus; `polyrail host show` shows which do"
                .into(),
        })
    }
}

fn host_memory(options: &StationOptions, rank: u32) -> Result<(Memory, Memory), ProfilerError> {
    let take = |bytes| {
        Memory::anonymous(bytes).map_err(|error| ProfilerError::Machine {
            what: format!("{bytes} bytes of memory for rank {rank}: {error}"),
            help: "measure smaller sizes with --sizes".into(),
        })
    };
    let (source, sink) = (take(options.source_bytes())?, take(options.sink_bytes())?);
    pattern::fill(&source, source.len(), pattern::seed_of(rank, options.seed));
    pattern::clear(&sink, sink.len());
    Ok((source, sink))
}

/// Measures how fast this machine allocates and fills memory; `None` without memory.
pub(crate) fn fill_bytes_per_s() -> Option<f64> {
    const TRIED_BYTES: u64 = 16 << 20;
    let begin = std::time::Instant::now();
    let (source, sink) =
        (Memory::anonymous(TRIED_BYTES).ok()?, Memory::anonymous(TRIED_BYTES).ok()?);
    pattern::fill(&source, TRIED_BYTES, 1);
    pattern::clear(&sink, TRIED_BYTES);
    Some(2.0 * TRIED_BYTES as f64 / begin.elapsed().as_secs_f64())
}

/// Measures how fast this machine clears memory and compares it with the pattern; `None` without memory.
pub(crate) fn check_bytes_per_s() -> Option<f64> {
    const TRIED_BYTES: u64 = 16 << 20;
    let sink = Memory::anonymous(TRIED_BYTES).ok()?;
    // The first pass allocates the pages.
    pattern::clear(&sink, TRIED_BYTES);
    let begin = std::time::Instant::now();
    pattern::fill(&sink, TRIED_BYTES, 1);
    let filled = begin.elapsed();
    let is_right = pattern::holds(&sink, TRIED_BYTES, 1);
    pattern::clear(&sink, TRIED_BYTES);
    let check_s = (begin.elapsed() - filled).as_secs_f64();
    is_right.then(|| TRIED_BYTES as f64 / check_s)
}

fn numa_node(pci: &str) -> Option<u32> {
    let text = std::fs::read_to_string(format!("/sys/bus/pci/devices/{pci}/numa_node")).ok()?;
    text.trim().parse().ok()
}
