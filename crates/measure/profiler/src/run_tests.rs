use std::any::Any;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use polyrail_gpu::fake::FakeDevice;
use polyrail_gpu::{CopyPlace, Device, DeviceMemory, GpuError, Queue};
use polyrail_profile::{
    Endpoint, EndpointKind, Flags, Folder, Load, PathKind, PlanBuilder, Recorder, Run, State,
    Verify,
};
use polyrail_sys::Memory;

use super::*;
use crate::nccl::{Messenger, NcclPath};
use crate::pattern::{fill, seed_of};
use crate::peer::{Accelerator, Gated, LOAD_ROOM_BYTES, SharedAccelerator, TwoEnds, lock};
use crate::rewarm::{Rewarm, Rewarmed};
use crate::thermal::Thermometer;

const SEED: u64 = 42;
const BYTES: u64 = 8 << 10;
const SOON: Duration = Duration::from_secs(10);

/// A GPU made of host memory. A queue makes its gated copies, and a clock that ticks with them
/// times them.
struct FakeGpu {
    device: Arc<FakeDevice>,
    /// Used for all but the timed transfers.
    queue: Mutex<Queue>,
    source: DeviceMemory,
    sink: DeviceMemory,
    /// Makes verification fail.
    is_wrong: bool,
    /// Prevents raising flags in the memory of another GPU.
    has_no_flags: bool,
    now_ns: i64,
    gated: Arc<AtomicU32>,
}

impl FakeGpu {
    fn new(rank: u32, gated: &Arc<AtomicU32>) -> Self {
        let device = FakeDevice::new(rank, Duration::from_micros(20), u64::from(rank) + 1);
        let pattern = Memory::from(vec![0; BYTES as usize]);
        fill(&pattern, BYTES, seed_of(rank, SEED));
        let mut bytes = vec![0; BYTES as usize];
        pattern.read_at(0, &mut bytes).unwrap();
        let source = device.memory(&bytes);
        let sink = device.memory(&vec![0; (BYTES + LOAD_ROOM_BYTES) as usize]);
        let queue = Mutex::new(Queue::new(&(device.clone() as Arc<dyn Device>)).unwrap());
        let gated = gated.clone();
        let (is_wrong, has_no_flags, now_ns) = (false, false, 1_000_000);
        Self { device, queue, source, sink, is_wrong, has_no_flags, now_ns, gated }
    }

    fn copy(&self, to: CopyPlace<'_>, from: CopyPlace<'_>, bytes: u64) -> Result<(), GpuError> {
        let mut queue = self.queue.lock().unwrap();
        queue.push(to, from, bytes).unwrap();
        assert!(queue.begin()?.wait(SOON)?);
        Ok(())
    }
}

impl Accelerator for FakeGpu {
    fn open_queue(&self, _: PathKind) -> Result<Queue, GpuError> {
        let device: Arc<dyn Device> = self.device.clone();
        Queue::new(&device)
    }

    fn source(&self) -> &DeviceMemory {
        &self.source
    }

    fn sink(&self) -> &DeviceMemory {
        &self.sink
    }

    fn gated(
        &mut self,
        _: PathKind,
        sink: &DeviceMemory,
        bytes: u64,
        count: usize,
        _: bool,
    ) -> Result<Option<Gated>, GpuError> {
        self.gated.fetch_add(1, Ordering::Relaxed);
        for _ in 0..count {
            self.copy(CopyPlace::Device(sink, 0), CopyPlace::Device(&self.source, 0), bytes)?;
        }
        let start_ns = self.now_ns;
        self.now_ns += 500 + bytes as i64;
        let took_ns = 500.0 + bytes as f64;
        Ok(Some(Gated { start_ns, end_ns: self.now_ns, took_ns }))
    }

    fn one_way(
        &mut self,
        _: PathKind,
        other: &mut dyn Accelerator,
        bytes: u64,
    ) -> Result<Option<TwoEnds>, GpuError> {
        let Some(other) = (other as &mut dyn Any).downcast_mut::<Self>() else { return Ok(None) };
        if self.has_no_flags {
            return Err(GpuError::Unsupported { device: "fake".into(), what: "raising a flag" });
        }
        self.copy(CopyPlace::Device(&other.sink, 0), CopyPlace::Device(&self.source, 0), bytes)?;
        let start_ns = self.now_ns;
        self.now_ns += 700 + bytes as i64;
        // The source's stream sees the end later than the sink.
        let seen_ns = self.now_ns - 50;
        let sink_ns = [start_ns - 100_000, seen_ns];
        Ok(Some(TwoEnds { source_ns: [start_ns, self.now_ns], sink_ns }))
    }

    fn clear(&mut self, bytes: u64) -> Result<(), GpuError> {
        let zeros = Memory::from(vec![0; bytes as usize]);
        self.copy(CopyPlace::Device(&self.sink, 0), CopyPlace::Host(&zeros, 0), bytes)
    }

    fn holds(&mut self, bytes: u64, seed: u64) -> Result<bool, GpuError> {
        let contents = FakeDevice::contents(&self.sink.part(0, bytes).unwrap());
        Ok(!self.is_wrong && crate::pattern::is_pattern(&contents, seed))
    }

    fn clock(&self) -> u32 {
        0
    }
}

/// Three GPUs, a plan of the path by engines, and a new folder.
struct Bench {
    station: Station,
    recorder: Recorder,
    devices: Vec<Arc<FakeDevice>>,
    gated: Arc<AtomicU32>,
    dir: tempfile::TempDir,
}

fn bench(change: impl Fn(u32, &mut FakeGpu), loads: &[Load]) -> Bench {
    bench_of(PathKind::CopyEngine, change, loads)
}

fn bench_of(path: PathKind, change: impl Fn(u32, &mut FakeGpu), loads: &[Load]) -> Bench {
    let gated = Arc::new(AtomicU32::new(0));
    let mut gpus: Vec<FakeGpu> = (0..3).map(|rank| FakeGpu::new(rank, &gated)).collect();
    for (rank, gpu) in (0..).zip(&mut gpus) {
        change(rank, gpu);
    }
    let endpoint = |gpu: &FakeGpu| Endpoint {
        rank: 0,
        kind: EndpointKind::Gpu,
        name: "gpu".into(),
        host: "node".into(),
        device: gpu.device.identity().pci.to_string(),
    };
    let plan = PlanBuilder::new(gpus.iter().map(endpoint))
        .path(path)
        .sizes([1, BYTES])
        .loads(loads)
        .repetitions(3)
        .warmups(1)
        .build()
        .unwrap();
    let devices = gpus.iter().map(|gpu| gpu.device.clone()).collect();
    let gpus = gpus.into_iter().map(|gpu| Box::new(gpu) as Box<dyn Accelerator>).collect();
    let station =
        Station::of_gpus(plan.endpoints.clone(), gpus, &[PathKind::CopyEngine], SEED).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let recorder = Folder::create(dir.path().join("p"), &plan, &Run::default()).unwrap();
    Bench { station, recorder, devices, gated, dir }
}

impl Bench {
    fn run(&mut self, is_interrupted: &dyn Fn() -> bool) -> Outcome {
        let limits = Limits {
            verify: true,
            floor_gpu_ns: [(PathKind::CopyEngine, 200.0)].into(),
            ..Limits::default()
        };
        let hooks = Hooks { is_interrupted, progress: &|share, _, _| assert!(share <= 1.0) };
        run(&mut self.station, &self.recorder, None, &limits, &hooks)
    }
}

#[test]
fn every_step_is_measured_and_verified_with_all_its_metrics() {
    let mut bench = bench(|_, _| {}, &[Load::None]);
    let outcome = bench.run(&|| false);
    assert_eq!((outcome.state, outcome.wrong), (State::Complete, 0), "{:?}", outcome.reason);
    let samples = bench.recorder.folder().samples().unwrap();
    assert_eq!(samples.len(), 6 * 2 * 3);
    for sample in &samples {
        assert_eq!(sample.verify, Verify::Ok);
        assert!(sample.t_host_ns.unwrap() > 0.0 && sample.bandwidth_bytes_per_s.unwrap() > 0.0);
        let bytes = bench.recorder.folder().plan().configurations[sample.configuration as usize];
        assert_eq!(sample.t_gpu_ns, Some(500.0 + bytes.size_bytes as f64));
        assert_eq!(sample.t_oneway_ns, Some(650.0 + bytes.size_bytes as f64));
        assert_eq!(sample.clock_uncertainty_ns, Some(0.0), "all have one clock");
        assert_eq!(sample.flags.contains(Flags::NEAR_FLOOR), bytes.size_bytes == 1);
    }
    // One for each warm-up of a configuration, and for each sample 64 and eight that don't count.
    assert_eq!(bench.gated.load(Ordering::Relaxed), 12 + 72 * 36);
    bench.recorder.finish(&Run { state: State::Complete, ..Run::default() }).unwrap();
}

#[test]
fn a_gpu_that_fails_takes_its_own_links_out_and_the_rest_goes_on() {
    let mut bench = bench(|_, _| {}, &[Load::None]);
    bench.devices[1].fail_after(20);
    let outcome = bench.run(&|| false);
    assert_eq!(outcome.state, State::Failed);
    assert!(outcome.error.is_none() && outcome.reason.is_some());
    let failed = |src: u32, dst: u32| {
        let name = format!("copy_engine from rank {src} to {dst} ended: ");
        outcome.failures.iter().any(|text| text.starts_with(&name))
    };
    let samples = bench.recorder.folder().samples().unwrap();
    let plan = bench.recorder.folder().plan().clone();
    for (src, dst) in [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)] {
        let is_of = |one: &&polyrail_profile::Sample| {
            let one = plan.configurations[one.configuration as usize];
            (one.src, one.dst) == (src, dst)
        };
        let count = samples.iter().filter(is_of).count();
        assert_eq!(count == 6, !failed(src, dst), "{count} samples from {src} to {dst}");
        assert!(!failed(src, dst) || src == 1 || dst == 1, "{:?}", outcome.failures);
    }
    assert!(!outcome.failures.is_empty());
    assert_eq!(bench.recorder.remaining().len(), 36 - samples.len(), "the rest can be resumed");
}

#[test]
fn gpus_that_can_raise_no_flags_are_measured_without_one_way_times_and_say_why() {
    let mut bench = bench(|_, gpu| gpu.has_no_flags = true, &[Load::None]);
    let outcome = bench.run(&|| false);
    assert_eq!((outcome.state, outcome.wrong), (State::Complete, 0), "{:?}", outcome.reason);
    let samples = bench.recorder.folder().samples().unwrap();
    assert_eq!(samples.len(), 36);
    assert!(samples.iter().all(|one| one.t_oneway_ns.is_none() && one.t_gpu_ns.is_some()));
    let [note] = bench.station.notes() else { panic!("{:?}", bench.station.notes()) };
    assert!(note.starts_with("copy_engine has no t_oneway: "), "{note}");
    assert!(note.contains("raising a flag"), "{note}");
}

#[test]
fn wrong_bytes_are_failed_samples_and_counted() {
    let mut bench = bench(|rank, gpu| gpu.is_wrong = rank == 2, &[Load::None]);
    let outcome = bench.run(&|| false);
    assert_eq!((outcome.state, outcome.wrong), (State::Complete, 12));
    let samples = bench.recorder.folder().samples().unwrap();
    for sample in samples {
        let one = bench.recorder.folder().plan().configurations[sample.configuration as usize];
        let expected = if one.dst == 2 { Verify::Failed } else { Verify::Ok };
        assert_eq!(sample.verify, expected);
    }
}

#[test]
fn an_interrupt_keeps_what_is_done_and_resuming_makes_the_rest() {
    let mut first = bench(|_, _| {}, &[Load::None]);
    let asked = AtomicU32::new(0);
    let outcome = first.run(&|| asked.fetch_add(1, Ordering::Relaxed) >= 7);
    assert_eq!((outcome.state, outcome.samples), (State::Interrupted, 7));
    let Bench { mut station, recorder, dir, .. } = first;
    drop(recorder);
    let recorder = Folder::resume(dir.path().join("p")).unwrap();
    assert_eq!((recorder.remaining().len(), recorder.session()), (29, 1));
    let hooks = Hooks { is_interrupted: &|| false, progress: &|_, _, _| {} };
    let outcome = run(&mut station, &recorder, None, &Limits::default(), &hooks);
    assert_eq!((outcome.state, outcome.samples), (State::Complete, 29));
    let samples = recorder.folder().samples().unwrap();
    assert_eq!(samples.iter().filter(|sample| sample.session == 1).count(), 29);
    assert!(samples[7..].iter().all(|sample| sample.verify == Verify::Off));
}

#[test]
fn background_load_moves_other_bytes_and_the_measured_ones_stay_right() {
    let loads = [Load::None, Load::SameSource, Load::SameSink];
    let mut bench = bench(|_, _| {}, &loads);
    let outcome = bench.run(&|| false);
    assert_eq!((outcome.state, outcome.wrong), (State::Complete, 0), "{:?}", outcome.reason);
    assert_eq!(outcome.samples, 3 * 36);
}

#[test]
fn load_without_enough_endpoints_is_a_failure_with_the_number() {
    let mut bench = bench(|_, _| {}, &[Load::Disjoint]);
    let outcome = bench.run(&|| false);
    assert_eq!((outcome.state, outcome.samples), (State::Failed, 0));
    assert!(outcome.reason.unwrap().contains("needs 2 endpoints besides the pair; 1 are"));
}

/// Sends through the sources' own queues.
struct FakeNccl {
    gpus: HashMap<u32, SharedAccelerator>,
    /// Rank whose sends fail.
    broken: Option<u32>,
    now_ns: i64,
    sends: Arc<AtomicU32>,
}

impl FakeNccl {
    fn put(&mut self, src: u32, dst: u32, bytes: u64) -> Result<(), ProfilerError> {
        self.sends.fetch_add(1, Ordering::Relaxed);
        if self.broken == Some(src) {
            let reason = "the fake broke it".into();
            return Err(ProfilerError::Engine { what: "a transfer by NCCL", reason });
        }
        let (from, to) = (lock(&self.gpus[&src]), lock(&self.gpus[&dst]));
        let mut queue = from.open_queue(PathKind::Nccl).unwrap();
        let (to, from) = (CopyPlace::Device(to.sink(), 0), CopyPlace::Device(from.source(), 0));
        queue.push(to, from, bytes).unwrap();
        assert!(queue.begin().unwrap().wait(SOON).unwrap());
        Ok(())
    }
}

impl Messenger for FakeNccl {
    fn send(&mut self, src: u32, dst: u32, bytes: u64, count: u64) -> Result<(), ProfilerError> {
        (0..count).try_for_each(|_| self.put(src, dst, bytes))
    }

    fn one_way(&mut self, src: u32, dst: u32, bytes: u64) -> Result<TwoEnds, ProfilerError> {
        self.put(src, dst, bytes)?;
        self.now_ns += 1_000_000;
        let now_ns = self.now_ns;
        Ok(TwoEnds { source_ns: [now_ns, now_ns + 800], sink_ns: [now_ns - 50, now_ns + 900] })
    }

    fn trips(&mut self, src: u32, dst: u32, bytes: u64, count: u32) -> Result<f64, ProfilerError> {
        for _ in 0..count {
            self.put(src, dst, bytes)?;
            self.put(dst, src, bytes)?;
        }
        Ok(f64::from(2 * count) * 750.0)
    }

    fn clock(&self, _: u32) -> Option<u32> {
        Some(0)
    }
}

fn nccl_bench(broken: Option<u32>, wrong: Option<u32>) -> Bench {
    let mut bench =
        bench_of(PathKind::Nccl, |rank, gpu| gpu.is_wrong = wrong == Some(rank), &[Load::None]);
    let (gpus, sends) = (bench.station.gpus(), bench.gated.clone());
    let messenger = FakeNccl { gpus: gpus.clone(), broken, now_ns: 1_000_000, sends };
    let carrier = Box::new(NcclPath::new(Box::new(messenger), gpus, SEED));
    bench.station = bench.station.with(PathKind::Nccl, carrier);
    bench
}

#[test]
fn nccl_is_measured_one_way_there_and_back_and_as_a_stream() {
    let mut bench = nccl_bench(None, None);
    let outcome = bench.run(&|| false);
    assert_eq!((outcome.state, outcome.wrong), (State::Complete, 0), "{:?}", outcome.reason);
    let samples = bench.recorder.folder().samples().unwrap();
    assert_eq!(samples.len(), 36);
    for sample in &samples {
        assert_eq!(sample.verify, Verify::Ok);
        assert_eq!((sample.t_oneway_ns, sample.t_rtt2_ns), (Some(900.0), Some(750.0)));
        assert_eq!(sample.t_gpu_ns, None, "one end alone does not say how long it took");
        assert!(sample.t_host_ns.unwrap() > 0.0 && sample.bandwidth_bytes_per_s.unwrap() > 0.0);
    }
}

#[test]
fn nccls_wrong_bytes_and_broken_links_are_told_like_all_others() {
    let mut wrong = nccl_bench(None, Some(2));
    // Round trips are verified at both ends, so every link of that rank fails.
    assert_eq!(wrong.run(&|| false).wrong, 4 * 6);
    let mut broken = nccl_bench(Some(1), None);
    let outcome = broken.run(&|| false);
    assert_eq!(outcome.state, State::Failed);
    let name = "nccl from rank 1 to 0 ended: a transfer by NCCL: the fake broke it";
    assert!(outcome.failures.iter().any(|text| text == name), "{:?}", outcome.failures);
}

/// Devices that cool down once, and warm up while the station copies more than it measures.
struct FakeThermometer {
    gated: Arc<AtomicU32>,
    /// Number of gated transfers at the time of cooling down.
    cold: Mutex<Option<u32>>,
    /// Whether copies warm the devices.
    warms: bool,
}

impl Thermometer for FakeThermometer {
    fn look(&self) -> Vec<Temperature> {
        let gated = self.gated.load(Ordering::Relaxed);
        let mut cold = self.cold.lock().unwrap();
        if gated >= 100 && cold.is_none() {
            *cold = Some(gated);
        }
        let warmed = cold.map_or(0, |then| gated - then);
        let lacking = if cold.is_some() { 8.0 } else { 0.0 };
        let back = if self.warms { f64::from(warmed) / 40.0 } else { 0.0 };
        let rank_1_c = 50.0 - f64::max(lacking - back, 0.0);
        let of = |rank, temperature_c: f64| Temperature {
            at_ns: crate::reference_ns(),
            rank,
            temperature_c: Some(temperature_c),
            ..Temperature::default()
        };
        vec![of(0, 40.0), of(1, rank_1_c), of(2, 45.0)]
    }

    fn driver(&self) -> Option<String> {
        None
    }
}

/// `most`: maximum duration of one warming.
fn rewarmed(warms: bool, most: Duration) -> Vec<Rewarmed> {
    let mut bench = bench(|_, _| {}, &[Load::None]);
    let (gated, cold) = (bench.gated.clone(), Mutex::default());
    let watcher = Watcher::of(Box::new(FakeThermometer { gated, cold, warms }));
    let rewarm =
        Rewarm { colder_c: 4.0, every: Duration::ZERO, turn: Duration::from_millis(20), most };
    let limits = Limits { rewarm: Some(rewarm), ..Limits::default() };
    let hooks = Hooks { is_interrupted: &|| false, progress: &|_, _, _| {} };
    let outcome = run(&mut bench.station, &bench.recorder, Some(&watcher), &limits, &hooks);
    assert_eq!((outcome.state, outcome.samples), (State::Complete, 36), "{:?}", outcome.reason);
    outcome.rewarmed
}

#[test]
fn a_gpu_that_cooled_down_is_warmed_again_and_it_is_told() {
    const MOST: Duration = Duration::from_secs(60);
    let found = rewarmed(true, MOST);
    let first = found.first().expect("it became 8 degrees colder, and 4 are too many");
    assert_eq!((first.rank, first.warm_c), (1, 50.0));
    assert!(first.from_c <= 46.0 && first.to_c >= 48.0, "{first:?}");
    assert!(first.took_s < MOST.as_secs_f64(), "{first:?}");
}

#[test]
fn a_gpu_that_stays_cold_is_warmed_once_and_taken_as_it_is() {
    let found = rewarmed(false, Duration::from_millis(500));
    let [only] = found.as_slice() else { panic!("{found:?}") };
    assert_eq!((only.rank, only.from_c, only.to_c), (1, 42.0, 42.0));
    assert!(only.took_s >= 0.5, "{only:?}");
}

#[test]
fn what_takes_less_than_the_step_of_a_clock_is_not_measured() {
    let measured = Measured {
        t_host_ns: Some(0.0),
        t_oneway_ns: Some(0.0),
        t_gpu_ns: Some(3.0),
        ..Measured::default()
    };
    let step = Step { order: 0, configuration: 0, repetition: 0, warmups: 0 };
    let (limits, mut clocks) = (Limits::default(), Clocks::default());
    let path = PathKind::HostMemory;
    let sample = sample_of(path, &step, 0, measured, [None, None], &limits, &mut clocks);
    assert_eq!(
        (sample.t_host_ns, sample.t_oneway_ns, sample.clock_uncertainty_ns),
        (None, None, None)
    );
    assert_eq!(sample.t_gpu_ns, Some(3.0));
}
