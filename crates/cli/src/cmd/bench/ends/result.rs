//! One size in the report: what its rounds come to.

use polyrail_report::{
    AgainstRaw, AgainstSample, BenchResult, Histogram, LatencyUs, RailShare, Spread,
};

use super::measure::{Bench, RawFacts, Rounds, Yardsticks};
use crate::cmd::bench::judge::{Cause, Judged, judge};
use crate::cmd::bench::options::{Schedule, Verify};
use crate::cmd::bench::rivals::{alone, baselines, sweep};
use crate::cmd::bench::talk::RailDelta;
use crate::cmd::bench::trial::Taken;

impl Bench<'_> {
    /// What the rounds come to, and the causes that its verdict names.
    pub(crate) fn result(
        &self,
        size: u64,
        rounds: Rounds,
        raw_facts: Option<RawFacts>,
        yardsticks: &Yardsticks,
    ) -> (BenchResult, Vec<Cause>) {
        let schedule = self.schedule;
        let mut times = Histogram::default();
        let mut rails = Vec::new();
        for taken in &rounds.engine {
            times.merge(&taken.times);
            add(&mut rails, &taken.rails);
        }
        let samples = || rounds.engine.iter().map(|taken| &taken.sample);
        let seconds: f64 = samples().map(|sample| sample.seconds).sum();
        let rates: Vec<f64> = samples().map(|sample| sample.gb_per_s()).collect();
        let spread = Spread::of(rates.iter().copied());
        // There is at least one sample, and its rate is a number.
        let spread = spread.unwrap_or(Spread { median: 0.0, min: 0.0, max: 0.0 });
        let median = |values: &mut dyn Iterator<Item = f64>| Spread::of(values).map(|s| s.median);
        let latency_us = LatencyUs::of(&times);
        let rails = shares(&rails, seconds);
        let p50_us = latency_us.map(|latency| latency.p50);
        let evidence = self.evidence(size, spread.median, &rounds, &rails, p50_us, yardsticks);
        let Judged { limit, causes } = judge(&evidence);
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

fn add(sums: &mut Vec<RailDelta>, rails: &[RailDelta]) {
    for rail in rails {
        match sums.iter_mut().find(|sum| sum.name == rail.name) {
            None => sums.push(rail.clone()),
            Some(sum) => sum.add(rail),
        }
    }
}

fn shares(rails: &[RailDelta], seconds: f64) -> Vec<RailShare> {
    let all: u64 = rails.iter().map(|rail| rail.tx_bytes).sum();
    let share = |rail: &RailDelta| RailShare {
        name: rail.name.clone(),
        bytes: rail.tx_bytes,
        share: rail.tx_bytes as f64 / all.max(1) as f64,
        gb_per_s: rail.tx_bytes as f64 / 1e9 / seconds,
        retransmits: rail.retransmits,
        resent_chunks: rail.resent_chunks,
        carried_bytes: rail.carried_bytes,
        hosted: rail.hosted,
    };
    rails.iter().map(share).collect()
}

/// Ratios are taken within a round, so that a drift of the machine cancels out.
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
    Some(AgainstRaw {
        raw_gb_per_s: median(samples.iter().map(AgainstSample::gb_per_s).collect())?,
        ratio: median(pairs().map(ratio).collect())?,
        raw_cpu_seconds_per_gb: median(
            samples.iter().map(AgainstSample::cpu_seconds_per_gb).collect(),
        ),
        cpu_ratio: median(pairs().map(cpu_ratio).collect()),
        raw_latency_us: LatencyUs::of(&times),
        flows: facts.flows,
        chunk_bytes: facts.chunk_bytes,
        congestion: facts.congestion,
        samples,
    })
}
