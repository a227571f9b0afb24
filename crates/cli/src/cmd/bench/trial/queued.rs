//! Times that threads of this process ran, and that they were ready to run but had no CPU, according to the kernel.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

/// Threads by their ids.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Queued(HashMap<String, Thread>);

/// Times since the thread started, in nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Thread {
    name: String,
    ran: u64,
    waited: u64,
}

impl Queued {
    /// Reads the times. Empty if the kernel does not count them.
    pub(crate) fn look() -> Self {
        let threads = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
        let of_thread = |folder: &Path| {
            let schedstat = fs::read_to_string(folder.join("schedstat")).ok()?;
            let name = fs::read_to_string(folder.join("comm")).ok()?;
            let (ran, waited) = ran_and_waited(&schedstat)?;
            Some(Thread { name: name.trim().to_owned(), ran, waited })
        };
        let numbered = threads.filter_map(|thread| {
            let number = thread.file_name().to_string_lossy().into_owned();
            Some((number, of_thread(&thread.path())?))
        });
        Self(numbered.collect())
    }

    /// Returns the thread that waited longest between this look and `later`, and the share of `seconds` that it waited.
    pub(crate) fn longest(&self, later: &Self, seconds: f64) -> Option<(String, f64)> {
        self.shares(later, seconds, |thread| thread.waited).max_by(|a, b| a.1.total_cmp(&b.1))
    }

    /// Returns the shares of `seconds` that the threads with this prefix ran between this look and `later`.
    pub(crate) fn ran(&self, later: &Self, seconds: f64, prefix: &str) -> Vec<f64> {
        let all = self.shares(later, seconds, |thread| thread.ran);
        all.filter(|(name, _)| name.starts_with(prefix)).map(|(_, share)| share).collect()
    }

    /// Returns the name of each thread, and the share of `seconds` that the chosen time makes up.
    fn shares(
        &self,
        later: &Self,
        seconds: f64,
        time: impl Fn(&Thread) -> u64,
    ) -> impl Iterator<Item = (String, f64)> {
        later.0.iter().map(move |(number, thread)| {
            let before = self.0.get(number).map_or(0, &time);
            (thread.name.clone(), time(thread).saturating_sub(before) as f64 / 1e9 / seconds)
        })
    }
}

/// Reads the first two numbers of `/proc/PID/task/TID/schedstat`, described in the kernel's
/// `Documentation/scheduler/sched-stats.rst`: nanoseconds on a CPU, and on a run queue.
fn ran_and_waited(schedstat: &str) -> Option<(u64, u64)> {
    let mut numbers = schedstat.split_whitespace().map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queued(threads: &[(&str, &str, u64)]) -> Queued {
        let of = |(number, name, waited): &(&str, &str, u64)| {
            let thread = Thread { name: (*name).to_owned(), ran: 2 * waited, waited: *waited };
            ((*number).to_owned(), thread)
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
        assert_eq!(before.ran(&after, 2.0, "pr-"), [0.8]);
    }

    #[test]
    fn the_kernel_says_it_of_each_thread_of_this_process() {
        assert_eq!(ran_and_waited("123 456 7\n"), Some((123, 456)));
        assert_eq!(ran_and_waited("123"), None);
        let own = std::thread::current();
        let name = own.name().unwrap().chars().take(15).collect::<String>();
        assert!(Queued::look().0.values().any(|thread| thread.name == name), "{name}");
    }
}
