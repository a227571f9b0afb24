//! How long a plan takes.

use std::time::Duration;

use polyrail_profile::{Configuration, Endpoint, EndpointKind, PathKind, Plan, Step};

use crate::carrier::stream_of;
use crate::copy::{STREAM_BYTES as COPY_STREAM_BYTES, meeting_s};
use crate::rails::{PING_PONG_MAX_BYTES, STREAM_BYTES, TRIPS};
use crate::run::WARM_TIME;
use crate::station::fill_bytes_per_s;

/// Two threads on a machine that does nothing else.
const MEETING_S: f64 = 100e-6;
/// Writing a sample down, and its lines in log and traces at the end.
const RECORD_S: f64 = 60e-6;
/// Opening engines and the folder.
const OPEN_S: f64 = 0.1;
/// Memory that is touched for the first time and filled.
const FILL_BYTES_PER_S: f64 = 1e9;
/// Less memory than this is filled in no time, busy or not.
const MUCH_BYTES: u64 = 64 << 20;
/// Setting a sink to 0, and comparing it with the pattern.
const CHECK_BYTES_PER_S: f64 = 2e9;
/// What stays in a processor's caches.
const CACHED_BYTES: u64 = 4 << 20;

/// How long a plan takes on this machine: what is made and how often is known, rates of transfers are
/// usual ones, and how long threads wait for each other and how fast memory is filled is measured.
#[derive(Clone, Copy, Debug)]
pub struct Estimate<'a> {
    plan: &'a Plan,
    verify: bool,
    meeting_s: f64,
    fill_bytes_per_s: f64,
}

/// What one configuration is made of.
struct Work {
    /// Transfers of a sample.
    transfers: f64,
    /// What one takes beside its bytes.
    transfer_s: f64,
    bytes_per_s: f64,
    /// How often a sink is cleared and compared.
    checks: f64,
    /// What a sample takes beside its transfers.
    sample_s: f64,
}

impl<'a> Estimate<'a> {
    /// On a machine that does nothing else.
    pub(crate) fn usual(plan: &'a Plan, verify: bool) -> Self {
        Self { plan, verify, meeting_s: MEETING_S, fill_bytes_per_s: FILL_BYTES_PER_S }
    }

    /// On this machine as it is now: where others have its CPUs, threads wait for each other.
    pub fn here(plan: &'a Plan, verify: bool) -> Self {
        let mut here = Self::usual(plan, verify);
        if plan.configurations.iter().any(|one| one.path == PathKind::HostMemory) {
            here.meeting_s = meeting_s();
        }
        if here.filled_bytes() > MUCH_BYTES {
            here.fill_bytes_per_s = fill_bytes_per_s().unwrap_or(FILL_BYTES_PER_S);
        }
        here
    }

    /// Sources and sinks in memory of the host.
    fn filled_bytes(&self) -> u64 {
        let largest = self.plan.configurations.iter().map(|one| one.size_bytes).max().unwrap_or(0);
        let is_host = |one: &&Endpoint| one.kind == EndpointKind::Host;
        2 * self.plan.endpoints.iter().filter(is_host).count() as u64 * largest
    }

    /// About how long the steps take, with what is written at the end.
    pub fn steps(&self, steps: &[Step]) -> Duration {
        let known = steps
            .iter()
            .filter_map(|step| Some((self.plan.configuration(step.configuration)?, step)));
        Duration::from_secs_f64(known.map(|(one, step)| self.step_s(one, step)).sum())
    }

    /// About how long it takes until the first step: memory of the host is taken and filled.
    pub fn start(&self) -> Duration {
        Duration::from_secs_f64(OPEN_S + self.filled_bytes() as f64 / self.fill_bytes_per_s)
    }

    /// About how long one step takes, in seconds.
    pub(crate) fn step_s(&self, configuration: &Configuration, step: &Step) -> f64 {
        let work = self.work(configuration);
        let bytes = configuration.size_bytes as f64;
        let one_s = work.transfer_s + bytes / work.bytes_per_s;
        let warm_s = (f64::from(step.warmups) * one_s).min(WARM_TIME.as_secs_f64());
        let check_s = if self.verify { work.checks * bytes / CHECK_BYTES_PER_S } else { 0.0 };
        warm_s + work.transfers * one_s + check_s + work.sample_s + RECORD_S
    }

    fn work(&self, configuration: &Configuration) -> Work {
        let bytes = configuration.size_bytes;
        let stream = |total_bytes| stream_of(bytes, total_bytes).0 as f64;
        match configuration.path {
            // One for the host's time and one for the one-way time come before the stream.
            PathKind::HostMemory | PathKind::SharedMemory => Work {
                transfers: 2.0 + stream(COPY_STREAM_BYTES),
                transfer_s: 1e-6,
                bytes_per_s: if bytes <= CACHED_BYTES { 30e9 } else { 10e9 },
                checks: 3.0,
                sample_s: self.meeting_s,
            },
            PathKind::Tcp | PathKind::HostStaged => {
                let trips = bytes <= PING_PONG_MAX_BYTES;
                Work {
                    transfers: 2.0
                        + if trips { f64::from(2 * TRIPS) } else { 0.0 }
                        + stream(STREAM_BYTES),
                    transfer_s: 25e-6,
                    bytes_per_s: 7e9,
                    checks: if trips { 5.0 } else { 3.0 },
                    sample_s: 0.0,
                }
            }
            // Trains of gated transfers, and kernels that verify at the speed of the memory: as
            // many transfers as were seen on H200.
            path @ (PathKind::CopyEngine | PathKind::Kernel | PathKind::Nccl) => Work {
                transfers: 8.0,
                transfer_s: if path == PathKind::Nccl { 100e-6 } else { 300e-6 },
                bytes_per_s: 300e9,
                checks: 0.0,
                sample_s: if path == PathKind::Nccl { 800e-6 } else { 2_400e-6 },
            },
        }
    }
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
        // Five copies each, and before the first of a configuration as many as half a second holds.
        let plain = 4.0 * (copies(5.0) + 160e-6) + 2.0 * 0.5;
        assert!(is_about(seconds(&large, false, 100e-6), plain));
        let checked = plain + 4.0 * 3.0 * gib / 2e9;
        assert!(is_about(seconds(&large, true, 100e-6), checked));
    }

    #[test]
    fn rails_have_trips_up_to_a_mib_and_a_shorter_stream_beyond() {
        // 42 transfers up to 1 MiB, six at 16 MiB; no warm-ups.
        let mut plan = plan(PathKind::Tcp, 2, &[1 << 20, 16 << 20], 1);
        plan.warmups = 0;
        let write = |bytes: u64| 25e-6 + bytes as f64 / 7e9;
        let expected = 2.0 * (42.0 * write(1 << 20) + 6.0 * write(16 << 20) + 2.0 * 60e-6);
        assert!(is_about(seconds(&plan, false, 0.0), expected));
    }

    #[test]
    fn the_start_is_the_memory_that_is_filled() {
        let plan = plan(PathKind::Tcp, 3, &[8, 500_000_000], 1);
        let start_s = Estimate::usual(&plan, true).start().as_secs_f64();
        assert!(is_about(start_s, 0.1 + 3.0), "{start_s}");
        let here_s = Estimate::here(&plan, true).start().as_secs_f64();
        assert!(here_s > 0.1 + 3.0 / 50.0 && here_s < 1e3, "no memory is that fast: {here_s}");
    }

    #[test]
    fn the_default_plan_of_a_host_is_minutes_and_that_of_four_gpus_too() {
        let sizes = polyrail_profile::default_sizes();
        let host = plan(PathKind::Tcp, 2, &sizes, 3);
        let gpus = plan(PathKind::CopyEngine, 4, &sizes, 10);
        for plan in [host, gpus] {
            let expected = seconds(&plan, true, MEETING_S) as u64;
            assert!((5..300).contains(&expected), "{expected} s");
        }
    }

    #[test]
    fn what_threads_take_to_meet_is_measured() {
        let copies = plan(PathKind::HostMemory, 2, &[8], 1);
        let here = Estimate::here(&copies, true);
        assert!(here.meeting_s > 1e-6 && here.meeting_s < 5.0, "{here:?}");
        let rails = plan(PathKind::Tcp, 2, &[8], 1);
        assert_eq!(Estimate::here(&rails, true).meeting_s, MEETING_S, "nobody meets there");
    }
}
