//! irqbalance: finds, stops and starts it.
//!
//! A plan can never stop any other program: the service name is fixed, and the process is checked
//! before each signal.

use std::io;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use polyrail_host::{Sysroot, system_program};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::machine::{Fault, Step};
use crate::target::Target;

/// The value while irqbalance runs.
pub(crate) const RUNNING: &str = "running";
/// The value while it does not run.
pub(crate) const STOPPED: &str = "stopped";
/// The service name that every distribution uses.
pub(crate) const UNIT: &str = "irqbalance.service";

const NAME: &str = "irqbalance";
/// Maximum wait for irqbalance to change its state. A service needs a moment from its start to its first line of code.
const START_TAKES: Duration = Duration::from_secs(3);

/// Finds every irqbalance on this machine, running or paused. A service is listed once, however
/// many processes it has.
pub(crate) fn find(root: &Sysroot) -> Vec<Target> {
    let mut found = Vec::new();
    for process in processes(root) {
        let target = match process.is_service {
            true => Target::IrqbalanceService,
            false => {
                Target::IrqbalanceProcess { pid: process.pid, start_ticks: process.start_ticks }
            }
        };
        if !found.contains(&target) {
            found.push(target);
        }
    }
    found
}

/// Returns the target's value; `None` if it does not exist, or for any other kind of target. A
/// missing service counts as stopped.
pub(crate) fn read(root: &Sysroot, target: &Target) -> Option<String> {
    let word = |is_running: bool| Some(if is_running { RUNNING } else { STOPPED }.to_owned());
    match target {
        Target::IrqbalanceService => {
            word(processes(root).any(|process| process.is_service && !process.is_stopped))
        }
        Target::IrqbalanceProcess { pid, start_ticks } => {
            let process = process(root, *pid).filter(|found| found.start_ticks == *start_ticks)?;
            word(!process.is_stopped)
        }
        _ => None,
    }
}

/// Stops or starts irqbalance. The root must be the running machine's.
pub(crate) fn write(root: &Sysroot, target: &Target, value: &str) -> Result<(), Fault> {
    match (target, value) {
        (Target::IrqbalanceService, STOPPED) => systemctl(target, "stop"),
        (Target::IrqbalanceService, RUNNING) => {
            systemctl(target, "start")?;
            let begin = Instant::now();
            while read(root, target).as_deref() != Some(RUNNING) && begin.elapsed() < START_TAKES {
                thread::sleep(Duration::from_millis(20));
            }
            Ok(())
        }
        (Target::IrqbalanceProcess { pid, .. }, STOPPED) => {
            signal(root, target, *pid, Signal::STOP)
        }
        (Target::IrqbalanceProcess { pid, .. }, RUNNING) => {
            signal(root, target, *pid, Signal::CONT)
        }
        _ => Err(fault(target, io::ErrorKind::InvalidInput.into(), None)),
    }
}

/// One process of irqbalance.
struct Process {
    pid: u32,
    start_ticks: u64,
    is_stopped: bool,
    is_service: bool,
}

fn processes(root: &Sysroot) -> impl Iterator<Item = Process> {
    let names = root.list_optional("/proc").unwrap_or_default();
    names.into_iter().filter_map(|name| process(root, name.parse().ok()?))
}

/// Reads one process; `None` if it is another program, or has ended.
fn process(root: &Sysroot, pid: u32) -> Option<Process> {
    if system_program(root, pid)? != NAME {
        return None;
    }
    let stat = root.read(format!("/proc/{pid}/stat")).ok()?;
    let (state, start_ticks) = state_and_start(&stat)?;
    let cgroups = root.read_optional(format!("/proc/{pid}/cgroup")).ok().flatten();
    let of_unit = |line: &str| line.split('/').any(|part| part == UNIT);
    Some(Process {
        pid,
        start_ticks,
        // Traced processes are `t`; they continue when their debugger lets them.
        is_stopped: state == "T",
        is_service: cgroups.is_some_and(|text| text.lines().any(of_unit)),
    })
}

/// Reads fields 3 and 22 of `/proc/PID/stat`; the name before them may hold anything. `None` also
/// for a process that has ended and is not reaped yet.
fn state_and_start(stat: &str) -> Option<(&str, u64)> {
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut fields = fields.split(' ');
    let state = fields.next().filter(|state| *state != "Z")?;
    Some((state, fields.nth(18)?.parse().ok()?))
}

fn systemctl(target: &Target, verb: &str) -> Result<(), Fault> {
    let output = Command::new("systemctl")
        .args(["--no-ask-password", verb, UNIT])
        .stdin(Stdio::null())
        .output()
        .map_err(|source| fault(target, source, Some("systemctl can't be run".to_owned())))?;
    if output.status.success() {
        return Ok(());
    }
    let words = String::from_utf8_lossy(&output.stderr);
    let first: String = words.lines().next().unwrap_or_default().chars().take(200).collect();
    let source = io::Error::other(format!("systemctl {verb}: {}", output.status));
    Err(fault(target, source, Some(first).filter(|first| !first.is_empty())))
}

/// Sends a signal. A pidfd holds the process during the check, so no other process can get the
/// signal.
fn signal(root: &Sysroot, target: &Target, pid: u32, signal: Signal) -> Result<(), Fault> {
    let failed = |errno: rustix::io::Errno| fault(target, errno.into(), None);
    let gone = || failed(rustix::io::Errno::SRCH);
    let number = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or_else(gone)?;
    let held = pidfd_open(number, PidfdFlags::empty()).map_err(failed)?;
    read(root, target).ok_or_else(gone)?;
    pidfd_send_signal(&held, signal).map_err(failed)?;
    // Signals take effect only after a moment.
    let wanted = if signal == Signal::STOP { STOPPED } else { RUNNING };
    let begin = Instant::now();
    while read(root, target).is_some_and(|now| now != wanted) && begin.elapsed() < START_TAKES {
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

fn fault(target: &Target, source: io::Error, said: Option<String>) -> Fault {
    Fault { what: target.to_string(), step: Step::Switch, source, said }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copy(processes: &[(u32, &str, &str, &str)]) -> (tempfile::TempDir, Sysroot) {
        let folder = tempfile::tempdir().unwrap();
        let root = Sysroot::at(folder.path());
        for (pid, name, state, cgroup) in processes {
            let at = root.path(format!("/proc/{pid}"));
            std::fs::create_dir_all(&at).unwrap();
            std::fs::write(at.join("comm"), format!("{name}\n")).unwrap();
            let zeros = "0 ".repeat(18);
            let stat = format!("{pid} ({name}) {state} {zeros}{} 0 0\n", pid * 10);
            std::fs::write(at.join("stat"), stat).unwrap();
            std::fs::write(at.join("cgroup"), format!("0::{cgroup}\n")).unwrap();
        }
        (folder, root)
    }

    #[test]
    fn services_are_told_from_processes_and_from_other_programs() {
        let (_folder, root) = copy(&[
            (7, "irqbalance", "S", "/system.slice/irqbalance.service"),
            (8, "irqbalance", "S", "/system.slice/irqbalance.service"),
            (9, "irqbalance", "T", "/user.slice"),
            (10, "sshd", "S", "/system.slice/irqbalance.service"),
            (11, "irqbalance", "Z", "/"),
            (12, "irqbalance", "S", "/system.slice/my-irqbalance.service"),
        ]);
        let process = |pid| Target::IrqbalanceProcess { pid, start_ticks: u64::from(pid) * 10 };
        assert_eq!(find(&root), [Target::IrqbalanceService, process(9), process(12)]);
        assert_eq!(read(&root, &Target::IrqbalanceService).as_deref(), Some("running"));
        assert_eq!(read(&root, &process(9)).as_deref(), Some("stopped"));
        // The process id now belongs to another process, or to another program.
        let later = Target::IrqbalanceProcess { pid: 12, start_ticks: 121 };
        assert_eq!(read(&root, &later), None);
        assert_eq!(read(&root, &process(10)), None);
        let (_folder, empty) = copy(&[]);
        assert_eq!(read(&empty, &Target::IrqbalanceService).as_deref(), Some("stopped"));
    }

    #[test]
    fn the_name_of_a_process_does_not_shift_the_fields_behind_it() {
        let stat = format!("12 (a) R (b) S 1 2 {}77 5", "0 ".repeat(16));
        assert_eq!(state_and_start(&stat), Some(("S", 77)));
        for text in ["", "12 (x", "12 (x) S", "12 (x) S 1 2 3"] {
            assert_eq!(state_and_start(text), None);
        }
    }
}
