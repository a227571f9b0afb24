//! The processes of all ranks over one plugin.

use std::collections::BTreeSet;
use std::env;
use std::io::ErrorKind;
use std::process::Stdio;
use std::time::{Duration, Instant};

use polyrail_collective::{Shape, Spec, route};
use polyrail_config::Config;
use polyrail_report::exit;
use serde::Serialize;

use super::args::{Args, Contestant};
use super::place::Place;
use super::worker::{About, Order, Reply, Task};
use crate::crew::{Kept, Missing, NEWS, Output, Worker, Workers};
use crate::fault::Fault;
use crate::interrupt::Interrupt;
use crate::lines::LINE_MAX;
use crate::stdout::one_line;

/// The ranks over one plugin. Dropping this ends them.
pub(crate) struct Crew<'r> {
    pub(crate) over: Contestant,
    pub(crate) about: About,
    ranks: Workers,
    warnings: Kept,
    timeout: Duration,
    interrupt: &'r Interrupt,
}

/// Extra time to answer, beyond the timeout of an order. A rank takes longer only if it can't run.
const GRACE: Duration = Duration::from_secs(10);
const NOTES: &str = "the notes above have what the plugin said; give --timeout if it only was slow";
/// Maximum number of plugin warnings to keep.
const WARNINGS_MAX: usize = 10;

impl<'r> Crew<'r> {
    /// Starts the ranks. Call [`meet`](Self::meet) before anything else.
    pub(crate) fn start(
        args: &Args,
        spec: Spec,
        over: Contestant,
        (place, settings, interrupt): (&Place, &Config, &'r Interrupt),
    ) -> Result<Self, Fault> {
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

    /// Makes the ranks load the plugin and connect.
    pub(crate) fn meet(&mut self, spec: Spec) -> Result<(), Fault> {
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

    /// Runs the operation. Returns the seconds of each rank.
    pub(crate) fn run(
        &mut self,
        shape: Shape,
        [warmup, iterations]: [u32; 2],
        seed: u64,
    ) -> Result<Vec<f64>, Fault> {
        self.tell_all(&Order::Run { shape, warmup, iterations, seed })?;
        self.collect(|reply| match reply {
            Reply::Ran { seconds } => Ok(seconds),
            other => Err(other),
        })
    }

    /// Number of wrong elements, of all ranks together.
    pub(crate) fn check(&mut self, shape: Shape, seed: u64) -> Result<u64, Fault> {
        self.tell_all(&Order::Check { shape, seed })?;
        let wrong = self.collect(|reply| match reply {
            Reply::Checked { wrong } => Ok(wrong),
            other => Err(other),
        })?;
        Ok(wrong.into_iter().sum())
    }

    /// Warnings of the plugin, each only once.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let of = self.over.name();
        let said = self.warnings.text();
        let mut warnings: Vec<String> = said.lines().map(|line| format!("{of}: {line}")).collect();
        // Ranks warn in any order.
        warnings.sort();
        warnings
    }

    /// Ends the ranks, and waits for their last output.
    pub(crate) fn end(&mut self) {
        self.ranks.end();
    }

    /// Maximum time for a rank to read an order and carry it out.
    fn patience(&self) -> Duration {
        self.timeout + GRACE
    }

    fn tell_all(&mut self, order: &Order) -> Result<(), Fault> {
        (0..self.ranks.0.len()).try_for_each(|rank| self.tell(rank, order))
    }

    fn tell(&mut self, rank: usize, order: &impl Serialize) -> Result<(), Fault> {
        let until = Instant::now() + self.patience();
        let told = self.ranks.0[rank].tell(order, until, self.interrupt);
        told.map_err(|error| match error.kind() {
            ErrorKind::TimedOut => self.silent(rank),
            ErrorKind::Interrupted => Fault::interrupted(),
            _ => self.ended(rank),
        })
    }

    /// Collects an answer from each rank, in the order of ranks.
    fn collect<T>(
        &mut self,
        mut take: impl FnMut(Reply) -> Result<T, Reply>,
    ) -> Result<Vec<T>, Fault> {
        // A plugin may print other lines. Skip them.
        let read = |line: &str| serde_json::from_str(line).ok().map(&mut take);
        let collected = self.ranks.collect(self.patience(), self.interrupt, |_| (), read);
        collected.map_err(|missing| match missing {
            Missing::Silent(rank) => self.silent(rank),
            Missing::Ended(rank) => self.ended(rank),
            Missing::Interrupted => Fault::interrupted(),
            Missing::Refused { worker, why: Reply::Failed { fault, is_late }, silent } => {
                self.failed(worker, fault, is_late, silent)
            }
            Missing::Refused { worker: rank, why, .. } => {
                let answer = one_line(&format!("{why:?}"), 80);
                self.of(rank, &format!(" answered with something else: {answer}"))
            }
        })
    }

    /// Error of a rank that failed. If another rank ended and caused this, returns the error of that one. If the failed
    /// rank was waiting, also names the ranks that have not answered yet.
    fn failed(
        &mut self,
        rank: usize,
        fault: Fault,
        is_late: bool,
        mut silent: BTreeSet<usize>,
    ) -> Fault {
        if let Some(other) = self.ranks.other_end(rank, &mut silent) {
            return self.ended(other);
        }
        let silent: Vec<String> = silent.iter().map(|rank| format!("rank {rank}")).collect();
        let silent = match is_late && !silent.is_empty() {
            true => format!("; no word from {}", silent.join(", ")),
            false => String::new(),
        };
        let mut fault = Fault::of_peer(&format!("rank {rank} over {}", self.over.name()), fault);
        fault.message += &silent;
        fault.help.get_or_insert_with(|| NOTES.into());
        fault
    }

    fn silent(&self, rank: usize) -> Fault {
        self.of(rank, &format!(" did not answer for {} s", self.patience().as_secs()))
            .with_help("see whether it was stopped, or give --timeout")
    }

    /// Error of a rank whose standard output has ended: the process has exited, or is about to.
    fn ended(&mut self, rank: usize) -> Fault {
        let status = match self.ranks.0[rank].ended(NEWS) {
            Ok(Some(status)) => status.to_string(),
            _ => "it has closed its output".to_owned(),
        };
        let text = format!("the process of rank {rank} over {} ended ({status})", self.over.name());
        Fault::new(exit::PEER, text)
            .with_help("see whether somebody has killed it, or the kernel for want of memory")
    }

    fn of(&self, rank: usize, what: &str) -> Fault {
        Fault::new(exit::PEER, format!("rank {rank} over {}{what}", self.over.name()))
    }
}
