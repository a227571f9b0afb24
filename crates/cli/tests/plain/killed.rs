//! Processes that a command starts do not outlive it, however it ends.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::{ChildStderr, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::common::{Process, polyrail, wait_for, wait_until};

/// State and parent of a process that has not ended.
fn state_of(pid: i32) -> Option<(char, i32)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may contain spaces.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?.chars().next()?;
    (state != 'Z').then_some((state, fields.next()?.parse().ok()?))
}

fn child_of(parent: u32) -> Option<i32> {
    let pids = fs::read_dir("/proc").unwrap().flatten();
    let mut pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.find(|pid| state_of(*pid).is_some_and(|(_, of)| of == parent as i32))
}

/// Starts a bench and stops its other process while data move. Returns the bench, the PID of that process, and the
/// bench's standard error.
fn with_a_stopped_end(options: &[&str]) -> (Process, i32, BufReader<ChildStderr>) {
    let mut command = polyrail(["bench", "--sizes", "64KiB", "--warmup", "1ms", "--json", "none"]);
    command.args(options);
    command.args(["--set", "peer_timeout_ms=120000"]);
    command.stdout(Stdio::null());
    let mut bench = Process(command.stderr(Stdio::piped()).spawn().unwrap());
    let mut said = BufReader::new(bench.0.stderr.take().unwrap());
    // The progress, which first appears after 2 s, shows that the bench is measuring.
    line_with(": round 1", &mut said);
    let end = child_of(bench.0.id()).expect("the other process");
    kill_process(Pid::from_raw(end).unwrap(), Signal::STOP).unwrap();
    wait_for("it stops", || state_of(end).filter(|(state, _)| *state == 'T'));
    (bench, end, said)
}

fn line_with(wanted: &str, said: &mut impl BufRead) -> String {
    let mut all = String::new();
    loop {
        let before = all.len();
        assert!(said.read_line(&mut all).unwrap() > 0, "no {wanted:?} in\n{all}");
        if all[before..].contains(wanted) {
            return all[before..].to_owned();
        }
    }
}

#[test]
fn ctrl_c_of_a_bench_whose_other_end_is_stopped_says_what_it_waits_for_and_ends_soon() {
    ends_soon_after_ctrl_c(&["--time", "100s"], Duration::from_secs(60));
}

#[test]
fn ctrl_c_ends_a_round_of_plain_sockets_whose_other_end_is_stopped() {
    // The first round of the sockets takes 20 s. Each of their calls may take 30 s.
    ends_soon_after_ctrl_c(&["--against", "raw", "--time", "400s"], Duration::from_secs(15));
}

#[test]
fn the_engines_of_single_rails_end_together() {
    let rails: Vec<String> = (1..=16).map(|last| format!("127.0.0.{last}")).collect();
    let rails = format!("rails={}", rails.join(","));
    // Ending them one after another takes a second each.
    let options = ["--against", "alone", "--time", "100s", "--set", &rails];
    ends_soon_after_ctrl_c(&options, Duration::from_secs(15));
}

/// Checks that the bench ends within `limit`, long before a peer that does not answer is given up.
fn ends_soon_after_ctrl_c(options: &[&str], limit: Duration) {
    let (mut bench, end, mut said) = with_a_stopped_end(options);
    bench.signal(Signal::INT);
    let begin = Instant::now();
    let line = line_with("interrupted", &mut said);
    assert!(line.contains("waits for the other end, some seconds at most"), "{line}");
    assert_eq!(bench.0.wait().unwrap().code(), Some(130));
    assert!(begin.elapsed() < limit, "{:?}", begin.elapsed());
    wait_until("the other process is gone", || state_of(end).is_none());
}

#[test]
fn ctrl_c_ends_a_bench_whose_server_does_not_answer_its_connection() {
    // The kernel accepts the connection, and no process answers on it.
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = server.local_addr().unwrap().to_string();
    let mut command = polyrail(["bench", "--connect", &address, "--json", "none"]);
    command.args(["--set", "connect_timeout_ms=120000", "--set", "rails=127.0.0.1"]);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut bench = Process(command.spawn().unwrap());
    let _connection = server.accept().unwrap();
    bench.signal(Signal::INT);
    let begin = Instant::now();
    assert_eq!(bench.0.wait().unwrap().code(), Some(130));
    assert!(begin.elapsed() < Duration::from_secs(60), "{:?}", begin.elapsed());
}

#[test]
fn no_process_of_a_bench_stays_after_the_second_ctrl_c_or_a_kill() {
    for signal in [Signal::INT, Signal::KILL] {
        let (mut bench, end, mut said) = with_a_stopped_end(&["--time", "100s"]);
        if signal == Signal::INT {
            bench.signal(signal);
            line_with("interrupted", &mut said);
        }
        bench.signal(signal);
        bench.0.wait().unwrap();
        wait_until("the other process is gone", || state_of(end).is_none());
    }
}

#[test]
fn a_command_of_an_experiment_ends_when_that_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let text = "name: x\ncommand: [sh, -c, 'echo $$ >pid; mv pid running; exec sleep 100 {kind}']\nfigure: '([0-9])'\n\
                better: higher\nfactors:\n  kind: ['0', '1']\nblocks: 8\nseed: 5\n";
    fs::write(folder.path().join("x.yml"), text).unwrap();
    let mut command = polyrail(["experiment", "run", "x.yml"]);
    command.current_dir(folder.path());
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut experiment = Process(command.spawn().unwrap());
    let running = folder.path().join("running");
    let pid = wait_for("a cell runs", || fs::read_to_string(&running).ok());
    let pid: i32 = pid.trim().parse().unwrap();
    assert!(state_of(pid).is_some());
    experiment.signal(Signal::KILL);
    experiment.0.wait().unwrap();
    wait_until("its command is gone", || state_of(pid).is_none());
}
