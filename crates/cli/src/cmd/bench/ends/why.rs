//! Tests of `--why`: each changes one setting, takes turns with the settings in effect, and the best-looking ones are
//! measured again. A change is a cause if its interval is above 1, whatever the counters suggest.

use std::time::{Duration, Instant};

use polyrail_experiment::Dice;
use polyrail_report::{PathTaken, PayloadProtection, Tried, show_size};
use polyrail_sys::interfaces::CongestionControls;

use super::measure::Bench;
use crate::cmd::bench::judge::{
    AGAIN, Attempt, Cause, Pairs, Scene, best_first, suspects, untested,
};
use crate::cmd::bench::options::{Change, Schedule};
use crate::cmd::bench::output::TCP;
use crate::cmd::bench::rivals::Other;
use crate::cmd::bench::trial::Trial;
use crate::fault::Fault;

/// Rounds of the first measurement, which selects the changes to measure again.
const ROUNDS: u32 = 3;
/// Rounds of a repeated measurement; `ROUNDS_AGAIN_SLOW` if a round takes long. Both suffice for an interval.
const ROUNDS_AGAIN: u32 = 16;
const ROUNDS_AGAIN_SLOW: u32 = 8;
const SLOW: Duration = Duration::from_secs(1);
/// Duration of a turn, unless a transfer takes longer.
const SAMPLE: Duration = Duration::from_millis(150);
const WARMUP: Duration = Duration::from_millis(60);

/// Trial with the settings in effect, and the notes on the changes compared with it.
struct Inquiry<'b> {
    bench: &'b Bench<'b>,
    size: u64,
    trial: Trial<'b>,
    transfers: u64,
    rounds_again: u32,
    /// Number of pairs so far. It seeds the order of the next pair, so that neither turn is always the first.
    drawn: u64,
    /// Notes for the report, one sentence each, such as changes that could not be tried.
    notes: &'b mut Vec<String>,
}

impl Bench<'_> {
    /// Tries all suspects at this size. Adds the tried changes, the most helpful ones first, and notes, even if an
    /// error ends the tests.
    pub(crate) fn why(
        &self,
        size: u64,
        path: Option<&PathTaken>,
        causes: &[Cause],
        tried: &mut Vec<Tried>,
        notes: &mut Vec<String>,
    ) -> Result<(), Fault> {
        if let Some(path) = path.filter(|path| path.taken != TCP) {
            let taken = &path.taken;
            self.progress.did(self.why_work(size));
            notes.push(format!("--why tried nothing: {taken} takes no rail"));
            return Ok(());
        }
        for reason in untested(causes, &self.scene(size)) {
            let size = show_size(size);
            notes.push(format!("--why at {size} can't test all that the verdict names: {reason}"));
        }
        let begin = Instant::now();
        self.progress.say(format!("{}: warming up for --why", show_size(size)));
        let trial = self.set_up(self.link, self.schedule, size, None)?;
        let transfers = self.turn(&trial)?;
        let suspects = suspects(&self.scene(size));
        let rounds_again = rounds_again(begin.elapsed());
        let mut inquiry =
            Inquiry { bench: self, size, trial, transfers, rounds_again, drawn: 0, notes };
        inquiry.run(suspects, tried)?;
        inquiry.trial.tear_down()
    }

    /// Returns the share of all suspects in the work of a size.
    pub(crate) fn why_work(&self, size: u64) -> f64 {
        match self.schedule.why {
            true => {
                let tried = suspects(&self.scene(size)).len() as f64;
                tried * self.pairs_work(size, ROUNDS)
                    + AGAIN as f64 * self.pairs_work(size, ROUNDS_AGAIN)
            }
            false => 0.0,
        }
    }

    /// Returns the work of a change in this many rounds, each with a turn without the change and a turn with it.
    fn pairs_work(&self, size: u64, rounds: u32) -> f64 {
        f64::from(2 * rounds) * self.seconds(size, SAMPLE)
    }

    /// Warms up, and returns the number of transfers in a turn.
    fn turn(&self, trial: &Trial<'_>) -> Result<u64, Fault> {
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
            protected: self.payload.iter().any(|payload| *payload != PayloadProtection::None),
        }
    }
}

impl Inquiry<'_> {
    fn run(&mut self, suspects: Vec<Change>, found: &mut Vec<Tried>) -> Result<(), Fault> {
        let mut attempts = Vec::new();
        let (count, mut done, mut end) = (suspects.len(), 0, Ok(()));
        for (place, change) in suspects.into_iter().enumerate() {
            self.say(&format!("trying {change} ({} of {count})", place + 1));
            match self.pairs(&change, ROUNDS) {
                Ok(Some(pairs)) => attempts.push(Attempt::new(change, pairs)),
                Ok(None) => {}
                Err(error) => {
                    end = Err(error);
                    break;
                }
            }
            done += 1;
            self.bench.progress.did(self.bench.pairs_work(self.size, ROUNDS));
        }
        let again = Attempt::to_measure_again(&attempts);
        let work_again = self.bench.pairs_work(self.size, ROUNDS_AGAIN);
        // Fewer changes may remain than time was planned for.
        self.bench.progress.did(AGAIN.saturating_sub(again.len()) as f64 * work_again);
        for place in again {
            if end.is_ok() {
                let change = attempts[place].change.clone();
                self.say(&format!("measuring {change} again"));
                match self.pairs(&change, self.rounds_again) {
                    Ok(pairs) => attempts[place].again = pairs.unwrap_or_default(),
                    Err(error) => end = Err(error),
                }
                self.bench.progress.did(work_again);
            }
        }
        let mut tried: Vec<Tried> = attempts.iter().filter_map(Attempt::tried).collect();
        best_first(&mut tried);
        if end.is_err() {
            let size = show_size(self.size);
            self.notes.push(format!(
                "--why at {size} ended early, after {done} of {count} changes; nothing is concluded from what was not \
                 measured again"
            ));
        }
        if tried.iter().any(|tried| tried.interval.is_some()) {
            self.notes.push(rule(self.rounds_again));
        }
        found.extend(tried);
        end
    }

    fn say(&self, what: &str) {
        self.bench.progress.say(format!("{}: {what}", show_size(self.size)));
    }

    /// Measures rates without and with a change, in turn. Returns `None` and adds a note if no engines with the change
    /// can be opened.
    fn pairs(&mut self, change: &Change, rounds: u32) -> Result<Option<Pairs>, Fault> {
        let bench = self.bench;
        bench.interrupt.check()?;
        let other = match Other::open_changed(bench.link, change) {
            Err(fault) if fault.is_interrupted() => return Err(fault),
            opened => opened,
        };
        let connected = other
            .as_ref()
            .map_err(ToString::to_string)
            .map(|other| other.connect(bench.interrupt).map(|(_, link)| link));
        let link = match connected {
            Ok(Ok(link)) => link,
            Ok(Err(fault)) if fault.is_interrupted() => return Err(fault),
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
        let mut pairs = Pairs::new();
        for round in 0..u64::from(rounds) {
            let mut pair = [0.0; 2];
            let mut order = [0, 1];
            Dice::of_part(bench.seed, self.drawn).shuffle(&mut order);
            self.drawn += 1;
            for with in order {
                let (trial, transfers) = match with {
                    0 => (&self.trial, self.transfers),
                    _ => (&changed, transfers),
                };
                pair[with] = trial.sample(verify, transfers, round)?.sample.gb_per_s();
            }
            pairs.push(pair);
        }
        changed.tear_down()?;
        super::client::say_good_bye(&link);
        Ok(Some(pairs))
    }
}

/// Estimates the duration of a round, without and with a change, from the time that setting up and warming up took. A
/// sample takes longer than planned if a few transfers do; a warm-up runs twice as many of them.
fn time_of_a_round(set_up: Duration) -> Duration {
    SAMPLE.max(set_up / 2) * 2
}

/// Returns the number of rounds of repeated measurements. The number is fixed before the first of them.
fn rounds_again(set_up: Duration) -> u32 {
    if time_of_a_round(set_up) > SLOW { ROUNDS_AGAIN_SLOW } else { ROUNDS_AGAIN }
}

/// Describes the rule of the conclusions for the report.
fn rule(rounds_again: u32) -> String {
    format!(
        "--why measured each change in {ROUNDS} rounds, and the {AGAIN} that looked best in {rounds_again} more, which alone \
         count: a change is `faster` where the interval of its ratio there, `from` and `to`, is above 1; in 95 of 100 \
         such runs all of these intervals hold the true ratio"
    )
}

#[cfg(test)]
mod tests {
    use polyrail_experiment::{MISS, ranks::fewest};

    use super::*;

    #[test]
    fn what_is_measured_again_has_rounds_enough_for_an_interval() {
        let few = fewest(MISS / AGAIN as f64);
        assert!(few <= ROUNDS_AGAIN_SLOW as usize, "{few}");
        assert_eq!(rounds_again(Duration::from_millis(100)), ROUNDS_AGAIN);
        assert_eq!(rounds_again(Duration::from_secs(2)), ROUNDS_AGAIN_SLOW);
    }
}
