//! `polyrail nccl tune` as users run it, with jobs whose step times depend on a variable.

use std::fs;
use std::path::Path;
use std::process::Output;

use serde_json::Value;

use crate::common::polyrail;

/// Steps of 1000 ms, and of 800 ms with larger buffers; noise of 1 %.
const JOB: &str = r#"
ms=1000; [ "$NCCL_BUFFSIZE" = 8388608 ] && ms=800
echo "step 1: 5000.0 ms"; echo "step 2: $((ms + $$ % 20)).0 ms"
"#;
const PATTERN: &str = r"step \d+: ([0-9.]+) ms";

fn nccl_tune(words: &[&str]) -> Output {
    polyrail(["nccl", "tune"]).args(words).output().unwrap()
}

/// Exit code and standard error.
fn refused(words: &[&str]) -> (Option<i32>, String) {
    let output = nccl_tune(words);
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

/// JSON output of a run that writes the winner to `conf`.
fn tuned(options: &[&str], conf: &Path, job: &str) -> Value {
    tuned_within("60s", options, conf, job)
}

fn tuned_within(budget: &str, options: &[&str], conf: &Path, job: &str) -> Value {
    let words = ["--figure", PATTERN, "--budget", budget, "--json", "--output"];
    let words = [&words[..], &[conf.to_str().unwrap()], options, &["--", "sh", "-c", job]].concat();
    let output = nccl_tune(&words);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn a_variable_that_makes_steps_shorter_is_found_and_written_as_nccl_reads_it() {
    let folder = tempfile::tempdir().unwrap();
    let conf = folder.path().join("nccl.conf");
    let over = ["--over", "NCCL_BUFFSIZE=2097152,8388608", "--over", "NCCL_MIN_NCHANNELS=8"];
    let json = tuned(&over, &conf, JOB);
    assert_eq!(json["keep_default"], false, "{json:#}");
    assert_eq!(json["best"], serde_json::json!({"NCCL_BUFFSIZE": "8388608"}), "{json:#}");
    let effect = &json["candidates"][0]["effect"];
    let (low, high) = (effect["low_percent"].as_f64(), effect["high_percent"].as_f64());
    assert!(low.unwrap() < -19.0 && high.unwrap() > -21.0, "{effect:#}");
    let verdicts: Vec<&str> = json["tried"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["effect"]["verdict"].as_str().unwrap())
        .collect();
    assert_eq!(verdicts, ["no_effect", "better", "no_effect"], "{json:#}");
    let text = fs::read_to_string(&conf).unwrap();
    let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    assert_eq!(lines, ["NCCL_BUFFSIZE=8388608"], "{text}");
}

#[test]
fn where_no_variable_matters_the_default_is_kept_and_nothing_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let conf = folder.path().join("nccl.conf");
    let json = tuned(&["--over", "NCCL_MIN_NCHANNELS=4,8"], &conf, JOB);
    assert_eq!((&json["keep_default"], &json["best"]), (&true.into(), &serde_json::json!({})));
    assert!(!conf.exists());
}

#[test]
fn the_goal_of_cpu_time_finds_what_saves_it_though_steps_take_as_long() {
    let folder = tempfile::tempdir().unwrap();
    let conf = folder.path().join("nccl.conf");
    let job = r#"
n=240000; [ "$POLYRAIL_SPIN" = off ] && n=80000
while [ $n -gt 0 ]; do n=$((n - 1)); done; echo "step 1: 1000 ms"
"#;
    // CPU times are counted in kernel ticks, so their interval never gets narrow and the budget ends the run.
    let options = ["--goal", "cpu", "--over", "POLYRAIL_SPIN=off"];
    let json = tuned_within("3s", &options, &conf, job);
    assert_eq!(json["best"], serde_json::json!({"POLYRAIL_SPIN": "off"}), "{json:#}");
}

#[test]
fn a_value_that_the_job_fails_with_is_left_out_and_named() {
    let folder = tempfile::tempdir().unwrap();
    let job = format!(r#"[ "$NCCL_MIN_NCHANNELS" = 8 ] && {{ echo no >&2; exit 9; }}; {JOB}"#);
    let conf = folder.path().join("nccl.conf");
    let json = tuned(&["--over", "NCCL_MIN_NCHANNELS=4,8"], &conf, &job);
    // There may be a note on other programs as well.
    let mut notes = json["notes"].as_array().unwrap().iter().filter_map(|note| note.as_str());
    let is_named =
        |note: &str| note.contains("NCCL_MIN_NCHANNELS=8") && note.contains("exit code 9");
    assert!(notes.any(is_named), "{json:#}");
    assert!(
        json["blocks"].as_u64().unwrap() < 64,
        "it ends when the other value is known: {json:#}"
    );
    assert_eq!(json["keep_default"], true);
}

/// "Keep the default" would be an answer, too.
#[test]
fn a_run_that_ends_before_its_first_step_time_gives_no_answer() {
    let job = "kill -INT $PPID; exec sleep 100";
    let output = nccl_tune(&["--figure", PATTERN, "--", "sh", "-c", job]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(130), "{text}");
    assert!(text.contains("no answer: nothing was measured") && !text.contains("keep"), "{text}");
}

#[test]
fn wrong_input_is_named_with_a_remedy_before_anything_runs() {
    let folder = tempfile::tempdir().unwrap();
    let mark = folder.path().join("ran");
    let job = format!("touch {}", mark.display());
    let good = ["--figure", PATTERN];
    let tail = ["--", "sh", "-c", job.as_str()];
    for (options, named) in [
        (&["--over", "NCCL_BUFFERSIZE=1"][..], &["NCCL_BUFFERSIZE", "NCCL_BUFFSIZE"][..]),
        (&["--over", "NCCL_BUFFSIZE=8MiB"], &["8MiB", "1 to 1073741824"]),
        (&["--over", "POLYRAIL_CHUNK_BITES=1MiB"], &["chunk_bites", "chunk_bytes"]),
        (&["--over", "NCCL_BUFFSIZE"], &["NCCL_BUFFSIZE", "NAME=A,B"]),
        (&["--over", "NCCL_PROTO=LL", "--over", "NCCL_PROTO=LL128"], &["NCCL_PROTO", "once"]),
    ] {
        let (code, stderr) = refused(&[&good[..], options, &tail].concat());
        assert_eq!(code, Some(2), "{options:?}: {stderr}");
        assert!(named.iter().all(|part| stderr.contains(part)), "{options:?}: {stderr}");
    }
    for pattern in ["step", "(", "(a)(b)"] {
        let (code, stderr) = refused(&[&["--figure", pattern][..], &tail].concat());
        assert_eq!(code, Some(2), "{pattern}: {stderr}");
        assert!(stderr.contains("--figure") && stderr.contains("help: "), "{pattern}: {stderr}");
    }
    let (code, stderr) = refused(&tail);
    assert!(code == Some(2) && stderr.contains("--figure"), "{stderr}");
    let (code, stderr) = refused(&["--over", "NCCL_BUFFSIZE=8388608"]);
    assert!(code == Some(2) && stderr.contains("runs no NCCL"), "{stderr}");
    for (words, fault) in [
        ("gather", "is refused by collective (<OPERATION> `gather`"),
        ("all_reduce --rounds 2", "gives itself"),
        ("all_reduce --worker", "has --worker, which collective gives to processes"),
        ("all_reduce --sizes 8..64MiB", "measures 24 sizes"),
        ("all_reduce --sizes=8,16", "measures 2 sizes"),
        ("all_reduce --sizes 6 --type int32", "`6` is no whole number of elements"),
    ] {
        let (code, stderr) = refused(&["--collective", words]);
        assert!(code == Some(2) && stderr.contains(fault), "{words}: {stderr}");
    }
    assert!(!mark.exists(), "the job ran");
}

#[test]
fn a_job_that_fails_or_prints_no_step_time_is_named_with_what_it_said() {
    let over = ["--over", "NCCL_BUFFSIZE=8388608", "--figure", PATTERN, "--"];
    for (job, named) in [
        ("echo out of memory >&2; exit 7", &["exit code 7", "out of memory"][..]),
        ("echo done", &["matches", "step"]),
    ] {
        let (code, stderr) = refused(&[&over[..], &["sh", "-c", job]].concat());
        assert_eq!(code, Some(3), "{stderr}");
        assert!(named.iter().all(|part| stderr.contains(part)), "{stderr}");
        assert!(stderr.contains("help: "), "{stderr}");
    }
    let (code, stderr) = refused(&[&over[..], &["/not/there"]].concat());
    assert!(code == Some(3) && stderr.contains("/not/there"), "{stderr}");
}
