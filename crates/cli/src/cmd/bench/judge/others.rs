//! Use of CPUs by other programs during the transfer.

use std::collections::BTreeMap;

use crate::cmd::bench::talk::{Load, Program};
use crate::stdout::excerpt;

/// Maximum number of program names to print.
const NAMES_MAX: usize = 3;
/// Minimum share of the CPUs that is worth printing.
const LEAST_SHARE: f64 = 0.1;

/// Returns `load` without the transfer's own processes among its programs.
pub(super) fn without_ends(load: &Load, ends: &[u32]) -> Load {
    let programs = load.programs.iter().filter(|program| !ends.contains(&program.pid));
    Load { programs: programs.cloned().collect(), ..load.clone() }
}

/// Names the programs that used the CPUs, for the end of a sentence. Empty if others used next to nothing, or were not
/// sampled.
pub(super) fn others(load: &Load) -> String {
    let mut by_name: BTreeMap<&str, Vec<&Program>> = BTreeMap::new();
    for program in &load.programs {
        by_name.entry(&program.name).or_default().push(program);
    }
    let used = |programs: &[&Program]| programs.iter().map(|it| it.cpus).sum::<f64>();
    let mut named: Vec<_> = by_name.into_iter().map(|(name, it)| (used(&it), name, it)).collect();
    named.sort_by(|a, b| b.0.total_cmp(&a.0));
    let words = named.iter().take(NAMES_MAX).map(|(cpus, name, programs)| {
        let which = match programs.as_slice() {
            [one] => format!("process {}", one.pid),
            all => format!("{} processes", all.len()),
        };
        format!("{} ({which}) used {cpus:.2}", excerpt(name))
    });
    let all: f64 = named.iter().map(|(cpus, ..)| cpus).sum();
    let cpus = load.own_cpus.map_or(load.machine_cpus, |own| own.count);
    match all >= LEAST_SHARE * cpus.max(1) as f64 {
        true => format!("; other programs: {}", words.collect::<Vec<_>>().join(", ")),
        false => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(programs: &[(u32, &str, f64)]) -> Load {
        let of = |(pid, name, cpus): &(u32, &str, f64)| Program {
            pid: *pid,
            name: (*name).into(),
            cpus: *cpus,
        };
        Load { machine_cpus: 4, programs: programs.iter().map(of).collect(), ..Load::default() }
    }

    #[test]
    fn programs_of_one_name_are_told_together_the_busiest_first_and_without_the_ends() {
        let all = load(&[(1, "polyrail", 1.5), (2, "hog", 0.5), (3, "cc", 0.4), (4, "cc", 0.4)]);
        let words = others(&without_ends(&all, &[1]));
        assert_eq!(
            words,
            "; other programs: cc (2 processes) used 0.80, hog (process 2) used 0.50"
        );
        assert_eq!(others(&load(&[(1, "cron", 0.1)])), "", "too little for a word");
    }

    #[test]
    fn a_name_that_would_write_on_the_terminal_is_made_harmless() {
        let words = others(&load(&[(1, "\u{1b}[31m", 2.0)]));
        assert!(words.contains("used 2.00") && !words.contains('\u{1b}'), "{words}");
    }
}
