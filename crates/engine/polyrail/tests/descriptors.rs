//! A process that runs out of descriptors. Alone in its process, since it lowers the limit.

mod common;

use std::fs::File;
use std::io::Write;
use std::sync::{Arc, Mutex};

use common::*;
use polyrail::{EngineError, Flows};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Captured log.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn open() -> Option<File> {
    File::open("/dev/null").ok()
}

#[test]
fn without_descriptors_engines_say_so_and_go_on_once_there_are_some() {
    let log = Log::default();
    let writer = log.clone();
    tracing_subscriber::fmt().with_writer(move || writer.clone()).with_ansi(false).init();
    let logged = |part: &str| String::from_utf8_lossy(&log.0.lock().unwrap()).contains(part);
    let p = pair(&[]);
    wait_for("the flows", || {
        p.to_b.flows() == Flows { up: 4, total: 4 } && p.to_a.flows() == Flows { up: 4, total: 4 }
    });
    let other = engine(&[("reconnect_max_ms", "100")]);
    let limit = Rlimit { current: Some(256), ..getrlimit(Resource::Nofile) };
    setrlimit(Resource::Nofile, limit).unwrap();
    let mut taken: Vec<File> = std::iter::from_fn(open).collect();
    assert!(!taken.is_empty());
    // Existing connections still work.
    let (source, target) = (filled(&p.a, 1 << 20, 1), zeroed(&p.b, 1 << 20));
    let there = remote(&p.a, &target);
    p.a.write(&p.to_b, &source.all(), &there.all()).unwrap().ended().unwrap();
    assert!(bytes(&target) == pattern(1 << 20, 1));
    // A new engine can't start, and its error names the cause.
    let error = builder().config(config(&[])).build().unwrap_err();
    assert!(matches!(error, EngineError::System { .. } | EngineError::Listen { .. }), "{error:?}");
    assert!(error.to_string().contains("Too many open files"), "{error}");
    // A new peer can't be reached for now.
    let to_b = other.add_peer(&p.b.metadata()).unwrap();
    let write = other.notify(&to_b, b"at last").unwrap();
    wait_for("the reason in the dump", || other.dump().contains("Too many open files"));
    // One side can connect, the other can't accept.
    taken.pop();
    wait_for("the log to say so", || logged("can't accept") && logged("Too many open files"));
    drop(taken);
    write.ended().unwrap();
    assert_eq!(p.b.wait_notification(LONG).unwrap().data, b"at last");
}
