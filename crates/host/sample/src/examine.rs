//! Runs every parser of this crate on the same bytes, for fuzzers.

use std::collections::BTreeMap;

use crate::counters::{per_cpu_counts, protocols};
use crate::diag;
use crate::threads::{sched, stat};

/// Parses arbitrary bytes with every parser of the sampler. A parser refuses or leaves out wrong input; only a panic is
/// a finding.
#[doc(hidden)]
pub fn examine(data: &[u8]) {
    // A header and the fixed part of a connection.
    assert!(diag::connections_in(data) <= data.len() / (16 + 72));
    if let Some(counts) = per_cpu_counts(data) {
        assert_eq!(counts.len(), data.split(|byte| *byte == b',').count());
    }
    if let Some(thread) = stat(data) {
        assert!(!data.is_empty() && thread.name.chars().count() <= data.len());
    }
    let switches = sched(data);
    assert!(
        switches.migrations.is_none() || data.windows(16).any(|word| word == b"se.nr_migrations")
    );
    let mut sums = BTreeMap::new();
    protocols(data, &["Tcp", "TcpExt"], &mut sums);
    assert!(sums.keys().all(|name| name.starts_with("Tcp") && name.contains('.')));
}
