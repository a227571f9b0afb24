//! Turns chunks into records: the sending end of a flow's framing, as [`crate::FrameReader`] is the receiving one.
//!
//! A [`Framer`] knows how payload is protected and how long records are. The driver gives it a chunk's header and says
//! where the payload is ([`PayloadSource`]). The framer appends the head to a batch of bytes, and behind it the payload
//! that is sealed or small. The driver sends all other payload itself, from where it lies.

use polyrail_secure::{MAX_SEALED_BYTES, RECORD_HEADER_BYTES, Sealer};

use crate::plan::Piece;
use crate::wire::{CHUNK_HEADER_BYTES, ChunkHeader, Flags, SharedPlace};

/// Bytes of a record with payload: long enough that a record costs little more than its bytes, short
/// enough to stay in the cache between copy, cipher and system call.
const RECORD_BYTES: usize = 64 << 10;
/// Payload up to this size is copied behind its head: cheaper than a piece of its own in a system call.
const COPIED_BYTES: u32 = 512;

/// The protection of payload on its way. Heads are always sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protection {
    /// Not at all.
    None,
    /// By a CRC-32C in its head; see [`Flags::CHECKSUM`].
    Checksum,
    /// It is sealed as its head is.
    Sealed,
}

/// Makes frames of chunks, and records of frames.
#[derive(Clone, Copy, Debug)]
pub struct Framer {
    protection: Protection,
    record_bytes: usize,
    copied_bytes: u32,
}

/// Payload of a frame that is outside the records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Framed {
    /// Bytes of payload that were copied behind the record, as they are.
    pub copied: u32,
    /// Bytes of payload that were neither copied nor sealed: the driver sends them behind the batch.
    pub outside: u32,
}

/// Payload of one chunk, as the driver reads it.
pub trait PayloadSource {
    /// The reason why payload can't be read at all.
    type Error;

    /// The CRC-32C of `head`, continued over the payload.
    ///
    /// # Errors
    /// If the driver has to give the connection up.
    fn checksum(&self, head: &[u8]) -> Result<u32, Self::Error>;

    /// Appends the whole payload to `to`, in parts of at most [`Sink::room`] bytes. Returns false if it can't: all
    /// of it then counts as outside the records, and the driver finds out why when it sends it.
    fn append(&self, to: &mut Sink<'_>) -> bool;
}

/// Takes payload, and makes records of it where it is sealed.
#[derive(Debug)]
pub struct Sink<'a> {
    out: &'a mut Vec<u8>,
    records: Option<Records<'a>>,
}

/// The records of sealed payload.
#[derive(Debug)]
struct Records<'a> {
    sealer: &'a mut Sealer,
    /// The offset in `out` of the record that is being filled.
    begin: usize,
    /// Its greatest length in bytes, its lengths included.
    most: usize,
}

impl Framer {
    /// A framer with records of 64 KiB, which copies payload of up to 512 bytes behind its head.
    pub fn new(protection: Protection) -> Self {
        Self { protection, record_bytes: RECORD_BYTES, copied_bytes: COPIED_BYTES }
    }

    /// The same with other sizes in bytes, for drivers that vary them. A record has at most `record_bytes`, its lengths
    /// included and its tag not; but a head is never cut. A size that no record can have counts as the nearest one
    /// that a record can have. Payload of up to `copied_bytes` is copied if it is not sealed.
    #[must_use]
    pub fn with_sizes(self, record_bytes: usize, copied_bytes: u32) -> Self {
        let most = RECORD_HEADER_BYTES + MAX_SEALED_BYTES;
        let record_bytes = record_bytes.clamp(RECORD_HEADER_BYTES + 1, most);
        Self { record_bytes, copied_bytes, ..self }
    }

    /// Appends the record that announces a ring.
    pub fn announce(self, place: &SharedPlace, sealer: &mut Sealer, out: &mut Vec<u8>) {
        let record = sealer.begin(out);
        out.extend_from_slice(&place.encode());
        sealer.seal(out, record, 0);
    }

    /// Appends the frame of a chunk. `pieces` and `meta` must be what the header announces, and `payload` must have as
    /// many bytes. Sets the flag and the field of a checksum itself. Where the header says that the payload travels
    /// elsewhere, none of it is appended.
    ///
    /// # Errors
    /// If [`PayloadSource::checksum`] fails. The driver then ends the connection: the appended bytes are not a whole
    /// record.
    pub fn frame<P: PayloadSource>(
        self,
        mut header: ChunkHeader,
        pieces: impl Iterator<Item = Piece>,
        meta: &[u8],
        payload: &P,
        sealer: &mut Sealer,
        out: &mut Vec<u8>,
    ) -> Result<Framed, P::Error> {
        let has_checksum = self.protection == Protection::Checksum;
        if has_checksum {
            header.flags = header.flags.with(Flags::CHECKSUM);
        }
        let record = sealer.begin(out);
        let head = out.len();
        header.encode(pieces, meta, out);
        if has_checksum {
            let checksum = payload.checksum(&out[head + CHUNK_HEADER_BYTES..])?;
            ChunkHeader::set_checksum(&mut out[head..], checksum);
        }
        let on_wire = header.payload_on_wire();
        if on_wire > 0 && self.protection == Protection::Sealed {
            let records = Records { sealer, begin: record, most: self.record_bytes };
            let mut sink = Sink { out, records: Some(records) };
            let is_whole = payload.append(&mut sink);
            sink.end();
            return Ok(Framed { copied: 0, outside: if is_whole { 0 } else { on_wire } });
        }
        sealer.seal(out, record, on_wire);
        if on_wire == 0 || on_wire > self.copied_bytes {
            return Ok(Framed { copied: 0, outside: on_wire });
        }
        let behind = out.len();
        if !payload.append(&mut Sink { out, records: None }) {
            out.truncate(behind);
            return Ok(Framed { copied: 0, outside: on_wire });
        }
        debug_assert_eq!(out.len() - behind, on_wire as usize);
        Ok(Framed { copied: on_wire, outside: 0 })
    }
}

impl Sink<'_> {
    /// Returns how many bytes may be put behind [`Self::out`] now, at least one. Seals a record that is full, and
    /// begins the next one.
    #[inline]
    pub fn room(&mut self) -> u64 {
        let Some(records) = &mut self.records else { return u64::MAX };
        if self.out.len() - records.begin >= records.most {
            records.sealer.seal(self.out, records.begin, 0);
            records.begin = records.sealer.begin(self.out);
        }
        (records.most - (self.out.len() - records.begin)) as u64
    }

    /// The bytes so far. The payload's next ones go behind them; those that are there stay as they are.
    #[inline]
    pub fn out(&mut self) -> &mut Vec<u8> {
        self.out
    }

    /// Seals what was put in since the last record.
    fn end(self) {
        if let Some(records) = self.records {
            records.sealer.seal(self.out, records.begin, 0);
        }
    }
}

#[cfg(test)]
mod tests;
