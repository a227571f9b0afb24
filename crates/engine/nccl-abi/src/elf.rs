//! Checks of an ELF file before the loader maps it.

/// First bytes of a 64-bit library in the byte order of all processors that Polyrail runs on.
const ELF: &[u8] = b"\x7fELF\x02\x01";
/// Bytes of the header.
const HEADER: usize = 64;

/// Fault of a library's bytes, checked before any of its code runs, as a sentence about the file. The loader maps
/// truncated files silently. Touching the missing part then ends the process by SIGBUS.
pub fn damage(bytes: &[u8]) -> Option<String> {
    if bytes.is_empty() {
        return Some("it is empty".to_owned());
    }
    let begin = &bytes[..bytes.len().min(ELF.len())];
    if begin != &ELF[..begin.len()] {
        return Some("it does not begin as a library (ELF of 64 bits) does".to_owned());
    }
    let needed = if bytes.len() < HEADER { HEADER as u64 } else { needed(bytes) };
    let has = bytes.len() as u64;
    (has < needed).then(|| format!("it is cut off: it has {has} of at least {needed} bytes"))
}

/// Number of bytes that the headers of a library describe: the section table, which linkers put last, and each loaded
/// segment. Segments whose own entry is missing need more bytes than there are in any case.
fn needed(bytes: &[u8]) -> u64 {
    let number = |at: u64, len: usize| {
        let at = usize::try_from(at).ok()?;
        let mut value = [0; 8];
        value[..len].copy_from_slice(bytes.get(at..at.checked_add(len)?)?);
        Some(u64::from_le_bytes(value))
    };
    let field = |at, len| number(at, len).unwrap_or_default();
    let (parts, part_size, part_count) = (field(32, 8), field(54, 2), field(56, 2));
    let (sections, section_size, section_count) = (field(40, 8), field(58, 2), field(60, 2));
    let table = |at: u64, size: u64, count: u64| at.saturating_add(size * count);
    let ends = (0..part_count).filter_map(|part| {
        let entry = table(parts, part_size, part);
        let (offset, size) =
            (number(entry.checked_add(8)?, 8)?, number(entry.checked_add(32)?, 8)?);
        Some(offset.saturating_add(size))
    });
    let tables =
        [table(parts, part_size, part_count), table(sections, section_size, section_count)];
    ends.chain(tables).max().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A library with one segment of a page, and a table of two sections behind it.
    fn library() -> Vec<u8> {
        let mut bytes = vec![0; 8192 + 128];
        bytes[..ELF.len()].copy_from_slice(ELF);
        let mut put = |at: usize, value: u64, len: usize| {
            bytes[at..at + len].copy_from_slice(&value.to_le_bytes()[..len]);
        };
        for (at, value, len) in
            [(32, 64, 8), (40, 8192, 8), (54, 56, 2), (56, 1, 2), (58, 64, 2), (60, 2, 2)]
        {
            put(at, value, len);
        }
        put(64 + 8, 4096, 8);
        put(64 + 32, 4096, 8);
        bytes
    }

    #[test]
    fn a_library_is_whole_if_it_has_all_that_its_headers_speak_of() {
        assert_eq!(damage(&library()), None);
        let cut = |len: usize| damage(&library()[..len]).expect("it is cut off");
        for len in [1, 5, 6, 63, 64, 100, 4096, 8192, 8192 + 127] {
            assert!(cut(len).starts_with(&format!("it is cut off: it has {len} of at least ")));
        }
        assert_eq!(cut(8192 + 127), "it is cut off: it has 8319 of at least 8320 bytes");
        assert_eq!(damage(b"").as_deref(), Some("it is empty"));
        assert!(damage(b"#!/bin/sh").unwrap().contains("does not begin as a library"));
        // A segment that ends behind the tables.
        let mut bytes = library();
        bytes[64 + 32..64 + 40].copy_from_slice(&9000u64.to_le_bytes());
        assert!(damage(&bytes).unwrap().contains("of at least 13096 bytes"));
        // Header fields with nonsense.
        let mut bytes = library();
        bytes[32..64].fill(0xff);
        assert!(damage(&bytes).unwrap().contains("it is cut off"));
    }

    #[test]
    fn this_very_program_is_whole() {
        let bytes = fs::read(std::env::current_exe().unwrap()).unwrap();
        assert_eq!(damage(&bytes), None);
        assert!(damage(&bytes[..bytes.len() - 1]).is_some());
    }
}
