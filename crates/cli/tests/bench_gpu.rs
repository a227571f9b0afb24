//! What `polyrail bench` says of memory and ways, on machines without a GPU.

use std::process::{Command, Output};

use polyrail_report::{BenchReport, exit};

/// No machine has so many devices: with a driver and without one it does not exist.
const NO_DEVICE: &str = "cuda:999";

fn bench(options: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_polyrail"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("POLYRAIL_") {
            command.env_remove(name);
        }
    }
    command.arg("bench").args(options.split_whitespace()).output().unwrap()
}

fn report(options: &str) -> BenchReport {
    let quick = "--iters 3 --rounds 2 --warmup 5ms --json -";
    let output = bench(&format!("{options} {quick}"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{options}: {errors}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn memory_that_is_not_there_is_an_error_of_the_environment_at_either_end() {
    for options in [
        format!("--mem {NO_DEVICE}"),
        format!("--peer-mem {NO_DEVICE}"),
        format!("--peer-mem {NO_DEVICE} --one-process"),
        format!("--listen 127.0.0.1:0 --mem {NO_DEVICE}"),
    ] {
        let output = bench(&format!("{options} --sizes 8 --iters 1"));
        let message = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(exit::ENVIRONMENT.into()), "{options}: {message}");
        let reason = message.contains("no CUDA driver: ") || message.contains("cuda:999 does not");
        assert!(reason && message.contains("help: "), "{options}: {message}");
        assert!(output.stdout.is_empty(), "{options}");
    }
}

#[test]
fn wrong_places_and_combinations_are_refused_with_what_is_allowed() {
    for (options, parts) in [
        (
            "--mem gpu",
            vec!["'gpu'", "--mem", "allowed: host, or a device by its number, like cuda:0"],
        ),
        ("--peer-mem cuda:x", vec!["'cuda:x'", "--peer-mem", "like cuda:0"]),
        ("--listen --peer-mem host", vec!["--peer-mem", "cannot be used with"]),
        ("--connect 127.0.0.1:9 --one-process", vec!["--one-process", "cannot be used with"]),
        ("--dry-run", vec!["--explain-path"]),
        ("--path sideways", vec!["path = `sideways`", "allowed: auto, tcp"]),
    ] {
        let output = bench(options);
        let message = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(exit::USAGE.into()), "{options}: {message}");
        assert!(parts.iter().all(|part| message.contains(part)), "{options}: {message}");
    }
}

#[test]
fn the_way_is_explained_without_moving_anything() {
    let output = bench("--explain-path --dry-run --sizes 8,1MiB");
    let text = String::from_utf8(output.stdout).unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), errors.as_ref()), (Some(0), ""), "{text}");
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "path of 8B, 1MiB: tcp");
    assert_eq!(lines[1], "  peer copy: not possible: neither end is a device's memory");
    assert_eq!(lines[2], "  tcp: possible: nothing better is");
    assert_eq!(lines.len(), 3, "nothing was measured: {text}");
}

#[test]
fn the_report_names_the_memory_of_both_ends_and_the_way() {
    let report = report("--sizes 4KiB");
    assert_eq!(report.memory.unwrap().text(), "host");
    assert_eq!(report.peer.unwrap().memory.unwrap().text(), "host");
    let path = report.results[0].path.as_ref().unwrap();
    assert_eq!((path.taken.as_str(), path.considered.len()), ("tcp", 2));
}

#[test]
fn one_process_measures_itself_and_counts_its_time_once() {
    let report = report("--one-process --sizes 256KiB --both-directions");
    let result = &report.results[0];
    assert!(result.verified && result.verified_bytes > 0 && result.bidir);
    assert!(result.cpu_seconds_per_gb.unwrap() > 0.0);
    assert!(result.samples.iter().all(|sample| sample.peer.cpu_seconds == 0.0));
    assert!(result.samples.iter().all(|sample| sample.peer.rx_bytes > 0));
}
