//! Counts of transfers: how many, how large, how long they took, and why others failed. Except for two sums, they are
//! kept only by engines whose metrics are served.

use std::array::from_fn;
use std::time::Duration;

use crate::error::{FAILURES, TransferError};
use crate::path::PathKind;
use crate::peer::OpKind;

mod counters;

pub use counters::{ArrivalStats, Counter, FlowStats};

/// Transfers with a peer.
#[derive(Default)]
pub struct Tally {
    /// Payload bytes that devices were given to copy from end to end.
    pub peer_copy_bytes: Counter,
    /// Payload bytes that were left for the peer in memory that both have open.
    pub shared_bytes: Counter,
    /// By operation and path.
    complete: [[Complete; PATHS]; KINDS],
    failed: [Counter; FAILURES.len()],
}

/// Complete transfers.
#[derive(Default)]
struct Complete {
    transfers: Counter,
    bytes: Counter,
}

/// Durations of transfers, by path and size.
///
/// Several threads count at once, so there are several shards. Each thread mostly has its own, and names it.
pub struct Durations {
    shards: [Shard; SHARDS],
}

/// On separate cache lines.
#[derive(Default)]
#[repr(align(128))]
struct Shard {
    histograms: [[Histogram; SIZES.len()]; PATHS],
}

#[derive(Default)]
struct Histogram {
    sum_ns: Counter,
    buckets: [Counter; BOUNDS_NS.len() + 1],
}

/// Transfers of one path and size.
pub struct Distribution {
    /// Name of the path.
    pub path: &'static str,
    /// Name of the size class.
    pub size: &'static str,
    /// Sum of their durations, in ns.
    pub sum_ns: u64,
    /// Upper bound in seconds, infinite for the last one, and the number of transfers that took no longer than it and
    /// longer than the previous bound.
    pub buckets: Vec<(f64, u64)>,
}

const KINDS: usize = 4;
const KIND_NAMES: [&str; KINDS] = ["write", "read", "send", "receive"];
const PATHS: usize = 4;
const PATH_NAMES: [&str; PATHS] = ["tcp", "shared", "peer_copy", "single_copy"];
const SHARDS: usize = 8;

/// Largest transfer of each class, and the name of the class.
const SIZES: [(u64, &str); 6] = [
    (4 << 10, "4KiB"),
    (64 << 10, "64KiB"),
    (1 << 20, "1MiB"),
    (16 << 20, "16MiB"),
    (256 << 20, "256MiB"),
    (u64::MAX, "more"),
];

/// Longest time of each bucket except the last.
const BOUNDS_NS: [u64; 22] = [
    5_000,
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    100_000_000,
    250_000_000,
    500_000_000,
    1_000_000_000,
    2_500_000_000,
    5_000_000_000,
    10_000_000_000,
    25_000_000_000,
    100_000_000_000,
];

impl Tally {
    /// Counts a transfer that is over, by the path of its bytes. `result` holds its bytes and duration, or its error;
    /// `durations` and `shard` say where to count.
    pub fn note(
        &self,
        kind: OpKind,
        taken: PathKind,
        result: Result<(u64, Duration), &TransferError>,
        (durations, shard): (&Durations, usize),
    ) {
        match result {
            Ok((bytes, duration)) => {
                let path = place_of(taken);
                let complete = &self.complete[kind_place(kind)][path];
                complete.transfers.add(1);
                complete.bytes.add(bytes);
                // A receive waits for its sender, so its duration reveals nothing about the path.
                if !matches!(kind, OpKind::Receive { .. }) {
                    durations.note(shard, path, bytes, duration);
                }
            }
            Err(error) => {
                if let Some(reason) = error.kind() {
                    self.failed[reason].add(1);
                }
            }
        }
    }

    /// Returns operation, path, transfers and bytes of complete transfers.
    pub fn complete(&self) -> impl Iterator<Item = (&'static str, &'static str, u64, u64)> + '_ {
        let of_kind = |(kind, paths): (&'static str, &'static [&'static str; PATHS])| {
            paths.iter().map(move |path| (kind, *path))
        };
        let names = KIND_NAMES.into_iter().map(|kind| (kind, &PATH_NAMES)).flat_map(of_kind);
        let counted = names.zip(self.complete.iter().flatten());
        let counted =
            counted.map(|((kind, path), it)| (kind, path, it.transfers.get(), it.bytes.get()));
        counted.filter(|(_, _, transfers, _)| *transfers > 0)
    }

    /// Returns reasons and how many transfers failed for them.
    pub fn failed(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        let counted = FAILURES.into_iter().zip(self.failed.iter().map(Counter::get));
        counted.filter(|(_, count)| *count > 0)
    }
}

impl Durations {
    /// Returns empty counts.
    pub fn new() -> Box<Self> {
        Box::new(Self { shards: from_fn(|_| Shard::default()) })
    }

    fn note(&self, shard: usize, path: usize, bytes: u64, duration: Duration) {
        // Below 500 years.
        let ns = duration.as_nanos() as u64;
        let size = SIZES.iter().position(|(most, _)| bytes <= *most).unwrap_or(SIZES.len() - 1);
        let histogram = &self.shards[shard % SHARDS].histograms[path][size];
        histogram.sum_ns.add(ns);
        histogram.buckets[BOUNDS_NS.partition_point(|bound| *bound < ns)].add(1);
    }

    /// Returns every path and size that occurred.
    pub fn distributions(&self) -> Vec<Distribution> {
        let of = |path: usize, size: usize| {
            let shards = || self.shards.iter().map(|shard| &shard.histograms[path][size]);
            let count = |bucket: usize| shards().map(|it| it.buckets[bucket].get()).sum();
            let bounds = BOUNDS_NS.iter().map(|ns| *ns as f64 / 1e9).chain([f64::INFINITY]);
            Distribution {
                path: PATH_NAMES[path],
                size: SIZES[size].1,
                sum_ns: shards().map(|it| it.sum_ns.get()).sum(),
                buckets: bounds.enumerate().map(|(place, bound)| (bound, count(place))).collect(),
            }
        };
        let all = (0..PATHS).flat_map(|path| (0..SIZES.len()).map(move |size| (path, size)));
        let all = all.map(|(path, size)| of(path, size));
        all.filter(|it| it.buckets.iter().any(|(_, count)| *count > 0)).collect()
    }
}

fn kind_place(kind: OpKind) -> usize {
    match kind {
        OpKind::Write => 0,
        OpKind::Read => 1,
        OpKind::Send { .. } => 2,
        OpKind::Receive { .. } => 3,
    }
}

fn place_of(path: PathKind) -> usize {
    match path {
        PathKind::Tcp => 0,
        PathKind::Shared => 1,
        PathKind::PeerCopy => 2,
        PathKind::SingleCopy => 3,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_in_the_bucket_that_it_does_not_exceed() {
        let durations = Durations::new();
        for (bytes, ns) in [(8, 5_000), (4096, 5_001), (4097, 1), (u64::MAX, u64::MAX / 2)] {
            durations.note(0, 0, bytes, Duration::from_nanos(ns));
        }
        let found = durations.distributions();
        let sizes: Vec<_> = found.iter().map(|it| (it.path, it.size)).collect();
        assert_eq!(sizes, [("tcp", "4KiB"), ("tcp", "64KiB"), ("tcp", "more")]);
        assert_eq!(found[0].buckets[..2], [(5e-6, 1), (1e-5, 1)]);
        assert_eq!(found[0].sum_ns, 10_001);
        assert_eq!(found[2].buckets.last(), Some(&(f64::INFINITY, 1)));
    }

    #[test]
    fn bounds_grow() {
        assert!(BOUNDS_NS.is_sorted() && SIZES.is_sorted());
    }
}
