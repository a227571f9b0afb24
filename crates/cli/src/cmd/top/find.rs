//! Finds the processes with engines, and asks them.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use polyrail_metrics::{Answers, LOCAL_THREAD, NoAnswer, ask_folder, ask_local};
use rustix::process::Uid;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::look::{Look, ProcessLook, name, numbers};
use super::unseen::Unseen;
use crate::cmd::exporter::packaged;
use crate::fault::Fault;

/// Name of a thread that every engine has.
const CONTROL: &str = "pr-control";
/// Interval between searches of all threads of the machine. Each look finds new engines in known namespaces.
const SEARCH_EVERY: Duration = Duration::from_secs(5);
/// Maximum number of other network namespaces that a look enters.
const MOST_VISITS: usize = 64;

/// Help for a PID without an engine.
pub(super) const WITHOUT_PID: &str =
    "`polyrail top` without a PID shows all engines that this user may see";

/// Looks at processes with engines.
pub(super) struct Finder {
    only: Option<u32>,
    processes: Vec<Process>,
    searched: Option<Instant>,
}

/// A process with an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Process {
    pid: u32,
    user: u32,
    /// Network namespaces of its engines, each with its file; none if this process may not know them.
    networks: BTreeMap<Identity, PathBuf>,
}

/// Device and inode of a namespace.
type Identity = (u64, u64);

impl Finder {
    pub(super) fn new(only: Option<u32>) -> Result<Self, Fault> {
        match only {
            Some(pid) if !is_there(pid) => {
                let allowed = "a process of this machine with an engine";
                Err(Fault::usage("PID", pid, "no such process", allowed).with_help(WITHOUT_PID))
            }
            _ => Ok(Self { only, processes: Vec::new(), searched: None }),
        }
    }

    /// Asks all processes with engines.
    pub(super) fn look(&mut self) -> Look {
        self.search();
        let mut found: BTreeMap<u32, Result<ProcessLook, Unseen>> = BTreeMap::new();
        let at = Instant::now();
        let mut not_asked = 0;
        let mut add = |found: &mut BTreeMap<_, _>, answers: Answers| {
            not_asked += answers.not_asked;
            for answer in answers.answers {
                let Some(pid) = answer.process else { continue };
                let seen = match answer.figures {
                    Ok(figures) => Ok(ProcessLook::of(pid, &figures)),
                    Err(NoAnswer::Forbidden) => Err(Unseen::Forbidden { user: answer.user }),
                    Err(NoAnswer::Late) => Err(Unseen::Late),
                    Err(NoAnswer::Garbage) => Err(Unseen::Garbage),
                };
                // A process may have a socket in each of two namespaces, and its forked child one that is never
                // answered.
                if seen.is_ok() || !matches!(found.get(&pid), Some(Ok(_))) {
                    found.insert(pid, seen);
                }
            }
        };
        let own = rustix::process::geteuid();
        let here = network(Path::new("/proc/thread-self/ns/net"));
        // The folder has engines of other users. An engine that is in both places answers the same.
        if let Some(Ok(answers)) = packaged().map(|folder| ask_folder(&folder, self.only)) {
            add(&mut found, answers);
        }
        match ask_local(self.only) {
            Ok(answers) => add(&mut found, answers),
            Err(error) => self.all_fail(here, &error, &mut found),
        }
        // All at the same time: any user may make namespaces in which nothing answers.
        let mut visits = Vec::new();
        for (index, (there, file)) in fair(&self.processes, here, own).into_iter().enumerate() {
            visits.push((
                there,
                if index < MOST_VISITS { visit(file, self.only) } else { Err(too_many()) },
            ));
        }
        for (there, visitor) in visits {
            let panicked = |_| Err(io::Error::other("a thread panicked"));
            match visitor.and_then(|visitor| visitor.join().unwrap_or_else(panicked)) {
                Ok(answers) => add(&mut found, answers),
                Err(error) => self.all_fail(Some(there), &error, &mut found),
            }
        }
        let users = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
        for process in &self.processes {
            let unseen = || match process.user {
                user if !is_mapped(&users, user) => Err(Unseen::Foreign),
                user if user == own.as_raw() || own.is_root() => Err(match not_asked {
                    0 => Unseen::Off,
                    sockets => Unseen::NotAsked { sockets },
                }),
                user => Err(Unseen::Forbidden { user }),
            };
            // The list is some seconds old, and an engine may end while the others are asked.
            if found.contains_key(&process.pid) || still_has_engine(process.pid) {
                found.entry(process.pid).or_insert_with(unseen);
            }
        }
        Look::new(at, found, not_asked)
    }

    /// Updates the list of processes if the last search is old.
    fn search(&mut self) {
        let is_due = self.searched.is_none_or(|at| at.elapsed() >= SEARCH_EVERY);
        if !is_due {
            return;
        }
        let pids = match self.only {
            Some(pid) => vec![pid],
            None => numbers(Path::new("/proc")),
        };
        self.processes = pids.into_iter().filter_map(process).collect();
        self.searched = Some(Instant::now());
    }

    fn all_fail(
        &self,
        network: Option<Identity>,
        error: &io::Error,
        found: &mut BTreeMap<u32, Result<ProcessLook, Unseen>>,
    ) {
        let is_there = |process: &&Process| {
            network.is_some_and(|network| process.networks.contains_key(&network))
        };
        for process in self.processes.iter().filter(is_there) {
            let unseen = || Err(Unseen::Namespace { why: error.to_string() });
            found.entry(process.pid).or_insert_with(unseen);
        }
    }
}

/// Other network namespaces with engines, and a file of each: those of the calling user first, then one of each other
/// user, alternating, the oldest first.
fn fair(processes: &[Process], here: Option<Identity>, own: Uid) -> Vec<(Identity, PathBuf)> {
    let mut all = BTreeMap::new();
    // A namespace that several users share is the calling user's, or that of the lowest number.
    let rank = |user: u32| (user != own.as_raw(), user);
    for process in processes {
        for (network, file) in &process.networks {
            let entry = all.entry(*network).or_insert((rank(process.user), file));
            *entry = (*entry).min((rank(process.user), file));
        }
    }
    all.retain(|network, _| Some(*network) != here);
    let mut turns: BTreeMap<(bool, u32), usize> = BTreeMap::new();
    let mut found: Vec<_> = all
        .into_iter()
        .map(|(network, (user, file))| {
            let turn = turns.entry(user).or_default();
            *turn += 1;
            ((user.0, *turn), (network, file.clone()))
        })
        .collect();
    found.sort_by_key(|(rank, _)| *rank);
    found.into_iter().map(|(_, visit)| visit).collect()
}

/// Asks the engines in the network namespace of this file. A namespace belongs to a thread, so a short-lived thread
/// enters it.
fn visit(file: PathBuf, only: Option<u32>) -> io::Result<JoinHandle<io::Result<Answers>>> {
    let ask = move || {
        let namespace = File::open(file)?;
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
        ask_local(only)
    };
    thread::Builder::new().name("top-visitor".into()).spawn(ask)
}

fn too_many() -> io::Error {
    io::Error::other(format!("there are more than {MOST_VISITS} with engines"))
}

/// Returns `None` if the process has no engine, or is gone.
fn process(pid: u32) -> Option<Process> {
    let folder = Path::new("/proc").join(pid.to_string());
    let tasks = folder.join("task");
    let mut has_engine = false;
    let mut networks = BTreeMap::new();
    for tid in numbers(&tasks) {
        let task = tasks.join(tid.to_string());
        let Some(name) = name(&task).filter(|it| [CONTROL, LOCAL_THREAD].contains(&it.as_str()))
        else {
            continue;
        };
        has_engine |= name == CONTROL;
        let file = task.join("ns/net");
        networks.extend(network(&file).map(|network| (network, file)));
    }
    let user = fs::metadata(&folder).ok()?.uid();
    has_engine.then_some(Process { pid, user, networks })
}

fn still_has_engine(pid: u32) -> bool {
    process(pid).is_some()
}

/// Whether a user namespace with this map knows a user. Root of such a namespace, as in a lab, may not look at the
/// other users, which all have one number there.
fn is_mapped(map: &str, user: u32) -> bool {
    let range = |line: &str| {
        let mut numbers = line.split_whitespace().map(|word| word.parse::<u64>().ok());
        let (first, _, count) = (numbers.next()??, numbers.next()??, numbers.next()??);
        Some(first..first + count)
    };
    map.is_empty() || map.lines().filter_map(range).any(|range| range.contains(&u64::from(user)))
}

fn network(path: &Path) -> Option<Identity> {
    let found = fs::metadata(path).ok()?;
    Some((found.dev(), found.ino()))
}

pub(super) fn is_there(pid: u32) -> bool {
    Path::new("/proc").join(pid.to_string()).exists()
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use polyrail_report::exit;

    use super::*;

    #[test]
    fn users_whom_a_user_namespace_does_not_know_are_told_from_the_others() {
        let all = "         0          0 4294967295\n";
        assert!(is_mapped(all, 0) && is_mapped(all, 65534) && is_mapped("", 7));
        let of_a_lab = "         0       1000          1\n";
        assert!(is_mapped(of_a_lab, 0) && !is_mapped(of_a_lab, 65534));
    }

    #[test]
    fn the_namespaces_of_one_user_leave_room_for_those_of_others() {
        let process = |pid: u32, user: u32| Process {
            pid,
            user,
            networks: [((4, pid.into()), PathBuf::from(pid.to_string()))].into(),
        };
        let many = (1..100).map(|pid| process(pid, 1000));
        let all: Vec<Process> = many.chain([process(100, 1001), process(101, 0)]).collect();
        let order = |own: Uid| {
            let visits = fair(&all, Some((4, 1)), own).into_iter();
            visits.map(|((_, inode), _)| inode).collect::<Vec<_>>()
        };
        assert_eq!(order(Uid::ROOT)[..4], [101, 2, 100, 3]);
        assert_eq!(order(Uid::from_raw(1001))[..4], [100, 2, 101, 3]);
        assert_eq!(order(Uid::ROOT).len(), 100);
    }

    #[test]
    fn a_process_without_an_engine_is_none_of_ours_and_one_that_is_gone_is_refused() {
        // Not this process: other tests run engines in it.
        let mut other = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let found = process(other.id());
        drop(other.stdin.take());
        other.wait().unwrap();
        assert_eq!(found, None);
        assert!(network(Path::new("/proc/self/ns/net")).is_some());
        let refused = Finder::new(Some(u32::MAX)).err().expect("no process has this number");
        assert!(refused.message.contains("4294967295"), "{refused}");
        assert_eq!(refused.code, exit::USAGE);
    }
}
