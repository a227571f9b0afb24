use proptest::prelude::*;

use super::*;
use crate::id::{RegionKey, TransferId};
use crate::plan::Piece;

fn header() -> ChunkHeader {
    ChunkHeader {
        op: WireOp::Write,
        flags: Flags::NOTIFY.with(Flags::CHECKSUM),
        meta_len: 3,
        payload_len: 30,
        pieces: 2,
        transfer: TransferId(9),
        chunk: 0,
        chunk_count: 4,
        floor: TransferId(7),
        context: 11,
        checksum: 0xdead_beef,
        place: 0,
    }
}

fn encoded(header: &ChunkHeader) -> [u8; CHUNK_HEADER_BYTES] {
    let mut out = Vec::new();
    let meta = vec![0; header.meta_len as usize];
    header.encode(std::iter::empty(), &meta, &mut out);
    out[..CHUNK_HEADER_BYTES].try_into().unwrap()
}

#[test]
fn a_chunk_frame_survives_the_wire() {
    let key = RegionKey { slot: 1, generation: 2, nonce: 3 };
    let piece = |offset, len| Piece {
        local_region: 0,
        local_offset: 0,
        remote: key,
        remote_offset: offset,
        len,
    };
    let pieces = [piece(5, 10), piece(50, 20)];
    let mut out = Vec::new();
    header().encode(pieces.into_iter(), b"abc", &mut out);
    let (head, body) = out.split_at(CHUNK_HEADER_BYTES);
    let read = ChunkHeader::decode(head.try_into().unwrap()).unwrap();
    assert_eq!(read, header());
    assert_eq!(body.len(), read.body_bytes());
    let mut places = Vec::new();
    Place::decode_table(&body[..2 * PIECE_BYTES], read.payload_len, &mut places).unwrap();
    assert_eq!(places, pieces.map(Place::from));
    assert_eq!(&body[2 * PIECE_BYTES..], b"abc");
}

#[test]
fn each_field_out_of_range_is_refused_by_name() {
    let cases: [(&str, ChunkHeader); 8] = [
        ("meta_len", ChunkHeader { meta_len: 65537, ..header() }),
        ("meta_len", ChunkHeader { chunk: 1, ..header() }),
        ("payload_len", ChunkHeader { payload_len: (64 << 20) + 1, ..header() }),
        ("pieces", ChunkHeader { pieces: 257, ..header() }),
        ("transfer", ChunkHeader { transfer: TransferId(6), ..header() }),
        ("chunk_count", ChunkHeader { chunk_count: 0, ..header() }),
        ("place", ChunkHeader { place: 1, ..header() }),
        ("payload_len", ChunkHeader { op: WireOp::Control, chunk_count: 1, ..header() }),
    ];
    for (name, bad) in cases {
        let error = ChunkHeader::decode(&encoded(&bad)).unwrap_err();
        assert!(matches!(error, WireError::Field { field, .. } if field == name), "{error}");
    }
    let mut bytes = encoded(&header());
    bytes[0] = 9;
    let error = ChunkHeader::decode(&bytes).unwrap_err();
    assert_eq!(error.to_string(), "frame kind 9 is unknown, expected 1 (chunk)");
}

#[test]
fn a_table_that_does_not_add_up_is_refused() {
    let place = Place { key: RegionKey { slot: 0, generation: 0, nonce: 0 }, offset: 0, len: 8 };
    let mut table = Vec::new();
    place.encode(&mut table);
    let mut out = Vec::new();
    let error = Place::decode_table(&table, 9, &mut out).unwrap_err();
    assert_eq!(error, WireError::PiecesMismatch { pieces: 8, payload: 9 });
}

#[test]
fn acknowledgements_survive_the_wire() {
    let refusals = RefusalCode::ALL.map(|code| AckFrame::Refusal { sequence: 5, code });
    for frame in refusals.into_iter().chain([AckFrame::Ack { sequence: u64::MAX }, AckFrame::Bye]) {
        assert_eq!(AckFrame::decode(&frame.encode()).unwrap(), frame);
    }
}

#[test]
fn a_reason_travels_in_frames_of_acknowledgements_and_no_more_of_it_than_is_allowed() {
    for text in ["a firewall?", "exactly 14 byt", &"no rail reached it ü".repeat(40)] {
        let mut heard = Vec::new();
        for frame in Words::of(text) {
            let AckFrame::Words(words) = AckFrame::decode(&frame.encode()).unwrap() else {
                panic!("{frame:?}")
            };
            assert_eq!(AckFrame::Words(words), frame);
            heard.extend_from_slice(words.as_bytes());
        }
        assert!(text.len() > MAX_WORDS_BYTES || heard.len() == text.len());
        assert!(heard.len() <= MAX_WORDS_BYTES);
        assert!(text.starts_with(std::str::from_utf8(&heard).unwrap()));
    }
    let frame = Words::of("abc").next().unwrap().encode();
    for (at, value) in [(1, 0), (1, 2), (1, 15), (1, 255), (9, 1)] {
        let mut wrong = frame;
        wrong[at] = value;
        assert!(AckFrame::decode(&wrong).is_err(), "byte {at} is {value}");
    }
}

#[test]
fn payload_in_a_ring_is_not_on_the_wire() {
    let mut there = header();
    assert_eq!((there.payload_on_wire(), there.place_in_ring()), (30, None));
    assert!(!there.set_place_in_ring(257) && !there.set_place_in_ring(PLACE_BYTES << 32));
    assert_eq!(there, header());
    assert!(there.set_place_in_ring(512));
    let read = ChunkHeader::decode(&encoded(&there)).unwrap();
    assert_eq!((read.payload_on_wire(), read.place_in_ring()), (0, Some(512)));
    assert_eq!(read.payload_len, 30);
}

#[test]
fn payload_that_a_plugin_carries_is_not_on_the_wire_and_there_is_some() {
    let carried = ChunkHeader { flags: header().flags.with(Flags::CARRIED), ..header() };
    let read = ChunkHeader::decode(&encoded(&carried)).unwrap();
    assert_eq!((read.payload_on_wire(), read.payload_len), (0, 30));
    let none = ChunkHeader { payload_len: 0, pieces: 0, chunk: 0, chunk_count: 1, ..carried };
    let decode = |header: &ChunkHeader| ChunkHeader::decode(&encoded(header));
    assert!(decode(&none).unwrap_err().to_string().contains("payload_len"));
    let both = ChunkHeader { flags: carried.flags.with(Flags::IN_RING), ..carried };
    assert!(decode(&both).unwrap_err().to_string().contains("flags"));
}

#[test]
fn a_ring_survives_the_wire() {
    let ring = SharedPlace { process: 7, descriptor: 9, bytes: 1 << 40, token: u128::MAX - 5 };
    let bytes = ring.encode();
    assert!(SharedPlace::is_kind(bytes[0]));
    assert_eq!(SharedPlace::decode(&bytes).unwrap(), ring);
    for reserved in [1, 2, 3, 12, 15] {
        let mut bytes = bytes;
        bytes[reserved] = 1;
        SharedPlace::decode(&bytes).unwrap_err();
    }
    let empty = SharedPlace { bytes: 0, ..ring };
    SharedPlace::decode(&empty.encode()).unwrap_err();
}

proptest! {
    #[test]
    fn any_bytes_are_decoded_or_refused(bytes in prop::array::uniform32(any::<u8>()), kind in 0u8..3) {
        let mut chunk = [0; CHUNK_HEADER_BYTES];
        chunk[..32].copy_from_slice(&bytes);
        chunk[0] = kind;
        if let Ok(header) = ChunkHeader::decode(&chunk) {
            prop_assert_eq!(encoded(&header), chunk);
        }
        let mut ack: [u8; ACK_BYTES] = bytes[..ACK_BYTES].try_into().unwrap();
        // Random codes and reserved bytes are mostly refused, so these come from the valid ones.
        (ack[0], ack[1]) = (kind + 1, ack[1] % 12);
        if bytes[31] % 2 == 0 { ack[2..8].fill(0); }
        if let Ok(frame) = AckFrame::decode(&ack) {
            prop_assert_eq!(frame.encode(), ack);
        }
    }

    #[test]
    fn a_header_of_which_a_byte_was_changed_is_refused_or_says_so(
        at in any::<prop::sample::Index>(), value: u8,
    ) {
        let mut bytes = encoded(&header());
        *at.get_mut(&mut bytes) = value;
        if let Ok(header) = ChunkHeader::decode(&bytes) {
            prop_assert_eq!(encoded(&header), bytes);
        }
    }
}
