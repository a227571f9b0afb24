//! Data that the liar sends.

use polyrail_proto::message::{CopyLeave, Message, PostedReceive, ReadPiece};
use polyrail_proto::wire::{AckFrame, ChunkHeader, Flags, Place, RefusalCode, SharedPlace, WireOp};
use polyrail_proto::{MAX_CHUNKS, Piece, RegionKey, TransferId};

use super::{GRANTED_BYTES, Liar, seal};
use crate::memory::Memory;
use crate::rng::Rng;

/// Maximum payload bytes in a chunk of the liar.
const PAYLOAD_MAX: u64 = 600;
/// Maximum message bytes in a chunk of the liar.
const META_MAX: u64 = 200;
/// Number of transfers that the liar returns to.
const NUMBERS: u64 = 40;

impl Liar {
    /// Seals some data on a connection.
    pub(super) fn lie(&mut self, flow: u32, theirs: &Memory, rng: &mut Rng) {
        let (mut plain, mut payload) = (Vec::new(), Vec::new());
        match rng.index(12) {
            0 => {
                plain = vec![0; rng.between(1, 300) as usize];
                rng.fill(&mut plain);
                plain[0] = rng.below(6) as u8;
            }
            1..=3 => {
                // The node has sent a few frames, or none.
                let sent = self.lines[flow as usize].sent;
                let sequence = match rng.index(8) {
                    0 => any_number(rng),
                    _ => sent.saturating_sub(rng.below(3)),
                };
                let code = RefusalCode::ALL[rng.index(RefusalCode::ALL.len())];
                let refusal = AckFrame::Refusal { sequence, code };
                let ack = AckFrame::Ack { sequence };
                plain.extend(if rng.per_mille(300) { refusal } else { ack }.encode());
            }
            4 if rng.per_mille(100) => {
                let (process, descriptor) = (rng.bits() as u32, rng.bits() as u32);
                let ring = SharedPlace { process, descriptor, bytes: 1 << 40, token: 1 };
                plain.extend(ring.encode());
            }
            4 | 5 => {
                let meta = message(theirs, rng).encode();
                let header = self.header(WireOp::Control, 0, meta.len() as u32, 0, rng);
                header.encode(std::iter::empty(), &meta, &mut plain);
            }
            _ => self.chunk(theirs, rng, &mut plain, &mut payload),
        }
        let line = &mut self.lines[flow as usize];
        let mut out = Vec::new();
        let is_raw = rng.per_mille(400);
        if is_raw {
            let wrong = rng.per_mille(20);
            let raw = payload.len() as u32 + u32::from(wrong);
            seal(&mut line.sealer, &plain, raw, &mut out);
            out.append(&mut payload);
        } else {
            plain.append(&mut payload);
            let cut = if rng.per_mille(20) { rng.index(plain.len()) } else { plain.len() };
            seal(&mut line.sealer, &plain[..cut], 0, &mut out);
            if cut < plain.len() {
                seal(&mut line.sealer, &plain[cut..], 0, &mut out);
            }
        }
        if rng.per_mille(5) {
            let at = rng.index(out.len());
            out[at] ^= 1;
        }
        line.stream.extend(out);
    }

    fn header(
        &mut self,
        op: WireOp,
        payload_len: u32,
        meta_len: u32,
        pieces: u16,
        rng: &mut Rng,
    ) -> ChunkHeader {
        let transfer = match rng.index(20) {
            0 => any_number(rng).max(1),
            1..=9 => rng.between(1, NUMBERS),
            _ => {
                self.next_transfer += rng.below(3);
                self.next_transfer
            }
        };
        // Mostly 1, which is never beyond the landed transfers.
        let floor = match rng.index(20) {
            0 => any_number(rng).min(transfer),
            1 | 2 => rng.between(1, transfer.min(self.next_transfer)),
            _ => 1,
        };
        // A transfer without a last chunk stays unfinished.
        let chunk_count = match rng.index(12) {
            _ if payload_len == 0 || op == WireOp::Control => 1,
            0 => MAX_CHUNKS,
            1 => rng.between(1, u64::from(MAX_CHUNKS)) as u32,
            _ => 1 + (transfer % 4) as u32,
        };
        let chunk = if meta_len > 0 { 0 } else { rng.below(u64::from(chunk_count)) as u32 };
        ChunkHeader {
            op,
            flags: if rng.per_mille(200) { Flags::NOTIFY } else { Flags::NONE },
            meta_len,
            payload_len,
            pieces,
            transfer: TransferId(transfer),
            chunk,
            chunk_count,
            floor: TransferId(floor),
            context: rng.below(4),
            checksum: 0,
            place: 0,
        }
    }

    fn chunk(
        &mut self,
        theirs: &Memory,
        rng: &mut Rng,
        plain: &mut Vec<u8>,
        payload: &mut Vec<u8>,
    ) {
        let op = match rng.index(10) {
            0 => WireOp::ReadData,
            1 => WireOp::SendData,
            _ => WireOp::Write,
        };
        let pieces: Vec<Piece> = (0..rng.between(1, 3)).map(|_| self.piece(theirs, rng)).collect();
        let len: u64 = pieces.iter().map(|piece| piece.len).sum();
        let mut meta = Vec::new();
        if rng.per_mille(100) {
            meta = vec![7; rng.between(1, META_MAX) as usize];
        }
        let header = self.header(op, len as u32, meta.len() as u32, pieces.len() as u16, rng);
        header.encode(pieces.into_iter(), &meta, plain);
        payload.resize(len as usize, 0xee);
    }

    /// A piece, mostly where the liar may write; otherwise with an invented key.
    fn piece(&self, theirs: &Memory, rng: &mut Rng) -> Piece {
        let len = rng.between(1, PAYLOAD_MAX / 3);
        let key = self.granted.key(0).expect("it is never dropped");
        let inside = rng.below(GRANTED_BYTES as u64 - len);
        let (remote, remote_offset) = match rng.index(10) {
            0 => (made_up(theirs, rng), inside),
            1 => (key, GRANTED_BYTES as u64 - rng.below(len)),
            2 => (RegionKey { generation: key.generation + 1, ..key }, inside),
            _ => (key, inside),
        };
        Piece { local_region: 0, local_offset: 0, remote, remote_offset, len }
    }
}

/// A key of an existing region, except for the number that can't be guessed.
fn made_up(theirs: &Memory, rng: &mut Rng) -> RegionKey {
    let slot = rng.below(theirs.slots() as u64 + 1) as u32;
    RegionKey { slot, generation: rng.between(0, 3) as u32, nonce: rng.bits() }
}

/// Small, huge, or in between.
fn any_number(rng: &mut Rng) -> u64 {
    match rng.index(4) {
        0 => rng.below(NUMBERS),
        1 => u64::MAX - rng.below(3),
        2 => 1 << rng.below(64),
        _ => rng.bits(),
    }
}

/// A message about anything, mostly about things of others.
fn message(theirs: &Memory, rng: &mut Rng) -> Message {
    let place = Place { key: made_up(theirs, rng), offset: any_number(rng), len: any_number(rng) };
    let number = any_number(rng);
    match rng.index(6) {
        0..=2 => Message::Cancel { transfer: TransferId(number) },
        3 => {
            let piece = ReadPiece { from: place, to_key: place.key, to_offset: number };
            Message::ReadRequest { read: number, pieces: vec![piece; 3], shared: false }
        }
        4 => {
            let (places, leave) = (vec![place], CopyLeave::No);
            Message::ReceivePosted(PostedReceive { receive: number, tag: 1, places, leave })
        }
        _ => Message::ReadCancelled { read: number },
    }
}
