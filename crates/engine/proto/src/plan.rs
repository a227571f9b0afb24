//! Division of a transfer into chunks: decided once, before the first byte moves.

use smallvec::SmallVec;
use thiserror::Error;

use crate::defaults;
use crate::id::RegionKey;

/// Maximum payload bytes of one chunk.
pub const MAX_CHUNK_BYTES: u64 = 64 << 20;
/// Maximum places that one chunk may touch: keeps the table small and one system call enough for a chunk.
pub const MAX_CHUNK_PIECES: usize = 256;
/// Maximum chunks of one transfer: bounds a receiver's memory of it.
pub const MAX_CHUNKS: u32 = 1 << 22;

/// Bytes that are contiguous on both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Index among the request's local regions; its meaning is the driver's.
    pub local_region: u32,
    /// Offset in the local region, in bytes.
    pub local_offset: u64,
    /// Region at the peer.
    pub remote: RegionKey,
    /// Offset in the remote region, in bytes.
    pub remote_offset: u64,
    /// Length in bytes.
    pub len: u64,
}

/// Segments of a transfer. Most have one, which is stored inline.
type Segments = SmallVec<[Segment; 1]>;

/// The part of a segment that travels in one chunk.
pub type Piece = Segment;

/// Reason why segments can't become a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum PlanError {
    /// Chunks of that size are not allowed.
    #[error("chunk_bytes is {got}, allowed is 1 to {MAX_CHUNK_BYTES}")]
    ChunkBytes {
        /// Given value.
        got: u64,
    },
    /// The transfer needs more chunks than a receiver tracks.
    #[error(
        "transfer of {bytes} bytes in {segments} segments needs more than {MAX_CHUNKS} chunks; \
         split it or raise chunk_bytes"
    )]
    TooManyChunks {
        /// Payload of the transfer.
        bytes: u64,
        /// Segments after merging.
        segments: usize,
    },
    /// An offset plus a length does not fit in 64 bits.
    #[error("segment {index} ends beyond 2^64 bytes (offset {offset}, length {len})")]
    Overflow {
        /// Position in the request.
        index: usize,
        /// Offset that overflows.
        offset: u64,
        /// Length that overflows it.
        len: u64,
    },
}

/// Segments of a transfer, merged where adjacent, and the start of each chunk in them.
#[derive(Debug, Clone)]
pub struct Plan {
    segments: Segments,
    runs: SmallVec<[Run; 1]>,
    chunk_count: u32,
    bytes: u64,
}

#[derive(Debug, Clone, Copy)]
struct ChunkStart {
    segment: u32,
    skip: u64,
    bytes: u32,
}

/// Consecutive chunks of one size in one segment; or a single chunk, which may touch several segments. The time and
/// memory of a plan grow with its segments, not with its bytes.
#[derive(Debug, Clone, Copy)]
struct Run {
    first_chunk: u32,
    first: ChunkStart,
}

impl Plan {
    /// Cuts `segments` into chunks of at most `chunk_bytes` (and at most [`MAX_CHUNK_PIECES`] pieces).
    ///
    /// Empty segments are dropped; segments that are adjacent on both sides become one. A transfer without bytes has
    /// one empty chunk, so that it still reaches the peer and completes.
    pub fn new(
        segments: impl IntoIterator<Item = Segment>,
        chunk_bytes: u64,
    ) -> Result<Self, PlanError> {
        Self::for_rails(segments, chunk_bytes, 1)
    }

    /// Same as [`Self::new`], for a transfer over several rails: its last chunks are smaller, so that no rail keeps the
    /// others waiting for long.
    pub fn for_rails(
        segments: impl IntoIterator<Item = Segment>,
        chunk_bytes: u64,
        rails: usize,
    ) -> Result<Self, PlanError> {
        if chunk_bytes == 0 || chunk_bytes > MAX_CHUNK_BYTES {
            return Err(PlanError::ChunkBytes { got: chunk_bytes });
        }
        let segments = merge(segments)?;
        let bytes = segments.iter().try_fold(0u64, |sum, s| sum.checked_add(s.len));
        let bytes =
            bytes.ok_or(PlanError::TooManyChunks { bytes: u64::MAX, segments: segments.len() })?;
        let size = |left| defaults::chunk_bytes(chunk_bytes, rails, left);
        let (runs, chunk_count) = cut(&segments, bytes, size)
            .ok_or(PlanError::TooManyChunks { bytes, segments: segments.len() })?;
        Ok(Self { segments, runs, chunk_count, bytes })
    }

    /// Returns a plan without payload: one empty chunk, which carries a message.
    pub fn empty() -> Self {
        Self {
            segments: Segments::new(),
            runs: SmallVec::from_buf([Run { first_chunk: 0, first: NOTHING }]),
            chunk_count: 1,
            bytes: 0,
        }
    }

    /// Returns the payload bytes in all.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the number of chunks; at least one.
    pub fn chunk_count(&self) -> u32 {
        self.chunk_count
    }

    /// Returns the segments after merging.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Returns the payload bytes of a chunk.
    ///
    /// # Panics
    /// If there is no such chunk.
    pub fn chunk_bytes(&self, chunk: u32) -> u32 {
        self.start(chunk).expect("the caller names a chunk that there is").bytes
    }

    fn start(&self, chunk: u32) -> Option<ChunkStart> {
        if chunk >= self.chunk_count {
            return None;
        }
        // The first run begins with chunk 0.
        let at = self.runs.partition_point(|run| run.first_chunk <= chunk) - 1;
        let Run { first_chunk, first } = self.runs[at];
        let skipped = u64::from(chunk - first_chunk) * u64::from(first.bytes);
        Some(ChunkStart { skip: first.skip + skipped, ..first })
    }

    /// Returns the places of a chunk, in the order in which its payload travels.
    ///
    /// # Panics
    /// If there is no such chunk.
    pub fn pieces(&self, chunk: u32) -> impl ExactSizeIterator<Item = Piece> + Clone + '_ {
        let start = self.start(chunk).expect("the caller names a chunk that there is");
        let end = self.start(chunk + 1);
        let first = start.segment as usize;
        // The chunk ends inside `last`, or before it when the next chunk starts at its beginning.
        let last = match end {
            Some(next) if next.skip > 0 => next.segment as usize + 1,
            Some(next) => next.segment as usize,
            None => self.segments.len(),
        };
        let stop = end.filter(|next| next.skip > 0).map(|next| next.skip);
        self.segments[first..last].iter().enumerate().map(move |(i, segment)| {
            let from = if i == 0 { start.skip } else { 0 };
            let to = match stop {
                Some(stop) if first + i + 1 == last => stop,
                _ => segment.len,
            };
            Piece {
                local_offset: segment.local_offset + from,
                remote_offset: segment.remote_offset + from,
                len: to - from,
                ..*segment
            }
        })
    }
}

fn merge(segments: impl IntoIterator<Item = Segment>) -> Result<Segments, PlanError> {
    let segments = segments.into_iter();
    let mut merged = Segments::with_capacity(segments.size_hint().0);
    for (index, segment) in segments.enumerate() {
        for offset in [segment.local_offset, segment.remote_offset] {
            if offset.checked_add(segment.len).is_none() {
                return Err(PlanError::Overflow { index, offset, len: segment.len });
            }
        }
        if segment.len == 0 {
            continue;
        }
        match merged.last_mut() {
            Some(last) if continues(last, &segment) => last.len += segment.len,
            _ => merged.push(segment),
        }
    }
    Ok(merged)
}

fn continues(last: &Segment, next: &Segment) -> bool {
    last.local_region == next.local_region
        && last.remote == next.remote
        && last.local_offset + last.len == next.local_offset
        && last.remote_offset + last.len == next.remote_offset
}

const NOTHING: ChunkStart = ChunkStart { segment: 0, skip: 0, bytes: 0 };

/// Returns the runs, and the number of chunks; `None` when there would be more than [`MAX_CHUNKS`]. `size`: returns the
/// size of the next chunk, given the bytes that are left; it never grows as they get fewer.
fn cut(
    segments: &[Segment],
    bytes: u64,
    size: impl Fn(u64) -> u64,
) -> Option<(SmallVec<[Run; 1]>, u32)> {
    let mut runs = SmallVec::new();
    let mut chunks = 0u64;
    let mut left = bytes;
    let mut chunk_bytes = size(left);
    let mut open = NOTHING;
    let mut pieces = 0;
    for (index, segment) in segments.iter().enumerate() {
        let mut skip = 0;
        while skip < segment.len {
            if u64::from(open.bytes) == chunk_bytes || pieces == MAX_CHUNK_PIECES {
                runs.push(Run { first_chunk: u32::try_from(chunks).ok()?, first: open });
                chunks += 1;
                left -= u64::from(open.bytes);
                chunk_bytes = size(left);
                open = ChunkStart { segment: u32::try_from(index).ok()?, skip, bytes: 0 };
                pieces = 0;
            }
            if pieces == 0 {
                // The last whole chunk stays open, as the very last chunk does.
                let whole = (segment.len - skip) / chunk_bytes;
                let closed = same_size(left, chunk_bytes, whole, &size).saturating_sub(1);
                if closed > 0 {
                    // At most MAX_CHUNK_BYTES, which fits.
                    let first = ChunkStart { skip, bytes: chunk_bytes as u32, ..open };
                    runs.push(Run { first_chunk: u32::try_from(chunks).ok()?, first });
                    chunks += closed;
                    left -= closed * chunk_bytes;
                    skip += closed * chunk_bytes;
                    open.skip = skip;
                }
            }
            if chunks >= u64::from(MAX_CHUNKS) {
                return None;
            }
            let take = (segment.len - skip).min(chunk_bytes - u64::from(open.bytes));
            open.bytes += take as u32;
            skip += take;
            pieces += 1;
        }
    }
    runs.push(Run { first_chunk: u32::try_from(chunks).ok()?, first: open });
    Some((runs, u32::try_from(chunks + 1).ok()?))
}

/// Returns how many of the next `most` chunks have the size of the first.
fn same_size(left: u64, chunk_bytes: u64, most: u64, size: impl Fn(u64) -> u64) -> u64 {
    let (mut same, mut other) = (0, most);
    while same < other {
        let next = same + (other - same).div_ceil(2);
        match size(left - (next - 1) * chunk_bytes) == chunk_bytes {
            true => same = next,
            false => other = next - 1,
        }
    }
    same
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const KEY: RegionKey = RegionKey { slot: 3, generation: 1, nonce: 9 };

    fn segment(local_offset: u64, remote_offset: u64, len: u64) -> Segment {
        Segment { local_region: 0, local_offset, remote: KEY, remote_offset, len }
    }

    #[test]
    fn adjacent_segments_become_one() {
        let plan = Plan::new([segment(0, 100, 10), segment(10, 110, 5), segment(15, 200, 1)], 4096)
            .unwrap();
        assert_eq!(plan.segments(), [segment(0, 100, 15), segment(15, 200, 1)]);
        assert_eq!(plan.chunk_count(), 1);
    }

    #[test]
    fn a_transfer_without_bytes_has_one_empty_chunk() {
        let plan = Plan::new([segment(0, 0, 0)], 4096).unwrap();
        assert_eq!((plan.chunk_count(), plan.chunk_bytes(0), plan.pieces(0).len()), (1, 0, 0));
    }

    #[test]
    fn a_transfer_of_too_many_chunks_is_refused() {
        let error = Plan::new([segment(0, 0, u64::from(MAX_CHUNKS) + 1)], 1).unwrap_err();
        assert!(matches!(error, PlanError::TooManyChunks { segments: 1, .. }), "{error}");
        assert!(Plan::new([segment(u64::MAX, 0, 2)], 1).is_err());
        assert!(Plan::new([], 0).is_err());
    }

    #[test]
    fn the_last_chunks_of_a_transfer_over_several_rails_are_smaller_than_the_first() {
        let sizes = |len: u64, rails: usize| -> Vec<u32> {
            let plan = Plan::for_rails([segment(0, 0, len)], 512 << 10, rails).unwrap();
            (0..plan.chunk_count()).map(|chunk| plan.chunk_bytes(chunk)).collect()
        };
        assert!(sizes(64 << 20, 1).iter().all(|bytes| *bytes == 512 << 10));
        let four = sizes(64 << 20, 4);
        assert!(four.is_sorted_by(|a, b| a >= b) && four[100] == 512 << 10, "{four:?}");
        assert_eq!(four[four.len() - 2], 128 << 10);
        assert_eq!(sizes(1 << 20, 4), [128 << 10; 8]);
        assert_eq!(sizes(100 << 10, 4), [100 << 10], "one that is small stays whole");
    }

    #[test]
    fn a_plan_costs_memory_by_its_segments_and_not_by_its_bytes() {
        for rails in [1, 8] {
            let segments = (0..1024).map(|at| segment(at << 32, at << 32, 1 << 30));
            let plan = Plan::for_rails(segments, 512 << 10, rails).unwrap();
            assert!(plan.chunk_count() >= 1 << 21);
            // Each segment has a run and the chunk that stays open; the last one's chunks become smaller.
            assert!(plan.runs.len() < 2 * 1024 + 200, "{}", plan.runs.len());
        }
    }

    #[test]
    fn the_largest_number_of_chunks_is_the_limit() {
        let count = |len| Plan::new([segment(0, 0, len)], 2).map(|plan| plan.chunk_count());
        let most = u64::from(MAX_CHUNKS) * 2;
        assert_eq!(count(most).unwrap(), MAX_CHUNKS);
        assert_eq!(count(most - 1).unwrap(), MAX_CHUNKS);
        count(most + 1).unwrap_err();
        let two = |len| Plan::new([segment(0, 0, most - 2), segment(9, most * 2, len)], 2);
        assert_eq!(two(2).unwrap().chunk_count(), MAX_CHUNKS);
        two(3).unwrap_err();
    }

    #[test]
    fn chunks_of_a_few_bytes_are_not_empty_at_the_end_either() {
        for chunk_bytes in 1..6 {
            let plan = Plan::for_rails([segment(0, 0, 9)], chunk_bytes, 2).unwrap();
            let bytes: Vec<u64> =
                (0..plan.chunk_count()).map(|chunk| plan.chunk_bytes(chunk).into()).collect();
            assert_eq!(bytes.iter().sum::<u64>(), 9);
            assert!(bytes.iter().all(|bytes| (1..=chunk_bytes).contains(bytes)), "{bytes:?}");
        }
    }

    proptest! {
        #[test]
        fn chunks_cover_every_byte_once_and_in_order(
            lens in prop::collection::vec((0u64..3000, any::<bool>()), 0..700),
            chunk_bytes in 1u64..50_000,
            rails in 1usize..5,
        ) {
            let mut at = 0;
            let segments: Vec<_> = lens.iter().map(|(len, gap)| {
                at += u64::from(*gap);
                let s = segment(at, 2 * at, *len);
                at += len;
                s
            }).collect();
            let want: Vec<(u64, u64)> =
                segments.iter().flat_map(|s| (0..s.len).map(|i| (s.local_offset + i, s.remote_offset + i))).collect();
            let plan = Plan::for_rails(segments, chunk_bytes, rails).unwrap();
            let mut got = Vec::new();
            for chunk in 0..plan.chunk_count() {
                let pieces: Vec<_> = plan.pieces(chunk).collect();
                prop_assert!(pieces.len() <= MAX_CHUNK_PIECES);
                let bytes: u64 = pieces.iter().map(|p| p.len).sum();
                prop_assert_eq!(bytes, u64::from(plan.chunk_bytes(chunk)));
                prop_assert!(bytes <= chunk_bytes);
                prop_assert!(pieces.iter().all(|p| p.len > 0));
                got.extend(pieces.iter().flat_map(|p| (0..p.len).map(|i| (p.local_offset + i, p.remote_offset + i))));
            }
            prop_assert_eq!(got, want);
        }
    }
}
