//! `polyrail profile` as users run it, on host memory.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use polyrail_profile::{Folder, Metric, PathKind, State, Verify};
use tempfile::TempDir;

use crate::common::golden::assert_golden;
use crate::common::{PROGRAM, polyrail, refusal, refusals, succeeded, text};

fn profile(arguments: &[&str]) -> Output {
    polyrail(["profile", "--gpus", "none"]).args(arguments).output().unwrap()
}

/// A folder that does not exist yet.
fn folder() -> (TempDir, PathBuf) {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("profile");
    (root, dir)
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn a_whole_profile_of_the_hosts_memory_is_one_that_analyze_reads() {
    let (root, dir) = folder();
    let output =
        succeeded(profile(&["--out", path(&dir), "--reps", "3", "--sizes", "1,3,4KiB,1MiB,2MiB"]));
    assert!(text(&output.stdout).contains(" 0 left, 0 wrong"), "{}", text(&output.stdout));

    let folder = Folder::open(&dir).unwrap();
    assert_eq!(folder.run().state, State::Complete);
    let samples = folder.samples().unwrap();
    // Two paths, two pairs, five sizes, three repetitions.
    assert_eq!(samples.len(), 60);
    for sample in &samples {
        let one = folder.plan().configuration(sample.configuration).unwrap();
        assert_eq!(sample.verify, Verify::Ok);
        assert!(
            sample.metric(Metric::Host).is_some() && sample.metric(Metric::Bandwidth).is_some()
        );
        let has_trip = one.path == PathKind::Tcp && one.size_bytes <= 1 << 20;
        assert_eq!(sample.metric(Metric::HalfRoundTrip).is_some(), has_trip, "{one:?}");
        assert_eq!(sample.metric(Metric::Gpu), None, "no GPU, no time of one");
        assert!(sample.metric(Metric::Oneway).is_some_and(|time| time > 0.0), "{sample:?}");
        assert_eq!(sample.clock_uncertainty_ns, Some(0.0), "both ends are here");
        let [source, sink] = [sample.source, sample.sink].map(|end| end.end_ns.unwrap());
        assert!(one.path != PathKind::Tcp || sink <= source, "a source is told last: {sample:?}");
    }
    assert!(folder.run().timer_floor_ns["t_host"] < 1e5);
    assert!(folder.run().overhead_percent["1048576"] < 1.0);
    assert!(folder.metadata(1).unwrap().is_some());
    for file in ["execution_log.csv", "trace.pftrace", "kineto/rank_0.pt.trace.json"] {
        assert!(dir.join(file).metadata().unwrap().len() > 0, "{file}");
    }

    let report = root.path().join("report.html");
    let analyzed =
        succeeded(polyrail(["analyze", path(&dir), "--html", path(&report)]).output().unwrap());
    assert!(text(&analyzed.stdout).contains("60 of 60 samples"), "{}", text(&analyzed.stdout));
    assert!(report.metadata().unwrap().len() > 10_000);

    let error = refusal(2, &profile(&["--out", path(&dir)]));
    assert!(error.contains("is not empty"), "{error}");
}

#[test]
fn the_plan_says_what_comes_and_how_long_without_doing_it() {
    let (_root, dir) = folder();
    let plan =
        ["--plan", "--out", path(&dir), "--host", "3", "--sizes", "8,1MiB", "--paths", "tcp"];
    let output = succeeded(profile(&plan));
    let tables = text(&output.stdout);
    for part in ["rank 2: memory2", "tcp", "Altogether about", "seed 42"] {
        assert!(tables.contains(part), "{part}: {tables}");
    }
    let row = tables.lines().find(|line| line.starts_with("tcp")).unwrap();
    let cells: Vec<&str> = row.split_whitespace().collect();
    assert_eq!(cells[1..6], ["6", "2", "1", "12", "120"], "{row}");
    let order = |tables: &str| {
        let line = tables.lines().find(|line| line.contains("order ")).unwrap();
        line.to_owned()
    };
    let again = profile(&plan);
    assert_eq!(order(text(&again.stdout)), order(tables), "the order is the same every time");
    assert!(!dir.exists());
}

#[test]
fn ctrl_c_keeps_what_is_done_and_resume_makes_the_rest() {
    who_is_told_to_end_keeps_what_is_done("-INT");
}

#[test]
fn the_end_of_the_terminal_keeps_what_is_done_and_resume_makes_the_rest() {
    who_is_told_to_end_keeps_what_is_done("-HUP");
}

fn who_is_told_to_end_keeps_what_is_done(signal: &str) {
    let (_root, dir) = folder();
    let arguments =
        ["--out", path(&dir), "--paths", "host", "--sizes", "1MiB,64MiB", "--reps", "40"];
    // If the tests run under nohup, this signal is ignored.
    let mut command = Command::new("env");
    command.args(["--default-signal=HUP", PROGRAM, "profile"]);
    let child = command.args(["--gpus", "none"]).args(arguments);
    let child = child.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let begin = Instant::now();
    let has_samples =
        || Folder::open(&dir).is_ok_and(|folder| !folder.samples().unwrap().is_empty());
    while !has_samples() {
        assert!(begin.elapsed() < Duration::from_secs(60), "no sample after a minute");
        // Polls: another process writes the folder.
        std::thread::sleep(Duration::from_millis(20));
    }
    let interrupt = Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap();
    assert!(interrupt.success());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("--resume"), "{}", text(&output.stdout));

    let folder = Folder::open(&dir).unwrap();
    assert_eq!(folder.run().state, State::Interrupted);
    let done = folder.samples().unwrap();
    let steps = folder.plan().steps().len();
    assert!(!done.is_empty() && done.len() < steps, "{} of {steps}", done.len());
    let analyzed = polyrail(["analyze", path(&dir)]).output().unwrap();
    assert!(analyzed.status.success(), "what is there can be read: {}", text(&analyzed.stderr));

    succeeded(profile(&["--resume", path(&dir), "--verify", "off"]));
    let samples = Folder::open(&dir).unwrap().samples().unwrap();
    assert_eq!(samples.len(), steps);
    assert_eq!(samples[..done.len()], done, "what was there stays");
    assert!(samples[done.len()..].iter().all(|sample| sample.session == 1));
}

#[test]
fn ctrl_c_ends_it_at_once_while_it_prepares() {
    it_ends_at_once_while_it_prepares("-INT");
}

#[test]
fn the_end_of_the_terminal_ends_it_at_once_while_it_prepares() {
    it_ends_at_once_while_it_prepares("-HUP");
}

/// The signal must not wait until much memory is allocated and filled.
fn it_ends_at_once_while_it_prepares(signal: &str) {
    let (_root, dir) = folder();
    let arguments = ["--out", path(&dir), "--paths", "host", "--sizes", "1GiB", "--reps", "1"];
    // If the tests run under nohup, this signal is ignored.
    let mut command = Command::new("env");
    command.args(["--default-signal=HUP", PROGRAM, "profile"]);
    let child = command.args(["--gpus", "none"]).args(arguments);
    let child = child.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let begin = Instant::now();
    let resident_kib = || -> Option<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).ok()?;
        let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
        line.split_whitespace().nth(1)?.parse().ok()
    };
    while resident_kib().is_none_or(|kib| kib < 100 << 10) {
        assert!(begin.elapsed() < Duration::from_secs(60), "it takes no memory");
        // Polls: the kernel does not report how much memory a process has.
        std::thread::sleep(Duration::from_millis(5));
    }
    let interrupt = Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap();
    assert!(interrupt.success());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", text(&output.stderr));
    let told = "polyrail: interrupted: nothing was measured, and the folder is unchanged\n";
    assert!(text(&output.stderr).ends_with(told), "{}", text(&output.stderr));
    assert!(!dir.exists(), "{}", text(&output.stdout));
}

#[test]
fn a_table_that_was_lost_before_a_resume_is_noted() {
    let (_root, dir) = folder();
    let small = ["--paths", "host", "--sizes", "8", "--reps", "1"];
    assert!(profile(&[&["--out", path(&dir)], &small[..]].concat()).status.success());
    std::fs::remove_file(dir.join("anchors.csv")).unwrap();
    for _ in 0..2 {
        succeeded(profile(&["--resume", path(&dir)]));
        let notes = Folder::open(&dir).unwrap().run().notes.clone();
        let lost = "anchors.csv was missing when the profile was resumed";
        assert_eq!(notes.iter().filter(|note| *note == lost).count(), 1, "{notes:?}");
    }
}

#[test]
fn a_folder_of_other_endpoints_is_not_resumed() {
    let (_root, dir) = folder();
    let small = ["--paths", "host", "--sizes", "8", "--reps", "1"];
    assert!(profile(&[&["--out", path(&dir)], &small[..]].concat()).status.success());
    let error = refusal(2, &profile(&["--resume", path(&dir), "--host", "3"]));
    assert!(error.contains("`: is a profile of other endpoints: it has 2 endpoints"), "{error}");
    assert!(error.contains("; allowed: ") && error.contains("help:"), "{error}");

    // The same places, one of them of another kind.
    let plan = dir.join("plan.json");
    let other = std::fs::read_to_string(&plan).unwrap().replacen("\"host\",", "\"gpu\",", 1);
    std::fs::write(&plan, other).unwrap();
    let error = refusal(2, &profile(&["--resume", path(&dir), "--host", "2"]));
    let (before, now) = error.split_once(", and here it is ").expect("what differs");
    assert!(before.contains("its rank 0 is gpu memory0 on "), "{error}");
    assert!(now.starts_with("host memory0 on "), "{error}");
}

#[test]
fn a_profile_is_resumed_with_the_settings_that_it_was_begun_with() {
    let (_root, dir) = folder();
    let begin = ["--paths", "tcp", "--sizes", "8", "--reps", "1", "--set", "chunk_bytes=64KiB"];
    assert!(profile(&[&["--out", path(&dir)], &begin[..]].concat()).status.success());
    let resume = |more: &[&str]| profile(&[&["--resume", path(&dir)], more].concat());

    let error = refusal(2, &resume(&["--set", "chunk_bytes=128KiB", "--preset", "latency"]));
    assert!(error.contains("`: was begun with other settings: preset was `balanced`, "), "{error}");
    assert!(error.contains("chunk_bytes was `64KiB`, and here it is `128KiB` ("), "{error}");
    assert!(error.contains("; allowed: ") && error.contains("help: "), "{error}");
    let mut by_environment = polyrail(["profile", "--gpus", "none", "--resume", path(&dir)]);
    let error = refusal(2, &by_environment.env("POLYRAIL_CHANNELS", "1").output().unwrap());
    assert!(error.contains("channels was `0`, and here it is `1` (env POLYRAIL_C"), "{error}");

    // Settings that are the same, or change nothing that is measured, are accepted.
    for more in [&["--set", "chunk_bytes=64KiB", "--set", "log_level=info"][..], &[]] {
        succeeded(resume(more));
        let settings = Folder::open(&dir).unwrap().run().settings.clone();
        assert_eq!(settings["engine"], serde_json::json!({"chunk_bytes": "64KiB"}));
        assert_eq!(settings["first_arguments"][3], "--out");
    }
}

#[test]
fn a_folder_in_use_is_refused_before_anything_else() {
    let (_root, dir) = folder();
    let small = ["--paths", "host", "--sizes", "8", "--reps", "1"];
    assert!(profile(&[&["--out", path(&dir)], &small[..]].concat()).status.success());
    let files = || {
        let read = |name: &str| std::fs::read(dir.join(name)).unwrap();
        [read("samples.csv"), read("run.yml")]
    };
    let (before, recorder) = (files(), Folder::resume(&dir).unwrap());
    // The endpoints would be refused next: like warming and calibration, they come after the lock.
    let output = profile(&["--resume", path(&dir), "--host", "3"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("another process is writing"), "{output:?}");
    assert_eq!(files(), before);
    drop(recorder);
    assert!(profile(&["--resume", path(&dir)]).status.success());
}

#[test]
fn a_standard_error_that_is_full_ends_nothing() {
    let (_root, dir) = folder();
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let arguments = ["--out", path(&dir), "--paths", "host", "--sizes", "8", "--reps", "1"];
    let mut command = polyrail(["profile", "--gpus", "none"]);
    let output = command.args(arguments).stderr(Stdio::from(full)).output().unwrap();
    assert!(output.status.success(), "{:?}", output.status);
    assert_eq!(Folder::open(&dir).unwrap().run().state, State::Complete);
}

/// A limit on the size of files stands for a disk that fills up.
#[test]
fn a_disk_that_fills_up_ends_the_run_with_the_reason_and_keeps_whole_lines() {
    let (_root, dir) = folder();
    let script = "trap '' XFSZ; ulimit -f 24; exec \"$@\"";
    let mut command = Command::new("bash");
    command.args(["-c", script, "bash", PROGRAM, "profile"]);
    let arguments = ["--gpus", "none", "--paths", "host", "--sizes", "8", "--reps", "400"];
    let error = refusal(3, &command.args(["--out", path(&dir)]).args(arguments).output().unwrap());
    assert!(error.contains("can't write"), "{error}");
    let folder = Folder::open(&dir).unwrap();
    let kept = folder.samples().unwrap().len();
    assert!(kept > 10 && kept < folder.plan().steps().len(), "{kept} samples");

    succeeded(profile(&["--resume", path(&dir)]));
    let folder = Folder::open(&dir).unwrap();
    assert_eq!(folder.run().state, State::Complete);
    assert_eq!(folder.samples().unwrap().len(), folder.plan().steps().len());
}

/// The limit forbids writing even one byte to a file.
#[test]
fn a_profile_that_can_not_begin_leaves_nothing_behind_and_begins_later() {
    let (_root, dir) = folder();
    let arguments = ["--gpus", "none", "--paths", "host", "--sizes", "8", "--reps", "3"];
    let mut command = Command::new("bash");
    let script = "trap '' XFSZ; ulimit -f 0; exec \"$@\"";
    command.args(["-c", script, "bash", PROGRAM, "profile"]);
    let error = refusal(3, &command.args(["--out", path(&dir)]).args(arguments).output().unwrap());
    assert!(error.contains("can't write"), "{error}");
    assert!(!dir.exists());

    succeeded(profile(&[&["--out", path(&dir)], &arguments[2..]].concat()));
}

/// Each is refused before anything is measured, and leaves no folder.
#[test]
fn what_can_not_be_measured_is_refused_with_what_can() {
    let root = tempfile::tempdir().unwrap();
    std::fs::write(root.path().join("file"), "mine").unwrap();
    let here = |words: &[&str]| {
        let mut command = polyrail(["profile", "--gpus", "none"]);
        command.args(words).current_dir(&root).output().unwrap()
    };
    let commands: [&[&str]; 19] = [
        &["--out", "new", "--paths", "peer"],
        &["--out", "new", "--host", "1"],
        &["--out", "new", "--paths", "tcp", "--load", "disjoint"],
        &["--out", "new", "--load", "same-sink", "--host", "3"],
        &["--out", "new", "--lock-clocks", "1500"],
        &["--out", "new", "--rewarm", "5"],
        &["--out", "new", "--rewarm", "0"],
        &["--out", "new", "--sizes", "0"],
        &["--out", "new", "--pairs", "1-1"],
        &["--out", "new", "--pairs", "0-1,0-9"],
        &["--out", "new", "--pairs", "0-1,0-1"],
        &["--out", "new", "--paths", "tcp,host,tcp"],
        &["--out", "new", "--nccl-mode", "socket"],
        &["--out", "new", "--paths", "nccl", "--load", "same-sink"],
        &["--out", "new", "--paths", "nccl", "--nccl-lib", "/nonexistent/libnccl.so"],
        &["--out", "new", "--plan", "--sizes", "8", "--nccl-lib", "file"],
        &["--out", "new", "--plan", "--sizes", "8", "--nccl-lib", "file", "--paths", "host"],
        &["--out", "file/new", "--sizes", "8"],
        &["--reps", "3"],
    ];
    assert_golden("profile/refused", &refusals(2, here, &commands));
    let rails = "rails=203.0.113.9";
    for (code, words, fault) in [
        (3, &["--sizes", "8", "--out", "/sys/new"][..], "can't write to /sys/new: "),
        (
            2,
            &["--sizes", "8", "--out", "new", "--set", rails],
            "no engine: rails = `203.0.113.9` (from",
        ),
    ] {
        let error = refusal(code, &here(words));
        assert!(error.contains(fault) && error.contains("; allowed: "), "{error}");
        assert!(error.contains("\nhelp: ") && !error.contains("samples to take"), "{error}");
    }
    assert!(!root.path().join("new").exists());
}

/// Compares the order of the samples. The times differ, because they depend on how busy the machine is.
#[test]
fn the_plan_of_copies_in_memory_is_the_same_every_time_but_for_its_times() {
    let plan = ["--plan", "--paths", "host", "--sizes", "8", "--reps", "1000", "--refine"];
    let [one, other] = [(), ()].map(|()| profile(&plan));
    let order = |output: &Output| {
        let line = text(&output.stdout).lines().find(|line| line.contains("order ")).unwrap();
        line.to_owned()
    };
    assert_eq!(order(&one), order(&other));
    let last = text(&one.stdout).lines().last().unwrap();
    assert!(last.contains(" until the first sample, and besides the sizes that --refine adds."));
}

#[test]
fn the_plan_has_the_samples_of_the_run_with_those_that_show_drift() {
    let (_root, dir) = folder();
    // After 200 samples, one more is added.
    let options = ["--paths", "host", "--sizes", "8", "--reps", "101"];
    let plan = profile(&[&["--plan"], &options[..]].concat());
    let plan = text(&plan.stdout);
    let row = plan.lines().find(|line| line.starts_with("host_memory ")).unwrap();
    assert_eq!(row.split_whitespace().nth(5), Some("203"), "{plan}");
    assert!(
        plan.contains("\n1 of the samples repeat one configuration, which shows drift\n"),
        "{plan}"
    );
    let output = profile(&[&["--out", path(&dir)], &options[..]].concat());
    assert!(text(&output.stdout).starts_with("203 samples in "), "{}", text(&output.stdout));
    assert_eq!(Folder::open(&dir).unwrap().samples().unwrap().len(), 203);
}
