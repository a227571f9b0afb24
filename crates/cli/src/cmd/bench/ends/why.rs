//! `--why`: changes one thing after another, each in turn with the settings in effect, and sees whether the
//! size gets faster. What helps is a cause, whatever the counters suggest.

use std::time::{Duration, Instant};

use polyrail_report::{Tried, show_size};
use polyrail_sys::interfaces::CongestionControls;

use super::measure::{Bench, Rounds};
use super::pace::{Pace, Turns};
use crate::cmd::bench::error::BenchError;
use crate::cmd::bench::judge::{Pairs, Scene, least_ratio, noise, suspects};
use crate::cmd::bench::options::{Change, Schedule};
use crate::cmd::bench::output::TCP;
use crate::cmd::bench::rivals::Other;
use crate::cmd::bench::trial::Trial;

const ROUNDS: u64 = 3;
/// How long a turn of a round takes, unless a transfer takes longer.
const SAMPLE: Duration = Duration::from_millis(200);
const WARMUP: Duration = Duration::from_millis(60);
/// Of those that helped, so many are tried anew, the best ones first.
const AGAIN: usize = 3;

/// The settings in effect at work, and what came of changing them.
struct Inquiry<'b> {
    bench: &'b Bench<'b>,
    size: u64,
    trial: Trial<'b>,
    transfers: u64,
    /// Rates without any change, in GB/s.
    unchanged: Vec<f64>,
    /// What could not be tried, one sentence each.
    notes: &'b mut Vec<String>,
}

impl Bench<'_> {
    /// Tries all suspects at this size, and adds what was tried, those that help first, and notes, also where an error ends
    /// it.
    pub(crate) fn why(
        &self,
        size: u64,
        rounds: &Rounds,
        tried: &mut Vec<Tried>,
        notes: &mut Vec<String>,
    ) -> Result<(), BenchError> {
        if let Some(path) = rounds.path.as_ref().filter(|path| path.taken != TCP) {
            let taken = &path.taken;
            self.progress.spend(self.why_time(size));
            notes.push(format!("--why tried nothing: {taken} takes no rail"));
            return Ok(());
        }
        let begin = Instant::now();
        let trial = self.set_up(self.link, self.schedule, size, None)?;
        let transfers = self.turn(&trial)?;
        let (planned, suspects) = (self.change_time(size), suspects(&self.scene(size)));
        let turn = time_of_a_change(begin.elapsed()).max(planned);
        let count = suspects.len() + AGAIN;
        self.progress.extend((turn - planned) * count as u32);
        let turns = Turns::new(self.progress, turn, count as u32);
        let unchanged = Vec::new();
        let mut inquiry = Inquiry { bench: self, size, trial, transfers, unchanged, notes };
        inquiry.run(suspects, turns, tried)?;
        inquiry.trial.tear_down()
    }

    /// How long all of it takes, as far as that is known before.
    pub(crate) fn why_time(&self, size: u64) -> Duration {
        match self.schedule.why {
            true => self.change_time(size) * (suspects(&self.scene(size)).len() + AGAIN) as u32,
            false => Duration::ZERO,
        }
    }

    /// The same for one change.
    fn change_time(&self, size: u64) -> Duration {
        let warmup = WARMUP.min(self.schedule.warmup);
        let schedule = Schedule { warmup, ..self.schedule.clone() };
        let gb_per_s = self.line.as_ref().map(|line| line.gb_per_s());
        time_of_a_change(Pace::of(&schedule, size, gb_per_s).warmup)
    }

    /// Warms up, and says how many transfers make a turn.
    fn turn(&self, trial: &Trial<'_>) -> Result<u64, BenchError> {
        let fitting = trial.warm_up(WARMUP.min(self.schedule.warmup), SAMPLE)?;
        Ok(self.schedule.iters.unwrap_or(fitting))
    }

    fn scene(&self, size: u64) -> Scene<'_> {
        let engine = self.link.engine;
        let stats = engine.stats();
        let mut flows =
            stats.peers.iter().flat_map(|peer| &peer.rails).flat_map(|rail| &rail.flows);
        let config = engine.config();
        Scene {
            config,
            rails: engine.rails().into_iter().map(|rail| rail.name).collect(),
            channels: self.link.peer.flows().total as u64 / u64::from(config.sockets),
            congestion: flows.find(|flow| flow.up).map(|flow| flow.congestion.clone()),
            congestions: CongestionControls::read().map(|all| all.usable).unwrap_or_default(),
            size,
            depth: self.schedule.depth(size),
            ping_pong: self.schedule.latency,
            on_device: !self.bank.is_host() || !self.peer_on_host,
        }
    }
}

impl Inquiry<'_> {
    fn run(
        &mut self,
        suspects: Vec<Change>,
        mut turns: Turns<'_>,
        found: &mut Vec<Tried>,
    ) -> Result<(), BenchError> {
        let mut seen = Vec::new();
        let (count, mut done, mut end) = (suspects.len(), 0, Ok(()));
        for (place, change) in suspects.into_iter().enumerate() {
            self.say(&format!("trying {change} ({} of {count})", place + 1));
            match turns.take(|| self.pairs(&change)) {
                Ok(Some(pairs)) => seen.push((change, pairs)),
                Ok(None) => {}
                Err(error) => {
                    end = Err(error);
                    break;
                }
            }
            done += 1;
        }
        let noise = noise(&self.unchanged);
        let mut tried: Vec<(Tried, Change)> = seen
            .into_iter()
            .filter_map(|(change, pairs)| Some((pairs.tried(&change, noise)?, change)))
            .collect();
        best_first(&mut tried);
        let helping = tried.iter().filter(|(tried, _)| tried.helps).count();
        // Of many changes one looks good by chance, but seldom twice.
        for (place, (tried, change)) in tried[..helping].iter_mut().enumerate() {
            tried.helps = false;
            if place < AGAIN && end.is_ok() {
                self.say(&format!("trying {change} again"));
                match turns.take(|| self.pairs(change)) {
                    Ok(again) => {
                        if let Some(again) = again.and_then(|pairs| pairs.tried(change, noise)) {
                            *tried = again;
                        }
                    }
                    Err(error) => end = Err(error),
                }
            }
        }
        turns.end();
        best_first(&mut tried);
        if end.is_err() {
            let size = show_size(self.size);
            self.notes.push(format!(
                "--why at {size} ended early, after {done} of {count} changes; what was not tried again does not count as \
                 faster"
            ));
        }
        if !tried.is_empty() {
            self.notes.push(rule(noise));
        }
        found.extend(tried.into_iter().map(|(tried, _)| tried));
        end
    }

    fn say(&self, what: &str) {
        self.bench.progress.say(format!("{}: {what}", show_size(self.size)));
    }

    /// Rates without and with a change, in turn; nothing but a note if no engines with it can be had.
    fn pairs(&mut self, change: &Change) -> Result<Option<Pairs>, BenchError> {
        let bench = self.bench;
        bench.interrupt.check()?;
        let other = match Other::open_changed(bench.link, change) {
            Err(BenchError::Interrupted) => return Err(BenchError::Interrupted),
            opened => opened,
        };
        let connected = other
            .as_ref()
            .map_err(ToString::to_string)
            .map(|other| other.connect(bench.interrupt).map(|(_, link)| link));
        let link = match connected {
            Ok(Ok(link)) => link,
            Ok(Err(BenchError::Interrupted)) => return Err(BenchError::Interrupted),
            Ok(Err(error)) => {
                self.notes.push(format!("{change} could not be tried: {error}"));
                return Ok(None);
            }
            Err(error) => {
                self.notes.push(format!("{change} could not be tried: {error}"));
                return Ok(None);
            }
        };
        let mut schedule = bench.schedule.clone();
        if let Change::Depth(depth) = change {
            schedule.depth = Some(*depth);
        }
        let Schedule { verify, .. } = schedule;
        let changed = bench.set_up(&link, &schedule, self.size, None)?;
        let transfers = bench.turn(&changed)?;
        let mut pairs = Pairs::default();
        for round in 0..ROUNDS {
            let without = self.trial.sample(verify, self.transfers, round)?.sample.gb_per_s();
            let with = changed.sample(verify, transfers, round)?.sample.gb_per_s();
            self.unchanged.push(without);
            pairs.0.push([without, with]);
        }
        changed.tear_down()?;
        link.say_good_bye();
        Ok(Some(pairs))
    }
}

/// How long it takes to try a change where setting up and warming up took so long: that again, and a sample with and
/// without the change in each round. A sample takes longer than it should where a few transfers do; warming up is twice
/// as many of them.
fn time_of_a_change(set_up: Duration) -> Duration {
    set_up + SAMPLE.max(set_up / 2) * 2 * ROUNDS as u32
}

/// What makes a change one that helps.
fn rule(noise: f64) -> String {
    let (varied, gain) = (noise * 100.0, (least_ratio(noise) - 1.0) * 100.0);
    format!(
        "without any change the middle half of all rates lay within ±{varied:.1} % while changes were tried; so a change \
         counts as faster that gains {gain:.1} % or more by the median ratio and something in each pair, and does so \
         again (the best {AGAIN} are tried again)"
    )
}

/// Those that help before the others, each by how much it gains.
fn best_first(tried: &mut [(Tried, Change)]) {
    tried.sort_by(|(a, _), (b, _)| {
        b.helps.cmp(&a.helps).then(b.ratio.median.total_cmp(&a.ratio.median))
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rule_has_the_bounds_that_the_verdict_has() {
        let quiet = rule(0.01);
        assert!(quiet.contains("±1.0 %") && quiet.contains("gains 5.0 % or more"), "{quiet}");
        let noisy = rule(0.123);
        assert!(noisy.contains("±12.3 %") && noisy.contains("gains 24.6 % or more"), "{noisy}");
    }

    #[test]
    fn a_change_takes_longer_over_a_slow_link() {
        assert_eq!(time_of_a_change(Duration::from_millis(100)), Duration::from_millis(1300));
        assert_eq!(time_of_a_change(Duration::from_secs(10)), Duration::from_secs(40));
    }
}
