//! Processes of this machine: limits of this one, and telling a process from an earlier one with the same number.

use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicU8, Ordering};

use rustix::io::Errno;
use rustix::process::{
    Pid, Resource, Signal, getpid, getppid, getrlimit, set_parent_process_death_signal,
    test_kill_process,
};

use crate::memory::Map;

/// Maximum number of file descriptors that this process may have open.
pub fn descriptor_limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Enlarges this process's file table to the descriptor limit, 4096 entries at most. `any` is an open descriptor.
///
/// The kernel enlarges the table for the 65th file, the 257th and so on. With several threads, the thread that opens
/// that file and all that open one meanwhile wait until each CPU has gone through the scheduler (`expand_files` in
/// `fs/file.c` of Linux 6.18): 17 ms on idle CPUs, 0.4 s and more on busy ones. So call this before starting threads
/// that must not wait. If it fails, the table grows on demand.
pub fn reserve_descriptors(any: BorrowedFd<'_>) {
    if let Ok(last) = i32::try_from(descriptor_limit().min(RESERVED).saturating_sub(1)) {
        // Closed at once: the table never shrinks.
        let _ = rustix::io::fcntl_dupfd_cloexec(any, last);
    }
}

/// Entries made by [`reserve_descriptors`]: 36 KiB in the kernel, and enough for some hundred peers.
const RESERVED: u64 = 4096;

/// True if the program's file gave it rights that its caller may not have: set-user-ID, set-group-ID, or file
/// capabilities. Then the caller controls its environment, and `secure_getenv(3)` finds nothing there.
pub fn has_rights_of_its_file() -> bool {
    // SAFETY: reads a word that the kernel handed to the program at its start.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// Number of the user that this process acts as.
pub fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Number of this process's PID namespace. Every container numbers its own processes. `None` without `/proc`.
pub fn namespace() -> Option<u64> {
    Some(std::fs::metadata("/proc/self/ns/pid").ok()?.ino())
}

/// Actions of this process's signals: the signal number, and 0 for the default action, 1 if ignored, or else the
/// address of a handler.
pub fn signal_handlers() -> Vec<(i32, usize)> {
    let handler = |signal| {
        // SAFETY: an action is numbers and addresses, for which zeroes are valid.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: the call only reads the action, into a place that lives through the call.
        let is_known = unsafe { libc::sigaction(signal, std::ptr::null(), &mut action) } == 0;
        is_known.then_some((signal, action.sa_sigaction))
    };
    (1..=31).filter_map(handler).collect()
}

/// Makes the kernel kill the child of this command as soon as the thread that starts it ends, in any way. So start it
/// from a thread that lives as long as the child should. The child's own children live on.
pub fn kill_with_this_thread(command: &mut Command) {
    let starter = getpid();
    let tie = move || {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // The starter may have ended before.
        if getppid() == Some(starter) { Ok(()) } else { Err(Errno::SRCH.into()) }
    };
    // SAFETY: bare system calls only, as it must be between fork and exec.
    unsafe { command.pre_exec(tie) };
}

/// A process of this machine, distinct from every other one that has had its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    /// Number in its PID namespace.
    pub number: u32,
    /// Number of its PID namespace.
    pub namespace: u64,
    /// Start time in kernel ticks since boot.
    pub started: u64,
}

impl Process {
    /// Returns this process. `None` without `/proc`.
    pub fn own() -> Option<Self> {
        let (_, started) = state_of(std::process::id())?;
        Some(Self { number: std::process::id(), namespace: namespace()?, started })
    }

    /// Returns the process with that number in this process's PID namespace, if there is one now.
    pub fn of(number: u32) -> Option<Self> {
        let (_, started) = state_of(number)?;
        Some(Self { number, namespace: namespace()?, started })
    }

    /// True if the process has certainly ended. A process that is hidden from this one, or is in another PID namespace,
    /// counts as running.
    pub fn has_ended(&self) -> bool {
        if namespace() != Some(self.namespace) {
            return false;
        }
        let Some(number) = i32::try_from(self.number).ok().and_then(Pid::from_raw) else {
            return false;
        };
        if test_kill_process(number) == Err(Errno::SRCH) {
            return true;
        }
        match state_of(self.number) {
            Some((_, started)) if started != self.started => true,
            // A zombie, not reaped yet. Its threads may outlive the first one.
            Some((b'Z' | b'X', _)) => {
                let threads = std::fs::read_dir(format!("/proc/{}/task", self.number));
                threads.is_ok_and(|threads| threads.count() <= 1)
            }
            _ => false,
        }
    }
}

/// State letter of a process, and its start time.
fn state_of(number: u32) -> Option<(u8, u64)> {
    let text = std::fs::read_to_string(format!("/proc/{number}/stat")).ok()?;
    // The name, in parentheses, may contain anything.
    let (_, fields) = text.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace();
    let state = *fields.next()?.as_bytes().first()?;
    Some((state, fields.nth(18)?.parse().ok()?))
}

/// Tells a process from its forked copies, at the price of one load.
pub struct Original {
    /// Page with a 1 that the kernel zeroes in a forked copy.
    page: Option<Map>,
    process: u32,
}

impl Default for Original {
    /// Marks this process as the original.
    fn default() -> Self {
        let page = Map::wiped_on_fork(PAGE_BYTES).ok();
        if let Some(page) = &page {
            mark_of(page).store(1, Ordering::Relaxed);
        }
        Self { page, process: std::process::id() }
    }
}

impl Original {
    /// True in a forked copy of the process that made this.
    pub fn is_copy(&self) -> bool {
        match &self.page {
            Some(page) => mark_of(page).load(Ordering::Relaxed) == 0,
            // Kernels before 4.14 can't zero pages on fork.
            None => std::process::id() != self.process,
        }
    }
}

const PAGE_BYTES: usize = 4096;

fn mark_of(page: &Map) -> &AtomicU8 {
    // SAFETY: the first byte of a mapping that lives as long as the borrow, touched here only.
    unsafe { AtomicU8::from_ptr(page.base().as_ptr()) }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn the_table_of_files_has_room_before_it_is_needed() {
        reserve_descriptors(std::fs::File::open("/dev/null").unwrap().as_fd());
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let size = status.lines().find_map(|line| line.strip_prefix("FDSize:")).unwrap();
        let wanted = descriptor_limit().min(RESERVED);
        assert!(size.trim().parse::<u64>().unwrap() >= wanted, "{size}, and not {wanted}");
    }

    #[test]
    fn a_process_has_the_namespace_of_its_children() {
        let text = std::process::Command::new("readlink").arg("/proc/self/ns/pid").output();
        let text = String::from_utf8(text.unwrap().stdout).unwrap();
        assert_eq!(text.trim(), format!("pid:[{}]", namespace().unwrap()));
    }

    #[test]
    fn a_process_has_ended_when_it_has_and_its_number_may_be_another_s() {
        let own = Process::own().unwrap();
        assert!(!own.has_ended());
        assert!(
            Process { started: own.started + 1, ..own }.has_ended(),
            "the number is used again"
        );
        assert!(!Process { namespace: own.namespace + 1, started: 0, ..own }.has_ended());
        assert!(!Process { number: u32::MAX, ..own }.has_ended());

        let mut child =
            std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let number = child.id();
        let started = state_of(number).unwrap().1;
        let process = Process { number, started, ..own };
        assert!(!process.has_ended());
        drop(child.stdin.take());
        let begin = std::time::Instant::now();
        // The child is not reaped yet: the kernel keeps its number.
        while !process.has_ended() {
            assert!(begin.elapsed().as_secs() < 30, "{:?}", state_of(number));
            std::thread::yield_now();
        }
        assert!(state_of(number).is_some());
        child.wait().unwrap();
        assert!(process.has_ended());
    }

    #[test]
    fn a_command_ends_with_the_thread_that_started_it() {
        let start = || {
            let mut command = std::process::Command::new("cat");
            kill_with_this_thread(&mut command);
            command.stdin(std::process::Stdio::piped()).spawn().unwrap()
        };
        let mut child = std::thread::spawn(start).join().unwrap();
        // The child's standard input is open, so it does not end by itself.
        let input = child.stdin.take();
        let status = child.wait().unwrap();
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(9));
        drop(input);
    }
}
