//! The processes of the machine: finding those inside a lab, and ending them.

use std::fs;
use std::io;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, getpid, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

use crate::error::LabError;
use crate::namespaces::Identity;

/// Time that processes get to end by themselves after SIGTERM.
const GRACE: Duration = Duration::from_secs(1);
/// Time that the kernel gets to end a process after SIGKILL.
const KILL_TIME: Duration = Duration::from_secs(5);

/// Identity of a process, which distinguishes it from a later process with the same id.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProcessId {
    pub(crate) pid: i32,
    /// Start time, in clock ticks since boot.
    pub(crate) start_ticks: u64,
}

impl ProcessId {
    /// Identifies a running process; `None` if `/proc` does not show it.
    pub(crate) fn of(pid: Pid) -> Option<Self> {
        Some(Self { pid: pid.as_raw_pid(), start_ticks: start_ticks(pid)? })
    }

    pub(crate) fn own() -> Option<Self> {
        Self::of(getpid())
    }

    /// Returns the process; `None` once it has ended.
    pub(crate) fn process(&self) -> Option<Pid> {
        let pid = Pid::from_raw(self.pid)?;
        (start_ticks(pid)? == self.start_ticks).then_some(pid)
    }
}

/// Lists all processes that `/proc` shows.
pub(crate) fn all() -> Vec<Pid> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pid = |entry: io::Result<fs::DirEntry>| {
        entry.ok()?.file_name().to_str()?.parse().ok().and_then(Pid::from_raw)
    };
    entries.filter_map(pid).collect()
}

/// Lists processes whose main thread is in one of the namespaces, except this process.
///
/// A process with only another thread in a lab does not count.
pub(crate) fn inside(namespaces: &[Identity]) -> Vec<Pid> {
    all().into_iter().filter(|pid| *pid != getpid() && is_inside(*pid, namespaces)).collect()
}

/// Ends all processes inside: SIGTERM first, then SIGKILL.
pub(crate) fn end_inside(lab: &str, namespaces: &[Identity], except: i32) -> Result<(), LabError> {
    let deadline = Instant::now() + GRACE + KILL_TIME;
    let mut signal = Signal::TERM;
    loop {
        // A process that ends may have started another one meanwhile: search again each time.
        let mut found = inside(namespaces);
        found.retain(|pid| pid.as_raw_pid() != except);
        if found.is_empty() {
            return Ok(());
        }
        if Instant::now() > deadline {
            let pids = found.iter().map(|pid| pid.as_raw_pid().to_string()).collect::<Vec<_>>();
            let (count, pids) = (pids.len(), pids.join(", "));
            return Err(LabError::StillInUse { name: lab.into(), count, pids });
        }
        let mut handles = Vec::new();
        for pid in found {
            // The handle refers to this process only, so the signal can't reach another one.
            if let Ok(handle) = pidfd_open(pid, PidfdFlags::empty())
                && is_inside(pid, namespaces)
                && pidfd_send_signal(&handle, signal).is_ok()
            {
                handles.push(handle);
            }
        }
        let patience = if signal == Signal::TERM { GRACE } else { KILL_TIME };
        wait_all(&handles, patience.min(deadline.saturating_duration_since(Instant::now())));
        signal = Signal::KILL;
    }
}

/// Returns the process that holds the lock of this file, if it is visible from this process.
pub(crate) fn who_locks(file: impl AsFd) -> Option<i32> {
    let stat = rustix::fs::fstat(file).ok()?;
    locker(&fs::read_to_string("/proc/locks").ok()?, (stat.st_dev, stat.st_ino))
}

/// Finds the process in lines like `1: FLOCK  ADVISORY  WRITE 4711 00:04:4026532201 0 EOF`: the process, and then
/// device and inode.
fn locker(locks: &str, (device, inode): Identity) -> Option<i32> {
    let place =
        format!("{:02x}:{:02x}:{inode}", rustix::fs::major(device), rustix::fs::minor(device));
    locks.lines().find_map(|line| {
        let words = line.split_whitespace().collect::<Vec<_>>();
        let is_it = words.get(1) == Some(&"FLOCK") && words.get(5) == Some(&place.as_str());
        words.get(4).filter(|_| is_it)?.parse().ok().filter(|process| *process > 0)
    })
}

/// Kills one process and waits for it.
pub(crate) fn kill(pid: Pid) -> Result<(), Errno> {
    let handle = match pidfd_open(pid, PidfdFlags::empty()) {
        Err(Errno::SRCH) => return Ok(()),
        handle => handle?,
    };
    match pidfd_send_signal(&handle, Signal::KILL) {
        Err(Errno::SRCH) => return Ok(()),
        result => result?,
    }
    if wait_all(&[handle], KILL_TIME) { Ok(()) } else { Err(Errno::TIMEDOUT) }
}

/// Returns the start time of a running process, in clock ticks since boot; `None` once it has
/// ended.
fn start_ticks(pid: Pid) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_pid())).ok()?;
    // The name, in parentheses, may itself hold spaces and parentheses.
    let (_, rest) = stat.rsplit_once(')')?;
    let fields = rest.split_whitespace().collect::<Vec<_>>();
    let ended = matches!(*fields.first()?, "Z" | "X");
    fields.get(19)?.parse().ok().filter(|_| !ended)
}

fn is_inside(pid: Pid, namespaces: &[Identity]) -> bool {
    // An unreadable entry belongs to another user, or its process has just ended.
    rustix::fs::stat(format!("/proc/{}/ns/net", pid.as_raw_pid()))
        .is_ok_and(|stat| namespaces.contains(&(stat.st_dev, stat.st_ino)))
}

/// Waits for all to end; returns whether they did in time.
fn wait_all(handles: &[OwnedFd], patience: Duration) -> bool {
    let deadline = Instant::now() + patience;
    handles.iter().all(|handle| {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let timeout =
                Timespec { tv_sec: left.as_secs() as _, tv_nsec: left.subsec_nanos().into() };
            match poll(&mut [PollFd::new(handle, PollFlags::IN)], Some(&timeout)) {
                Err(Errno::INTR) => {}
                result => return result.is_ok_and(|ready| ready > 0),
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn whoever_holds_a_lock_is_found() {
        let locks = "1: POSIX  ADVISORY  WRITE 11 00:04:77 0 EOF\n\
                     2: FLOCK  ADVISORY  WRITE 0 00:04:78 0 EOF\n\
                     3: FLOCK  ADVISORY  WRITE 33 00:04:77 0 EOF\n\
                     3: -> FLOCK  ADVISORY  WRITE 44 00:04:77 0 EOF\n";
        let device = rustix::fs::makedev(0, 4);
        assert_eq!(locker(locks, (device, 77)), Some(33));
        assert_eq!(locker(locks, (device, 78)), None, "out of sight");
        assert_eq!(locker(locks, (device, 79)), None);
    }

    #[test]
    fn this_process_runs_and_an_ended_one_does_not() {
        assert!(start_ticks(getpid()).is_some());
        assert!(all().contains(&getpid()));

        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = Pid::from_child(&child);
        let id = ProcessId::of(pid).unwrap();
        assert_eq!(id.process(), Some(pid));
        let later = ProcessId { start_ticks: id.start_ticks + 1, ..id.clone() };
        assert_eq!(later.process(), None, "another process of this number");
        kill(pid).unwrap();
        assert_eq!(id.process(), None, "not even before it is reaped");
        child.wait().unwrap();
        assert_eq!(kill(pid), Ok(()), "ending what has ended is fine");
    }
}
