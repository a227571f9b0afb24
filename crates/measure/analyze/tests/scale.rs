//! Cost of analysing a large profile. Has its own process, because it measures the memory of the process.

use std::fs;

use polyrail_analyze::{Analysis, Options, html};
use polyrail_profile::synthetic::Machine;
use polyrail_profile::{Folder, PathKind};

/// Peak memory of this process, in bytes.
fn peak_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    let kib: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    kib * 1_024
}

/// CPU time of this thread, in seconds; excludes tests that run at the same time.
fn cpu_seconds() -> f64 {
    let text = fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    text.split_whitespace().next().unwrap().parse::<f64>().unwrap() / 1e9
}

#[test]
fn a_hundred_thousand_samples_take_seconds_and_not_the_memory_of_the_machine() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("profile");
    let paths = vec![PathKind::CopyEngine, PathKind::Nccl];
    let machine = Machine { paths, repetitions: 135, ..Machine::default() };
    drop(machine.record(&dir).unwrap());

    let started = cpu_seconds();
    let analysis = Analysis::of(&Folder::open(&dir).unwrap(), Options::default()).unwrap();
    let analysed = cpu_seconds() - started;
    let report = html(&analysis);
    let reported = cpu_seconds() - started;
    let peak = peak_bytes();
    println!(
        "{} samples of {} configurations: analysed in {:.2} s, with the report of {:.1} MB in {:.2} s; \
         at most {:.0} MB of memory",
        analysis.counts.taken,
        analysis.configurations.len(),
        analysed,
        report.len() as f64 / 1e6,
        reported,
        peak as f64 / 1e6
    );
    assert!(analysis.counts.taken >= 100_000);
    assert!(reported < 5.0, "{reported} s");
    assert!(peak < 500_000_000, "{peak}");
}
