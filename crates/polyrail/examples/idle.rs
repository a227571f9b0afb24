//! What an engine costs while it has nothing to do.
//!
//! `cargo run --release -p polyrail --example idle -- --peers 64 --seconds 10` starts one engine in
//! this process and the given number of engines in one other, connects each of them with the first
//! both ways over loopback, with default settings, moves one notification each way, and then
//! watches the first process do nothing. It prints a line for people and a line of JSON.

use std::error::Error;
use std::io::{BufRead, BufReader, Lines, StdinLock, Write};
use std::process::{Child, ChildStdout, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use polyrail::{Config, Engine};
use polyrail_sys::threads::process_cpu_seconds;
use serde_json::json;

const USAGE: &str = "usage: idle [--peers N] [--seconds S]";
const READY_LIMIT: Duration = Duration::from_secs(60);
/// After the last byte moved, until the measurement begins.
const SETTLE: Duration = Duration::from_secs(1);

type Result<T> = std::result::Result<T, Box<dyn Error>>;

struct Options {
    peers: usize,
    seconds: f64,
    /// In the other process.
    are_peers: bool,
}

fn main() -> ExitCode {
    let options = match Options::parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(why) => {
            eprintln!("idle: {why}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let result = if options.are_peers { be_peers(&options) } else { measure(&options) };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("idle: {error}");
            ExitCode::from(4)
        }
    }
}

impl Options {
    fn parse(mut words: impl Iterator<Item = String>) -> std::result::Result<Self, String> {
        let mut options = Self { peers: 64, seconds: 10.0, are_peers: false };
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or(format!("{word} needs a value"));
            match word.as_str() {
                "--peers" => {
                    let text = value()?;
                    let peers = text.parse().ok().filter(|peers| (1..=10_000).contains(peers));
                    options.peers =
                        peers.ok_or(format!("--peers is {text}, allowed: 1 to 10000"))?;
                }
                "--seconds" => {
                    let text = value()?;
                    let seconds = text.parse().ok().filter(|s| (0.1..=3600.0).contains(s));
                    options.seconds =
                        seconds.ok_or(format!("--seconds is {text}, allowed: 0.1 to 3600"))?;
                }
                "--are-peers" => options.are_peers = true,
                other => return Err(format!("{other} is unknown")),
            }
        }
        Ok(options)
    }
}

/// The engine whose cost is measured.
fn measure(options: &Options) -> Result<()> {
    let engine = engine("measured")?;
    let rss_before = rss_bytes()?;
    let mut others = Others::start(options.peers, &engine)?;
    let mut peers = Vec::new();
    for _ in 0..options.peers {
        peers.push(engine.add_peer(&unhex(&others.hear()?)?)?);
    }
    for peer in &peers {
        engine.notify(peer, b"hello")?.wait(READY_LIMIT)?;
    }
    for _ in &peers {
        engine.wait_notification(READY_LIMIT).ok_or("a peer does not answer")?;
    }
    let (flows_up, flows): (Vec<usize>, Vec<usize>) = peers.iter().map(|p| p.flows_up()).unzip();
    let (flows_up, flows) = (flows_up.iter().sum::<usize>(), flows.iter().sum::<usize>());
    if flows_up < flows {
        return Err(format!("{flows_up} of {flows} flows are up").into());
    }
    std::thread::sleep(SETTLE);
    let (since, cpu_before) = (Instant::now(), process_cpu_seconds());
    std::thread::sleep(Duration::from_secs_f64(options.seconds));
    let (cpu_seconds, seconds) =
        (process_cpu_seconds() - cpu_before, since.elapsed().as_secs_f64());
    let rss = rss_bytes()?;
    let per_peer = rss.saturating_sub(rss_before) / options.peers as u64;
    let percent = 100.0 * cpu_seconds / seconds;
    println!(
        "{} peers, {flows} flows out and as many in, idle for {seconds:.1} s: {percent:.3} % of a \
         core, {:.1} MiB resident, {:.1} KiB a peer",
        peers.len(),
        rss as f64 / f64::from(1 << 20),
        per_peer as f64 / 1024.0,
    );
    let line = json!({
        "peers": peers.len(),
        "flows_out": flows,
        "flows_in": flows,
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "cpu_percent_of_core": percent,
        "rss_bytes": rss,
        "rss_bytes_without_peers": rss_before,
        "rss_bytes_per_peer": per_peer,
    });
    println!("{line}");
    Ok(())
}

/// The other process: engines that connect to the measured one and then do nothing, until the end
/// of the input.
fn be_peers(options: &Options) -> Result<()> {
    let mut input: Lines<StdinLock<'_>> = std::io::stdin().lines();
    let measured = unhex(&input.next().ok_or("no metadata")??)?;
    let mut engines = Vec::new();
    for number in 0..options.peers {
        let engine = engine(&format!("peer {number}"))?;
        engine.add_peer(&measured)?;
        println!("{}", hex(&engine.metadata()));
        engines.push(engine);
    }
    std::io::stdout().flush()?;
    for engine in &engines {
        engine.wait_notification(READY_LIMIT).ok_or("the measured engine does not call")?;
        let peers = engine.peers();
        let peer = peers.first().ok_or("the measured engine is gone")?;
        engine.notify(peer, b"hello")?.wait(READY_LIMIT)?;
    }
    input.for_each(drop);
    Ok(())
}

fn engine(name: &str) -> Result<Engine> {
    let config = Config::builder().set("rails", "127.0.0.1")?.build()?;
    Ok(Engine::builder().config(config).name(name).build()?)
}

/// The process of the peers; it ends with its input.
struct Others {
    child: Child,
    output: Lines<BufReader<ChildStdout>>,
}

impl Others {
    fn start(peers: usize, engine: &Engine) -> Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["--are-peers", "--peers", &peers.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let input = child.stdin.as_mut().ok_or("no input to the peers")?;
        writeln!(input, "{}", hex(&engine.metadata()))?;
        let output = BufReader::new(child.stdout.take().ok_or("no output of the peers")?).lines();
        Ok(Self { child, output })
    }

    fn hear(&mut self) -> Result<String> {
        Ok(self.output.next().ok_or("the peers ended")??)
    }
}

impl Drop for Others {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        if let Err(error) = self.child.wait() {
            eprintln!("idle: the peers: {error}");
        }
    }
}

/// Memory of this process that is resident now.
fn rss_bytes() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("no VmRSS")?;
    let kib: u64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kib * 1024)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Result<Vec<u8>> {
    let digits = |at| text.get(at..at + 2).ok_or("an odd number of digits");
    let byte = |at| Ok(u8::from_str_radix(digits(at)?, 16)?);
    (0..text.len()).step_by(2).map(byte).collect()
}
