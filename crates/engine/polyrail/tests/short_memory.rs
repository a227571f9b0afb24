//! Pinned memory for some flows only: those do the work, at either end, by rails and by shared memory, one way and both
//! ways. With devices that reach no other and copy late. Alone in their process: no rail may be given up for lack of a
//! CPU.

mod common;

use common::devices::{device, lone_device, on};
use common::relay::{Cut, RelayedPair};
use common::*;
use polyrail::{Engine, PathKind, Region, RemoteRegion, Request, TransferError};
use polyrail_gpu::fake::FakeDevice;

const BYTES: usize = 6 << 20;
/// Each has one path, and enough flows.
const FLOWS: [&[(&str, &str)]; 3] = [
    &[("path", "shared"), ("channels", "8")],
    &[("path", "tcp"), ("channels", "8")],
    &[("path", "shared"), ("channels", "4"), ("sockets", "2"), ("proxy_layout", "merged")],
];
/// Memory for rings of two flows in each direction, and of one.
const SHORT: [&[(&str, &str)]; 2] = [
    &[("gpu_chunk_bytes", "64KiB"), ("staging_bytes", "256KiB"), ("staging_limit_bytes", "1MiB")],
    &[("gpu_chunk_bytes", "512KiB"), ("staging_bytes", "1MiB"), ("staging_limit_bytes", "1MiB")],
];

fn write(p: &Pair, from: &Region, to: &RemoteRegion) -> Result<PathKind, TransferError> {
    let request = Request::write(&p.to_b).segment(from.all(), to.all());
    let prepared = p.a.prepare(request).unwrap();
    prepared.post().unwrap().ended().map(|_| prepared.path().kind)
}

#[test]
fn flows_that_get_no_pinned_memory_leave_the_work_to_those_that_have_some() {
    for flows in FLOWS {
        for short in SHORT {
            // Same chunk size, and unlimited memory.
            let ample = [flows, &short[..2]].concat();
            let short = [flows, short].concat();
            for (a, b) in [(&short, &ample), (&ample, &short), (&short, &short)] {
                let (here, there) = (lone_device(0), lone_device(1));
                let p = apart(a, b);
                for round in 0..2 {
                    let want = pattern(BYTES, round);
                    let (source, _) = on(&here, &p.a, &want);
                    let (target, memory) = on(&there, &p.b, &vec![0; BYTES]);
                    let ended = write(&p, &source, &remote(&p.a, &target));
                    ended.unwrap_or_else(|error| panic!("{error}, {a:?} to {b:?}"));
                    assert!(FakeDevice::contents(&memory) == want, "{a:?} to {b:?}");
                }
                assert_eq!(lost_flows(&p.a), 0, "{a:?} to {b:?}");
            }
        }
    }
}

#[test]
fn what_is_sent_leaves_pinned_memory_for_what_comes() {
    for flows in FLOWS {
        for short in SHORT {
            let settings = [flows, short].concat();
            let devices = [lone_device(0), lone_device(1)];
            let p = apart(&settings, &settings);
            let go = |from: &Engine, to: &Engine, peer, here: usize| {
                for round in 0..2 {
                    let want = pattern(BYTES / 2, round + 10 * here as u64);
                    let (source, _) = on(&devices[here], from, &want);
                    let (target, memory) = on(&devices[1 - here], to, &vec![0; want.len()]);
                    let all = remote(from, &target).all();
                    finished(&from.write(peer, &source.all(), &all).unwrap());
                    assert!(FakeDevice::contents(&memory) == want, "{round}, {settings:?}");
                }
            };
            std::thread::scope(|scope| {
                scope.spawn(|| go(&p.a, &p.b, &p.to_b, 0));
                go(&p.b, &p.a, &p.to_a, 1);
            });
        }
    }
}

#[test]
fn connections_that_carry_data_both_ways_make_do_with_little_too() {
    let caller = [("path", "tcp"), ("progress", "caller"), ("rails", "127.0.0.1")];
    for short in SHORT {
        let settings = [&caller[..], &[("channels", "6")], short].concat();
        let (a, b) = (engine(&settings), engine(&settings));
        let to_b = a.add_peer(&b.metadata()).unwrap();
        let to_a = b.accept_peer(LONG).unwrap();
        let (here, there) = (device(0), device(1));
        let ends = [0, 1].map(|way| {
            let (from, to) = if way == 0 { (&a, &b) } else { (&b, &a) };
            let (source, _) = on(&here, from, &pattern(BYTES / 2, way));
            let (target, memory) = on(&there, to, &vec![0; BYTES / 2]);
            let all = remote(from, &target).all();
            let peer = if way == 0 { &to_b } else { &to_a };
            (from.write(peer, &source.all(), &all).unwrap(), memory, (source, target))
        });
        wait_for("both", || {
            a.progress();
            b.progress();
            ends.iter().all(|(transfer, ..)| transfer.is_over())
        });
        for (way, (transfer, memory, _)) in ends.iter().enumerate() {
            finished(transfer);
            assert!(FakeDevice::contents(memory) == pattern(BYTES / 2, way as u64), "{short:?}");
        }
    }
}

/// One flow, with memory for one ring at one end, and payload that alternates between rails and shared memory.
#[test]
fn a_flow_with_memory_for_one_ring_uses_it_both_ways() {
    let flow = [
        ("rails", "127.0.0.1"),
        ("channels", "1"),
        ("gpu_chunk_bytes", "64KiB"),
        ("staging_bytes", "512KiB"),
    ];
    let short = [&flow[..], &[("staging_limit_bytes", "1MiB")]].concat();
    for (a, b) in [(&short[..], &flow[..]), (&flow[..], &short[..])] {
        let (here, there) = (lone_device(0), lone_device(1));
        let p = apart(a, b);
        let (source, _) = on(&here, &p.a, &vec![0; BYTES]);
        let (target, memory) = on(&there, &p.b, &vec![0; BYTES]);
        let request = Request::write(&p.to_b).segment(source.all(), remote(&p.a, &target).all());
        // A request that is prepared while memory can't be shared keeps the rails.
        here.limit_pinned(0);
        let by_rails = p.a.prepare(request.clone()).unwrap();
        here.limit_pinned(1 << 30);
        assert_eq!(by_rails.path().kind, PathKind::Tcp);
        let is_shared = || p.a.prepare(request.clone()).unwrap().path().kind == PathKind::Shared;
        wait_for("memory to be shared", is_shared);
        let shared = p.a.prepare(request.clone()).unwrap();
        for round in 0..6 {
            let want = pattern(BYTES, round);
            source.write_at(0, &want).unwrap();
            let prepared = if round % 2 == 0 { &shared } else { &by_rails };
            finished(&prepared.post().unwrap());
            assert!(FakeDevice::contents(&memory) == want, "round {round}, {a:?} to {b:?}");
        }
        let left = p.a.stats().peers[0].shared_bytes;
        assert_eq!(left, 3 * BYTES as u64, "{a:?} to {b:?}");
        assert_eq!(lost_flows(&p.a), 0);
    }
}

/// The sender has memory for one flow and the receiver for another.
#[test]
fn ends_with_memory_for_different_flows_find_one_that_both_have() {
    let flows = [("path", "tcp"), ("channels", "4")];
    let patient = [("rail_stall_ms", "9000"), ("chunk_bytes", "512KiB")];
    let p = RelayedPair::new(&[&flows[..], &patient, SHORT[1]].concat());
    let (here, there) = (device(0), device(1));
    // More than what fits on the way to the other flows.
    const MUCH: usize = 8 * BYTES;
    let (near, far) = (filled(&p.a, MUCH, 1), zeroed(&p.b, BYTES));
    let (source, _) = on(&here, &p.a, &pattern(MUCH, 2));
    let (target, memory) = on(&there, &p.b, &vec![0; MUCH]);
    let (target, far) = (remote(&p.a, &target), remote(&p.a, &far));
    wait_for("all rails", || p.to_b.flows().up == 4);
    // The data on the last rail arrives first.
    p.ways_to_b[..3].iter().for_each(|way| way.set(|mood| mood.stalled = true));
    let before = p.ways_to_b[3].bytes();
    let transfer = p.a.write(&p.to_b, &near.all(), &target.all()).unwrap();
    wait_for("a chunk on the last rail", || p.ways_to_b[3].bytes() > before + (512 << 10));
    p.ways_to_b[..3].iter().for_each(|way| way.set(|mood| mood.stalled = false));
    finished(&transfer);
    assert!(FakeDevice::contents(&memory) == pattern(MUCH, 1));
    // A single chunk goes by the first.
    let one = |region: &Region| region.slice(0, 512 << 10).unwrap();
    finished(&p.a.write(&p.to_b, &one(&source), &far.slice(0, 512 << 10).unwrap()).unwrap());
    finished(&p.a.write(&p.to_b, &source.all(), &target.all()).unwrap());
    assert!(FakeDevice::contents(&memory) == pattern(MUCH, 2));
    assert_eq!(lost_flows(&p.a), 0);
}

#[test]
fn flows_without_memory_take_over_from_those_that_are_cut() {
    let (here, there) = (lone_device(0), lone_device(1));
    for flows in &FLOWS[..2] {
        let settings = [flows, SHORT[0], &[("reconnect_max_ms", "200")]].concat();
        let p = RelayedPair::new(&settings);
        for round in 0..8 {
            let want = pattern(2 * BYTES, round);
            let (source, _) = on(&here, &p.a, &want);
            let (target, memory) = on(&there, &p.b, &vec![0; want.len()]);
            let before = sent_bytes(&p.a);
            let transfer = p.a.write(&p.to_b, &source.all(), &remote(&p.a, &target).all()).unwrap();
            wait_for("chunks to be under way", || sent_bytes(&p.a) > before);
            p.ways_to_b[round as usize % 4].cut(Cut::Reset);
            finished(&transfer);
            assert!(FakeDevice::contents(&memory) == want, "round {round}, {settings:?}");
        }
        assert!(lost_flows(&p.a) > 0, "nothing was cut in the middle");
    }
}

#[test]
fn less_than_one_slot_is_an_error_that_says_so() {
    // For a transfer over several rails, the last chunks are down to a quarter of that.
    let settings = [("path", "tcp"), ("channels", "8"), ("gpu_chunk_bytes", "8MiB")];
    let short = [&settings[..], &[("staging_limit_bytes", "1MiB")]].concat();
    let (here, there) = (device(0), device(1));
    for (a, b) in [(&short[..], &settings[..]), (&settings[..], &short[..])] {
        let p = apart(a, b);
        let (source, _) = on(&here, &p.a, &pattern(BYTES, 1));
        let (target, _) = on(&there, &p.b, &vec![0; BYTES]);
        match write(&p, &source, &remote(&p.a, &target)) {
            Err(TransferError::Device { why }) if a.len() == short.len() => {
                assert!(why.contains("staging_limit_bytes"), "{why}");
            }
            Err(TransferError::Refused { .. }) if b.len() == short.len() => {}
            other => panic!("{other:?}"),
        }
    }
}
