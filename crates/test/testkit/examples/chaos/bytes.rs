//! Expected bytes of memory. Both ends of an operation compute them from the operation's seed, so only the seed has to
//! be sent.

use polyrail::{Memory, Region, RegionError};
use polyrail_testkit::Rng;

use crate::talk::Mark;

/// Bytes of a slot: room for the longest operation with all its gaps.
pub(crate) const SLOT_BYTES: u64 = 3 << 20;
/// Content of memory that no operation has written.
pub(crate) const FILL: u8 = 0xa5;
/// Bytes behind an operation that must stay unchanged.
const GUARD_BYTES: u64 = 64;
/// Payload of the longest operation.
const LONGEST: u64 = (5 << 19) + 3;
const PIECES_MAX: u64 = 300;
const GAP_MAX: u64 = 200;
/// Bytes are made, read and compared in blocks of this size, on the stack: a worker with little memory must still be
/// able to check.
const BLOCK_BYTES: u64 = 16 << 10;
/// Address space that every region leaves free. A Rust program ends if a small allocation fails, so the tests only make
/// large ones fail.
const SPARE_BYTES: u64 = 24 << 20;
/// A prime, so that no displacement by whole chunks or pages looks right.
const TABLE_BYTES: usize = 1_048_583;

/// An endless text of random bytes; each seed begins elsewhere in it.
pub(crate) struct Text(Vec<u8>);

/// Places of an operation's bytes at one end: pieces of a slot, in the order of the text.
#[derive(Debug)]
pub(crate) struct Layout {
    /// Offset in the slot, and length.
    pub(crate) pieces: Vec<(u64, u64)>,
    /// End of the last piece.
    pub(crate) span: u64,
}

/// Expected content of a slot: pieces of a text, and filling between and behind them.
pub(crate) struct Expected<'a> {
    text: &'a Text,
    seed: u64,
    /// Offset in the slot, length, and offset in the text.
    pieces: Vec<(u64, u64, u64)>,
    bytes: u64,
}

/// Bytes of an operation at both ends.
#[derive(Debug)]
pub(crate) struct Shape {
    pub(crate) bytes: u64,
    pub(crate) here: Layout,
    pub(crate) there: Layout,
}

/// A slot of a region.
#[derive(Clone)]
pub(crate) struct Slot {
    pub(crate) region: Region,
    pub(crate) offset: u64,
}

impl Text {
    pub(crate) fn new() -> Self {
        let mut table = vec![0; TABLE_BYTES];
        Rng::new(0x706f_6c79).fill(&mut table);
        Self(table)
    }

    /// Expected content of a slot if its operation, or the first `bytes` of it, is in place.
    pub(crate) fn expected(&self, seed: u64, layout: &Layout, bytes: u64) -> Expected<'_> {
        let mut at = 0;
        let piece = |&(offset, len): &(u64, u64)| {
            let len = len.min(bytes - at);
            at += len;
            (offset, len, at - len)
        };
        let pieces = layout.pieces.iter().map(piece).collect();
        Expected { text: self, seed, pieces, bytes: layout.span + GUARD_BYTES }
    }

    /// Expected content of a slot into which the places `there` of a text were read.
    pub(crate) fn read(&self, seed: u64, here: &Layout, there: &Layout) -> Expected<'_> {
        let pairs = here.pieces.iter().zip(&there.pieces);
        let pieces = pairs.map(|(&(here, len), &(there, _))| (here, len, there)).collect();
        Expected { text: self, seed, pieces, bytes: here.span + GUARD_BYTES }
    }

    /// Copies the text of `seed` from byte `at` on.
    pub(crate) fn copy(&self, seed: u64, at: u64, out: &mut [u8]) {
        let start = Rng::new(seed).below(TABLE_BYTES as u64);
        let mut from = ((start + at) % TABLE_BYTES as u64) as usize;
        let mut out = out;
        while !out.is_empty() {
            let len = out.len().min(TABLE_BYTES - from);
            let (now, rest) = out.split_at_mut(len);
            now.copy_from_slice(&self.0[from..from + len]);
            (from, out) = (0, rest);
        }
    }
}

impl Layout {
    /// Lays out pieces of these lengths with random gaps, shuffled so that they are out of order.
    fn scatter(rng: &mut Rng, lengths: &[u64]) -> Self {
        let gaps = lengths.len() > 1;
        let mut order: Vec<usize> = (0..lengths.len()).collect();
        if rng.per_mille(300) {
            (1..order.len()).for_each(|at| order.swap(at, rng.index(at + 1)));
        }
        let mut pieces = vec![(0, 0); lengths.len()];
        let mut at = 0;
        for index in order {
            at += if gaps { rng.below(GAP_MAX) } else { rng.below(17) };
            pieces[index] = (at, lengths[index]);
            at += lengths[index];
        }
        Self { pieces, span: at }
    }

    /// Lays out room for a message of `bytes`, in separate pieces.
    pub(crate) fn room(rng: &mut Rng, bytes: u64) -> Self {
        let lengths = cut(rng, bytes);
        Self::scatter(rng, &lengths)
    }
}

impl Shape {
    pub(crate) fn of(mark: &Mark) -> Self {
        let rng = &mut Rng::new(mark.seed ^ 0x5eed);
        if mark.is_empty {
            let nothing = || Layout { pieces: Vec::new(), span: 0 };
            return Self { bytes: 0, here: nothing(), there: nothing() };
        }
        let bytes = match rng.below(12) {
            0..4 => rng.between(1, 64),
            4..8 => rng.between(1, 64 << 10),
            8..11 => rng.between(1, 1 << 20),
            _ => rng.between(1, LONGEST),
        };
        let lengths = cut(rng, bytes);
        let here = Layout::scatter(rng, &lengths);
        let there = Layout::scatter(rng, &lengths);
        Self { bytes, here, there }
    }
}

fn cut(rng: &mut Rng, bytes: u64) -> Vec<u64> {
    let count = match rng.below(10) {
        0..5 => 1,
        5..9 => rng.between(2, 8),
        _ => rng.between(9, PIECES_MAX),
    };
    let mut cuts: Vec<u64> = (1..count).map(|_| rng.between(1, bytes.max(2) - 1)).collect();
    cuts.extend([0, bytes]);
    cuts.sort_unstable();
    cuts.dedup();
    cuts.windows(2).map(|pair| pair[1] - pair[0]).collect()
}

impl Expected<'_> {
    /// Copies the expected bytes from `at` on.
    fn copy(&self, at: u64, out: &mut [u8]) {
        out.fill(FILL);
        let end = at + out.len() as u64;
        for &(offset, len, from) in &self.pieces {
            let (first, last) = (offset.max(at), (offset + len).min(end));
            if first < last {
                let out = &mut out[(first - at) as usize..(last - at) as usize];
                self.text.copy(self.seed, from + (first - offset), out);
            }
        }
    }
}

/// Blocks of `bytes` bytes: offset and length.
fn blocks(bytes: u64) -> impl Iterator<Item = (u64, usize)> {
    let len = move |at: u64| (bytes - at).min(BLOCK_BYTES) as usize;
    (0..bytes).step_by(BLOCK_BYTES as usize).map(move |at| (at, len(at)))
}

/// Memory for a region, if enough is left beside it.
pub(crate) fn memory(bytes: u64) -> Option<Memory> {
    drop(Memory::anonymous(bytes + SPARE_BYTES).ok()?);
    Memory::anonymous(bytes).ok()
}

impl Slot {
    /// Writes these bytes into the slot.
    pub(crate) fn write(&self, bytes: &Expected<'_>) -> Result<(), RegionError> {
        let mut block = [0; BLOCK_BYTES as usize];
        for (at, len) in blocks(bytes.bytes) {
            bytes.copy(at, &mut block[..len]);
            self.region.write_at(self.offset + at, &block[..len])?;
        }
        Ok(())
    }

    /// Resets the part of the slot that this layout covers.
    pub(crate) fn clear(&self, layout: &Layout) -> Result<(), RegionError> {
        self.fill(layout.span + GUARD_BYTES)
    }

    /// Resets the whole slot.
    pub(crate) fn clear_all(&self) -> Result<(), RegionError> {
        self.fill(SLOT_BYTES)
    }

    fn fill(&self, bytes: u64) -> Result<(), RegionError> {
        let block = [FILL; BLOCK_BYTES as usize];
        blocks(bytes)
            .try_for_each(|(at, len)| self.region.write_at(self.offset + at, &block[..len]))
    }

    pub(crate) fn checksum(&self, layout: &Layout) -> Result<u32, RegionError> {
        let mut found = [0; BLOCK_BYTES as usize];
        let mut sum = 0;
        for (at, len) in blocks(layout.span + GUARD_BYTES) {
            self.region.read_at(self.offset + at, &mut found[..len])?;
            sum = crc32c::crc32c_append(sum, &found[..len]);
        }
        Ok(sum)
    }

    /// Compares the slot with the expected content. Returns the difference, if there is one.
    pub(crate) fn compare(&self, expected: &Expected<'_>) -> Result<Option<String>, RegionError> {
        let (mut found, mut right) = ([0; BLOCK_BYTES as usize], [0; BLOCK_BYTES as usize]);
        let (mut first, mut last, mut wrong, mut fill) = (None, 0, 0, 0);
        for (at, len) in blocks(expected.bytes) {
            let (found, right) = (&mut found[..len], &mut right[..len]);
            self.region.read_at(self.offset + at, found)?;
            expected.copy(at, right);
            if found == right {
                continue;
            }
            let pairs = (at..).zip(found.iter().zip(right.iter()));
            for (at, (found, right)) in pairs.filter(|(_, (found, right))| found != right) {
                first.get_or_insert((at, *found, *right));
                (last, wrong) = (at, wrong + 1);
                fill += u64::from(*found == FILL);
            }
        }
        Ok(first.map(|(first, found, right)| {
            format!(
                "{wrong} of {} bytes are wrong, from {first} to {last}; {fill} of them were never \
                 written; at {first} is {found:#x} and must be {right:#x}",
                expected.bytes
            )
        }))
    }
}
