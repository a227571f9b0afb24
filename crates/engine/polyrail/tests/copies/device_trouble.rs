//! Memory of devices when things go wrong, or go both ways at once: with a device that copies late and holds copies
//! back on request of a test.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::common::devices::{device, lone_device, on, waits_for_copies};
use crate::common::*;
use polyrail::{
    Engine, Observer, OnEnd, PathKind, Peer, Region, RemoteRegion, Request, Transfer,
    TransferError, TransferPath,
};
use polyrail_gpu::Device;
use polyrail_gpu::fake::FakeDevice;

/// Two engines of which one connects: data goes both ways on each connection.
fn duplex(settings: &[(&str, &str)]) -> Pair {
    let (a, b) = (engine(settings), engine(settings));
    let to_b = a.add_peer(&b.metadata()).unwrap();
    let to_a = b.accept_peer(LONG).unwrap();
    wait_for("flows both ways", || {
        a.progress();
        b.progress();
        to_a.flows().are_all_up()
    });
    Pair { a, b, to_b, to_a }
}

#[test]
fn both_directions_of_one_connection_carry_device_memory_byte_exact() {
    // Sockets that accept less than is ready to be sent.
    let settings = [
        ("path", "tcp"),
        ("progress", "caller"),
        ("rails", "127.0.0.1"),
        ("channels", "1"),
        ("socket_buffer_bytes", "64KiB"),
    ];
    for chunk in ["4KiB", "64KiB", "1MiB"] {
        let p = duplex(&[&settings[..], &[("gpu_chunk_bytes", chunk)]].concat());
        let devices = [device(0), device(1)];
        let len = 3_000_001;
        let over = [AtomicBool::new(false), AtomicBool::new(false)];
        let go = |from: &Engine, to: &Engine, peer, here: usize| {
            let _tell = TellOnDrop(&over[here]);
            for round in 0..4 {
                let want = pattern(len, round + 10 * here as u64);
                let (source, _) = on(&devices[here], from, &want);
                let (target, memory) = on(&devices[1 - here], to, &vec![0; len]);
                let all = remote(from, &target).all();
                finished(&from.write(peer, &source.all(), &all).unwrap());
                assert!(FakeDevice::contents(&memory) == want, "round {round}, {chunk}");
            }
        };
        let drive = |engine: &Engine, other: usize| {
            while !over[other].load(Ordering::Relaxed) {
                engine.progress();
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                go(&p.a, &p.b, &p.to_b, 0);
                drive(&p.a, 1);
            });
            go(&p.b, &p.a, &p.to_a, 1);
            drive(&p.b, 0);
        });
        for engine in [&p.a, &p.b] {
            let rails = engine.stats().peers.into_iter().flat_map(|peer| peer.rails);
            assert_eq!(rails.map(|rail| rail.down_count).sum::<u64>(), 0, "a flow was lost");
        }
    }
}

#[test]
fn acknowledgements_behind_a_chunk_that_waits_for_room_are_heard() {
    let settings = [
        ("path", "tcp"),
        ("progress", "caller"),
        ("rails", "127.0.0.1"),
        ("channels", "1"),
        ("gpu_chunk_bytes", "64KiB"),
        ("staging_bytes", "64KiB"),
        ("window_chunks", "1024"),
        ("rail_stall_ms", "20000"),
        ("peer_timeout_ms", "60000"),
    ];
    let p = duplex(&settings);
    let there = device(0);
    let (count, len) = (300, 200);
    let want = pattern(count * len, 1);
    let source = filled(&p.a, want.len(), 1);
    let (target, memory) = on(&there, &p.b, &vec![0; want.len()]);
    let all = remote(&p.a, &target);
    let (near, far) = (filled(&p.b, 100, 2), zeroed(&p.a, 100));
    for _ in 0..10 {
        there.hold(true);
        let back = p.b.write(&p.to_a, &near.all(), &remote(&p.b, &far).all()).unwrap();
        // The first 256 fill the ring, one waits for room, and behind it comes the acknowledgement of data in the other
        // direction.
        let writes = (0..count as u64).map(|i| {
            let (at, len) = (i * len as u64, len as u64);
            p.a.write(&p.to_b, &source.slice(at, len).unwrap(), &all.slice(at, len).unwrap())
        });
        let mut transfers: Vec<_> = writes.collect::<Result<_, _>>().unwrap();
        transfers.push(back);
        for engine in [&p.a, &p.b] {
            for _ in 0..20 {
                engine.progress();
                // The other engine's bytes arrive in between.
                std::thread::sleep(Duration::from_micros(100));
            }
        }
        there.hold(false);
        wait_for("all of them", || {
            p.a.progress();
            p.b.progress();
            transfers.iter().all(|transfer| transfer.is_over())
        });
        transfers.iter().for_each(finished);
    }
    assert!(FakeDevice::contents(&memory) == want);
}

/// Counts the ends.
#[derive(Default)]
struct Ends(AtomicU64);

impl OnEnd for Ends {
    fn ended(&self, _token: u64, _result: &Result<polyrail::Outcome, TransferError>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// Posts a write that devices copy from end to end, with and without a notification, which reports to `ends`.
fn direct_writes(p: &Pair, device: &Arc<FakeDevice>, ends: &Arc<Ends>) -> [Transfer; 2] {
    let (source, _) = on(device, &p.a, &[3; 1000]);
    let (target, _) = on(device, &p.b, &[0; 1000]);
    let all = remote(&p.a, &target).all();
    let plain = Request::write(&p.to_b).segment(source.all(), all).tell(ends.clone(), 1);
    let transfers = [plain.clone(), plain.notification(b"there".to_vec())].map(|request| {
        let prepared = p.a.prepare(request).unwrap();
        assert_eq!(prepared.path().kind, PathKind::PeerCopy, "{}", prepared.path());
        prepared.post().unwrap()
    });
    // The regions may end once the copies are done.
    std::thread::spawn(move || drop((source, target)));
    transfers
}

#[test]
fn a_peer_that_is_lost_while_a_device_copies_to_it_ends_the_notification() {
    let device = device(0);
    for mode in [&[][..], &[("progress", "caller")]] {
        let (p, ends) = (pair(mode), Arc::new(Ends::default()));
        device.hold(true);
        let [plain, notifying] = direct_writes(&p, &device, &ends);
        p.a.remove_peer(&p.to_b);
        assert!(!plain.is_over(), "a device is about to write there");
        device.hold(false);
        finished(&plain);
        let ended = notifying.wait(LONG).expect("it ends in time");
        assert!(matches!(ended, Err(TransferError::PeerLost { .. })), "{ended:?}, {mode:?}");
        assert!(p.a.drain(LONG).is_some() && ends.0.load(Ordering::SeqCst) == 2);
    }
}

#[test]
fn an_engine_that_closes_sees_the_copies_of_devices_through() {
    let device = device(0);
    for mode in [&[][..], &[("progress", "caller")]] {
        let (p, ends) = (pair(mode), Arc::new(Ends::default()));
        device.hold(true);
        let [plain, notifying] = direct_writes(&p, &device, &ends);
        let Pair { a, b, to_b, to_a } = p;
        waits_for_copies(&device, || drop(a));
        assert_eq!(ends.0.load(Ordering::SeqCst), 2, "{mode:?}");
        assert!(matches!(plain.try_wait(), Some(Ok(_))), "{mode:?}");
        let ended = notifying.ended();
        assert!(matches!(ended, Err(TransferError::PeerLost { .. })), "{ended:?}, {mode:?}");
        drop((b, to_b, to_a));
    }
}

/// Makes two engines that treat each other as another process's; the first one has an observer.
fn apart(settings: &[(&str, &str)], observer: Option<Arc<dyn Observer>>) -> Pair {
    let build = |observer: Option<Arc<dyn Observer>>| {
        let builder = builder().config(config(settings)).apart();
        let builder = match observer {
            Some(observer) => builder.observer(observer),
            None => builder,
        };
        builder.build().unwrap()
    };
    let (a, b) = (build(observer), build(None));
    let to_b = a.add_peer(&b.metadata()).unwrap();
    let to_a = b.add_peer(&a.metadata()).unwrap();
    Pair { a, b, to_b, to_a }
}

/// Returns the path of a write to a region of the peer.
fn path_to(p: &Pair, source: &Region, target: &RemoteRegion) -> TransferPath {
    let write = Request::write(&p.to_b).segment(source.all(), target.all());
    p.a.prepare(write).unwrap().path().clone()
}

/// Runs a closure when it is notified, and measures how long that took.
#[derive(Default)]
struct Doer {
    what: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    took: Mutex<Option<Duration>>,
}

impl Observer for Doer {
    fn notified(&self, _peer: &Peer, _data: Vec<u8>) -> Option<Vec<u8>> {
        let begin = Instant::now();
        let what = self.what.lock().unwrap().take();
        what.unwrap()();
        *self.took.lock().unwrap() = Some(begin.elapsed());
        None
    }
}

impl Doer {
    /// Runs a closure on the proxy of `p.a` that takes the notification.
    fn on_a_proxy(&self, p: &Pair, what: impl FnOnce() + Send + 'static) {
        *self.what.lock().unwrap() = Some(Box::new(what));
        p.b.notify(&p.to_a, b"now").unwrap().detach();
        wait_for("the callback", || self.took.lock().unwrap().is_some());
        let took = self.took.lock().unwrap().take().unwrap();
        assert!(took < UNWAITED, "a callback waited for {took:?}");
    }
}

/// Far less than the times in `PATIENT`, after which a waiting call gives up.
const UNWAITED: Duration = Duration::from_secs(10);

const PATIENT: [(&str, &str); 2] = [("connect_timeout_ms", "30000"), ("peer_timeout_ms", "60000")];

const ONE_PROXY: [(&str, &str); 5] =
    [("proxy_layout", "merged"), ("rails", "127.0.0.1"), ("channels", "1"), PATIENT[0], PATIENT[1]];

#[test]
fn a_callback_that_asks_for_a_peers_region_is_not_kept_waiting() {
    let (here, doer) = (device(0), Arc::new(Doer::default()));
    let p = apart(&ONE_PROXY, Some(doer.clone()));
    let (source, _) = on(&here, &p.a, &[1; 64]);
    let (target, _) = on(&here, &p.b, &[0; 64]);
    let there = remote(&p.a, &target);
    let write = Request::write(&p.to_b).segment(source.all(), there.all());
    let (a, found) = (p.a.clone(), Arc::new(Mutex::new(None)));
    let theirs = found.clone();
    doer.on_a_proxy(&p, move || {
        *theirs.lock().unwrap() = Some(a.prepare(write).unwrap().path().to_string());
    });
    let found = found.lock().unwrap().take().unwrap();
    assert!(found.contains("callbacks don't wait"), "{found}");
    // But the question was sent.
    wait_for("the answer", || path_to(&p, &source, &there).kind == PathKind::PeerCopy);
}

#[test]
fn a_callback_that_drops_an_offered_region_is_not_kept_waiting_and_its_memory_is() {
    let (here, doer) = (device(0), Arc::new(Doer::default()));
    let p = apart(&ONE_PROXY, Some(doer.clone()));
    let (source, _) = on(&here, &p.b, &[1; 64]);
    let memory = here.memory(&[0; 64]);
    let export = here.export(&memory).unwrap();
    let target = p.a.register(memory).unwrap();
    let there = remote(&p.b, &target);
    let write = Request::write(&p.to_a).segment(source.all(), there.all());
    let prepared = p.b.prepare(write).unwrap();
    assert_eq!(prepared.path().kind, PathKind::PeerCopy, "{}", prepared.path());
    here.hold(true);
    let transfer = prepared.post().unwrap();
    let dropped = target.clone();
    drop(target);
    doer.on_a_proxy(&p, move || drop(dropped));
    here.clone().import(&export).unwrap();
    here.hold(false);
    finished(&transfer);
    // The callback did not wait for the peer to learn of the end; until it does, its writes go to memory that is kept
    // for it.
    wait_for("the peer to hear of it", || {
        let posted = prepared.post().unwrap().ended();
        assert!(matches!(posted, Ok(_) | Err(TransferError::Refused { .. })), "{posted:?}");
        posted.is_err()
    });
}

#[test]
fn whoever_ends_a_region_second_waits_as_long_as_the_first() {
    let here = device(0);
    for p in [pair(&[]), apart(&[], None)] {
        let (source, _) = on(&here, &p.a, &[1; 64]);
        let (target, _) = on(&here, &p.b, &[0; 64]);
        here.hold(true);
        let write = p.a.write(&p.to_b, &source.all(), &remote(&p.a, &target).all()).unwrap();
        let released = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    target.end();
                    assert!(released.load(Ordering::SeqCst), "a device was about to write there");
                });
                // The first waits when the second comes, and both wait for long enough to fail.
                std::thread::sleep(Duration::from_millis(50));
            }
            released.store(true, Ordering::SeqCst);
            here.hold(false);
        });
        finished(&write);
    }
}

#[test]
fn nobody_waits_for_a_region_of_a_peer_that_is_gone() {
    let here = device(0);
    let p = apart(&PATIENT, None);
    let (source, _) = on(&here, &p.a, &[1; 64]);
    let (target, _) = on(&here, &p.b, &[0; 64]);
    let there = remote(&p.a, &target);
    p.a.remove_peer(&p.to_b);
    let begin = Instant::now();
    assert_eq!(path_to(&p, &source, &there).kind, PathKind::Tcp);
    assert!(begin.elapsed() < UNWAITED, "{:?}", begin.elapsed());
}

#[test]
fn memory_of_a_region_that_has_ended_is_kept_by_nobody() {
    let here = device(0);
    for mode in [&[][..], &[("path", "tcp")]] {
        let p = pair(mode);
        let (source, memory) = on(&here, &p.a, &[1; 64]);
        let (target, _) = on(&here, &p.b, &[0; 64]);
        let export = here.export(&memory).unwrap();
        drop(memory);
        finished(&p.a.write(&p.to_b, &source.all(), &remote(&p.a, &target).all()).unwrap());
        here.clone().import(&export).unwrap();
        drop(source);
        wait_for("it to be freed", || here.clone().import(&export).is_err());
    }
}

/// An observer that is busy with a notification until it may go on.
#[derive(Default)]
struct Busy {
    may_go_on: Mutex<()>,
    is_busy: AtomicBool,
}

impl Observer for Busy {
    fn notified(&self, _: &Peer, bytes: Vec<u8>) -> Option<Vec<u8>> {
        self.is_busy.store(true, Ordering::SeqCst);
        drop(self.may_go_on.lock().unwrap());
        Some(bytes)
    }
}

#[test]
fn what_came_behind_a_copy_that_was_late_goes_on_with_it() {
    let device = lone_device(1);
    let settings = [
        ("path", "tcp"),
        ("rails", "127.0.0.1"),
        ("channels", "1"),
        ("window_chunks", "1024"),
        ("staging_bytes", "64KiB"),
        ("gpu_chunk_bytes", "64KiB"),
        // Stalled data would be sent again after that.
        ("rail_stall_ms", "20000"),
        ("peer_timeout_ms", "60000"),
    ];
    let busy = Arc::new(Busy::default());
    let p = apart(&settings, Some(busy.clone()));
    let source = filled(&p.b, 64 << 10, 1);
    let (target, _) = on(&device, &p.a, &vec![0; 64 << 10]);
    let there = remote(&p.b, &target);
    let write = |from: u64, len: u64| {
        let (here, there) = (source.slice(from, len).unwrap(), there.slice(from, len).unwrap());
        p.b.write(&p.to_a, &here, &there).unwrap()
    };
    // The ring is as large as a chunk from now on.
    write(0, 64 << 10).ended().unwrap();
    device.hold(true);
    let first = write(0, 64 << 10);
    wait_for("a copy to be held back", || device.is_holding());
    // So all that follows comes with one call, and waits for the ring: more chunks than one batch.
    let guard = busy.may_go_on.lock().unwrap();
    let note = p.b.notify(&p.to_a, b"stop").unwrap();
    wait_for("the progress thread to be busy", || busy.is_busy.load(Ordering::SeqCst));
    let sent = || p.b.stats().peers[0].rails[0].tx_bytes;
    let before = sent();
    let small: Vec<Transfer> = (0..200).map(|at| write(8 * at, 8)).collect();
    wait_for("all to be sent", || sent() == before + 1600);
    drop(guard);
    device.hold(false);
    let began = Instant::now();
    first.ended().unwrap();
    for write in small.iter().chain([&note]) {
        write.ended().unwrap();
    }
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
}
