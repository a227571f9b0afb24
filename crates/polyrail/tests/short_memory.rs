//! Pinned memory for some flows only: those do the work, at either end, by rails and by shared memory,
//! one way and both ways. With devices that reach no other and copy late.

mod common;

use common::devices::{device, lone_device, on};
use common::relay::{Cut, RelayedPair};
use common::*;
use polyrail::{Engine, PathKind, Region, RemoteRegion, Request, TransferError};
use polyrail_gpu::fake::FakeDevice;

const BYTES: usize = 12 << 20;
/// One way of sending, and flows enough.
const FLOWS: [&[(&str, &str)]; 3] = [
    &[("path", "shared"), ("channels", "8")],
    &[("path", "tcp"), ("channels", "8")],
    &[("path", "shared"), ("channels", "4"), ("sockets", "2"), ("proxy_layout", "merged")],
];
/// Rings of two flows in each direction, and of one.
const SHORT: [&[(&str, &str)]; 2] = [
    &[("gpu_chunk_bytes", "64KiB"), ("staging_bytes", "256KiB"), ("staging_limit_bytes", "1MiB")],
    &[("gpu_chunk_bytes", "512KiB"), ("staging_bytes", "1MiB"), ("staging_limit_bytes", "1MiB")],
];

/// Two engines that take each other for another process.
fn apart(a: &[(&str, &str)], b: &[(&str, &str)]) -> Pair {
    let build = |settings| Engine::builder().config(config(settings)).apart().build().unwrap();
    let (a, b) = (build(a), build(b));
    let to_b = a.add_peer(&b.metadata()).unwrap();
    let to_a = b.add_peer(&a.metadata()).unwrap();
    Pair { a, b, to_b, to_a }
}

fn write(p: &Pair, from: &Region, to: &RemoteRegion) -> Result<PathKind, TransferError> {
    let request = Request::write(&p.to_b).segment(from.all(), to.all());
    let prepared = p.a.prepare(request).unwrap();
    prepared.post().unwrap().wait(LONG).map(|_| prepared.path().kind)
}

fn lost_flows(engine: &Engine) -> u64 {
    let rails = engine.stats().peers.into_iter().flat_map(|peer| peer.rails);
    rails.map(|rail| rail.down_count).sum()
}

#[test]
fn flows_that_get_no_pinned_memory_leave_the_work_to_those_that_have_some() {
    for flows in FLOWS {
        for short in SHORT {
            // The same chunks, and memory without end.
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

/// The sender has memory for two flows and the receiver for two, which need not be the same.
#[test]
fn ends_with_memory_for_different_flows_find_one_that_both_have() {
    let settings = [&[("path", "tcp"), ("channels", "6")], SHORT[0]].concat();
    for round in 0..6 {
        let (here, there) = (device(0), device(1));
        let p = apart(&settings, &settings);
        // From the host to the device whichever flows are first at the receiver have its memory, and
        // from the device to the host whichever are first at the sender.
        let want = pattern(BYTES, round);
        let (near, far) = (filled(&p.a, BYTES, round), zeroed(&p.b, BYTES));
        let (source, _) = on(&here, &p.a, &want);
        let (target, memory) = on(&there, &p.b, &vec![0; BYTES]);
        assert_eq!(write(&p, &near, &remote(&p.a, &target)), Ok(PathKind::Tcp));
        assert!(FakeDevice::contents(&memory) == want);
        assert_eq!(write(&p, &source, &remote(&p.a, &far)), Ok(PathKind::Tcp));
        assert!(bytes(&far) == want);
        let want = pattern(BYTES, 100 + round);
        source.write_at(0, &want).unwrap();
        assert_eq!(write(&p, &source, &remote(&p.a, &target)), Ok(PathKind::Tcp));
        assert!(FakeDevice::contents(&memory) == want, "round {round}");
    }
}

#[test]
fn flows_without_memory_take_over_from_those_that_are_cut() {
    let (here, there) = (lone_device(0), lone_device(1));
    for flows in &FLOWS[..2] {
        let settings = [flows, SHORT[0], &[("reconnect_min_ms", "20")]].concat();
        let p = RelayedPair::new(&settings);
        for round in 0..8 {
            let want = pattern(BYTES, round);
            let (source, _) = on(&here, &p.a, &want);
            let (target, memory) = on(&there, &p.b, &vec![0; BYTES]);
            let transfer = p.a.write(&p.to_b, &source.all(), &remote(&p.a, &target).all()).unwrap();
            std::thread::sleep(std::time::Duration::from_millis(3));
            p.ways_to_b[round as usize % 4].cut(Cut::Reset);
            finished(&transfer);
            assert!(FakeDevice::contents(&memory) == want, "round {round}, {settings:?}");
        }
        assert!(lost_flows(&p.a) > 0, "nothing was cut in the middle");
    }
}

#[test]
fn less_than_one_slot_is_an_error_that_says_so() {
    let settings = [("path", "tcp"), ("channels", "8"), ("gpu_chunk_bytes", "2MiB")];
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
