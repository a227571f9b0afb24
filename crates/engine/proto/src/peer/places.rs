//! Places of reads and receives: checks that a chunk stays within them, and splits a send over them.

use crate::plan::Segment;
use crate::wire::Place;

/// Returns whether each of `wanted` lies within one of `own`, the places of a read or a receive. Both have the same
/// order if the peer is honest, so the search continues where the last one was found.
pub fn covers(own: &[Place], wanted: &[Place]) -> bool {
    let mut at = 0;
    wanted.iter().all(|place| {
        let holds = |own: &Place| {
            own.key == place.key
                && own.offset <= place.offset
                && place.offset + place.len <= own.offset + own.len
        };
        let (before, after) = own.split_at(at);
        let found = after.iter().position(holds).map(|ahead| at + ahead);
        let found = found.or_else(|| before.iter().position(holds));
        at = found.unwrap_or(at);
        found.is_some()
    })
}

/// Returns local segments and remote places, cut where either ends. Places may have room left over.
pub fn pair_places(locals: &[Segment], places: &[Place]) -> Vec<Segment> {
    let mut segments = Vec::with_capacity(locals.len() + places.len());
    let mut places = places.iter().filter(|place| place.len > 0);
    let mut place = places.next().copied();
    for local in locals {
        let mut done = 0;
        while done < local.len {
            let Some(at) = place else { return segments };
            let take = (local.len - done).min(at.len);
            segments.push(Segment {
                local_region: local.local_region,
                local_offset: local.local_offset + done,
                remote: at.key,
                remote_offset: at.offset,
                len: take,
            });
            done += take;
            place = if take == at.len {
                places.next().copied()
            } else {
                Some(Place { offset: at.offset + take, len: at.len - take, ..at })
            };
        }
    }
    segments
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::RegionKey;

    fn key(slot: u32) -> RegionKey {
        RegionKey { slot, generation: 1, nonce: 5 }
    }

    #[test]
    fn only_what_lies_within_one_place_is_covered() {
        let place = |slot, offset, len| Place { key: key(slot), offset, len };
        let own = [place(1, 100, 50), place(1, 150, 50), place(2, 0, 10)];
        assert!(covers(&own, &[place(1, 100, 50), place(1, 160, 40), place(2, 9, 1)]));
        assert!(covers(&own, &[place(2, 0, 10), place(1, 100, 1)]), "in another order");
        assert!(covers(&own, &[]));
        let outside =
            [place(1, 99, 1), place(1, 140, 20), place(2, 5, 6), place(3, 0, 1), place(1, 200, 1)];
        for one in outside {
            assert!(!covers(&own, &[place(1, 100, 50), one]), "{one:?}");
        }
        let other = Place { key: RegionKey { nonce: 6, ..key(1) }, ..own[0] };
        assert!(!covers(&own, &[other]));
    }

    #[test]
    fn local_segments_fill_the_places_of_a_receive_in_order() {
        let local = |local_offset, len| Segment {
            local_region: 0,
            local_offset,
            remote: key(0),
            remote_offset: 0,
            len,
        };
        let places = [
            Place { key: key(1), offset: 100, len: 4 },
            Place { key: key(2), offset: 200, len: 90 },
        ];
        let paired = pair_places(&[local(0, 6), local(50, 3)], &places);
        let flat: Vec<_> = paired
            .iter()
            .map(|s| (s.local_offset, s.remote.slot, s.remote_offset, s.len))
            .collect();
        assert_eq!(flat, [(0, 1, 100, 4), (4, 2, 200, 2), (50, 2, 202, 3)]);
    }

    #[test]
    fn a_place_without_bytes_is_passed_over() {
        let local =
            Segment { local_region: 0, local_offset: 0, remote: key(0), remote_offset: 0, len: 2 };
        let places = [0, 1, 0, 5].map(|len| Place { key: key(1), offset: 10, len });
        let lens: Vec<_> = pair_places(&[local], &places).iter().map(|s| s.len).collect();
        assert_eq!(lens, [1, 1]);
    }
}
