//! Memory of files: every way that payload takes brings the bytes, and a file that is cut off fails its transfers and nothing
//! else. A signal would end this process, and with it the test.

use std::fs::File;
use std::os::unix::fs::FileExt;

use super::Settings;
use crate::common::*;
use polyrail::{
    Access, Memory, RefusalCode, Region, RegionError, Registrable, Transfer, TransferError,
};

const BYTES: usize = 4 << 20;
/// At the end of a page.
const CUT_AT: u64 = 1 << 20;

const WAYS: [Settings; 5] = [
    &[("path", "tcp")],
    &[("path", "tcp"), ("payload", "crc32c")],
    &[("path", "tcp"), ("payload", "aead")],
    &[("path", "auto")],
    &[("path", "auto"), ("progress", "caller")],
];

fn file_of(bytes: &[u8]) -> File {
    let file = tempfile::tempfile().unwrap();
    file.write_all_at(bytes, 0).unwrap();
    file
}

fn mapped(file: &File, engine: &polyrail::Engine, offset: u64) -> Region {
    let len = file.metadata().unwrap().len() - offset;
    engine.register(Memory::map_file(file, offset, len).unwrap()).unwrap()
}

fn contents(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; file.metadata().unwrap().len() as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

/// Waits until a transfer is over, and drives both engines meanwhile.
fn wait_until_over(p: &Pair, transfer: &Transfer) {
    wait_for("the end of the transfer", || {
        p.a.progress();
        p.b.progress();
        transfer.is_over()
    });
}

/// Writes bytes of one region to the same place of the other.
fn write(p: &Pair, from: &Region, to: &Region, (at, len): (u64, u64)) -> Result<(), TransferError> {
    let (from, to) = (from.slice(at, len).unwrap(), remote(&p.a, to).slice(at, len).unwrap());
    let transfer = p.a.write(&p.to_b, &from, &to).unwrap();
    wait_until_over(p, &transfer);
    transfer.ended().map(|_| ())
}

#[test]
fn bytes_go_from_file_to_file_by_every_way() {
    for way in WAYS {
        let p = pair(way);
        let want = pattern(BYTES, 7);
        let (source, target) = (file_of(&want), file_of(&vec![0; BYTES]));
        let (from, to) = (mapped(&source, &p.a, 3), mapped(&target, &p.b, 3));
        for range in [(0, 5), (700, 600), (4096, 100_000), (200_001, 3 << 20)] {
            write(&p, &from, &to, range).unwrap_or_else(|error| panic!("{error}, {way:?}"));
            let place = range.0 as usize + 3..(range.0 + range.1) as usize + 3;
            assert!(contents(&target)[place.clone()] == want[place], "{way:?}, {range:?}");
        }
    }
}

#[test]
fn a_source_that_is_cut_off_fails_its_transfers_alone() {
    for way in WAYS {
        for len in [8, 64 << 10, 2 << 20] {
            let p = pair(way);
            let file = file_of(&pattern(BYTES, 7));
            let (from, to) = (mapped(&file, &p.a, 0), zeroed(&p.b, BYTES));
            write(&p, &from, &to, (CUT_AT, len)).unwrap();
            file.set_len(CUT_AT).unwrap();
            let (lost, good) = (lost_flows(&p.a), filled(&p.a, BYTES, 3));
            let beside = zeroed(&p.b, BYTES);
            let other = p.a.write(&p.to_b, &good.all(), &remote(&p.a, &beside).all()).unwrap();
            let error = write(&p, &from, &to, (CUT_AT, len)).unwrap_err();
            assert!(matches!(error, TransferError::Device { .. }), "{error}, {way:?}, {len}");
            wait_until_over(&p, &other);
            other.ended().unwrap_or_else(|error| panic!("{error}, {way:?}, {len}"));
            assert!(bytes(&beside) == pattern(BYTES, 3), "{way:?}, {len}");
            assert_eq!(lost_flows(&p.a), lost, "{way:?}, {len}: the flows stay");
            let whole = len.min(CUT_AT);
            write(&p, &from, &to, (0, whole)).unwrap_or_else(|error| panic!("{error}, {way:?}"));
            assert!(bytes(&to)[..whole as usize] == pattern(BYTES, 7)[..whole as usize]);
            assert_eq!(file.metadata().unwrap().len(), CUT_AT);
        }
    }
}

#[test]
fn a_target_that_is_cut_off_refuses_its_transfers_alone() {
    for way in WAYS {
        for len in [8, 64 << 10, 2 << 20] {
            let p = pair(way);
            let file = file_of(&vec![0; BYTES]);
            let (from, to) = (filled(&p.a, BYTES, 7), mapped(&file, &p.b, 0));
            write(&p, &from, &to, (CUT_AT, len)).unwrap();
            file.set_len(CUT_AT).unwrap();
            let lost = lost_flows(&p.a);
            let error = write(&p, &from, &to, (CUT_AT, len)).unwrap_err();
            let is_refused =
                matches!(error, TransferError::Refused { code: RefusalCode::RegionDropped, .. });
            assert!(is_refused, "{error}, {way:?}, {len}");
            let whole = len.min(CUT_AT);
            write(&p, &from, &to, (0, whole)).unwrap_or_else(|error| panic!("{error}, {way:?}"));
            assert!(contents(&file)[..whole as usize] == pattern(BYTES, 7)[..whole as usize]);
            assert_eq!((lost_flows(&p.a), file.metadata().unwrap().len()), (lost, CUT_AT));
        }
    }
}

#[test]
fn a_file_that_is_cut_off_in_the_middle_of_a_transfer_ends_no_process_and_no_peer() {
    for way in WAYS {
        let p = pair(way);
        let files = [file_of(&pattern(BYTES, 7)), file_of(&vec![0; BYTES])];
        let (source, target) = (mapped(&files[0], &p.a, 0), mapped(&files[1], &p.b, 0));
        let (from, to) = (filled(&p.a, BYTES, 7), zeroed(&p.b, BYTES));
        for round in 0..20 {
            let (cut, from, to) =
                if round % 2 == 0 { (0, &source, &to) } else { (1, &from, &target) };
            let transfer = p.a.write(&p.to_b, &from.all(), &remote(&p.a, to).all()).unwrap();
            for _ in 0..round / 2 {
                p.a.progress();
                p.b.progress();
            }
            files[cut].set_len(CUT_AT).unwrap();
            wait_until_over(&p, &transfer);
            let ended = transfer.ended();
            let is_right = match &ended {
                Ok(_) => true,
                Err(TransferError::Device { .. }) => cut == 0,
                Err(TransferError::Refused { code, .. }) => {
                    cut == 1 && *code == RefusalCode::RegionDropped
                }
                Err(_) => false,
            };
            assert!(is_right, "{:?}, {way:?}, round {round}", ended.err());
            files[cut].set_len(BYTES as u64).unwrap();
        }
        write(&p, &from, &to, (0, BYTES as u64)).unwrap();
        assert!(bytes(&to) == pattern(BYTES, 7), "{way:?}");
    }
}

#[test]
fn peers_may_not_write_to_a_file_that_is_open_for_reading() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("f");
    std::fs::write(&path, [7; 100]).unwrap();
    let a = engine(&[]);
    let memory = Memory::map_file(&File::open(path).unwrap(), 1, 99).unwrap();
    let refused = a.register(memory.clone()).unwrap_err();
    assert!(matches!(refused, RegionError::Protected { .. }), "{refused}");
    a.register(memory.with_access(Access::READ)).unwrap();
}

#[test]
fn regions_of_the_host_and_of_devices_are_filled_from_files_and_stored_to_them() {
    let a = engine(&[]);
    let want = pattern(20 << 20, 7);
    let (source, target) = (file_of(&want), file_of(b""));
    let device = devices::device(0);
    let regions = [
        zeroed(&a, 20 << 20),
        a.register(device.memory(&vec![0; 20 << 20])).unwrap(),
        mapped(&file_of(&vec![0; 20 << 20]), &a, 0),
    ];
    for region in regions {
        region.fill_from(&source, 0).unwrap();
        assert!(bytes(&region) == want);
        target.set_len(0).unwrap();
        region.slice(1, 9 << 20).unwrap().store_to(&target, 5).unwrap();
        assert!(contents(&target)[5..] == want[1..(9 << 20) + 1]);
        let short = region.fill_from(&source, 1).unwrap_err();
        let is_end = |kind| kind == std::io::ErrorKind::UnexpectedEof;
        assert!(matches!(short, RegionError::File { kind, .. } if is_end(kind)), "{short}");
        region.end();
        assert_eq!(region.store_to(&target, 0), Err(RegionError::Ended));
    }
}
