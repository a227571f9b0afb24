//! Finds sources in two states: at times all their transfers take longer by the same amount, for every size.
//!
//! A configuration has only a few samples, but the state of a copy engine belongs to its device and not to a size. So
//! this pools the samples of all sizes of a source, each as its excess over the fastest sample of its configuration.

use std::collections::BTreeMap;

use polyrail_profile::{Load, PathKind, Plan, Sample};
use serde::Serialize;

use crate::stats::{median, two_clusters};
use crate::summary::{Metrics, State, Summary, plan_time};

/// A source in two states; times are the excess over the fastest sample of each configuration.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SourceStates {
    pub path: PathKind,
    /// Rank of the source.
    pub src: u32,
    /// Largest size considered: above it, the variation of the byte time hides a state.
    pub to_bytes: u64,
    /// Both states, the faster one first.
    pub states: [State; 2],
}

/// Maximum size at which the excess of a state is visible.
const TO_BYTES: u64 = 16 << 20;

pub(crate) fn source_states(
    plan: &Plan,
    samples: &[Sample],
    summaries: &[Summary],
    metrics: &Metrics,
) -> Vec<SourceStates> {
    let least_ns: BTreeMap<u32, f64> =
        summaries.iter().map(|one| (one.configuration, one.min_ns)).collect();
    let mut more: BTreeMap<(PathKind, u32), Vec<f64>> = BTreeMap::new();
    let mut times: BTreeMap<(PathKind, u32), Vec<f64>> = BTreeMap::new();
    for sample in samples.iter().filter(|sample| !plan.is_sentinel(sample.repetition)) {
        let Some(one) = plan.configuration(sample.configuration) else { continue };
        if one.size_bytes > TO_BYTES || one.load != Load::None {
            continue;
        }
        let time_ns = plan_time(plan, sample, metrics);
        let Some((time_ns, least)) = time_ns.zip(least_ns.get(&one.id)) else { continue };
        more.entry((one.path, one.src)).or_default().push(time_ns - least);
        times.entry((one.path, one.src)).or_default().push(time_ns);
    }
    let found = more.into_iter().filter_map(|((path, src), mut more)| {
        more.sort_unstable_by(f64::total_cmp);
        let mut times = times.remove(&(path, src))?;
        times.sort_unstable_by(f64::total_cmp);
        let at = two_clusters(&more)?;
        let states = [&more[..at], &more[at..]].map(|part| State::of(part, more.len()));
        let apart_ns = states[1].median_ns - states[0].median_ns;
        // A state that changes almost nothing is not worth reporting.
        let matters = apart_ns > MATTERS * median(&times);
        matters.then_some(SourceStates { path, src, to_bytes: TO_BYTES, states })
    });
    found.collect()
}

/// Minimum distance of two states, as a share of a median time; closer states count as one.
const MATTERS: f64 = 0.05;
