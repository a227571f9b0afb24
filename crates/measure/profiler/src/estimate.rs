//! Estimates the duration of a plan.

use std::time::{Duration, Instant};

use polyrail::{Config, Memory};
use polyrail_profile::{Configuration, Endpoint, EndpointKind, PathKind, Plan, Step};

use crate::carrier::{Cargo, Carrier, stream_of};
use crate::copy::{STREAM_BYTES as COPY_STREAM_BYTES, meeting_s};
use crate::rails::{
    EndMemory, PING_PONG_MAX_BYTES, Rails, Stream, TRIPS, span_bytes, waking_writes,
};
use crate::run::WARM_TIME;
use crate::station::{check_bytes_per_s, fill_bytes_per_s};

/// Time for two threads to meet on an idle machine, in seconds.
const MEETING_S: f64 = 100e-6;
/// Time for writing a sample, and its lines in log and traces at the end, in seconds.
const RECORD_S: f64 = 60e-6;
/// Time for opening engines and the folder, in seconds.
const OPEN_S: f64 = 0.1;
/// Rate of touching memory for the first time and filling it.
const FILL_BYTES_PER_S: f64 = 1e9;
/// Filling less memory than this takes almost no time, even on a busy machine.
const MUCH_BYTES: u64 = 64 << 20;
/// Rate of clearing a sink and comparing it with the pattern.
const CHECK_BYTES_PER_S: f64 = 2e9;
/// The same rate, by kernels on a GPU.
const GPU_CHECK_BYTES_PER_S: f64 = 500e9;
/// Fixed cost of one write over rails, in seconds.
const WRITE_S: f64 = 25e-6;
const WRITE_BYTES_PER_S: f64 = 7e9;
/// Sizes to try on this machine, in bytes.
const TRIED_SIZES: [u64; 5] = [8, 4 << 10, 64 << 10, 1 << 20, 16 << 20];
const TRIED_TIMES: u32 = 2;
/// Bytes that fit into a processor's caches.
const CACHED_BYTES: u64 = 4 << 20;

/// Estimates the duration of a plan on this machine. The plan gives the work. A short trial measures how long threads
/// wait for each other, how fast memory is filled and compared, and how long writes over rails take. Rates of GPUs are
/// typical values.
#[derive(Clone, Debug)]
pub struct Estimate<'a> {
    plan: &'a Plan,
    verify: bool,
    meeting_s: f64,
    fill_bytes_per_s: f64,
    check_bytes_per_s: f64,
    /// Seconds for one write over rails, by ascending size in bytes. Empty: typical values.
    writes_s: Vec<(u64, f64)>,
}

/// Work of one configuration.
struct Work {
    /// Transfers of a sample.
    transfers: f64,
    /// Fixed cost of one transfer, without its bytes.
    transfer_s: f64,
    bytes_per_s: f64,
    /// Bytes that are cleared and compared.
    checked_bytes: f64,
    /// Fixed cost of a sample, without its transfers.
    sample_s: f64,
}

impl<'a> Estimate<'a> {
    /// Estimates for an idle machine.
    pub(crate) fn usual(plan: &'a Plan, verify: bool) -> Self {
        Self {
            plan,
            verify,
            meeting_s: MEETING_S,
            fill_bytes_per_s: FILL_BYTES_PER_S,
            check_bytes_per_s: CHECK_BYTES_PER_S,
            writes_s: Vec::new(),
        }
    }

    /// Estimates for this machine now, since everything takes longer if other programs use the CPUs. Tries writes over
    /// rails with these settings for about a second, in separate memory.
    pub fn here(plan: &'a Plan, verify: bool, config: &Config) -> Self {
        let mut here = Self::usual(plan, verify);
        let has = |path| plan.configurations.iter().any(|one| one.path == path);
        if has(PathKind::HostMemory) {
            here.meeting_s = meeting_s();
        }
        if verify && here.filled_bytes() > MUCH_BYTES {
            here.check_bytes_per_s = check_bytes_per_s().unwrap_or(CHECK_BYTES_PER_S);
        }
        if has(PathKind::Tcp) {
            // Ignore failures to open: the measurement reports them.
            here.writes_s = tried_writes_s(config, here.largest_bytes()).unwrap_or_default();
        }
        if here.filled_bytes() > MUCH_BYTES {
            here.fill_bytes_per_s = fill_bytes_per_s().unwrap_or(FILL_BYTES_PER_S);
        }
        here
    }

    /// Bytes of sources and sinks in host memory.
    fn filled_bytes(&self) -> u64 {
        let is_host = |one: &&Endpoint| one.kind == EndpointKind::Host;
        let hosts = self.plan.endpoints.iter().filter(is_host).count() as u64;
        2 * hosts * memory_bytes(self.plan)
    }

    fn largest_bytes(&self) -> u64 {
        self.plan.configurations.iter().map(|one| one.size_bytes).max().unwrap_or(0)
    }

    /// Estimates the duration of the steps, including the files written at the end.
    pub fn steps(&self, steps: &[Step]) -> Duration {
        let known = steps
            .iter()
            .filter_map(|step| Some((self.plan.configuration(step.configuration)?, step)));
        Duration::from_secs_f64(known.map(|(one, step)| self.step_s(one, step)).sum())
    }

    /// Estimates the duration of the preparation: allocating and filling host memory.
    pub fn start(&self) -> Duration {
        Duration::from_secs_f64(OPEN_S + self.filled_bytes() as f64 / self.fill_bytes_per_s)
    }

    /// Estimates the duration of one step, in seconds.
    pub(crate) fn step_s(&self, configuration: &Configuration, step: &Step) -> f64 {
        let work = self.work(configuration);
        let bytes = configuration.size_bytes as f64;
        let is_tried = matches!(configuration.path, PathKind::Tcp) && !self.writes_s.is_empty();
        let one_s = match is_tried {
            true => self.write_s(configuration.size_bytes),
            false => work.transfer_s + bytes / work.bytes_per_s,
        };
        let warm_s = (f64::from(step.warmups) * one_s).min(WARM_TIME.as_secs_f64());
        let is_gpu = |rank: u32| {
            let end = self.plan.endpoints.iter().find(|end| end.rank == rank);
            end.is_some_and(|end| end.kind == EndpointKind::Gpu)
        };
        let rate = match is_gpu(configuration.dst) {
            true => GPU_CHECK_BYTES_PER_S,
            false => self.check_bytes_per_s,
        };
        let check_s = if self.verify { work.checked_bytes / rate } else { 0.0 };
        warm_s + work.transfers * one_s + check_s + work.sample_s + RECORD_S
    }

    /// Seconds for one write: interpolated between the sizes tried, proportional to bytes beyond them.
    fn write_s(&self, bytes: u64) -> f64 {
        let after = self.writes_s.iter().position(|(size, _)| bytes <= *size);
        let size = bytes as f64;
        match (after, self.writes_s.last()) {
            (Some(0), _) => self.writes_s[0].1,
            (Some(after), _) => {
                let ((low, low_s), (high, high_s)) =
                    (self.writes_s[after - 1], self.writes_s[after]);
                low_s + (high_s - low_s) * (size - low as f64) / (high - low) as f64
            }
            (None, Some((largest, largest_s))) => largest_s * size / *largest as f64,
            (None, None) => WRITE_S + size / WRITE_BYTES_PER_S,
        }
    }

    fn work(&self, configuration: &Configuration) -> Work {
        let bytes = configuration.size_bytes;
        let stream = |total_bytes| stream_of(bytes, total_bytes).0 as f64;
        match configuration.path {
            // Two transfers come before the stream: one for the host's time and one for the one-way time.
            PathKind::HostMemory | PathKind::SharedMemory => Work {
                transfers: 2.0 + stream(COPY_STREAM_BYTES),
                transfer_s: 1e-6,
                bytes_per_s: if bytes <= CACHED_BYTES { 30e9 } else { 10e9 },
                checked_bytes: 3.0 * bytes as f64,
                sample_s: self.meeting_s,
            },
            PathKind::Tcp | PathKind::HostStaged => {
                let checks = 2.0 + if bytes <= PING_PONG_MAX_BYTES { 2.0 } else { 0.0 };
                Work {
                    transfers: writes(bytes),
                    transfer_s: WRITE_S,
                    bytes_per_s: WRITE_BYTES_PER_S,
                    checked_bytes: checks * bytes as f64 + span_bytes(bytes) as f64,
                    sample_s: 0.0,
                }
            }
            // Trains of gated transfers, and kernels that verify at memory speed; the counts are those observed on
            // H200.
            path @ (PathKind::CopyEngine | PathKind::Kernel | PathKind::Nccl) => Work {
                transfers: 8.0,
                transfer_s: if path == PathKind::Nccl { 100e-6 } else { 300e-6 },
                bytes_per_s: 300e9,
                checked_bytes: 0.0,
                sample_s: if path == PathKind::Nccl { 800e-6 } else { 2_400e-6 },
            },
        }
    }
}

/// Number of writes of one sample over rails.
fn writes(bytes: u64) -> f64 {
    let waking = f64::from(2 * waking_writes(bytes));
    let trips = if bytes <= PING_PONG_MAX_BYTES { f64::from(2 * TRIPS) } else { 0.0 };
    waking + 2.0 + trips + Stream::of(bytes).transfers as f64
}

/// Bytes of each of the two memories (source and sink) of an endpoint.
pub fn memory_bytes(plan: &Plan) -> u64 {
    let bytes = |one: &Configuration| match one.path {
        PathKind::Tcp => span_bytes(one.size_bytes),
        _ => one.size_bytes,
    };
    plan.configurations.iter().map(bytes).max().unwrap_or(0)
}

/// Measures the duration of writes of some sizes, made as in a sample, by size; `None` if no engine opens.
fn tried_writes_s(config: &Config, largest_bytes: u64) -> Option<Vec<(u64, f64)>> {
    let after = TRIED_SIZES.iter().position(|size| *size >= largest_bytes);
    let sizes = &TRIED_SIZES[..after.map_or(TRIED_SIZES.len(), |after| after + 1)];
    let span = sizes.iter().map(|size| span_bytes(*size)).max()?;
    let memory = || Memory::anonymous(span).ok();
    let (source, sink) = (memory()?, memory()?);
    // Untouched pages all map to the same zero page, which stays in a cache.
    crate::pattern::fill(&source, span, 1);
    crate::pattern::clear(&sink, span);
    // Messages also go back, and these are small.
    let back = Memory::anonymous(PING_PONG_MAX_BYTES).ok()?;
    let ends = vec![EndMemory::Host(source.clone(), back), EndMemory::Host(source, sink)];
    let mut rails = Rails::new(config, ends, 1).ok()?;
    let mut tried = Vec::new();
    for &size in sizes {
        let cargo = Cargo { src: 0, dst: 1, bytes: size };
        // The first one opens the TCP windows.
        rails.measure(cargo, false).ok()?;
        let begin = Instant::now();
        for _ in 0..TRIED_TIMES {
            rails.measure(cargo, false).ok()?;
        }
        let sample_s = begin.elapsed().as_secs_f64() / f64::from(TRIED_TIMES);
        tried.push((size, sample_s / writes(size)));
    }
    Some(tried)
}

#[cfg(test)]
mod tests {
    use polyrail_profile::PlanBuilder;

    use super::*;

    fn plan(path: PathKind, endpoints: u32, sizes: &[u64], repetitions: u32) -> Plan {
        let node = |_| Endpoint {
            rank: 0,
            kind: EndpointKind::Host,
            name: "x".into(),
            host: "x".into(),
            device: "x".into(),
        };
        let builder = PlanBuilder::new((0..endpoints).map(node)).path(path).sizes(sizes);
        builder.repetitions(repetitions).build().unwrap()
    }

    fn seconds(plan: &Plan, verify: bool, meeting_s: f64) -> f64 {
        let estimate = Estimate { meeting_s, ..Estimate::usual(plan, verify) };
        estimate.steps(&plan.steps()).as_secs_f64()
    }

    /// Within a thousandth.
    fn is_about(found: f64, expected: f64) -> bool {
        (found / expected - 1.0).abs() < 1e-3
    }

    #[test]
    fn small_copies_cost_their_threads_and_large_ones_their_bytes() {
        let small = plan(PathKind::HostMemory, 2, &[8], 1000);
        // 2000 samples: a meeting, 34 copies and a line each; ten warm-ups.
        let copy_s = 1e-6 + 8.0 / 30e9;
        let expected = 2000.0 * (2e-3 + 34.0 * copy_s + 60e-6) + 10.0 * copy_s;
        assert!(is_about(seconds(&small, false, 2e-3), expected));
        assert!(seconds(&small, false, 4e-3) > 1.9 * expected, "a busy machine is slower");

        let large = plan(PathKind::HostMemory, 2, &[1 << 30], 2);
        let gib = (1_u64 << 30) as f64;
        let copies = |count: f64| count * (1e-6 + gib / 10e9);
        // Five copies each, and before the first of a configuration as many as fit into half a second.
        let plain = 4.0 * (copies(5.0) + 160e-6) + 2.0 * 0.5;
        assert!(is_about(seconds(&large, false, 100e-6), plain));
        let checked = plain + 4.0 * 3.0 * gib / 2e9;
        assert!(is_about(seconds(&large, true, 100e-6), checked));
    }

    #[test]
    fn rails_have_trips_up_to_a_mib_and_streams_of_many() {
        // 32 + 2 + 8 + 128 transfers at 1 MiB, 4 + 2 + 8 at 64 MiB, with 4 outstanding.
        let mut plan = plan(PathKind::Tcp, 2, &[1 << 20, 64 << 20], 1);
        plan.warmups = 0;
        let write = |bytes: u64| 25e-6 + bytes as f64 / 7e9;
        let expected = 2.0 * (170.0 * write(1 << 20) + 14.0 * write(64 << 20) + 2.0 * 60e-6);
        assert!(is_about(seconds(&plan, false, 0.0), expected));
        // Both single writes, the round trips and the stream's places are cleared and compared.
        let checked = (4.0 + 128.0) * (1 << 20) as f64 + (2.0 + 4.0) * (64 << 20) as f64;
        let expected = expected + 2.0 * checked / CHECK_BYTES_PER_S;
        assert!(is_about(seconds(&plan, true, 0.0), expected));
    }

    #[test]
    fn writes_that_were_tried_are_what_others_are_reckoned_by() {
        let plan = plan(PathKind::Tcp, 2, &[8], 1);
        let writes_s = vec![(8, 10e-6), (1 << 20, 110e-6), (16 << 20, 2e-3)];
        let estimate = Estimate { writes_s, ..Estimate::usual(&plan, false) };
        for (bytes, expected) in
            [(1, 10e-6), (8, 10e-6), (512 << 10, 60e-6), (16 << 20, 2e-3), (1 << 30, 128e-3)]
        {
            assert!(is_about(estimate.write_s(bytes), expected), "{bytes}");
        }
        let step_s =
            estimate.step_s(&plan.configurations[0], &Step { warmups: 0, ..plan.steps()[0] });
        assert!(is_about(step_s, (32.0 + 2.0 + 8.0 + 1024.0) * 10e-6 + 60e-6), "{step_s}");
    }

    #[test]
    fn the_start_is_the_memory_that_is_filled() {
        let plan = plan(PathKind::Tcp, 3, &[8, 500_000_000], 1);
        let start_s = Estimate::usual(&plan, true).start().as_secs_f64();
        assert!(is_about(start_s, 0.1 + 3.0), "{start_s}");
        let config = Config::builder().set("rails", "127.0.0.1").unwrap().build().unwrap();
        let here = Estimate::here(&plan, true, &config);
        assert_eq!(here.writes_s.len(), TRIED_SIZES.len(), "{here:?}");
        assert!(
            here.writes_s.iter().all(|(_, write_s)| (1e-7..10.0).contains(write_s)),
            "{here:?}"
        );
        let here_s = here.start().as_secs_f64();
        assert!(here_s > 0.1 + 3.0 / 50.0 && here_s < 1e3, "no memory is that fast: {here_s}");
    }

    #[test]
    fn the_default_plan_of_four_gpus_with_all_paths_is_within_ten_minutes() {
        let sizes = polyrail_profile::default_sizes();
        let mut gpus = plan(PathKind::CopyEngine, 4, &sizes, 10);
        gpus.endpoints.iter_mut().for_each(|end| end.kind = EndpointKind::Gpu);
        let paths = [PathKind::CopyEngine, PathKind::Kernel, PathKind::Nccl, PathKind::Tcp];
        let of = |path: PathKind| {
            let mut plan = gpus.clone();
            plan.configurations.iter_mut().for_each(|one| one.path = path);
            seconds(&plan, true, MEETING_S)
        };
        let each = paths.map(of);
        let all: f64 = each.iter().sum();
        assert!(all < 600.0, "{each:?}");
        assert!(each.iter().all(|path| *path > 5.0), "no path takes no time: {each:?}");
        let host = plan(PathKind::Tcp, 2, &sizes, 3);
        assert!((5..300).contains(&(seconds(&host, true, MEETING_S) as u64)));
    }

    #[test]
    fn what_threads_take_to_meet_is_measured() {
        let config = Config::builder().set("rails", "127.0.0.1").unwrap().build().unwrap();
        let copies = plan(PathKind::HostMemory, 2, &[8], 1);
        let here = Estimate::here(&copies, true, &config);
        assert!(here.meeting_s > 1e-6 && here.meeting_s < 5.0, "{here:?}");
        assert!(here.writes_s.is_empty(), "no rails, nothing to try");
        let rails = plan(PathKind::Tcp, 2, &[8], 1);
        let here = Estimate::here(&rails, true, &config);
        assert_eq!(here.meeting_s, MEETING_S, "nobody meets there");
        assert_eq!(here.writes_s.len(), 1, "no more than the plan has: {here:?}");
    }
}
