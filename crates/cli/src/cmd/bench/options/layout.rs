//! Placement of each transfer's bytes in the two regions.

/// Division of source and destination for one size.
///
/// A region holds `slots` transfers of `size` bytes, each of `segments` equal pieces. With one segment the slots are
/// adjacent. With more, each segment begins a cell of four times its length, so that no two segments are neighbours and
/// nothing merges, like the blocks of a paged cache.
///
/// Source and destination are permuted differently, so that verification detects an engine that confuses the two
/// offsets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub(crate) struct Layout {
    pub(crate) size: u64,
    pub(crate) segments: u64,
    pub(crate) slots: u64,
}

/// Piece of one transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// Offset in the source region.
    pub(crate) source: u64,
    /// Offset in the destination region.
    pub(crate) dest: u64,
    pub(crate) len: u64,
}

impl Layout {
    /// Returns the layout with as many slots as the working set holds, within bounds that keep the preparation short,
    /// and with at least one slot for each outstanding transfer.
    pub(crate) fn new(size: u64, segments: u64, depth: u64) -> Self {
        let slots = polyrail_profiler::drive::slots(size, depth, PIECES_MAX / segments);
        Self { size, segments, slots }
    }

    /// Returns the layout with one slot, for ping-pong.
    pub(crate) fn single(size: u64, segments: u64) -> Self {
        Self { size, segments, slots: 1 }
    }

    /// Returns the number of bytes of either region.
    pub(crate) fn region_bytes(&self) -> u64 {
        self.slots * self.size * self.cell_factor()
    }

    /// Returns the pieces of one slot, in the order of the message's bytes.
    pub(crate) fn pieces(&self, slot: u64) -> impl Iterator<Item = Piece> + use<> {
        let len = self.size / self.segments;
        let cell = len * self.cell_factor();
        let cells = self.slots * self.segments;
        let (source, dest) = (Permutation::new(cells, 1), Permutation::new(cells, 2));
        (slot * self.segments..(slot + 1) * self.segments).map(move |index| Piece {
            source: source.place(index) * cell,
            dest: dest.place(index) * cell,
            len,
        })
    }

    /// Returns the pieces of the first `slots` slots, sorted by their offset in the destination.
    pub(crate) fn by_dest(&self, slots: u64) -> Vec<Piece> {
        let mut pieces: Vec<Piece> = (0..slots).flat_map(|slot| self.pieces(slot)).collect();
        pieces.sort_unstable_by_key(|piece| piece.dest);
        pieces
    }

    fn cell_factor(&self) -> u64 {
        if self.segments > 1 { SCATTER } else { 1 }
    }
}

const PIECES_MAX: u64 = 1 << 16;
const SCATTER: u64 = 4;

/// Permutation of the indices below a count, in an order without any pattern that a machine could learn.
#[derive(Clone, Copy)]
struct Permutation {
    cells: u64,
    /// Bits of each half of a place. `which` selects one of the permutations.
    half_bits: u32,
    which: u64,
}

impl Permutation {
    fn new(cells: u64, which: u64) -> Self {
        let bits = u64::BITS - cells.saturating_sub(1).leading_zeros();
        Self { cells, half_bits: bits.div_ceil(2).max(1), which }
    }

    fn place(self, index: u64) -> u64 {
        // Walk on until the number is one of the cells. That takes less than four steps on average: there are at most
        // four times as many numbers.
        let mut place = self.mix(index);
        while place >= self.cells {
            place = self.mix(place);
        }
        place
    }

    /// Permutes the numbers by a Feistel network: whatever its round function, no two numbers map to the same one.
    fn mix(self, number: u64) -> u64 {
        let mask = (1 << self.half_bits) - 1;
        let (mut high, mut low) = (number >> self.half_bits, number & mask);
        for round in 0..FEISTEL_ROUNDS {
            let salted = low ^ (self.which << 40) ^ (round << 48);
            let mixed = (salted ^ salted >> 31).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            (high, low) = (low, high ^ (mixed >> 29 & mask));
        }
        high << self.half_bits | low
    }
}

const FEISTEL_ROUNDS: u64 = 4;

#[cfg(test)]
mod tests {
    use polyrail_profiler::drive::WORKING_SET_BYTES;

    use super::*;

    fn check(layout: Layout) {
        let pieces = layout.by_dest(layout.slots);
        assert_eq!(pieces.iter().map(|piece| piece.len).sum::<u64>(), layout.size * layout.slots);
        let mut source: Vec<u64> = pieces.iter().map(|piece| piece.source).collect();
        source.sort_unstable();
        let len = layout.size / layout.segments;
        let ends = layout.region_bytes() - len;
        for places in [source, pieces.iter().map(|piece| piece.dest).collect()] {
            let gaps = places.windows(2).map(|pair| pair[1] - pair[0]);
            let least = if layout.segments > 1 { len + 1 } else { len };
            assert!(gaps.into_iter().all(|gap| gap >= least), "{layout:?}");
            assert!(places.iter().all(|place| *place <= ends), "{layout:?}");
        }
    }

    #[test]
    fn pieces_fill_their_region_without_touching_each_other() {
        for (size, segments, depth) in
            [(8, 1, 64), (64 << 10, 1, 16), (1 << 20, 16, 4), (4096, 4096, 1), (300 << 20, 3, 2)]
        {
            check(Layout::new(size, segments, depth));
            check(Layout::single(size, segments));
        }
    }

    #[test]
    fn a_large_transfer_has_one_slot_and_small_ones_fill_the_working_set() {
        assert_eq!(Layout::new(256 << 20, 1, 1).slots, 1);
        assert_eq!(Layout::new(1 << 30, 1, 2).slots, 2);
        assert_eq!(Layout::new(64 << 10, 1, 1).slots * (64 << 10), WORKING_SET_BYTES);
        assert_eq!(Layout::new(8, 1, 64).slots, 4096);
        assert_eq!(Layout::new(256 << 20, 16_384, 1).region_bytes(), 1 << 30);
        assert_eq!(Layout::new(4096, 4096, 1).slots, 16, "preparing takes time for each segment");
    }

    #[test]
    fn every_place_is_taken_once_and_the_steps_between_places_differ() {
        for cells in [1, 2, 3, 5, 16, 17, 1000, 65_536] {
            let permutation = Permutation::new(cells, 1);
            let places: Vec<u64> = (0..cells).map(|index| permutation.place(index)).collect();
            let mut sorted = places.clone();
            sorted.sort_unstable();
            assert!(sorted.into_iter().eq(0..cells), "{cells} cells");
            if cells >= 1000 {
                let mut steps: Vec<u64> =
                    places.windows(2).map(|pair| pair[1].wrapping_sub(pair[0])).collect();
                steps.sort_unstable();
                steps.dedup();
                assert!(steps.len() as u64 > cells / 3, "{} steps of {cells}", steps.len());
            }
        }
    }

    #[test]
    fn source_and_destination_are_permuted_differently() {
        let layout = Layout::new(1 << 20, 1, 1);
        let same =
            layout.by_dest(layout.slots).iter().filter(|piece| piece.source == piece.dest).count();
        assert!(same < 8, "{same} of {} pieces have equal offsets", layout.slots);
    }
}
