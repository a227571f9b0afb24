//! Journals of an earlier version: their format stays, and a run resumes from them.

use std::fs;

use serde_json::{Value, json};

use crate::common::polyrail;

/// The command never prints the results that the journal below has for the second cell.
const EXPERIMENT: &str = "name: old\ncommand: [sh, -c, 'echo 1{kind}']\nfigure: '([0-9]+)'\nbetter: higher\n\
                          factors:\n  kind: [0, 1]\nblocks: 8\n";
const CELLS: &str = r#"{"cells":["baseline","kind=1"],"experiment":{"better":"higher","blocks":8,"design":"grid","factors":[{"baseline":0,"kind":"word","levels":["0","1"],"name":"kind"}],"figure":"([0-9]+)","measure":{"command":["sh","-c","echo 1{kind}"]},"name":"old","nics":[],"precision":0.02,"seed":42,"settings":[]},"schema_version":1}
{"block":0,"cell":1,"figure":70.0,"levels":{"kind":"1"},"position":0,"seconds":0.0059132,"started_unix_ms":1796074331588,"verified":"not_reported"}
{"block":0,"cell":0,"figure":10.0,"levels":{"kind":"0"},"position":1,"seconds":0.006434322,"started_unix_ms":1796074331594,"verified":"not_reported"}
{"ended_after_blocks":1}
{"resumed_unix_ms":1796074331600}
{"block":1,"cell":1,"figure":80.0,"levels":{"kind":"1"},"position":0,"seconds":0.0059132,"started_unix_ms":1796074331601,"verified":"not_reported"}
{"block":1,"cell":0,"figure":10.0,"levels":{"kind":"0"},"position":1,"seconds":0.006434322,"started_unix_ms":1796074331602,"verified":"not_reported"}
{"block":2,"cell":1,"figure":90.0,"levels":{"kind":"1"},"position":0,"seconds":0.0059132,"started_unix_ms":1796074331603,"verified":"not_reported"}
"#;

#[test]
fn an_experiment_goes_on_with_cells_of_an_earlier_program() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("old-results/cells.jsonl");
    fs::create_dir(file.parent().unwrap()).unwrap();
    fs::write(folder.path().join("x.yml"), EXPERIMENT).unwrap();
    fs::write(&file, format!("{CELLS}{{\"block\":2,\"ce")).unwrap();
    let mut command = polyrail(["experiment", "run", "x.yml", "--resume", "--json"]);
    let output = command.current_dir(folder.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    // Block 2 was half done and is measured again.
    let figure = &report["cells"][1]["figure"];
    let found = [&report["blocks"], &figure["min"], &figure["max"]].map(|it| it.as_f64().unwrap());
    assert_eq!(found, [8.0, 11.0, 80.0], "{report:#}");
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.starts_with(CELLS), "what was measured stays: {text}");
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    assert_eq!(lines.count(), CELLS.lines().count() + 1 + 6 * 2, "{text}");
}

#[test]
fn a_sweep_goes_on_with_the_journal_of_an_earlier_program() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("sweep.jsonl");
    let cpus = fs::read_to_string("/proc/cpuinfo").unwrap();
    let first = json!({
        "bench": "--sizes 8 --iters 2 --rails 1",
        "cells": "baseline; channels=1",
        "command": "sweep",
        "cpus": cpus.lines().filter(|line| line.starts_with("processor")).count(),
        "host": fs::read_to_string("/proc/sys/kernel/hostname").unwrap().trim(),
        "rounds": 2,
        "sweep_journal": 1,
        "version": env!("CARGO_PKG_VERSION"),
        "with_budget": false,
    });
    let blocks = r#"{"block":[{"at_s":0.25,"cell":0,"figure":{"Ok":10.0}},{"at_s":0.5,"cell":1,"figure":{"Ok":8.0}}],"ended_s":0.75}
{"block":[{"at_s":1.0,"cell":1,"figure":{"Ok":9.0}},{"at_s":1.25,"cell":0,"figure":{"Ok":12.0}}],"ended_s":1.5}
"#;
    let journal = format!("{first}\n{blocks}");
    fs::write(&file, &journal).unwrap();
    let bench = first["bench"].as_str().unwrap();
    let words = ["experiment", "sweep", "--over", "channels=1", "--rounds", "2", "--bench", bench];
    let mut command = polyrail(words);
    command.args(["--json", "--journal"]).arg(&file);
    let output = command.output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    assert!(stderr.contains("goes on with 4 figures of"), "{stderr}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["blocks"], &report["keep_default"]), (&2.into(), &true.into()));
    for (cell, least, most) in [(0, 10.0, 12.0), (1, 8.0, 9.0)] {
        let figure = &report["cells"][cell]["figure"];
        // A sweep stores logarithms, so the last bits change.
        let is_near =
            |name: &str, wanted: f64| (figure[name].as_f64().unwrap() / wanted - 1.0).abs() < 1e-9;
        assert!(is_near("min", least) && is_near("max", most), "{report:#}");
    }
    assert_eq!(fs::read_to_string(&file).unwrap(), journal, "nothing was left to measure");
}
