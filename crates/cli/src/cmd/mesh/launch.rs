//! Starts the workers of this node, or of all nodes of a lab, layout after layout, and shows what comes of
//! it.

use std::env;
use std::io::{ErrorKind, Read};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::{self, Builder, JoinHandle};
use std::time::{Duration, Instant};

use polyrail_config::Rendezvous;
use polyrail_lab::{Lab, LabError, LabGuard, Node};
use polyrail_report::{Tool, exit};
use polyrail_sys::process::kill_with_this_thread;

use super::args::{AnyLab, Args, PLACES, Seat};
use super::conclude::conclusions;
use super::crew;
use super::direct::{Failed, Told};
use super::error::MeshError;
use super::heard::Heard;
use super::hosts::{Hosts, Remote};
use super::meet::{BY_STARTER, Introduction, everybody};
use super::plan::Layout;
use super::render;
use super::report::{MeshReport, SCHEMA_VERSION};
use crate::config_args::print_warnings;
use crate::files;
use crate::interrupt::{AtOnce, Interrupt};
use crate::lines::{LINE_MAX, Lines, QUEUED_MAX, all_of};
use crate::own_labs;
use crate::patient_pipe::write_until;
use crate::progress::{Progress, show_time};
use crate::stdout::tell;
use crate::unwritten::Unwritten;

/// Measures every layout, and prints and writes what came of it.
pub(crate) fn run(args: &Args) -> Result<u8, MeshError> {
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
    report.elapsed_s = started.elapsed().as_secs_f64();
    report.error = failed.as_ref().map(ToString::to_string);
    let has_first = place.has_first();
    place.end()?;
    report.conclusions = conclusions(&report.layouts, report.rounds);
    let mut shown = Ok(());
    if report.layouts.iter().any(|layout| !layout.patterns.is_empty()) {
        shown = render::show(&report, args.json.as_deref(), args.html.as_deref());
    } else if failed.is_some() {
        // A program that reads it learns why there is nothing else; the other nodes may share the folder.
        shown = render::save(&report, args.json.as_deref().filter(|_| has_first));
    } else {
        tell!("polyrail: this node has done its part; node 0 prints the figures");
    }
    failed.map_or(Ok(exit::OK), Err).and_then(|code| shown.map(|()| code))
}

/// Where the nodes are.
enum Place {
    Lab {
        lab: Box<Lab>,
        /// Removes the lab at the end, if it was made for the run.
        made: Option<Box<LabGuard>>,
    },
    Hosts(Remote),
    Here {
        /// `None` for a rank.
        node: Option<usize>,
        nodes: usize,
        rendezvous: String,
    },
}

impl Place {
    fn find(args: &Args) -> Result<Self, MeshError> {
        if let Some(lab) = &args.lab {
            let (lab, made) = match lab {
                AnyLab::Up(name) => (Lab::open(name)?, None),
                AnyLab::ForRun(wanted) => {
                    let (lab, made) = own_labs::make("mesh", wanted)?;
                    (lab, Some(Box::new(made)))
                }
            };
            // Two would measure each other.
            lab.use_alone()?;
            return Ok(Self::Lab { lab: Box::new(lab), made });
        }
        let Some(Hosts(hosts)) = &args.hosts else { return Self::here(args) };
        let own = env::current_exe();
        let remote = Remote {
            hosts: hosts.clone(),
            program: args.remote_program.clone(),
            ssh_config: args.ssh_config.clone(),
            own: own.map_err(|source| MeshError::system("finding this program", source))?,
            timeout: args.timeout,
        };
        Ok(Self::Hosts(remote))
    }

    fn here(args: &Args) -> Result<Self, MeshError> {
        let set = args.config.builder()?.build()?.rendezvous.clone();
        let rendezvous = args.rendezvous.clone().unwrap_or(set);
        if rendezvous.is_empty() {
            return Err(MeshError::NoNodes);
        }
        let parsed = Rendezvous::parse(&rendezvous).ok().flatten();
        let is_ranks = match parsed {
            Some(Rendezvous::Ranks { .. }) => true,
            Some(Rendezvous::Dir { .. } | Rendezvous::Etcd { .. }) => false,
            _ => {
                let help = "give another --rendezvous, or --lab, or --hosts";
                let reason = "is no place where nodes of a mesh find each other";
                return Err(MeshError::usage("--rendezvous", rendezvous, reason, PLACES, help));
            }
        };
        let help = "each node needs to know how many there are, and which of them it is";
        let Some(nodes) = args.nodes.map(|nodes| nodes as usize) else {
            return Err(MeshError::usage("--nodes", "", "is missing", "2 to 256", help));
        };
        if is_ranks && args.layouts() != [Layout::One] {
            let reason = "needs processes that the launcher of the ranks does not know";
            let allowed = "one with ranks, or a dir:// or etcd:// rendezvous";
            let help = "give --layout one, or another --rendezvous";
            return Err(MeshError::usage("--layout", "per-gpu", reason, allowed, help));
        }
        let node = match (args.node.map(|node| node as usize), is_ranks) {
            (_, true) => None,
            (Some(node), false) if node < nodes => Some(node),
            (node, false) => {
                let value = node.map_or(String::new(), |node| node.to_string());
                let reason = if node.is_some() { "is not one of the nodes" } else { "is missing" };
                let allowed = format!("0 to {}", nodes - 1);
                return Err(MeshError::usage("--node", value, reason, allowed, help));
            }
        };
        Ok(Self::Here { node, nodes, rendezvous })
    }

    fn nodes(&self) -> usize {
        match self {
            Self::Lab { lab, .. } => lab.nodes(),
            Self::Hosts(remote) => remote.hosts.len(),
            Self::Here { nodes, .. } => *nodes,
        }
    }

    /// The place of the first worker of a node that this process starts.
    fn seat(&self, layout: Layout, node: usize) -> Seat {
        let (node, place) = match self {
            Self::Lab { .. } | Self::Hosts(_) => (Some(node), BY_STARTER.to_owned()),
            Self::Here { node, rendezvous, .. } => (*node, rendezvous.clone()),
        };
        let in_lab = matches!(self, Self::Lab { .. });
        Seat { layout, node, index: 0, nodes: self.nodes(), in_lab, place }
    }

    /// Whether this process starts the first worker, as far as it knows.
    fn has_first(&self) -> bool {
        match self {
            Self::Lab { .. } | Self::Hosts(_) => true,
            Self::Here { node, .. } => *node == Some(0),
        }
    }

    /// Whether the workers get to know each other by this process.
    fn introduces(&self) -> bool {
        matches!(self, Self::Lab { .. } | Self::Hosts(_))
    }

    /// How many nodes this process starts workers of.
    fn own_nodes(&self) -> usize {
        match self {
            Self::Lab { .. } | Self::Hosts(_) => self.nodes(),
            Self::Here { .. } => 1,
        }
    }

    fn command(&self, node: usize, program: &Path, words: &[String]) -> Result<Command, MeshError> {
        let mut command = match self {
            Self::Hosts(remote) => return Ok(remote.command(node, words)),
            Self::Lab { lab, .. } => lab.command(lab.node(Node::new(node)?)?, program),
            Self::Here { .. } => Command::new(program),
        };
        command.args(words);
        Ok(command)
    }

    fn lab_name(&self) -> Option<String> {
        match self {
            Self::Lab { lab, .. } => Some(lab.name().to_owned()),
            Self::Hosts(_) | Self::Here { .. } => None,
        }
    }

    /// Where the lab is gone, that is why.
    fn explain(&self, error: MeshError) -> MeshError {
        let Self::Lab { lab, .. } = self else { return error };
        // Who takes a lab down ends the processes in it first.
        let is_gone =
            matches!(error, MeshError::Ended { .. } | MeshError::Failed { code: exit::PEER, .. });
        let until = Instant::now() + if is_gone { GOING } else { Duration::ZERO };
        loop {
            let why = match Lab::open(lab.name()) {
                Ok(_) if Instant::now() < until => {
                    thread::sleep(Duration::from_millis(20));
                    continue;
                }
                Ok(_) => return error,
                Err(LabError::Broken { because, .. }) => because,
                Err(_) => "somebody has removed it".into(),
            };
            return MeshError::LabGone { name: lab.name().into(), why };
        }
    }

    fn end(self) -> Result<(), MeshError> {
        match self {
            Self::Lab { made: Some(made), .. } => match made.down() {
                // Somebody else has removed it, which was told already.
                Err(LabError::UnknownLab { .. }) => Ok(()),
                result => Ok(result?),
            },
            _ => Ok(()),
        }
    }
}

/// Runs all workers of a layout; nothing is heard where the first worker is on another node.
fn measure(
    args: &Args,
    place: &Place,
    mut heard: Heard<'_>,
    interrupt: &Interrupt,
) -> Result<(), MeshError> {
    let layout = heard.layout;
    let grid = args.grid(place.nodes(), layout);
    let program =
        env::current_exe().map_err(|source| MeshError::system("finding this program", source))?;
    let mut workers = Workers(Vec::new());
    for node in 0..place.own_nodes() {
        for index in 0..grid.workers_per_node() {
            let seat = Seat { index, ..place.seat(layout, node) };
            let command = place.command(node, &program, &args.words(&seat))?;
            let name = match seat.node {
                Some(node) => grid.worker_name(node * grid.workers_per_node() + index),
                None => "this node".into(),
            };
            workers.start(name, command)?;
        }
    }
    if place.introduces() {
        workers.introduce(&heard, args.timeout, interrupt)?;
    }
    workers.finish(&mut heard, interrupt)
}

/// Processes that were started; they are ended when this is dropped.
struct Workers(Vec<Worker>);

struct Worker {
    name: String,
    child: Child,
    stdout: Option<JoinHandle<()>>,
    /// Of all but the first, whose words go straight to the user.
    stderr: Option<JoinHandle<String>>,
    status: Option<ExitStatus>,
    /// What it tells first, if it tells of its metadata.
    introduction: Receiver<Introduction>,
    told: Receiver<Told>,
}

impl Workers {
    fn start(&mut self, name: String, mut command: Command) -> Result<(), MeshError> {
        let is_first = self.0.is_empty();
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command.stderr(if is_first { Stdio::inherit() } else { Stdio::piped() });
        kill_with_this_thread(&mut command);
        let step = || format!("starting the process of {name}");
        let mut child = command.spawn().map_err(|source| MeshError::system(step(), source))?;
        let (introduce, introduction) = sync_channel(1);
        let (tell, told) = sync_channel(QUEUED_MAX);
        let pipes = (child.stdout.take(), child.stderr.take());
        let (stdout, stderr) = (None, None);
        self.0.push(Worker { name, child, stdout, stderr, status: None, introduction, told });
        let Some(worker) = self.0.last_mut() else { return Ok(()) };
        let failed = |source| MeshError::system("starting a thread for a worker's output", source);
        // The first one tells the results.
        let most = if is_first { REPORT_MAX } else { LINE_MAX };
        let listen = |pipe| {
            let lines = Lines::up_to(most, pipe);
            Builder::new().spawn(move || listen(introduce, tell, lines))
        };
        worker.stdout = pipes.0.map(listen).transpose().map_err(failed)?;
        let keep = |pipe| Builder::new().spawn(move || all_of(LINE_MAX, pipe));
        worker.stderr = pipes.1.map(keep).transpose().map_err(failed)?;
        Ok(())
    }

    /// Carries the metadata of each to all others.
    fn introduce(
        &mut self,
        heard: &Heard<'_>,
        timeout: Duration,
        interrupt: &Interrupt,
    ) -> Result<(), MeshError> {
        let until = Instant::now() + timeout;
        let at_most = show_time(timeout);
        let own = heard.progress.is_none().then(|| Progress::waiting("starting"));
        let progress = heard.progress.as_ref().or(own.as_ref());
        let mut heard = Vec::new();
        for number in 0..self.0.len() {
            if let Some(progress) = progress {
                progress.say(format!("waiting for {}, at most {at_most}", self.0[number].name));
            }
            let one = loop {
                // Before anything else: the signal may have ended the workers, too.
                if interrupt.is_raised() {
                    return Err(MeshError::Interrupted);
                }
                let worker = &mut self.0[number];
                match worker.introduction.recv_timeout(Duration::from_millis(20)) {
                    Ok(one) => break one,
                    // Its words are behind it; what ended it is known in a moment.
                    Err(RecvTimeoutError::Disconnected) if worker.has_ended()? => {
                        self.end();
                        return Err(self.why(number));
                    }
                    Err(RecvTimeoutError::Disconnected) => thread::sleep(Duration::from_millis(5)),
                    Err(RecvTimeoutError::Timeout) => {}
                }
                if Instant::now() >= until {
                    let who = self.0[number].name.clone();
                    return Err(MeshError::Silent { who, order: "hello", waited: timeout });
                }
            };
            one.check(&self.0[number].name)?;
            heard.push(one);
        }
        let line = everybody(heard)?;
        for worker in &mut self.0 {
            let Some(stdin) = &mut worker.child.stdin else { continue };
            match write_until(stdin, line.as_bytes(), until, interrupt) {
                Err(error) if error.kind() == ErrorKind::TimedOut => {
                    let who = worker.name.clone();
                    return Err(MeshError::Silent { who, order: "hello", waited: timeout });
                }
                // One that is gone is told of by `finish`, and so is Ctrl-C.
                _ => {}
            }
        }
        Ok(())
    }

    /// Waits for all of them. After a failure of one the others have some time to tell of it.
    fn finish(&mut self, heard: &mut Heard<'_>, interrupt: &Interrupt) -> Result<(), MeshError> {
        let waited = self.wait(heard, interrupt);
        self.end();
        for worker in &mut self.0 {
            // Until its output ends.
            worker.told.iter().for_each(|told| heard.take(told));
            // A panic there was printed.
            let _ = worker.stdout.take().map(JoinHandle::join);
        }
        match (heard.end.take(), waited?) {
            // The first one knows best.
            (Some(Some(Failed { message, help, code })), _) => {
                Err(MeshError::Failed { message, help, code })
            }
            (None, Some(number)) => Err(self.why(number)),
            (Some(None), _) | (None, None) => Ok(()),
        }
    }

    /// The number of the one that failed first.
    fn wait(
        &mut self,
        heard: &mut Heard<'_>,
        interrupt: &Interrupt,
    ) -> Result<Option<usize>, MeshError> {
        let mut failed: Option<(usize, Instant)> = None;
        loop {
            for (number, worker) in self.0.iter_mut().enumerate() {
                worker.told.try_iter().for_each(|told| heard.take(told));
                if worker.status.is_none() && worker.has_ended()? {
                    let is_bad = worker.status.is_some_and(|status| !status.success());
                    if is_bad && failed.is_none() {
                        failed = Some((number, Instant::now()));
                    }
                }
            }
            if interrupt.is_raised() {
                return Err(MeshError::Interrupted);
            }
            let is_late = failed.is_some_and(|(_, since)| since.elapsed() > GRACE);
            if is_late || self.0.iter().all(|worker| worker.status.is_some()) {
                return Ok(failed.map(|(number, _)| number));
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Why a worker ended that told nothing.
    fn why(&mut self, number: usize) -> MeshError {
        let worker = &mut self.0[number];
        let words = worker.stderr.take().and_then(|thread| thread.join().ok()).unwrap_or_default();
        let code =
            worker.status.and_then(|status| status.code()).and_then(|code| code.try_into().ok());
        match code {
            // It is the first one, or says itself what was wrong.
            Some(code) if number == 0 => MeshError::Told { code },
            Some(code) if !words.trim().is_empty() => {
                tell!("polyrail: {} says:\n{}", worker.name, words.trim_end());
                MeshError::Told { code }
            }
            _ => {
                let status = worker.status.map_or_else(String::new, |status| status.to_string());
                MeshError::Ended { who: worker.name.clone(), status }
            }
        }
    }

    /// Ends those that still run: their standard input closes, and a little later they are killed.
    fn end(&mut self) {
        for worker in &mut self.0 {
            drop(worker.child.stdin.take());
        }
        let deadline = Instant::now() + PATIENCE;
        for worker in &mut self.0 {
            while matches!(worker.child.try_wait(), Ok(None)) && Instant::now() < deadline {
                thread::sleep(Duration::from_millis(5));
            }
            // Both fail only where it is gone already.
            let _ = worker.child.kill();
            let _ = worker.child.wait();
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.end();
    }
}

impl Worker {
    fn has_ended(&mut self) -> Result<bool, MeshError> {
        let ended = self.child.try_wait();
        self.status = ended.map_err(|source| MeshError::system("waiting for a process", source))?;
        Ok(self.status.is_some())
    }
}

/// Passes on what a worker says; nobody listens where nobody waits for it.
fn listen(introduce: SyncSender<Introduction>, tell: SyncSender<Told>, lines: Lines<impl Read>) {
    for line in lines.map_while(Result::ok) {
        // A shell on another host may have greeted before.
        if let Some(introduction) = Introduction::read(&line) {
            // Only the first one counts.
            let _ = introduce.try_send(introduction);
        } else if let Ok(told) = serde_json::from_str(&line) {
            let _ = tell.send(told);
        }
    }
}

fn blank(args: &Args, place: &Place) -> MeshReport {
    MeshReport {
        schema_version: SCHEMA_VERSION,
        tool: Tool { name: "polyrail".into(), version: env!("CARGO_PKG_VERSION").into() },
        arguments: env::args_os().skip(1).map(|it| it.to_string_lossy().into_owned()).collect(),
        started_unix_ms: crate::host::unix_ms(),
        elapsed_s: 0.0,
        lab: place.lab_name(),
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
        notes: if cfg!(debug_assertions) {
            vec!["this is a debug build: take no figures from it".into()]
        } else {
            Vec::new()
        },
        error: None,
    }
}

/// Writes a file whole.
pub(crate) fn write_file(path: &Path, text: &str) -> Result<(), MeshError> {
    Ok(files::replace(path, text).map_err(Unwritten::at(path))?)
}

/// A pattern has a part for each pair of nodes.
const REPORT_MAX: usize = 64 << 20;
/// How long the others have to tell of the end of one: longer than it takes them to give it up.
const GRACE: Duration = Duration::from_secs(15);
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a lab may take to go once its processes are ended.
const GOING: Duration = Duration::from_secs(3);

#[cfg(test)]
#[path = "launch_tests.rs"]
mod tests;
