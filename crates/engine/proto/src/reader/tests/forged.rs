//! Streams changed by an attacker on the path, and streams of a dishonest authenticated peer.

use super::*;

/// Returns two records: an acknowledgement and a chunk with its payload sealed; then a chunk with unsealed payload.
/// With the ends of both records.
fn short_stream(sealer: &mut Sealer) -> (Vec<u8>, [usize; 2]) {
    let (frames, _) = frames(&some_payload(60), 30, 60);
    let [frame] = &frames[..] else { panic!("one chunk") };
    let ack = AckFrame::Ack { sequence: 9 }.encode();
    let mut stream = sealed(sealer, &[&ack[..], &frame.head, &frame.payload].concat(), 0);
    let first = stream.len();
    seal(sealer, &frame.head, 60, &mut stream);
    let second = stream.len();
    stream.extend_from_slice(&frame.payload);
    (stream, [first, second])
}

#[test]
fn every_changed_bit_of_a_record_ends_the_stream_before_any_of_it_is_handed_out() {
    let (stream, [first, second]) = short_stream(&mut ends().0);
    let whole = read(ends().1, &stream, &[usize::MAX]);
    // The acknowledgement, the chunk, two pieces and its end.
    let of_first = 5;
    assert_eq!((whole.error, whole.chunks, whole.events), (None, 2, 2 * of_first - 1));
    for bit in 0..stream.len() * 8 {
        let mut changed = stream.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        for reads in [&[usize::MAX][..], &[1]] {
            let seen = read(ends().1, &changed, reads);
            let handed_out = match bit / 8 {
                at if at < first => 0,
                at if at < second => of_first,
                // Changed bits of unsealed payload are for the checksum to find.
                _ => {
                    assert_eq!((seen.error, seen.chunks), (None, 2), "bit {bit}");
                    continue;
                }
            };
            assert_eq!(seen.events, handed_out, "bit {bit}");
            // A length that has become longer is waited for, as it may still be true.
            let is_length = |from: usize| (from..from + 4).contains(&(bit / 8));
            match seen.error {
                Some(error) => assert!(matches!(error, WireError::Record(_)), "{error}"),
                None => assert!((is_length(0) || is_length(first)) && !seen.between_frames),
            }
        }
    }
}

#[test]
fn a_record_that_is_repeated_left_out_or_moved_is_refused() {
    let (mut sealer, _) = ends();
    let records: Vec<Vec<u8>> = (1..=4)
        .map(|sequence| sealed(&mut sealer, &AckFrame::Ack { sequence }.encode(), 0))
        .collect();
    for (order, number) in [
        (&[0, 0, 1][..], 1),
        (&[0, 1, 0], 2),
        (&[1], 0),
        (&[0, 2, 3], 1),
        (&[1, 0, 2], 0),
        (&[0, 1, 3, 2], 2),
        (&[0, 1, 2, 3, 3], 4),
    ] {
        let stream: Vec<u8> = order.iter().flat_map(|i: &usize| records[*i].clone()).collect();
        for reads in [&[usize::MAX][..], &[1]] {
            let seen = read(ends().1, &stream, reads);
            let forged = WireError::Record(OpenError::Forged { number });
            assert_eq!((seen.error, seen.events), (Some(forged), number as usize), "{order:?}");
        }
    }
    // A record of the other direction, or of another connection, does not open either.
    let mut other = Keys::new([2; 32], [1; 32]).sealer;
    let seen = read(ends().1, &sealed(&mut other, b"", 0), &[usize::MAX]);
    assert_eq!(seen.error, Some(WireError::Record(OpenError::Forged { number: 0 })));
}

/// Returns the result of reading one record of an authenticated peer.
fn one_record(plain: &[u8], raw: u32) -> Seen {
    let (mut sealer, reader) = ends();
    let mut stream = sealed(&mut sealer, plain, raw);
    stream.resize(stream.len() + raw.min(1000) as usize, 7);
    read(reader, &stream, &[usize::MAX])
}

#[test]
fn raw_bytes_that_are_not_the_payload_of_their_frame_are_refused() {
    let (frames, _) = frames(&some_payload(60), 60, 60);
    let head = &frames[0].head[..];
    let ack = AckFrame::Ack { sequence: 9 }.encode();
    for raw in [1, 59, 61, u32::MAX] {
        let mismatch = Some(WireError::RawMismatch { raw, payload: 60 });
        assert_eq!((one_record(head, raw).error, one_record(head, raw).events), (mismatch, 0));
        let mismatch = Some(WireError::RawMismatch { raw, payload: 0 });
        assert_eq!(one_record(&[], raw).error, mismatch, "a record without a frame");
        assert_eq!(one_record(&ack, raw).error, mismatch, "no chunk");
    }
    let mismatch = Some(WireError::RawMismatch { raw: 60, payload: 60 });
    assert_eq!(one_record(&[head, &[0]].concat(), 60).error, mismatch, "a byte behind the head");
    assert_eq!(one_record(&[head, &ack].concat(), 60).error, mismatch, "a frame behind it");
    assert_eq!(one_record(&[&ack, head].concat(), 60).error, mismatch, "a frame before it");
    // Nor may payload be sealed in part.
    let (mut sealer, reader) = ends();
    let mut stream = sealed(&mut sealer, &[head, &frames[0].payload[..20]].concat(), 0);
    seal(&mut sealer, &frames[0].payload[20..30], 30, &mut stream);
    stream.extend_from_slice(&frames[0].payload[30..]);
    let seen = read(reader, &stream, &[usize::MAX]);
    assert_eq!(seen.error, Some(WireError::RawMismatch { raw: 30, payload: 0 }));
    assert_eq!(seen.payload, [(0, frames[0].payload[..20].to_vec())]);
}

#[test]
fn a_frame_that_its_record_cuts_is_refused() {
    let (chunk, _) = frames(&some_payload(60), 30, 60);
    let ring = SharedPlace { process: 1, descriptor: 2, bytes: 4096, token: 3 }.encode();
    let ack = AckFrame::Ack { sequence: 9 }.encode();
    for frame in [&chunk[0].head[..], &ring, &ack] {
        for cut in 1..frame.len() {
            let seen = one_record(&frame[..cut], 0);
            assert_eq!((seen.error, seen.events), (Some(WireError::CutFrame), 0), "at {cut}");
            // Also where another frame comes first.
            let seen = one_record(&[&ack[..], &frame[..cut]].concat(), 0);
            assert_eq!((seen.error, seen.events), (Some(WireError::CutFrame), 1), "at {cut}");
        }
    }
}

#[test]
fn raw_payload_is_refused_where_it_must_be_sealed() {
    let (mut sealer, reader) = ends();
    let (frames, _) = frames(&some_payload(60), 60, 60);
    let seen = read(reader.sealed_only(), &raw(&frames, &mut sealer), &[usize::MAX]);
    assert_eq!((seen.error, seen.events), (Some(WireError::RawPayload), 0));
    let seen = read(ends().1.sealed_only(), &sealed(&mut ends().0, &[], 1), &[usize::MAX]);
    assert_eq!((seen.error, seen.events), (Some(WireError::RawPayload), 0));
}

#[test]
fn what_is_opened_early_and_forged_is_told_of_behind_what_came_before() {
    let mut sealer = ends().0;
    let (frames, _) = frames(&some_payload(200_000), 200_000, 100_000);
    let mut stream = raw(&frames[..1], &mut sealer);
    let first = stream.len();
    stream.extend(raw(&frames[1..], &mut sealer));
    stream[first + RECORD_HEADER_BYTES] ^= 1;
    for early in [usize::MAX, usize::MAX - 1] {
        let seen = read(ends().1, &stream, &[early]);
        let forged = WireError::Record(OpenError::Forged { number: 1 });
        assert_eq!((seen.chunks, seen.error), (1, Some(forged)));
    }
}

#[test]
fn a_violation_is_final() {
    let seen = one_record(&[0xff; CHUNK_HEADER_BYTES], 0);
    assert!(matches!(seen.error, Some(WireError::UnknownFrame { got: 0xff, .. })), "{seen:?}");
    let (_, mut reader) = ends();
    reader.spare()[..8].fill(0xff);
    reader.advance(8);
    let error = reader.next().unwrap_err();
    assert!(matches!(error, WireError::Record(OpenError::TooLong { .. })), "{error}");
    assert_eq!(reader.next().unwrap_err(), error);
    assert_eq!((reader.left(), reader.left_raw(), reader.wanted().count()), (0, 0, 0));
}

proptest! {
    #[test]
    fn reading_the_garbage_of_a_stranger_comes_to_an_end(
        bytes in prop::collection::vec(any::<u8>(), 0..2000),
        lengths in prop::option::of((0u8..200, 0u8..200)),
        reads in prop::collection::vec(1usize..300, 1..5),
    ) {
        let mut bytes = bytes;
        if let (Some((sealed, raw)), Some(first)) = (lengths, bytes.first_chunk_mut::<8>()) {
            *first = [sealed, 0, 0, 0, raw, 0, 0, 0];
        }
        let seen = read(ends().1, &bytes, &reads);
        prop_assert_eq!(seen.events, 0);
    }

    #[test]
    fn reading_what_a_proven_peer_makes_up_comes_to_an_end(
        records in prop::collection::vec(
            (prop::collection::vec(any::<u8>(), 0..200), 0u8..6, 0u32..300), 0..20,
        ),
        reads in prop::collection::vec(1usize..300, 1..5),
    ) {
        let (mut sealer, reader) = ends();
        let mut stream = Vec::new();
        for (mut plain, kind, raw) in records {
            if let Some(first) = plain.first_mut() { *first = kind; }
            let raw = if kind % 2 == 0 { 0 } else { raw };
            seal(&mut sealer, &plain, raw, &mut stream);
            stream.resize(stream.len() + raw as usize, 7);
        }
        read(reader, &stream, &reads);
    }

    #[test]
    fn reading_a_stream_of_which_a_byte_was_changed_before_it_was_sealed_comes_to_an_end(
        len in 0usize..2000, block in 1u64..900, at in any::<prop::sample::Index>(), value: u8,
        cuts in prop::option::of(prop::collection::vec(1usize..600, 1..20)),
        reads in prop::collection::vec(1usize..300, 1..5),
    ) {
        let (mut frames, _) = frames(&vec![7; len], block, 1000);
        let frame = at.get_mut(&mut frames);
        *at.get_mut(&mut frame.head) = value;
        let (mut sealer, reader) = ends();
        let stream = match cuts {
            None => raw(&frames, &mut sealer),
            Some(cuts) => in_records(&frames, &mut sealer, &cuts),
        };
        read(reader, &stream, &reads);
    }
}
