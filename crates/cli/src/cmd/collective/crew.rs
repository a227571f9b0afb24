//! The processes of all ranks over one plugin.

use std::collections::BTreeSet;
use std::env;
use std::io::ErrorKind;
use std::process::Stdio;
use std::time::{Duration, Instant};

use polyrail_collective::{Shape, Spec, route};
use polyrail_config::Config;
use serde::Serialize;

use super::args::{Args, Contestant};
use super::error::CollectiveError;
use super::place::Place;
use super::worker::{About, Order, Reply, Task};
use crate::crew::{Kept, Missing, NEWS, Output, Worker, Workers};
use crate::fault::Fault;
use crate::interrupt::Interrupt;
use crate::lines::LINE_MAX;

/// Ranks that are connected. They end when this is dropped.
pub(crate) struct Crew<'r> {
    pub(crate) over: Contestant,
    pub(crate) about: About,
    ranks: Workers,
    warnings: Kept,
    timeout: Duration,
    interrupt: &'r Interrupt,
}

/// A rank answers later than the time that it has for an order only if it can't run.
const GRACE: Duration = Duration::from_secs(10);
/// What is kept of the warnings of a plugin.
const WARNINGS_MAX: usize = 10;

impl<'r> Crew<'r> {
    /// Starts them; they have to [`meet`](Self::meet) before anything else.
    pub(crate) fn start(
        args: &Args,
        spec: Spec,
        over: Contestant,
        (place, settings, interrupt): (&Place, &Config, &'r Interrupt),
    ) -> Result<Self, CollectiveError> {
        let failed = |error| Fault::system("starting a rank", error);
        let program = env::current_exe().map_err(failed)?;
        let (mut ranks, warnings) = (Workers::default(), Kept::lines(WARNINGS_MAX));
        let output = [Output::Heard(LINE_MAX), Output::Kept(&warnings)];
        for rank in 0..spec.ranks {
            let mut command = place.command(&program, rank, spec.ranks, &over, settings)?;
            command.args(["collective", spec.operation.name(), "--worker"]);
            ranks.0.push(Worker::start(command, Stdio::piped(), output).map_err(failed)?);
        }
        let about = About { name: String::new(), version: 0, devices: 0 };
        Ok(Self { over, about, ranks, warnings, timeout: args.timeout, interrupt })
    }

    /// The ranks load the plugin, and connect.
    pub(crate) fn meet(&mut self, spec: Spec) -> Result<(), CollectiveError> {
        let timeout_ms = self.timeout.as_millis() as u64;
        let task = |over: &Contestant, rank| {
            let spec = Spec { rank, ..spec };
            Task { spec, over: over.clone(), timeout_ms }
        };
        for rank in 0..spec.ranks {
            let task = task(&self.over, rank);
            self.tell(rank, &task)?;
        }
        let listening = self.collect(|reply| match reply {
            Reply::Listening { about, handles } => Ok((about, handles)),
            other => Err(other),
        })?;
        let (mut about, handles): (Vec<About>, Vec<_>) = listening.into_iter().unzip();
        self.about = about.swap_remove(0);
        for (rank, handles) in route(&handles, spec.channels).into_iter().enumerate() {
            self.tell(rank, &Order::Connect { handles })?;
        }
        self.collect(|reply| match reply {
            Reply::Connected => Ok(()),
            other => Err(other),
        })?;
        Ok(())
    }

    /// The seconds of each rank.
    pub(crate) fn run(
        &mut self,
        shape: Shape,
        [warmup, iterations]: [u32; 2],
        seed: u64,
    ) -> Result<Vec<f64>, CollectiveError> {
        self.tell_all(&Order::Run { shape, warmup, iterations, seed })?;
        self.collect(|reply| match reply {
            Reply::Ran { seconds } => Ok(seconds),
            other => Err(other),
        })
    }

    /// How many elements are wrong, of all ranks together.
    pub(crate) fn check(&mut self, shape: Shape, seed: u64) -> Result<u64, CollectiveError> {
        self.tell_all(&Order::Check { shape, seed })?;
        let wrong = self.collect(|reply| match reply {
            Reply::Checked { wrong } => Ok(wrong),
            other => Err(other),
        })?;
        Ok(wrong.into_iter().sum())
    }

    /// What the plugin has warned of, each only once.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let of = self.over.name();
        let said = self.warnings.text();
        let mut warnings: Vec<String> = said.lines().map(|line| format!("{of}: {line}")).collect();
        // Ranks warn in any order.
        warnings.sort();
        warnings
    }

    /// Ends the ranks, and waits for their last words.
    pub(crate) fn end(&mut self) {
        self.ranks.end();
    }

    /// The longest that a rank may take to read an order, and to carry it out.
    fn patience(&self) -> Duration {
        self.timeout + GRACE
    }

    fn tell_all(&mut self, order: &Order) -> Result<(), CollectiveError> {
        (0..self.ranks.0.len()).try_for_each(|rank| self.tell(rank, order))
    }

    fn tell(&mut self, rank: usize, order: &impl Serialize) -> Result<(), CollectiveError> {
        let until = Instant::now() + self.patience();
        let told = self.ranks.0[rank].tell(order, until, self.interrupt);
        told.map_err(|error| match error.kind() {
            ErrorKind::TimedOut => self.silent(rank),
            ErrorKind::Interrupted => CollectiveError::Interrupted,
            _ => self.ended(rank),
        })
    }

    /// An answer of each rank, by its number.
    fn collect<T>(
        &mut self,
        mut take: impl FnMut(Reply) -> Result<T, Reply>,
    ) -> Result<Vec<T>, CollectiveError> {
        // A plugin may print other lines. Skip them.
        let read = |line: &str| serde_json::from_str(line).ok().map(&mut take);
        let collected = self.ranks.collect(self.patience(), self.interrupt, |_| (), read);
        collected.map_err(|missing| match missing {
            Missing::Silent(rank) => self.silent(rank),
            Missing::Ended(rank) => self.ended(rank),
            Missing::Interrupted => CollectiveError::Interrupted,
            Missing::Refused { worker, why: Reply::Failed { message, code, is_late }, silent } => {
                let error = self.failed(worker, message, code, silent);
                if is_late { error } else { error.of_one() }
            }
            Missing::Refused { worker: rank, why, .. } => {
                let answer = format!("{why:?}").chars().take(80).collect();
                CollectiveError::Protocol { rank, over: self.over.name(), answer }
            }
        })
    }

    /// What a rank says of its failure, unless another one has ended: then that is the cause. `silent`:
    /// those that have said nothing yet.
    fn failed(
        &mut self,
        rank: usize,
        message: String,
        code: u8,
        mut silent: BTreeSet<usize>,
    ) -> CollectiveError {
        if let Some(other) = self.ranks.other_end(rank, &mut silent) {
            return self.ended(other);
        }
        let silent = silent.into_iter().collect();
        CollectiveError::Failed { rank, over: self.over.name(), message, code, silent }
    }

    fn silent(&self, rank: usize) -> CollectiveError {
        CollectiveError::Silent { rank, over: self.over.name(), waited: self.patience() }
    }

    /// Its standard output has ended, so it has, too, or is about to.
    fn ended(&mut self, rank: usize) -> CollectiveError {
        let status = match self.ranks.0[rank].ended(NEWS) {
            Ok(Some(status)) => status.to_string(),
            _ => "it has closed its output".to_owned(),
        };
        CollectiveError::Ended { rank, over: self.over.name(), status }
    }
}
