//! `polyrail experiment sweep` and `autotune` from the command line, over short runs of `bench`.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use polyrail_config::Config;
use serde_json::Value;

use crate::common::{good, polyrail, run, succeeded};

/// The shortest possible bench: its results don't matter here.
const BENCH: &str =
    "--sizes 64KiB --iters 2 --depth 1 --warmup 1ms --rounds 1 --verify off --rails 1";

#[test]
fn a_sweep_measures_every_cell_with_the_default_among_them_and_maps_them() {
    let words = [
        "experiment",
        "sweep",
        "--bench",
        BENCH,
        "--over",
        "channels=1,2",
        "--over",
        "chunk_bytes=256KiB",
        "--rounds",
        "2",
        "--json",
    ];
    let output = succeeded(run(&words));
    let said = String::from_utf8(output.stderr).unwrap();
    let first = said.lines().next().unwrap_or_default();
    let begins =
        first.starts_with("polyrail: sweep: ") && first.contains(" cells × 2 rounds; less: ");
    assert!(begins && said.contains("polyrail: a cell took "), "{said}");
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    let cells = json["cells"].as_array().unwrap();
    // The defaults join the named values.
    let channels = cells.iter().map(|cell| cell["levels"]["channels"].as_str().unwrap());
    let mut channels: Vec<&str> = channels.collect();
    channels.sort_unstable();
    channels.dedup();
    assert_eq!(cells.len(), 2 * channels.len(), "{json:#}");
    assert!(cells.iter().all(|cell| cell["measured"] == 2), "{json:#}");
    assert_eq!(json["heat_maps"].as_array().unwrap().len(), 1);
    let sensitivity = json["sensitivity"].as_array().unwrap();
    assert_eq!(sensitivity.len(), 2);
    assert!(sensitivity.iter().all(|one| one["noise_percent"].is_number()), "{json:#}");
    let is_default = json["best"]["is_default"].as_bool().unwrap();
    assert_eq!(json["proof"].is_null(), is_default, "{json:#}");
}

#[test]
fn the_default_alone_is_nothing_to_compare() {
    let default = "chunk_bytes=512KiB";
    let output = run(&["experiment", "sweep", "--over", default, "--rounds", "1"]);
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{told}");
    assert!(told.contains(&format!("`{default}` has nothing but the default")), "{told}");
    assert!(told.contains("; allowed: ") && told.contains("config help chunk_bytes"), "{told}");
}

#[test]
fn what_is_plainly_worse_is_not_recommended_and_no_file_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("best.yml");
    // Chunks of 4 KiB cost 16 MiB far more calls than the default's chunks.
    let bench = "--sizes 16MiB --iters 2 --depth 1 --warmup 1ms --rounds 1 --verify off --rails 1";
    let text = good(&[
        "experiment",
        "sweep",
        "--bench",
        bench,
        "--over",
        "chunk_bytes=4KiB",
        "--rounds",
        "3",
        "--output",
        file.to_str().unwrap(),
    ]);
    assert!(text.contains("keep the default"), "{text}");
    assert!(!file.exists());
}

/// With too little measured to choose, nothing is compared: the run takes no longer than its budget.
#[test]
fn a_time_too_short_for_all_cells_is_refused_and_told_how_much_is_enough() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("best.yml");
    let words = [
        "experiment",
        "autotune",
        "--budget",
        "1s",
        "--bench",
        BENCH,
        "--output",
        file.to_str().unwrap(),
    ];
    for more in [&[][..], &["--json"]] {
        let output = run(&[&words[..], more].concat());
        let text = String::from_utf8(output.stderr).unwrap();
        // A script must not take this for a result.
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(output.stdout.is_empty() && !file.exists(), "{text}");
        assert!(text.contains("--budget <TIME>: `1s` is too short"), "{text}");
        assert!(text.contains(" of 96 took ") && text.contains("help: give --budget "), "{text}");
    }
}

#[test]
fn what_wins_is_written_with_its_proof_and_every_command_takes_it() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("best.yml");
    // The default sleeps between short messages. This preset polls, so it answers at once, and the caller drives the
    // engine.
    let words = [
        "experiment",
        "autotune",
        "--budget",
        "20s",
        "--bench",
        "--sizes 8 --latency --time 60ms --warmup 20ms --rounds 1 --rails 1 --verify off",
        "--over",
        "preset=latency",
        "--output",
        file.to_str().unwrap(),
        "--json",
    ];
    let json: Value = serde_json::from_str(&good(&words)).unwrap();
    assert_eq!(json["better"], "lower");
    assert_eq!(json["figure"], "/results/0/latency_us/p50");
    match json["keep_default"].as_bool().unwrap() {
        true => assert!(!file.exists(), "{json:#}"),
        false => {
            let text = fs::read_to_string(&file).unwrap();
            assert!(
                text.contains("# Against the default, in a fresh run of pairs: −")
                    && text.contains("better"),
                "{text}"
            );
            let config = Config::builder().yaml(&text, "best.yml").unwrap().build().unwrap();
            assert_eq!(config.preset.name(), "latency");
            good(&["config", "show", "--config", file.to_str().unwrap()]);
        }
    }
}

/// The blocks of results in a journal, after its plan.
fn blocks(journal: &Path) -> Vec<Value> {
    let text = fs::read_to_string(journal).unwrap_or_default();
    let lines = text.split_inclusive('\n').filter(|line| line.ends_with('\n')).skip(1);
    lines.map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn an_interrupted_sweep_goes_on_with_what_it_measured_and_no_other_plan_does() {
    let folder = tempfile::tempdir().unwrap();
    let journal = folder.path().join("sweep.jsonl");
    let file = journal.to_str().unwrap();
    let sweep = |over: &str, more: &[&str]| {
        let mut command = polyrail([
            "experiment",
            "sweep",
            "--bench",
            BENCH,
            "--over",
            over,
            "--rounds",
            "6",
            "--journal",
            file,
        ]);
        command.args(more).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    };
    let child = sweep("channels=1,2", &[]).spawn().unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    while blocks(&journal).len() < 2 {
        assert!(Instant::now() < until, "no block is measured");
        // Polls: the sweep reports its blocks only in the file.
        thread::sleep(Duration::from_millis(5));
    }
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(130), "{stderr}");
    assert!(stderr.contains("the same command goes on"), "{stderr}");
    let before = blocks(&journal);
    // Half a line, as after a power cut during a write.
    let mut text = fs::read_to_string(&journal).unwrap();
    text.push_str("{\"block\":[{\"ce");
    fs::write(&journal, text).unwrap();

    let output = sweep("channels=1,8", &[]).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    let fault = "is of another sweep: cells was `… channels=2`, and is `… channels=8` now";
    assert!(stderr.contains(fault), "{stderr}");

    let output = sweep("channels=1,2", &["--json"]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let stderr = String::from_utf8(output.stderr).unwrap();
    let figures: usize = before.iter().map(|it| it["block"].as_array().unwrap().len()).sum();
    let said = format!("polyrail: goes on with {figures} figures of {file}");
    assert!(stderr.contains(&said), "{stderr}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let after = blocks(&journal);
    assert_eq!(after[..before.len()], before, "what was measured stays");
    assert!(after.len() >= 6 && report["blocks"] == 6, "{report:#}");
    let cells = report["cells"].as_array().unwrap();
    assert!(cells.iter().all(|cell| cell["measured"] == 6), "{report:#}");
    // The results are those of the journal.
    let of_default = after[..6].iter().flat_map(|it| it["block"].as_array().unwrap());
    let of_default =
        of_default.filter(|it| it["cell"] == 0).map(|it| it["figure"]["Ok"].as_f64().unwrap());
    let least = of_default.fold(f64::INFINITY, f64::min);
    // Reading a number from JSON may change its last bit.
    let shown = cells[0]["figure"]["min"].as_f64().unwrap();
    assert!((shown / least - 1.0).abs() < 1e-9, "{least}: {report:#}");
}

#[test]
fn a_sweep_that_is_stopped_in_its_first_block_says_that_nothing_is_kept_and_what_would_keep_it() {
    let bench = "--sizes 64KiB --time 1s --rounds 1 --verify off --rails 1";
    let mut command =
        polyrail(["experiment", "sweep", "--bench", bench, "--over", "channels=1,2,4"]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut told = BufReader::new(child.stderr.take().unwrap()).lines();
    assert!(told.next().unwrap().unwrap().starts_with("polyrail: sweep: "));
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    let told: Vec<String> = told.map(Result::unwrap).collect();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{told:?}");
    let says = "polyrail: stopped in the first block, so nothing is kept; with --journal FILE ";
    assert!(told.iter().any(|line| line.starts_with(says)), "{told:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("stopped in the first block: nothing is kept of it"), "{text}");
}

#[test]
fn a_file_that_is_no_journal_is_neither_continued_nor_changed() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("notes.txt");
    fs::write(&file, "not to be lost\n").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    let words =
        ["experiment", "sweep", "--over", "channels=1", "--journal", file.to_str().unwrap()];
    let output = run(&words);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    let said = format!("the file {} is no journal of a sweep", file.display());
    assert!(stderr.contains(&said), "{stderr}");
    assert_eq!(fs::read_to_string(&file).unwrap(), "not to be lost\n");
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o7777, 0o644);
}

#[test]
fn wrong_settings_and_workloads_are_refused_before_anything_runs() {
    for (words, fault) in [
        (&["experiment", "sweep", "--over", "chanels=1"][..], "chanels"),
        (&["experiment", "sweep", "--over", "channels"], "has no `=`"),
        (&["experiment", "sweep", "--over", "chunk_bytes=1"], "`chunk_bytes=1`"),
        (&["experiment", "sweep", "--bench", "--size 8"], "is refused by bench"),
        (&["experiment", "sweep", "--bench", "--json x"], "gives itself"),
        (&["experiment", "sweep", "--over", "channels=1", "--over", "channels=2"], "twice"),
        (
            &["experiment", "sweep", "--over", "channels=1", "--bench", "--set channels=2"],
            "bench gives `channels`, which is varied as well",
        ),
        (&["experiment", "sweep", "--budget", "1min", "--rounds", "2"], "--rounds"),
        (&["experiment", "autotune", "--budget", "5 parsecs"], "--budget"),
        (&["experiment", "sweep", "--budget", "0s"], "1s to 24h"),
        (&["experiment", "autotune", "--resume"], "--journal"),
    ] {
        let output = run(words);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{words:?}: {stderr}");
        assert!(stderr.contains(fault), "{words:?}: {stderr}");
    }
}
