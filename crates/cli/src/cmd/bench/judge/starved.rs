//! Test for an end that gets so little CPU time, because of other programs, that no limit of the machine can be
//! measured there.

use super::rules::reachable;
use crate::cmd::bench::talk::{Load, OwnCpus};

/// Minimum share of the time that a thread of a starved end is ready to run and has no CPU.
const WAITED: f64 = 0.75;
/// Minimum ratio of the other programs' CPU time to the transfer's.
const OTHERS: f64 = 9.0;

/// Describes the CPU time of a starved end, for the middle of a sentence; `None` if neither end is starved. `local` and
/// `peer` are loads of one sample.
pub(crate) fn starved(local: &Load, peer: &Load, same_host: bool) -> Option<String> {
    let both = local.process_cpus + peer.process_cpus;
    if same_host {
        return of_end(local, both, "both ends").or_else(|| of_end(peer, both, "both ends"));
    }
    of_end(local, local.process_cpus, "this bench")
        .or_else(|| of_end(peer, peer.process_cpus, "the process at the other side"))
}

fn of_end(load: &Load, ours: f64, who: &str) -> Option<String> {
    let OwnCpus { count, busy } = reachable(load)?;
    let queued = load.queued_thread.as_ref().map_or(0.0, |(_, share)| *share);
    let others = busy * count as f64 - ours;
    let is_starved = queued.max(load.away_share) >= WAITED && others >= OTHERS * ours;
    let percent = |cpus: f64| 100.0 * cpus / count as f64;
    is_starved.then(|| {
        format!(
            "{who} got {:.1} % of the time of {count} CPUs, and other programs {:.0} %",
            percent(ours),
            percent(others)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(process_cpus: f64, waited: f64) -> Load {
        Load {
            process_cpus,
            machine_cpus: 2,
            machine_busy: Some(1.0),
            queued_thread: Some(("pr-tx0".into(), waited)),
            ..Load::default()
        }
    }

    #[test]
    fn an_end_is_starved_where_its_threads_wait_and_others_have_nearly_all_of_the_cpus() {
        // A nice value of 19 next to a busy loop on each CPU.
        let here = |same_host| starved(&load(0.02, 0.98), &load(0.01, 0.98), same_host);
        assert_eq!(
            here(true).unwrap(),
            "both ends got 1.5 % of the time of 2 CPUs, and other programs 98 %"
        );
        assert!(here(false).unwrap().starts_with("this bench got 1.0 % of"));
        let there = starved(&Load::default(), &load(0.01, 0.98), false).unwrap();
        assert!(there.starts_with("the process at the other side got 0.5 %"), "{there}");
        // The other programs' nice value, and threads of the transfer that wait for each other.
        assert_eq!(starved(&load(0.6, 0.6), &load(0.5, 0.6), true), None);
        assert_eq!(starved(&load(1.0, 0.97), &load(0.9, 0.97), true), None);
        // Next to nothing to do.
        assert_eq!(starved(&load(0.01, 0.0), &load(0.01, 0.0), true), None);
        // A kernel that does not count the time on a run queue.
        let away = Load { queued_thread: None, away_share: 0.9, ..load(0.02, 0.0) };
        assert!(starved(&away, &load(0.01, 0.0), true).is_some());
    }
}
