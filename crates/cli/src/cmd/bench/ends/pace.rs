//! How long the parts of a run take, as far as that is known before: for what is shown while they run.

use std::time::{Duration, Instant};

use super::measure::Bench;
use crate::cmd::bench::options::{Against, Schedule, Verify};
use crate::cmd::bench::rivals::{CONTIGUOUS, RivalKind};
use crate::progress::Progress;

/// What one contender takes at one size: the engine, or one that it is held against.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Pace {
    /// Memory is taken and filled, and transfers run unmeasured.
    pub(crate) warmup: Duration,
    /// A sample; before it the destination is overwritten, and after it compared.
    pub(crate) turn: Duration,
}

impl Pace {
    /// `gb_per_s`: what its links carry at most, where that is known.
    pub(crate) fn of(schedule: &Schedule, size: u64, gb_per_s: Option<f64>) -> Self {
        let seconds = |transfers: u64, or: f64| {
            gb_per_s.map_or(or, |rate| transfers as f64 * size as f64 / (rate * 1e9))
        };
        let depth = schedule.depth(size);
        // As many as are outstanding at once are moved at least, and twice as many to warm up.
        let moved_s = match schedule.iters {
            None => schedule.time.as_secs_f64() / f64::from(schedule.rounds),
            Some(iters) => seconds(iters, iters as f64 * size as f64 / USUAL_BYTES_PER_S),
        };
        let moved_s = moved_s.max(seconds(depth, 0.0));
        let warmup_s = schedule.warmup.as_secs_f64().max(seconds(2 * depth, 0.0));
        let region = region_bytes(schedule, size);
        let compared = if schedule.verify == Verify::Full { region } else { 0.0 };
        Self {
            warmup: Duration::from_secs_f64(warmup_s) + filled(schedule, size),
            turn: Duration::from_secs_f64(moved_s + (region + compared) / CHECK_BYTES_PER_S),
        }
    }

    /// All rounds of a size.
    fn whole(&self, rounds: u32) -> Duration {
        self.warmup + self.turn * rounds
    }
}

/// Taking the memory of both ends.
pub(crate) fn filled(schedule: &Schedule, size: u64) -> Duration {
    Duration::from_secs_f64(2.0 * region_bytes(schedule, size) / FILL_BYTES_PER_S)
}

/// What each end has for this size.
fn region_bytes(schedule: &Schedule, size: u64) -> f64 {
    let ways = if schedule.bidir || schedule.latency { 2.0 } else { 1.0 };
    ways * schedule.layout(size).region_bytes() as f64
}

/// Rounds that take about as long as each other, as they are shown.
pub(crate) struct Turns<'p> {
    progress: &'p Progress,
    each: Duration,
    done: u32,
    rounds: u32,
}

impl<'p> Turns<'p> {
    /// Each was planned to take that time.
    pub(crate) fn new(progress: &'p Progress, each: Duration, rounds: u32) -> Self {
        Self { progress, each, done: 0, rounds }
    }

    /// There are no more.
    pub(crate) fn end(self) {
        self.progress.spend(self.each * self.rounds.saturating_sub(self.done));
    }

    pub(crate) fn take<T, E>(&mut self, run: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        let begin = Instant::now();
        let ran = run()?;
        self.progress.spend(self.each);
        self.done += 1;
        if self.done == 1 {
            // So will the others.
            let longer = begin.elapsed().saturating_sub(self.each);
            self.each += longer;
            self.progress.extend(longer * self.rounds.saturating_sub(1));
        }
        Ok(ran)
    }
}

impl Bench<'_> {
    /// What a rival takes, or the engine.
    pub(crate) fn pace(&self, size: u64, rival: Option<&RivalKind>) -> Pace {
        let line = self.line.as_ref();
        let gb_per_s = match rival {
            Some(RivalKind::Rail(name)) => line.and_then(|line| line.of_rail(name)),
            // Those take no rail.
            Some(RivalKind::Baseline(name)) if name != CONTIGUOUS => None,
            _ => line.map(|line| line.gb_per_s()),
        };
        Pace::of(self.schedule, size, gb_per_s)
    }

    pub(crate) fn turns(&self, size: u64, rival: Option<&RivalKind>) -> Turns<'_> {
        let each = self.pace(size, rival).turn;
        Turns::new(self.progress, each, self.schedule.rounds)
    }

    /// All sizes, each with all rivals and what it is held against after that.
    pub(crate) fn planned(&self) -> Duration {
        let schedule = self.schedule;
        let wants = |who| schedule.against.contains(&who);
        let modes = if wants(Against::Nccl) { schedule.nccl_modes.len() } else { 0 };
        let device = RivalKind::Baseline(String::new());
        let mut contenders = vec![None];
        contenders.extend(self.others.iter().map(|(kind, _)| Some(kind)));
        contenders.extend(wants(Against::Raw).then_some(None));
        contenders.extend(vec![Some(&device); modes + usize::from(wants(Against::Cuda))]);
        let of_size = |size: &u64| {
            let all = contenders.iter().map(|one| self.pace(*size, *one).whole(schedule.rounds));
            all.sum::<Duration>() + self.yardsticks_time(*size) + self.why_time(*size)
        };
        schedule.sizes.iter().map(of_size).sum()
    }
}

/// Memory that nobody has used yet.
const FILL_BYTES_PER_S: f64 = 3e9;
const CHECK_BYTES_PER_S: f64 = 4e9;
/// Where nobody knows how fast the links are.
const USUAL_BYTES_PER_S: f64 = 2e9;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cmd::bench::options::a_schedule;

    const MIB: f64 = (1 << 20) as f64;

    fn is_about(found: Duration, wanted_s: f64) -> bool {
        (found.as_secs_f64() / wanted_s - 1.0).abs() < 1e-3
    }

    #[test]
    fn slow_links_make_all_longer_and_fast_ones_nothing() {
        let schedule = a_schedule();
        // Four transfers of 64 MiB are outstanding; both ends have 256 MiB.
        let size = 64 << 20;
        let (fill_s, check_s) = (512.0 * MIB / 3e9, 512.0 * MIB / 4e9);
        for fast in [None, Some(100.0)] {
            let pace = Pace::of(&schedule, size, fast);
            assert!(is_about(pace.warmup, 0.2 + fill_s), "{pace:?}");
            assert!(is_about(pace.turn, 0.4 + check_s), "{pace:?}");
        }
        let pace = Pace::of(&schedule, size, Some(0.125));
        assert!(is_about(pace.warmup, 2.0 * 256.0 * MIB / 0.125e9 + fill_s), "{pace:?}");
        assert!(is_about(pace.turn, 256.0 * MIB / 0.125e9 + check_s), "{pace:?}");
        assert!(is_about(pace.whole(5), (pace.warmup + pace.turn * 5).as_secs_f64()));
    }

    #[test]
    fn both_directions_and_each_transfer_that_was_asked_for_count() {
        let one_way = Schedule { verify: Verify::Off, ..a_schedule() };
        let both = Schedule { bidir: true, ..one_way.clone() };
        let [one, two] = [one_way.clone(), both].map(|one| Pace::of(&one, 64 << 20, None));
        assert!(is_about(two.turn - one.turn, 256.0 * MIB / 4e9), "{one:?} {two:?}");
        let many = Schedule { iters: Some(100), ..one_way };
        let pace = Pace::of(&many, 64 << 20, Some(1.0));
        assert!(is_about(pace.turn, 6400.0 * MIB / 1e9 + 256.0 * MIB / 4e9), "{pace:?}");
        let pace = Pace::of(&many, 64 << 20, None);
        assert!(is_about(pace.turn, 6400.0 * MIB / 2e9 + 256.0 * MIB / 4e9), "{pace:?}");
    }

    #[test]
    fn rounds_are_taken_for_as_long_as_the_first_one() {
        let progress = Progress::new();
        progress.plan_time(Duration::from_millis(3));
        let mut turns = Turns::new(&progress, Duration::from_millis(1), 3);
        let begin = Instant::now();
        let until = begin + Duration::from_millis(20);
        let slow = || {
            while Instant::now() < until {
                std::hint::spin_loop();
            }
            Ok::<_, ()>(7)
        };
        assert_eq!(turns.take(slow), Ok(7));
        assert!(turns.each >= Duration::from_millis(20), "{:?}", turns.each);
        let each = turns.each;
        assert_eq!(turns.take(|| Err::<(), _>("no")), Err("no"));
        assert_eq!(turns.take(|| Ok::<_, ()>(())), Ok(()));
        assert_eq!((turns.each, turns.done), (each, 2));
    }
}
