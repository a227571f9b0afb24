//! `polyrail top` on running engines: rates, events, ends, and why there may be nothing to see.

#[path = "../../examples/rail_cut.rs"]
#[allow(dead_code, reason = "it has a main of its own")]
mod rail_cut;

use std::io::{BufRead, BufReader, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::os::unix::process::CommandExt;
use std::process::{ChildStdout, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use polyrail_skip::skip;
use rustix::process::Signal;
use serde_json::Value;

use crate::common::{DEADLINE, PROGRAM, Process, fit, polyrail};

fn typed(words: &str) -> Command {
    polyrail(words.split_whitespace())
}

fn start(command: &mut Command) -> Process {
    Process(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Starts `bench --listen` and waits until its engine listens.
fn listening(settings: &str) -> Process {
    let words = format!("bench --listen 127.0.0.1:0 --rails 1 {settings}");
    let mut process = start(&mut typed(&words));
    let mut lines = BufReader::new(process.0.stdout.take().unwrap()).lines();
    // `bench` prints its address once its engine listens.
    let mut said = lines.by_ref().map_while(Result::ok);
    assert!(said.any(|line| line.contains("127.0.0.1")), "it ended");
    // Later output needs a reader.
    thread::spawn(move || lines.for_each(drop));
    process
}

/// Starts `top` on a process, repeatedly until it prints something.
fn top(pid: u32, options: &str) -> (Process, std::io::Lines<BufReader<ChildStdout>>) {
    let since = Instant::now();
    loop {
        let mut process = start(&mut typed(&format!("top {pid} {options}")));
        let mut lines = BufReader::new(process.0.stdout.take().unwrap());
        if !lines.fill_buf().unwrap().is_empty() {
            return (process, lines.lines());
        }
        assert!(since.elapsed() < DEADLINE, "top sees no engine of process {pid}");
    }
}

fn sum(document: &Value, field: &str) -> f64 {
    let engines = document["processes"].as_array().unwrap().iter();
    let engines = engines.flat_map(|process| process["engines"].as_array().unwrap());
    let rails = engines.flat_map(|engine| engine["rails"].as_array().unwrap());
    rails.map(|rail| rail[field].as_f64().unwrap()).sum()
}

#[test]
fn the_rate_is_that_of_bench_and_the_end_of_its_engine_is_told() {
    let bench = typed("bench --sizes 1MiB --time 2s --rounds 1 --rails 2 --json -")
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let mut bench = Process(bench.unwrap());
    let (mut top, lines) = top(bench.0.id(), "--interval 400ms --json");
    let documents: Vec<Value> =
        lines.map(|line| serde_json::from_str(&line.unwrap()).unwrap()).collect();
    let mut report = String::new();
    bench.0.stdout.take().unwrap().read_to_string(&mut report).unwrap();
    let report: Value = serde_json::from_str(&report).unwrap();
    let measured = report["results"][0]["gb_per_s"].as_f64().unwrap();
    for document in &documents {
        fit::fits("top", document, "top --json");
    }
    let rates = documents.iter().map(|document| sum(document, "sent_gb_per_s"));
    let most = rates.fold(0.0, f64::max);
    // No interval is like the whole run, but the fastest one has no part without transfers.
    assert!((0.5..2.0).contains(&(most / measured)), "{most} GB/s, bench says {measured}");
    let last = documents.last().unwrap();
    assert_eq!(last["events"][0]["event"], "engine_ended", "{last}");
    let names = documents.iter().flat_map(|it| it["processes"][0]["threads"].as_array());
    let names: Vec<_> = names.flatten().map(|thread| thread["name"].to_string()).collect();
    assert!(names.iter().any(|name| name.contains("pr-tx0")), "{names:?}");
    let mut told = String::new();
    top.0.stderr.take().unwrap().read_to_string(&mut told).unwrap();
    assert_eq!(told, format!("polyrail: the engines of process {} have ended\n", bench.0.id()));
    assert_eq!(top.0.wait().unwrap().code(), Some(0));
}

#[test]
fn a_rail_that_is_cut_and_comes_back_is_an_event_of_its_own() {
    // The engines run on threads inside the namespaces, and only root may move a thread into a namespace.
    let why = match polyrail_lab::availability() {
        Ok(polyrail_lab::Privilege::Root) => None,
        Ok(_) => Some("threads may enter namespaces as root only".to_owned()),
        Err(error) => Some(error.to_string()),
    };
    if let Some(why) = why {
        return skip(why, "sudo -E cargo test -p polyrail-cli --test alone top::");
    }
    // One try is enough, unless the machine stalls while the rail is cut.
    let mut tries = (0..3).map(|_| events_of_a_cut());
    let last = tries.find(|(events, _)| CUT.iter().all(|what| events.contains(what)));
    let (events, seen) = last.expect("each event is seen");
    let cut = events.iter().position(|what| what.contains("cut"));
    assert!(cut < events.iter().position(|what| what.contains("back")), "{events:?}");
    let untouched = seen.iter().any(|line| line.contains("rail0: cut"));
    assert!(!untouched, "{}", seen.join("\n"));
}

/// Events that `top` prints for a rail that is cut and comes back.
const CUT: [&str; 3] = ["rail1: cut (towards ", "rail1: back (towards ", " lost (towards "];

/// Returns the events of [`CUT`] that `top` prints while a rail is cut, and all its lines.
fn events_of_a_cut() -> (Vec<&'static str>, Vec<String>) {
    let run = thread::spawn(|| {
        let run = rail_cut::run("2x50mbit", 1, Duration::from_secs(2));
        run.map(drop).map_err(|error| error.to_string())
    });
    let (_top, lines) = top(std::process::id(), "--interval 250ms");
    let (mut seen, mut events): (Vec<String>, Vec<&str>) = (Vec::new(), Vec::new());
    for line in lines {
        let line = line.unwrap();
        events.extend(CUT.iter().filter(|what| line.contains(**what)));
        seen.push(line);
        if CUT.iter().all(|what| events.contains(what)) {
            break;
        }
    }
    run.join().unwrap().unwrap();
    println!("{events:?} of\n{}", seen.join("\n"));
    (events, seen)
}

#[test]
fn on_a_pipe_each_rail_has_a_line_with_the_time() {
    let engine = listening("");
    let (mut top, lines) = top(engine.0.id(), "--interval 200ms --count 2");
    let lines: Vec<String> = lines.map(Result::unwrap).collect();
    assert_eq!(top.0.wait().unwrap().code(), Some(0));
    let pid = engine.0.id().to_string();
    for line in &lines {
        let (time, rest) = line.split_once(' ').unwrap();
        assert!(time.contains('T') && time.ends_with('Z'), "{line}");
        assert!(rest.starts_with(&format!("{pid} ")), "{line}");
    }
    let of_engine = lines.iter().filter(|line| line.ends_with(" no peer")).count();
    assert_eq!(of_engine, 2, "{lines:#?}");
    assert!(lines.iter().any(|line| line.contains(" threads pr-control ")), "{lines:#?}");
}

#[test]
fn an_engine_that_lets_nobody_look_is_named_with_the_remedy() {
    let engine = listening("--set metrics_listen=off");
    let output = typed(&format!("top {}", engine.0.id())).output().unwrap();
    let told = errors(&output);
    assert_eq!(output.status.code(), Some(3), "{told}");
    assert!(told.contains("has an engine that does not let others look"), "{told}");
    assert!(
        told.contains("help: look again; if that stays so, leave out metrics_listen=off there"),
        "{told}"
    );
}

#[test]
fn another_user_sees_nothing_and_is_told_whose_the_engine_is() {
    const NOBODY: u32 = 65534;
    const AS_ROOT: &str = "sudo -E cargo test -p polyrail-cli --test alone top::";
    if !rustix::process::geteuid().is_root() {
        return skip("only root can be another user", AS_ROOT);
    }
    let engine = listening("");
    let mut command = typed(&format!("top {}", engine.0.id()));
    let output = match command.uid(NOBODY).gid(NOBODY).output() {
        Ok(output) => output,
        Err(error) => return skip(format!("another user can't run it: {error}"), AS_ROOT),
    };
    let told = errors(&output);
    assert_eq!(output.status.code(), Some(3), "{told}");
    assert!(told.contains("belongs to user 0"), "{told}");
    assert!(told.contains("help: run `polyrail top` as that user or as root"), "{told}");
}

/// Listens under the name of an engine's socket.
fn squat(pid: u32, number: u32) -> UnixListener {
    let name = format!("polyrail-top-{pid}-{number:08x}");
    UnixListener::bind_addr(&SocketAddr::from_abstract_name(name).unwrap()).unwrap()
}

#[test]
fn a_process_that_forges_lines_is_named_and_its_text_is_not_shown() {
    let own = std::process::id();
    let listener = squat(own, 10);
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(
                b"HTTP/1.1 200 OK\r\n\r\n# TYPE polyrail_peers gauge\n\
                  polyrail_peers{engine=\"x\\n9 forged eth0: cut\"} 1\n# EOF\n",
            );
        }
    });
    let output = typed(&format!("top {own} --count 1 --interval 200ms")).output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", errors(&output));
    assert!(output.stdout.is_empty(), "{}", String::from_utf8_lossy(&output.stdout));
    let says = "hung up, or sent something other than metrics";
    assert!(errors(&output).contains(says), "{}", errors(&output));
    assert!(!errors(&output).contains("forged"), "{}", errors(&output));
}

#[test]
fn names_that_another_process_squats_on_keep_nobody_waiting() {
    let engine = listening("");
    let pid = engine.0.id();
    // Half of the names have the number of no process. The others have the engine's, though this process owns the
    // sockets.
    let squatted: Vec<UnixListener> =
        (0..600).map(|at| squat(if at % 2 == 0 { u32::MAX - at } else { pid }, at)).collect();
    let start = Instant::now();
    let output = typed(&format!("top {pid} --count 1 --interval 200ms")).output().unwrap();
    // Two samples; each would take 10 s if `top` asked all of them, 64 at a time.
    assert!(start.elapsed() < Duration::from_secs(8), "{:?}", start.elapsed());
    assert_eq!(output.status.code(), Some(0), "{}", errors(&output));
    assert!(String::from_utf8_lossy(&output.stdout).contains(&pid.to_string()));
    drop(squatted);
}

#[test]
fn a_process_without_an_engine_and_one_that_is_gone_are_refused() {
    let gone = {
        let mut child = Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        child.id()
    };
    // `cat` waits until the test kills it.
    let other = Process(Command::new("cat").stdin(Stdio::piped()).spawn().unwrap());
    for (pid, fault) in [(gone, "no such process"), (other.0.id(), "the process has no engine")] {
        let output = typed(&format!("top {pid}")).output().unwrap();
        let told = errors(&output);
        assert_eq!(output.status.code(), Some(2), "{told}");
        assert!(told.starts_with(&format!("polyrail: PID `{pid}`: {fault}; allowed: ")), "{told}");
        assert!(told.contains("\nhelp: "), "{told}");
    }
    let output = typed("top --interval 1ms").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(errors(&output).contains("allowed: 200ms to 1h"), "{}", errors(&output));
}

/// Closing the terminal window ends what runs in it, as Ctrl-C does.
#[test]
fn the_end_of_the_terminal_ends_whatever_looks_on_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().display();
    let (engine, out) = (listening(""), folder.path().join("samples"));
    let cases = [
        (format!("sample --interval 100ms --out {}", out.display()), 0),
        (format!("top {}", engine.0.id()), 0),
        (format!("exporter --listen 127.0.0.1:0 --dir {place}"), 0),
        (format!("peers --set rendezvous=dir://{place} --watch"), 0),
        ("host show irq --interval 1h".to_owned(), 130),
    ];
    for (words, code) in cases {
        for signal in [Signal::HUP, Signal::TERM] {
            let _ = std::fs::remove_file(&out);
            // If the tests run under nohup, this signal is ignored.
            let program = ["--default-signal=HUP", PROGRAM];
            let mut command = Command::new("env");
            let mut process = start(command.args(program).args(words.split_whitespace()));
            let since = Instant::now();
            while !catches_the_terminals_end(process.0.id()) {
                let ended = process.0.try_wait().unwrap();
                assert!(ended.is_none() && since.elapsed() < DEADLINE, "{words}: {ended:?}");
                // Polls: another process is starting.
                thread::sleep(Duration::from_millis(5));
            }
            if words.starts_with("peers") {
                // Before this line, `peers` exits like a command that has not come so far.
                let mut told = BufReader::new(process.0.stderr.take().unwrap()).lines();
                assert!(told.any(|line| line.unwrap().contains("watching the group")));
            }
            process.signal(signal);
            assert_eq!(process.0.wait().unwrap().code(), Some(code), "{words}: {signal:?}");
            if words.starts_with("sample") {
                let text = std::fs::read_to_string(&out).unwrap();
                let last: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
                assert_eq!(last["record"], "end", "{text}");
            }
        }
    }
}

fn catches_the_terminals_end(process: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    // HUP is the lowest bit.
    caught.is_some_and(|mask| u64::from_str_radix(mask.trim(), 16).unwrap() & 1 == 1)
}
