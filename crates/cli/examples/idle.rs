//! What an idle engine with many peers costs: `idle [PEERS] [SECONDS]`, 64 and 20 by default.
//!
//! The engine is alone in a process of its own; the peers share this one. After everything is
//! connected and has been quiet for a moment, its CPU time and memory are read from `/proc`.
#![forbid(unsafe_code)]

mod apart;

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::time::Duration;
use std::{fs, thread};

use apart::{Apart, Failure, config, is_engine, numbers};
use polyrail::Engine;

fn main() -> Result<(), Failure> {
    if is_engine() {
        return engine();
    }
    let [peers, seconds] = numbers([64, 20])?;
    measure(peers, seconds)
}

/// The process under test: says where it listens and sleeps until its input ends.
fn engine() -> Result<(), Failure> {
    let engine = Engine::builder().config(config(&[])?).build()?;
    println!("{}", engine.addresses().first().ok_or("no address")?);
    io::stdout().flush()?;
    io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

fn measure(peers: u64, seconds: u64) -> Result<(), Failure> {
    let mut process = Apart::start()?;
    let pid = process.child.id();
    let address: SocketAddr = process.line()?.parse()?;
    let mut engines = Vec::new();
    for _ in 0..peers {
        let engine = Engine::builder().config(config(&[])?).build()?;
        let peer = engine.connect(address).join()?;
        // Data in both directions, so that every flow there can be is there.
        engine.notify(&peer, b"here")?.join()?;
        engines.push((engine, peer));
    }
    thread::sleep(Duration::from_secs(2));
    let before = cpu_ns(pid)?;
    thread::sleep(Duration::from_secs(seconds));
    let used_ns = cpu_ns(pid)?.saturating_sub(before);
    let percent = used_ns as f64 / 1e7 / seconds as f64;
    let resident_kib = resident_kib(pid)?;
    drop(process);
    let found = serde_json::json!({
        "peers": peers, "seconds": seconds, "cpu_percent_of_a_core": percent,
        "resident_kib": resident_kib,
    });
    println!("{found}");
    Ok(())
}

/// CPU time of all threads of a process, in nanoseconds.
fn cpu_ns(pid: u32) -> Result<u64, Failure> {
    let mut total = 0;
    for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
        let text = fs::read_to_string(thread?.path().join("schedstat"))?;
        total += text.split_whitespace().next().ok_or("empty schedstat")?.parse::<u64>()?;
    }
    Ok(total)
}

fn resident_kib(pid: u32) -> Result<u64, Failure> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("no VmRSS")?;
    Ok(line.trim_end_matches("kB").trim().parse()?)
}
