//! Tests of `polyrail bench --lab`. They need root or user namespaces, and are skipped without.

use std::fs;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use polyrail_lab::{Lab, LabInfo, availability};
use polyrail_report::{BenchReport, LimitKind};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::common::{self, PROGRAM, polyrail};
use crate::lab::{public_copy, running_as_root};

/// Returns whether a lab can be built here; skips the test otherwise.
fn is_possible() -> bool {
    let Err(error) = availability() else { return true };
    let help = error.help().unwrap_or_default();
    let command = "sudo -E cargo test -p polyrail-cli --test links bench_lab";
    polyrail_skip::skip(format!("{error}; {help}"), command);
    false
}

fn report(options: &str) -> BenchReport {
    let output = polyrail(["bench"])
        .args(options.split_whitespace())
        .args(["--json", "-", "--rounds", "2"])
        .output()
        .unwrap();
    serde_json::from_value(common::report("bench", 0, &output, options)).unwrap()
}

#[test]
fn shaped_rails_carry_what_they_are_shaped_to_and_are_named_as_the_limit() {
    if !is_possible() {
        return;
    }
    // Slow enough that a busy machine keeps up; small chunks, so that both rails end together.
    let options = "--lab 200mbit,100mbit --sizes 4MiB --depth 4 --set chunk_bytes=64KiB --time 2s";
    let report = report(&format!("{options} --against alone"));
    let lab = report.lab.unwrap();
    assert_eq!(lab.rails_bits_per_s, [Some(200_000_000), Some(100_000_000)]);
    let result = &report.results[0];
    assert!(result.verified);
    // Only the burst of a token bucket exceeds the line rate.
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
    let child = Command::new(PROGRAM)
        .args(["bench", "--lab", "1gbit", "--rails", "nosuch3", "--sizes", "8", "--iters", "1"])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let name = format!("bench-{}", child.id());
    let output = child.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(errors.contains("nosuch3"), "{errors}");
    let labs = Lab::list().unwrap();
    assert!(labs.iter().all(|lab| lab.name != name), "{name} is still there");
}

/// A `bench --lab` in the middle of its first round, which would take two minutes.
struct Running {
    child: Child,
    lab: String,
}

impl Running {
    fn start() -> Self {
        // If the tests run under nohup, this signal is ignored.
        let program = ["--default-signal=HUP", PROGRAM];
        let child = Command::new("env")
            .args(program)
            .args([
                "bench", "--lab", "1gbit", "--sizes", "64KiB", "--time", "10min", "--json", "none",
            ])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .unwrap();
        let lab = format!("bench-{}", child.id());
        let running = Self { child, lab };
        // The warm-up moves far less.
        running.wait_for("in a round", |lab| lab.is_some() && running.moved_bytes() > 100_000_000);
        running
    }

    /// Bytes that the serving end has received.
    fn moved_bytes(&self) -> u64 {
        let output = Command::new(PROGRAM)
            .args(["lab", "exec", &self.lab, "b", "--", "cat", "/proc/net/dev"])
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let rail = text.lines().find_map(|line| line.trim().strip_prefix("rail0:"));
        // The lab may not be complete yet.
        let bytes = rail.and_then(|rail| rail.split_whitespace().next());
        bytes.map_or(0, |bytes| bytes.parse().unwrap())
    }

    /// Waits until `is_so` holds for this lab's entry in the list.
    fn wait_for(&self, what: &str, is_so: impl Fn(Option<&LabInfo>) -> bool) {
        let until = Instant::now() + Duration::from_secs(60);
        while !is_so(Lab::list().unwrap().iter().find(|lab| lab.name == self.lab)) {
            assert!(Instant::now() < until, "{}: never {what}", self.lab);
            // Polls: other processes start and end.
            thread::sleep(Duration::from_millis(10));
        }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits for the end. Returns the exit code and standard error.
    fn end(&mut self) -> (Option<i32>, String) {
        let code = self.child.wait().unwrap().code();
        let mut errors = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
        (code, errors)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail only if the process is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = Lab::remove(&self.lab);
    }
}

/// A user who closes the window no longer needs the lab. None of these signals is sent to the processes inside.
#[test]
fn a_lab_made_for_a_run_is_gone_when_its_command_is_told_to_end() {
    if !is_possible() {
        return;
    }
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        let mut running = Running::start();
        running.signal(signal);
        running.wait_for("gone", |lab| lab.is_none());
        let (code, errors) = running.end();
        assert_eq!(code, Some(130), "{signal:?}: {errors}");
        assert!(errors.contains("interrupted"), "the client ends in order: {errors}");
    }
}

/// `timeout`, systemd and Slurm signal the whole group: the other end gets the signal, too, but must not be blamed.
#[test]
fn a_run_in_a_lab_whose_processes_are_all_told_to_end_was_interrupted() {
    if !is_possible() {
        return;
    }
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        let mut running = Running::start();
        kill_process_group(Pid::from_child(&running.child), signal).unwrap();
        let (code, errors) = running.end();
        assert_eq!(code, Some(130), "{signal:?}: {errors}");
        assert!(errors.contains("interrupted") && !errors.contains("is gone"), "{errors}");
    }
}

/// Runs as its own user: any other run of the same user that makes a lab for itself would remove what this one leaves.
#[test]
fn a_lab_whose_run_was_killed_is_listed_as_broken_and_goes_before_the_next() {
    if !is_possible() {
        return;
    }
    let command = "sudo -E cargo test -p polyrail-cli --test links bench_lab";
    if !running_as_root() {
        return polyrail_skip::skip("not root, who alone can be another user", command);
    }
    let (_folder, program) = public_copy();
    let user = 30_000 + std::process::id() % 30_000;
    let polyrail = |words: &str| {
        let mut command = Command::new(&program);
        command.args(words.split_whitespace()).current_dir("/").uid(user).gid(user);
        command
    };
    let run = |words: &str| {
        let output = polyrail(words).output().unwrap();
        let [out, errors] =
            [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
        (output.status.code(), out, errors)
    };
    let (code, _, errors) = run("lab up probe --rails 1gbit");
    if code == Some(3) {
        return polyrail_skip::skip(errors.replace('\n', " "), command);
    }
    assert_eq!(run("lab down probe").0, Some(0));
    let wait_for = |what: &str| {
        let until = Instant::now() + Duration::from_secs(60);
        while !run("lab ls").1.contains(what) {
            assert!(Instant::now() < until, "never `{what}` in\n{}", run("lab ls").1);
            // Polls: other processes start and end.
            thread::sleep(Duration::from_millis(10));
        }
    };
    let killed = || {
        let words = "bench --lab 1gbit --sizes 64KiB --time 10min --json none";
        let mut bench =
            polyrail(words).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let lab = format!("bench-{}", bench.id());
        wait_for(&format!("{lab}  ready"));
        bench.kill().unwrap();
        bench.wait().unwrap();
        let ended = format!("process {}, which made it for itself, has ended", bench.id());
        let remedy = format!("remove it with `polyrail lab down {lab}`");
        wait_for(&format!("{lab}  broken: {ended}; {remedy}  (user-namespace, 0 processes"));
        (lab, ended)
    };

    let (lab, ended) = killed();
    let (code, _, errors) = run(&format!("lab up {lab} --rails 1gbit"));
    assert_eq!(code, Some(0), "{errors}");
    let told = format!("removed what was left of an earlier lab `{lab}`: {ended}");
    assert!(errors.contains(&told), "{errors}");
    assert_eq!(run(&format!("lab down {lab}")).0, Some(0));

    let (lab, _) = killed();
    let (code, _, errors) = run("bench --lab 1gbit --sizes 8 --iters 1 --rounds 1 --json none");
    assert_eq!(code, Some(0), "{errors}");
    let told = format!("removed lab `{lab}`: the process that made it for itself has ended");
    assert!(errors.contains(&told), "{errors}");
    assert_eq!(run("lab ls").1, "no labs\n");
    let processes = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
    let own = processes.filter(|path| path.metadata().is_ok_and(|found| found.uid() == user));
    let commands = own.map(|path| fs::read_to_string(path.join("cmdline")).unwrap_or_default());
    // Zombies have an empty command line.
    let left: Vec<_> = commands.filter(|command| !command.is_empty()).collect();
    assert!(left.is_empty(), "{left:?}");
}
