//! `polyrail analyze` as people call it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use polyrail_profile::PathKind;
use polyrail_profile::synthetic::Machine;
use serde_json::Value;
use tempfile::TempDir;

fn analyze(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_polyrail"));
    command.arg("analyze").args(arguments).output().unwrap()
}

fn machine() -> Machine {
    Machine { endpoints: 3, paths: vec![PathKind::Nccl], repetitions: 6, ..Machine::default() }
}

fn profile(machine: &Machine) -> (TempDir, String) {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("profile");
    machine.profile(&dir).unwrap();
    let dir = dir.to_str().unwrap().to_owned();
    (root, dir)
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn a_profile_becomes_tables_json_and_a_report() {
    let (root, dir) = profile(&machine());
    let output = analyze(&[&dir]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let tables = text(&output.stdout);
    assert!(tables.contains("3 endpoints, 186 configurations"), "{tables}");
    assert!(tables.contains("gpu0 > gpu1  nccl") && tables.contains("256KiB"), "{tables}");
    assert!(tables.contains("asymmetric: gpu1 > gpu0 over nccl, from 1MiB on"), "{tables}");
    assert!(output.stderr.is_empty());

    let report = root.path().join("report.html");
    let output = analyze(&[&dir, "--json", "--html", report.to_str().unwrap()]);
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["schema_version"], 1);
    assert_eq!(json["metrics"][0]["metric"], "t_gpu");
    assert!(json["configurations"][0]["median_ns"].is_f64());
    assert!(json["comparison"].is_null());
    assert!(fs::read_to_string(&report).unwrap().starts_with("<!doctype html>"));
    assert_eq!(text(&output.stderr).trim_end(), report.to_str().unwrap());
}

#[test]
fn a_slower_run_ends_with_one() {
    let (_base_root, base) = profile(&machine());
    let (_root, dir) = profile(&Machine { seed: 2, slowness: 1.2, ..machine() });
    let output = analyze(&[&dir, "--compare", &base]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stdout).contains(": slower: 0 same"), "{}", text(&output.stdout));
    let output = analyze(&[&base, "--compare", &dir]);
    assert_eq!(output.status.code(), Some(0), "faster is no failure");
}

#[test]
fn a_simulator_is_judged_and_may_fail() {
    let (root, dir) = profile(&machine());
    let file = root.path().join("predictions.csv");
    fs::write(&file, "src,dst,size_bytes,predicted_time_ns\n*,*,8,7000\n").unwrap();
    let file = file.to_str().unwrap();
    let output = analyze(&[&dir, "--predictions", file]);
    assert_eq!(output.status.code(), Some(0));
    let tables = text(&output.stdout);
    assert!(tables.contains("0 right, 0 too fast, 6 too slow"), "{tables}");
    assert!(tables.contains("latency-bound"), "{tables}");
    let output = analyze(&[&dir, "--predictions", file, "--max-error", "10"]);
    assert_eq!(output.status.code(), Some(1));
    let output = analyze(&[&dir, "--predictions", file, "--max-error", "50"]);
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn exports_go_to_a_folder_for_each_simulator() {
    let (root, dir) = profile(&machine());
    let out = root.path().join("out");
    let simulators = ["astra-sim", "chakra", "simai", "vidur"];
    let mut arguments = vec![dir.as_str(), "--out", out.to_str().unwrap()];
    simulators.iter().for_each(|name| arguments.extend(["--export", name]));
    let output = analyze(&arguments);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let written: Vec<PathBuf> = text(&output.stderr).lines().map(PathBuf::from).collect();
    assert_eq!(written.len(), 3 + 3 + 3 + 1);
    assert!(written.iter().all(|path| path.starts_with(&out) && path.is_file()));
    let output = analyze(&[&dir, "--export", "vidur"]);
    assert!(output.status.success());
    assert!(Path::new(&dir).join("export/vidur/send_recv.csv").is_file());
}

#[test]
fn bad_input_is_named_with_its_place_and_what_helps() {
    let refused = |arguments: &[&str]| {
        let output = analyze(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(output.stdout.is_empty());
        text(&output.stderr).to_owned()
    };
    let root = tempfile::tempdir().unwrap();
    let foreign = refused(&[root.path().to_str().unwrap()]);
    assert!(foreign.contains("is not a profile folder: it has no plan.json\nhelp: "), "{foreign}");

    let (_root, dir) = profile(&machine());
    let path = Path::new(&dir).join("samples.csv");
    let good = fs::read_to_string(&path).unwrap();
    fs::write(&path, good.replacen(",ok,", ",perhaps,", 1)).unwrap();
    let cell = refused(&[&dir]);
    assert!(
        cell.contains("samples.csv:2, column verify: `perhaps`; allowed: off, ok, failed"),
        "{cell}"
    );
    fs::write(&path, &good).unwrap();

    let file = root.path().join("p.csv");
    fs::write(&file, "src,dst,bytes\n").unwrap();
    let columns = refused(&[&dir, "--predictions", file.to_str().unwrap()]);
    assert!(columns.contains("missing column size_bytes, predicted_time_ns"), "{columns}");
    fs::write(&file, "src,dst,size_bytes,predicted_time_ns\n0,7,8,1\n").unwrap();
    let pairs = refused(&[&dir, "--predictions", file.to_str().unwrap()]);
    assert!(pairs.contains("p.csv:2, column dst: `7`; allowed: 0 to 2"), "{pairs}");
    let metric = refused(&[&dir, "--metric", "bandwidth"]);
    assert!(metric.contains("is no time; allowed: t_gpu"), "{metric}");
    let absent = refused(&[&dir, "--path", "tcp"]);
    assert!(absent.contains("no sample has a time over tcp"), "{absent}");
}

#[test]
fn wrong_bytes_end_with_five() {
    let (_root, dir) = profile(&machine());
    let path = Path::new(&dir).join("samples.csv");
    let text_before = fs::read_to_string(&path).unwrap();
    fs::write(&path, text_before.replacen(",ok,", ",failed,", 1)).unwrap();
    let output = analyze(&[&dir]);
    assert_eq!(output.status.code(), Some(5));
    assert!(text(&output.stdout).contains("warning: 1 transfers brought wrong bytes"));
}
