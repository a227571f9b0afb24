//! Short transfers between a device's memory here and host memory of another process: the device copies to
//! or from pinned memory, and CPUs of this process copy between that and the other one.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use super::{ON, QUICK};
use crate::common::devices::{device, on, stays_as_it_is, waits_for_copies};
use crate::common::puppet::{PUPPET_BYTES, PUPPET_SEED, Puppet};
use crate::common::*;
use polyrail::{
    Engine, PathKind, PathObstacle, Peer, PreparedTransfer, RefusalCode, Region, RemoteSlice,
    Request, TransferError,
};
use polyrail_gpu::fake::FakeDevice;

const MOST: usize = 256 << 10;

/// A puppet process with host memory, and this one's engine and device.
struct Two {
    engine: Engine,
    device: Arc<FakeDevice>,
    puppet: Puppet,
    peer: Peer,
}

impl Two {
    /// Waits until the puppet has answered how its memory is reached: on a busy machine that takes longer than a
    /// request waits.
    fn start(here: &[(&str, &str)], there: &[(&str, &str)]) -> Self {
        let engine = engine(here);
        let puppet = Puppet::start(&engine, there);
        let peer = engine.add_peer(&puppet.metadata).unwrap();
        let two = Self { engine, device: device(0), puppet, peer };
        let (region, _) = on(&two.device, &two.engine, &[0; 8]);
        wait_for("the answer", || {
            let path = two.read(&region, two.there(0, 8)).path().clone();
            !path.not_possible().iter().any(|(_, why)| why.to_string().contains("answer"))
        });
        two
    }

    fn there(&self, at: usize, len: usize) -> RemoteSlice {
        self.puppet.region.slice(at as u64, len as u64).unwrap()
    }

    fn write(&self, from: &Region, to: RemoteSlice) -> PreparedTransfer {
        self.engine.prepare(Request::write(&self.peer).segment(from.all(), to)).unwrap()
    }

    fn read(&self, to: &Region, from: RemoteSlice) -> PreparedTransfer {
        self.engine.prepare(Request::read(&self.peer).segment(to.all(), from)).unwrap()
    }

    /// Returns the puppet's bytes, read to host memory.
    fn holds(&self, at: usize, len: usize) -> Vec<u8> {
        let room = zeroed(&self.engine, len);
        finished(&self.engine.read(&self.peer, &room.all(), &self.there(at, len)).unwrap());
        bytes(&room)
    }

    /// Returns the payload that rails carried, also in shared memory.
    fn by_rails(&self) -> u64 {
        let stats = self.engine.stats();
        let shared: u64 = stats.peers.iter().map(|peer| peer.shared_bytes).sum();
        stats.totals.tx_bytes + stats.totals.rx_bytes + shared
    }
}

fn is_staged(prepared: &PreparedTransfer) -> bool {
    let said = prepared.path().to_string();
    prepared.path().kind == PathKind::SingleCopy && said.contains("fake device")
}

#[test]
fn bytes_of_any_size_arrive_both_ways_and_nothing_else_carries_them() {
    let two = Two::start(ON, ON);
    let before = two.by_rails();
    for (round, len) in [1, 8, 4097, 65_537, 250_003, MOST].into_iter().enumerate() {
        let want = pattern(len, round as u64);
        let (source, _) = on(&two.device, &two.engine, &want);
        let write = two.write(&source, two.there(round, len));
        assert!(is_staged(&write), "{}", write.path());
        let not_possible = write.path().not_possible();
        assert_eq!(not_possible[0].0, PathKind::PeerCopy);
        assert_eq!(not_possible[0].1, PathObstacle::FarHostMemory);
        let text = not_possible[0].1.to_string();
        assert_eq!(text, "the other end is another process's host memory");
        assert_eq!(write.post().unwrap().ended().unwrap().bytes, len as u64);
        let (target, memory) = on(&two.device, &two.engine, &vec![0; len]);
        let read = two.read(&target, two.there(round, len));
        assert!(is_staged(&read), "{}", read.path());
        finished(&read.post().unwrap());
        assert!(FakeDevice::contents(&memory) == want, "{len} bytes");
    }
    assert_eq!(two.by_rails(), before);
    // Nothing was written outside of the target.
    let last = 5 + MOST;
    assert!(two.holds(last, 1000) == pattern(PUPPET_BYTES, PUPPET_SEED)[last..last + 1000]);
}

#[test]
fn pieces_land_each_in_its_place_and_a_notification_comes_after_them() {
    let mut two = Two::start(ON, ON);
    let (count, len) = (256, 1019);
    let want = pattern(count * len, 4);
    let (source, _) = on(&two.device, &two.engine, &want);
    let (target, memory) = on(&two.device, &two.engine, &vec![0; want.len()]);
    let place = |i: usize| (count - 1 - i) * 4096 + i % 7;
    let pairs = |region: &Region| -> Vec<_> {
        let slice = |i: usize| region.slice((i * len) as u64, len as u64).unwrap();
        (0..count).map(|i| (slice(i), two.there(place(i), len))).collect()
    };
    let write = Request::write(&two.peer).segments(pairs(&source));
    let write = two.engine.prepare(write).unwrap();
    assert!(is_staged(&write), "{}", write.path());
    finished(&write.post().unwrap());
    let read = two.engine.prepare(Request::read(&two.peer).segments(pairs(&target))).unwrap();
    assert!(is_staged(&read), "{}", read.path());
    finished(&read.post().unwrap());
    assert!(FakeDevice::contents(&memory) == want);
    // With one more piece, another path is better.
    let one_more = pairs(&source).into_iter().chain(pairs(&source).pop());
    let many = two.engine.prepare(Request::write(&two.peer).segments(one_more)).unwrap();
    assert_eq!(many.path().kind, PathKind::Shared, "{}", many.path());
    // The puppet compares all of its region when it gets the notification of the last part.
    for at in (0..PUPPET_BYTES).step_by(MOST) {
        let (source, _) = on(&two.device, &two.engine, &pattern(PUPPET_BYTES, 5)[at..at + MOST]);
        let write = Request::write(&two.peer).segment(source.all(), two.there(at, MOST));
        let write = match at + MOST == PUPPET_BYTES {
            true => write.notification(b"all".to_vec()),
            false => write,
        };
        let write = two.engine.prepare(write).unwrap();
        assert!(is_staged(&write), "{}", write.path());
        finished(&write.post().unwrap());
    }
    assert_eq!(two.puppet.ask("check 5"), "all true");
}

#[test]
fn what_is_long_or_not_allowed_takes_another_way_and_says_why() {
    let off: &[(&str, &str)] = &[];
    let small: &[(&str, &str)] = &[("path", "auto"), ("staging_limit_bytes", "31MiB")];
    let cases = [
        (ON, ON, MOST + 1, "more than 256 KiB"),
        (off, ON, 4096, "the setting path says device"),
        (ON, off, 4096, "the peer: the setting path says device"),
        (small, ON, 4096, "staging_limit_bytes is below 32 MiB"),
    ];
    for (here, there, len, expected) in cases {
        let two = Two::start(here, there);
        let (source, _) = on(&two.device, &two.engine, &pattern(len, 1));
        let write = two.write(&source, two.there(0, len));
        let path = write.path();
        assert_eq!(path.kind, PathKind::Shared, "{path}");
        let (kind, why) = &path.not_possible()[1];
        let is_said = why.to_string().contains(expected);
        assert!(*kind == PathKind::SingleCopy && is_said, "{expected}: {path:?}");
        finished(&write.post().unwrap());
        assert!(two.holds(0, len) == pattern(len, 1), "{expected}");
    }
    // A copy for which the device has no pinned memory.
    let two = Two::start(ON, ON);
    let poor = FakeDevice::new(3, Duration::ZERO, 3);
    poor.limit_pinned(0);
    let (source, _) = on(&poor, &two.engine, &[1; 64]);
    let write = two.write(&source, two.there(0, 64));
    let (kind, why) = &write.path().not_possible()[1];
    let is_said = why.to_string().contains("OUT_OF_MEMORY");
    assert!(*kind == PathKind::SingleCopy && is_said, "{:?}", write.path());
    // The device has some for one stage, and all threads alternate with that.
    poor.limit_pinned(300 << 10);
    let (source, _) = on(&poor, &two.engine, &pattern(MOST, 8));
    let write = two.write(&source, two.there(0, MOST));
    assert!(is_staged(&write), "{}", write.path());
    finished(&write.post().unwrap());
    assert!(two.holds(0, MOST) == pattern(MOST, 8));
}

#[test]
fn more_callers_than_stages_take_turns() {
    let two = Two::start(ON, ON);
    let before = two.by_rails();
    let room = PUPPET_BYTES / 16;
    std::thread::scope(|scope| {
        for caller in 0..16 {
            let want = pattern(room, caller);
            let place = || two.there(caller as usize * room, room);
            let (source, _) = on(&two.device, &two.engine, &want);
            let (target, memory) = on(&two.device, &two.engine, &vec![0; room]);
            let (write, read) = (two.write(&source, place()), two.read(&target, place()));
            assert!(is_staged(&write) && is_staged(&read), "{} {}", write.path(), read.path());
            scope.spawn(move || {
                for _ in 0..10 {
                    finished(&write.post().unwrap());
                    target.write_at(0, &[0; 8]).unwrap();
                    finished(&read.post().unwrap());
                    assert!(FakeDevice::contents(&memory) == want, "{caller}");
                }
                drop(source);
            });
        }
    });
    assert_eq!(two.by_rails(), before);
}

#[test]
fn a_cancelled_or_late_transfer_ends_with_the_piece_that_the_device_copies() {
    let two = Two::start(ON, ON);
    let (target, memory) = on(&two.device, &two.engine, &vec![0; MOST]);
    let request = || Request::read(&two.peer).segment(target.all(), two.there(0, MOST));
    let read = two.engine.prepare(request()).unwrap();
    assert!(is_staged(&read), "{}", read.path());
    two.device.hold(true);
    let transfer = read.post().unwrap();
    wait_for("a copy", || two.device.is_holding());
    transfer.cancel();
    waits_for_copies(&two.device, || {
        let ended = transfer.ended();
        // With several threads, every piece may have begun.
        assert!(matches!(ended, Err(TransferError::Cancelled) | Ok(_)), "{ended:?}");
    });
    stays_as_it_is(&memory);
    let late = request().timeout(Duration::from_millis(1));
    let late = two.engine.prepare(late).unwrap();
    two.device.set_late(Duration::from_millis(5));
    let ended = late.post().unwrap().ended();
    assert!(matches!(ended, Err(TransferError::Deadline { .. }) | Ok(_)), "{ended:?}");
    stays_as_it_is(&memory);
}

#[test]
fn who_waits_for_a_time_waits_no_longer_where_the_device_does_not_go_on() {
    let two = Two::start(ON, ON);
    let (target, _) = on(&two.device, &two.engine, &vec![0; 12 * 4096]);
    // More than there are threads that copy, so that some are left to waiting threads.
    let read = |at: usize| {
        let here = target.slice(at as u64, 4096).unwrap();
        Request::read(&two.peer).segment(here, two.there(at, 4096))
    };
    let reads: Vec<_> = (0..12).map(|at| two.engine.prepare(read(at * 4096)).unwrap()).collect();
    assert!(reads.iter().all(is_staged));
    two.device.hold(true);
    let under_way: Vec<_> = reads.iter().map(|read| read.post().unwrap()).collect();
    wait_for("a copy", || two.device.is_holding());
    let (sender, waited) = mpsc::channel();
    std::thread::scope(|scope| {
        let last = &under_way[11];
        scope.spawn(move || sender.send(last.wait(Duration::from_millis(10)).is_none()));
        let waited = waited.recv_timeout(LONG);
        two.device.hold(false);
        assert_eq!(waited, Ok(true));
    });
    under_way.iter().for_each(finished);
}

#[test]
fn a_region_that_ends_here_waits_for_the_device() {
    let two = Two::start(ON, ON);
    let (target, memory) = on(&two.device, &two.engine, &vec![0; MOST]);
    let read = two.read(&target, two.there(0, MOST));
    assert!(is_staged(&read), "{}", read.path());
    two.device.hold(true);
    let transfer = read.post().unwrap();
    wait_for("a copy", || two.device.is_holding());
    waits_for_copies(&two.device, || target.end());
    stays_as_it_is(&memory);
    let ended = transfer.ended();
    assert!(matches!(ended, Err(TransferError::RegionDropped) | Ok(_)), "{ended:?}");
}

#[test]
fn a_region_that_ends_at_the_peer_waits_for_the_copy_and_is_used_no_more() {
    let mut two = Two::start(ON, ON);
    let (source, _) = on(&two.device, &two.engine, &pattern(MOST, 1));
    let write = two.write(&source, two.there(0, MOST));
    assert!(is_staged(&write), "{}", write.path());
    finished(&write.post().unwrap());
    assert_eq!(two.puppet.ask("end"), "ended");
    let ended = write.post().unwrap().ended();
    let dropped = RefusalCode::RegionDropped;
    assert!(
        matches!(&ended, Err(TransferError::Refused { code, .. }) if *code == dropped),
        "{ended:?}"
    );
}

#[test]
fn a_peer_that_is_killed_in_mid_copy_ends_the_transfer_as_lost() {
    let mut two = Two::start(QUICK, QUICK);
    let (source, _) = on(&two.device, &two.engine, &pattern(MOST, 1));
    let write = two.write(&source, two.there(0, MOST));
    assert!(is_staged(&write), "{}", write.path());
    two.device.hold(true);
    let transfer = write.post().unwrap();
    wait_for("a copy", || two.device.is_holding());
    two.puppet.kill();
    two.device.hold(false);
    let ended = transfer.ended();
    assert!(matches!(ended, Err(TransferError::PeerLost { .. })), "{ended:?}");
    assert_eq!(two.engine.stats().ops_outstanding, 0);
}

#[test]
fn a_device_that_fails_sends_the_transfer_over_the_rails_and_the_next_is_copied_again() {
    let two = Two::start(ON, ON);
    let len = 100_003;
    let (source, _) = on(&two.device, &two.engine, &pattern(len, 6));
    let write = two.write(&source, two.there(0, len));
    assert!(is_staged(&write), "{}", write.path());
    let before = two.by_rails();
    two.device.fail_after(0);
    finished(&write.post().unwrap());
    assert_eq!(two.by_rails() - before, len as u64);
    assert!(two.holds(0, len) == pattern(len, 6));
    // The device uses another queue, and host memory was not given up either.
    let before = two.by_rails();
    finished(&write.post().unwrap());
    assert!(two.holds(0, len) == pattern(len, 6));
    assert_eq!(two.by_rails(), before);
}
