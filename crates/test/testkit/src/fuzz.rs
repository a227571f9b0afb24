//! Bodies of the fuzzers, as plain functions: each takes any bytes and panics if a property does not hold.
//!
//! The fuzzers of `fuzz/` call these, and the tests call them with the corpus that is kept there, so each `cargo test`
//! repeats earlier findings.

use polyrail_proto::hello::{Hello, Metadata, PREFIX_BYTES, Prefix, RefusedCode, Reply};
use polyrail_proto::message::Message;
use polyrail_proto::wire::{ACK_BYTES, AckFrame, ChunkHeader, Place, SharedPlace, WireError};
use polyrail_proto::{FrameReader, Need, Piece, ReaderEvent};

use crate::rng::Rng;

mod certificates;
mod handshake;
mod in_flight;
mod quotas;
mod receiver;
mod records;
mod sender;

/// Content of a stream of frames.
#[derive(Debug, PartialEq, Eq)]
struct Read {
    frames: Vec<Frame>,
    error: Option<WireError>,
}

#[derive(Debug, PartialEq, Eq)]
enum Frame {
    Chunk { header: ChunkHeader, places: Vec<Place>, meta: Vec<u8>, payload: Vec<u8>, whole: bool },
    Ack(AckFrame),
    Ring(SharedPlace),
}

/// Reads any bytes as frames, acknowledgements and messages of an authenticated peer. However a stream is cut into
/// records and reads, and whether its payload is sealed or not, it decodes to the same frames, and these encode to the
/// same stream. An authenticated peer that seals an invalid stream, and an unauthenticated client, are refused without
/// a panic; the client is refused before its data is processed.
///
/// # Panics
/// If the property does not hold.
pub fn wire(data: &[u8]) {
    let (seed, stream) = data.split_at(data.len().min(8));
    let mut rng = Rng::new(seed.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte)));
    let raw = records::raw(stream);
    let whole = read_in_any_pieces(&raw, &mut rng);
    let sealed = records::sealed(stream, &mut rng);
    assert_eq!(read_in_any_pieces(&sealed, &mut rng), whole, "sealed or not");
    let again = encode(&whole);
    assert!(stream.starts_with(&again), "{whole:?} is not what the stream says");

    read_in_any_pieces(&records::lawless(stream, &mut rng), &mut rng);
    let heard = read_in_any_pieces(stream, &mut rng);
    assert_eq!(heard.frames, [], "a stranger was heard");

    if let Some(frame) = stream.first_chunk::<ACK_BYTES>()
        && let Ok(ack) = AckFrame::decode(frame)
    {
        assert_eq!(ack.encode(), *frame);
    }
    if let Ok(message) = Message::decode(stream) {
        assert_eq!(message.encode(), stream);
    }
}

/// Reads a stream, with the same result for all sizes of reads.
fn read_in_any_pieces(stream: &[u8], rng: &mut Rng) -> Read {
    let whole = read(stream, |()| usize::MAX);
    assert_eq!(read(stream, |()| 1), whole, "one byte at a time");
    assert_eq!(read(stream, |()| rng.between(1, 200) as usize), whole, "in pieces");
    whole
}

/// Reads any bytes as the beginning of a connection, a hello, a reply and metadata, and as the text behind a prefix.
/// Accepted input encodes to the same bytes, and this engine's own messages decode, with any texts.
///
/// # Panics
/// If the property does not hold.
pub fn hello(data: &[u8]) {
    let mut words = vec![data];
    if let Some((head, rest)) = data.split_first_chunk::<PREFIX_BYTES>()
        && let Ok(prefix) = Prefix::decode(head)
        && let Some(body) = rest.get(..prefix.body_bytes())
    {
        assert_eq!(prefix.kind().framed(body), data[..PREFIX_BYTES + body.len()]);
        words.push(body);
    }
    for words in words {
        if let Ok(hello) = Hello::decode(words) {
            assert_eq!(hello.encode(), words);
        }
        if let Ok(reply) = Reply::decode(words) {
            assert_eq!(reply.encode(), words);
        }
        if let Ok(metadata) = Metadata::decode(words) {
            assert_eq!(metadata.encode(), words);
        }
    }
    let reason = String::from_utf8_lossy(data).into_owned();
    let bytes = Reply::Refused { code: RefusedCode::Malformed, reason }.encode();
    Reply::decode(&bytes).expect("our own reply");
}

/// Reads any bytes as the first message to a responder, the second to an initiator and the third to a responder, and as
/// the certificate of an initiator; also changes messages of the real other end. None panics, and none is accepted
/// unless the other end made it.
///
/// # Panics
/// If the property does not hold.
pub fn handshake(data: &[u8]) {
    handshake::run(data);
    certificates::run(data);
}

/// Makes any sequence of calls that a driver may make, on a receiver or a sender, with any peer.
///
/// # Panics
/// If an invariant of the core does not hold.
pub fn receiver(data: &[u8]) {
    match data.split_first() {
        None => {}
        Some((first, rest)) if first % 2 == 0 => receiver::run(rest),
        Some((_, rest)) => sender::run(rest),
    }
}

/// Makes any sequence of receives, transfers and cancels of one peer: the state kept for it stays within its quotas,
/// and operations within them proceed.
///
/// # Panics
/// If an invariant of the core does not hold.
pub fn quotas(data: &[u8]) {
    quotas::run(data);
}

/// Reads a stream in reads of the given sizes.
fn read(mut stream: &[u8], mut size: impl FnMut(()) -> usize) -> Read {
    let mut reader = FrameReader::new(records::opener());
    let mut frames = Vec::new();
    loop {
        let need = match reader.next() {
            Err(error) => return Read { frames, error: Some(error) },
            Ok(ReaderEvent::Chunk { header, places, meta, .. }) => {
                let (places, meta) = (places.to_vec(), meta.to_vec());
                let payload = Vec::new();
                frames.push(Frame::Chunk { header, places, meta, payload, whole: false });
                continue;
            }
            Ok(ReaderEvent::Buffered { place, bytes }) => {
                assert_eq!(place.len, bytes.len() as u64);
                land(&mut frames, place, bytes);
                continue;
            }
            Ok(ReaderEvent::End) => {
                let Some(Frame::Chunk { header, payload, whole, .. }) = frames.last_mut() else {
                    panic!("the end of no chunk");
                };
                assert_eq!(payload.len(), header.payload_on_wire() as usize);
                *whole = true;
                continue;
            }
            Ok(ReaderEvent::Ack(ack)) => {
                frames.push(Frame::Ack(ack));
                continue;
            }
            Ok(ReaderEvent::Ring(ring)) => {
                assert_eq!(SharedPlace::decode(&ring.encode()), Ok(ring));
                frames.push(Frame::Ring(ring));
                continue;
            }
            Ok(ReaderEvent::Need(need)) => need,
        };
        if stream.is_empty() {
            return Read { frames, error: None };
        }
        let mut budget = size(()).min(stream.len());
        let mut total = 0;
        let wanted: Vec<Place> = reader.wanted().collect();
        assert_eq!(wanted.is_empty(), need == Need::Record);
        for place in wanted {
            let len = place.len.min(budget as u64);
            let (now, later) = stream.split_at(len as usize);
            land(&mut frames, Place { len, ..place }, now);
            stream = later;
            budget -= now.len();
            total += now.len();
        }
        let spare = reader.spare();
        assert!(!spare.is_empty(), "a reader always has room");
        let count = budget.min(spare.len());
        let (now, later) = stream.split_at(count);
        spare[..count].copy_from_slice(now);
        stream = later;
        reader.advance(total + count);
    }
}

/// Records payload, which must arrive in the order of the places.
fn land(frames: &mut [Frame], at: Place, bytes: &[u8]) {
    let Some(Frame::Chunk { places, payload, .. }) = frames.last_mut() else {
        panic!("payload of no chunk");
    };
    let mut before = payload.len() as u64;
    for place in places.iter() {
        if before < place.len && !bytes.is_empty() {
            assert_eq!((at.key, at.offset), (place.key, place.offset + before));
            assert!(before + at.len <= place.len, "more than the place has room for");
            break;
        }
        before -= place.len.min(before);
    }
    payload.extend_from_slice(bytes);
}

/// Encodes all frames, and the arrived part of an unfinished one.
fn encode(read: &Read) -> Vec<u8> {
    let mut out = Vec::new();
    for frame in &read.frames {
        match frame {
            Frame::Ack(ack) => out.extend_from_slice(&ack.encode()),
            Frame::Ring(ring) => out.extend_from_slice(&ring.encode()),
            Frame::Chunk { header, places, meta, payload, .. } => {
                let piece = |place: &Place| Piece {
                    local_region: 0,
                    local_offset: 0,
                    remote: place.key,
                    remote_offset: place.offset,
                    len: place.len,
                };
                header.encode(places.iter().map(piece), meta, &mut out);
                out.extend_from_slice(payload);
            }
        }
    }
    out
}
