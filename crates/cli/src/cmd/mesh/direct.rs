//! The first worker, which gives the orders and collects the counts.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::time::{Duration, Instant};

use polyrail_report::exit;
use serde::{Deserialize, Serialize};

use super::args::Args;
use super::crew::Crew;
use super::faults;
use super::plan::{Pair, Pattern};
use super::report::{PatternReport, Tally};
use super::talk::{About, Answer, Done, Order, Said, SetUp};
use crate::fault::Fault;
use crate::stdout::{excerpt, tell_starter};

/// Messages to the process that started the workers, one line each. They are sent at once, so those before a crash of
/// this worker are kept.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Told {
    /// All workers are there. Describes the first worker of each node.
    Nodes(Vec<About>),
    Doing(String),
    /// A part of the [planned](Args::planned) time is over.
    Spent(Duration),
    Pattern(Box<PatternReport>),
    /// The end, with the error if it was early.
    End(Option<Fault>),
}

/// Measures everything and reports it. Returns the error that ended it early.
pub(crate) fn direct(crew: &Crew, args: &Args) -> Option<Fault> {
    Director { crew, args, began: Instant::now() }.run().err()
}

/// Sends a message to the process that started this one.
pub(crate) fn tell(told: &Told) -> Result<(), Fault> {
    let failed = |source| Fault::system("writing the result", source);
    let line = serde_json::to_string(told).map_err(|error| failed(error.into()))?;
    tell_starter(&line).map_err(failed)
}

struct Director<'c> {
    crew: &'c Crew,
    args: &'c Args,
    began: Instant,
}

impl Director<'_> {
    fn run(&self) -> Result<(), Fault> {
        let grid = self.crew.grid;
        self.say("waiting for all workers")?;
        let hello = self.collect("hello", self.crew.timeout, |answer| match answer {
            Answer::Hello(about) => Ok(*about),
            other => Err(other),
        })?;
        let ours = crate::version::build();
        if let Some((worker, about)) = hello.iter().find(|(_, about)| about.build != ours) {
            let who = self.crew.name(*worker);
            let theirs = match about.build.is_empty() {
                true => "of an older build".to_owned(),
                false => excerpt(&about.build),
            };
            let here = self.crew.name(0);
            let text = format!("{who} runs polyrail {theirs}, and {here} {ours}");
            return Err(Fault::new(exit::PEER, text).with_help(faults::SAME_BUILD));
        }
        let per_node = grid.workers_per_node();
        let nodes: Vec<About> = hello.into_values().step_by(per_node).collect();
        tell(&Told::Nodes(nodes.clone()))?;
        self.say("taking memory")?;
        let (size, depth, on_gpus) = (self.args.size, self.args.depth, self.args.on_gpus());
        self.tell_all(&Order::SetUp(SetUp { grid, size, depth, on_gpus }))?;
        self.ready("set up")?;
        let mut down = BTreeSet::new();
        for pattern in self.args.patterns() {
            tell(&Told::Pattern(Box::new(self.measure(pattern, &nodes, &mut down)?)))?;
        }
        Ok(())
    }

    /// Reports the current activity.
    fn say(&self, what: &str) -> Result<(), Fault> {
        tell(&Told::Doing(format!("layout {}: {what}", self.crew.grid.layout.name())))
    }

    /// Measures a pattern. `down` has the rails that are down, by node and name: their loss is an event of an earlier
    /// pattern.
    fn measure(
        &self,
        pattern: Pattern,
        nodes: &[About],
        down: &mut BTreeSet<(usize, String)>,
    ) -> Result<PatternReport, Fault> {
        let grid = self.crew.grid;
        let mut tally = Tally::new(grid, self.args.size, self.args.rounds as usize);
        tally.down = mem::take(down);
        let steps = grid.steps(pattern);
        // Gives different data to all rounds of all meshes.
        let mut seed = crate::host::unix_ms() << 20 ^ u64::from(std::process::id());
        for (number, step) in steps.iter().enumerate() {
            self.say(&format!("{}, step {} of {}", pattern.name(), number + 1, steps.len()))?;
            if !self.args.warmup.is_zero() {
                self.go(step, self.args.warmup, false)?;
            }
            tell(&Told::Spent(self.args.warmup))?;
            for round in 0..self.args.rounds as usize {
                seed += 1;
                self.order(step, |pairs| Order::Prepare { pairs, seed })?;
                self.ready("prepare")?;
                tally.at_s = self.began.elapsed().as_secs_f64();
                let done = self.go(step, self.args.time, true)?;
                tally.add(round, step, &done)?;
                self.order(step, |pairs| Order::Verify { pairs })?;
                let verified =
                    self.collect("verify", self.crew.timeout, |answer| match answer {
                        Answer::Verified { bytes } => Ok(bytes),
                        other => Err(other),
                    })?;
                tally.verified(verified.values().sum());
                tell(&Told::Spent(self.args.time))?;
            }
        }
        down.clone_from(&tally.down);
        Ok(tally.finish(pattern, nodes))
    }

    fn go(
        &self,
        step: &[Pair],
        time: Duration,
        measured: bool,
    ) -> Result<BTreeMap<usize, Done>, Fault> {
        let ms = time.as_millis() as u64;
        self.order(step, |pairs| Order::Go { pairs, ms, measured })?;
        self.collect("go", self.crew.timeout + time, |answer| match answer {
            Answer::Done(done) => Ok(*done),
            other => Err(other),
        })
    }

    /// Sends an order to each worker, with the pairs that concern it.
    fn order(&self, step: &[Pair], order: impl Fn(Vec<u32>) -> Order) -> Result<(), Fault> {
        let grid = self.crew.grid;
        for worker in 0..grid.workers() {
            let concerns = |pair: &&Pair| {
                [pair.from, pair.to].iter().any(|end| grid.worker_of(*end) == worker)
            };
            let pairs = step.iter().filter(concerns).map(|pair| pair.id(&grid)).collect();
            self.crew.say(worker, Said::Order(order(pairs)))?;
        }
        Ok(())
    }

    fn tell_all(&self, order: &Order) -> Result<(), Fault> {
        let all = 0..self.crew.grid.workers();
        all.into_iter().try_for_each(|worker| self.crew.say(worker, Said::Order(order.clone())))
    }

    fn ready(&self, order: &'static str) -> Result<(), Fault> {
        let ready = self.collect(order, self.crew.timeout, |answer| match answer {
            Answer::Ready => Ok(()),
            other => Err(other),
        });
        ready.map(drop)
    }

    /// Collects one answer from each worker.
    fn collect<T>(
        &self,
        order: &'static str,
        patience: Duration,
        take: impl Fn(Answer) -> Result<T, Answer>,
    ) -> Result<BTreeMap<usize, T>, Fault> {
        let (crew, until) = (self.crew, Instant::now() + patience);
        let mut taken = BTreeMap::new();
        // Hold a failure for [`BLAME`]: a worker that failed because another one ended may notice that end before this
        // one.
        let mut failed = None;
        while taken.len() < crew.grid.workers() {
            let next = crew.inbox.wait(Instant::now() + LOOK, |heard| {
                let stranger = heard.stranger.take().map(Err);
                stranger.or_else(|| heard.answers.pop_front().map(Ok))
            });
            let Some(next) = next else {
                let waits = |worker: &usize| !taken.contains_key(worker);
                let late: Vec<usize> = (0..crew.grid.workers()).filter(waits).collect();
                crew.check(0..crew.grid.workers())?;
                if let Some((error, since)) = failed.take() {
                    if Instant::now() > since + BLAME {
                        return Err(error);
                    }
                    failed = Some((error, since));
                }
                if Instant::now() > until {
                    let names = late.iter().map(|worker| crew.name(*worker));
                    let who = names.collect::<Vec<_>>().join(", ");
                    return Err(faults::silent(&who, order, patience));
                }
                continue;
            };
            let (worker, answer) = next?;
            let who = crew.name(worker);
            match (take(answer), &failed) {
                (Ok(answer), _) => drop(taken.insert(worker, answer)),
                (Err(Answer::Failed(fault)), None) => {
                    failed = Some((Fault::of_peer(&who, fault), Instant::now()));
                }
                (Err(Answer::Failed(_)), Some(_)) => {}
                (Err(other), _) => {
                    return Err(faults::protocol(&who, order, &format!("{other:?}")));
                }
            }
        }
        Ok(taken)
    }
}

/// Interval between looks at the workers.
const LOOK: Duration = Duration::from_millis(100);
/// Time to wait for the cause of a failure. All workers with transfers to a lost worker fail, and the name of the lost
/// one says more.
const BLAME: Duration = Duration::from_secs(2);
