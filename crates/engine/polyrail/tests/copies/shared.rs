//! Transfers through memory that both processes have open, between two engines that treat each other as another
//! process's, with devices that reach no other, copy late, and fail on request of a test.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::common::devices::{lone_device as device, on, stays_as_it_is};
use crate::common::puppet::{PUPPET_BYTES, PUPPET_SEED, Puppet};
use crate::common::relay::{Cut, RelayedPair};
use crate::common::stranger::metadata_of;
use crate::common::*;
use polyrail::{Engine, PathKind, Region, RemoteRegion, Request, TransferError};
use polyrail_gpu::fake::FakeDevice;
use polyrail_proto::hello::Capabilities;

pub(super) const MODES: [&[(&str, &str)]; 5] = [
    &[],
    &[("proxy_layout", "merged"), ("channels", "8"), ("sockets", "2")],
    &[("payload", "crc32c"), ("gpu_chunk_bytes", "64KiB"), ("window_chunks", "2")],
    // A ring of one chunk: everything waits for room.
    &[("staging_bytes", "64KiB"), ("gpu_chunk_bytes", "64KiB"), ("chunk_bytes", "64KiB")],
    &[("staging_bytes", "64KiB"), ("gpu_chunk_bytes", "100KiB"), ("payload", "crc32c")],
];

/// Writes, and returns the path that was taken.
fn write(p: &Pair, from: &Region, to: &RemoteRegion) -> Result<PathKind, TransferError> {
    let request = Request::write(&p.to_b).segment(from.all(), to.all());
    let prepared = p.a.prepare(request).unwrap();
    let outcome = prepared.post().unwrap().ended()?;
    assert_eq!(outcome.bytes, from.len());
    Ok(prepared.path().kind)
}

fn path(p: &Pair, from: &Region, to: &RemoteRegion) -> String {
    let request = Request::write(&p.to_b).segment(from.all(), to.all());
    p.a.prepare(request).unwrap().path().to_string()
}

/// Returns the payload that rails carried, and that was left in shared memory.
pub(super) fn moved(engine: &Engine) -> (u64, u64) {
    let peers = engine.stats().peers;
    let rails = peers.iter().flat_map(|peer| &peer.rails).map(|rail| rail.tx_bytes).sum();
    (rails, peers.iter().map(|peer| peer.shared_bytes).sum())
}

/// Names the path that carried `len` bytes between two counts of [`moved`]. A busy machine stalls rails, and then they
/// carry chunks again.
fn way_of(len: usize, before: (u64, u64), after: (u64, u64)) -> &'static str {
    match (after.0 - before.0, after.1 - before.1) {
        (rails, 0) if rails >= len as u64 => "rails",
        (0, shared) if shared == len as u64 => "shared memory",
        _ => "both, or less than all",
    }
}

#[test]
fn a_message_from_host_memory_to_a_device_takes_it_once_it_is_known_to_work() {
    let here = device(0);
    let len = 2_000_003;
    let (want, zeros) = (pattern(len, 9), vec![0; len]);
    // The sender learns from the receive where the memory is.
    let send = |p: &Pair, source: &Region, inbox: &Region| {
        let before = moved(&p.b);
        let receive = p.a.receive(&p.to_b, 3, &inbox.all()).unwrap();
        finished(&p.b.send(&p.to_a, 3, &source.all()).unwrap());
        finished(&receive);
        way_of(len, before, moved(&p.b))
    };
    for mode in MODES {
        let p = apart(mode, mode);
        let source = filled(&p.b, len, 9);
        let ((inbox, memory), room) = (on(&here, &p.a, &zeros), zeroed(&p.a, len));
        wait_for("shared memory", || send(&p, &source, &inbox) == "shared memory");
        inbox.write_at(0, &zeros).unwrap();
        assert_eq!(send(&p, &source, &inbox), "shared memory", "{mode:?}");
        assert!(FakeDevice::contents(&memory) == want, "{mode:?}");
        // Short ones take the rails.
        let short = p.a.receive(&p.to_b, 4, &inbox.all()).unwrap();
        let before = moved(&p.b);
        finished(&p.b.send(&p.to_a, 4, &source.slice(0, 65_536).unwrap()).unwrap());
        finished(&short);
        assert_eq!(way_of(65_536, before, moved(&p.b)), "rails", "{mode:?}");
        // Between host memories nothing changes.
        assert_eq!(send(&p, &source, &room), "rails", "{mode:?}");
    }
    let tcp: &[(&str, &str)] = &[("path", "tcp")];
    for (receiver, sender) in [(tcp, &[][..]), (&[][..], tcp)] {
        let p = apart(receiver, sender);
        let source = filled(&p.b, len, 9);
        let (inbox, memory) = on(&here, &p.a, &zeros);
        for _ in 0..5 {
            assert_eq!(send(&p, &source, &inbox), "rails", "{receiver:?} {sender:?}");
        }
        assert!(FakeDevice::contents(&memory) == want);
    }
}

#[test]
fn both_directions_at_once_and_many_small_ones_arrive_also_where_callers_make_the_progress() {
    let devices = [device(0), device(1)];
    for mode in [&[][..], &[("progress", "caller")]] {
        let p = apart(mode, mode);
        let over = [AtomicBool::new(false), AtomicBool::new(false)];
        let go = |from: &Engine, to: &Engine, peer, here: usize| {
            {
                let _tell = TellOnDrop(&over[here]);
                let (count, len) = (500u64, 700u64);
                let want = pattern((count * len) as usize, here as u64);
                let (source, _) = on(&devices[here], from, &want);
                let (target, memory) = on(&devices[1 - here], to, &vec![0; want.len()]);
                let all = remote(from, &target);
                let write = |i: u64| {
                    let slice = source.slice(i * len, len).unwrap();
                    from.write(peer, &slice, &all.slice(i * len, len).unwrap()).unwrap()
                };
                let transfers: Vec<_> = (0..count).map(write).collect();
                transfers.iter().for_each(finished);
                assert!(FakeDevice::contents(&memory) == want, "{mode:?}");
            }
            while !over[1 - here].load(Ordering::Relaxed) {
                from.progress();
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| go(&p.a, &p.b, &p.to_b, 0));
            go(&p.b, &p.a, &p.to_a, 1);
        });
        assert_eq!((moved(&p.a).0, moved(&p.b).0), (0, 0), "{mode:?}");
        assert_eq!(lost_flows(&p.a) + lost_flows(&p.b), 0, "{mode:?}");
    }
}

#[test]
fn why_it_is_not_taken_is_said() {
    let (here, there) = (device(0), device(1));
    let say = |p: &Pair| {
        let (source, _) = on(&here, &p.a, &[1; 64]);
        let (target, memory) = on(&there, &p.b, &[0; 64]);
        let there = remote(&p.a, &target);
        let said = path(p, &source, &there);
        assert_eq!(path(p, &source, &there), said, "the same again");
        finished(&p.a.write(&p.to_b, &source.all(), &there.all()).unwrap());
        assert_eq!(FakeDevice::contents(&memory), [1; 64]);
        said
    };
    let said = say(&apart(&[], &[]));
    assert!(said.starts_with("shared memory: both ends are on this host; import: FAKE"), "{said}");
    let said = say(&apart(&[], &[("path", "tcp")]));
    assert!(said.starts_with("tcp: ") && said.contains("peer's setting path says tcp"), "{said}");
    let said = say(&apart(&[("path", "shared")], &[("path", "tcp")]));
    assert!(said.starts_with("tcp: the setting path says shared, which is not possib"), "{said}");
    let p = apart(&[("path", "shared")], &[]);
    let said = path(&p, &filled(&p.a, 8, 1), &remote(&p.a, &zeroed(&p.b, 8)));
    assert_eq!(said, "shared memory: the setting path says so", "of the host, too");
    // A device that can't pin such memory, here and at the peer.
    for poor in [&here, &there] {
        poor.limit_pinned(1 << 30);
        let p = apart(&[("gpu_chunk_bytes", "64KiB")], &[("gpu_chunk_bytes", "64KiB")]);
        let (source, _) = on(&here, &p.a, &[1; 64]);
        let (target, _) = on(&there, &p.b, &[0; 64]);
        poor.limit_pinned(0);
        let said = path(&p, &source, &remote(&p.a, &target));
        assert!(said.starts_with("tcp: ") && said.contains("OUT_OF_MEMORY"), "{said}");
        poor.limit_pinned(1 << 30);
    }
}

#[test]
fn a_lack_of_memory_for_one_peer_is_none_for_the_next() {
    let (here, there) = (device(0), device(1));
    let Pair { a, b, to_b, to_a } = apart(&[], &[]);
    let c = builder().config(config(&[])).apart().build().unwrap();
    let (to_c, a_of_c) = (a.add_peer(&c.metadata()).unwrap(), c.add_peer(&a.metadata()).unwrap());
    let (source, _) = on(&here, &a, &[1; 64]);
    here.limit_pinned(0);
    let p = Pair { a, b, to_b, to_a };
    let (target, _) = on(&there, &p.b, &[0; 64]);
    let said = path(&p, &source, &remote(&p.a, &target));
    assert!(said.starts_with("tcp: ") && said.contains("OUT_OF_MEMORY"), "{said}");
    here.limit_pinned(1 << 30);
    let p = Pair { a: p.a, b: c, to_b: to_c, to_a: a_of_c };
    let (target, memory) = on(&there, &p.b, &[0; 64]);
    assert_eq!(write(&p, &source, &remote(&p.a, &target)), Ok(PathKind::Shared));
    assert_eq!(FakeDevice::contents(&memory), [1; 64]);
}

#[test]
fn a_peer_of_a_version_without_it_is_never_asked() {
    let (here, there) = (device(0), device(1));
    let build = || builder().config(config(&[])).apart().build().unwrap();
    let (a, b) = (build(), build());
    let mut metadata = metadata_of(&b);
    let card = &mut metadata.card;
    card.capabilities = card.capabilities.without(Capabilities::SHARED_MEMORY);
    let to_b = a.add_peer(&metadata.encode()).unwrap();
    let to_a = b.add_peer(&a.metadata()).unwrap();
    let p = Pair { a, b, to_b, to_a };
    let (source, _) = on(&here, &p.a, &[1; 64]);
    let (target, memory) = on(&there, &p.b, &[0; 64]);
    let said = path(&p, &source, &remote(&p.a, &target));
    assert!(said.starts_with("tcp: ") && said.contains("of a version without it"), "{said}");
    assert_eq!(write(&p, &source, &remote(&p.a, &target)), Ok(PathKind::Tcp));
    assert_eq!(FakeDevice::contents(&memory), [1; 64]);
    assert_eq!(way_of(64, (0, 0), moved(&p.a)), "rails");
}

#[test]
fn rings_that_can_not_be_had_later_send_the_rest_over_rails() {
    let settings = [("rails", "127.0.0.1"), ("channels", "1"), ("gpu_chunk_bytes", "64KiB")];
    for poor in 0..2 {
        let devices = [device(0), device(1)];
        let p = apart(&settings, &settings);
        let want = pattern(1 << 20, 1);
        let (source, _) = on(&devices[0], &p.a, &want);
        let (target, memory) = on(&devices[1], &p.b, &vec![0; want.len()]);
        let there = remote(&p.a, &target);
        let request = Request::write(&p.to_b).segment(source.all(), there.all());
        let prepared = p.a.prepare(request).unwrap();
        assert_eq!(prepared.path().kind, PathKind::Shared);
        // Enough for a ring over rails, and too little for the one that the peer announces.
        devices[poor].limit_pinned(70 << 10);
        if poor == 0 {
            devices[poor].limit_pinned(0);
        }
        let ended = prepared.post().unwrap().ended();
        if poor == 0 {
            // Not even a ring over rails.
            assert!(matches!(ended, Err(TransferError::Device { .. })), "{ended:?}");
            devices[poor].limit_pinned(1 << 30);
            finished(&prepared.post().unwrap());
        } else {
            assert_eq!(ended.unwrap().bytes, want.len() as u64);
        }
        assert!(FakeDevice::contents(&memory) == want);
        assert!(moved(&p.a).0 >= want.len() as u64);
        let said = path(&p, &source, &there);
        assert!(said.starts_with("tcp: "), "{said}");
        assert_eq!(lost_flows(&p.a), u64::from(poor == 0), "only by a transfer that failed");
    }
}

#[test]
fn a_lack_of_memory_that_passes_ends_sharing_for_a_while_only() {
    let settings = [("rails", "127.0.0.1"), ("channels", "1"), ("gpu_chunk_bytes", "64KiB")];
    for poor in 0..2 {
        let devices = [device(0), device(1)];
        let p = apart(&settings, &settings);
        let want = pattern(1 << 20, 1);
        let (source, _) = on(&devices[0], &p.a, &want);
        let (target, memory) = on(&devices[1], &p.b, &vec![0; want.len()]);
        let there = remote(&p.a, &target);
        // On the first try.
        devices[poor].limit_pinned(0);
        let said = path(&p, &source, &there);
        assert!(said.starts_with("tcp: ") && said.contains("OUT_OF_MEMORY"), "{said}");
        devices[poor].limit_pinned(1 << 30);
        wait_for("memory to be shared", || path(&p, &source, &there).starts_with("shared"));

        // When a ring is needed: a request that was prepared before returns to shared memory, too.
        let request = Request::write(&p.to_b).segment(source.all(), there.all());
        let prepared = p.a.prepare(request).unwrap();
        devices[poor].limit_pinned(0);
        // Rails have no ring, either.
        prepared.post().unwrap().ended().unwrap_err();
        devices[poor].limit_pinned(1 << 30);
        finished(&prepared.post().unwrap());
        let left = moved(&p.a).1;
        assert!(p.a.dump().contains("shared memory: not used: "), "{}", p.a.dump());
        wait_for("the ring", || {
            finished(&prepared.post().unwrap());
            moved(&p.a).1 > left
        });
        let (rails, left) = moved(&p.a);
        let other = pattern(want.len(), 2);
        source.write_at(0, &other).unwrap();
        finished(&prepared.post().unwrap());
        assert!(FakeDevice::contents(&memory) == other);
        assert_eq!(moved(&p.a), (rails, left + want.len() as u64), "{poor}");
        assert!(p.a.dump().contains("shared memory: works"), "{}", p.a.dump());
    }
}

#[test]
fn a_sender_that_is_gone_with_chunks_in_its_ring_hangs_nobody_and_changes_no_byte() {
    let (here, there) = (device(0), device(1));
    let p = apart(&[], &[]);
    let want = pattern(4 << 20, 3);
    let (source, _) = on(&here, &p.a, &want);
    let (target, memory) = on(&there, &p.b, &vec![0; want.len()]);
    let all = remote(&p.a, &target).all();
    let prepared = p.a.prepare(Request::write(&p.to_b).segment(source.all(), all)).unwrap();
    there.hold(true);
    let transfer = prepared.post().unwrap();
    wait_for("a copy to be held back", || there.is_holding());
    std::thread::scope(|scope| {
        let Pair { a, b: _b, to_b, to_a } = p;
        let closed = scope.spawn(move || {
            drop((source, prepared, to_b));
            drop(a);
        });
        wait_for("the peer to be gone", || to_a.lost().is_some());
        there.hold(false);
        closed.join().unwrap();
    });
    assert!(transfer.is_over());
    drop(target);
    // The bytes that landed are those that were sent.
    let landed = FakeDevice::contents(&memory);
    let is_one_of = |(got, want): (&u8, &u8)| *got == 0 || got == want;
    assert!(landed.iter().zip(&want).all(is_one_of));
}

/// Flows are lost and their chunks sent again, while the device of the other side has yet to copy the first ones, from
/// places that must not be reused by then.
#[test]
fn what_is_copied_after_its_flow_is_gone_is_what_was_sent() {
    let (here, there) = (device(0), device(1));
    let settings = [
        ("path", "shared"),
        ("reconnect_max_ms", "200"),
        ("gpu_chunk_bytes", "64KiB"),
        ("chunk_bytes", "64KiB"),
        ("staging_bytes", "256KiB"),
    ];
    let p = RelayedPair::new(&settings);
    for round in 0..3 {
        let want = pattern(8 << 20, round);
        let (source, _) = on(&here, &p.a, &want);
        let (target, memory) = on(&there, &p.b, &vec![0; want.len()]);
        let all = remote(&p.a, &target).all();
        let prepared = p.a.prepare(Request::write(&p.to_b).segment(source.all(), all)).unwrap();
        let (lost, left) = (lost_flows(&p.a), moved(&p.a).1);
        there.hold(true);
        let transfer = prepared.post().unwrap();
        wait_for("chunks to lie there", || moved(&p.a).1 > left + (200 << 10));
        wait_for("a copy to be held back", || there.is_holding());
        p.ways_to_b.iter().for_each(|way| way.cut(Cut::Reset));
        wait_for("all flows to be lost", || lost_flows(&p.a) >= lost + p.ways_to_b.len() as u64);
        // Chunks come again on new connections, with new rings.
        let left = moved(&p.a).1;
        wait_for("chunks to come again", || moved(&p.a).1 > left + (200 << 10));
        there.hold(false);
        finished(&transfer);
        assert!(FakeDevice::contents(&memory) == want, "round {round}");
        let other = pattern(8 << 20, 100 + round);
        source.write_at(0, &other).unwrap();
        stays_as_it_is(&memory);
    }
}

/// Runs cases that mostly wait, all at once.
fn at_once<T: Copy + Send + Sync>(cases: &[T], case: impl Fn(T) + Sync) {
    std::thread::scope(|scope| {
        for one in cases {
            scope.spawn(|| case(*one));
        }
    });
}

/// Long enough that a proxy of a busy machine sends signs of life more often.
const PATIENT_STALL: (&str, &str) = ("rail_stall_ms", "1000");
/// Several times as long as a rail may stall.
const LONGER_THAN_A_STALL: Duration = Duration::from_millis(3500);

#[test]
fn a_device_that_is_slow_at_either_end_costs_no_flow() {
    at_once(&[("shared", 0), ("shared", 1), ("tcp", 0), ("tcp", 1)], |(way, slow)| {
        let devices = [device(0), device(1)];
        let settings = [("path", way), PATIENT_STALL];
        let p = apart(&settings, &settings);
        let want = pattern(24 << 20, 5);
        let (source, _) = on(&devices[0], &p.a, &want);
        let (target, memory) = on(&devices[1], &p.b, &vec![0; want.len()]);
        let all = remote(&p.a, &target).all();
        devices[slow].hold(true);
        let transfer = p.a.write(&p.to_b, &source.all(), &all).unwrap();
        // The time that the test is about.
        std::thread::sleep(LONGER_THAN_A_STALL);
        assert!(!transfer.is_over());
        devices[slow].hold(false);
        finished(&transfer);
        assert!(FakeDevice::contents(&memory) == want);
        assert_eq!(lost_flows(&p.a), 0, "{way}, {slow}: {}", p.a.dump());
    });
}

#[test]
fn acknowledgements_that_wait_for_a_slow_device_cost_no_flow() {
    at_once(&["shared", "tcp"], |way| {
        let (here, there) = (device(0), device(1));
        let settings = [("path", way), PATIENT_STALL];
        let p = apart(&settings, &settings);
        // One flow's ring holds it all. Otherwise the cancel might wait behind chunks that the peer has no room for,
        // until its device goes on.
        let (source, _) = on(&here, &p.a, &pattern(4 << 20, 5));
        let (target, _) = on(&there, &p.b, &vec![0; 4 << 20]);
        let (near, far) = (filled(&p.a, 100, 1), zeroed(&p.b, 100));
        let all = remote(&p.a, &target).all();
        there.hold(true);
        let transfer = p.a.write(&p.to_b, &source.all(), &all).unwrap();
        wait_for("a copy to be held back", || there.is_holding());
        let is_landing = || p.b.dump().contains("transfers of the peer are landing");
        wait_for("the transfer to land", is_landing);
        // The peer may process it before the next line.
        transfer.cancel();
        wait_for("the cancel to arrive", || !is_landing());
        // From now on, any acknowledgement would mean that the transfer is over.
        let other = p.a.write(&p.to_b, &near.all(), &remote(&p.a, &far).all()).unwrap();
        // The time that the test is about.
        std::thread::sleep(LONGER_THAN_A_STALL);
        let over = (transfer.is_over(), other.is_over());
        there.hold(false);
        assert_eq!(over, (false, false), "{way}");
        finished(&other);
        assert!(matches!(transfer.ended(), Err(TransferError::Cancelled)));
        assert_eq!(lost_flows(&p.a), 0, "{way}: {}", p.a.dump());
    });
}

#[test]
fn a_device_that_never_copies_here_is_given_up_and_its_transfer_ends() {
    let (here, there) = (device(0), device(1));
    let settings = [("path", "shared"), ("rail_stall_ms", "100"), ("peer_timeout_ms", "800")];
    let p = apart(&settings, &settings);
    let (source, _) = on(&here, &p.a, &pattern(4 << 20, 5));
    let (target, _) = on(&there, &p.b, &vec![0; 4 << 20]);
    let all = remote(&p.a, &target).all();
    let request = Request::write(&p.to_b).segment(source.all(), all);
    let prepared = p.a.prepare(request.timeout(Duration::from_millis(500))).unwrap();
    here.hold(true);
    let ended = prepared.post().unwrap().ended();
    here.hold(false);
    assert!(matches!(ended, Err(TransferError::Deadline { .. })), "{ended:?}");
    finished(&prepared.post().unwrap());
}

/// A size of rings that no other test has.
const QUICK_RING: u64 = 1_331_200;
const QUICK: &[(&str, &str)] = &[
    ("peer_timeout_ms", "1200"),
    ("reconnect_max_ms", "200"),
    ("staging_bytes", "1300KiB"),
    ("gpu_chunk_bytes", "512KiB"),
];

#[test]
fn two_processes_share_memory_and_one_that_is_killed_hangs_nobody() {
    let engine = engine(QUICK);
    let mut puppet = Puppet::start(&engine, QUICK);
    let peer = engine.add_peer(&puppet.metadata).unwrap();
    let here = device(0);
    let there = puppet.device(&engine);
    let (near, memory) = on(&here, &engine, &vec![0; PUPPET_BYTES]);
    // The peer's device memory, there and back, and its host memory.
    for (round, region) in [&there, &puppet.region, &there].into_iter().enumerate() {
        let read = Request::read(&peer).segment(near.all(), region.all());
        let prepared = engine.prepare(read).unwrap();
        assert_eq!(prepared.path().kind, PathKind::Shared, "{}", prepared.path());
        finished(&prepared.post().unwrap());
        let want = match round {
            2 => pattern(PUPPET_BYTES, 3),
            _ => pattern(PUPPET_BYTES, PUPPET_SEED),
        };
        assert!(FakeDevice::contents(&memory) == want, "round {round}");
        near.write_at(0, &pattern(PUPPET_BYTES, 3)).unwrap();
        finished(&engine.write(&peer, &near.all(), &there.all()).unwrap());
    }
    assert_eq!(moved(&engine), (0, 3 * PUPPET_BYTES as u64));

    // The peer writes here, this end writes there, and the peer is killed.
    near.write_at(0, &vec![0; PUPPET_BYTES]).unwrap();
    let (other, _) = on(&here, &engine, &pattern(PUPPET_BYTES, 4));
    puppet.flood(&engine, &near);
    // Any chunk may be the last one to come.
    let written = pattern(PUPPET_BYTES, PUPPET_SEED);
    wait_for("it to write", || FakeDevice::contents(&memory) == written);
    here.hold(true);
    let request = Request::write(&peer).segment(other.all(), there.all());
    let prepared = engine.prepare(request).unwrap();
    let writes: Vec<_> = (0..20).map(|_| prepared.post().unwrap()).collect();
    wait_for("rings for both directions", || rings_mapped(QUICK_RING) >= 2);
    puppet.kill();
    here.hold(false);
    for write in writes {
        let ended = write.ended();
        assert!(matches!(ended, Ok(_) | Err(TransferError::PeerLost { .. })), "{ended:?}");
    }
    wait_for("the peer to be lost", || peer.lost().is_some());
    assert!(FakeDevice::contents(&memory) == written);
    wait_for("the rings to be let go of", || rings_mapped(QUICK_RING) == 0);
    drop((near, other));
}

/// Counts the rings of this size that this process has mapped.
fn rings_mapped(bytes: u64) -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let is_ring = |line: &&str| {
        let range = line.split(' ').next().and_then(|range| range.split_once('-')).unwrap();
        let [begin, end] = [range.0, range.1].map(|at| u64::from_str_radix(at, 16).unwrap());
        // A page stands before the bytes.
        line.contains("/memfd:polyrail") && end - begin == bytes + 4096
    };
    maps.lines().filter(is_ring).count()
}

#[test]
fn rings_of_a_peer_that_is_gone_are_kept_by_nobody() {
    // A size that no other test has.
    const RING: u64 = 1_228_800;
    let (here, there) = (device(0), device(1));
    let settings = [("staging_bytes", "1200KiB"), ("gpu_chunk_bytes", "64KiB")];
    let p = apart(&settings, &settings);
    let (source, _) = on(&here, &p.a, &pattern(1 << 20, 1));
    let (target, _) = on(&there, &p.b, &vec![0; 1 << 20]);
    assert_eq!(write(&p, &source, &remote(&p.a, &target)), Ok(PathKind::Shared));
    assert!(rings_mapped(RING) >= 2, "at both ends");
    drop((source, p.to_b, p.a));
    wait_for("the rings to be let go of", || rings_mapped(RING) == 0);
    drop(target);
}

#[test]
fn a_ring_that_is_still_copied_to_when_its_flow_goes_is_kept_no_longer_than_that() {
    // A size that no other test has.
    const RING: u64 = 1_126_400;
    let (here, there) = (device(0), device(1));
    let settings = [("staging_bytes", "1100KiB"), ("gpu_chunk_bytes", "64KiB")];
    let Pair { a, b, to_b, to_a } = apart(&settings, &settings);
    let (source, _) = on(&here, &a, &pattern(1 << 20, 1));
    let (target, _) = on(&there, &b, &vec![0; 1 << 20]);
    here.hold(true);
    let transfer = a.write(&to_b, &source.all(), &remote(&a, &target).all()).unwrap();
    wait_for("a copy to begin", || rings_mapped(RING) > 0);
    drop((target, to_a, b));
    wait_for("the peer to be lost", || to_b.lost().is_some());
    // Time in which the ring could be freed too early.
    std::thread::sleep(Duration::from_millis(50));
    assert!(rings_mapped(RING) > 0, "the device is about to copy to it");
    here.hold(false);
    // No other event here would trigger a check.
    wait_for("the ring to be let go of", || rings_mapped(RING) == 0);
    transfer.ended().unwrap_err();
    drop(source);
}
