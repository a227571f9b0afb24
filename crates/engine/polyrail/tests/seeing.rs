//! Diagnostics of an engine: the trace of each chunk, and the state dump on a signal. Alone in its process, which gets
//! the signal.

mod common;

use std::process::Command;

use common::*;
use polyrail::{Config, Engine, Explain};

#[test]
fn the_trace_has_each_chunk_at_both_ends_with_its_rail() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).display().to_string();
    let (sent, landed) = (file("sent.json"), file("landed.json"));
    let a = engine(&[("trace_file", &sent), ("chunk_bytes", "64KiB")]);
    let b = engine(&[("trace_file", &landed)]);
    let to_b = a.add_peer(&b.metadata()).unwrap();
    let (source, target) = (filled(&a, 1 << 20, 1), zeroed(&b, 1 << 20));
    let transfer = a.write(&to_b, &source.all(), &remote(&a, &target).all()).unwrap();
    transfer.ended().unwrap();
    drop((transfer, a, b));
    for (path, direction) in [(sent, "tx"), (landed, "rx")] {
        let text = std::fs::read_to_string(path).unwrap();
        let trace: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(trace["dropped_events"], 0);
        let events = trace["traceEvents"].as_array().unwrap();
        let bytes = |e: &&serde_json::Value| e["args"]["bytes"].as_u64().filter(|b| *b > 0);
        let chunks: Vec<_> = events.iter().filter(|e| bytes(e).is_some()).collect();
        let sizes: Vec<u64> = chunks.iter().filter_map(bytes).collect();
        assert!(sizes.len() >= 16 && sizes.iter().all(|size| *size <= 65536), "{sizes:?}");
        assert_eq!(sizes.iter().sum::<u64>(), 1 << 20, "{direction}");
        for chunk in chunks {
            assert!(chunk["name"].as_str().unwrap().starts_with(direction), "{chunk}");
            assert!(chunk["args"]["rail"].as_str().unwrap().starts_with("lo@"), "{chunk}");
            let end = chunk["ts"].as_f64().unwrap() + chunk["dur"].as_f64().unwrap();
            if direction == "tx" {
                let moment = |name: &str| chunk["args"][name].as_f64().unwrap();
                assert!(moment("posted_us") > 0.0, "{chunk}");
                assert!(moment("posted_us") <= moment("written_us"), "{chunk}");
                assert!(moment("written_us") > chunk["ts"].as_f64().unwrap(), "{chunk}");
                assert!(end > moment("posted_us"), "{chunk}");
            }
        }
    }
}

#[test]
fn a_trace_that_cannot_be_written_is_refused_and_not_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    rustix::fs::mkfifoat(rustix::fs::CWD, at("pipe"), rustix::fs::Mode::RWXU).unwrap();
    for (file, why) in [
        (at("pipe"), "it is a named pipe"),
        (at("none/trace"), "No such file"),
        (at(""), "it is a directory"),
    ] {
        let config = Config::builder().set("trace_file", &file).unwrap().build().unwrap();
        let error = Engine::builder().config(config).build().unwrap_err();
        let text = error.to_string();
        assert!(text.starts_with(&format!("trace_file = `{file}` (")), "{text}");
        assert!(text.contains(why) && text.matches("; allowed: ").count() == 1, "{text}");
        assert!(error.help().unwrap().contains("a folder that exists"));
        assert_eq!(error.exit_code(), 2, "{text}");
    }
    let kept = at("kept");
    std::fs::write(&kept, "older and longer than what nobody moved: ".repeat(40)).unwrap();
    drop(engine(&[("trace_file", &kept)]));
    let text = std::fs::read_to_string(&kept).unwrap();
    assert!(text.starts_with('{') && text.ends_with("]}\n"), "{text}");
    drop(engine(&[("trace_file", "/dev/null")]));
}

#[test]
fn totals_keep_what_moved_with_peers_that_are_gone() {
    let a = engine(&[]);
    let source = filled(&a, 1 << 20, 1);
    for count in 1..=3 {
        let b = engine(&[]);
        let to_b = a.add_peer(&b.metadata()).unwrap();
        let target = zeroed(&b, 1 << 20);
        let there = remote(&a, &target).all();
        a.write(&to_b, &source.all(), &there).unwrap().ended().unwrap();
        let totals = a.stats().totals;
        assert_eq!((totals.tx_bytes, totals.rx_bytes), (count << 20, 0));
        assert_eq!(b.stats().totals.rx_bytes, 1 << 20);
        let landed = b.stats();
        let chunks: u64 = landed.peers[0].rails.iter().map(|rail| rail.rx_chunks).sum();
        assert_eq!(landed.totals.rx_chunks, chunks);
        a.remove_peer(&to_b);
        let stats = a.stats();
        assert_eq!((stats.peers.len(), stats.totals.tx_bytes), (0, count << 20));
        assert!(stats.totals.tx_chunks >= totals.tx_chunks);
        assert!(stats.to_string().starts_with("peers 0, 0 of 0 flows up, operations 0; sent "));
    }
}

#[test]
fn an_engine_lives_on_whose_state_nobody_reads_from_a_pipe() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RWXU).unwrap();
    let a = engine(&[("dump_signal", "USR1"), ("log_file", pipe.to_str().unwrap())]);
    let kill = format!("kill -USR1 {}", std::process::id());
    assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
    // The thread that writes the state also connects.
    for _ in 0..3 {
        let b = engine(&[]);
        let to_b = a.add_peer(&b.metadata()).unwrap();
        a.notify(&to_b, b"x").unwrap().ended().unwrap();
    }
}

#[test]
fn a_signal_appends_the_state_to_the_log() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("state-%p.txt").display().to_string();
    let a = engine(&[("dump_signal", "USR2"), ("log_file", &file)]);
    let b = engine(&[]);
    let to_b = a.add_peer(&b.metadata()).unwrap();
    let source = filled(&a, 64, 1);
    let _waits = a.send(&to_b, 4711, &source.all()).unwrap();
    a.notify(&to_b, b"x").unwrap().ended().unwrap();
    let pid = std::process::id();
    let path = file.replace("%p", &pid.to_string());
    assert!(
        Command::new("sh").args(["-c", &format!("kill -USR2 {pid}")]).status().unwrap().success()
    );
    wait_for("the state in the file", || {
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        text.contains("send tag 4711: 64 bytes, waits")
    });
}
