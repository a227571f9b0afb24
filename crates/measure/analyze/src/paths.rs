//! Results over all links of a path, which tables and reports start with.

use polyrail_profile::PathKind;
use serde::Serialize;

use crate::links::Link;
use crate::stats::median_of;
use crate::summary::{Metrics, Summary};

/// All links of a path. Terminal and report both show these numbers, so they agree.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PathFigures {
    pub path: PathKind,
    /// Number of links.
    pub links: usize,
    /// Time of the smallest size, median over the links, in ns.
    pub smallest_ns: Option<f64>,
    /// Highest rate of a link, median over the links, in GB/s.
    pub median_gb_per_s: Option<f64>,
    /// Highest rate of the fastest link, in GB/s.
    pub best_gb_per_s: Option<f64>,
    /// Highest rate of the slowest link, in GB/s.
    pub worst_gb_per_s: Option<f64>,
    /// Highest rate of a stream, median over the links, in GB/s.
    pub stream_gb_per_s: Option<f64>,
    /// Message size of that stream: the median over the links, or the next size below.
    pub stream_bytes: Option<u64>,
    /// Number of `large` configurations with a CV below 5 %.
    pub steady: usize,
    /// Number of configurations of 1 MiB and more with at least 3 samples, enough for a meaningful CV.
    pub large: usize,
    /// Number of configurations whose samples are in two states.
    pub two_states: usize,
    /// Number of samples far from the median of their configuration.
    pub outliers: usize,
}

pub(crate) fn path_figures(
    links: &[Link],
    configurations: &[Summary],
    metrics: &Metrics,
) -> Vec<PathFigures> {
    let figures = |path: PathKind| {
        let own = || links.iter().filter(move |link| link.path == path);
        let rates = || own().map(|link| link.best_gb_per_s);
        let all = || configurations.iter().filter(move |one| one.path == path);
        let large = || all().filter(|one| one.size_bytes >= 1 << 20);
        PathFigures {
            path,
            links: own().count(),
            smallest_ns: median_of(own().map(|link| link.smallest_ns)),
            median_gb_per_s: median_of(rates()),
            best_gb_per_s: rates().max_by(f64::total_cmp),
            worst_gb_per_s: rates().min_by(f64::total_cmp),
            stream_gb_per_s: median_of(own().filter_map(|link| link.best_stream_gb_per_s)),
            stream_bytes: middle_size(own().filter_map(|link| link.best_stream_bytes).collect()),
            steady: large().filter_map(Summary::telling_cv_percent).filter(|cv| *cv < 5.0).count(),
            large: large().filter_map(Summary::telling_cv_percent).count(),
            two_states: all().filter(|one| one.states.is_some()).count(),
            outliers: all().map(|one| one.outliers).sum(),
        }
    };
    metrics.keys().map(|path| figures(*path)).collect()
}

/// Returns the size that half of these do not exceed: a measured one, unlike a mean of two.
fn middle_size(mut sizes: Vec<u64>) -> Option<u64> {
    sizes.sort_unstable();
    let last = sizes.len().checked_sub(1)?;
    sizes.get(last / 2).copied()
}
