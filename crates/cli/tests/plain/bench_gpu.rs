//! Messages of `polyrail bench` about memory and paths, on machines without a GPU.

use std::io::{Read, Write};
use std::process::{Output, Stdio};

use polyrail_report::{BenchReport, exit};

use crate::common::{self, polyrail};

/// No machine has this many devices, so this one exists neither with a driver nor without.
const NO_DEVICE: &str = "cuda:999";

fn bench(options: &str) -> Output {
    polyrail(["bench"]).args(options.split_whitespace()).output().unwrap()
}

fn report(options: &str) -> BenchReport {
    let quick = "--iters 3 --rounds 2 --warmup 5ms --json -";
    let output = bench(&format!("{options} {quick}"));
    serde_json::from_value(common::report("bench", 0, &output, options)).unwrap()
}

#[test]
fn memory_that_is_not_there_is_an_error_of_the_environment_at_either_end() {
    for options in [
        format!("--mem {NO_DEVICE} --sizes 8 --iters 1"),
        format!("--peer-mem {NO_DEVICE} --sizes 8 --iters 1"),
        format!("--peer-mem {NO_DEVICE} --one-process --sizes 8 --iters 1"),
        format!("--listen 127.0.0.1:0 --mem {NO_DEVICE}"),
    ] {
        let output = bench(&options);
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
            vec!["`gpu`", "--mem", "allowed: host, or a device by its number, like cuda:0"],
        ),
        ("--peer-mem cuda:x", vec!["`cuda:x`", "--peer-mem", "like cuda:0"]),
        ("--listen --peer-mem host", vec!["--peer-mem", "cannot be used with"]),
        ("--connect 127.0.0.1:9 --one-process", vec!["--one-process", "cannot be used with"]),
        ("--explain-path all", vec!["--explain-path", "`all`", "only"]),
        ("--blocks 0x16KiB", vec!["--blocks", "`0x16KiB`", "1 to 1048576"]),
        ("--blocks 4", vec!["--blocks", "16384x16KiB"]),
        ("--blocks 4x1KiB --segments 2", vec!["--segments", "cannot be used with"]),
        ("--channels-list 1,300", vec!["300", "1 to 256"]),
        ("--channels-list 2 --latency --sizes 8", vec!["--channels-list", "without --latency"]),
        ("--against nccl", vec!["--against `nccl`", "--mem cuda:N"]),
        ("--against cuda", vec!["--against `cuda`", "--mem cuda:N"]),
        ("--against nccl --op read --mem cuda:0", vec!["--op `read`", "write with --against"]),
        ("--against cuda --bidir --mem cuda:0", vec!["--against `cuda`", "without --bidir"]),
        ("--against raw --one-process", vec!["--against `raw`", "without --one-process"]),
        ("--nccl-modes 4", vec!["`4`", "--nccl-modes", "p2p, or threads x sockets like 4x4"]),
        ("--path sideways", vec!["--path <WAY> `sideways`", "allowed: auto, device, shared, tcp"]),
    ] {
        let output = bench(options);
        let message = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(exit::USAGE.into()), "{options}: {message}");
        assert!(parts.iter().all(|part| message.contains(part)), "{options}: {message}");
    }
}

#[test]
fn a_machine_without_nccl_says_so_before_anything_is_measured() {
    let library = "libnccl-not-here.so.2";
    let output = bench(&format!("--mem {NO_DEVICE} --against nccl --nccl-lib {library}"));
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(exit::ENVIRONMENT.into()), "{message}");
    for part in ["no NCCL: ", library, "help: install NCCL"] {
        assert!(message.contains(part), "{part}: {message}");
    }
}

#[test]
fn a_process_for_nccl_replies_why_it_can_not_begin_and_ends() {
    let mut child = polyrail(["bench", "--nccl-rank", "--mem", "host"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let layout = r#"{"size":8,"segments":1,"slots":1}"#;
    let task = format!(
        r#"{{"rank":0,"layout":{layout},"bidir":false,"verify":"full","seed":1,"library":null,"id":null}}"#
    );
    let mut orders = child.stdin.take().unwrap();
    writeln!(orders, "{task}").unwrap();
    // The process's input stays open until it has exited by itself: closing it would end the process, perhaps before
    // its reply.
    let mut replies = String::new();
    child.stdout.take().unwrap().read_to_string(&mut replies).unwrap();
    let output = child.wait_with_output().unwrap();
    drop(orders);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let reply: serde_json::Value = serde_json::from_str(&replies).unwrap();
    assert_eq!((&reply["reply"], &reply["code"]), (&"failed".into(), &exit::USAGE.into()));
    assert!(reply["message"].as_str().unwrap().contains("--mem cuda:N"), "{reply}");
}

#[test]
fn scattered_blocks_are_measured_in_turn_with_one_piece() {
    let report = report("--blocks 64x4KiB");
    let result = &report.results[0];
    assert_eq!((result.size_bytes, result.segments), (64 << 12, 64));
    let baseline = &result.baselines[0];
    assert_eq!((baseline.name.as_str(), baseline.samples_gb_per_s.len()), ("contiguous", 2));
    assert!(baseline.ratio > 0.0 && baseline.spread_ratio.min <= baseline.spread_ratio.max);
    assert!(baseline.gb_per_s > 0.0 && baseline.cpu_seconds_per_gb.unwrap() > 0.0);
}

#[test]
fn numbers_of_channels_are_measured_in_turn() {
    let report = report("--channels-list 1,3 --rails 1 --set sockets=2 --sizes 1MiB");
    let rows = &report.results[0].sweep;
    let found: Vec<_> = rows.iter().map(|row| (row.channels, row.flows)).collect();
    assert_eq!(found, [(1, 2), (3, 6)]);
    assert!(rows.iter().all(|row| row.gb_per_s > 0.0 && row.cpu_seconds_per_gb.unwrap() > 0.0));
    assert!(report.results[0].baselines.is_empty());
}

#[test]
fn the_way_is_explained_without_moving_anything() {
    let output = bench("--explain-path only --sizes 8,1MiB");
    let text = String::from_utf8(output.stdout).unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), errors.as_ref()), (Some(0), ""), "{text}");
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "path of 8B, 1MiB: tcp");
    assert_eq!(lines[1], "  peer copy: not possible: neither end is a device's memory");
    // Both ends are on this host, yet bench measures rails.
    let single = "  single copy: not possible: the setting path says device (bench measures rails unless told \
                  otherwise; --path auto allows the other ways)";
    assert_eq!(lines[2], single);
    assert_eq!(lines[3], "  tcp: possible: no faster way is");
    assert_eq!(lines.len(), 4, "nothing was measured: {text}");
}

#[test]
fn a_single_copy_is_measured_where_it_is_asked_for() {
    let report = report("--path auto --sizes 1MiB");
    let path = report.results[0].path.as_ref().unwrap();
    assert_eq!(path.taken, "single copy", "{}", path.why);
    assert!(report.results[0].verified && report.results[0].verified_bytes > 0);
}

#[test]
fn shared_memory_is_measured_between_host_memories_too_where_it_is_asked_for() {
    let report = report("--path shared --sizes 1MiB");
    let path = report.results[0].path.as_ref().unwrap();
    assert_eq!((&*path.taken, &*path.why), ("shared memory", "the setting path says so"));
    assert!(report.results[0].verified && report.results[0].verified_bytes > 0);
}

#[test]
fn the_report_names_the_memory_of_both_ends_and_the_way() {
    let report = report("--sizes 4KiB");
    assert_eq!(report.memory.unwrap().text(), "host");
    assert_eq!(report.peer.unwrap().memory.unwrap().text(), "host");
    let path = report.results[0].path.as_ref().unwrap();
    assert_eq!((path.taken.as_str(), path.considered.len()), ("tcp", 3));
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
