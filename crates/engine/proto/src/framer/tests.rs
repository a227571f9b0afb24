use std::convert::Infallible;

use polyrail_secure::{Keys, Opener, RecordHeader, TAG_BYTES};
use proptest::prelude::*;

use super::*;
use crate::id::{RegionKey, TransferId};
use crate::plan::{Plan, Segment};
use crate::reader::{FrameReader, Need, ReaderEvent};
use crate::wire::WireOp;

const ALL: [Protection; 3] = [Protection::None, Protection::Checksum, Protection::Sealed];

/// Payload in memory.
struct Held<'a> {
    bytes: &'a [u8],
    /// Number of bytes that can be read.
    readable: usize,
}

impl<'a> Held<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, readable: bytes.len() }
    }
}

impl PayloadSource for Held<'_> {
    type Error = Infallible;

    fn checksum(&self, head: &[u8]) -> Result<u32, Infallible> {
        Ok(sum(&[head, self.bytes]))
    }

    fn append(&self, to: &mut Sink<'_>) -> bool {
        let mut rest = &self.bytes[..self.readable];
        while !rest.is_empty() {
            let room = to.room();
            assert!(room > 0, "a sink has room");
            let (part, behind) = rest.split_at(rest.len().min(room.min(1 << 30) as usize));
            to.out().extend_from_slice(part);
            rest = behind;
        }
        self.readable == self.bytes.len()
    }
}

/// Payload that can't be read, and has no checksum.
struct Unreadable;

impl PayloadSource for Unreadable {
    type Error = &'static str;

    fn checksum(&self, _: &[u8]) -> Result<u32, &'static str> {
        Err("it can't be read")
    }

    fn append(&self, _: &mut Sink<'_>) -> bool {
        panic!("payload that travels elsewhere is not asked for");
    }
}

/// Returns a sum that depends on each byte and its position, used as the driver's checksum.
fn sum(parts: &[&[u8]]) -> u32 {
    let bytes = parts.iter().copied().flatten();
    bytes.fold(1, |sum: u32, byte| sum.wrapping_mul(31).wrapping_add(u32::from(*byte)))
}

fn ends() -> (Sealer, Opener) {
    let (ours, theirs) = (Keys::new([1; 32], [2; 32]), Keys::new([2; 32], [1; 32]));
    (ours.sealer, theirs.opener)
}

fn some_bytes(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251) as u8).collect()
}

/// Returns a transfer of `len` bytes in blocks, each with its own place.
fn plan(len: usize, block: usize) -> Plan {
    let remote = RegionKey { slot: 3, generation: 1, nonce: 77 };
    let segment = |at: usize| Segment {
        local_region: 0,
        local_offset: at as u64,
        remote,
        remote_offset: 2 * at as u64,
        len: block.min(len - at) as u64,
    };
    Plan::new((0..len).step_by(block).map(segment), 1 << 20).unwrap()
}

fn header(plan: &Plan, chunk: u32, meta: &[u8]) -> ChunkHeader {
    ChunkHeader {
        op: WireOp::Write,
        flags: Flags::NONE,
        meta_len: meta.len() as u32,
        payload_len: plan.chunk_bytes(chunk),
        pieces: plan.pieces(chunk).len() as u16,
        transfer: TransferId(1),
        chunk,
        chunk_count: plan.chunk_count(),
        floor: TransferId(1),
        context: 0,
        checksum: 0,
        place: 0,
    }
}

/// Frames the first chunk of a plan, without a message.
fn frame_of(
    framer: Framer,
    plan: &Plan,
    payload: &Held<'_>,
    sealer: &mut Sealer,
    out: &mut Vec<u8>,
) -> Framed {
    let header = header(plan, 0, b"");
    framer.frame(header, plan.pieces(0), b"", payload, sealer, out).unwrap()
}

/// A chunk read from a stream.
#[derive(Debug)]
struct Read {
    header: ChunkHeader,
    table: Vec<u8>,
    meta: Vec<u8>,
    payload: Vec<u8>,
}

/// Returns the chunks and announced rings of a stream that ends between two frames.
fn read(mut reader: FrameReader, mut stream: &[u8]) -> (Vec<Read>, Vec<SharedPlace>) {
    let (mut chunks, mut rings) = (Vec::<Read>::new(), Vec::new());
    loop {
        match reader.next().unwrap() {
            ReaderEvent::Chunk { header, table, meta, .. } => {
                let (table, meta) = (table.to_vec(), meta.to_vec());
                chunks.push(Read { header, table, meta, payload: Vec::new() });
            }
            ReaderEvent::Buffered { bytes, .. } => {
                chunks.last_mut().unwrap().payload.extend_from_slice(bytes);
            }
            ReaderEvent::Ring(place) => rings.push(place),
            ReaderEvent::End | ReaderEvent::Ack(_) => {}
            ReaderEvent::Need(need) => {
                if stream.is_empty() {
                    assert!(reader.is_between_frames(), "{need:?}");
                    return (chunks, rings);
                }
                let direct = stream.len().min(reader.left_raw() as usize);
                assert!(direct == 0 || need == Need::Payload);
                if direct > 0 {
                    chunks.last_mut().unwrap().payload.extend_from_slice(&stream[..direct]);
                }
                stream = &stream[direct..];
                let spare = reader.spare();
                let take = spare.len().min(stream.len());
                spare[..take].copy_from_slice(&stream[..take]);
                stream = &stream[take..];
                reader.advance(direct + take);
            }
        }
    }
}

/// Returns the plain lengths of the records in `out`, and the length of the raw payload after the last one.
fn records(out: &[u8]) -> (Vec<usize>, u32) {
    let (mut lens, mut at, mut raw) = (Vec::new(), 0, 0);
    while at < out.len() {
        let header = RecordHeader::decode(out[at..].first_chunk().unwrap()).unwrap();
        assert_eq!(raw, 0, "a record behind payload that is not there");
        lens.push(header.sealed as usize);
        (at, raw) = (at + header.bytes(), header.raw);
    }
    assert_eq!(at, out.len(), "the last record is whole");
    (lens, raw)
}

proptest! {
    #[test]
    fn what_is_framed_is_read(
        protection in prop::sample::select(ALL.to_vec()),
        lens in prop::collection::vec(
            prop_oneof![
                prop::sample::select(vec![0usize, 1, 511, 512, 513, 64 << 10, 200 << 10]),
                0usize..3000,
            ],
            1..4,
        ),
        block in 700usize..90_000,
        meta in prop::collection::vec(any::<u8>(), 0..300),
        record_bytes in prop::sample::select(vec![0usize, 9, 10, 100, 4096, 64 << 10, usize::MAX]),
        copied_bytes in prop::sample::select(vec![0u32, 1, 512, 100_000]),
    ) {
        let framer = Framer::new(protection).with_sizes(record_bytes, copied_bytes);
        let (mut sealer, opener) = ends();
        let (mut stream, mut sent) = (Vec::new(), Vec::new());
        for len in lens {
            // Records of a few bytes make long tests of long payload.
            let len = if record_bytes < 1000 { len % 3000 } else { len };
            let (payload, plan) = (some_bytes(len), plan(len, block));
            let mut at = 0;
            for chunk in 0..plan.chunk_count() {
                let meta = if chunk == 0 { &meta[..] } else { &[] };
                let header = header(&plan, chunk, meta);
                let bytes = &payload[at..at + header.payload_len as usize];
                let mut out = Vec::new();
                let held = Held::new(bytes);
                let framed =
                    framer.frame(header, plan.pieces(chunk), meta, &held, &mut sealer, &mut out);
                let Ok(framed) = framed;
                let is_copied = header.payload_len <= copied_bytes;
                let outside = if is_copied { 0 } else { header.payload_len };
                let expected = match protection {
                    Protection::Sealed => Framed { copied: 0, outside: 0 },
                    _ => Framed { copied: header.payload_len - outside, outside },
                };
                prop_assert_eq!(framed, expected);
                let (lens, raw) = records(&out[..out.len() - framed.copied as usize]);
                prop_assert_eq!(raw, framed.copied + framed.outside);
                let head_bytes = CHUNK_HEADER_BYTES + header.body_bytes();
                let most = record_bytes
                    .clamp(RECORD_HEADER_BYTES + 1, RECORD_HEADER_BYTES + MAX_SEALED_BYTES)
                    - RECORD_HEADER_BYTES;
                prop_assert!(lens[0] >= head_bytes && lens[0] <= head_bytes.max(most));
                if let [_, between @ .., last] = &lens[..] {
                    prop_assert!(between.iter().all(|len| *len == most));
                    prop_assert!((1..=most).contains(last));
                }
                stream.extend_from_slice(&out);
                stream.extend_from_slice(&bytes[bytes.len() - framed.outside as usize..]);
                sent.push((header, meta.to_vec(), bytes.to_vec()));
                at += bytes.len();
            }
        }
        let reader = FrameReader::new(opener);
        let is_sealed = protection == Protection::Sealed;
        let reader = if is_sealed { reader.sealed_only() } else { reader };
        let (chunks, rings) = read(reader, &stream);
        prop_assert_eq!((chunks.len(), rings.len()), (sent.len(), 0));
        for (read, (header, meta, payload)) in chunks.iter().zip(sent) {
            prop_assert!(read.meta == meta && read.payload == payload, "{header:?}");
            let expected = match protection {
                Protection::Checksum => ChunkHeader {
                    flags: Flags::CHECKSUM,
                    checksum: sum(&[&read.table[..], &meta[..], &payload[..]]),
                    ..header
                },
                _ => header,
            };
            prop_assert_eq!(read.header, expected);
        }
    }
}

#[test]
fn payload_that_is_gone_stays_outside() {
    let (bytes, plan) = (some_bytes(300), plan(300, 100));
    for protection in [Protection::None, Protection::Checksum] {
        for readable in [0, 1, 299] {
            let (mut out, mut without) = (b"before".to_vec(), b"before".to_vec());
            let framer = Framer::new(protection);
            let gone = Held { bytes: &bytes, readable };
            let framed = frame_of(framer, &plan, &gone, &mut ends().0, &mut out);
            assert_eq!(framed, Framed { copied: 0, outside: 300 }, "{protection:?}, {readable}");
            let copies_none = framer.with_sizes(RECORD_BYTES, 0);
            frame_of(copies_none, &plan, &Held::new(&bytes), &mut ends().0, &mut without);
            assert!(out == without, "{protection:?}, {readable}");
        }
    }
    for readable in [0, 1, 299] {
        let framer = Framer::new(Protection::Sealed).with_sizes(200, 0);
        let mut out = Vec::new();
        let gone = Held { bytes: &bytes, readable };
        let framed = frame_of(framer, &plan, &gone, &mut ends().0, &mut out);
        assert_eq!(framed, Framed { copied: 0, outside: 300 }, "{readable}");
        let (lens, raw) = records(&out);
        let head_bytes = CHUNK_HEADER_BYTES + header(&plan, 0, b"").body_bytes();
        assert_eq!((lens.iter().sum::<usize>(), raw), (head_bytes + readable, 0));
    }
}

#[test]
fn payload_that_travels_elsewhere_puts_nothing_on_the_wire() {
    let plan = plan(700, 700);
    let mut in_ring = header(&plan, 0, b"");
    assert!(in_ring.set_place_in_ring(512));
    let carried = ChunkHeader { flags: Flags::CARRIED, ..header(&plan, 0, b"") };
    for header in [in_ring, carried] {
        let head_bytes = CHUNK_HEADER_BYTES + header.body_bytes();
        for protection in [Protection::None, Protection::Sealed] {
            let framer = Framer::new(protection).with_sizes(1000, 1000);
            let (mut out, (mut sealer, _)) = (Vec::new(), ends());
            let framed =
                framer.frame(header, plan.pieces(0), b"", &Unreadable, &mut sealer, &mut out);
            assert_eq!(framed, Ok(Framed { copied: 0, outside: 0 }));
            assert_eq!(out.len(), RECORD_HEADER_BYTES + head_bytes + TAG_BYTES);
            assert_eq!(records(&out), (vec![head_bytes], 0));
        }
        // The checksum is set nevertheless.
        let bytes = some_bytes(700);
        let (mut out, (mut sealer, opener)) = (Vec::new(), ends());
        let framer = Framer::new(Protection::Checksum);
        let held = Held::new(&bytes);
        let Ok(framed) = framer.frame(header, plan.pieces(0), b"", &held, &mut sealer, &mut out);
        assert_eq!(framed, Framed { copied: 0, outside: 0 });
        let (chunks, _) = read(FrameReader::new(opener), &out);
        let [read] = &chunks[..] else { panic!("{chunks:?}") };
        assert_eq!(read.header.checksum, sum(&[&read.table[..], &bytes[..]]));
    }
}

#[test]
fn a_checksum_that_can_not_be_made_is_an_error() {
    let (plan, (mut sealer, _)) = (plan(10, 10), ends());
    let framer = Framer::new(Protection::Checksum);
    let header = header(&plan, 0, b"");
    let framed =
        framer.frame(header, plan.pieces(0), b"", &Unreadable, &mut sealer, &mut Vec::new());
    assert_eq!(framed, Err("it can't be read"));
}

#[test]
fn a_ring_is_announced_by_a_record_of_its_own() {
    let place = SharedPlace { process: 1, descriptor: 2, bytes: 3 << 20, token: 4 };
    for protection in ALL {
        let (mut out, (mut sealer, opener)) = (Vec::new(), ends());
        let framer = Framer::new(protection);
        framer.announce(&place, &mut sealer, &mut out);
        assert_eq!(records(&out), (vec![place.encode().len()], 0));
        let (bytes, plan) = (some_bytes(20), plan(20, 20));
        frame_of(framer, &plan, &Held::new(&bytes), &mut sealer, &mut out);
        let (chunks, rings) = read(FrameReader::new(opener), &out);
        assert_eq!((rings, chunks.len()), (vec![place], 1));
        assert_eq!(chunks[0].payload, bytes);
    }
}
