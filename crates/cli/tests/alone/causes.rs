//! Planted bottlenecks that `polyrail bench` must name. `scripts/planted` has more of them, with a table; a busy
//! machine does not change the results of these.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use polyrail_lab::{Lab, LabSpec, Side, availability};
use polyrail_report::{BenchReport, BenchResult, LimitKind};
use rustix::process::{Pid, Signal, kill_process};

use crate::common::{PROGRAM, fit, report};

/// A `bench --listen`, killed on drop.
struct Server {
    child: Child,
    /// Argument for `--connect`.
    at: String,
}

impl Server {
    fn start(mut command: Command, rails: &str) -> Self {
        command.args(["bench", "--listen", "--rails", rails]).stdout(Stdio::piped());
        let mut child = command.stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let at = line.trim().strip_prefix("listening on ").unwrap().to_owned();
        Self { child, at }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The only result of a run.
fn result(mut command: Command, options: &str) -> BenchResult {
    command.arg("bench").args(options.split_whitespace()).args(["--json", "-"]);
    let report = report("bench", 0, &command.output().unwrap(), options);
    serde_json::from_value::<BenchReport>(report).unwrap().results.remove(0)
}

#[test]
fn what_makes_it_faster_is_found_by_trying_it() {
    // 64 chunks one after the other, each of which waits for an acknowledgement.
    let options = "--sizes 256KiB --rails 2 --set channels=1 --set chunk_bytes=4KiB --set window_chunks=1 --depth 4 --why \
                   --iters 4 --rounds 2 --warmup 5ms --verify sample --set payload=crc32c";
    let found = result(Command::new(PROGRAM), options);
    let words = "here is not used: this end has 1 channel for 2 rails";
    assert!(found.limit.because.contains(words), "{}", found.limit);
    let names: Vec<&str> = found.tried.iter().map(|tried| tried.change.as_str()).collect();
    for name in ["chunk_bytes=512KiB", "window_chunks=16", "channels=0", "depth=16", "payload=none"]
    {
        assert!(names.contains(&name), "{names:?}");
    }
    assert!(names.iter().any(|name| name.starts_with("without ")), "{names:?}");
    let best = &found.tried[0];
    assert!(best.helps && best.ratio.median > 1.5, "{best:?}");
    assert!(["chunk_bytes=512KiB", "window_chunks=16"].contains(&names[0]), "{:?}", found.tried);
    let again = found.tried.iter().filter(|tried| tried.interval.is_some()).count();
    assert_eq!(again, 3, "{:?}", found.tried);
    for tried in &found.tried {
        let is_above = tried.interval.is_some_and(|interval| interval.low > 1.0);
        assert_eq!(tried.helps, is_above, "{tried:?}");
    }
    let protection = found.tried.iter().find(|tried| tried.change == "payload=none").unwrap();
    assert!(protection.interval.is_some(), "the verdict may name it: {protection:?}");
}

#[test]
fn links_that_a_bucket_limits_are_known_without_a_lab_of_the_bench() {
    if let Err(error) = availability() {
        let help = error.help().unwrap_or_default();
        let command = "sudo -E cargo test -p polyrail-cli --test alone causes::";
        return polyrail_skip::skip(format!("{error}; {help}"), command);
    }
    // Slow enough that a busy machine keeps up.
    let rates = LabSpec::parse_rails("100mbit,50mbit").unwrap();
    let spec = LabSpec::new(format!("causes-{}", std::process::id()), rates);
    let lab = Lab::up(&spec).unwrap().guard();
    let server = Server::start(lab.command(Side::B, PROGRAM), "rail");
    let options = format!(
        "--connect {} --rails rail --sizes 2MiB --depth 4 --set chunk_bytes=64KiB --time 2s --rounds 2",
        server.at
    );
    let found = result(lab.command(Side::A, PROGRAM), &options);
    assert_eq!(found.limit.verdict, LimitKind::Network, "{}", found.limit);
    let text = "GB/s of 2 rails by their token buckets";
    assert!(found.limit.because.contains(text), "{}", found.limit);
    drop(server);
    lab.down().unwrap();
}

#[test]
fn a_receiver_that_stands_still_half_of_the_time_is_the_limit() {
    let server = Server::start(Command::new(PROGRAM), "127.0.0.1");
    let pid = Pid::from_child(&server.child);
    let (over, waits) = channel::<()>();
    let stops = thread::spawn(move || {
        let half = Duration::from_millis(150);
        while waits.recv_timeout(half) == Err(RecvTimeoutError::Timeout) {
            kill_process(pid, Signal::STOP).unwrap();
            // The listener must be stopped for this long.
            thread::sleep(half);
            kill_process(pid, Signal::CONT).unwrap();
        }
    });
    let options =
        format!("--connect {} --rails 127.0.0.1 --sizes 1MiB --time 2s --rounds 2", server.at);
    let found = result(Command::new(PROGRAM), &options);
    drop(over);
    stops.join().unwrap();
    assert_eq!(found.limit.verdict, LimitKind::Peer, "{}", found.limit);
    let text = "the process at the other side did not run for ";
    assert!(found.limit.because.starts_with(text), "{}", found.limit);
}

#[test]
fn changes_that_were_tried_before_ctrl_c_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("report.json");
    // Two rails, so that there is something to try. The first progress line comes after 2 s, while changes are tried:
    // each takes some tenths of a second.
    let options =
        "bench --sizes 64KiB --rails 2 --iters 300 --rounds 1 --warmup 5ms --verify sample --why";
    let mut command = Command::new(PROGRAM);
    command.args(options.split_whitespace()).arg("--json").arg(&path);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let pid = Pid::from_child(&child);
    let mut said = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    let is_later = |line: &str| line.contains("trying ") && !line.contains("(1 of ");
    said.find(|line| is_later(line)).expect("it tries a second change");
    kill_process(pid, Signal::INT).unwrap();
    let errors: Vec<String> = said.collect();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{errors:?}");
    let report = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    fit::fits("bench", &report, options);
    let report: BenchReport = serde_json::from_value(report).unwrap();
    let tried = &report.results[0].tried;
    assert!(report.interrupted && !tried.is_empty(), "{report:?}");
    assert!(tried.iter().all(|tried| !tried.helps), "no change was tried again: {tried:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let count = format!("--why at 64KiB ended early, after {} of ", tried.len());
    assert!(text.contains("tried in turn") && text.contains(&count), "{text}");
}
