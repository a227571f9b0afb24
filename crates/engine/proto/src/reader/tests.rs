use polyrail_secure::{Keys, OpenError, Sealer};
use proptest::prelude::*;

use super::*;
use crate::id::{RegionKey, TransferId};
use crate::plan::{Plan, Segment};
use crate::wire::{Flags, WireOp};

mod forged;

const KEY: RegionKey = RegionKey { slot: 0, generation: 1, nonce: 77 };

/// The sealing end of a stream, and a reader at its other end.
fn ends() -> (Sealer, FrameReader) {
    let (ours, theirs) = (Keys::new([1; 32], [2; 32]), Keys::new([2; 32], [1; 32]));
    (ours.sealer, FrameReader::new(theirs.opener))
}

/// Appends a record.
fn seal(sealer: &mut Sealer, plain: &[u8], raw: u32, out: &mut Vec<u8>) {
    let begin = sealer.begin(out);
    out.extend_from_slice(plain);
    sealer.seal(out, begin, raw);
}

/// Appends a separate record.
fn sealed(sealer: &mut Sealer, plain: &[u8], raw: u32) -> Vec<u8> {
    let mut out = Vec::new();
    seal(sealer, plain, raw, &mut out);
    out
}

/// A frame before it is sealed.
struct Frame {
    head: Vec<u8>,
    payload: Vec<u8>,
}

/// Returns the frames of a transfer of `payload`, scattered to every second block at the far end.
fn frames(payload: &[u8], block: u64, chunk_bytes: u64) -> (Vec<Frame>, Plan) {
    let blocks = (payload.len() as u64).div_ceil(block);
    let segments = (0..blocks).map(|i| Segment {
        local_region: 0,
        local_offset: i * block,
        remote: KEY,
        remote_offset: 2 * i * block,
        len: block.min(payload.len() as u64 - i * block),
    });
    let plan = Plan::new(segments, chunk_bytes).unwrap();
    let mut frames = Vec::new();
    for chunk in 0..plan.chunk_count() {
        let pieces = plan.pieces(chunk);
        let meta: &[u8] = if chunk == 0 { b"hello" } else { b"" };
        let header = ChunkHeader {
            op: WireOp::Write,
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
        let (mut head, mut bytes) = (Vec::new(), Vec::new());
        header.encode(pieces.clone(), meta, &mut head);
        for piece in pieces {
            let from = piece.local_offset as usize;
            bytes.extend_from_slice(&payload[from..from + piece.len as usize]);
        }
        frames.push(Frame { head, payload: bytes });
    }
    (frames, plan)
}

/// Seals each frame in its own record, followed by its unsealed payload.
fn raw(frames: &[Frame], sealer: &mut Sealer) -> Vec<u8> {
    let mut out = Vec::new();
    for frame in frames {
        seal(sealer, &frame.head, frame.payload.len() as u32, &mut out);
        out.extend_from_slice(&frame.payload);
    }
    out
}

/// Seals all frames in records that end at `cuts`, but never before the payload of a frame: several frames in one, and
/// payload over several.
fn in_records(frames: &[Frame], sealer: &mut Sealer, cuts: &[usize]) -> Vec<u8> {
    let mut cuts = cuts.iter().copied().cycle();
    let mut size = cuts.next().unwrap();
    let (mut out, mut plain) = (Vec::new(), Vec::new());
    for frame in frames {
        plain.extend_from_slice(&frame.head);
        for byte in &frame.payload {
            if plain.len() >= size {
                seal(sealer, &plain, 0, &mut out);
                plain.clear();
                size = cuts.next().unwrap();
            }
            plain.push(*byte);
        }
        if plain.len() >= size {
            seal(sealer, &plain, 0, &mut out);
            plain.clear();
            size = cuts.next().unwrap();
        }
    }
    if !plain.is_empty() {
        seal(sealer, &plain, 0, &mut out);
    }
    out
}

/// Contents of a stream before its end or its first fault.
#[derive(Debug, Default)]
struct Seen {
    /// Events other than [`Need`].
    events: usize,
    /// Complete chunks.
    chunks: u32,
    /// Pieces of payload, each with its place in the far end's memory.
    payload: Vec<(u64, Vec<u8>)>,
    error: Option<WireError>,
    between_frames: bool,
}

/// Reads a stream with reads of the given sizes. If the first is odd, records are opened as soon as they may be, which
/// makes no difference.
fn read(mut reader: FrameReader, mut stream: &[u8], reads: &[usize]) -> Seen {
    let opens_early = reads[0] % 2 == 1;
    let mut sizes = reads.iter().copied().cycle();
    let mut seen = Seen::default();
    // More turns than a working reader takes: each turn reads at least one byte or reports a part of a frame, and a
    // frame has no more parts than bytes.
    for _ in 0..10 + 3 * stream.len() {
        if opens_early {
            reader.open();
        }
        let need = match reader.next() {
            Err(error) => {
                assert_eq!(reader.next().unwrap_err(), error, "a fault is final");
                return Seen { error: Some(error), ..seen };
            }
            Ok(ReaderEvent::Need(need)) => need,
            Ok(event) => {
                seen.events += 1;
                match event {
                    ReaderEvent::Chunk { header, meta, .. } => {
                        assert_eq!(meta.len(), header.meta_len as usize);
                    }
                    ReaderEvent::Buffered { place, bytes } => {
                        assert!(!bytes.is_empty());
                        assert_eq!(place.len, bytes.len() as u64);
                        seen.payload.push((place.offset, bytes.to_vec()));
                    }
                    ReaderEvent::End => seen.chunks += 1,
                    ReaderEvent::Ack(_) | ReaderEvent::Ring(_) | ReaderEvent::Need(_) => {}
                }
                continue;
            }
        };
        if stream.is_empty() {
            return Seen { between_frames: reader.is_between_frames(), ..seen };
        }
        let mut budget = sizes.next().unwrap().min(stream.len());
        let mut got = 0;
        let places: Vec<_> = reader.wanted().collect();
        assert_eq!(places.is_empty(), need == Need::Record);
        assert_eq!(places.iter().map(|p| p.len).sum::<u64>(), u64::from(reader.left_raw()));
        for place in places {
            let take = budget.min(place.len as usize);
            if take > 0 {
                seen.payload.push((place.offset, stream[..take].to_vec()));
            }
            stream = &stream[take..];
            budget -= take;
            got += take;
        }
        let spare = reader.spare();
        assert!(!spare.is_empty(), "a reader always has room");
        let take = budget.min(spare.len());
        spare[..take].copy_from_slice(&stream[..take]);
        stream = &stream[take..];
        reader.advance(got + take);
    }
    panic!("the reader goes round without an end, {} bytes are left", stream.len());
}

fn some_payload(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251) as u8).collect()
}

proptest! {
    #[test]
    fn any_split_of_the_stream_puts_every_byte_in_place(
        len in 0usize..60_000,
        block in 1u64..9000,
        chunk_bytes in 1000u64..40_000,
        reads in prop::collection::vec(1usize..30_000, 1..20),
        cuts in prop::option::of(prop::collection::vec(1usize..6000, 1..20)),
    ) {
        let payload = some_payload(len);
        let (frames, plan) = frames(&payload, block, chunk_bytes);
        let (mut sealer, reader) = ends();
        let stream = match &cuts {
            None => raw(&frames, &mut sealer),
            Some(cuts) => in_records(&frames, &mut sealer, cuts),
        };
        let reader = if cuts.is_some() { reader.sealed_only() } else { reader };
        let seen = read(reader, &stream, &reads);
        prop_assert_eq!((seen.error, seen.chunks), (None, plan.chunk_count()));
        prop_assert!(seen.between_frames);
        let mut memory = vec![0; 2 * len + block as usize];
        for (at, bytes) in &seen.payload {
            memory[*at as usize..][..bytes.len()].copy_from_slice(bytes);
        }
        for segment in plan.segments() {
            let (to, from) = (segment.remote_offset as usize, segment.local_offset as usize);
            let len = segment.len as usize;
            prop_assert_eq!(&memory[to..to + len], &payload[from..from + len]);
        }
    }
}

#[test]
fn many_small_frames_share_a_record() {
    let (mut sealer, reader) = ends();
    let (frames, plan) = frames(&some_payload(1000), 10, 50);
    let stream = in_records(&frames, &mut sealer, &[4096]);
    let records = stream.len().div_ceil(4096);
    assert!(records < plan.chunk_count() as usize, "{records} records");
    let seen = read(reader, &stream, &[usize::MAX]);
    assert_eq!((seen.error, seen.chunks), (None, plan.chunk_count()));
}

#[test]
fn both_ways_of_payload_may_follow_each_other() {
    let (mut sealer, reader) = ends();
    let payload = some_payload(70_000);
    let (frames, plan) = frames(&payload, 70_000, 20_000);
    let mut stream = Vec::new();
    for (index, frame) in frames.chunks(1).enumerate() {
        stream.extend(match index % 2 {
            0 => raw(frame, &mut sealer),
            _ => in_records(frame, &mut sealer, &[7000]),
        });
    }
    for read_bytes in [1, 111, 4096, usize::MAX] {
        let (_, reader) = ends();
        let seen = read(reader, &stream, &[read_bytes]);
        assert_eq!((seen.error, seen.chunks), (None, plan.chunk_count()));
        let bytes: Vec<u8> = seen.payload.into_iter().flat_map(|(_, bytes)| bytes).collect();
        assert!(bytes == payload, "reads of {read_bytes} bytes");
    }
    let seen = read(reader.sealed_only(), &stream, &[4096]);
    assert_eq!((seen.error, seen.events), (Some(WireError::RawPayload), 0));
}

/// Reads a stream that has everything at once. Returns the number of reads, and how many bytes of payload are copied
/// out of the reader's buffer.
fn reads_and_copied(reader: &mut FrameReader, stream: &[u8]) -> (usize, usize) {
    let (mut rest, mut reads, mut copied) = (stream, 0, 0);
    loop {
        match reader.next().unwrap() {
            ReaderEvent::Buffered { bytes, .. } => copied += bytes.len(),
            ReaderEvent::Need(_) if rest.is_empty() => return (reads, copied),
            ReaderEvent::Need(_) => {
                let direct = rest.len().min(reader.left_raw() as usize);
                rest = &rest[direct..];
                let spare = reader.spare();
                let take = spare.len().min(rest.len());
                spare[..take].copy_from_slice(&rest[..take]);
                rest = &rest[take..];
                reader.advance(direct + take);
                reads += 1;
            }
            _ => {}
        }
    }
}

#[test]
fn large_payload_that_comes_as_it_is_never_passes_through_the_buffer() {
    let (mut sealer, mut reader) = ends();
    let (frames, _) = frames(&some_payload(200_000), 50_000, 50_000);
    let (_, copied) = reads_and_copied(&mut reader, &raw(&frames, &mut sealer));
    // The first read can't know yet that payload is large.
    assert!(copied < SMALL_FRAMES_BYTES, "{copied} bytes were copied");
}

/// Returns a write of 64 KiB in one chunk, with a message of `meta_len` bytes.
fn write_with_message(meta_len: usize) -> Frame {
    let (mut frames, plan) = frames(&some_payload(64 << 10), 64 << 10, 64 << 10);
    let mut frame = frames.pop().unwrap();
    let mut header = ChunkHeader::decode(frame.head.first_chunk().unwrap()).unwrap();
    header.meta_len = meta_len as u32;
    frame.head.clear();
    header.encode(plan.pieces(0), &vec![7; meta_len], &mut frame.head);
    frame
}

/// Returns the length of the record of its header.
fn record_bytes(meta_len: usize) -> usize {
    RECORD_HEADER_BYTES + CHUNK_HEADER_BYTES + PIECE_BYTES + meta_len + TAG_BYTES
}

#[test]
fn heads_as_long_as_the_last_come_with_the_payload_before_them() {
    let (mut sealer, mut reader) = ends();
    let writes: Vec<Frame> = (0..100).map(|_| write_with_message(100)).collect();
    let (reads, copied) = reads_and_copied(&mut reader, &raw(&writes, &mut sealer));
    // One for each payload, and one for the first header.
    assert_eq!(reads, 101);
    assert!(copied < SMALL_FRAMES_BYTES, "{copied} bytes were copied");

    // Chunks of 16 pieces each. Only the first one has a message.
    let (mut sealer, mut reader) = ends();
    let (chunks, plan) = frames(&some_payload(20 << 16), 4096, 64 << 10);
    assert_eq!((plan.chunk_count(), plan.pieces(7).len()), (20, 16));
    let (reads, copied) = reads_and_copied(&mut reader, &raw(&chunks, &mut sealer));
    assert_eq!(reads, 21);
    assert!(copied < SMALL_FRAMES_BYTES, "{copied} bytes were copied");
}

#[test]
fn a_head_that_is_shorter_than_the_last_costs_a_copy_of_the_difference_once() {
    // The first read can't know yet that payload is large.
    let of_first = SMALL_FRAMES_BYTES - record_bytes(100);
    for (messages, copied) in [
        // The second header takes two reads, and the third one is expected to be as long.
        ([100, 1000, 100, 100], of_first + 900),
        // No header is expected to be as long as this one.
        ([100, 60_000, 100, 100], of_first + LARGE_PAYLOAD_BYTES as usize - record_bytes(100)),
    ] {
        let (mut sealer, mut reader) = ends();
        let stream = raw(&messages.map(write_with_message), &mut sealer);
        let seen = reads_and_copied(&mut reader, &stream);
        assert_eq!(seen, (6, copied), "messages of {messages:?} bytes");
    }
}

#[test]
fn a_head_whose_length_has_come_is_not_expected_to_be_longer() {
    let (mut sealer, mut reader) = ends();
    let stream = raw(&[1000, 100].map(write_with_message), &mut sealer);
    let second = stream.len() - (64 << 10) - record_bytes(100);
    reads_and_copied(&mut reader, &stream[..second + 20]);
    assert_eq!(reader.spare().len(), record_bytes(100) - 20);
}

#[test]
fn records_without_frames_say_nothing() {
    let (mut sealer, _) = ends();
    let (frames, plan) = frames(&some_payload(5000), 5000, 5000);
    let mut stream = Vec::new();
    for _ in 0..5000 {
        seal(&mut sealer, &[], 0, &mut stream);
    }
    let [frame] = &frames[..] else { panic!("one chunk") };
    seal(&mut sealer, &[&frame.head[..], &frame.payload[..100]].concat(), 0, &mut stream);
    seal(&mut sealer, &[], 0, &mut stream);
    seal(&mut sealer, &frame.payload[100..], 0, &mut stream);
    seal(&mut sealer, &[], 0, &mut stream);
    for read_bytes in [1, 24, 1000, usize::MAX] {
        let (_, reader) = ends();
        let seen = read(reader, &stream, &[read_bytes]);
        assert_eq!((seen.error, seen.chunks), (None, plan.chunk_count()));
        assert!(seen.between_frames);
    }
}

#[test]
fn the_longest_records_fit_whatever_is_in_front_of_them() {
    let (mut sealer, _) = ends();
    let payload = some_payload(500_000);
    let (frames, plan) = frames(&payload, 500_000, 500_000);
    let stream = in_records(&frames, &mut sealer, &[MAX_SEALED_BYTES]);
    for read_bytes in [1000, 81_943, 81_944, 100_000, usize::MAX] {
        let (_, reader) = ends();
        let seen = read(reader, &stream, &[read_bytes]);
        assert_eq!((seen.error, seen.chunks), (None, plan.chunk_count()));
    }
}

#[test]
fn a_ring_and_chunks_without_their_payload_come_in_any_cut() {
    let ring = SharedPlace { process: 1, descriptor: 2, bytes: 4096, token: 3 };
    let (chunk, _) = frames(&[], 10, 100);
    let mut header = ChunkHeader::decode(chunk[0].head.first_chunk().unwrap()).unwrap();
    header.payload_len = 10;
    header.pieces = 1;
    assert!(header.set_place_in_ring(256));
    let segment =
        Segment { local_region: 0, local_offset: 0, remote: KEY, remote_offset: 0, len: 10 };
    let plan = Plan::new([segment], 100).unwrap();
    let mut plain = ring.encode().to_vec();
    for _ in 0..2 {
        header.encode(plan.pieces(0), b"hello", &mut plain);
    }
    let (mut sealer, _) = ends();
    let bytes = sealed(&mut sealer, &plain, 0);
    for cut in 1..bytes.len() {
        let ((_, mut reader), mut rest, mut seen) = (ends(), &bytes[..], Vec::new());
        for _ in 0..3 * bytes.len() {
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
                ReaderEvent::Need(Need::Record) if rest.is_empty() => break,
                ReaderEvent::Need(Need::Record) => {
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
