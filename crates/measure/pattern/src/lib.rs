//! Data that benchmarks move: each byte is determined by its position.
//!
//! The 64-bit word at byte position `8 i` of a stream is a bijection of `i`, shifted by a mixed seed. No two words of a
//! stream are equal, so checks detect swapped chunks, lost chunks and chunks of another run. Generating and checking
//! take an addition, a shift and an exclusive or per word, which keeps up with memory. The crate is separate so that it
//! is compiled for speed, while the command is compiled for size.
#![forbid(unsafe_code)]

/// Byte that fills a destination before the data arrive; bytes that receive no data must still hold it.
pub const POISON: u8 = 0xa5;

/// Stream of pattern bytes, given by its seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pattern {
    start: u64,
}

/// First byte that differs from the expected one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrongByte {
    /// Position in the bytes that were checked.
    pub at: usize,
    pub expected: u8,
    pub got: u8,
}

impl Pattern {
    /// Returns the stream of a seed. Seeds that differ by one give unrelated streams.
    pub fn new(seed: u64) -> Self {
        // The finaliser of splitmix64.
        let mut z = seed.wrapping_add(STEP);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Self { start: z ^ (z >> 31) }
    }

    /// Writes the stream from byte `position` on to `out`.
    pub fn fill(self, position: u64, out: &mut [u8]) {
        let (head, words, first) = aligned(position, out.len());
        self.fill_partial(position, &mut out[..head]);
        let body = &mut out[head..head + words * 8];
        let mut state = self.state(first);
        for word in body.as_chunks_mut::<8>().0 {
            *word = fold(state).to_le_bytes();
            state = state.wrapping_add(STEP);
        }
        let tail = head + words * 8;
        self.fill_partial(position + tail as u64, &mut out[tail..]);
    }

    /// Compares `bytes` with the stream from byte `position` on.
    pub fn check(self, position: u64, bytes: &[u8]) -> Result<(), WrongByte> {
        let (head, words, first) = aligned(position, bytes.len());
        let tail = head + words * 8;
        let mut wrong = 0;
        let mut state = self.state(first);
        for word in bytes[head..tail].as_chunks::<8>().0 {
            wrong |= u64::from_le_bytes(*word) ^ fold(state);
            state = state.wrapping_add(STEP);
        }
        let is_right = wrong == 0
            && self.find(position, &bytes[..head]).is_none()
            && self.find(position + tail as u64, &bytes[tail..]).is_none();
        // The fast pass only detects that a byte is wrong; the slow pass finds it.
        match if is_right { None } else { self.find(position, bytes) } {
            Some(wrong) => Err(wrong),
            None => Ok(()),
        }
    }

    fn find(self, position: u64, bytes: &[u8]) -> Option<WrongByte> {
        bytes.iter().enumerate().find_map(|(at, &got)| {
            let expected = self.byte(position + at as u64);
            (got != expected).then_some(WrongByte { at, expected, got })
        })
    }

    fn fill_partial(self, position: u64, out: &mut [u8]) {
        for (at, byte) in out.iter_mut().enumerate() {
            *byte = self.byte(position + at as u64);
        }
    }

    fn byte(self, position: u64) -> u8 {
        fold(self.state(position / 8)).to_le_bytes()[(position % 8) as usize]
    }

    fn state(self, index: u64) -> u64 {
        self.start.wrapping_add(index.wrapping_mul(STEP))
    }
}

/// Looks for a byte that is no longer [`POISON`].
pub fn check_poison(bytes: &[u8]) -> Result<(), WrongByte> {
    match bytes.iter().position(|byte| *byte != POISON) {
        Some(at) => Err(WrongByte { at, expected: POISON, got: bytes[at] }),
        None => Ok(()),
    }
}

/// Odd, so that it visits every 64-bit value; near the golden ratio, so that high bits change fast.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Brings the high bits, which change fast, down to the low ones. Applied twice, it restores the state.
fn fold(state: u64) -> u64 {
    state ^ (state >> 32)
}

/// The bytes before the first whole word, the number of whole words, and the first one's index.
fn aligned(position: u64, len: usize) -> (usize, usize, u64) {
    let first = position.div_ceil(8);
    let head = ((first * 8 - position) as usize).min(len);
    (head, (len - head) / 8, first)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn bytes(seed: u64, position: u64, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        Pattern::new(seed).fill(position, &mut out);
        out
    }

    #[test]
    fn any_cut_of_the_stream_is_the_same_stream() {
        let whole = bytes(7, 0, 300);
        for position in 0..40 {
            for len in 0..40 {
                let cut = &whole[position..position + len];
                assert_eq!(bytes(7, position as u64, len), cut, "{position}+{len}");
                assert_eq!(Pattern::new(7).check(position as u64, cut), Ok(()));
            }
        }
    }

    #[test]
    fn one_flipped_bit_anywhere_is_found_with_its_place() {
        let whole = bytes(1, 3, 100);
        for at in 0..whole.len() {
            let mut wrong = whole.clone();
            wrong[at] ^= 0x10;
            let expected = WrongByte { at, expected: whole[at], got: wrong[at] };
            assert_eq!(Pattern::new(1).check(3, &wrong), Err(expected));
        }
    }

    #[test]
    fn two_swapped_chunks_are_seen() {
        let mut whole = bytes(1, 0, 8192);
        let (first, second) = whole.split_at_mut(4096);
        first.swap_with_slice(second);
        assert_eq!(Pattern::new(1).check(0, &whole).unwrap_err().at, 0);
    }

    #[test]
    fn the_data_of_another_run_are_seen() {
        assert!(Pattern::new(2).check(0, &bytes(1, 0, 64)).is_err());
    }

    #[test]
    fn no_word_comes_twice_in_a_long_stream() {
        let stream = bytes(9, 0, 8 << 16);
        let words: HashSet<&[u8]> = stream.chunks(8).collect();
        assert_eq!(words.len(), 1 << 16);
    }

    #[test]
    fn a_byte_that_is_not_poison_is_found() {
        let mut bytes = vec![POISON; 1000];
        assert_eq!(check_poison(&bytes), Ok(()));
        bytes[777] = 0;
        let wrong = WrongByte { at: 777, expected: POISON, got: 0 };
        assert_eq!(check_poison(&bytes), Err(wrong));
    }
}
