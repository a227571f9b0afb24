//! What strangers cost an engine: `strangers [TRIES] [PER_SECOND] [CPUS]`, 100000 and 5000 by default; 0 a
//! second is as fast as they can. CPUS, a list like 2,3, are those of the strangers: they come from
//! elsewhere, and under `taskset` the engines don't share theirs with them.
//!
//! The engine under test is a process of its own. An honest peer writes to it without a pause, first
//! alone, then while strangers try to connect who prove a guess; in turn, several times. Nobody of
//! them may be let in. The rates of the peer, and the engine's memory before and after, are printed.
#![forbid(unsafe_code)]

mod apart;

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use apart::{Apart, Failure, config, is_engine, numbers};
use polyrail::{Engine, Memory, Peer, Region, RemoteRegion};
use polyrail_proto::hello::{Kind, PREFIX_BYTES, Prefix};
use polyrail_secure::{Capability, Identity, Initiator, Proof};
use polyrail_sys::threads::bind_current;

const BYTES: u64 = 64 << 20;
const ROUNDS: u64 = 5;

fn main() -> Result<(), Failure> {
    if is_engine() {
        return engine();
    }
    let [tries, per_second] = numbers([100_000, 5_000])?;
    let list = env::args().nth(3).unwrap_or_default();
    let cpus: Result<Vec<u32>, _> = list.split_terminator(',').map(str::parse).collect();
    measure(tries, per_second, &cpus?)
}

/// The process under test: says how it can be reached, and then how many peers it has, each time that it is
/// asked.
fn engine() -> Result<(), Failure> {
    let engine = Engine::builder().config(config(&[])?).build()?;
    let region = engine.register(Memory::anonymous(BYTES)?)?;
    println!("{} {}", hex(&engine.metadata()), hex(&region.describe()));
    for line in io::stdin().lines() {
        line?;
        println!("{} {}", engine.peers().len(), engine.stats().refused_connections);
        io::stdout().flush()?;
    }
    Ok(())
}

struct Target {
    process: Apart,
    metadata: Vec<u8>,
    description: Vec<u8>,
}

impl Target {
    fn start() -> Result<Self, Failure> {
        let mut process = Apart::start()?;
        let line = process.line()?;
        let (metadata, description) = line.split_once(' ').ok_or("no metadata")?;
        Ok(Self { process, metadata: unhex(metadata)?, description: unhex(description)? })
    }

    /// Peers, and connections that were turned away.
    fn counts(&mut self) -> Result<(u64, u64), Failure> {
        writeln!(self.process.child.stdin.as_mut().ok_or("no input")?)?;
        let line = self.process.line()?;
        let (peers, refused) = line.split_once(' ').ok_or("no counts")?;
        Ok((peers.parse()?, refused.parse()?))
    }

    fn resident_mb(&self) -> Result<f64, Failure> {
        let statm = fs::read_to_string(format!("/proc/{}/statm", self.process.child.id()))?;
        let pages: f64 = statm.split_whitespace().nth(1).ok_or("no size")?.parse()?;
        Ok(pages * 4096.0 / 1e6)
    }
}

struct Honest {
    engine: Engine,
    peer: Peer,
    local: Region,
    remote: RemoteRegion,
}

impl Honest {
    fn meet(target: &Target) -> Result<Self, Failure> {
        let engine = Engine::builder().config(config(&[])?).build()?;
        let peer = engine.add_peer(&target.metadata)?;
        let local = engine.register(Memory::anonymous(BYTES)?)?;
        let remote = engine.import(&target.description)?;
        Ok(Self { engine, peer, local, remote })
    }

    /// GB/s while `goes_on`, at least one transfer.
    fn rate(&self, goes_on: impl Fn() -> bool) -> Result<f64, Failure> {
        let (begin, mut bytes) = (Instant::now(), 0);
        loop {
            self.engine.write(&self.peer, &self.local.all(), &self.remote.all())?.join()?;
            bytes += BYTES;
            if !goes_on() {
                return Ok(bytes as f64 / begin.elapsed().as_secs_f64() / 1e9);
            }
        }
    }
}

fn measure(tries: u64, per_second: u64, cpus: &[u32]) -> Result<(), Failure> {
    let mut target = Target::start()?;
    let honest = Honest::meet(&target)?;
    let address = honest.peer_address(&target)?;
    honest.rate(|| false)?;
    let (before, mut ratios) = (target.resident_mb()?, Vec::new());
    for round in 0..ROUNDS {
        let begin = Instant::now();
        let alone = honest.rate(|| begin.elapsed() < Duration::from_secs(2))?;
        let (over, answered) = (AtomicBool::new(false), AtomicU64::new(0));
        let (begin, count) = (Instant::now(), tries / ROUNDS);
        let beside = thread::scope(|scope| {
            let others = scope.spawn(|| {
                let moved = if cpus.is_empty() { Ok(()) } else { bind_current(cpus) };
                let done = moved
                    .map_err(Failure::from)
                    .and_then(|()| strangers(address, count, per_second, &answered));
                over.store(true, Ordering::Release);
                done
            });
            let rate = honest.rate(|| !over.load(Ordering::Acquire));
            others.join().map_err(|_| "the strangers' thread panicked")?.and(rate)
        })?;
        let rate = count as f64 / begin.elapsed().as_secs_f64();
        println!(
            "round {round}: {alone:.2} GB/s alone, {beside:.2} beside {rate:.0} strangers a second, \
             ratio {:.2}; {} of {count} were refused in words",
            beside / alone,
            answered.load(Ordering::Relaxed)
        );
        ratios.push(beside / alone);
    }
    ratios.sort_by(f64::total_cmp);
    let (peers, refused) = target.counts()?;
    let after = target.resident_mb()?;
    println!(
        "{tries} strangers, {refused} turned away, {} let in; median ratio {:.2} ({:.2} to {:.2}); \
         memory {before:.1} to {after:.1} MB",
        peers - 1,
        polyrail_report::median(ratios.iter().copied()).unwrap_or(f64::NAN),
        ratios[0],
        ratios[ratios.len() - 1]
    );
    if peers != 1 || refused < tries {
        return Err("somebody was let in, or not counted".into());
    }
    Ok(())
}

impl Honest {
    fn peer_address(&self, target: &Target) -> Result<SocketAddr, Failure> {
        let metadata = polyrail_proto::hello::Metadata::decode(&target.metadata)?;
        Ok(metadata.card.rails.first().ok_or("no rail")?.address)
    }
}

/// Each proves a guess, and reads what it is told.
fn strangers(
    address: SocketAddr,
    count: u64,
    per_second: u64,
    answered: &AtomicU64,
) -> Result<(), Failure> {
    let identity = Identity::fresh()?;
    let begin = Instant::now();
    for number in 0..count {
        if per_second > 0 {
            let due = Duration::from_secs_f64(number as f64 / per_second as f64);
            thread::sleep(due.saturating_sub(begin.elapsed()));
        }
        let guess = Capability::new((u128::from(number) << 64 | 0xbad).to_le_bytes()).secret();
        // One key for all of them would do for the engine; each message is another one.
        let (_, first) = Initiator::new(&identity, Proof::Capability, &guess)?;
        let mut stream = TcpStream::connect(address)?;
        let said = stream.write_all(&Kind::First.framed(&first));
        let mut prefix = [0; PREFIX_BYTES];
        let heard = said.and_then(|()| stream.read_exact(&mut prefix));
        if heard.is_ok() && Prefix::decode(&prefix)?.kind() == Kind::Refusal {
            answered.fetch_add(1, Ordering::Relaxed);
        }
    }
    Ok(())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Result<Vec<u8>, Failure> {
    let digits = text.as_bytes().as_chunks::<2>().0.iter();
    digits.map(|pair| Ok(u8::from_str_radix(str::from_utf8(pair)?, 16)?)).collect()
}
