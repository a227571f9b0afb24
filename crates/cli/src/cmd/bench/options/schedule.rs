//! Schedule of the measurements of a run, and its checks.

use std::path::PathBuf;
use std::time::Duration;

use polyrail_profiler::drive::default_depth;

use super::choices::{Against, Op, Verify};
use super::fit_rates::FitRates;
use super::layout::Layout;
use super::nccl_mode::NcclMode;
use crate::fault::Fault;

/// Measurements of a run.
#[derive(Clone, Debug)]
pub(crate) struct Schedule {
    pub(crate) op: Op,
    pub(crate) sizes: Vec<u64>,
    pub(crate) segments: u64,
    pub(crate) depth: Option<u64>,
    /// Number of threads that post, each its part of the depth.
    pub(crate) posters: u64,
    /// Time of all samples of a size together.
    pub(crate) time: Duration,
    /// Number of transfers of each sample, instead of `time`.
    pub(crate) iters: Option<u64>,
    pub(crate) warmup: Duration,
    pub(crate) rounds: u32,
    pub(crate) bidir: bool,
    pub(crate) latency: bool,
    pub(crate) verify: Verify,
    pub(crate) against: Vec<Against>,
    /// Numbers of channels to measure in turn.
    pub(crate) channels: Vec<u32>,
    /// Modes to measure with `--against nccl`.
    pub(crate) nccl_modes: Vec<NcclMode>,
    pub(crate) nccl_library: Option<PathBuf>,
    /// Try changes to find what makes a size slow.
    pub(crate) why: bool,
    /// Rates of NICs that this machine should keep up with.
    pub(crate) fit: Option<FitRates>,
    /// Don't measure limits of the machine.
    pub(crate) no_limits: bool,
    /// Only set up the transfers and explain their paths.
    pub(crate) dry_run: bool,
}

impl Schedule {
    /// Checks that the values are in range and can be combined.
    pub(crate) fn validate(&self, ops_pool: u32) -> Result<(), Fault> {
        let in_range = |option, value: u64, range: std::ops::RangeInclusive<u64>| {
            if range.contains(&value) {
                return Ok(());
            }
            let allowed = format!("{} to {}", range.start(), range.end());
            Err(Fault::usage(option, value, "is out of range", allowed))
        };
        in_range("--depth", self.depth.unwrap_or(1), 1..=u64::from(ops_pool))?;
        let shallowest = self.sizes.iter().map(|size| self.depth(*size)).min().unwrap_or(1);
        in_range("--posters", self.posters, 1..=shallowest.min(POSTERS_MAX))?;
        let pieces = self.depth.unwrap_or(1).saturating_mul(self.segments);
        if pieces > OUTSTANDING_SEGMENTS_MAX {
            let allowed = format!("1 to {}", OUTSTANDING_SEGMENTS_MAX / self.segments);
            let (depth, reason) = (self.depth.unwrap_or(1), "has too many segments outstanding");
            return Err(Fault::usage("--depth", depth, reason, allowed));
        }
        for &size in &self.sizes {
            if !size.is_multiple_of(self.segments) {
                let allowed = format!("multiples of --segments ({})", self.segments);
                let reason = "can't be cut into equal segments";
                return Err(Fault::usage("--sizes", size, reason, allowed));
            }
        }
        if self.op == Op::Send && self.segments > SEND_SEGMENTS_MAX {
            let allowed = format!("1 to {SEND_SEGMENTS_MAX} with --op send");
            return Err(Fault::usage("--segments", self.segments, "is out of range", allowed));
        }
        if self.latency {
            self.validate_latency()?;
        }
        let [cuda, nccl] = [Against::Cuda, Against::Nccl].map(|who| self.against.contains(&who));
        if (cuda || nccl) && self.op != Op::Write {
            let (reason, op) = ("is not what is measured against", self.op.name());
            return Err(Fault::usage("--op", op, reason, "write with --against cuda or nccl"));
        }
        if cuda && self.bidir {
            let reason = "goes one way only";
            return Err(Fault::usage("--against", "cuda", reason, "without --bidir"));
        }
        if self.time.is_zero() && self.iters.is_none() {
            return Err(Fault::usage("--time", "0s", "measures nothing", "at least 1us"));
        }
        Ok(())
    }

    /// Returns the passes over the sizes: one, or one in each direction with `--fit`.
    pub(crate) fn passes(&self) -> Vec<Self> {
        match self.fit {
            None => vec![self.clone()],
            Some(_) => [Op::Write, Op::Read].map(|op| Self { op, ..self.clone() }).to_vec(),
        }
    }

    /// Returns the layout of the memory for one size.
    pub(crate) fn layout(&self, size: u64) -> Layout {
        if self.latency {
            return Layout::single(size, self.segments);
        }
        let depth = self.depth(size);
        let mut layout = Layout::new(size, self.segments, depth);
        // Each sample begins with the first slot, so slots that it never reaches need no memory.
        if let Some(iters) = self.iters {
            layout.slots = layout.slots.min(iters.max(depth));
        }
        layout
    }

    /// Returns the number of outstanding transfers: the chosen one, or 16 as long as they fit into the working set.
    pub(crate) fn depth(&self, size: u64) -> u64 {
        if self.latency {
            return 1;
        }
        let most = OUTSTANDING_SEGMENTS_MAX / self.segments;
        self.depth.unwrap_or_else(|| default_depth(size, most))
    }

    /// Returns the planned seconds of a turn of this size, for the progress: at least the time that the rails need for
    /// the outstanding transfers, or for those of `--iters`.
    pub(crate) fn turn_seconds(
        &self,
        size: u64,
        turn: Duration,
        line_gb_per_s: Option<f64>,
    ) -> f64 {
        let least = |transfers: u64| {
            line_gb_per_s.map(|line| transfers as f64 * size as f64 / (line.max(1e-3) * 1e9))
        };
        let seconds = match self.iters {
            None => turn.as_secs_f64().max(least(self.depth(size)).unwrap_or(0.0)),
            Some(iters) => least(iters).unwrap_or((self.time / self.rounds).as_secs_f64()),
        };
        seconds.max(1e-3)
    }

    /// Returns the maximum number of bytes of regions that both ends together need, if both are on one machine.
    pub(crate) fn memory_bytes(&self, rails: usize) -> u64 {
        let largest = self.sizes.iter().map(|size| self.layout(*size).region_bytes()).max();
        let directions = if self.bidir || self.latency { 2 } else { 1 };
        let alone = if self.against.contains(&Against::Alone) { rails as u64 } else { 0 };
        let in_turn = [Against::Raw, Against::Contiguous].into_iter();
        let in_turn = in_turn.filter(|who| self.against.contains(who)).count() as u64;
        // Changes are tried one after another. One of them has four times the depth.
        let tried = if self.why { 4 } else { 0 };
        let all = 1 + alone + in_turn + tried + self.channels.len() as u64;
        largest.unwrap_or(0).saturating_mul(2 * directions * all)
    }

    fn validate_latency(&self) -> Result<(), Fault> {
        let refuse = |option, value: &str, reason: &str, allowed: &str| {
            Err(Fault::usage(option, value, reason, allowed))
        };
        if self.op == Op::Read {
            let reason = "has no one-way time";
            return refuse("--op", "read", reason, "write or send with --latency");
        }
        if self.bidir {
            return refuse("--bidir", "", "makes no sense in a ping-pong", "without --latency");
        }
        if self.depth.is_some_and(|depth| depth != 1) {
            let depth = self.depth.unwrap_or(1).to_string();
            return refuse("--depth", &depth, "makes no sense in a ping-pong", "1 with --latency");
        }
        if let Some(other) = self.against.iter().find(|who| **who != Against::Raw) {
            return refuse("--against", other.name(), "compares rates", "raw with --latency");
        }
        if !self.channels.is_empty() {
            let reason = "compares rates";
            return refuse("--channels-list", "", reason, "without --latency");
        }
        Ok(())
    }
}

pub(super) const ROUNDS_MAX: i64 = 1000;
pub(crate) const SEGMENTS_MAX: u64 = 1 << 20;
pub(crate) const POSTERS_MAX: u64 = 256;
/// Maximum of the setting `ops_pool`.
pub(crate) const DEPTH_MAX: u64 = 1 << 20;
/// Maximum number of transfers: more than would end in reasonable time.
pub(super) const ITERS_MAX: u64 = 1 << 48;
/// Maximum number of outstanding segments. Each is prepared in advance, which takes time and memory.
pub(crate) const OUTSTANDING_SEGMENTS_MAX: u64 = 1 << 22;
/// Maximum number of segments of a receive.
const SEND_SEGMENTS_MAX: u64 = 256;

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(crate) fn schedule() -> Schedule {
        Schedule {
            op: Op::Write,
            sizes: vec![64 << 10, 256 << 20],
            segments: 1,
            depth: None,
            posters: 1,
            time: Duration::from_secs(2),
            iters: None,
            warmup: Duration::from_millis(200),
            rounds: 5,
            bidir: false,
            latency: false,
            verify: Verify::Full,
            against: Vec::new(),
            channels: Vec::new(),
            nccl_modes: Vec::new(),
            nccl_library: None,
            why: false,
            fit: None,
            no_limits: false,
            dry_run: false,
        }
    }

    fn refused(change: impl FnOnce(&mut Schedule)) -> String {
        let mut schedule = schedule();
        schedule.validate(4096).unwrap();
        change(&mut schedule);
        schedule.validate(4096).unwrap_err().to_string()
    }

    #[test]
    fn each_wrong_value_is_named_with_its_range() {
        for (message, text) in [
            (
                refused(|schedule| schedule.depth = Some(5000)),
                "--depth `5000`: is out of range; allowed: 1 to 4096",
            ),
            (
                refused(|schedule| (schedule.posters, schedule.depth) = (5, Some(4))),
                "--posters `5`: is out of range; allowed: 1 to 4",
            ),
            (
                refused(|schedule| (schedule.segments, schedule.depth) = (1 << 16, Some(65))),
                "--depth `65`: has too many segments outstanding; allowed: 1 to 64",
            ),
            (
                refused(|schedule| schedule.segments = 3),
                "--sizes `65536`: can't be cut into equal segments",
            ),
            (refused(|schedule| schedule.time = Duration::ZERO), "--time `0s`"),
        ] {
            assert!(message.starts_with(text), "{message}");
        }
    }

    #[test]
    fn what_makes_no_sense_in_a_ping_pong_is_refused() {
        for change in [
            (|schedule| schedule.op = Op::Read) as fn(&mut Schedule),
            |schedule| schedule.bidir = true,
            |schedule| schedule.depth = Some(4),
            |schedule| schedule.against = vec![Against::Alone],
        ] {
            let message = refused(|schedule| {
                schedule.latency = true;
                change(schedule);
            });
            assert!(message.contains("--latency"), "{message}");
        }
    }

    #[test]
    fn a_turn_takes_as_long_as_the_rails_need_at_least() {
        let mut schedule = schedule();
        let turn = schedule.time / schedule.rounds;
        let seconds = |schedule: &Schedule, size| schedule.turn_seconds(size, turn, Some(0.125));
        assert!((seconds(&schedule, 4 << 10) - 0.4).abs() < 1e-9);
        assert!((seconds(&schedule, 1 << 30) - 8.6).abs() < 0.1);
        assert!((schedule.turn_seconds(1 << 30, turn, None) - 0.4).abs() < 1e-9);
        schedule.iters = Some(10);
        assert!((seconds(&schedule, 1 << 20) - 0.084).abs() < 0.001);
        let other = Duration::from_secs(9);
        assert!((schedule.turn_seconds(1, other, None) - 0.4).abs() < 1e-9, "turns are alike");
    }

    #[test]
    fn the_default_depth_stays_within_the_working_set() {
        let schedule = schedule();
        assert_eq!(
            (schedule.depth(8), schedule.depth(64 << 20), schedule.depth(1 << 30)),
            (16, 4, 1)
        );
    }
}
