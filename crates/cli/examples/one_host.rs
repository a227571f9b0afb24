//! How fast host memory moves between two processes of this host, and between two engines of one: by
//! a single copy and over loopback TCP, in turn, beside threads that only copy.
//!
//! ```sh
//! cargo run --release -p polyrail-cli --example one_host -- [ROUNDS]
//! ```

use std::error::Error;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use polyrail::{Config, Engine, Memory, Peer, Region, RemoteRegion, Request};
use polyrail_report::median_of_sorted;

const BYTES: u64 = 256 << 20;
/// How long a figure of one round is measured.
const SAMPLE: Duration = Duration::from_millis(250);
const SHAPES: [(u64, usize); 9] = [
    (BYTES, 1),
    (1 << 20, 1),
    (1 << 20, 16),
    (64 << 10, 1),
    (64 << 10, 16),
    (4096, 1),
    (4096, 16),
    (8, 1),
    (8, 16),
];

type Failed = Box<dyn Error>;

fn main() -> Result<(), Failed> {
    match std::env::args().nth(1).as_deref() {
        Some("peer") => peer(),
        rounds => measure(rounds.map_or(Ok(5), str::parse)?),
    }
}

fn engine(single_copy: &str) -> Result<Engine, Failed> {
    let rails = "127.0.0.1,127.0.0.2,127.0.0.3,127.0.0.4";
    let config = Config::builder().set("rails", rails)?.set("single_copy", single_copy)?.build()?;
    Ok(Engine::builder().config(config).build()?)
}

fn memory(byte: u8) -> Result<Memory, Failed> {
    let memory = Memory::anonymous(BYTES)?;
    for at in (0..BYTES).step_by(1 << 20) {
        memory.write_at(at, &vec![byte; 1 << 20])?;
    }
    Ok(memory)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Result<Vec<u8>, Failed> {
    let byte = |at: usize| u8::from_str_radix(&text[at..at + 2], 16);
    Ok((0..text.len()).step_by(2).map(byte).collect::<Result<_, _>>()?)
}

/// The other process: it has memory, and does nothing.
fn peer() -> Result<(), Failed> {
    let memory = memory(2)?;
    let mut kept = Vec::new();
    for single_copy in ["auto", "off"] {
        let engine = engine(single_copy)?;
        let region = engine.register(memory.clone())?;
        println!("{} {}", hex(&engine.metadata()), hex(&region.describe()));
        kept.push((engine, region));
    }
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// One way to the other memory.
struct Way {
    name: &'static str,
    engine: Engine,
    peer: Peer,
    source: Region,
    target: RemoteRegion,
}

impl Way {
    fn new(
        name: &'static str,
        single_copy: &str,
        memory: &Memory,
        (metadata, description): (&[u8], &[u8]),
    ) -> Result<Self, Failed> {
        let engine = engine(single_copy)?;
        let peer = engine.add_peer(metadata)?;
        let (source, target) = (engine.register(memory.clone())?, engine.import(description)?);
        Ok(Self { name, engine, peer, source, target })
    }

    /// Seconds for a transfer, with so many outstanding.
    fn sample(&self, bytes: u64, depth: usize, reads: bool) -> Result<f64, Failed> {
        // All of the memory in turn, as real data would not lie in the cache.
        let places = (BYTES / bytes).min(256);
        let prepare = |at: u64| {
            let (here, there) = (self.source.slice(at, bytes)?, self.target.slice(at, bytes)?);
            let prepared = match reads {
                true => self.engine.prepare(Request::read(&self.peer).segment(here, there)),
                false => self.engine.prepare(Request::write(&self.peer).segment(here, there)),
            };
            Ok::<_, Failed>(prepared?)
        };
        let step = BYTES / places;
        let prepared: Vec<_> =
            (0..places).map(|place| prepare(place * step)).collect::<Result<_, _>>()?;
        prepared[0].post()?.join()?;
        let (began, mut count) = (Instant::now(), 0_usize);
        let mut under_way = std::collections::VecDeque::new();
        while began.elapsed() < SAMPLE || count == 0 {
            while under_way.len() < depth {
                under_way.push_back(prepared[count % prepared.len()].post()?);
                count += 1;
            }
            if let Some(first) = under_way.pop_front() {
                first.join()?;
            }
        }
        for transfer in under_way {
            transfer.join()?;
        }
        Ok(began.elapsed().as_secs_f64() / count as f64)
    }
}

/// Seconds in which so many threads copy the memory once.
fn copies(from: &Memory, to: &Memory, threads: u64) -> f64 {
    let part = BYTES / threads;
    let began = Instant::now();
    let mut count = 0;
    while began.elapsed() < SAMPLE || count == 0 {
        std::thread::scope(|scope| {
            for thread in 0..threads {
                let at = thread * part;
                // Both memories have that many bytes.
                scope.spawn(move || from.copy_to(at, (to, at), part).expect("it is inside"));
            }
        });
        count += 1;
    }
    began.elapsed().as_secs_f64() / f64::from(count)
}

fn measure(rounds: usize) -> Result<(), Failed> {
    let mut child = Command::new(std::env::current_exe()?)
        .arg("peer")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut lines = BufReader::new(child.stdout.take().ok_or("no output")?).lines();
    let mut description = || -> Result<(Vec<u8>, Vec<u8>), Failed> {
        let line = lines.next().ok_or("the other process has ended")??;
        let (metadata, region) = line.split_once(' ').ok_or("the other process says nothing")?;
        Ok((unhex(metadata)?, unhex(region)?))
    };
    let (auto, off) = (description()?, description()?);
    let (source, other) = (memory(1)?, memory(3)?);
    let here = engine("auto")?;
    let target = here.register(other.clone())?;
    let (metadata, region) = (here.metadata(), target.describe());
    let ways = [
        Way::new("single copy, 2 processes", "auto", &source, (&auto.0, &auto.1))?,
        Way::new("single copy, 1 process", "auto", &source, (&metadata, &region))?,
        Way::new("tcp, 2 processes", "off", &source, (&off.0, &off.1))?,
    ];
    for threads in [1, 2] {
        let mut times: Vec<f64> = (0..rounds).map(|_| copies(&source, &other, threads)).collect();
        println!("memcpy, {threads} thread(s): {}", show(&mut times, BYTES));
    }
    for (bytes, depth) in SHAPES {
        for reads in [false, true] {
            let mut times = vec![Vec::new(); ways.len() + 2];
            for _ in 0..rounds {
                for (way, times) in ways.iter().zip(&mut times) {
                    times.push(way.sample(bytes, depth, reads)?);
                }
                if bytes == BYTES {
                    times[ways.len()].push(copies(&source, &other, 1));
                    times[ways.len() + 1].push(copies(&source, &other, 2));
                }
            }
            let kind = if reads { "read" } else { "write" };
            let names =
                ways.iter().map(|way| way.name).chain(["memcpy, 1 thread", "memcpy, 2 threads"]);
            for (name, times) in names.zip(&mut times).filter(|(_, times)| !times.is_empty()) {
                let text = show(times, bytes);
                println!("{kind} {bytes} B, depth {depth}, {name}: {text}");
            }
            std::io::stdout().flush()?;
        }
    }
    drop(child.stdin.take());
    child.wait()?;
    Ok(())
}

/// Median, slowest and fastest.
fn show(seconds: &mut [f64], bytes: u64) -> String {
    seconds.sort_by(f64::total_cmp);
    let rate = |seconds: f64| bytes as f64 / seconds / 1e9;
    let median = median_of_sorted(seconds).unwrap_or(f64::NAN);
    let last = seconds[seconds.len() - 1];
    format!(
        "{:.2} us, {:.2} GB/s ({:.2} to {:.2})",
        median * 1e6,
        rate(median),
        rate(last),
        rate(seconds[0])
    )
}
