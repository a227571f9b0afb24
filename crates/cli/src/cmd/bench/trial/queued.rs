//! How long threads of this process were ready to run and had no CPU, as the kernel counts it.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

/// Of each thread by its number: its name, and the time it has waited for a CPU since it started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Queued(HashMap<String, (String, u64)>);

impl Queued {
    /// Of a kernel that does not count, nothing.
    pub(crate) fn look() -> Self {
        let threads = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
        let of_thread = |folder: &Path| {
            let schedstat = fs::read_to_string(folder.join("schedstat")).ok()?;
            let name = fs::read_to_string(folder.join("comm")).ok()?;
            Some((name.trim().to_owned(), waited_ns(&schedstat)?))
        };
        let numbered = threads.filter_map(|thread| {
            let number = thread.file_name().to_string_lossy().into_owned();
            Some((number, of_thread(&thread.path())?))
        });
        Self(numbered.collect())
    }

    /// The thread that waited longest from this look to `later`, and the part of `seconds` that it did.
    pub(crate) fn longest(&self, later: &Self, seconds: f64) -> Option<(String, f64)> {
        let since = |(number, (name, ns)): (&String, &(String, u64))| {
            let before = self.0.get(number).map_or(0, |(_, before)| *before);
            (name.clone(), ns.saturating_sub(before) as f64 / 1e9 / seconds)
        };
        later.0.iter().map(since).max_by(|a, b| a.1.total_cmp(&b.1))
    }
}

/// The second number of `/proc/PID/task/TID/schedstat`, as the kernel's `Documentation/scheduler/sched-stats.rst`
/// has it: nanoseconds on a run queue.
fn waited_ns(schedstat: &str) -> Option<u64> {
    schedstat.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queued(threads: &[(&str, &str, u64)]) -> Queued {
        let of = |(number, name, ns): &(&str, &str, u64)| {
            ((*number).to_owned(), ((*name).to_owned(), *ns))
        };
        Queued(threads.iter().map(of).collect())
    }

    #[test]
    fn the_thread_that_waited_longest_in_the_interval_is_named() {
        let before = queued(&[("1", "main", 9_000_000_000), ("2", "pr-tx0", 0)]);
        let after =
            queued(&[("1", "main", 9_100_000_000), ("2", "pr-tx0", 800_000_000), ("3", "new", 5)]);
        assert_eq!(before.longest(&after, 2.0), Some(("pr-tx0".into(), 0.4)));
        assert_eq!(Queued::default().longest(&Queued::default(), 1.0), None);
    }

    #[test]
    fn the_kernel_says_it_of_each_thread_of_this_process() {
        assert_eq!(waited_ns("123 456 7\n"), Some(456));
        assert_eq!(waited_ns("123"), None);
        let own = std::thread::current();
        let name = own.name().unwrap().chars().take(15).collect::<String>();
        assert!(Queued::look().0.values().any(|(known, _)| *known == name), "{name}");
    }
}
