//! Synthetic profiles of an imaginary machine, for tests, demonstrations and figures: every regime, an asymmetric link,
//! modes, outliers, drift with temperature, and clocks that diverge. The seed determines everything.

use std::path::Path;

use crate::clock::{Anchor, AnchorMethod, Clock};
use crate::error::ProfileError;
use crate::folder::{Folder, Recorder};
use crate::order::SplitMix64;
use crate::plan::{Configuration, Endpoint, EndpointKind, PathKind, Plan, PlanBuilder};
use crate::run::{Layout, Metadata, Run, State};
use crate::sample::{End, Flags, Sample, Verify};
use crate::thermal::Temperature;

/// The imaginary machine.
#[derive(Clone, Debug)]
pub struct Machine {
    /// Number of GPUs, or of endpoints in host memory.
    pub endpoints: u32,
    /// Whether the endpoints are GPUs.
    pub has_gpus: bool,
    /// Paths to measure, between all directed pairs.
    pub paths: Vec<PathKind>,
    /// Measured transfers per configuration.
    pub repetitions: u32,
    /// Seed of all noise.
    pub seed: u64,
    /// Factor for all times: a second run that is faster or slower.
    pub slowness: f64,
}

impl Default for Machine {
    fn default() -> Self {
        Self {
            endpoints: 4,
            has_gpus: true,
            paths: vec![PathKind::CopyEngine, PathKind::Nccl],
            repetitions: 10,
            seed: 42,
            slowness: 1.0,
        }
    }
}

/// Pair that is slower in this direction than in the other.
pub const ASYMMETRIC_PAIR: (u32, u32) = (1, 0);
/// Factor of its slowness per byte.
pub const ASYMMETRY: f64 = 1.25;
/// One in this many samples is an outlier.
pub const OUTLIER_EVERY: u64 = 200;

/// Time of a transfer without noise, in ns: a latency, a step where the protocol changes, and a rate.
pub fn true_time_ns(configuration: &Configuration) -> f64 {
    let Law { latency_ns, step_at, step_ns, ns_per_byte } = law(configuration.path);
    let size = configuration.size_bytes as f64;
    let step = if configuration.size_bytes >= step_at { step_ns } else { 0.0 };
    let pair = (configuration.src, configuration.dst);
    let rate = if pair == ASYMMETRIC_PAIR { ns_per_byte * ASYMMETRY } else { ns_per_byte };
    // Real pairs differ a little, too.
    let pair = 1.0 + 0.01 * f64::from((pair.0 * 7 + pair.1 * 3) % 4);
    latency_ns * pair + step + size * rate
}

impl Machine {
    /// Returns the plan of the measurement.
    ///
    /// # Errors
    /// As [`PlanBuilder::build`].
    pub fn plan(&self) -> Result<Plan, ProfileError> {
        let endpoint = |rank| Endpoint {
            rank,
            kind: if self.has_gpus { EndpointKind::Gpu } else { EndpointKind::Host },
            name: if self.has_gpus { format!("gpu{rank}") } else { format!("node{rank}") },
            host: "synthetic".into(),
            device: format!("0000:{:02x}:00.0", rank + 0x19),
        };
        let builder = PlanBuilder::new((0..self.endpoints).map(endpoint))
            .repetitions(self.repetitions)
            .sentinel_every(100);
        self.paths.iter().fold(builder, |builder, path| builder.path(*path)).build()
    }

    /// Measures the machine into a folder, with logs and traces.
    ///
    /// # Errors
    /// As [`Folder::create`].
    pub fn profile(&self, dir: impl AsRef<Path>) -> Result<Folder, ProfileError> {
        let mut recorder = self.record(dir)?;
        recorder.finish(&Run { state: State::Complete, ..self.run() })?;
        Ok(recorder.folder().clone())
    }

    /// Measures the machine into a folder without the final logs and traces, as after a power failure.
    ///
    /// # Errors
    /// As [`Folder::create`].
    pub fn record(&self, dir: impl AsRef<Path>) -> Result<Recorder, ProfileError> {
        let recorder = Folder::create(dir, &self.plan()?, &self.run())?;
        let mut rng = SplitMix64::new(self.seed);
        let mut now_ns = START_NS;
        let (mut next_look_ns, mut next_anchor_ns, mut window) = (now_ns, now_ns, 0);
        for step in recorder.remaining() {
            if now_ns >= next_look_ns {
                for look in (0..self.endpoints).filter_map(|rank| self.look(rank, now_ns)) {
                    recorder.append_temperature(&look)?;
                }
                next_look_ns = now_ns + 100_000_000;
            }
            if now_ns >= next_anchor_ns {
                for anchor in self.anchors(now_ns, window, &mut rng) {
                    recorder.append_anchor(&anchor)?;
                }
                window += 1;
                next_anchor_ns = now_ns + 1_000_000_000;
            }
            let plan = recorder.folder().plan();
            // Steps of a plan belong to its configurations.
            let Some(configuration) = plan.configuration(step.configuration) else { continue };
            let sample = self.sample(configuration, now_ns, &mut rng);
            let host_ns = sample.t_host_ns.unwrap_or(0.0);
            recorder.append(&Sample {
                order: step.order,
                session: recorder.session(),
                configuration: step.configuration,
                repetition: step.repetition,
                ..sample
            })?;
            now_ns += host_ns as i64 * 3 + 200_000;
        }
        for anchor in self.anchors(now_ns, window, &mut rng) {
            recorder.append_anchor(&anchor)?;
        }
        for rank in 0..self.endpoints {
            recorder.write_metadata(&self.metadata(rank))?;
        }
        Ok(recorder)
    }

    fn run(&self) -> Run {
        let gpu = |rank: u32| Clock {
            id: rank + 1,
            name: format!("gpu{rank}"),
            kind: "globaltimer".into(),
            rank: Some(rank),
            tick_ns: 32.0,
        };
        let mut run = Run {
            arguments: vec!["synthetic".into()],
            hostname: "synthetic".into(),
            layout: Layout::OneProcess,
            unix_ns: 1_800_000_000_000_000_000,
            reference_ns: START_NS,
            notes: vec!["this machine does not exist".into()],
            ..Run::default()
        };
        if self.has_gpus {
            run.clocks.extend((0..self.endpoints).map(gpu));
        }
        run.timer_floor_ns.insert("t_host".into(), 45.0);
        run.timer_floor_ns.insert("t_gpu".into(), 320.0);
        run
    }

    fn metadata(&self, rank: u32) -> Metadata {
        Metadata {
            rank,
            pid: 4_242,
            model: Some(if self.has_gpus { "Synthetic GPU" } else { "Synthetic CPU" }.into()),
            uuid: None,
            pci_address: Some(format!("0000:{:02x}:00.0", rank + 0x19)),
            numa_node: Some(rank / 2),
            driver: None,
            details: [("bar1_mib".to_owned(), 65_536.into())].into(),
        }
    }

    fn sample(&self, configuration: &Configuration, now_ns: i64, rng: &mut SplitMix64) -> Sample {
        let warmth = 1.0 + 0.002 * (warmth(now_ns) - 0.5);
        let mut gpu_ns = true_time_ns(configuration) * self.slowness * warmth;
        gpu_ns *= 1.0 + 0.004 * normal(rng);
        if rng.below(OUTLIER_EVERY) == 0 {
            gpu_ns *= 3.0;
        }
        let gpu_ns = (gpu_ns * 1_000.0).round() / 1_000.0;
        let host_ns = gpu_ns + 4_000.0 + (rng.below(400) as f64);
        let start = now_ns + 2_000;
        // One-way times follow from these stamps and the anchors.
        let end = |rank: u32, late: i64| End {
            clock: self.has_gpus.then_some(rank + 1),
            start_ns: self.has_gpus.then(|| self.device_ns(rank, start + late)),
            end_ns: self.has_gpus.then(|| self.device_ns(rank, start + gpu_ns.round() as i64)),
            temperature_c: self.has_gpus.then(|| temperature(rank, now_ns)),
            sm_clock_mhz: self.has_gpus.then_some(1_980),
        };
        let size = configuration.size_bytes as f64;
        let window = 16.0;
        let streamed = size * window / (gpu_ns + (window - 1.0) * (size * 2.45e-3).max(120.0));
        Sample {
            posted_ns: now_ns,
            t_rtt2_ns: (!self.has_gpus).then_some(gpu_ns),
            t_gpu_ns: self.has_gpus.then_some(gpu_ns),
            t_host_ns: Some(host_ns),
            bandwidth_bytes_per_s: (configuration.size_bytes >= 1 << 16).then_some(streamed * 1e9),
            source: end(configuration.src, 0),
            // The sink starts earlier and waits for the source.
            sink: end(configuration.dst, -150),
            verify: Verify::Ok,
            flags: if gpu_ns < 960.0 { Flags::NEAR_FLOOR } else { Flags::NONE },
            ..Sample::default()
        }
    }

    fn anchors(&self, now_ns: i64, window: u32, rng: &mut SplitMix64) -> Vec<Anchor> {
        if !self.has_gpus {
            return Vec::new();
        }
        let mut anchors = Vec::new();
        for rank in 0..self.endpoints {
            for probe in 0..12 {
                let at = now_ns - 150_000 + probe * 3_000;
                anchors.push(Anchor {
                    clock: rank + 1,
                    parent: 0,
                    window,
                    method: AnchorMethod::Bracket,
                    parent_before_ns: at - 250 - rng.below(200) as i64,
                    clock_ns: self.device_ns(rank, at) / 32 * 32,
                    parent_after_ns: at + 250 + rng.below(200) as i64,
                });
            }
            let peer = (rank + 1) % self.endpoints;
            let at = now_ns - 50_000;
            if peer != rank {
                anchors.push(Anchor {
                    clock: rank + 1,
                    parent: peer + 1,
                    window,
                    method: AnchorMethod::Peer,
                    parent_before_ns: self.device_ns(peer, at - 700),
                    clock_ns: self.device_ns(rank, at + rng.below(100) as i64),
                    parent_after_ns: self.device_ns(peer, at + 700),
                });
            }
        }
        anchors
    }

    fn look(&self, rank: u32, now_ns: i64) -> Option<Temperature> {
        self.has_gpus.then(|| Temperature {
            at_ns: now_ns,
            rank,
            temperature_c: Some(temperature(rank, now_ns)),
            memory_temperature_c: Some(temperature(rank, now_ns) + 8.0),
            power_w: Some(120.0 + 90.0 * warmth(now_ns)),
            sm_clock_mhz: Some(1_980),
            memory_clock_mhz: Some(3_201),
            clock_reasons: Some(0),
        })
    }

    /// Time on a device's clock, which is some ppm and some hours off.
    fn device_ns(&self, rank: u32, reference_ns: i64) -> i64 {
        let ppm = 6.0 * (f64::from(rank) - 1.5);
        let since = (reference_ns - START_NS) as f64;
        reference_ns + 3_600_000_000_000 * i64::from(rank + 1) + (since * ppm * 1e-6).round() as i64
    }
}

struct Law {
    latency_ns: f64,
    step_at: u64,
    step_ns: f64,
    ns_per_byte: f64,
}

fn law(path: PathKind) -> Law {
    let (latency_ns, step_at, step_ns, gb_per_s) = match path {
        PathKind::CopyEngine => (1_900.0, 1 << 22, 1_500.0, 396.0),
        PathKind::Kernel => (1_200.0, 1 << 26, 2_000.0, 380.0),
        PathKind::Nccl => (5_200.0, 1 << 18, 6_000.0, 350.0),
        PathKind::Tcp => (9_000.0, 1 << 17, 15_000.0, 5.0),
        PathKind::SharedMemory => (800.0, 1 << 20, 3_000.0, 9.0),
        PathKind::HostMemory => (150.0, 1 << 21, 1_000.0, 12.0),
        PathKind::HostStaged => (12_000.0, 1 << 20, 20_000.0, 45.0),
    };
    Law { latency_ns, step_at, step_ns, ns_per_byte: 1.0 / gb_per_s }
}

/// 0 when cold to 1 when warm.
fn warmth(now_ns: i64) -> f64 {
    1.0 - (-((now_ns - START_NS) as f64) / 2e9).exp()
}

fn temperature(rank: u32, now_ns: i64) -> f64 {
    ((34.0 + f64::from(rank) + 18.0 * warmth(now_ns)) * 10.0).round() / 10.0
}

/// The sum of twelve uniform numbers is close enough to a normal distribution.
fn normal(rng: &mut SplitMix64) -> f64 {
    (0..12).map(|_| (rng.next_u64() >> 11) as f64 / (1_u64 << 53) as f64).sum::<f64>() - 6.0
}

const START_NS: i64 = 5_000_000_000_000;
