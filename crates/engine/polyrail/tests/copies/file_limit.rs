//! A process whose files may have no bytes (`ulimit -f 0`). To the kernel, shared memory is a file as well. A failed
//! write is an error with its reason, and no signal ends the process. Each place runs in its own process.
//! written is an error that says why, and no signal ends the process. Each place runs in a process of its own.

use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use crate::common::*;
use polyrail::{Engine, PathKind, Request};
use rustix::process::{Signal, getpid, kill_process};

/// Places of an engine that write to files, or make shared memory.
const PLACES: [(&str, fn()); 5] = [
    ("shared memory", payload_takes_the_rails),
    ("streams of callers", connections_use_their_sockets),
    ("publish", publish_returns_the_error),
    ("dump", a_dump_is_left_out),
    ("trace", a_trace_is_left_out),
];
const PLACE: &str = "POLYRAIL_TEST_PLACE";
const LIMIT: &str = "RLIMIT_FSIZE";

fn payload_takes_the_rails() {
    let shared = [("path", "shared")];
    let p = apart(&shared, &shared);
    let (source, target) = (filled(&p.a, 1 << 20, 1), zeroed(&p.b, 1 << 20));
    let there = remote(&p.a, &target);
    let request = Request::write(&p.to_b).segment(source.all(), there.all());
    let prepared = p.a.prepare(request).unwrap();
    finished(&prepared.post().unwrap());
    assert_eq!(prepared.path().kind, PathKind::Tcp, "{}", prepared.path());
    assert!(bytes(&target) == pattern(1 << 20, 1));
    let dump = p.a.dump() + &p.b.dump();
    assert!(dump.contains(LIMIT), "{dump}");
}

fn connections_use_their_sockets() {
    let caller = [("progress", "caller"), ("rails", "127.0.0.1")];
    let p = apart(&caller, &caller);
    let (source, target) = (filled(&p.a, 4096, 1), zeroed(&p.b, 4096));
    let there = remote(&p.a, &target);
    let write = p.a.write(&p.to_b, &source.all(), &there.all()).unwrap();
    wait_for("the write", || {
        p.b.progress();
        p.a.progress();
        write.is_over()
    });
    finished(&write);
    let dump = p.a.dump();
    assert!(dump.contains(LIMIT), "{dump}");
}

fn publish_returns_the_error() {
    let engine = one_rail(&[]);
    let path = std::env::temp_dir().join(format!("polyrail-published-{}", std::process::id()));
    let why = engine.publish(&path).unwrap_err().to_string();
    assert!(why.contains("File too large"), "{why}");
    assert!(!path.exists());
}

fn a_dump_is_left_out() {
    let path = std::env::temp_dir().join(format!("polyrail-dump-{}", std::process::id()));
    let file = path.to_str().unwrap();
    let engine = one_rail(&[("dump_signal", "10"), ("log_file", file)]);
    kill_process(getpid(), Signal::USR1).unwrap();
    wait_for("the file", || path.exists());
    still_works(&engine);
    std::fs::remove_file(&path).unwrap();
}

fn a_trace_is_left_out() {
    let path = std::env::temp_dir().join(format!("polyrail-trace-{}", std::process::id()));
    let engine = one_rail(&[("trace_file", path.to_str().unwrap())]);
    still_works(&engine);
    engine.close();
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 0);
    std::fs::remove_file(&path).unwrap();
}

fn still_works(engine: &Engine) {
    let other = one_rail(&[]);
    let to_engine = other.add_peer(&engine.metadata()).unwrap();
    other.notify(&to_engine, b"hello").unwrap().ended().unwrap();
}

#[test]
fn in_a_limited_process() {
    let Ok(place) = std::env::var(PLACE) else {
        // Without the limit, the memory that these places lack can be made.
        assert!(polyrail_sys::SharedMemory::create(1 << 20, 7).is_ok());
        return;
    };
    PLACES[place.parse::<usize>().unwrap()].1();
}

#[test]
fn what_a_limit_of_file_sizes_forbids_is_an_error_and_ends_no_process() {
    for (number, (place, _)) in PLACES.iter().enumerate() {
        let mut child = Command::new("sh");
        child.args(["-c", "ulimit -f 0; exec \"$0\" --exact file_limit::in_a_limited_process"]);
        let ended = child.arg(std::env::current_exe().unwrap()).env(PLACE, number.to_string());
        let ended = ended.output().unwrap();
        let text = String::from_utf8_lossy(&ended.stdout);
        assert_eq!(ended.status.signal(), None, "{place}: {text}");
        assert!(ended.status.success(), "{place}: {text}");
    }
}
