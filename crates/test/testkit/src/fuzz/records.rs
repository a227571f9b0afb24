//! Encodes a stream of frames as an authenticated peer does: in records, in which the reader must find them again.

use polyrail_proto::wire::{
    ACK_BYTES, AckFrame, CHUNK_HEADER_BYTES, ChunkHeader, RING_BYTES, SharedPlace,
};
use polyrail_secure::{Keys, MAX_SEALED_BYTES, Opener, Sealer};

use crate::rng::Rng;
use crate::sealing::seal;

const OURS: [u8; 32] = [1; 32];
const THEIRS: [u8; 32] = [2; 32];

pub(super) fn opener() -> Opener {
    Keys::new(THEIRS, OURS).opener
}

fn sealer() -> Sealer {
    Keys::new(OURS, THEIRS).sealer
}

/// A frame before it is sealed.
struct Frame<'a> {
    /// All bytes before its payload.
    head: &'a [u8],
    /// Available part of its payload.
    payload: &'a [u8],
    /// Announced length of its payload.
    announced: u32,
}

/// Takes the first frame off a stream. An invalid frame extends to the end of the stream.
fn split_frame<'a>(stream: &mut &'a [u8]) -> Frame<'a> {
    let kind = stream.first().copied().unwrap_or_default();
    let (head, announced) = if AckFrame::is_kind(kind) {
        (ACK_BYTES, 0)
    } else if SharedPlace::is_kind(kind) {
        (RING_BYTES, 0)
    } else {
        match stream.first_chunk().map(ChunkHeader::decode) {
            Some(Ok(header)) => {
                (CHUNK_HEADER_BYTES + header.body_bytes(), header.payload_on_wire())
            }
            _ => (MAX_SEALED_BYTES, 0),
        }
    };
    let (head, rest) = stream.split_at(head.min(stream.len()));
    let (payload, rest) = rest.split_at(rest.len().min(announced as usize));
    *stream = rest;
    Frame { head, payload, announced }
}

/// Puts each frame in a separate record, followed by its unsealed payload.
pub(super) fn raw(mut stream: &[u8]) -> Vec<u8> {
    let (mut sealer, mut out) = (sealer(), Vec::new());
    while !stream.is_empty() {
        let Frame { head, payload, announced } = split_frame(&mut stream);
        seal(&mut sealer, head, announced, &mut out);
        out.extend_from_slice(payload);
    }
    out
}

/// Puts all bytes in records of any length, without cutting headers.
pub(super) fn sealed(mut stream: &[u8], rng: &mut Rng) -> Vec<u8> {
    let (mut sealer, mut out, mut plain) = (sealer(), Vec::new(), Vec::new());
    let mut size = 0;
    while !stream.is_empty() {
        let Frame { head, mut payload, .. } = split_frame(&mut stream);
        if plain.len() >= size || plain.len() + head.len() > MAX_SEALED_BYTES {
            seal(&mut sealer, &plain, 0, &mut out);
            plain.clear();
            size = rng.size(6000);
        }
        plain.extend_from_slice(head);
        while !payload.is_empty() {
            if plain.len() >= size {
                seal(&mut sealer, &plain, 0, &mut out);
                plain.clear();
                size = rng.size(6000);
            }
            let room = size.saturating_sub(plain.len()).min(payload.len());
            plain.extend_from_slice(&payload[..room]);
            payload = &payload[room..];
        }
    }
    seal(&mut sealer, &plain, 0, &mut out);
    out
}

/// Cuts anywhere, and announces any number of unsealed bytes.
pub(super) fn lawless(mut stream: &[u8], rng: &mut Rng) -> Vec<u8> {
    let (mut sealer, mut out) = (sealer(), Vec::new());
    while !stream.is_empty() {
        let (plain, rest) = stream.split_at(rng.size(300).min(stream.len()));
        let follow = if rng.per_mille(500) { 0 } else { rng.size(rest.len()) };
        let (raw, rest) = rest.split_at(follow);
        let announced = if rng.per_mille(900) { follow as u64 } else { rng.below(1 << 32) };
        seal(&mut sealer, plain, announced as u32, &mut out);
        out.extend_from_slice(raw);
        stream = rest;
    }
    out
}
