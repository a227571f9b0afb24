use proptest::prelude::*;

use super::*;
use crate::id::{RegionKey, TransferId};
use crate::plan::{Plan, Segment};
use crate::wire::{Flags, Op};

const KEY: RegionKey = RegionKey { slot: 0, generation: 1, nonce: 77 };

/// The stream of a transfer over `payload`, scattered to every second block at the far end.
fn stream(payload: &[u8], block: u64, chunk_bytes: u64) -> (Vec<u8>, Plan) {
    let blocks = (payload.len() as u64).div_ceil(block);
    let segments = (0..blocks).map(|i| Segment {
        local_region: 0,
        local_offset: i * block,
        remote: KEY,
        remote_offset: 2 * i * block,
        len: block.min(payload.len() as u64 - i * block),
    });
    let plan = Plan::new(segments, chunk_bytes).unwrap();
    let mut out = Vec::new();
    for chunk in 0..plan.chunk_count() {
        let pieces = plan.pieces(chunk);
        let meta: &[u8] = if chunk == 0 { b"hello" } else { b"" };
        let header = ChunkHeader {
            op: Op::Write,
            flags: Flags::NONE,
            meta_len: meta.len() as u32,
            payload_len: plan.chunk_bytes(chunk),
            pieces: pieces.len() as u16,
            transfer: TransferId(1),
            chunk,
            chunk_count: plan.chunk_count(),
            floor: TransferId(1),
            context: 0,
            checksum: 0,
            place: 0,
        };
        header.encode(pieces.clone(), meta, &mut out);
        for piece in pieces {
            let from = piece.local_offset as usize;
            out.extend_from_slice(&payload[from..from + piece.len as usize]);
        }
    }
    (out, plan)
}

/// Reads the stream with reads of the sizes given; the result is the far end's memory.
fn read_back(mut stream: &[u8], memory: &mut [u8], reads: &[usize]) -> Result<u32, WireError> {
    let mut reader = FrameReader::new();
    let mut sizes = reads.iter().copied().cycle();
    let mut chunks = 0;
    for _ in 0..turns(stream) {
        match reader.next()? {
            ReaderEvent::Chunk { header, meta, .. } => {
                assert_eq!(meta, if header.chunk == 0 { &b"hello"[..] } else { b"" });
            }
            ReaderEvent::Buffered { place, bytes } => {
                assert_eq!(place.len, bytes.len() as u64);
                memory[place.offset as usize..][..bytes.len()].copy_from_slice(bytes);
            }
            ReaderEvent::End => chunks += 1,
            ReaderEvent::Ack(ack) => panic!("{ack:?} in a stream of chunks"),
            ReaderEvent::Ring(ring) => panic!("{ring:?} in a stream of payload"),
            ReaderEvent::Need(_) if stream.is_empty() => return Ok(chunks),
            ReaderEvent::Need(_) => {
                let mut budget = sizes.next().unwrap().min(stream.len());
                let mut got = 0;
                let places: Vec<_> = reader.wanted().collect();
                for place in places {
                    let take = budget.min(place.len as usize);
                    memory[place.offset as usize..][..take].copy_from_slice(&stream[..take]);
                    stream = &stream[take..];
                    budget -= take;
                    got += take;
                }
                let spare = reader.spare();
                let take = budget.min(spare.len());
                spare[..take].copy_from_slice(&stream[..take]);
                stream = &stream[take..];
                reader.advance(got + take);
            }
        }
    }
    panic!("the reader goes round without an end, {} bytes are left", stream.len());
}

/// More turns than a working reader takes: each turn reads at least one byte or reports a part of a
/// frame, and a frame has no more parts than bytes.
fn turns(stream: &[u8]) -> usize {
    10 + 3 * stream.len()
}

/// Whether the reader terminates on whatever a stranger sends.
fn comes_to_an_end(mut stream: &[u8]) -> bool {
    let mut reader = FrameReader::new();
    for _ in 0..turns(stream) {
        match reader.next() {
            Err(_) => return true,
            Ok(ReaderEvent::Need(_)) if stream.is_empty() => return true,
            Ok(ReaderEvent::Need(_)) => {
                let wanted: u64 = reader.wanted().map(|p| p.len).sum();
                let direct = stream.len().min(usize::try_from(wanted).unwrap());
                stream = &stream[direct..];
                let spare = reader.spare();
                let take = spare.len().min(stream.len());
                spare[..take].copy_from_slice(&stream[..take]);
                stream = &stream[take..];
                reader.advance(direct + take);
            }
            Ok(_) => {}
        }
    }
    false
}

proptest! {
    #[test]
    fn any_split_of_the_stream_puts_every_byte_in_place(
        len in 0usize..60_000,
        block in 1u64..9000,
        chunk_bytes in 1000u64..40_000,
        reads in prop::collection::vec(1usize..30_000, 1..20),
    ) {
        let payload: Vec<u8> = (0..len).map(|i| (i * 7 + i / 251) as u8).collect();
        let (bytes, plan) = stream(&payload, block, chunk_bytes);
        let mut memory = vec![0; 2 * len + block as usize];
        prop_assert_eq!(read_back(&bytes, &mut memory, &reads).unwrap(), plan.chunk_count());
        for segment in plan.segments() {
            let (to, from) = (segment.remote_offset as usize, segment.local_offset as usize);
            let len = segment.len as usize;
            prop_assert_eq!(&memory[to..to + len], &payload[from..from + len]);
        }
    }

    #[test]
    fn reading_garbage_comes_to_an_end(
        bytes in prop::collection::vec(any::<u8>(), 0..2000), first in 0u8..3,
    ) {
        let mut bytes = bytes;
        if let Some(byte) = bytes.first_mut() { *byte = first; }
        prop_assert!(comes_to_an_end(&bytes));
    }

    #[test]
    fn reading_a_stream_of_which_a_byte_was_changed_comes_to_an_end(
        len in 0usize..2000, block in 1u64..900, at in any::<prop::sample::Index>(), value: u8,
    ) {
        let (mut bytes, _) = stream(&vec![7; len], block, 1000);
        prop_assert!(comes_to_an_end(&bytes));
        if !bytes.is_empty() { *at.get_mut(&mut bytes) = value; }
        prop_assert!(comes_to_an_end(&bytes));
    }
}

#[test]
fn a_violation_is_final() {
    let mut reader = FrameReader::new();
    let spare = reader.spare();
    spare[..CHUNK_HEADER_BYTES].fill(0xff);
    reader.advance(CHUNK_HEADER_BYTES);
    let error = reader.next().unwrap_err();
    assert_eq!(reader.next().unwrap_err(), error);
}

#[test]
fn a_ring_and_chunks_without_their_payload_come_in_any_cut() {
    let ring = SharedPlace { process: 1, descriptor: 2, bytes: 4096, token: 3 };
    let (chunk, _) = stream(&[], 10, 100);
    let mut header = ChunkHeader::decode(chunk.first_chunk().unwrap()).unwrap();
    header.payload_len = 10;
    header.pieces = 1;
    assert!(header.set_place_in_ring(256));
    let segment =
        Segment { local_region: 0, local_offset: 0, remote: KEY, remote_offset: 0, len: 10 };
    let plan = Plan::new([segment], 100).unwrap();
    let mut bytes = ring.encode().to_vec();
    for _ in 0..2 {
        header.encode(plan.pieces(0), b"hello", &mut bytes);
    }
    for cut in 1..bytes.len() {
        let (mut reader, mut rest, mut seen) = (FrameReader::new(), &bytes[..], Vec::new());
        for _ in 0..turns(&bytes) {
            match reader.next().unwrap() {
                ReaderEvent::Ring(got) => {
                    assert_eq!(got, ring);
                    seen.push('r');
                }
                ReaderEvent::Chunk { header: got, .. } => {
                    assert_eq!(got, header);
                    seen.push('c');
                }
                ReaderEvent::End => seen.push('e'),
                ReaderEvent::Need(Need::Head) if rest.is_empty() => break,
                ReaderEvent::Need(Need::Head) => {
                    let spare = reader.spare();
                    let take = cut.min(rest.len()).min(spare.len());
                    spare[..take].copy_from_slice(&rest[..take]);
                    rest = &rest[take..];
                    reader.advance(take);
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(seen, ['r', 'c', 'e', 'c', 'e'], "cut at {cut}");
        assert!(reader.is_between_frames() && rest.is_empty());
    }
}
