//! Results of a run, for people and for programs.

use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::io;
use std::path::Path;
use std::time::Duration;

use serde::Serialize;

use crate::crew::{CHANNELS, Needs, WORKERS};
use crate::faults::Kind;
use crate::options::Options;
use crate::talk::{Oracle, Tally, first_line};

/// Additional memory that a process may use after the beginning. A flow may keep the memory of the region that it used
/// last, 3 or 6 MiB.
const RSS_SPARE_KIB: u64 = 48 << 10;
/// Additional descriptors after the beginning. On its first copy within the host, an engine takes a name in the kernel.
/// For each peer of such a copy it then holds a descriptor of that process. Only peers on the same side of the lab can
/// prove their identity.
const LATE_DESCRIPTORS: u64 = 1 + (WORKERS as u64 / 2 - 1);
/// If such copies are not possible, each flow has a ring, created with its first large chunk.
const RINGS: u64 = (CHANNELS * (WORKERS - 1)) as u64;
/// Number of violations that are kept whole. Later ones keep their first line.
const KEPT_WHOLE: usize = 20;

#[derive(Serialize)]
pub(crate) struct Report {
    seed: u64,
    fault: &'static str,
    #[serde(skip)]
    kind: Option<Kind>,
    seconds: f64,
    kernel: String,
    cpus: usize,
    workers: usize,
    transfers: Tally,
    faults: BTreeMap<&'static str, u64>,
    lost: usize,
    wrong: usize,
    hung: usize,
    unexplained: usize,
    grown: usize,
    /// Resources of each worker, at the beginning, in the middle and at the end.
    needs: Vec<Vec<Needs>>,
    violations: Vec<Violation>,
}

#[derive(Serialize)]
struct Violation {
    oracle: Oracle,
    what: String,
}

const WHEN: [&str; 3] = ["beginning", "middle", "end"];

impl Report {
    pub(crate) fn new(options: &Options) -> Self {
        let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Self {
            seed: options.seed,
            fault: options.fault.map_or("all", Kind::name),
            kind: options.fault,
            seconds: 0.0,
            kernel: kernel.trim().to_owned(),
            cpus: std::thread::available_parallelism().map_or(0, usize::from),
            workers: WORKERS,
            transfers: Tally::default(),
            faults: BTreeMap::new(),
            lost: 0,
            wrong: 0,
            hung: 0,
            unexplained: 0,
            grown: 0,
            needs: Vec::new(),
            violations: Vec::new(),
        }
    }

    pub(crate) fn fault(&mut self, kind: Kind) {
        *self.faults.entry(kind.name()).or_default() += 1;
    }

    /// Adds the operations of a worker's run.
    pub(crate) fn add(&mut self, tally: &Tally) {
        self.transfers.add(tally);
    }

    pub(crate) fn violation(&mut self, oracle: Oracle, what: String) {
        let what = match self.violations.len() < KEPT_WHOLE {
            true => what,
            false => first_line(&what).to_owned(),
        };
        self.violations.push(Violation { oracle, what });
    }

    pub(crate) fn needs(&mut self, needs: Vec<Needs>) {
        self.needs.push(needs);
    }

    /// True if no process uses more than at the beginning.
    pub(crate) fn is_flat(&self, now: &[Needs]) -> bool {
        let first = self.needs.first();
        first.is_none_or(|first| first.iter().zip(now).all(|(first, now)| is_flat(first, now)))
    }

    /// Checks conditions that only show at the end.
    pub(crate) fn judge(&mut self, elapsed: Duration) {
        self.seconds = elapsed.as_secs_f64();
        let mut found = Vec::new();
        for (when, later) in WHEN.iter().zip(&self.needs).skip(1) {
            for (worker, (first, now)) in self.needs[0].iter().zip(later).enumerate() {
                if !is_flat(first, now) {
                    let what =
                        format!("worker {worker} had {first:?}, and has {now:?} in the {when}");
                    found.push((Oracle::Grown, what));
                }
            }
        }
        if self.kind.is_some_and(|kind| !kind.may_lose_peers()) {
            let kinds = self.transfers.kinds.values();
            let names = kinds.flat_map(|count| &count.failed);
            let lost = names.filter(|(name, _)| name.contains("peer"));
            for (name, times) in lost {
                let what = format!("{times} times: {name}, which this fault does not explain");
                found.push((Oracle::Unexplained, what));
            }
        }
        let done = self.transfers.kinds.values().map(|count| count.done).sum::<u64>();
        if done == 0 {
            found.push((Oracle::Hung, "no transfer was done at all".to_owned()));
        }
        if self.transfers.callback_panics > 0 {
            found.push((Oracle::Unexplained, "callbacks panicked".to_owned()));
        }
        found.into_iter().for_each(|(oracle, what)| self.violation(oracle, what));
        let of = |oracle| self.violations.iter().filter(|one| one.oracle == oracle).count();
        (self.lost, self.wrong) = (of(Oracle::Lost), of(Oracle::Wrong));
        (self.hung, self.unexplained) = (of(Oracle::Hung), of(Oracle::Unexplained));
        self.grown = of(Oracle::Grown);
    }

    pub(crate) fn is_right(&self) -> bool {
        self.violations.is_empty()
    }

    fn sum(&self, of: impl Fn(&crate::talk::Count) -> u64) -> u64 {
        self.transfers.kinds.values().map(of).sum()
    }

    fn verdict(&self) -> String {
        format!(
            "{}: {} lost, {} wrong, {} hung, {} unexplained, {} grown",
            if self.is_right() { "RIGHT" } else { "FAILED" },
            self.lost,
            self.wrong,
            self.hung,
            self.unexplained,
            self.grown
        )
    }
}

fn is_flat(first: &Needs, now: &Needs) -> bool {
    now.threads == first.threads
        && now.descriptors <= first.descriptors + LATE_DESCRIPTORS
        // Besides the rings, there is the page by which engines check whether memory can be shared.
        && now.memory_files <= 1 + RINGS
        && now.shared_mappings <= 1 + 2 * RINGS
        && now.rss_kib <= first.rss_kib + RSS_SPARE_KIB
}

fn failed(failed: &BTreeMap<String, u64>) -> String {
    let each: Vec<String> = failed.iter().map(|(name, times)| format!("{times} {name}")).collect();
    each.join(", ")
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "chaos for {:.0} s, seed {}, faults: {}, {} workers, {} CPUs, Linux {}\n",
            self.seconds, self.seed, self.fault, self.workers, self.cpus, self.kernel
        )?;
        writeln!(f, "{:<25}{:>9}{:>9}{:>9}  failed by name", "transfers", "posted", "done", "MB")?;
        for (kind, count) in &self.transfers.kinds {
            let (posted, done, megabytes) = (count.posted, count.done, count.bytes / 1_000_000);
            let failed = failed(&count.failed);
            writeln!(f, "  {kind:<23}{posted:>9}{done:>9}{megabytes:>9}  {failed}")?;
        }
        let all = &self.transfers;
        writeln!(f, "  verified {}, watched after a failure {}", all.verified, all.watched)?;
        writeln!(f, "  notifications of writes that failed then: {}", all.early_notifications)?;
        writeln!(f, "  longest: {} ms, {}", all.longest_ms, all.longest)?;
        let faults: Vec<String> =
            self.faults.iter().map(|(name, times)| format!("{times} {name}")).collect();
        writeln!(f, "\nfaults: {}", faults.join(", "))?;
        writeln!(
            f,
            "peers joined again {}, connections refused {}, registrations refused {}, rescues {}",
            all.rejoins, all.refused_connections, all.refused_registrations, all.rescues
        )?;
        let [process, rss, descriptors, files, shared, threads] =
            ["process", "RSS MiB", "descriptors", "memory files", "shared", "threads"];
        writeln!(
            f,
            "\n{process:<10}{rss:>14}{descriptors:>14}{files:>14}{shared:>14}{threads:>14}"
        )?;
        for worker in 0..self.workers {
            let of = |what: &dyn Fn(&Needs) -> u64| {
                let each = self.needs.iter().filter_map(|needs| needs.get(worker));
                each.map(|needs| what(needs).to_string()).collect::<Vec<_>>().join(" ")
            };
            let rss = of(&|needs| needs.rss_kib >> 10);
            let descriptors = of(&|needs| needs.descriptors);
            let (files, threads) = (of(&|needs| needs.memory_files), of(&|needs| needs.threads));
            let shared = of(&|needs| needs.shared_mappings);
            let process = format!("worker {worker}");
            writeln!(
                f,
                "{process:<10}{rss:>14}{descriptors:>14}{files:>14}{shared:>14}{threads:>14}"
            )?;
        }
        writeln!(f, "(at the beginning, in the middle, at the end)\n")?;
        for violation in &self.violations {
            writeln!(f, "{:?}: {}\n", violation.oracle, violation.what)?;
        }
        writeln!(f, "{}", self.verdict())
    }
}

/// Formats a line for each run.
pub(crate) fn table(reports: &[Report]) -> String {
    let mut table = format!(
        "{:<12}{:>7}{:>8}{:>8}{:>8}{:>6}{:>6}  verdict; failed by name\n",
        "fault", "times", "posted", "done", "failed", "MB", "ms"
    );
    for report in reports {
        let mut names = BTreeMap::new();
        for (name, times) in report.transfers.kinds.values().flat_map(|count| &count.failed) {
            *names.entry(name.clone()).or_default() += times;
        }
        // Writing to a String can't fail.
        let _ = writeln!(
            table,
            "{:<12}{:>7}{:>8}{:>8}{:>8}{:>6}{:>6}  {}; {}",
            report.fault,
            report.faults.values().sum::<u64>(),
            report.sum(|count| count.posted),
            report.sum(|count| count.done),
            names.values().sum::<u64>(),
            report.sum(|count| count.bytes) / 1_000_000,
            report.transfers.longest_ms,
            report.verdict(),
            failed(&names)
        );
    }
    for report in reports.iter().filter(|report| !report.is_right()) {
        let _ = write!(table, "\n{report}");
    }
    table
}

/// Writes one report per line.
pub(crate) fn write_json(path: &Path, reports: &[Report]) -> io::Result<()> {
    let lines = reports.iter().map(serde_json::to_string).collect::<Result<Vec<_>, _>>()?;
    std::fs::write(path, lines.join("\n") + "\n")
}
