//! The kernel that gathers fragments, run instruction by instruction without a GPU. Checks what it copies, what it
//! touches, and that its threads stay together. `gpu_probe --only gather` runs it on a GPU.

mod warp;

use std::ops::Range;

use warp::{Kernel, Launch};

const CODE: &str = include_str!("../../src/cuda/gather.ptx");
const SOURCE: u64 = 0x1000;
const TARGET: u64 = 0x4000;
const TABLE: u64 = 0x8000;
const SIZE: usize = 0x9000;
/// Bytes of the source and of the target.
const ROOM: u64 = 0x1800;

/// Makes memory with random bytes at the source, and a table of target, source and length.
fn memory(entries: &[[u64; 3]]) -> Vec<u8> {
    let mut state = 1_u64;
    let mut memory = vec![0xa5; SIZE];
    for byte in &mut memory[SOURCE as usize..][..ROOM as usize] {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        *byte = (state >> 56) as u8;
    }
    for (index, entry) in entries.iter().enumerate() {
        for (word, value) in entry.iter().chain([&0]).enumerate() {
            let place = TABLE as usize + index * 32 + word * 8;
            memory[place..place + 8].copy_from_slice(&value.to_le_bytes());
        }
    }
    memory
}

/// Runs all warps of a launch, and checks that every byte is in its place, and all others are as before.
fn assert_gathers(kernel: &Kernel, entries: &[[u64; 3]], blocks: u64, warps: u64) {
    let mut found = memory(entries);
    let mut expected = found.clone();
    let mut wanted: Vec<Range<u64>> = Vec::new();
    for [to, from, len] in entries {
        expected.copy_within(*from as usize..(from + len) as usize, *to as usize);
        wanted.push(*from..from + len);
    }
    for (block, warp) in (0..blocks * warps).map(|index| (index / warps, index % warps)) {
        let (threads, count) = (warps * 32, entries.len() as u64);
        let launch = Launch { table: TABLE, count, blocks, threads, block, warp };
        kernel.run(&launch, &mut found, &wanted);
    }
    let place = found.iter().zip(&expected).position(|(a, b)| a != b);
    assert_eq!(place, None, "a byte is wrong, of {entries:x?}");
}

#[test]
fn a_fragment_is_copied_from_every_place_to_every_place() {
    let kernel = Kernel::parse(CODE);
    for (from, to) in (0..256).map(|pair| (pair / 16, pair % 16)) {
        // One element or two with bytes before and behind them; or less, or more.
        for len in [47, [0, 1, 15, 16, 31, 100][from as usize % 6]] {
            assert_gathers(&kernel, &[[TARGET + to, SOURCE + from, len]], 1, 1);
        }
    }
}

#[test]
fn a_fragment_of_every_kind_of_length_is_copied() {
    let kernel = Kernel::parse(CODE);
    for len in [511, 512, 513, 528, 1023, 1024, 1040, 2047, 2048, 2064, 4095, 4096, 4097] {
        for (from, to) in [(0, 0), (0, 1), (5, 0), (3, 3), (12, 8), (15, 2)] {
            assert_gathers(&kernel, &[[TARGET + to, SOURCE + from, len]], 1, 1);
        }
    }
}

#[test]
fn each_fragment_of_a_table_is_copied_by_one_of_all_warps() {
    let kernel = Kernel::parse(CODE);
    for count in [1, 3, 4, 11] {
        let entry = |index: u64| {
            let (to, from) = (TARGET + index * 300 + index % 7, SOURCE + index * 511 % 4000);
            [to, from, 300 - index * 13]
        };
        let entries: Vec<[u64; 3]> = (0..count).map(entry).collect();
        assert_gathers(&kernel, &entries, 2, 2);
    }
}
