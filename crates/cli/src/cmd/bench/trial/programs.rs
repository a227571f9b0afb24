//! Which programs used the CPUs that this process may run on, as the kernel counts it.

use std::collections::HashMap;
use std::fs;

use rustix::param::clock_ticks_per_second;

use crate::cmd::bench::talk::Program;

/// Each process, by its number and the tick in which it started.
#[derive(Clone, Debug, Default)]
pub(crate) struct Programs(HashMap<(u32, u64), Used>);

#[derive(Clone, Debug)]
struct Used {
    name: String,
    /// CPU time, in ticks.
    ticks: u64,
    /// The CPU on which it ran last.
    cpu: u32,
}

/// So many are told of; the others used less.
const PROGRAMS_MAX: usize = 16;
/// Less of a CPU than this is nobody's disturbance.
const LEAST_CPUS: f64 = 0.02;

impl Programs {
    /// A file is read for each process, which takes some microseconds.
    pub(crate) fn look() -> Self {
        let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
        let of_process = |name: &str| {
            let pid: u32 = name.parse().ok()?;
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            let (started, used) = Used::parse(&stat)?;
            Some(((pid, started), used))
        };
        Self(processes.filter_map(|entry| of_process(entry.file_name().to_str()?)).collect())
    }

    /// Those that used most from this look to `later`, the busiest first. What ended before `later` is not among them,
    /// nor what ran last on none of the CPUs that are `allowed`: it took none from this process.
    pub(crate) fn busiest(&self, later: &Self, seconds: f64, allowed: &[u32]) -> Vec<Program> {
        let ticks_per_second = clock_ticks_per_second() as f64;
        let since = |(key, used): (&(u32, u64), &Used)| {
            let before = self.0.get(key).map_or(0, |before| before.ticks);
            let cpus = used.ticks.saturating_sub(before) as f64 / ticks_per_second / seconds;
            Program { pid: key.0, name: used.name.clone(), cpus }
        };
        let ran_here = later.0.iter().filter(|(_, used)| allowed.contains(&used.cpu));
        let mut programs: Vec<Program> =
            ran_here.map(since).filter(|program| program.cpus >= LEAST_CPUS).collect();
        programs.sort_by(|a, b| b.cpus.total_cmp(&a.cpus));
        programs.truncate(PROGRAMS_MAX);
        programs
    }
}

impl Used {
    /// Reads `/proc/PID/stat`, as `proc_pid_stat(5)` has it: the name stands in brackets and may hold some itself.
    /// With it comes the tick in which the process started.
    fn parse(stat: &str) -> Option<(u64, Self)> {
        let (head, tail) = stat.rsplit_once(')')?;
        let name = head.split_once('(')?.1.to_owned();
        // The third field of all is the first one here.
        let field = |number: usize| tail.split_whitespace().nth(number - 3)?.parse::<u64>().ok();
        let cpu = u32::try_from(field(39)?).ok()?;
        Some((field(22)?, Self { name, ticks: field(14)? + field(15)?, cpu }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn programs(processes: &[(u32, u64, &str, u64)]) -> Programs {
        let of = |(pid, started, name, ticks): &(u32, u64, &str, u64)| {
            ((*pid, *started), Used { name: (*name).to_owned(), ticks: *ticks, cpu: pid % 4 })
        };
        Programs(processes.iter().map(of).collect())
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
    fn the_kernel_tells_the_time_of_a_process_whatever_its_name_holds() {
        let stat = "7 (a) (b c) R 1 7 7 0 -1 4194304 100 0 0 0 30 12 0 0 20 0 1 0 8900 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 17 3 0";
        let (started, used) = Used::parse(stat).unwrap();
        assert_eq!((&*used.name, used.ticks, started, used.cpu), ("a) (b c", 42, 8900, 3));
        assert!(Used::parse("7 (a) R 1").is_none());
        let own = std::process::id();
        assert!(Programs::look().0.keys().any(|(pid, _)| *pid == own));
    }
}
