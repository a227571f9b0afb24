//! The threads of the followed processes: their CPU times, CPUs, and context switches.

use std::collections::BTreeMap;

use polyrail_host::Sysroot;

use crate::counters::{lines, number, words};
use crate::reread::Reread;

/// Totals of a thread since it began.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ThreadTimes {
    pub(crate) pid: u32,
    pub(crate) tid: u32,
    pub(crate) name: String,
    /// The CPU that the thread ran on last.
    pub(crate) cpu: u32,
    /// User time in ticks.
    pub(crate) user: u64,
    /// System time in ticks.
    pub(crate) system: u64,
    pub(crate) switches: Switches,
}

/// The scheduler's counters, where the kernel was built to report them (`CONFIG_SCHED_DEBUG`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Switches {
    pub(crate) migrations: Option<u64>,
    pub(crate) voluntary: Option<u64>,
    pub(crate) involuntary: Option<u64>,
}

/// Open files of threads.
#[derive(Debug, Default)]
pub(crate) struct Threads {
    open: BTreeMap<(u32, u32), Files>,
    buffer: Vec<u8>,
}

#[derive(Debug)]
struct Files {
    stat: Reread,
    sched: Option<Reread>,
}

impl Threads {
    /// Reads all threads of `pids`; processes that ended are left out.
    pub(crate) fn read(&mut self, root: &Sysroot, pids: &[u32]) -> Vec<ThreadTimes> {
        let mut threads = Vec::new();
        let mut seen = BTreeMap::new();
        for &pid in pids {
            let tids = root.list(format!("/proc/{pid}/task")).unwrap_or_default();
            for tid in tids.iter().filter_map(|name| name.parse().ok()) {
                let files = match self.open.remove(&(pid, tid)) {
                    Some(files) => files,
                    None => match Files::open(root, pid, tid) {
                        Some(files) => files,
                        // The thread ended after the listing.
                        None => continue,
                    },
                };
                if let Some(thread) = files.read(pid, tid, &mut self.buffer) {
                    threads.push(thread);
                    seen.insert((pid, tid), files);
                }
            }
        }
        self.open = seen;
        threads
    }
}

impl Files {
    fn open(root: &Sysroot, pid: u32, tid: u32) -> Option<Self> {
        let path = |file: &str| format!("/proc/{pid}/task/{tid}/{file}");
        Some(Self {
            stat: Reread::open(root, path("stat")).ok()?,
            sched: Reread::open(root, path("sched")).ok(),
        })
    }

    fn read(&self, pid: u32, tid: u32, buffer: &mut Vec<u8>) -> Option<ThreadTimes> {
        self.stat.read(buffer).ok()?;
        let mut thread = stat(buffer)?;
        (thread.pid, thread.tid) = (pid, tid);
        if let Some(file) = &self.sched
            && file.read(buffer).is_ok()
        {
            thread.switches = sched(buffer);
        }
        Some(thread)
    }
}

/// Reads `/proc/PID/task/TID/stat`. The name is in parentheses and may hold anything, including
/// parentheses and spaces, so fields are counted from the last closing one.
pub(crate) fn stat(text: &[u8]) -> Option<ThreadTimes> {
    let open = text.iter().position(|byte| *byte == b'(')?;
    let close = text.iter().rposition(|byte| *byte == b')')?;
    let name = String::from_utf8_lossy(text.get(open + 1..close)?).into_owned();
    // The first field after the name, the state, is field 3.
    let mut fields = words(&text[close + 1..]);
    let user = fields.nth(14 - 3).and_then(number)?;
    let system = fields.next().and_then(number)?;
    let cpu = fields.nth(39 - 16).and_then(number)?;
    let (pid, tid, switches) = (0, 0, Switches::default());
    Some(ThreadTimes { pid, tid, name, cpu, user, system, switches })
}

/// Reads `/proc/PID/task/TID/sched`.
pub(crate) fn sched(text: &[u8]) -> Switches {
    let mut switches = Switches::default();
    for line in lines(text) {
        let mut words = words(line);
        let target = match words.next() {
            Some(b"se.nr_migrations") => &mut switches.migrations,
            Some(b"nr_voluntary_switches") => &mut switches.voluntary,
            Some(b"nr_involuntary_switches") => &mut switches.involuntary,
            _ => continue,
        };
        *target = words.nth(1).and_then(number);
    }
    switches
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_hold_brackets_and_spaces() {
        let text = b"77 (pr-tx0) (x) R 1 1 1 0 -1 0 1 0 0 0 25 75 0 0 20 0 1 0 9 9 9 9 \
                     0 0 0 0 0 0 0 0 0 0 0 0 17 22 0 0\n";
        let thread = stat(text).unwrap();
        assert_eq!(thread.name, "pr-tx0) (x");
        assert_eq!((thread.user, thread.system, thread.cpu), (25, 75, 22));
        assert_eq!(stat(b"77 (cut off) R 1"), None);
    }

    #[test]
    fn what_the_scheduler_does_not_tell_is_none() {
        let text = b"se.nr_migrations      :     12\nnr_voluntary_switches :   3\n";
        let switches = sched(text);
        assert_eq!((switches.migrations, switches.voluntary), (Some(12), Some(3)));
        assert_eq!(switches.involuntary, None);
    }

    #[test]
    fn a_busy_thread_of_this_process_is_seen_with_its_time_and_name() {
        let (tell, told) = std::sync::mpsc::channel();
        let (end, ends) = std::sync::mpsc::channel::<()>();
        let worker = std::thread::Builder::new().name("busy-bee".into());
        let worker = worker
            .spawn(move || {
                // Measure the thread's CPU time, not wall time, because other threads may use the CPU, too.
                while crate::sampler::thread_cpu().as_millis() < 200 {
                    std::hint::spin_loop();
                }
                tell.send(()).unwrap();
                let _ = ends.recv();
            })
            .unwrap();
        told.recv().unwrap();
        let root = Sysroot::live();
        let mut threads = Threads::default();
        let pids = [std::process::id()];
        let find = |all: Vec<ThreadTimes>| all.into_iter().find(|t| t.name == "busy-bee");
        let first = find(threads.read(&root, &pids)).unwrap();
        assert!(first.user + first.system >= 5, "200 ms are 20 ticks: {first:?}");
        let again = find(threads.read(&root, &pids)).unwrap();
        assert!(again.user >= first.user && again.tid == first.tid);
        assert!(threads.read(&root, &[u32::MAX]).is_empty());
        drop(end);
        worker.join().unwrap();
    }
}
