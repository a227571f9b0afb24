//! Turns chunks into records: the sending counterpart of [`crate::FrameReader`] in a flow's framing.
//!
//! A [`Framer`] holds the protection of payload and the length of records. The driver passes a chunk's header and a
//! source of its payload ([`PayloadSource`]). The framer appends the header, with the chunk's table and message, to a
//! batch of bytes, followed by the payload if it is sealed or small. The driver sends all other payload itself, without
//! copying it.

use polyrail_secure::{MAX_SEALED_BYTES, RECORD_HEADER_BYTES, Sealer};

use crate::plan::Piece;
use crate::wire::{CHUNK_HEADER_BYTES, ChunkHeader, Flags, SharedPlace};

/// Bytes of a record with payload: long enough that a record costs little more than its bytes, short enough to stay in
/// the cache between copy, cipher and system call.
const RECORD_BYTES: usize = 64 << 10;
/// Maximum size of payload that is copied behind its header: cheaper than its own piece in a system call.
const COPIED_BYTES: u32 = 512;

/// Protection of payload on the wire. Headers are always sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protection {
    /// No protection.
    None,
    /// A CRC-32C in the chunk's header; see [`Flags::CHECKSUM`].
    Checksum,
    /// Sealed, as the chunk's header is.
    Sealed,
}

/// Makes frames from chunks, and records from frames.
#[derive(Clone, Copy, Debug)]
pub struct Framer {
    protection: Protection,
    record_bytes: usize,
    copied_bytes: u32,
}

/// Payload of a frame that is outside the records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Framed {
    /// Bytes of payload that were copied behind the record, unsealed.
    pub copied: u32,
    /// Bytes of payload that were neither copied nor sealed: the driver sends them after the batch.
    pub outside: u32,
}

/// Payload of one chunk, as the driver reads it.
pub trait PayloadSource {
    /// Reason why payload can't be read at all.
    type Error;

    /// Returns the CRC-32C of `head`, continued over the payload.
    ///
    /// # Errors
    /// If the driver has to give the connection up.
    fn checksum(&self, head: &[u8]) -> Result<u32, Self::Error>;

    /// Appends the whole payload to `to`, in parts of at most [`Sink::room`] bytes. Returns false if the payload can't
    /// be read. All of it then counts as outside the records, and the driver finds the reason when it sends it.
    fn append(&self, to: &mut Sink<'_>) -> bool;
}

/// Collects payload, and splits it into records if it is sealed.
#[derive(Debug)]
pub struct Sink<'a> {
    out: &'a mut Vec<u8>,
    records: Option<Records<'a>>,
}

/// Records of sealed payload.
#[derive(Debug)]
struct Records<'a> {
    sealer: &'a mut Sealer,
    /// Offset in `out` of the record that is being filled.
    begin: usize,
    /// Maximum length of a record in bytes, its header included.
    most: usize,
}

impl Framer {
    /// Returns a framer with records of 64 KiB, which copies payload of up to 512 bytes behind its header.
    pub fn new(protection: Protection) -> Self {
        Self { protection, record_bytes: RECORD_BYTES, copied_bytes: COPIED_BYTES }
    }

    /// Sets other sizes in bytes, for drivers that vary them. A record has at most `record_bytes`, its header included
    /// and its tag not; but a chunk's header, table and message are never split. A size that no record can have is
    /// clamped. Payload of up to `copied_bytes` is copied if it is not sealed.
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
    /// many bytes. The framer sets the checksum flag and field itself. If the header says that the payload travels
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
    /// Returns how many bytes may be put behind [`Self::out`] now, at least one. Seals a full record, and begins the
    /// next one.
    #[inline]
    pub fn room(&mut self) -> u64 {
        let Some(records) = &mut self.records else { return u64::MAX };
        if self.out.len() - records.begin >= records.most {
            records.sealer.seal(self.out, records.begin, 0);
            records.begin = records.sealer.begin(self.out);
        }
        (records.most - (self.out.len() - records.begin)) as u64
    }

    /// Returns the bytes so far. Append the next bytes of the payload to them; leave the existing ones unchanged.
    #[inline]
    pub fn out(&mut self) -> &mut Vec<u8> {
        self.out
    }

    /// Seals the bytes added since the last record.
    fn end(self) {
        if let Some(records) = self.records {
            records.sealer.seal(self.out, records.begin, 0);
        }
    }
}

#[cfg(test)]
mod tests;
