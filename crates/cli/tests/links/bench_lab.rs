//! `polyrail bench --lab`: needs root or user namespaces, and is skipped without.

use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use polyrail_lab::{Lab, availability};
use polyrail_report::{BenchReport, LimitKind};
use rustix::process::{Pid, Signal, kill_process};

use crate::fit;

/// Whether a lab can be built here; the test is skipped otherwise.
fn is_possible() -> bool {
    let Err(error) = availability() else { return true };
    let help = error.help().unwrap_or_default();
    let command = "sudo -E cargo test -p polyrail-cli --test links bench_lab";
    polyrail_skip::skip(format!("{error}; {help}"), command);
    false
}

fn report(options: &str) -> BenchReport {
    let output = Command::new(env!("CARGO_BIN_EXE_polyrail"))
        .arg("bench")
        .args(options.split_whitespace())
        .args(["--json", "-", "--rounds", "2"])
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{options}: {errors}");
    let report = serde_json::from_slice(&output.stdout).unwrap();
    fit::fits("bench", &report, options);
    serde_json::from_value(report).unwrap()
}

#[test]
fn shaped_rails_carry_what_they_are_shaped_to_and_are_named_as_the_limit() {
    if !is_possible() {
        return;
    }
    // Slow enough that a busy machine keeps up; small chunks, so that both rails end together.
    let options = "--lab 200mbit,100mbit --sizes 4MiB --depth 4 --chunk 64KiB --time 2s";
    let report = report(&format!("{options} --against alone"));
    let lab = report.lab.unwrap();
    assert_eq!(lab.rails_bits_per_s, [Some(200_000_000), Some(100_000_000)]);
    let result = &report.results[0];
    assert!(result.verified);
    // Above the line rate nothing is possible, except for what a bucket lets through at once.
    assert!((0.015..0.042).contains(&result.gb_per_s), "{} GB/s", result.gb_per_s);
    assert_eq!(result.limit.verdict, LimitKind::Network, "{}", result.limit);
    assert!(result.limit.because.contains("2 rails in the lab"), "{}", result.limit);
    let names: Vec<&str> = result.rails.iter().map(|rail| rail.name.as_str()).collect();
    assert_eq!(names, ["rail0", "rail1"]);
    let faster = result.rails[0].share;
    assert!((0.5..0.85).contains(&faster), "the faster rail carries more: {faster}");
    let alone = result.alone.as_ref().unwrap();
    assert_eq!(alone.rails.len(), 2);
    assert!(alone.rails[0].gb_per_s > alone.rails[1].gb_per_s);
}

#[test]
fn a_lab_made_for_a_run_is_gone_after_it_even_when_the_run_fails() {
    if !is_possible() {
        return;
    }
    let child = Command::new(env!("CARGO_BIN_EXE_polyrail"))
        .args(["bench", "--lab", "1gbit", "--rails", "nosuch3", "--sizes", "8", "--iters", "1"])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let name = format!("bench-{}", child.id());
    let output = child.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{errors}");
    assert!(errors.contains("nosuch3"), "{errors}");
    let labs = Lab::list().unwrap();
    assert!(labs.iter().all(|lab| lab.name != name), "{name} is still there");
}

/// Whoever closes the window has no more use for the lab.
#[test]
fn a_lab_made_for_a_run_is_gone_when_the_terminal_ends() {
    if !is_possible() {
        return;
    }
    // Whoever runs the tests by nohup has this signal ignored.
    let mut child = Command::new("env")
        .args(["--default-signal=HUP", env!("CARGO_BIN_EXE_polyrail"), "bench", "--lab", "1gbit"])
        .args(["--sizes", "64KiB", "--time", "10min", "--no-json"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let name = format!("bench-{}", child.id());
    let is_there = || Lab::list().unwrap().iter().any(|lab| lab.name == name);
    let until = Instant::now() + Duration::from_secs(60);
    while !is_there() {
        assert!(Instant::now() < until, "the lab does not come");
        // It looks again: another process builds it.
        thread::sleep(Duration::from_millis(10));
    }
    kill_process(Pid::from_child(&child), Signal::HUP).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(!is_there(), "{name} is still there");
}
