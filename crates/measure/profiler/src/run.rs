//! Makes the steps of a plan.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use polyrail_profile::{
    Configuration, EndpointKind, Flags, Load, PathKind, Recorder, Sample, State, Step, Temperature,
    Verify,
};

use crate::carrier::{Cargo, Measured};
use crate::clocks::Anchoring;
use crate::error::ProfilerError;
use crate::estimate::Estimate;
use crate::rewarm::{Rewarm, Rewarmed, Warmth};
use crate::station::Station;
use crate::thermal::Watcher;

/// Warm-ups of one configuration end early after this time.
pub(crate) const WARM_TIME: Duration = Duration::from_millis(500);
/// Duration of the background load, relative to a step without it.
const LOAD_LASTS: f64 = 4.0;
/// Times below this many timer floors are flagged.
const NEAR: f64 = 3.0;
/// Clocks below this fraction of the highest one seen are flagged.
const CLOCK_DROP: f64 = 0.75;

/// Options for every step.
#[derive(Clone, Debug, Default)]
pub struct Limits {
    /// Whether all bytes are compared.
    pub verify: bool,
    /// Whether other processes were seen on a GPU.
    pub is_foreign: bool,
    /// Floor of the host's timer, in ns.
    pub floor_host_ns: Option<f64>,
    /// Floor of gated times by path, in ns.
    pub floor_gpu_ns: HashMap<PathKind, f64>,
    /// Settings for warming GPUs again, if enabled.
    pub rewarm: Option<Rewarm>,
}

/// Callbacks of a run.
pub struct Hooks<'a> {
    /// Whether the run should stop.
    pub is_interrupted: &'a dyn Fn() -> bool,
    /// Called before each step with the share of the work done (by expected time), and the configuration and repetition
    /// of the step.
    pub progress: &'a dyn Fn(f64, &Configuration, u32),
}

#[derive(Debug)]
pub struct Outcome {
    /// Complete, interrupted or failed.
    pub state: State,
    pub reason: Option<String>,
    /// Samples taken.
    pub samples: u64,
    /// Samples with wrong bytes.
    pub wrong: u64,
    /// Links that failed and were then left out.
    pub failures: Vec<String>,
    /// Each warming of the GPUs during the run.
    pub rewarmed: Vec<Rewarmed>,
    /// The error that ended the run, if the folder could not be written.
    pub error: Option<ProfilerError>,
}

/// Makes the steps that the folder lacks. Leaves out a link after it fails; ends the run if the folder can't be
/// written.
pub fn run(
    station: &mut Station,
    recorder: &Recorder,
    watcher: Option<&Watcher>,
    limits: &Limits,
    hooks: &Hooks<'_>,
) -> Outcome {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        if let Some(watcher) = watcher {
            watcher.look();
            let log = || watcher.log(recorder, &stop);
            if let Err(error) = std::thread::Builder::new().spawn_scoped(scope, log) {
                let mut outcome = Outcome::new();
                outcome.fail(ProfilerError::thread(&error));
                return outcome;
            }
        }
        let outcome = steps(station, recorder, watcher, limits, hooks);
        stop.store(true, Ordering::Relaxed);
        outcome
    })
}

fn steps(
    station: &mut Station,
    recorder: &Recorder,
    watcher: Option<&Watcher>,
    limits: &Limits,
    hooks: &Hooks<'_>,
) -> Outcome {
    let plan = recorder.folder().plan().clone();
    let remaining = recorder.remaining();
    let estimate = Estimate::usual(&plan, limits.verify);
    let cost = |step: &Step| {
        plan.configuration(step.configuration).map_or(0.0, |one| estimate.step_s(one, step))
    };
    let whole: f64 = remaining.iter().map(cost).sum();
    let mut outcome = Outcome::new();
    let mut warmth =
        limits.rewarm.zip(watcher).map(|(rewarm, watcher)| Warmth::new(rewarm, watcher));
    let clocks = station.clocks.clone();
    let mut anchoring = Anchoring::new(&clocks, station.peers, recorder.session());
    let mut broken: HashSet<(PathKind, u32, u32)> = HashSet::new();
    let mut highest = Clocks::default();
    let mut spent = 0.0;
    for step in &remaining {
        // Every step belongs to the plan.
        let Some(configuration) = plan.configuration(step.configuration) else { continue };
        if (hooks.is_interrupted)() {
            outcome.state = State::Interrupted;
            outcome.reason = Some("interrupted".into());
            break;
        }
        (hooks.progress)(spent / whole, configuration, step.repetition);
        spent += cost(step);
        if broken.contains(&(configuration.path, configuration.src, configuration.dst)) {
            continue;
        }
        if let (Some(warmth), Some(watcher)) = (&mut warmth, watcher) {
            match warmth.keep(station, watcher, hooks.is_interrupted) {
                Ok(rewarmed) => outcome.rewarmed.extend(rewarmed),
                Err(error) => {
                    outcome.fail(error);
                    break;
                }
            }
        }
        if let Err(error) = anchoring.look(recorder) {
            outcome.fail(error);
            break;
        }
        let alone = Duration::from_secs_f64(cost(&Step { warmups: 0, ..*step }));
        let measured = match measure(station, configuration, step, limits.verify, alone) {
            Ok(measured) => measured,
            Err(error) => {
                let Configuration { src, dst, path, .. } = *configuration;
                broken.insert((path, src, dst));
                let text = format!("{path} from rank {src} to {dst} ended: {error}");
                tracing::warn!(target: "polyrail::profile", "{text}");
                outcome.failures.push(text);
                continue;
            }
        };
        outcome.wrong += u64::from(measured.verify == Verify::Failed);
        let looks = [configuration.src, configuration.dst]
            .map(|rank| watcher.and_then(|watcher| watcher.latest(rank)));
        let sample = sample_of(
            configuration.path,
            step,
            recorder.session(),
            measured,
            looks,
            limits,
            &mut highest,
        );
        if let Err(error) = recorder.append(&sample) {
            outcome.fail(error.into());
            break;
        }
        outcome.samples += 1;
    }
    // The last window aligns the end of the run.
    if outcome.error.is_none()
        && !clocks.is_empty()
        && let Err(error) = anchoring.now(recorder)
    {
        outcome.fail(error);
    }
    if outcome.state == State::Complete && !outcome.failures.is_empty() {
        outcome.state = State::Failed;
        outcome.reason = Some(outcome.failures.join("; "));
    }
    outcome
}

impl Outcome {
    fn new() -> Self {
        Self {
            state: State::Complete,
            reason: None,
            samples: 0,
            wrong: 0,
            failures: Vec::new(),
            rewarmed: Vec::new(),
            error: None,
        }
    }

    fn fail(&mut self, error: ProfilerError) {
        self.state = State::Failed;
        self.reason = Some(error.to_string());
        self.error = Some(error);
    }
}

/// Makes one measurement. `alone`: approximate duration of the step without load and warm-ups.
fn measure(
    station: &mut Station,
    configuration: &Configuration,
    step: &Step,
    verify: bool,
    alone: Duration,
) -> Result<Measured, ProfilerError> {
    let Configuration { src, dst, path, size_bytes, load, .. } = *configuration;
    let cargo = Cargo { src, dst, bytes: size_bytes };
    let load_pairs = load_pairs(station, configuration)?;
    let carrier = station.carriers.get_mut(&path).ok_or_else(|| ProfilerError::Choice {
        what: format!("the path {path} is in the plan but was not opened"),
    })?;
    let begin = Instant::now();
    for _ in 0..step.warmups {
        carrier.warm(cargo)?;
        if begin.elapsed() > WARM_TIME {
            break;
        }
    }
    if load == Load::None {
        return carrier.measure(cargo, verify);
    }
    // Under load everything takes longer, and the background must outlast the measurement.
    carrier.begin_load(&load_pairs, alone.mul_f64(LOAD_LASTS))?;
    let measured = carrier.measure(cargo, verify);
    carrier.end_load()?;
    measured
}

/// Returns the pairs of the background load of a configuration.
fn load_pairs(
    station: &Station,
    configuration: &Configuration,
) -> Result<Vec<(u32, u32)>, ProfilerError> {
    let Configuration { src, dst, path, load, .. } = *configuration;
    let needs_gpu = matches!(path, PathKind::CopyEngine | PathKind::Kernel | PathKind::Nccl);
    let others: Vec<u32> = station
        .endpoints
        .iter()
        .filter(|one| one.rank != src && one.rank != dst)
        .filter(|one| !needs_gpu || one.kind == EndpointKind::Gpu)
        .map(|one| one.rank)
        .collect();
    let few = |needed: usize| ProfilerError::Choice {
        what: format!(
            "load {load} needs {needed} endpoints besides the pair; {} are",
            others.len()
        ),
    };
    match (load, others.as_slice()) {
        (Load::None, _) => Ok(Vec::new()),
        (Load::SameSource, [other, ..]) => Ok(vec![(src, *other)]),
        (Load::SameSink, [other, ..]) => Ok(vec![(*other, dst)]),
        (Load::Disjoint, [one, other, ..]) => Ok(vec![(*one, *other)]),
        (Load::Disjoint, _) => Err(few(2)),
        _ => Err(few(1)),
    }
}

/// Highest clock seen, by rank.
#[derive(Default)]
struct Clocks {
    by_rank: HashMap<u32, u32>,
}

impl Clocks {
    /// Whether the clock is far below the highest one.
    fn has_dropped(&mut self, look: &Temperature) -> bool {
        let Some(mhz) = look.sm_clock_mhz else { return false };
        let highest = self.by_rank.entry(look.rank).or_insert(mhz);
        *highest = (*highest).max(mhz);
        f64::from(mhz) < CLOCK_DROP * f64::from(*highest)
    }
}

fn sample_of(
    path: PathKind,
    step: &Step,
    session: u32,
    measured: Measured,
    looks: [Option<Temperature>; 2],
    limits: &Limits,
    highest: &mut Clocks,
) -> Sample {
    let mut flags = Flags::NONE;
    for look in looks.iter().flatten() {
        if look.is_throttled() {
            flags = flags | Flags::THROTTLED;
        }
        if highest.has_dropped(look) {
            flags = flags | Flags::CLOCK_DROP;
        }
    }
    if limits.is_foreign {
        flags = flags | Flags::FOREIGN_PROCESS;
    }
    let near = |time: Option<f64>, floor: Option<f64>| {
        time.zip(floor).map(|(time, floor)| time < NEAR * floor)
    };
    let by_gpu = near(measured.t_gpu_ns, limits.floor_gpu_ns.get(&path).copied());
    if by_gpu.or_else(|| near(measured.t_host_ns, limits.floor_host_ns)).unwrap_or(false) {
        flags = flags | Flags::NEAR_FLOOR;
    }
    // A time below the clock's step was not measured; tables hold no zero times.
    let time = |ns: Option<f64>| ns.filter(|ns| *ns > 0.0);
    let t_oneway_ns = time(measured.t_oneway_ns);
    let mut sample = Sample {
        order: step.order,
        session,
        configuration: step.configuration,
        repetition: step.repetition,
        posted_ns: measured.posted_ns,
        t_oneway_ns,
        // One clock needs no alignment.
        clock_uncertainty_ns: t_oneway_ns.map(|_| 0.0),
        t_rtt2_ns: time(measured.t_rtt2_ns),
        t_gpu_ns: time(measured.t_gpu_ns),
        t_host_ns: time(measured.t_host_ns),
        bandwidth_bytes_per_s: measured.bandwidth_bytes_per_s,
        source: measured.source,
        sink: measured.sink,
        verify: measured.verify,
        flags,
    };
    for (end, look) in [&mut sample.source, &mut sample.sink].into_iter().zip(looks) {
        end.temperature_c = look.and_then(|look| look.temperature_c);
        end.sm_clock_mhz = look.and_then(|look| look.sm_clock_mhz);
    }
    sample
}

#[cfg(test)]
#[path = "run_tests.rs"]
mod tests;
