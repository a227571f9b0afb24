//! An attacker on the path of a stream: sees all bytes, knows where records end, and changes data.

use polyrail_secure::{RECORD_HEADER_BYTES, RecordHeader};

use crate::rng::Rng;

/// Maximum bytes that are removed from a stream or inserted in one place.
const SOME_BYTES: u64 = 64;

/// A single change of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trick {
    /// A bit is flipped.
    Flip,
    /// Some bytes are removed.
    Cut,
    /// Some invented bytes are inserted.
    Noise,
    /// A record is omitted.
    Drop,
    /// A record is repeated.
    Repeat,
    /// Two records change places.
    Swap,
    /// A record of another connection, or an earlier one, is inserted.
    Replay(Vec<u8>),
}

/// The attacker's position on one stream.
#[derive(Clone, Debug)]
pub struct Tap {
    rng: Rng,
    trick: Option<Trick>,
    /// Bytes of the current record that have passed.
    record: Vec<u8>,
    /// True if that record is held back for now.
    is_held: bool,
    /// A record that waits for the next, which goes first.
    first: Option<Vec<u8>>,
    last: Vec<u8>,
    tricks: u64,
}

impl Tap {
    /// Creates a tap that only listens.
    pub fn new(rng: Rng) -> Self {
        Self {
            rng,
            trick: None,
            record: Vec::new(),
            is_held: false,
            first: None,
            last: Vec::new(),
            tricks: 0,
        }
    }

    /// Applies this change to the next data.
    pub fn arm(&mut self, trick: Trick) {
        if !self.is_held {
            self.trick = Some(trick);
        }
    }

    /// Stops. Held data is lost.
    pub fn disarm(&mut self) {
        self.trick = None;
        self.first = None;
        self.is_held = false;
    }

    /// Last whole record that passed. Empty if there is none.
    pub fn last(&self) -> &[u8] {
        &self.last
    }

    /// Number of changes made so far.
    pub fn tricks(&self) -> u64 {
        self.tricks
    }

    /// Passes these bytes, and returns the result.
    pub fn pass(&mut self, mut bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(bytes.len());
        while !bytes.is_empty() {
            if self.record.is_empty() {
                self.begin_record(&mut out);
            }
            let (now, later) = bytes.split_at(self.missing().min(bytes.len()));
            bytes = later;
            self.record.extend_from_slice(now);
            if !self.is_held {
                out.extend(self.change(now));
            }
            if self.missing() == 0 {
                self.end_record(&mut out);
            }
        }
        out
    }

    /// Missing bytes of the record, as far as known.
    fn missing(&self) -> usize {
        let whole = match self.record.first_chunk().map(RecordHeader::decode) {
            Some(Ok(header)) => header.bytes() + header.raw as usize,
            _ => RECORD_HEADER_BYTES,
        };
        whole.saturating_sub(self.record.len())
    }

    fn begin_record(&mut self, out: &mut Vec<u8>) {
        match &self.trick {
            Some(Trick::Replay(old)) => {
                out.extend_from_slice(old);
                self.played();
            }
            Some(Trick::Drop | Trick::Repeat | Trick::Swap) => self.is_held = true,
            Some(Trick::Flip | Trick::Cut | Trick::Noise) | None => {}
        }
    }

    fn end_record(&mut self, out: &mut Vec<u8>) {
        self.last = std::mem::take(&mut self.record);
        if !self.is_held {
            return;
        }
        match (&self.trick, self.first.take()) {
            (Some(Trick::Swap), None) => {
                self.first = Some(self.last.clone());
                return;
            }
            (Some(Trick::Swap), Some(first)) => out.extend([&self.last[..], &first].concat()),
            (Some(Trick::Repeat), _) => out.extend([&self.last[..], &self.last].concat()),
            _ => {}
        }
        self.is_held = false;
        self.played();
    }

    fn change(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut bytes = bytes.to_vec();
        let at = self.rng.index(bytes.len());
        match self.trick {
            Some(Trick::Flip) => bytes[at] ^= 1 << self.rng.below(8),
            Some(Trick::Cut) => {
                let count = self.rng.between(1, SOME_BYTES).min((bytes.len() - at) as u64);
                bytes.drain(at..at + count as usize);
            }
            Some(Trick::Noise) => {
                let mut noise = vec![0; self.rng.between(1, SOME_BYTES) as usize];
                self.rng.fill(&mut noise);
                bytes.splice(at..at, noise);
            }
            _ => return bytes,
        }
        self.played();
        bytes
    }

    fn played(&mut self) {
        self.trick = None;
        self.tricks += 1;
    }
}

#[cfg(test)]
mod tests {
    use polyrail_secure::Keys;

    use super::*;
    use crate::sealing::seal;

    /// Result for four records, which come in pieces.
    fn passed(trick: Trick) -> (Vec<Vec<u8>>, Vec<u8>, Tap) {
        let mut sealer = Keys::new([1; 32], [2; 32]).sealer;
        let records: Vec<Vec<u8>> = (0..4u8)
            .map(|number| {
                let mut record = Vec::new();
                seal(&mut sealer, &[number; 20], 5, &mut record);
                record.extend([number; 5]);
                record
            })
            .collect();
        let mut tap = Tap::new(Rng::new(3));
        let mut out = Vec::new();
        for (index, piece) in records.concat().chunks(7).enumerate() {
            if index == 1 {
                tap.arm(trick.clone());
            }
            out.extend(tap.pass(piece));
        }
        (records, out, tap)
    }

    #[test]
    fn whole_records_are_dropped_repeated_moved_and_put_in() {
        let other = b"a record of somebody else".to_vec();
        for (trick, order) in [
            (Trick::Drop, &[0, 2, 3][..]),
            (Trick::Repeat, &[0, 1, 1, 2, 3]),
            (Trick::Swap, &[0, 2, 1, 3]),
        ] {
            let (records, out, tap) = passed(trick);
            let wanted: Vec<u8> = order.iter().flat_map(|i: &usize| records[*i].clone()).collect();
            assert_eq!((out == wanted, tap.tricks()), (true, 1), "{order:?}");
            assert_eq!(tap.last(), records[3]);
        }
        let (records, out, _) = passed(Trick::Replay(other.clone()));
        assert_eq!(
            out,
            [&records[0], &other, &records[1], &records[2], &records[3]]
                .map(Vec::as_slice)
                .concat()
        );
    }

    #[test]
    fn bytes_are_changed_taken_out_and_put_in() {
        let (records, out, _) = passed(Trick::Flip);
        let whole = records.concat();
        let differ = whole.iter().zip(&out).filter(|(a, b)| a != b).count();
        assert_eq!((out.len(), differ), (whole.len(), 1));
        assert!(passed(Trick::Cut).1.len() < whole.len());
        assert!(passed(Trick::Noise).1.len() > whole.len());
    }
}
