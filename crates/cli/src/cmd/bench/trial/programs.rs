//! Programs that used the CPUs that this process may run on, according to the kernel.

use std::collections::HashMap;
use std::fs;

use rustix::param::clock_ticks_per_second;

use crate::cmd::bench::talk::Program;

#[derive(Clone, Debug, Default)]
pub(crate) struct Programs {
    /// Each process, by its id and the tick in which it started.
    each: HashMap<(u32, u64), Used>,
    /// Kernel's part of the time of all processes and of their ended children, in ticks.
    kernel_ticks: u64,
}

#[derive(Clone, Debug)]
struct Used {
    name: String,
    /// CPU time, in ticks.
    ticks: u64,
    /// Kernel's part of the CPU time, including that of children that the process has waited for, in ticks.
    kernel_ticks: u64,
    /// CPU on which the process last ran.
    cpu: u32,
}

/// Maximum number of programs to report, the busiest ones.
const PROGRAMS_MAX: usize = 16;
/// Minimum CPU time to report, as a number of CPUs. Less disturbs no transfer.
const LEAST_CPUS: f64 = 0.02;
/// Prefix of the kernel's threads for softirqs that took too long elsewhere.
const KSOFTIRQD: &str = "ksoftirqd/";

impl Programs {
    /// Reads a file for each process, which takes some microseconds each.
    pub(crate) fn look() -> Self {
        let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
        let of_process = |name: &str| {
            let pid: u32 = name.parse().ok()?;
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            let (started, used) = Used::parse(&stat)?;
            Some(((pid, started), used))
        };
        Self::of(processes.filter_map(|entry| of_process(entry.file_name().to_str()?)).collect())
    }

    fn of(each: HashMap<(u32, u64), Used>) -> Self {
        let programs = each.values().filter(|used| !used.name.starts_with(KSOFTIRQD));
        let kernel_ticks = programs.map(|used| used.kernel_ticks).sum();
        Self { each, kernel_ticks }
    }

    /// Returns the CPU time between this look and `later` in which the kernel worked for processes, as a number of
    /// CPUs. It includes processes that ended meanwhile: their time passes to their parents.
    pub(crate) fn kernel_cpus(&self, later: &Self, seconds: f64) -> f64 {
        let ticks = later.kernel_ticks.saturating_sub(self.kernel_ticks);
        ticks as f64 / clock_ticks_per_second() as f64 / seconds
    }

    /// Returns the programs that used most between this look and `later`, the busiest first. Leaves out programs that
    /// ended before `later`, and those that last ran on none of the `allowed` CPUs: they took no time from this
    /// process.
    pub(crate) fn busiest(&self, later: &Self, seconds: f64, allowed: &[u32]) -> Vec<Program> {
        let ticks_per_second = clock_ticks_per_second() as f64;
        let since = |(key, used): (&(u32, u64), &Used)| {
            let before = self.each.get(key).map_or(0, |before| before.ticks);
            let cpus = used.ticks.saturating_sub(before) as f64 / ticks_per_second / seconds;
            Program { pid: key.0, name: used.name.clone(), cpus }
        };
        let ran_here = later.each.iter().filter(|(_, used)| allowed.contains(&used.cpu));
        let mut programs: Vec<Program> =
            ran_here.map(since).filter(|program| program.cpus >= LEAST_CPUS).collect();
        programs.sort_by(|a, b| b.cpus.total_cmp(&a.cpus));
        programs.truncate(PROGRAMS_MAX);
        programs
    }
}

impl Used {
    /// Reads `/proc/PID/stat` in the format of `proc_pid_stat(5)`. The name is in brackets and may contain brackets
    /// itself. Also returns the tick in which the process started.
    fn parse(stat: &str) -> Option<(u64, Self)> {
        let (head, tail) = stat.rsplit_once(')')?;
        let name = head.split_once('(')?.1.to_owned();
        // The third field of the whole line is the first one here.
        let field = |number: usize| tail.split_whitespace().nth(number - 3)?.parse::<u64>().ok();
        let cpu = u32::try_from(field(39)?).ok()?;
        let (user, kernel) = (field(14)?, field(15)?);
        let kernel_ticks = kernel + field(17)?;
        Some((field(22)?, Self { name, ticks: user + kernel, kernel_ticks, cpu }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn programs(processes: &[(u32, u64, &str, u64)]) -> Programs {
        let of = |(pid, started, name, ticks): &(u32, u64, &str, u64)| {
            let (name, ticks) = ((*name).to_owned(), *ticks);
            let kernel_ticks = ticks / 2;
            ((*pid, *started), Used { name, ticks, kernel_ticks, cpu: pid % 4 })
        };
        Programs::of(processes.iter().map(of).collect())
    }

    #[test]
    fn the_busiest_come_first_and_a_number_that_is_used_again_is_another_process() {
        let before = programs(&[(1, 5, "hog", 1000), (2, 5, "idle", 70), (3, 5, "old", 5000)]);
        let second = clock_ticks_per_second();
        let after = programs(&[
            (1, 5, "hog", 1000 + second),
            (2, 5, "idle", 70),
            (3, 9, "new", second / 2),
            (4, 9, "elsewhere", second),
        ]);
        let busiest = before.busiest(&after, 2.0, &[1, 2, 3]);
        let named: Vec<_> = busiest.iter().map(|it| (it.pid, &*it.name, it.cpus)).collect();
        assert_eq!(named, [(1, "hog", 0.5), (3, "new", 0.25)]);
    }

    #[test]
    fn the_kernels_work_for_all_processes_counts_and_its_threads_for_softirqs_do_not() {
        let second = clock_ticks_per_second();
        let before = programs(&[(1, 5, "hog", 1000), (2, 5, "ksoftirqd/0", 70)]);
        let after = programs(&[
            (1, 5, "hog", 1000 + 2 * second),
            (2, 5, "ksoftirqd/0", 70 + second),
            (3, 9, "elsewhere", 2 * second),
        ]);
        assert_eq!(before.kernel_cpus(&after, 2.0), 1.0);
        assert_eq!(after.kernel_cpus(&before, 2.0), 0.0);
    }

    #[test]
    fn the_kernel_tells_the_time_of_a_process_whatever_its_name_holds() {
        let stat = "7 (a) (b c) R 1 7 7 0 -1 4194304 100 0 0 0 30 12 5 8 20 0 1 0 8900 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 17 3 0";
        let (started, used) = Used::parse(stat).unwrap();
        assert_eq!((&*used.name, used.ticks, started, used.cpu), ("a) (b c", 42, 8900, 3));
        assert_eq!(used.kernel_ticks, 20, "8 are of children that ended");
        assert!(Used::parse("7 (a) R 1").is_none());
        let own = std::process::id();
        assert!(Programs::look().each.keys().any(|(pid, _)| *pid == own));
    }
}
