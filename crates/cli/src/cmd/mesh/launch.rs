//! Starts the workers of this node, or of all nodes of a lab, layout after layout, and shows the results.

use std::convert::Infallible;
use std::env;
use std::io::ErrorKind;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use polyrail_report::exit;

use super::args::{Args, Seat};
use super::conclude::{conclusions, nothing};
use super::crew;
use super::faults;
use super::heard::Heard;
use super::meet::{Introduction, everybody};
use super::place::Place;
use super::plan::Layout;
use super::render;
use super::report::{MeshReport, SCHEMA_VERSION};
use crate::config_args::print_warnings;
use crate::crew::{Kept, Missing, NEWS, Output, Worker, Workers};
use crate::fault::{Cause, Fault};
use crate::interrupt::{AtOnce, Interrupt};
use crate::lines::LINE_MAX;
use crate::progress::{Progress, show_time};
use crate::reports;
use crate::stdout::tell;

/// Measures every layout, and prints and writes the results.
pub(crate) fn run(args: &Args) -> Result<u8, Fault> {
    let interrupt = Interrupt::install(AtOnce::Second)?;
    let place = Place::find(args)?;
    let seat = place.seat(Layout::One, 0);
    let config = crew::config(args, &seat)?;
    print_warnings(&config);
    args.check(place.nodes(), u64::from(config.ops_pool))?;
    if let Place::Hosts(remote) = &place {
        remote.check(&interrupt)?;
    }
    let started = Instant::now();
    let mut report = blank(args, &place);
    let mut failed = None;
    let mut progress = None;
    let layouts = args.layouts();
    for (number, &layout) in layouts.iter().enumerate() {
        let later = layouts[number..].iter().map(|layout| args.planned(report.nodes, *layout));
        let left = later.sum();
        let processes = args.grid(report.nodes, layout).workers();
        let (report, progress) = (&mut report, &mut progress);
        let heard = Heard { report, layout, processes, progress, left, end: None };
        if let Err(error) = measure(args, &place, heard, &interrupt) {
            failed = Some(place.explain(error));
            break;
        }
    }
    drop(progress);
    report.head.elapsed_s = started.elapsed().as_secs_f64();
    report.head.error = failed.as_ref().map(ToString::to_string);
    report.conclusions = conclusions(&report.layouts, report.rounds);
    report.conclusions.extend(nothing(&report));
    let shown = if report.is_measured() || failed.is_some() {
        // Only the node of the first worker writes JSON: the other nodes may share the folder.
        let json = args.json.as_deref().filter(|_| report.is_measured() || place.has_first());
        render::show(&report, json, args.html.as_deref())
    } else {
        tell!("polyrail: this node has done its part; node 0 prints the figures");
        Ok(())
    };
    failed.map_or(Ok(()), Err).and(shown).and(place.end()).map(|()| exit::OK)
}

/// Runs all workers of a layout. There are no results if the first worker is on another node.
fn measure(
    args: &Args,
    place: &Place,
    mut heard: Heard<'_>,
    interrupt: &Interrupt,
) -> Result<(), Fault> {
    let layout = heard.layout;
    let grid = args.grid(place.nodes(), layout);
    let program =
        env::current_exe().map_err(|source| Fault::system("finding this program", source))?;
    let mut party = Party { workers: Workers::default(), members: Vec::new() };
    for node in 0..place.own_nodes() {
        for index in 0..grid.workers_per_node() {
            let seat = Seat { index, ..place.seat(layout, node) };
            let command = place.command(node, &program, &args.words(&seat))?;
            let name = match seat.node {
                Some(node) => grid.worker_name(node * grid.workers_per_node() + index),
                None => "this node".into(),
            };
            party.start(name, command)?;
        }
    }
    if place.introduces() {
        party.introduce(&heard, args.timeout, interrupt)?;
    }
    party.finish(&mut heard, interrupt)
}

/// The processes of a layout. Dropping the `Party` ends them.
struct Party {
    workers: Workers,
    members: Vec<Member>,
}

struct Member {
    name: String,
    /// Standard error of the process. That of the first one goes straight to the user.
    words: Kept,
}

impl Party {
    fn start(&mut self, name: String, command: Command) -> Result<(), Fault> {
        let words = Kept::bytes(LINE_MAX);
        let output = match self.members.is_empty() {
            // The first worker reports the results.
            true => [Output::Heard(REPORT_MAX), Output::Ours],
            false => [Output::Heard(LINE_MAX), Output::Kept(&words)],
        };
        let step = || format!("starting the process of {name}");
        let started = Worker::start(command, Stdio::piped(), output);
        self.workers.0.push(started.map_err(|source| Fault::system(step(), source))?);
        self.members.push(Member { name, words });
        Ok(())
    }

    /// Sends the metadata of each worker to all others.
    fn introduce(
        &mut self,
        heard: &Heard<'_>,
        timeout: Duration,
        interrupt: &Interrupt,
    ) -> Result<(), Fault> {
        let until = Instant::now() + timeout;
        let at_most = show_time(timeout);
        let own = heard.progress.is_none().then(|| Progress::waiting("starting"));
        let progress = heard.progress.as_ref().or(own.as_ref());
        let wait = |number: usize| {
            if let Some(progress) = progress {
                progress
                    .say(format!("waiting for {}, at most {at_most}", self.members[number].name));
            }
        };
        let silent = |who: &str| faults::silent(who, "hello", timeout);
        // A shell on another host may have printed a greeting first.
        let read = |line: &str| Introduction::read(line).map(Ok::<_, Infallible>);
        let heard = match self.workers.collect(timeout, interrupt, wait, read) {
            Ok(heard) => heard,
            Err(Missing::Silent(number)) => return Err(silent(&self.members[number].name)),
            Err(Missing::Refused { why, .. }) => match why {},
            Err(Missing::Interrupted) => return Err(Fault::interrupted()),
            Err(Missing::Ended(number)) => {
                // The worker's output has ended, so its exit status is known in a moment.
                let ended = self.workers.0[number].ended(NEWS);
                ended.map_err(|source| Fault::system(WAITING, source))?;
                // The signal may have ended the workers, too.
                if interrupt.is_raised() {
                    return Err(Fault::interrupted());
                }
                self.end();
                return Err(self.why(number));
            }
        };
        for (introduction, member) in heard.iter().zip(&self.members) {
            introduction.check(&member.name)?;
        }
        let line = everybody(heard)?;
        for (worker, member) in self.workers.0.iter_mut().zip(&self.members) {
            match worker.send(&line, until, interrupt) {
                Err(error) if error.kind() == ErrorKind::TimedOut => {
                    return Err(silent(&member.name));
                }
                // `finish` reports a worker that is gone, and Ctrl-C.
                _ => {}
            }
        }
        Ok(())
    }

    /// Waits for all workers. After a failure of one, the others have some time to report it.
    fn finish(&mut self, heard: &mut Heard<'_>, interrupt: &Interrupt) -> Result<(), Fault> {
        let waited = self.wait(heard, interrupt);
        self.end();
        for worker in &self.workers.0 {
            // Read until its output ends. A process that it left behind may hold the pipe open and write on.
            let until = Instant::now() + NEWS;
            while heard.take_from(worker, NEWS) && Instant::now() < until {}
        }
        match (heard.end.take(), waited?) {
            // The first worker knows the cause best.
            (Some(Some(fault)), _) => Err(Fault { cause: Cause::Ended, ..Fault::heard(fault) }),
            (None, Some(number)) => Err(self.why(number)),
            (Some(None), _) | (None, None) => Ok(()),
        }
    }

    /// Waits for all workers. Returns the number of the one that failed first.
    fn wait(
        &mut self,
        heard: &mut Heard<'_>,
        interrupt: &Interrupt,
    ) -> Result<Option<usize>, Fault> {
        let mut failed: Option<(usize, Instant)> = None;
        loop {
            let mut are_over = true;
            for (number, worker) in self.workers.0.iter_mut().enumerate() {
                heard.take_from(worker, Duration::ZERO);
                let ended = worker.ended(Duration::ZERO);
                match ended.map_err(|source| Fault::system(WAITING, source))? {
                    None => are_over = false,
                    Some(status) if status.success() => {}
                    Some(_) => drop(failed.get_or_insert_with(|| (number, Instant::now()))),
                }
            }
            if interrupt.is_raised() {
                return Err(Fault::interrupted());
            }
            if are_over || failed.is_some_and(|(_, since)| since.elapsed() > GRACE) {
                return Ok(failed.map(|(number, _)| number));
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Returns the reason why a worker ended without a result. All workers have ended.
    fn why(&mut self, number: usize) -> Fault {
        let Member { name, words } = &self.members[number];
        let status = self.workers.0[number].ended(Duration::ZERO).ok().flatten();
        let code = status.and_then(|status| status.code()).and_then(|code| code.try_into().ok());
        let words = words.text();
        match code {
            // The first worker has printed its error itself.
            Some(code) if number == 0 => Fault::told(code),
            Some(code) if !words.trim().is_empty() => {
                tell!("polyrail: {name} says:\n{}", words.trim_end());
                Fault::told(code)
            }
            _ => {
                let status = status.map_or_else(String::new, |status| status.to_string());
                faults::ended(name, &status)
            }
        }
    }

    fn end(&mut self) {
        self.workers.part(PATIENCE);
        self.workers.end();
    }
}

impl Drop for Party {
    fn drop(&mut self) {
        self.end();
    }
}

fn blank(args: &Args, place: &Place) -> MeshReport {
    MeshReport {
        head: reports::begin(SCHEMA_VERSION),
        lab: place.lab_name(),
        lab_rates: place.lab_rates(),
        node_gb_per_s: place.node_gb_per_s(),
        nodes: place.nodes(),
        endpoints_per_node: args.grid(place.nodes(), Layout::One).endpoints,
        memory: args.memory_name().into(),
        size_bytes: args.size,
        depth: args.depth,
        time_ms: args.time.as_millis() as u64,
        warmup_ms: args.warmup.as_millis() as u64,
        rounds: args.rounds,
        hosts: Vec::new(),
        layouts: Vec::new(),
        conclusions: Vec::new(),
    }
}

/// Maximum length of a line: a pattern has a part for each pair of nodes.
const REPORT_MAX: usize = 64 << 20;
/// Time for the others to report the end of one: longer than they take to give up that peer.
const GRACE: Duration = Duration::from_secs(15);
/// Time for the workers to end once their standard input is closed.
const PATIENCE: Duration = Duration::from_secs(5);
const WAITING: &str = "waiting for a process";

#[cfg(test)]
#[path = "launch_tests.rs"]
mod tests;
