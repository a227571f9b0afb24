//! CPU time of a message between two engines of one host whose callers move the data, through shared memory and
//! over loopback TCP, in turn: one thread drives both ends, so that its CPU time is all that a message costs.
//! Other programs that use the CPUs disturb this less than a measurement of time.
//!
//! ```sh
//! cargo run --release -p polyrail-cli --example one_thread -- [ROUNDS]
//! ```
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::error::Error;

use polyrail::{Config, Engine, Memory, Peer, Region};
use polyrail_report::median_of_sorted;
use polyrail_sys::threads::thread_cpu_time;

/// Bytes of a message, and how many a round has.
const SHAPES: [(u64, u64); 3] = [(8, 40_000), (4096, 40_000), (64 << 10, 8_000)];
const DEPTH: u64 = 16;
/// Room for the longest.
const SLOT_BYTES: u64 = 64 << 10;
const TAG: u64 = 1;

type Failed = Box<dyn Error>;

struct Pair {
    from: Engine,
    to: Engine,
    receiver: Peer,
    sender: Peer,
    source: Region,
    target: Region,
}

fn main() -> Result<(), Failed> {
    let rounds = std::env::args().nth(1).map_or(Ok(5), |rounds| rounds.parse::<usize>())?;
    let ways = [("shared memory", Pair::new("auto")?), ("tcp", Pair::new("tcp")?)];
    for (bytes, count) in SHAPES {
        let mut times = [Vec::new(), Vec::new()];
        for _ in 0..rounds {
            for ((_, pair), times) in ways.iter().zip(&mut times) {
                times.push(pair.sample(bytes, count)?);
            }
        }
        for ((name, _), times) in ways.iter().zip(&mut times) {
            times.sort_by(f64::total_cmp);
            let median = median_of_sorted(times).unwrap_or(f64::NAN);
            let (first, last) = (times[0], times[times.len() - 1]);
            println!(
                "message {bytes} B, depth {DEPTH}, {name}: {median:.2} us ({first:.2} to {last:.2})"
            );
        }
    }
    Ok(())
}

impl Pair {
    fn new(path: &str) -> Result<Self, Failed> {
        let engine = || -> Result<Engine, Failed> {
            let config = Config::builder().set("preset", "latency")?.set("rails", "127.0.0.1")?;
            let config = config.set("path", path)?.build()?;
            Ok(Engine::builder().config(config).build()?)
        };
        let (from, to) = (engine()?, engine()?);
        let receiver = from.add_peer(&to.metadata())?;
        let sender = to.add_peer(&from.metadata())?;
        let memory = || Memory::anonymous(DEPTH * SLOT_BYTES);
        let (source, target) = (from.register(memory()?)?, to.register(memory()?)?);
        Ok(Self { from, to, receiver, sender, source, target })
    }

    /// Microseconds of CPU time of a message.
    fn sample(&self, bytes: u64, count: u64) -> Result<f64, Failed> {
        let began = thread_cpu_time();
        let mut open = VecDeque::new();
        let mut posted = 0;
        while posted < count || !open.is_empty() {
            while posted < count && (open.len() as u64) < DEPTH {
                let at = posted % DEPTH * SLOT_BYTES;
                let place = self.target.slice(at, bytes)?;
                let receive = self.to.receive(&self.sender, TAG, &place)?;
                let part = self.source.slice(at, bytes)?;
                open.push_back((receive, self.from.send(&self.receiver, TAG, &part)?));
                posted += 1;
            }
            self.from.progress();
            self.to.progress();
            while let Some((receive, send)) = open.front() {
                let (Some(received), Some(sent)) = (receive.try_wait(), send.try_wait()) else {
                    break;
                };
                received?;
                sent?;
                open.pop_front();
            }
        }
        let used = thread_cpu_time().saturating_sub(began);
        Ok(used.as_secs_f64() / count as f64 * 1e6)
    }
}
