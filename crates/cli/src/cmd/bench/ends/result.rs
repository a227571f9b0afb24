//! Report of one size, made from its rounds.

use polyrail_report::{AgainstRaw, AgainstSample, BenchResult, Histogram, LatencyUs, Spread};

use super::events::{Sender, events};
use super::measure::{Bench, RawFacts, Rounds, Yardsticks};
use super::sums::Sums;
use crate::cmd::bench::judge::{Cause, Judged, judge};
use crate::cmd::bench::options::{Op, Schedule, Verify};
use crate::cmd::bench::rivals::{alone, baselines, sweep};
use crate::cmd::bench::trial::Taken;

impl Bench<'_> {
    /// Returns the report of the rounds, and the causes that its verdict names.
    pub(crate) fn result(
        &self,
        size: u64,
        rounds: Rounds,
        sums: Sums,
        raw_facts: Option<RawFacts>,
        yardsticks: &Yardsticks,
    ) -> (BenchResult, Vec<Cause>) {
        let schedule = self.schedule;
        let samples = || rounds.engine.iter().map(|taken| &taken.sample);
        let median = |values: &mut dyn Iterator<Item = f64>| Spread::of(values).map(|s| s.median);
        let evidence = self.evidence(size, &sums, &rounds, yardsticks);
        let Judged { limit, causes } = judge(&evidence);
        let Sums { seconds, rates, spread, latency_us, rails } = sums;
        let chunk_bytes = self.link.engine.config().chunk_bytes;
        let is_read = schedule.op == Op::Read && !schedule.bidir;
        let sender = if is_read { Sender::There } else { Sender::Here };
        let rescues: Option<u64> = rounds.engine.iter().map(|taken| taken.rescues).sum();
        let result = BenchResult {
            size_bytes: size,
            op: schedule.op.name().into(),
            segments: schedule.segments,
            depth: schedule.depth(size),
            bidir: schedule.bidir,
            ping_pong: schedule.latency,
            transfers: samples().map(|sample| sample.transfers).sum(),
            bytes: samples().map(|sample| sample.bytes).sum(),
            seconds,
            transfers_per_s: spread.median * 1e9 / size as f64,
            gb_per_s: spread.median,
            spread_gb_per_s: spread,
            latency_us,
            verified: schedule.verify != Verify::Off,
            verify: schedule.verify.name().into(),
            verified_bytes: rounds.engine.iter().map(|taken| taken.verified_bytes).sum(),
            path: rounds.path.clone(),
            rescues,
            rails,
            events: events(&rounds.engine, self.began_unix_ms, sender, chunk_bytes),
            cpu_seconds_per_gb: median(&mut samples().map(|sample| sample.cpu_seconds_per_gb())),
            against: raw_facts.and_then(|facts| against_raw(schedule, &rounds, facts)),
            alone: alone(&rates, &rounds.standings),
            baselines: baselines(&rates, &rounds.standings),
            sweep: sweep(&rounds.standings),
            limit,
            tried: Vec::new(),
            samples: samples().cloned().collect(),
        };
        (result, causes)
    }
}

/// Compares with plain sockets. Ratios are taken within a round, so that a drift of the machine cancels out.
fn against_raw(schedule: &Schedule, rounds: &Rounds, facts: RawFacts) -> Option<AgainstRaw> {
    let pairs = || rounds.engine.iter().zip(&rounds.raw);
    let median = |values: Vec<f64>| Spread::of(values).map(|spread| spread.median);
    let ratio = |(engine, (raw, times)): (&Taken, &(AgainstSample, Histogram))| {
        if schedule.latency {
            let micros = times.quantile_ns(0.5).map_or(f64::NAN, |ns| ns as f64 / 1e3);
            engine.sample.p50_us.map_or(f64::NAN, |engine| engine / micros)
        } else {
            engine.sample.gb_per_s() / raw.gb_per_s()
        }
    };
    let cpu_ratio = |(engine, (raw, _)): (&Taken, &(AgainstSample, Histogram))| {
        engine.sample.cpu_seconds_per_gb() / raw.cpu_seconds_per_gb()
    };
    let mut times = Histogram::default();
    pairs().for_each(|(_, (_, raw_times))| times.merge(raw_times));
    let samples: Vec<AgainstSample> = pairs().map(|(_, (raw, _))| raw.clone()).collect();
    let spread_ratio = Spread::of(pairs().map(ratio))?;
    let spread_cpu_ratio = Spread::of(pairs().map(cpu_ratio));
    Some(AgainstRaw {
        raw_gb_per_s: median(samples.iter().map(AgainstSample::gb_per_s).collect())?,
        ratio: spread_ratio.median,
        spread_ratio: Some(spread_ratio),
        raw_cpu_seconds_per_gb: median(
            samples.iter().map(AgainstSample::cpu_seconds_per_gb).collect(),
        ),
        cpu_ratio: spread_cpu_ratio.map(|spread| spread.median),
        spread_cpu_ratio,
        raw_latency_us: LatencyUs::of(&times),
        flows: facts.flows,
        chunk_bytes: facts.chunk_bytes,
        congestion: facts.congestion,
        samples,
    })
}
