//! Finds sources in two states: at times all their transfers take longer by the same amount,
//! whatever the size.
//!
//! A configuration has a handful of samples, but the state of a copy engine is that of its device
//! and not of a size. So this pools the samples of all sizes of a source, each as its excess over
//! the fastest sample of its configuration.

use std::collections::BTreeMap;

use polyrail_profile::{Load, PathKind, Plan, Sample};
use serde::Serialize;

use crate::stats::{median, two_clusters};
use crate::summary::{Metrics, State, Summary, plan_time};

/// A source in two states; times are the excess over the fastest sample of each configuration.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SourceStates {
    pub path: PathKind,
    /// The rank that they come from.
    pub src: u32,
    /// The largest size considered: above it the variation of the byte time hides a state.
    pub to_bytes: u64,
    /// The faster one first.
    pub states: [State; 2],
}

/// The excess of a state shows up to this size.
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
        // A state that changes next to nothing is not worth reporting.
        let matters = apart_ns > MATTERS * median(&times);
        matters.then_some(SourceStates { path, src, to_bytes: TO_BYTES, states })
    });
    found.collect()
}

/// States closer than this share of a median time count as one.
const MATTERS: f64 = 0.05;
