//! Memory of devices that goes over rails: staged through pinned memory, with a device that copies late, out of order
//! between its queues, and fails when a test says so.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use crate::common::devices::{device, on, stays_as_it_is, waits_for_copies, write_scattered};
use crate::common::relay::{Cut, RelayedPair};
use crate::common::*;
use polyrail::{RefusalCode, Region, TransferError};
use polyrail_gpu::fake::FakeDevice;

/// Both engines are in one process, where devices would copy from end to end.
const TCP: (&str, &str) = ("path", "tcp");

const MODES: [&[(&str, &str)]; 5] = [
    &[TCP],
    &[TCP, ("proxy_layout", "merged"), ("channels", "8"), ("sockets", "2")],
    &[TCP, ("payload", "crc32c"), ("gpu_chunk_bytes", "64KiB"), ("window_chunks", "2")],
    // A ring of one chunk: everything waits for room.
    &[TCP, ("staging_bytes", "64KiB"), ("gpu_chunk_bytes", "64KiB")],
    &[TCP, ("staging_bytes", "64KiB"), ("gpu_chunk_bytes", "100KiB"), ("payload", "crc32c")],
];

fn write(p: &Pair, from: &Region, to: &Region) -> Result<u64, TransferError> {
    let transfer = p.a.write(&p.to_b, &from.all(), &remote(&p.a, to).all()).unwrap();
    transfer.ended().map(|outcome| outcome.bytes)
}

#[test]
fn a_write_from_device_to_device_arrives_byte_exact_in_any_size() {
    let (here, there) = (device(0), device(1));
    for mode in MODES {
        let p = pair(mode);
        for len in [0, 1, 8, 511, 513, 65_537, 1_000_003, 16 << 20] {
            let want = pattern(len, 7);
            let (source, _) = on(&here, &p.a, &want);
            let (target, memory) = on(&there, &p.b, &vec![0; len]);
            assert_eq!(write(&p, &source, &target), Ok(len as u64));
            assert!(FakeDevice::contents(&memory) == want, "{len} bytes, {mode:?}");
        }
    }
}

#[test]
fn host_and_device_may_be_at_either_end() {
    let device = device(0);
    for mode in MODES {
        let p = pair(mode);
        let len = 3_000_001;
        let want = pattern(len, 5);
        let (first, last) = (filled(&p.a, len, 5), zeroed(&p.b, len));
        let (middle_b, memory) = on(&device, &p.b, &vec![0; len]);
        assert_eq!(write(&p, &first, &middle_b), Ok(len as u64));
        assert!(FakeDevice::contents(&memory) == want);
        let (middle_a, _) = on(&device, &p.a, &want);
        assert_eq!(write(&p, &middle_a, &last), Ok(len as u64));
        assert!(bytes(&last) == want, "{mode:?}");
    }
}

#[test]
fn a_read_and_a_message_of_device_memory_arrive_byte_exact() {
    let device = device(0);
    for mode in MODES {
        let p = pair(mode);
        let len = 2_000_003;
        let (want, zeros) = (pattern(len, 9), vec![0; len]);
        let (source, _) = on(&device, &p.b, &want);
        let (target, memory) = on(&device, &p.a, &zeros);
        finished(&p.a.read(&p.to_b, &target.all(), &remote(&p.a, &source).all()).unwrap());
        assert!(FakeDevice::contents(&memory) == want, "{mode:?}");

        let (inbox, memory) = on(&device, &p.a, &zeros);
        let receive = p.a.receive(&p.to_b, 3, &inbox.all()).unwrap();
        finished(&p.b.send(&p.to_a, 3, &source.all()).unwrap());
        finished(&receive);
        assert!(FakeDevice::contents(&memory) == want, "{mode:?}");
    }
}

#[test]
fn one_chunk_may_have_places_on_several_devices_and_the_host() {
    let devices = [device(0), device(1)];
    for mode in MODES {
        assert_eq!(write_scattered(&pair(mode), &devices), "tcp: the setting path says so");
    }
}

#[test]
fn many_small_transfers_at_once_arrive() {
    let device = device(0);
    let p = pair(&[TCP, ("channels", "2"), ("proxy_layout", "merged")]);
    let (count, len) = (2000u64, 700u64);
    let want = pattern((count * len) as usize, 4);
    let (source, _) = on(&device, &p.a, &want);
    let (target, memory) = on(&device, &p.b, &vec![0; want.len()]);
    let there = remote(&p.a, &target);
    let transfers: Vec<_> = (0..count)
        .map(|i| {
            let from = source.slice(i * len, len).unwrap();
            p.a.write(&p.to_b, &from, &there.slice(i * len, len).unwrap()).unwrap()
        })
        .collect();
    transfers.iter().for_each(finished);
    assert!(FakeDevice::contents(&memory) == want);
}

#[test]
fn a_small_transfer_that_its_caller_sends_is_seen_through_by_a_proxy() {
    let (here, there) = (device(0), device(1));
    let p = pair(&[TCP]);
    let (source, _) = on(&here, &p.a, &pattern(8, 1));
    let (target, memory) = on(&there, &p.b, &[0; 8]);
    for _ in 0..20 {
        assert_eq!(write(&p, &source, &target), Ok(8));
    }
    assert_eq!(FakeDevice::contents(&memory), pattern(8, 1));
    let stats = p.a.stats();
    let resent: u64 = stats.peers[0].rails.iter().map(|rail| rail.resent_chunks).sum();
    assert_eq!(resent, 0, "a flow was taken for stalled");
}

#[test]
fn a_caller_that_drives_drives_the_copies_too() {
    let device = device(0);
    let p = pair(&[TCP, ("progress", "caller")]);
    let over = AtomicBool::new(false);
    let want = pattern(5_000_000, 6);
    let (source, _) = on(&device, &p.a, &want);
    let (target, memory) = on(&device, &p.b, &vec![0; want.len()]);
    std::thread::scope(|scope| {
        let _tell = TellOnDrop(&over);
        scope.spawn(|| {
            while !over.load(std::sync::atomic::Ordering::Relaxed) {
                p.b.wait_notification(Duration::from_millis(20));
            }
        });
        assert_eq!(write(&p, &source, &target), Ok(want.len() as u64));
    });
    assert!(FakeDevice::contents(&memory) == want);
}

#[test]
fn rails_that_are_cut_while_devices_copy_lose_no_byte() {
    let (here, there) = (device(0), device(1));
    let p = RelayedPair::new(&[TCP, ("gpu_chunk_bytes", "64KiB"), ("payload", "crc32c")]);
    for round in 0..6 {
        let want = pattern(24 << 20, round);
        let (source, _) = on(&here, &p.a, &want);
        let (target, memory) = on(&there, &p.b, &vec![0; want.len()]);
        let there = remote(&p.a, &target);
        let before = sent_bytes(&p.a);
        let transfer = p.a.write(&p.to_b, &source.all(), &there.all()).unwrap();
        wait_for("chunks to be under way", || sent_bytes(&p.a) > before);
        p.ways_to_b[round as usize % 4].cut(Cut::Reset);
        assert_eq!(transfer.ended().unwrap().bytes, want.len() as u64);
        assert!(FakeDevice::contents(&memory) == want, "round {round}");
    }
}

#[test]
fn a_device_that_fails_to_read_fails_the_transfer_and_not_the_engine() {
    let p = pair(&[TCP]);
    let here = device(0);
    let (source, _) = on(&here, &p.a, &pattern(8 << 20, 1));
    let target = zeroed(&p.b, 8 << 20);
    here.fail_after(3);
    match write(&p, &source, &target) {
        Err(TransferError::Device { why }) => assert!(why.contains("FAKE_COPY_FAILED"), "{why}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(write(&p, &source, &target), Ok(8 << 20));
    assert!(bytes(&target) == pattern(8 << 20, 1));
}

#[test]
fn a_device_that_fails_to_write_fails_the_transfer_and_not_the_engine() {
    let p = pair(&[TCP]);
    let there = device(0);
    let source = filled(&p.a, 8 << 20, 1);
    let (target, memory) = on(&there, &p.b, &vec![0; 8 << 20]);
    there.fail_after(3);
    match write(&p, &source, &target) {
        Err(TransferError::Refused { code: RefusalCode::Device, .. }) => {}
        other => panic!("{other:?}"),
    }
    assert_eq!(write(&p, &source, &target), Ok(8 << 20));
    assert!(FakeDevice::contents(&memory) == pattern(8 << 20, 1));
}

#[test]
fn a_region_is_not_given_back_while_a_device_copies() {
    let p = pair(&[TCP]);
    let (here, there) = (device(0), device(1));
    let (source, _) = on(&here, &p.a, &pattern(1 << 20, 1));
    let (target, _) = on(&there, &p.b, &vec![0; 1 << 20]);
    there.hold(true);
    let transfer = p.a.write(&p.to_b, &source.all(), &remote(&p.a, &target).all()).unwrap();
    wait_for("a copy to be held back", || there.is_holding());
    waits_for_copies(&there, || drop(target));
    // Either all of it was landing when the region went, or a part was refused.
    let ended = transfer.ended();
    assert!(matches!(ended, Ok(_) | Err(TransferError::Refused { .. })), "{ended:?}");
}

#[test]
fn a_cancelled_receive_is_over_only_when_the_device_is_done_with_it() {
    let p = pair(&[TCP]);
    let there = device(0);
    let (inbox, memory) = on(&there, &p.b, &vec![0; 4 << 20]);
    let source = filled(&p.a, 4 << 20, 2);
    there.hold(true);
    let receive = p.b.receive(&p.to_a, 1, &inbox.all()).unwrap();
    let send = p.a.send(&p.to_b, 1, &source.all()).unwrap();
    wait_for("a copy to be held back", || there.is_holding());
    waits_for_copies(&there, || {
        receive.cancel();
        assert!(matches!(receive.ended(), Err(TransferError::Cancelled)));
    });
    stays_as_it_is(&memory);
    assert!(send.ended().is_err());
}

#[test]
fn short_pinned_memory_makes_do_with_less_and_none_is_an_error() {
    let p = pair(&[TCP, ("rails", "127.0.0.1"), ("channels", "1"), ("gpu_chunk_bytes", "64KiB")]);
    let here = device(0);
    let (source, _) = on(&here, &p.a, &pattern(1 << 20, 1));
    let target = zeroed(&p.b, 1 << 20);
    here.limit_pinned(0);
    match write(&p, &source, &target) {
        Err(TransferError::Device { why }) => assert!(why.contains("OUT_OF_MEMORY"), "{why}"),
        other => panic!("{other:?}"),
    }
    here.limit_pinned(100 << 10);
    assert_eq!(write(&p, &source, &target), Ok(1 << 20));
    assert!(bytes(&target) == pattern(1 << 20, 1));
}

#[test]
fn a_ring_that_is_too_small_makes_room_for_a_larger_one() {
    let flow = [TCP, ("rails", "127.0.0.1"), ("channels", "1")];
    // Enough for either ring, not for both.
    let short = [("staging_bytes", "512KiB"), ("staging_limit_bytes", "1MiB")];
    let a = engine(&[&flow[..], &[("gpu_chunk_bytes", "768KiB")]].concat());
    let b = engine(&[&flow[..], &short].concat());
    let (to_b, to_a) = (a.add_peer(&b.metadata()).unwrap(), b.add_peer(&a.metadata()).unwrap());
    let p = Pair { a, b, to_b, to_a };
    let (here, there) = (device(0), device(1));
    // Regions that end would have queues let go of rings, too.
    let ends = [1, 768 << 10, 3 << 20].map(|len| {
        (on(&here, &p.a, &pattern(len, 1)).0, on(&there, &p.b, &vec![0; len]), pattern(len, 1))
    });
    for (source, (target, memory), want) in &ends {
        assert_eq!(write(&p, source, target), Ok(want.len() as u64));
        assert!(FakeDevice::contents(memory) == *want);
    }
}
