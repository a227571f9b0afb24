//! What it costs to watch a host: `watched [ENGINES] [SCRAPES]`, 64 and 100 by default.
//!
//! Each engine is in a process of its own and has two peers. An exporter in this process is scraped as
//! Prometheus does it, but without a pause. Its time and the CPU time of this process are measured,
//! and the CPU time of all engines; the last line is JSON.
#![forbid(unsafe_code)]

mod apart;

use std::io::{self, BufRead, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};
use std::{env, fs, process, thread};

use apart::{Apart, Failure, config, is_engine, numbers};
use polyrail::Engine;
use polyrail_metrics::Exporter;

/// Longer than the exporter uses a text again.
const PAUSE: Duration = Duration::from_millis(500);
const INTERVAL: Duration = Duration::from_secs(15);

fn main() -> Result<(), Failure> {
    if is_engine() {
        return engine();
    }
    let [engines, scrapes] = numbers([64, 100])?;
    measure(engines, scrapes)
}

/// A process under test: is told where to serve its metrics, says where it listens, connects to the
/// address that it is told, and sleeps until its input ends.
fn engine() -> Result<(), Failure> {
    let mut listen = String::new();
    io::stdin().lock().read_line(&mut listen)?;
    let config = config(&[("metrics_listen", listen.trim())])?;
    let engine = Engine::builder().config(config).build()?;
    println!("{}", engine.addresses().first().ok_or("no address")?);
    let mut line = String::new();
    io::stdin().lock().read_line(&mut line)?;
    let peer = engine.connect(line.trim().parse()?).join()?;
    for _ in 0..10 {
        engine.notify(&peer, b"here")?.join()?;
    }
    println!("connected");
    io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

fn measure(engines: u64, scrapes: u64) -> Result<(), Failure> {
    let folder = env::temp_dir().join(format!("polyrail-watched-{}", process::id()));
    fs::create_dir(&folder)?;
    let measured = measure_in(&folder, engines, scrapes);
    fs::remove_dir_all(&folder)?;
    measured
}

fn measure_in(folder: &Path, engines: u64, scrapes: u64) -> Result<(), Failure> {
    let listen = format!("dir:{}", folder.display());
    let mut processes = Vec::new();
    let mut addresses = Vec::new();
    for _ in 0..engines {
        let mut process = Apart::start()?;
        tell(&mut process, &listen)?;
        addresses.push(process.line()?);
        processes.push(process);
    }
    // Each connects to the next one, in a ring.
    for (index, process) in processes.iter_mut().enumerate() {
        tell(process, &addresses[(index + 1) % addresses.len()])?;
    }
    for process in &mut processes {
        process.line()?;
    }
    let exporter = Exporter::start(SocketAddr::from(([127, 0, 0, 1], 0)), Some(folder), "watched")?;
    let mut bytes = scrape(exporter.address())?.len();
    let pids: Vec<u32> = processes.iter().map(|process| process.child.id()).collect();
    let cpu_of_engines = || pids.iter().map(|pid| cpu_ns(*pid)).sum::<Result<u64, Failure>>();
    let (own_before, engines_before) = (cpu_ns(process::id())?, cpu_of_engines()?);
    let mut times = Vec::new();
    for _ in 0..scrapes {
        thread::sleep(PAUSE);
        let start = Instant::now();
        bytes = scrape(exporter.address())?.len();
        times.push(start.elapsed());
    }
    let own_ns = cpu_ns(process::id())? - own_before;
    let engines_ns = cpu_of_engines()? - engines_before;
    times.sort();
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let at = |part: f64| times.get(((times.len() - 1) as f64 * part) as usize).copied().map(ms);
    let percent = |ns: u64| ns as f64 / scrapes as f64 / INTERVAL.as_nanos() as f64 * 100.0;
    let found = serde_json::json!({
        "engines": engines, "scrapes": scrapes, "bytes": bytes,
        "scrape_ms_median": at(0.5), "scrape_ms_p90": at(0.9), "scrape_ms_most": at(1.0),
        "exporter_cpu_ms_per_scrape": own_ns as f64 / 1e6 / scrapes as f64,
        "exporter_percent_of_a_core_every_15_s": percent(own_ns),
        "all_engines_cpu_ms_per_scrape_and_pause": engines_ns as f64 / 1e6 / scrapes as f64,
    });
    println!("{found}");
    Ok(())
}

/// Writes a line to its input.
fn tell(process: &mut Apart, line: &str) -> Result<(), Failure> {
    Ok(writeln!(process.child.stdin.as_mut().ok_or("no input")?, "{line}")?)
}

fn scrape(address: SocketAddr) -> Result<String, Failure> {
    let mut stream = TcpStream::connect(address)?;
    let accept = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5";
    write!(stream, "GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: {accept}\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
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
