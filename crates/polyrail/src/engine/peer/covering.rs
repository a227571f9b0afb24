//! Whether a peer asks for no more than a read or a receive has room for.

use polyrail_proto::wire::Place;

/// Whether each of `wanted` lies within one of `own`, the places of a read or a receive. Both have
/// the same order if the peer is honest, so the search goes on where the last one was found.
pub(crate) fn covers(own: &[Place], wanted: &[Place]) -> bool {
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

#[cfg(test)]
mod tests {
    use polyrail_proto::RegionKey;

    use super::*;

    #[test]
    fn only_what_lies_within_one_place_is_covered() {
        let key = |slot| RegionKey { slot, generation: 1, nonce: 5 };
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
}
