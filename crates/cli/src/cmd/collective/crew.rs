//! The processes of all ranks over one plugin.

use std::collections::BTreeSet;
use std::env;
use std::io::{self, Read, Write};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use polyrail_collective::{Shape, Spec, route};
use polyrail_config::Config;
use polyrail_sys::process::kill_with_this_thread;
use serde::Serialize;

use super::args::{Args, Contestant};
use super::error::CollectiveError;
use super::place::Place;
use super::worker::{About, Order, Reply, Task};
use crate::cmd::bench::Interrupt;
use crate::lines::{Lines, QUEUED_MAX};

/// Ranks that are connected. They end when this is dropped.
pub(crate) struct Crew<'r> {
    pub(crate) over: Contestant,
    pub(crate) about: About,
    ranks: Vec<Member>,
    /// The number of a rank with a line that it said; `None` once it says no more.
    heard: Receiver<(usize, Option<String>)>,
    warnings: Arc<Mutex<BTreeSet<String>>>,
    collectors: Vec<JoinHandle<()>>,
    timeout: Duration,
    interrupt: &'r Interrupt,
}

struct Member {
    child: Child,
    orders: ChildStdin,
}

/// A rank answers later than the time that it has for an order only if it can't run.
const GRACE: Duration = Duration::from_secs(10);
/// How long the news that a process has ended may take, after what others say of it.
const NEWS: Duration = Duration::from_secs(1);
const LOOK: Duration = Duration::from_millis(20);
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
        let failed = |source| CollectiveError::System { step: "starting a rank", source };
        let program = env::current_exe().map_err(failed)?;
        let (sender, heard) = sync_channel(QUEUED_MAX);
        let about = About { name: String::new(), version: 0, devices: 0 };
        let timeout = args.timeout;
        let (ranks, collectors, warnings) = (Vec::new(), Vec::new(), Arc::default());
        let mut crew = Self { over, about, ranks, heard, warnings, collectors, timeout, interrupt };
        for rank in 0..spec.ranks {
            let mut command = place.command(&program, rank, spec.ranks, &crew.over, settings)?;
            command.args(["collective", spec.operation.name(), "--worker"]);
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
            kill_with_this_thread(&mut command);
            let mut child = command.spawn().map_err(failed)?;
            let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
            let (Some(orders), Some(stdout), Some(stderr)) = pipes else {
                return Err(failed(std::io::ErrorKind::BrokenPipe.into()));
            };
            crew.ranks.push(Member { child, orders });
            listen(rank, stdout, sender.clone()).map_err(failed)?;
            crew.collectors.push(collect(stderr, Arc::clone(&crew.warnings)).map_err(failed)?);
        }
        Ok(crew)
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
        self.warnings.lock().iter().map(|line| format!("{of}: {line}")).collect()
    }

    /// Ends the ranks, and waits for their last words.
    pub(crate) fn end(&mut self) {
        // Both fail only where it is gone already.
        for member in &mut self.ranks {
            let _ = member.child.kill();
        }
        for member in &mut self.ranks {
            let _ = member.child.wait();
        }
        for collector in self.collectors.drain(..) {
            // If it panicked, the panic was printed.
            let _ = collector.join();
        }
    }

    fn tell_all(&mut self, order: &Order) -> Result<(), CollectiveError> {
        (0..self.ranks.len()).try_for_each(|rank| self.tell(rank, order))
    }

    fn tell(&mut self, rank: usize, order: &impl Serialize) -> Result<(), CollectiveError> {
        let text = serde_json::to_string(order).map_err(|error| CollectiveError::System {
            step: "writing an order",
            source: error.into(),
        })?;
        let orders = &mut self.ranks[rank].orders;
        match writeln!(orders, "{text}").and_then(|()| orders.flush()) {
            Ok(()) => Ok(()),
            Err(_) => Err(self.ended(rank)),
        }
    }

    /// An answer of each rank, by its number.
    fn collect<T>(
        &mut self,
        mut take: impl FnMut(Reply) -> Result<T, Reply>,
    ) -> Result<Vec<T>, CollectiveError> {
        let mut answers: Vec<Option<T>> = self.ranks.iter().map(|_| None).collect();
        let (waited, begun) = (self.timeout + GRACE, Instant::now());
        while let Some(missing) = answers.iter().position(Option::is_none) {
            let (rank, line) = match self.heard.recv_timeout(LOOK) {
                Ok(heard) => heard,
                Err(RecvTimeoutError::Timeout) if begun.elapsed() < waited => {
                    match self.interrupt.is_raised() {
                        true => return Err(CollectiveError::Interrupted),
                        false => continue,
                    }
                }
                Err(_) => {
                    let over = self.over.name();
                    return Err(CollectiveError::Silent { rank: missing, over, waited });
                }
            };
            let Some(line) = line else { return Err(self.ended(rank)) };
            // What else a plugin prints there is no answer.
            let Ok(reply) = serde_json::from_str(&line) else { continue };
            match take(reply) {
                Ok(answer) => answers[rank] = Some(answer),
                Err(Reply::Failed { message, code, is_late }) => {
                    let others = answers.iter().enumerate();
                    let silent = others.filter(|(other, it)| *other != rank && it.is_none());
                    let silent = silent.map(|(other, _)| other).collect();
                    let error = self.failed(rank, message, code, silent);
                    return Err(if is_late { error } else { error.of_one() });
                }
                Err(other) => {
                    let answer = format!("{other:?}").chars().take(80).collect();
                    return Err(CollectiveError::Protocol { rank, over: self.over.name(), answer });
                }
            }
        }
        Ok(answers.into_iter().flatten().collect())
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
        let until = Instant::now() + NEWS;
        while !silent.is_empty() {
            match self.heard.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok((other, None)) => return self.ended(other),
                Ok((other, Some(_))) => drop(silent.remove(&other)),
                Err(_) => break,
            }
        }
        let silent = silent.into_iter().collect();
        CollectiveError::Failed { rank, over: self.over.name(), message, code, silent }
    }

    /// Its standard output has ended, so it has, too, or is about to.
    fn ended(&mut self, rank: usize) -> CollectiveError {
        let until = Instant::now() + NEWS;
        let child = &mut self.ranks[rank].child;
        let status = loop {
            match child.try_wait() {
                Ok(None) if Instant::now() < until => thread::sleep(LOOK),
                Ok(Some(status)) => break status.to_string(),
                _ => break "it has closed its output".to_owned(),
            }
        };
        CollectiveError::Ended { rank, over: self.over.name(), status }
    }
}

impl Drop for Crew<'_> {
    fn drop(&mut self) {
        self.end();
    }
}

fn listen(
    rank: usize,
    stdout: impl Read + Send + 'static,
    to: SyncSender<(usize, Option<String>)>,
) -> io::Result<()> {
    let listen = move || {
        // Ends with the process.
        for line in Lines::of(stdout).map_while(Result::ok) {
            if to.send((rank, Some(line))).is_err() {
                return;
            }
        }
        let _ = to.send((rank, None));
    };
    thread::Builder::new().spawn(listen).map(drop)
}

fn collect(
    stderr: impl Read + Send + 'static,
    to: Arc<Mutex<BTreeSet<String>>>,
) -> io::Result<JoinHandle<()>> {
    thread::Builder::new().spawn(move || {
        for line in Lines::of(stderr).map_while(Result::ok) {
            let mut kept = to.lock();
            if kept.len() < WARNINGS_MAX {
                kept.insert(line);
            }
        }
    })
}
