//! Memory of one end: the source that it sends from, and the destination that it receives into.

use std::ops::Range;

use polyrail::{Engine, RegionError};
use polyrail_pattern::{POISON, Pattern, WrongByte, check_poison};

use super::store::{Bank, Store};
use crate::cmd::bench::options::{Layout, Verify};
use crate::fault::{Fault, Mismatch};

/// Regions of one end for one size.
pub(crate) struct Buffers {
    pub(crate) layout: Layout,
    pub(crate) source: Option<Store>,
    pub(crate) dest: Option<Store>,
    /// Expected contents of the destination.
    incoming: Pattern,
}

/// Regions that an end needs, by the seeds of their contents.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Needs {
    pub(crate) source_seed: Option<u64>,
    pub(crate) dest_seed: Option<u64>,
}

impl Buffers {
    /// Registers the regions, fills the source and poisons the destination.
    pub(crate) fn new(
        engine: &Engine,
        bank: &Bank,
        layout: Layout,
        needs: Needs,
    ) -> Result<Self, Fault> {
        let mut buffers = Self::registered(engine, bank, layout, needs)?;
        buffers.renew(needs)?;
        Ok(buffers)
    }

    /// Registers the regions. Their contents are undefined until [`Buffers::renew`].
    pub(crate) fn registered(
        engine: &Engine,
        bank: &Bank,
        layout: Layout,
        needs: Needs,
    ) -> Result<Self, Fault> {
        let store = |is_needed: bool| {
            is_needed.then(|| bank.store(engine, layout.region_bytes())).transpose()
        };
        Ok(Self {
            layout,
            source: store(needs.source_seed.is_some())?,
            dest: store(needs.dest_seed.is_some())?,
            incoming: Pattern::new(needs.dest_seed.unwrap_or_default()),
        })
    }

    /// Fills the source with data of another seed, and poisons the destination for such data.
    pub(crate) fn renew(&mut self, needs: Needs) -> Result<(), Fault> {
        if let (Some(source), Some(seed)) = (&self.source, needs.source_seed) {
            let pattern = Pattern::new(seed);
            source.fill(|offset, block| pattern.fill(offset, block))?;
        }
        self.incoming = Pattern::new(needs.dest_seed.unwrap_or_default());
        self.poison()
    }

    /// Overwrites the destination, so that only bytes that arrive later can be right.
    pub(crate) fn poison(&self) -> Result<(), Fault> {
        let Some(dest) = &self.dest else { return Ok(()) };
        Ok(dest.fill(|_, block| block.fill(POISON))?)
    }

    /// Compares the slots below `slots` with the data sent into them; the others must still be poisoned. Returns the
    /// number of bytes compared.
    ///
    /// # Errors
    /// [`Cause::Mismatch`] for the first wrong byte.
    pub(crate) fn verify(&self, mode: Verify, slots: u64, round: u64) -> Result<u64, Fault> {
        let Some(dest) = &self.dest else { return Ok(0) };
        // The number comes from the client.
        if slots > self.layout.slots {
            let allowed = format!("0 to {}", self.layout.slots);
            return Err(Fault::usage("slots", slots, "is out of range", allowed));
        }
        let check = Check { layout: self.layout, incoming: self.incoming, slots };
        let mut reader = dest.reader(if mode == Verify::Full { AHEAD_BYTES } else { 0 });
        let read = |offset: u64, out: &mut [u8]| reader.read_at(offset, out);
        match mode {
            Verify::Off => Ok(0),
            Verify::Full => check.all(read),
            Verify::Sample => check.some(round, read),
        }
    }
}

/// Bytes compared at once, which stay in the cache.
const BLOCK: usize = 64 << 10;
/// Bytes read from a device at once, when all of it is read in order.
const AHEAD_BYTES: u64 = 8 << 20;
const SAMPLE_BLOCKS: u64 = 64;
const SAMPLE_BYTES: u64 = 4 << 10;

/// Expected contents of a destination.
struct Check {
    layout: Layout,
    incoming: Pattern,
    /// Slots that have been written.
    slots: u64,
}

/// Reader of a destination, which reads bytes from an offset.
trait ReadAt: FnMut(u64, &mut [u8]) -> Result<(), RegionError> {}
impl<F: FnMut(u64, &mut [u8]) -> Result<(), RegionError>> ReadAt for F {}

impl Check {
    fn all(&self, mut read: impl ReadAt) -> Result<u64, Fault> {
        let mut block = vec![0; BLOCK];
        let mut done = 0;
        for piece in self.layout.by_dest(self.slots) {
            self.blocks(done..piece.dest, &mut block, &mut read, |_, gap| check_poison(gap))?;
            let end = piece.dest + piece.len;
            self.blocks(piece.dest..end, &mut block, &mut read, |offset, bytes| {
                self.incoming.check(piece.source + (offset - piece.dest), bytes)
            })?;
            done = end;
        }
        let end = self.layout.region_bytes();
        self.blocks(done..end, &mut block, &mut read, |_, gap| check_poison(gap))?;
        Ok(end)
    }

    fn some(&self, round: u64, mut read: impl ReadAt) -> Result<u64, Fault> {
        let mut block = vec![0; SAMPLE_BYTES as usize];
        let mut compared = 0;
        for index in 0..SAMPLE_BLOCKS {
            // The pattern's own words serve as random numbers.
            let mut random = [0; 24];
            Pattern::new(round).fill(index * 24, &mut random);
            let [slot, segment, inside] = [0, 8, 16].map(|at: usize| {
                random[at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
            });
            let segment = segment % self.layout.segments;
            let mut pieces = self.layout.pieces(slot % self.slots.max(1));
            // Such a piece always exists: the remainder is below the number of segments.
            let Some(piece) = pieces.nth(segment as usize) else { continue };
            let len = piece.len.min(SAMPLE_BYTES);
            let inside = inside % (piece.len - len + 1);
            let range = piece.dest + inside..piece.dest + inside + len;
            self.blocks(range, &mut block, &mut read, |_, bytes| {
                self.incoming.check(piece.source + inside, bytes)
            })?;
            compared += len;
        }
        Ok(compared)
    }

    /// Reads a range block by block, and checks each block.
    fn blocks(
        &self,
        range: Range<u64>,
        block: &mut [u8],
        read: &mut impl ReadAt,
        check: impl Fn(u64, &[u8]) -> Result<(), WrongByte>,
    ) -> Result<(), Fault> {
        let mut offset = range.start;
        while offset < range.end {
            let len = (range.end - offset).min(block.len() as u64) as usize;
            let bytes = &mut block[..len];
            read(offset, bytes)?;
            if let Err(WrongByte { at, expected, got }) = check(offset, bytes) {
                let (host, size) = (crate::host::hostname(), self.layout.size);
                let offset = offset + at as u64;
                return Err(Mismatch { host, size, offset, expected, got }.into());
            }
            offset += len as u64;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::store::tests::fake_bank;
    use super::*;
    use crate::fault::Cause;

    const SEED: u64 = 5;

    /// Returns a destination as a faultless engine leaves it.
    fn delivered(layout: Layout, slots: u64) -> (Check, Vec<u8>) {
        let mut dest = vec![POISON; layout.region_bytes() as usize];
        for piece in (0..slots).flat_map(|slot| layout.pieces(slot)) {
            let range = piece.dest as usize..(piece.dest + piece.len) as usize;
            Pattern::new(SEED).fill(piece.source, &mut dest[range]);
        }
        (Check { layout, incoming: Pattern::new(SEED), slots }, dest)
    }

    fn all(check: &Check, dest: &[u8]) -> Result<u64, Mismatch> {
        check.all(|offset, out: &mut [u8]| copy(dest, offset, out)).map_err(mismatch)
    }

    fn some(check: &Check, dest: &[u8], round: u64) -> Result<u64, Mismatch> {
        check.some(round, |offset, out: &mut [u8]| copy(dest, offset, out)).map_err(mismatch)
    }

    fn mismatch(error: Fault) -> Mismatch {
        match error.cause {
            Cause::Mismatch(mismatch) => mismatch,
            other => panic!("{other:?}"),
        }
    }

    fn copy(dest: &[u8], offset: u64, out: &mut [u8]) -> Result<(), RegionError> {
        out.copy_from_slice(&dest[offset as usize..][..out.len()]);
        Ok(())
    }

    const LAYOUT: Layout = Layout { size: 100_000, segments: 1, slots: 5 };
    const SCATTERED: Layout = Layout { size: 4_000, segments: 40, slots: 3 };

    #[test]
    fn what_was_delivered_passes_in_full_and_in_part() {
        for layout in [LAYOUT, SCATTERED] {
            let (check, dest) = delivered(layout, layout.slots);
            assert_eq!(all(&check, &dest), Ok(layout.region_bytes()));
            assert!(some(&check, &dest, 1).unwrap() > 0);
        }
    }

    #[test]
    fn every_flipped_byte_of_a_scattered_destination_is_found_at_its_offset() {
        let (check, dest) = delivered(SCATTERED, 3);
        for offset in (0..dest.len()).step_by(7) {
            let mut wrong = dest.clone();
            wrong[offset] ^= 1;
            let found = all(&check, &wrong).unwrap_err();
            assert_eq!((found.offset, found.got), (offset as u64, wrong[offset]));
            assert_eq!(found.expected, dest[offset]);
        }
    }

    #[test]
    fn a_segment_in_the_place_of_another_is_found() {
        let (check, mut dest) = delivered(SCATTERED, 3);
        let pieces = SCATTERED.by_dest(3);
        let (a, b) = (pieces[3].dest as usize, pieces[9].dest as usize);
        let len = pieces[0].len as usize;
        let moved = dest[a..a + len].to_vec();
        dest.copy_within(b..b + len, a);
        dest[b..b + len].copy_from_slice(&moved);
        assert_eq!(all(&check, &dest).unwrap_err().offset, a as u64);
    }

    #[test]
    fn a_slot_that_never_arrived_and_one_that_nobody_sent_are_found() {
        let (check, dest) = delivered(LAYOUT, 4);
        assert!(all(&check, &dest).is_ok());
        let (_, less) = delivered(LAYOUT, 3);
        let missing = all(&check, &less).unwrap_err();
        assert_eq!(missing.got, POISON);
        assert!(missing.to_string().contains("never written"), "{missing}");
        let (_, more) = delivered(LAYOUT, 5);
        assert_eq!(all(&check, &more).unwrap_err().expected, POISON);
    }

    #[test]
    fn memory_of_a_device_is_poisoned_filled_and_verified_like_the_hosts() {
        let engine = Engine::builder().build().unwrap();
        let layout = Layout { size: 8 << 20, segments: 8, slots: 2 };
        let needs = Needs { source_seed: Some(SEED), dest_seed: Some(SEED) };
        let buffers = Buffers::new(&engine, &fake_bank(), layout, needs).unwrap();
        let untouched = buffers.verify(Verify::Full, 0, 0).unwrap();
        assert_eq!(untouched, layout.region_bytes());
        for mode in [Verify::Full, Verify::Sample] {
            let missing = mismatch(buffers.verify(mode, 2, 1).unwrap_err());
            assert_eq!(missing.got, POISON, "nothing has arrived: {mode:?}");
        }
        let (_, delivered) = delivered(layout, 2);
        let dest = buffers.dest.as_ref().unwrap();
        dest.fill(|offset, block| {
            block.copy_from_slice(&delivered[offset as usize..][..block.len()]);
        })
        .unwrap();
        assert_eq!(buffers.verify(Verify::Full, 2, 1).unwrap(), layout.region_bytes());
        assert!(buffers.verify(Verify::Sample, 2, 1).unwrap() > 0);
        buffers.poison().unwrap();
        assert!(buffers.verify(Verify::Full, 2, 1).is_err(), "nothing old is read ahead");
    }

    #[test]
    fn random_blocks_find_a_destination_that_is_wrong_throughout() {
        let (check, dest) = delivered(LAYOUT, 5);
        let wrong: Vec<u8> = dest.iter().map(|byte| byte ^ 0xff).collect();
        assert!(some(&check, &wrong, 9).is_err());
    }
}
