//! The processes of a run: starts them in the lab, forwards their messages, and ends them.

use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, ExitStatus, Stdio};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use polyrail_lab::{Lab, Side};
use polyrail_testkit::Rng;
use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, prlimit};
use serde::Serialize;

use crate::options;
use crate::talk::{Order, Tally, Word, hear, say};

/// Number of workers. Half of them are on each side of the lab.
pub(crate) const WORKERS: usize = 8;
/// Flows from one worker to another.
pub(crate) const CHANNELS: usize = 4;
/// The kernel's name for memory that an engine makes for its peers.
const SHARED_MEMORY: &str = "/memfd:polyrail (deleted)";

/// A message of a process, and the run of the process that sent it.
pub(crate) struct Heard {
    pub(crate) index: usize,
    pub(crate) generation: u32,
    /// The message. `None` if the process has ended.
    pub(crate) word: Option<Word>,
}

pub(crate) struct Worker {
    pub(crate) index: usize,
    pub(crate) generation: u32,
    pub(crate) state: State,
    /// Metadata of its engine, known once it is ready.
    pub(crate) metadata: Option<Vec<u8>>,
    pub(crate) addresses: Vec<SocketAddr>,
    /// Operations of this run.
    pub(crate) tally: Tally,
    pub(crate) is_quiet: bool,
    process: Process,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Runs,
    Stopped,
    /// Killed, or ordered to finish.
    MayEnd,
}

/// Resources that a process uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Needs {
    /// Resident memory, without memory that two processes have open.
    pub(crate) rss_kib: u64,
    /// Descriptors, without the next ones.
    pub(crate) descriptors: u64,
    /// Memory that another process may open.
    pub(crate) memory_files: u64,
    /// Memory that two processes have open, made here or there.
    pub(crate) shared_mappings: u64,
    /// Threads, without those that copy within the host, which start on first use.
    pub(crate) threads: u64,
}

/// A child and the threads that talk with it.
pub(crate) struct Process {
    child: Child,
    lines: Option<Sender<Vec<u8>>>,
    readers: Vec<JoinHandle<()>>,
    errors: LastLines,
}

/// Last lines of a process's standard error.
#[derive(Clone, Default)]
struct LastLines(Arc<Mutex<VecDeque<String>>>);

impl Worker {
    pub(crate) fn start(
        lab: &Lab,
        (index, generation): (usize, u32),
        seed: u64,
        heard: &Sender<Heard>,
    ) -> io::Result<Self> {
        let side = Side::BOTH[index % 2];
        // Each run of each worker has its own operations.
        let seed = Rng::new(seed ^ ((index as u64) << 32) ^ u64::from(generation)).bits();
        let arguments =
            [index as u64, u64::from(generation), seed].map(|number| number.to_string());
        let heard = heard.clone();
        let process = Process::start(lab, side, options::WORKER, &arguments, move |out| {
            for word in hear(out) {
                let _ = heard.send(Heard { index, generation, word: Some(word) });
            }
            let _ = heard.send(Heard { index, generation, word: None });
        })?;
        Ok(Self {
            index,
            generation,
            state: State::Runs,
            metadata: None,
            addresses: Vec::new(),
            tally: Tally::default(),
            is_quiet: false,
            process,
        })
    }

    pub(crate) fn order(&self, order: &Order) {
        self.process.tell(order);
    }

    /// Kills it at once, like a crash. Messages sent before are still received.
    pub(crate) fn kill(&mut self) {
        self.state = State::MayEnd;
        self.metadata = None;
        // The exit status is that of the kill.
        let _ = self.process.end();
    }

    /// Returns how it ended by itself, and its last lines.
    pub(crate) fn bury(&mut self) -> String {
        self.state = State::MayEnd;
        self.metadata = None;
        let status = self.process.end();
        let status = status.map_or_else(|error| error.to_string(), |status| status.to_string());
        format!("{status}; it said last:\n{}", self.process.errors.text())
    }

    pub(crate) fn is_killed(&self) -> bool {
        self.state == State::MayEnd && self.metadata.is_none()
    }

    /// True if it succeeded.
    pub(crate) fn wait(&mut self) -> io::Result<bool> {
        Ok(self.process.child.wait()?.success())
    }

    pub(crate) fn signal(&mut self, signal: Signal) -> io::Result<()> {
        self.state = if signal == Signal::STOP { State::Stopped } else { State::Runs };
        Ok(kill_process(self.process.pid(), signal)?)
    }

    /// Sets its limit of a resource. `None` removes the limit.
    pub(crate) fn limit(&self, resource: Resource, limit: Option<u64>) -> io::Result<()> {
        let pid = Some(self.process.pid());
        let hard = rustix::process::getrlimit(resource).maximum;
        let current = limit.or(rustix::process::getrlimit(resource).current);
        prlimit(pid, resource, Rlimit { current, maximum: hard })?;
        Ok(())
    }

    pub(crate) fn needs(&self) -> io::Result<Needs> {
        let folder = PathBuf::from(format!("/proc/{}", self.process.child.id()));
        let status = std::fs::read_to_string(folder.join("status"))?;
        let number = |name: &str| -> u64 {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
        };
        let open = std::fs::read_dir(folder.join("fd"))?.flatten();
        let is_memory = |entry: &std::fs::DirEntry| {
            std::fs::read_link(entry.path()).is_ok_and(|to| to.starts_with(SHARED_MEMORY))
        };
        let (memory, others): (Vec<_>, Vec<_>) = open.partition(is_memory);
        let (memory_files, descriptors) = (memory.len() as u64, others.len() as u64);
        let maps = std::fs::read_to_string(folder.join("maps"))?;
        let shared_mappings =
            maps.lines().filter(|map| map.ends_with(SHARED_MEMORY)).count() as u64;
        let copies = |task: &PathBuf| {
            // A thread may end meanwhile.
            let name = std::fs::read_to_string(task.join("comm")).unwrap_or_default();
            name.starts_with("pr-copy")
        };
        let tasks = std::fs::read_dir(folder.join("task"))?;
        let tasks = tasks.filter_map(|task| Some(task.ok()?.path()));
        let threads = tasks.filter(|task| !copies(task)).count() as u64;
        let rss_kib = number("VmRSS:").saturating_sub(number("RssShmem:"));
        Ok(Needs { rss_kib, descriptors, memory_files, shared_mappings, threads })
    }

    /// Size of its address space, in bytes.
    pub(crate) fn address_space(&self) -> io::Result<u64> {
        let path = format!("/proc/{}/statm", self.process.child.id());
        let pages = std::fs::read_to_string(path)?;
        let pages = pages.split_whitespace().next().and_then(|pages| pages.parse::<u64>().ok());
        Ok(pages.unwrap_or(0) * rustix::param::page_size() as u64)
    }
}

impl Process {
    /// Starts this program in the given role. `read` gets a thread for its output.
    pub(crate) fn start(
        lab: &Lab,
        side: Side,
        role: &str,
        arguments: &[String],
        read: impl FnOnce(BufReader<std::process::ChildStdout>) + Send + 'static,
    ) -> io::Result<Self> {
        let mut command = lab.command(side, std::env::current_exe()?);
        command.arg(role).args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        // Freed memory is returned to the kernel, so that leaks show.
        command.env("MALLOC_MMAP_THRESHOLD_", "131072").env("MALLOC_TRIM_THRESHOLD_", "131072");
        let mut child = command.stderr(Stdio::piped()).spawn()?;
        // All three were requested above.
        let mut input = child.stdin.take().expect("standard input is a pipe");
        let output = child.stdout.take().expect("standard output is a pipe");
        let complaints = child.stderr.take().expect("standard error is a pipe");
        let errors = LastLines::default();
        let last = errors.clone();
        let readers = vec![
            thread::spawn(move || read(BufReader::new(output))),
            thread::spawn(move || last.keep(BufReader::new(complaints))),
        ];
        // A stopped process reads nothing, and writing to it must not block.
        let (lines, queue) = mpsc::channel::<Vec<u8>>();
        thread::spawn(move || {
            // The process may end at any time.
            let _ = queue.iter().try_for_each(|line| io::Write::write_all(&mut input, &line));
        });
        Ok(Self { child, lines: Some(lines), readers, errors })
    }

    pub(crate) fn tell(&self, what: &impl Serialize) {
        let mut line = Vec::new();
        if say(&mut line, what).is_ok() {
            // The process may have ended.
            let _ = self.lines.as_ref().map(|lines| lines.send(line));
        }
    }

    pub(crate) fn end(&mut self) -> io::Result<ExitStatus> {
        self.lines = None;
        // If the process has ended by itself, its exit status shows that.
        let _ = self.child.kill();
        let status = self.child.wait();
        // A thread that panicked has printed that.
        self.readers.drain(..).for_each(|reader| drop(reader.join()));
        status
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The exit status is not needed.
        let _ = self.end();
    }
}

impl LastLines {
    const COUNT: usize = 20;

    /// Keeps the last of these lines, and prints all of them.
    fn keep(&self, from: impl BufRead) {
        // Invalid UTF-8 is converted lossily.
        for line in from.split(b'\n').map_while(Result::ok) {
            let line = String::from_utf8_lossy(&line).into_owned();
            eprintln!("{line}");
            let Ok(mut lines) = self.0.lock() else { return };
            if lines.len() == Self::COUNT {
                lines.pop_front();
            }
            lines.push_back(line);
        }
    }

    fn text(&self) -> String {
        let Ok(lines) = self.0.lock() else { return String::new() };
        lines.iter().map(|line| format!("    {line}\n")).collect()
    }
}
