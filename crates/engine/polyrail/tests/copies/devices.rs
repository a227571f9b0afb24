//! Memory of devices that is staged through pinned memory, over rails or through memory that both ends have open. The
//! device copies late, out of order between its queues, and fails on request of a test.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::shared::{self, moved};
use crate::common::devices::{
    device, lone_device, on, stays_as_it_is, waits_for_copies, write_scattered,
};
use crate::common::relay::{Cut, RelayedPair};
use crate::common::*;
use polyrail::{
    DeviceMemory, Engine, Memory, PathKind, PreparedTransfer, RefusalCode, Region, Request,
    Transfer, TransferError,
};
use polyrail_gpu::fake::FakeDevice;

/// Both engines are in one process, where devices would copy from end to end.
const TCP: (&str, &str) = ("path", "tcp");

/// A path of devices' payload through pinned memory.
#[derive(Clone, Copy)]
struct Way {
    kind: PathKind,
    device: fn(u32) -> Arc<FakeDevice>,
    engines: fn(&[Setting]) -> Pair,
    modes: [&'static [Setting]; 5],
    /// Settings of the case in which rails are cut.
    cut: &'static [Setting],
}

type Setting = (&'static str, &'static str);

const RAILS: Way = Way {
    kind: PathKind::Tcp,
    device,
    engines: pair,
    modes: [
        &[TCP],
        &[TCP, ("proxy_layout", "merged"), ("channels", "8"), ("sockets", "2")],
        &[TCP, ("payload", "crc32c"), ("gpu_chunk_bytes", "64KiB"), ("window_chunks", "2")],
        // A ring of one chunk: everything waits for room.
        &[TCP, ("staging_bytes", "64KiB"), ("gpu_chunk_bytes", "64KiB")],
        &[TCP, ("staging_bytes", "64KiB"), ("gpu_chunk_bytes", "100KiB"), ("payload", "crc32c")],
    ],
    cut: &[TCP, ("gpu_chunk_bytes", "64KiB"), ("payload", "crc32c")],
};

const SHARED: Way = Way {
    kind: PathKind::Shared,
    device: lone_device,
    engines: |settings| apart(settings, settings),
    modes: shared::MODES,
    cut: &[("path", "shared"), ("gpu_chunk_bytes", "64KiB"), ("chunk_bytes", "64KiB")],
};

impl Way {
    fn devices(&self) -> [Arc<FakeDevice>; 2] {
        [0, 1].map(self.device)
    }

    /// Writes, and checks that this path is taken.
    fn write(&self, p: &Pair, from: &Region, to: &Region) -> Result<u64, TransferError> {
        let request = Request::write(&p.to_b).segment(from.all(), remote(&p.a, to).all());
        let prepared = p.a.prepare(request).unwrap();
        assert_eq!(prepared.path().kind, self.kind, "{}", prepared.path());
        prepared.post().unwrap().ended().map(|outcome| outcome.bytes)
    }

    /// Asserts that this path carried all that the engine sent, and nothing else did.
    fn carried(&self, engine: &Engine, bytes: u64) {
        wait_for("the count", || match self.kind {
            // Rails of a busy machine stall, and then carry chunks again.
            PathKind::Tcp => moved(engine).0 >= bytes,
            _ => moved(engine).1 == bytes,
        });
        let other = if self.kind == PathKind::Tcp { moved(engine).1 } else { moved(engine).0 };
        assert_eq!(other, 0);
    }
}

fn each_mode(test: impl Fn(&Way, &Pair, &str)) {
    for way in [RAILS, SHARED] {
        for mode in way.modes {
            test(&way, &(way.engines)(mode), &format!("{:?}, {mode:?}", way.kind));
        }
    }
}

fn write(p: &Pair, from: &Region, to: &Region) -> Result<u64, TransferError> {
    let transfer = p.a.write(&p.to_b, &from.all(), &remote(&p.a, to).all()).unwrap();
    transfer.ended().map(|outcome| outcome.bytes)
}

#[test]
fn a_write_arrives_byte_exact_in_any_size() {
    each_mode(|way, p, mode| {
        let [here, there] = way.devices();
        let mut sum = 0;
        for len in [0, 1, 8, 511, 513, 65_537, 1_000_003, 16 << 20] {
            let want = pattern(len, 7);
            let (source, _) = on(&here, &p.a, &want);
            let (target, memory) = on(&there, &p.b, &vec![0; len]);
            assert_eq!(way.write(p, &source, &target), Ok(len as u64));
            assert!(FakeDevice::contents(&memory) == want, "{len} bytes, {mode}");
            sum += len as u64;
        }
        way.carried(&p.a, sum);
        if way.kind == PathKind::Shared {
            assert_eq!(lost_flows(&p.a), 0, "{mode}");
            assert!(p.a.dump().contains("shared memory: works; 17"), "{}", p.a.dump());
        }
    });
}

#[test]
fn the_host_may_be_at_either_end() {
    each_mode(|way, p, mode| {
        let device = (way.device)(0);
        let len = 3_000_001;
        let want = pattern(len, 5);
        let (first, last) = (filled(&p.a, len, 5), zeroed(&p.b, len));
        let (middle_b, memory) = on(&device, &p.b, &vec![0; len]);
        assert_eq!(way.write(p, &first, &middle_b), Ok(len as u64));
        assert!(FakeDevice::contents(&memory) == want, "{mode}");
        let (middle_a, _) = on(&device, &p.a, &want);
        assert_eq!(way.write(p, &middle_a, &last), Ok(len as u64));
        assert!(bytes(&last) == want, "{mode}");
        way.carried(&p.a, 2 * len as u64);
    });
}

#[test]
fn a_read_and_a_message_of_device_memory_arrive_byte_exact() {
    each_mode(|way, p, mode| {
        let [here, there] = way.devices();
        let len = 2_000_003;
        let (want, zeros) = (pattern(len, 9), vec![0; len]);
        let (source, _) = on(&there, &p.b, &want);
        let (target, memory) = on(&here, &p.a, &zeros);
        let request = Request::read(&p.to_b).segment(target.all(), remote(&p.a, &source).all());
        let read = p.a.prepare(request).unwrap();
        let (inbox, inbox_memory) = on(&here, &p.a, &zeros);
        let receive = p.a.receive(&p.to_b, 3, &inbox.all()).unwrap();
        let send = p.b.prepare(Request::send(&p.to_a, 3).local(source.all())).unwrap();
        for (prepared, memory, count) in [(read, memory, 1), (send, inbox_memory, 2)] {
            assert_eq!(prepared.path().kind, way.kind, "{}", prepared.path());
            finished(&prepared.post().unwrap());
            if count == 2 {
                finished(&receive);
            }
            assert!(FakeDevice::contents(&memory) == want, "{mode}");
            way.carried(&p.b, count * len as u64);
        }
    });
}

#[test]
fn one_chunk_may_have_places_on_several_devices_and_the_host() {
    for way in [RAILS, SHARED] {
        for mode in way.modes {
            let (path, name) = match way.kind {
                PathKind::Tcp => (TCP, "tcp"),
                _ => (("path", "shared"), "shared memory"),
            };
            let p = (way.engines)(&[mode, &[path]].concat());
            let said = write_scattered(&p, &way.devices());
            assert_eq!(said, format!("{name}: the setting path says so"));
        }
    }
}

#[test]
fn rails_that_are_cut_while_devices_copy_lose_no_byte() {
    for way in [RAILS, SHARED] {
        let [here, there] = way.devices();
        let p = RelayedPair::new(way.cut);
        for round in 0..8 {
            let want = pattern(24 << 20, round);
            let (source, _) = on(&here, &p.a, &want);
            let (target, memory) = on(&there, &p.b, &vec![0; want.len()]);
            let all = remote(&p.a, &target).all();
            let prepared = p.a.prepare(Request::write(&p.to_b).segment(source.all(), all)).unwrap();
            assert_eq!(prepared.path().kind, way.kind, "{}", prepared.path());
            let before = sent_bytes(&p.a);
            let transfer = prepared.post().unwrap();
            wait_for("chunks to be under way", || sent_bytes(&p.a) > before);
            let how = if round % 2 == 0 { Cut::Reset } else { Cut::Finish };
            p.ways_to_b[round as usize % 4].cut(how);
            assert_eq!(transfer.ended().unwrap().bytes, want.len() as u64);
            assert!(FakeDevice::contents(&memory) == want, "round {round}");
        }
        assert!(lost_flows(&p.a) > 0 && p.resent() > 0, "nothing was cut in the middle");
    }
}

#[test]
fn a_device_that_fails_fails_the_transfer_and_not_the_engine() {
    let cases = [RAILS, SHARED].into_iter().flat_map(|way| {
        [(0, false), (0, true), (1, false), (1, true)].map(|(broken, host)| (way, broken, host))
    });
    for (way, broken, is_other_host) in cases {
        let devices = way.devices();
        let p = (way.engines)(way.modes[0]);
        let want = pattern(8 << 20, 1);
        let end = |at: usize, engine: &Engine, bytes: &[u8]| match is_other_host && at != broken {
            true => engine.register(Memory::from(bytes.to_vec())).unwrap(),
            false => on(&devices[at], engine, bytes).0,
        };
        let (source, target) = (end(0, &p.a, &want), end(1, &p.b, &vec![0; want.len()]));
        devices[broken].fail_after(2);
        match (broken, way.write(&p, &source, &target)) {
            (0, Err(TransferError::Device { why })) => {
                assert!(why.contains("FAKE_COPY_F"), "{why}")
            }
            (1, Err(TransferError::Refused { code: RefusalCode::Device, .. })) => {}
            (_, other) => panic!("{other:?}"),
        }
        assert_eq!(way.write(&p, &source, &target), Ok(8 << 20));
        assert!(bytes(&target) == want);
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Write,
    Read,
    Receive,
}

/// A transfer that lands on a device which holds back its copies.
struct Held {
    /// The engines that carry the transfer.
    _p: Pair,
    device: Arc<FakeDevice>,
    memory: DeviceMemory,
    source: Option<Region>,
    target: Option<Region>,
    transfer: Transfer,
    /// The write, to be posted again.
    prepared: Option<PreparedTransfer>,
    /// The send that matches a receive.
    send: Option<Transfer>,
}

/// More than fits in a ring, so the sender still has chunks when a transfer is cancelled.
const HELD_BYTES: usize = 16 << 20;

impl Held {
    fn begin(way: &Way, kind: Kind) -> Self {
        let p = (way.engines)(way.modes[0]);
        let [near, device] = way.devices();
        let want = pattern(HELD_BYTES, 2);
        let (from, to) = if kind == Kind::Read { (&p.b, &p.a) } else { (&p.a, &p.b) };
        let (source, _) = on(&near, from, &want);
        let (target, memory) = on(&device, to, &vec![0; want.len()]);
        let far = remote(&p.a, if kind == Kind::Read { &source } else { &target });
        let shared = || moved(from).1;
        if (way.kind, kind) == (PathKind::Shared, Kind::Receive) {
            // The sender learns from the first receives where the memory is.
            wait_for("a message through shared memory", || {
                let receive = p.b.receive(&p.to_a, 2, &target.all()).unwrap();
                finished(&p.a.send(&p.to_b, 2, &source.all()).unwrap());
                finished(&receive);
                shared() > 0
            });
        }
        let before = shared();
        let request = Request::write(&p.to_b).segment(source.all(), far.all());
        let prepared = (kind == Kind::Write).then(|| p.a.prepare(request).unwrap());
        device.hold(true);
        let transfer = match kind {
            Kind::Write => prepared.as_ref().unwrap().post(),
            Kind::Read => p.a.read(&p.to_b, &target.all(), &far.all()),
            Kind::Receive => p.b.receive(&p.to_a, 1, &target.all()),
        };
        let is_receive = kind == Kind::Receive;
        let send = is_receive.then(|| p.a.send(&p.to_b, 1, &source.all()).unwrap());
        wait_for("a copy to be held back", || device.is_holding());
        if way.kind == PathKind::Shared {
            wait_for("a chunk in shared memory", || shared() > before);
        }
        let (source, target) = (Some(source), Some(target));
        Self { _p: p, device, memory, source, target, transfer: transfer.unwrap(), prepared, send }
    }
}

type HeldCase = (Kind, fn(&mut Held), &'static str);

/// Names of the allowed ends of the transfer. Where a region ends, all of the transfer may have landed.
const HELD: [HeldCase; 5] = [
    (Kind::Write, |it| it.transfer.cancel(), "Cancelled"),
    (Kind::Receive, |it| it.transfer.cancel(), "Cancelled"),
    (Kind::Receive, |it| it.send.as_ref().unwrap().cancel(), "SendFailed"),
    (Kind::Write, |it| it.target = None, "Ok Refused"),
    (Kind::Read, |it| it.source = None, "Ok Refused"),
];

#[test]
fn a_transfer_is_over_only_when_the_device_is_done_with_it() {
    for (way, (kind, end, words)) in
        [RAILS, SHARED].into_iter().flat_map(|way| HELD.map(|it| (way, it)))
    {
        let mut it = Held::begin(&way, kind);
        let device = it.device.clone();
        waits_for_copies(&device, || {
            end(&mut it);
            // The end of the region that a device copies to waits by itself.
            if it.target.is_some() {
                let _ = it.transfer.ended();
            }
        });
        let ended = it.transfer.ended().map_or_else(|error| error.variant(), |_| "Ok");
        assert!(words.split(' ').any(|word| ended == word), "{words}: {ended}");
        stays_as_it_is(&it.memory);
        assert!(it.send.is_none_or(|send| send.ended().is_err()));
        if let (Some(prepared), Some(_)) = (it.prepared, it.target) {
            finished(&prepared.post().unwrap());
            assert!(FakeDevice::contents(&it.memory) == pattern(HELD_BYTES, 2));
        }
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
    // The end of a region would make queues drop their references to rings, too.
    let ends = [1, 768 << 10, 3 << 20].map(|len| {
        (on(&here, &p.a, &pattern(len, 1)).0, on(&there, &p.b, &vec![0; len]), pattern(len, 1))
    });
    for (source, (target, memory), want) in &ends {
        assert_eq!(write(&p, source, target), Ok(want.len() as u64));
        assert!(FakeDevice::contents(memory) == *want);
    }
}
