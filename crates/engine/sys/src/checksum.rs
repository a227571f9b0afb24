//! CRC-32C (Castagnoli, RFC 3720 appendix B.4) of data in several pieces.

use crc_fast::{CrcAlgorithm, Digest};

/// Continues the checksum `crc` with `bytes`. The checksum of no bytes is 0.
pub fn crc32c(crc: u32, bytes: &[u8]) -> u32 {
    // The state is the complement of the checksum; the algorithm has 32 bits.
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(!crc));
    digest.update(bytes);
    digest.finalize() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_those_of_the_standard() {
        assert_eq!(crc32c(0, b""), 0);
        assert_eq!(crc32c(0, b"123456789"), 0xe306_9283, "the catalogue's check value");
        assert_eq!(crc32c(0, &[0; 32]), 0x8a91_36aa, "RFC 3720, B.4");
        assert_eq!(crc32c(0, &[0xff; 32]), 0x62a8_ab43, "RFC 3720, B.4");
        let rising: Vec<u8> = (0..32).collect();
        let falling: Vec<u8> = (0..32).rev().collect();
        assert_eq!(crc32c(0, &rising), 0x46dd_794e, "RFC 3720, B.4");
        assert_eq!(crc32c(0, &falling), 0x113f_db5c, "RFC 3720, B.4");
    }

    #[test]
    fn pieces_have_the_checksum_of_the_whole() {
        let bytes: Vec<u8> = (0..70_000u32).map(|n| (n * 7 + n / 256) as u8).collect();
        let whole = crc32c(0, &bytes);
        assert_eq!(whole, 0x7528_7ab3, "by a table of 256 words, one byte after the other");
        for size in [1, 15, 16, 255, 4096, 16_384, 69_999] {
            assert_eq!(bytes.chunks(size).fold(0, crc32c), whole, "pieces of {size}");
        }
    }
}
