//! What became of transfers: how many, how large, how long they took, and why others failed. Only
//! engines whose metrics are served keep it, but for two sums.

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
    /// Payload that devices were given to copy from end to end.
    pub peer_copy_bytes: Counter,
    /// Payload that was left for it in memory that both have open.
    pub shared_bytes: Counter,
    /// By operation and path.
    complete: [[Complete; PATHS]; KINDS],
    failed: [Counter; FAILURES.len()],
}

/// Transfers that are complete.
#[derive(Default)]
struct Complete {
    transfers: Counter,
    bytes: Counter,
}

/// How long transfers took, by path and size.
///
/// Several threads count at once, so there are several of everything, and each thread mostly has its
/// own: it says which.
pub struct Durations {
    shards: [Shard; SHARDS],
}

/// On lines of its own.
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
    /// The path.
    pub path: &'static str,
    /// The name of the class of sizes.
    pub size: &'static str,
    /// How long they took together, in ns.
    pub sum_ns: u64,
    /// Upper bound in seconds, infinite for the last one, and how many took no longer and more than the bound
    /// before.
    pub buckets: Vec<(f64, u64)>,
}

const KINDS: usize = 4;
const KIND_NAMES: [&str; KINDS] = ["write", "read", "send", "receive"];
const PATHS: usize = 4;
const PATH_NAMES: [&str; PATHS] = ["tcp", "shared", "peer_copy", "single_copy"];
const SHARDS: usize = 8;

/// The largest transfer of each class, and what to call the class.
const SIZES: [(u64, &str); 6] = [
    (4 << 10, "4KiB"),
    (64 << 10, "64KiB"),
    (1 << 20, "1MiB"),
    (16 << 20, "16MiB"),
    (256 << 20, "256MiB"),
    (u64::MAX, "more"),
];

/// The longest time of each bucket but the last one.
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
    /// A transfer is over, whose bytes took that path. It has moved so many bytes in so long, and is counted in that
    /// shard.
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
                // A receive waits for whoever sends, which tells nothing of the way.
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

    /// Operation, path, transfers and bytes of what is complete.
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

    /// Reasons and how many transfers failed for them.
    pub fn failed(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        let counted = FAILURES.into_iter().zip(self.failed.iter().map(Counter::get));
        counted.filter(|(_, count)| *count > 0)
    }
}

impl Durations {
    /// None yet.
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

    /// Every path and size that there was.
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
