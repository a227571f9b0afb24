//! The pattern that fills memory. No byte of it is 0, so a cleared sink never passes verification. The kernels of
//! `polyrail_gpu::cuda::measure` write the same words.

use polyrail_sys::Memory;

/// Bytes that are generated or compared at a time.
const BLOCK_BYTES: usize = 64 << 10;

/// Returns the pattern's 8-byte word at this index, counted in words.
fn word(index: u64, seed: u64) -> u64 {
    let mut word = index.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(seed);
    word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    (word ^ (word >> 31)) | 0x0101_0101_0101_0101
}

/// Seed of an endpoint's source.
pub(crate) fn seed_of(rank: u32, seed: u64) -> u64 {
    (u64::from(rank) + 1).wrapping_mul(0xD1B5_4A32_D192_ED03) ^ seed
}

/// Fills a block at `offset` bytes into the memory, a multiple of 8.
fn fill_block(block: &mut [u8], offset: u64, seed: u64) {
    for (place, part) in block.chunks_mut(8).enumerate() {
        let bytes = word(offset / 8 + place as u64, seed).to_le_bytes();
        part.copy_from_slice(&bytes[..part.len()]);
    }
}

/// Returns the offset and length of each block.
fn blocks(len: u64) -> impl Iterator<Item = (u64, usize)> {
    let step = BLOCK_BYTES as u64;
    (0..len.div_ceil(step)).map(move |n| (n * step, (len - n * step).min(step) as usize))
}

pub(crate) fn fill(memory: &Memory, len: u64, seed: u64) {
    let mut block = vec![0; BLOCK_BYTES];
    for (offset, size) in blocks(len) {
        fill_block(&mut block[..size], offset, seed);
        // Callers pass at most the memory's length; bytes beyond it stay unchanged.
        let _ = memory.write_at(offset, &block[..size]);
    }
}

/// Sets host memory to 0.
pub(crate) fn clear(memory: &Memory, len: u64) {
    let block = vec![0; BLOCK_BYTES];
    for (offset, size) in blocks(len) {
        // As above.
        let _ = memory.write_at(offset, &block[..size]);
    }
}

/// Whether host memory holds the pattern.
pub(crate) fn holds(memory: &Memory, len: u64, seed: u64) -> bool {
    let (mut expected, mut found) = (vec![0; BLOCK_BYTES], vec![0; BLOCK_BYTES]);
    blocks(len).all(|(offset, size)| {
        fill_block(&mut expected[..size], offset, seed);
        memory.read_at(offset, &mut found[..size]).is_ok() && found[..size] == expected[..size]
    })
}

pub(crate) fn is_pattern(bytes: &[u8], seed: u64) -> bool {
    let mut expected = vec![0; BLOCK_BYTES];
    blocks(bytes.len() as u64).all(|(offset, size)| {
        fill_block(&mut expected[..size], offset, seed);
        bytes[offset as usize..][..size] == expected[..size]
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_byte_of_a_pattern_is_zero_and_a_changed_one_is_seen() {
        let len = BLOCK_BYTES as u64 + 13;
        let memory = Memory::from(vec![0; len as usize]);
        assert!(!holds(&memory, len, 7));
        fill(&memory, len, 7);
        let mut bytes = vec![0; len as usize];
        memory.read_at(0, &mut bytes).unwrap();
        assert!(bytes.iter().all(|byte| *byte != 0) && is_pattern(&bytes, 7));
        assert!(holds(&memory, len, 7) && holds(&memory, 1, 7) && !holds(&memory, len, 8));
        for wrong in [0, 7, BLOCK_BYTES as u64, len - 1] {
            memory.write_at(wrong, &[bytes[wrong as usize] ^ 2]).unwrap();
            assert!(!holds(&memory, len, 7), "byte {wrong}");
            memory.write_at(wrong, &bytes[wrong as usize..][..1]).unwrap();
        }
        clear(&memory, 9);
        memory.read_at(0, &mut bytes).unwrap();
        assert!(bytes[..9].iter().all(|byte| *byte == 0) && bytes[9] != 0);
    }
}
