//! Busy time of this machine's CPUs, and of those among them that this process may run on.

use std::fs;

use polyrail_sys::threads::allowed_cpus;

use crate::cmd::bench::talk::OwnCpus;

/// CPU time since the machine started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Machine {
    whole: Ticks,
    cpus: usize,
    /// Time of the CPUs that the calling thread may run on.
    own: Ticks,
    own_cpus: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Ticks {
    busy: u64,
    /// Time in interrupts and softirqs.
    softirq: u64,
    /// Time in interrupts, in softirqs and in the kernel's work for programs.
    kernel: u64,
    all: u64,
}

impl Machine {
    pub(crate) fn look() -> Option<Self> {
        let text = fs::read_to_string("/proc/stat").ok()?;
        Self::parse(&text, &allowed_cpus().unwrap_or_default())
    }

    pub(crate) const fn cpus(self) -> usize {
        self.cpus
    }

    /// Returns the share of all CPU time between this look and `later` that was not idle.
    pub(crate) fn busy(self, later: Self) -> Option<f64> {
        self.whole.busy(later.whole)
    }

    /// Returns the CPU time between this look and `later` in interrupts and softirqs that no process has in its time,
    /// as a number of CPUs. Some kernels count softirqs in the time of the interrupted process; `programs_kernel_cpus`
    /// is the kernel's part of all processes' time.
    pub(crate) fn softirq_alone_cpus(self, later: Self, programs_kernel_cpus: f64) -> f64 {
        let (from, to) = (self.whole, later.whole);
        let all = to.all.saturating_sub(from.all).max(1) as f64;
        let cpus = |to: u64, from: u64| to.saturating_sub(from) as f64 / all * later.cpus as f64;
        let alone = cpus(to.kernel, from.kernel) - programs_kernel_cpus;
        alone.clamp(0.0, cpus(to.softirq, from.softirq))
    }

    /// Returns the CPUs that the process may run on, if these are not all.
    pub(crate) fn own_cpus(self, later: Self) -> Option<OwnCpus> {
        let count = later.own_cpus;
        let busy = self.own.busy(later.own)?;
        (count == self.own_cpus && count < later.cpus).then_some(OwnCpus { count, busy })
    }

    /// Reads the lines of CPUs in `/proc/stat`, of which the first is the sum.
    fn parse(text: &str, allowed: &[u32]) -> Option<Self> {
        let mut lines = text.lines().map_while(|line| line.strip_prefix("cpu"));
        let whole = Ticks::parse(lines.next()?)?;
        let mut machine = Self { whole, ..Self::default() };
        for line in lines {
            machine.cpus += 1;
            let number = line.split_whitespace().next().and_then(|number| number.parse().ok());
            let ticks = line.split_once(' ').and_then(|(_, ticks)| Ticks::parse(ticks));
            if let (Some(number), Some(Ticks { busy, all, .. })) = (number, ticks)
                && allowed.contains(&number)
            {
                machine.own_cpus += 1;
                machine.own.busy += busy;
                machine.own.all += all;
            }
        }
        Some(machine)
    }
}

impl Ticks {
    /// Reads user, nice, system, idle, iowait, irq, softirq and steal, in the order of `proc_stat(5)`.
    fn parse(text: &str) -> Option<Self> {
        let ticks: Vec<u64> = text.split_whitespace().map_while(|word| word.parse().ok()).collect();
        // Guest time, which follows, is already in user time.
        let all: u64 = ticks.iter().take(8).sum();
        let idle = ticks.get(3)? + ticks.get(4)?;
        let softirq = ticks.iter().skip(5).take(2).sum();
        Some(Self { busy: all - idle, softirq, kernel: softirq + ticks[2], all })
    }

    fn busy(self, later: Self) -> Option<f64> {
        let busy = later.busy.saturating_sub(self.busy) as f64;
        (later.all > self.all).then(|| busy / (later.all - self.all) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(cpus: [u64; 3]) -> String {
        let all: u64 = cpus.iter().sum();
        let line = |name: &str, busy: u64, of: u64| {
            format!("{name} {busy} 0 0 {} 0 0 0 0 99 0\n", of - busy)
        };
        let each = (0..3).map(|cpu| line(&format!("cpu{cpu}"), cpus[cpu], 100));
        line("cpu ", all, 300) + &each.collect::<String>() + "intr 5\n"
    }

    #[test]
    fn busy_time_is_all_but_idle_and_waiting_for_disks() {
        let text = "cpu  10 0 20 60 5 1 4 0 99 0\ncpu0 1 2 3 4 5 6 7 8\ncpu1 1\nintr 5\n";
        let machine = Machine::parse(text, &[]).unwrap();
        assert_eq!(
            (machine.whole, machine.cpus),
            (Ticks { busy: 35, softirq: 5, kernel: 25, all: 100 }, 2)
        );
        assert_eq!(Machine::parse("intr 1 2", &[]), None);
    }

    #[test]
    fn softirqs_that_processes_have_in_their_time_are_left_out() {
        let look = |text: &str| Machine::parse(&format!("{text}\ncpu0 1\ncpu1 1\n"), &[]).unwrap();
        let before = look("cpu  10 0 20 60 5 1 4 0 99 0");
        // 100 ticks of 2 CPUs: 0.2 CPUs in programs, 0.4 in the kernel for them, 0.8 in softirqs, 0.4 stolen.
        let later = look("cpu  20 0 40 70 5 11 34 20 99 0");
        let near = |programs_kernel_cpus, alone: f64| {
            let found = before.softirq_alone_cpus(later, programs_kernel_cpus);
            assert!((found - alone).abs() < 1e-9, "{programs_kernel_cpus}: {found}");
        };
        near(0.4, 0.8);
        near(1.0, 0.2);
        near(1.2, 0.0);
        near(0.1, 0.8);
        near(9.0, 0.0);
        assert_eq!(before.softirq_alone_cpus(before, 0.0), 0.0);
    }

    #[test]
    fn the_cpus_that_a_process_may_run_on_are_told_apart_unless_they_are_all() {
        let look = |cpus, allowed: &[u32]| Machine::parse(&machine(cpus), allowed).unwrap();
        let none = Ticks::default();
        let idle = look([0, 0, 0], &[0, 2]);
        let half =
            Machine { own: Ticks { busy: 150, all: 400, ..none }, ..look([0, 100, 0], &[0, 2]) };
        assert_eq!(idle.own_cpus(half), Some(OwnCpus { count: 2, busy: 0.75 }));
        let later =
            Machine { own: Ticks { busy: 150, all: 600, ..none }, ..look([0, 0, 0], &[0, 1, 2]) };
        assert_eq!(look([0, 0, 0], &[0, 1, 2]).own_cpus(later), None);
        assert_eq!(look([100, 100, 50], &[1, 2]).own, Ticks { busy: 150, all: 200, ..none });
        assert_eq!(idle.own_cpus(look([0, 0, 0], &[1])), None, "it may run elsewhere by now");
    }
}
