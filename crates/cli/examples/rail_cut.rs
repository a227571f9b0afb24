//! Cuts a rail in the middle of a stream of writes and mends it again, in the lab.
//!
//! Two engines, one in each namespace of a lab, write without pause; every transfer is compared
//! byte by byte when it is done. Prints what landed per second before the cut, from one second
//! after it, and after the rail is back, with the times it took.
//!
//! `cargo run --release -p polyrail-cli --example rail_cut -- --rails 4x1gbit --cut 1`

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use polyrail::{Config, Engine, Memory, Region, RemoteRegion};
use polyrail_lab::{Lab, LabSpec, Side};
use serde_json::json;

/// Cuts a rail in the middle of a stream of writes, in the lab.
#[derive(Parser)]
struct Args {
    /// Rates of the rails.
    #[arg(long, default_value = "4x1gbit")]
    rails: String,
    /// Which rail is cut.
    #[arg(long, default_value_t = 1)]
    cut: usize,
    /// Seconds before the cut, with the rail down, and after it is back.
    #[arg(long, default_value_t = 4)]
    phase: u64,
}

#[derive(Debug)]
pub(crate) struct Report {
    /// Bytes per second with all rails.
    pub(crate) before: f64,
    /// Bytes per second in the second that begins one second after the cut.
    pub(crate) without: f64,
    /// What `without` is of the rails that are left, by their share before.
    pub(crate) of_the_rest: f64,
    /// From the cut until 0.9 of the remaining rails landed again, over 200 ms.
    pub(crate) recovered_after: Option<Duration>,
    /// From the moment the link was up until bytes came over the rail.
    pub(crate) rejoined_after: Option<Duration>,
    /// Bytes per second in the last second.
    pub(crate) after: f64,
    /// Transfers that were compared byte by byte.
    pub(crate) verified: u64,
    /// Chunks that were sent again.
    pub(crate) resent_chunks: u64,
}

const BYTES: u64 = 4 << 20;
const SLOTS: u64 = 16;
const SAMPLE: Duration = Duration::from_millis(50);
const LONG: Duration = Duration::from_secs(60);

pub(crate) fn run(
    rails: &str,
    cut: usize,
    phase: Duration,
) -> Result<Report, Box<dyn std::error::Error>> {
    let name = format!("cut{}", std::process::id());
    let spec = LabSpec::new(name, LabSpec::parse_rails(rails)?);
    let count = spec.rails.len();
    let lab = Lab::up(&spec)?.guard();
    let names: Vec<String> = (0..count).map(|rail| format!("rail{rail}")).collect();
    let names = format!("={}", names.join(","));
    let engine = |side| {
        let names = names.clone();
        // An engine's threads live where the thread that builds it lives.
        thread::scope(|scope| {
            let build = scope.spawn(|| -> Result<Engine, String> {
                lab.enter_thread(side).map_err(|error| error.to_string())?;
                // Both engines are in this process, and the rails are to carry the bytes.
                let config = Config::builder().set("rails", &names);
                let config = config.and_then(|config| config.set("path", "device"));
                let config = config.and_then(polyrail_config::ConfigBuilder::build);
                let config = config.map_err(|error| error.to_string())?;
                Engine::builder().config(config).build().map_err(|error| error.to_string())
            });
            build.join().map_err(|_| "a thread panicked".to_owned())?
        })
    };
    let (a, b) = (engine(Side::A)?, engine(Side::B)?);
    let peer = a.add_peer(&b.metadata())?;
    let target = b.register(Memory::anonymous(SLOTS * BYTES)?)?;
    let remote = a.import(&target.describe())?;
    let sources = [source(&a, 1)?, source(&a, 2)?];
    let stop = AtomicBool::new(false);
    let verified = AtomicU64::new(0);
    let start = Instant::now();
    let mut samples: Vec<(Instant, Vec<u64>)> = Vec::new();
    let (mut cut_at, mut up_at) = (start, start);
    thread::scope(|scope| -> Result<(), Box<dyn std::error::Error>> {
        let writers: Vec<_> = (0..SLOTS)
            .map(|slot| {
                let (a, peer, target, sources) = (&a, &peer, &target, &sources);
                let (stop, verified) = (&stop, &verified);
                let write =
                    move || write_slot(a, peer, slot, sources, target, &remote, stop, verified);
                scope.spawn(write)
            })
            .collect();
        let mut sample = |length: Duration| {
            let until = Instant::now() + length;
            while Instant::now() < until {
                thread::sleep(SAMPLE);
                let rails = b.stats().peers.into_iter().flat_map(|peer| peer.rails);
                samples.push((Instant::now(), rails.map(|rail| rail.rx_bytes).collect()));
            }
        };
        sample(phase);
        cut_at = Instant::now();
        lab.set_link(cut, false)?;
        sample(phase);
        lab.set_link(cut, true)?;
        up_at = Instant::now();
        sample(phase);
        stop.store(true, Ordering::Relaxed);
        for writer in writers {
            writer.join().map_err(|_| "a writer panicked: see above")??;
        }
        Ok(())
    })?;
    let rail_stats = &a.stats().peers[0].rails;
    let resent_chunks = rail_stats.iter().map(|rail| rail.resent_chunks).sum();
    let second = Duration::from_secs(1);
    let total = |from: Instant, length| rate(&samples, from, length, None);
    let before = total(cut_at - phase + second, phase - second);
    let lost = rate(&samples, cut_at - phase + second, phase - second, Some(cut));
    let without = total(cut_at + second, second);
    let enough = 0.9 * (before - lost);
    let window = Duration::from_millis(200);
    let recovered_after = samples
        .iter()
        .map(|(at, _)| *at)
        .find(|at| *at >= cut_at && total(*at, window) >= enough)
        .map(|at| at - cut_at);
    let at_up = samples.iter().rev().find(|(at, _)| *at <= up_at).map_or(0, |(_, r)| r[cut]);
    let rejoined_after =
        samples.iter().find(|(at, r)| *at > up_at && r[cut] > at_up).map(|(at, _)| *at - up_at);
    let after = total(up_at + phase - second, second);
    let verified = verified.into_inner();
    let of_the_rest = without / (before - lost);
    Ok(Report {
        before,
        without,
        of_the_rest,
        recovered_after,
        rejoined_after,
        after,
        verified,
        resent_chunks,
    })
}

fn source(engine: &Engine, seed: u64) -> Result<Region, Box<dyn std::error::Error>> {
    let words = (0..BYTES / 8).map(|i| (i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ seed);
    let bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    Ok(engine.register(Memory::from(bytes))?)
}

/// Writes into one slot, from one source and the other in turn, so that bytes of the transfer
/// before are noticed.
#[expect(clippy::too_many_arguments, reason = "the loop of one thread, with all that it shares")]
fn write_slot(
    engine: &Engine,
    peer: &polyrail::Peer,
    slot: u64,
    sources: &[Region; 2],
    target: &Region,
    remote: &RemoteRegion,
    stop: &AtomicBool,
    verified: &AtomicU64,
) -> Result<(), String> {
    let text = |error: &dyn std::fmt::Display| format!("slot {slot}: {error}");
    let (mut want, mut got) = (vec![0; 1 << 20], vec![0; 1 << 20]);
    for source in sources.iter().cycle() {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let place = remote.slice(slot * BYTES, BYTES).map_err(|error| text(&error))?;
        let transfer = engine.write(peer, &source.all(), &place).map_err(|error| text(&error))?;
        transfer.wait(LONG).ok_or(format!("slot {slot}: stuck"))?.map_err(|error| text(&error))?;
        for at in (0..BYTES).step_by(want.len()) {
            source.read_at(at, &mut want).map_err(|error| text(&error))?;
            target.read_at(slot * BYTES + at, &mut got).map_err(|error| text(&error))?;
            if want != got {
                return Err(format!("slot {slot}: bytes differ in the MiB at {at}"));
            }
        }
        verified.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

/// Bytes per second that landed in the time given, on one rail or on all.
fn rate(
    samples: &[(Instant, Vec<u64>)],
    from: Instant,
    length: Duration,
    rail: Option<usize>,
) -> f64 {
    let at = |moment: Instant| samples.iter().find(|(at, _)| *at >= moment);
    let (Some(first), Some(last)) = (at(from), at(from + length).or(samples.last())) else {
        return 0.0;
    };
    let bytes = |sample: &(Instant, Vec<u64>)| match rail {
        Some(rail) => sample.1.get(rail).copied().unwrap_or(0),
        None => sample.1.iter().sum(),
    };
    let seconds = (last.0 - first.0).as_secs_f64();
    if seconds > 0.0 { (bytes(last) - bytes(first)) as f64 / seconds } else { 0.0 }
}

#[allow(dead_code, reason = "the test that includes this file has no use for it")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args = Args::parse();
    let report = run(&args.rails, args.cut, Duration::from_secs(args.phase.max(3)))?;
    let ms = |time: Option<Duration>| time.map(|time| time.as_secs_f64() * 1e3);
    let json = json!({
        "schema_version": 1,
        "rails": args.rails,
        "cut": args.cut,
        "before_gb_per_s": report.before / 1e9,
        "without_gb_per_s": report.without / 1e9,
        "of_the_rest": report.of_the_rest,
        "recovered_after_ms": ms(report.recovered_after),
        "rejoined_after_ms": ms(report.rejoined_after),
        "after_gb_per_s": report.after / 1e9,
        "verified_transfers": report.verified,
        "resent_chunks": report.resent_chunks,
    });
    println!("{json}");
    Ok(())
}
