//! CPU times for `--fit`: those of each end, and of its kernel for the end's packets.

use super::measure::Bench;
use crate::cmd::bench::judge::{CopyRate, Cost};
use crate::cmd::bench::options::Op;
use crate::cmd::bench::talk::{Answer, Ask, Load, unexpected};
use crate::cmd::bench::trial::Taken;
use crate::fault::Fault;

impl Bench<'_> {
    /// Returns the costs of each end for the rounds of a size.
    pub(super) fn costs_of(
        &self,
        size: u64,
        rounds: &[Taken],
        copy: Option<&CopyRate>,
    ) -> Result<[Cost; 2], Fault> {
        let copied_there = self.copied_there(size)?;
        Ok([true, false].map(|is_here| {
            let sends = is_here == (self.schedule.op != Op::Read);
            let load = |taken| end(taken, is_here).1;
            let per_gb = |taken: &Taken| {
                let (process_s, load) = end(taken, is_here);
                process_s * with_kernel(load, sends, self.same_host) * 1e9
                    / taken.sample.bytes as f64
            };
            let allowed = rounds.iter().map(|taken| load(taken).cpus_allowed).min();
            let here = copy.map(|copy| copy.gb_per_s);
            Cost {
                end: usize::from(!is_here && !self.same_host),
                host: self.hosts[usize::from(!is_here)].clone(),
                sends,
                size_bytes: size,
                per_gb: rounds.iter().map(per_gb).collect(),
                cpus_allowed: allowed.unwrap_or(1).max(1),
                memory_gb_per_s: if is_here || self.same_host { here } else { copied_there },
            }
        }))
    }

    /// Asks the other machine for the rate of its memory copies, with the largest size only: the answer of `--fit` uses
    /// that size.
    fn copied_there(&self, size: u64) -> Result<Option<f64>, Fault> {
        if self.same_host || self.schedule.sizes.iter().any(|other| *other > size) {
            return Ok(None);
        }
        let ask = Ask::Copies;
        match self.link.ask(&ask)? {
            Answer::Copied { gb_per_s } => Ok(gb_per_s.filter(|rate| rate.is_finite())),
            other => Err(unexpected(&ask, &other)),
        }
    }
}

/// Returns the CPU seconds of the process at an end, and the end's load.
fn end(taken: &Taken, is_here: bool) -> (f64, &Load) {
    match is_here {
        true => (taken.sample.local_cpu_seconds, &taken.local_load),
        false => (taken.sample.peer.cpu_seconds, &taken.peer_load),
    }
}

/// Returns the factor from the CPU time of an end's process to that time plus the kernel's time for its packets:
/// softirqs that no process has in its time. On one host the kernel delivers on the sender's CPU.
fn with_kernel(load: &Load, sends: bool, one_host: bool) -> f64 {
    match load.process_cpus > 0.0 && (sends || !one_host) {
        true => 1.0 + load.softirq_alone_cpus / load.process_cpus,
        false => 1.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn softirqs_that_no_process_has_in_its_time_count_for_the_end_that_the_kernel_works_for() {
        let mut load = Load { process_cpus: 2.0, softirq_alone_cpus: 3.0, ..Load::default() };
        assert_eq!(with_kernel(&load, true, false), 2.5);
        assert_eq!(with_kernel(&load, false, false), 2.5);
        assert_eq!(with_kernel(&load, true, true), 2.5);
        assert_eq!(with_kernel(&load, false, true), 1.0, "the sender has them");
        load.process_cpus = 0.0;
        assert_eq!(with_kernel(&load, true, true), 1.0);
    }
}
