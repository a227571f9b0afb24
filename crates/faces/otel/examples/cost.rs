//! Cost of spans: writes between two engines of this process, alternating with and without spans.
//!
//! `cargo run --release -p polyrail-otel --example cost -- 65536 64 9` makes nine rounds of a second each, with 64
//! writes of 64 KiB outstanding. Each round measures notifications alone, spans with one trace of a hundred, and spans
//! of all. An exporter in this process takes the spans in batches and drops them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use opentelemetry::Context;
use opentelemetry::trace::TracerProvider;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider, SpanData, SpanExporter};
use polyrail::{Config, Engine, Memory, Peer, Region, RemoteRegion, Request, Transfer};
use polyrail_otel::Joined;

type Failed = Box<dyn std::error::Error>;
type Spans = polyrail_otel::Spans<SdkTracer>;

#[derive(Debug)]
struct Dropping;

impl SpanExporter for Dropping {
    async fn export(&self, _: Vec<SpanData>) -> OTelSdkResult {
        Ok(())
    }
}

/// The writes of one program.
struct Writer {
    engine: Engine,
    peer: Peer,
    here: Region,
    there: RemoteRegion,
    bytes: u64,
    depth: usize,
}

impl Writer {
    /// Writes for `time` and returns bytes per second.
    fn run(&self, spans: Option<&Spans>, time: Duration) -> Result<f64, Failed> {
        let begin = Instant::now();
        let (mut outstanding, mut done) = (VecDeque::<Transfer>::new(), 0);
        while begin.elapsed() < time {
            while outstanding.len() < self.depth {
                outstanding.push_back(self.post(spans)?);
            }
            outstanding.pop_front().expect("one is outstanding").join()?;
            done += 1;
        }
        for transfer in outstanding {
            transfer.join()?;
            done += 1;
        }
        Ok((done * self.bytes) as f64 / begin.elapsed().as_secs_f64())
    }

    fn post(&self, spans: Option<&Spans>) -> Result<Transfer, Failed> {
        let here = self.here.slice(0, self.bytes)?;
        let write = Request::write(&self.peer).segment(here, self.there.slice(0, self.bytes)?);
        let write = match spans {
            None => write.notification(b"done".to_vec()).on_end(|_| ()),
            Some(spans) => {
                let span = spans.transfer(&Context::new(), "write", &self.peer);
                let notification = span.carry(b"done");
                write.notification(notification).on_end(move |result| span.end(result))
            }
        };
        Ok(self.engine.post(write)?)
    }
}

fn main() -> Result<(), Failed> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let word =
        |index: usize, otherwise: &str| words.get(index).map_or(otherwise.to_owned(), Clone::clone);
    let bytes: u64 = word(0, "65536").parse()?;
    let (depth, rounds): (usize, u32) = (word(1, "64").parse()?, word(2, "9").parse()?);

    let provider = SdkTracerProvider::builder().with_batch_exporter(Dropping).build();
    let some = Spans::new(provider.tracer("polyrail"), 0.01)?;
    let all = Spans::new(provider.tracer("polyrail"), 1.0)?;
    // The other end follows the context's decision, so one observer serves both.
    let rails = "127.0.0.1,127.0.0.2,127.0.0.3,127.0.0.4";
    let config = Config::builder().set("rails", rails)?.set("path", "tcp")?.build()?;
    let reader =
        Engine::builder().config(config.clone()).observer(Arc::new(Joined::new(&some))).build()?;
    let engine = Engine::builder().config(config).build()?;
    let target = reader.register(Memory::anonymous(bytes)?)?;
    let here = engine.register(Memory::anonymous(bytes)?)?;
    let peer = engine.add_peer(&reader.metadata())?;
    let there = engine.import(&target.describe())?;
    let writer = Writer { engine, peer, here, there, bytes, depth };

    let is_over = AtomicBool::new(false);
    thread::scope(|scope| -> Result<(), Failed> {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                while reader.wait_notification(Duration::from_millis(100)).is_some() {}
            }
        });
        let measured = compare(&writer, [None, Some(&some), Some(&all)], rounds);
        is_over.store(true, Ordering::Relaxed);
        measured
    })
}

fn compare(writer: &Writer, modes: [Option<&Spans>; 3], rounds: u32) -> Result<(), Failed> {
    let second = Duration::from_secs(1);
    writer.run(None, second)?;
    let mut rates = [const { Vec::new() }; 3];
    for _ in 0..rounds {
        for (mode, rates) in modes.iter().zip(&mut rates) {
            rates.push(writer.run(*mode, second)?);
        }
    }
    let names = ["no spans", "one of a hundred", "all"];
    for (name, mode) in names.iter().zip(&rates) {
        let mut ratios: Vec<f64> =
            mode.iter().zip(&rates[0]).map(|(rate, plain)| rate / plain).collect();
        let mut mode = mode.clone();
        for list in [&mut ratios, &mut mode] {
            list.sort_by(f64::total_cmp);
        }
        let (middle, last) = (mode.len() / 2, mode.len() - 1);
        println!(
            "{name:>16}: {:.2} GB/s ({:.2} to {:.2}), {:.3} ({:.3} to {:.3}) of no spans",
            mode[middle] / 1e9,
            mode[0] / 1e9,
            mode[last] / 1e9,
            ratios[middle],
            ratios[0],
            ratios[last],
        );
    }
    Ok(())
}
