//! Parts of a copy, and their division into pieces.

use crate::id::RegionKey;
use crate::peer::pair_places;
use crate::plan::Segment;
use crate::wire::Place;

/// Maximum bytes of a piece, which takes about 30 us. So 1 MiB is work for four threads.
pub const PIECE_BYTES: u64 = 256 << 10;
/// Maximum parts of a piece.
pub const PIECE_PARTS: usize = 256;

/// One copy of a request, between two regions of memory.
pub struct CopyPart<R> {
    /// Region to read.
    pub from: R,
    /// Offset in `from`, in bytes.
    pub from_offset: u64,
    /// Region to write.
    pub to: R,
    /// Offset in `to`, in bytes.
    pub to_offset: u64,
    /// Length in bytes.
    pub len: u64,
}

/// Point up to which parts are claimed. The default is their start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    pub(super) part: usize,
    offset: u64,
}

/// A range of a part.
pub struct Piece<'a, R> {
    /// Part that the range belongs to.
    pub part: &'a CopyPart<R>,
    /// Offset of the range in the part, in bytes.
    pub offset: u64,
    /// Length of the range in bytes.
    pub len: u64,
}

/// Returns the copies from the segments of a send, whose regions are `near`, to the places of its receive. `find` finds
/// a region of the peer, and `len` returns its length in bytes. Returns `None` if `find` does, or if a place reaches
/// beyond its region; fails if `find` does.
pub fn message_parts<R: Clone, E>(
    (segments, near): (&[Segment], &[R]),
    places: &[Place],
    find: impl Fn(RegionKey) -> Result<Option<R>, E>,
    len: impl Fn(&R) -> u64,
) -> Result<Option<Vec<CopyPart<R>>>, E> {
    let segments = pair_places(segments, places);
    let mut known: Option<(RegionKey, R)> = None;
    let mut parts = Vec::with_capacity(segments.len());
    for Segment { local_region, local_offset, remote, remote_offset, len: bytes } in segments {
        let far = match &known {
            Some((key, far)) if *key == remote => far.clone(),
            _ => match find(remote)? {
                Some(far) => far,
                None => return Ok(None),
            },
        };
        if remote_offset.checked_add(bytes).is_none_or(|end| end > len(&far)) {
            return Ok(None);
        }
        parts.push(CopyPart {
            from: near[local_region as usize].clone(),
            from_offset: local_offset,
            to: far.clone(),
            to_offset: remote_offset,
            len: bytes,
        });
        known = Some((remote, far));
    }
    Ok(Some(parts))
}

/// Returns the end of the piece that begins at `from`, and its bytes.
pub(super) fn after<R>(parts: &[CopyPart<R>], from: Cursor) -> (Cursor, u64) {
    let (mut at, mut bytes) = (from, 0);
    while at.part < parts.len() && at.part - from.part < PIECE_PARTS && bytes < PIECE_BYTES {
        let left = parts[at.part].len - at.offset;
        let take = left.min(PIECE_BYTES - bytes);
        bytes += take;
        at = match take == left {
            true => Cursor { part: at.part + 1, offset: 0 },
            false => Cursor { part: at.part, offset: at.offset + take },
        };
    }
    (at, bytes)
}

/// Returns the ranges of parts that the `bytes` bytes from `from` on cover.
pub fn pieces<R>(
    parts: &[CopyPart<R>],
    from: Cursor,
    bytes: u64,
) -> impl Iterator<Item = Piece<'_, R>> {
    let (mut offset, mut left) = (from.offset, bytes);
    parts[from.part..].iter().map_while(move |part| {
        let len = left.min(part.len - offset);
        let piece = (left > 0).then_some(Piece { part, offset, len });
        (offset, left) = (0, left - len);
        piece
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(slot: u32) -> RegionKey {
        RegionKey { slot, generation: 1, nonce: 0 }
    }

    fn places(lens: &[(u32, u64)]) -> Vec<Place> {
        lens.iter().map(|&(slot, len)| Place { key: key(slot), offset: 10, len }).collect()
    }

    #[test]
    fn a_message_is_copied_to_the_places_of_its_receive_if_its_regions_are_known_and_hold_it() {
        let local = |local_region, len| Segment {
            local_region,
            local_offset: 5,
            remote: key(0),
            remote_offset: 0,
            len,
        };
        let send = [local(0, 6), local(1, 4)];
        // A region is its number, and has a hundred bytes for each.
        let parts = |places: &[Place], find: &dyn Fn(RegionKey) -> Result<Option<u32>, ()>| {
            let parts =
                message_parts((&send, &[70, 71]), places, find, |far| u64::from(*far) * 100);
            let numbers = |part: CopyPart<u32>| {
                (part.from, part.from_offset, part.to, part.to_offset, part.len)
            };
            parts.map(|parts| Some(parts?.into_iter().map(numbers).collect::<Vec<_>>()))
        };
        let known = |key: RegionKey| Ok(Some(key.slot));
        let copied = vec![(70, 5, 1, 10, 6), (71, 5, 1, 16, 2), (71, 7, 2, 10, 2)];
        assert_eq!(parts(&places(&[(1, 8), (2, 99)]), &known), Ok(Some(copied)));
        assert_eq!(parts(&places(&[(1, 8), (0, 99)]), &known), Ok(None), "it has no bytes");
        let unknown = |key: RegionKey| Ok((key.slot == 1).then_some(1));
        assert_eq!(parts(&places(&[(1, 8), (2, 99)]), &unknown), Ok(None));
        assert_eq!(parts(&places(&[(1, 8)]), &|_| Err(())), Err(()));
    }
}
