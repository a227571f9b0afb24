//! Warms GPUs again that have cooled down since the first warming.

use std::time::{Duration, Instant};

use polyrail_profile::Temperature;

use crate::error::ProfilerError;
use crate::reference_ns;
use crate::station::Station;
use crate::thermal::Watcher;

/// Settings for warming GPUs again.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rewarm {
    /// Temperature drop of a GPU below the start that triggers warming, in °C.
    pub colder_c: f64,
    /// Time between two readings.
    pub every: Duration,
    /// Time that GPUs copy between two readings while warming.
    pub turn: Duration,
    /// Maximum duration of a warming; after it, the temperature reached counts as the new reference.
    pub most: Duration,
}

/// One warming.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rewarmed {
    /// Start, on the reference clock.
    pub at_ns: i64,
    /// Rank that was cold.
    pub rank: u32,
    /// Temperature of the rank before, in °C.
    pub from_c: f64,
    /// Temperature of the rank after, in °C.
    pub to_c: f64,
    /// Temperature of the rank at the start of the run, in °C.
    pub warm_c: f64,
    /// Duration, in seconds.
    pub took_s: f64,
}

impl Rewarm {
    /// Warms GPUs that are this many degrees colder. Reads temperatures once a second and warms for at most half a
    /// minute.
    pub fn colder(colder_c: f64) -> Self {
        let second = Duration::from_secs(1);
        Self { colder_c, every: second, turn: second, most: Duration::from_secs(30) }
    }
}

/// Compares temperatures with those at the start.
pub(crate) struct Warmth {
    rewarm: Rewarm,
    /// Readings at the start, by rank.
    warm: Vec<Temperature>,
    next: Instant,
}

impl Warmth {
    /// Takes the current temperatures as the reference.
    pub(crate) fn new(rewarm: Rewarm, watcher: &Watcher) -> Self {
        Self { rewarm, warm: watcher.look(), next: Instant::now() }
    }

    /// Reads the temperatures when it is time. If a GPU is cold, warms all GPUs until that one has made up half of the
    /// allowed difference.
    pub(crate) fn keep(
        &mut self,
        station: &mut Station,
        watcher: &Watcher,
        is_interrupted: &dyn Fn() -> bool,
    ) -> Result<Option<Rewarmed>, ProfilerError> {
        let Rewarm { colder_c, every, turn, most } = self.rewarm;
        if Instant::now() < self.next {
            return Ok(None);
        }
        self.next = Instant::now() + every;
        let Some((rank, from_c, warm_c)) = self.coldest(&watcher.look()) else { return Ok(None) };
        let (at_ns, begin) = (reference_ns(), Instant::now());
        let mut to_c = from_c;
        while to_c < warm_c - colder_c / 2.0 && begin.elapsed() < most && !is_interrupted() {
            station.warm_gpus(turn)?;
            to_c = temperature_of(&watcher.look(), rank).unwrap_or(warm_c);
        }
        if to_c < warm_c - colder_c / 2.0 {
            // The room has become colder: warming would never end.
            self.warm = watcher.look();
        }
        self.next = Instant::now() + every;
        let took_s = begin.elapsed().as_secs_f64();
        Ok(Some(Rewarmed { at_ns, rank, from_c, to_c, warm_c, took_s }))
    }

    /// Returns the coldest rank relative to the start, if it is cold enough: the rank, its temperature, and that at the
    /// start.
    fn coldest(&self, looks: &[Temperature]) -> Option<(u32, f64, f64)> {
        let now = |warm: &Temperature| {
            Some((warm.rank, temperature_of(looks, warm.rank)?, warm.temperature_c?))
        };
        let is_cold = |(_, now_c, warm_c): &(u32, f64, f64)| warm_c - now_c >= self.rewarm.colder_c;
        let cold = self.warm.iter().filter_map(now).filter(is_cold);
        cold.max_by(|one, other| (one.2 - one.1).total_cmp(&(other.2 - other.1)))
    }
}

fn temperature_of(looks: &[Temperature], rank: u32) -> Option<f64> {
    looks.iter().find(|look| look.rank == rank)?.temperature_c
}
