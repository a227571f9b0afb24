//! Totals of the rounds of one size.

use polyrail_report::{Histogram, LatencyUs, RailShare, Spread};

use crate::cmd::bench::talk::RailDelta;
use crate::cmd::bench::trial::Taken;

pub(crate) struct Sums {
    pub(crate) seconds: f64,
    /// Rate of each round, in GB/s.
    pub(crate) rates: Vec<f64>,
    pub(crate) spread: Spread,
    pub(crate) latency_us: Option<LatencyUs>,
    pub(crate) rails: Vec<RailShare>,
}

impl Sums {
    pub(crate) fn of(rounds: &[Taken]) -> Self {
        let mut times = Histogram::default();
        let mut rails = Vec::new();
        for taken in rounds {
            times.merge(&taken.times);
            add(&mut rails, &taken.rails);
        }
        let samples = || rounds.iter().map(|taken| &taken.sample);
        let seconds: f64 = samples().map(|sample| sample.seconds).sum();
        let rates: Vec<f64> = samples().map(|sample| sample.gb_per_s()).collect();
        let spread = Spread::of(rates.iter().copied());
        // At least one sample exists, and its rate is a number.
        let spread = spread.unwrap_or(Spread { median: 0.0, min: 0.0, max: 0.0 });
        let latency_us = LatencyUs::of(&times);
        let rails = shares(&rails, seconds);
        Self { seconds, rates, spread, latency_us, rails }
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
