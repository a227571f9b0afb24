//! Transfers that a device copies from end to end, with a device that copies late and fails on request of a test.

use std::time::Duration;

use crate::common::devices::{device, lone_device, on, waits_for_copies};
use crate::common::*;
use polyrail::{
    Access, Engine, PathKind, RefusalCode, Region, Registrable, Request, TransferError,
};
use polyrail_gpu::fake::FakeDevice;
use polyrail_sys::{ProvenProcess, Unproven};

fn sent_over_rails(engine: &Engine) -> u64 {
    let stats = engine.stats();
    stats.peers.iter().flat_map(|peer| &peer.rails).map(|rail| rail.tx_bytes).sum()
}

#[test]
fn within_a_process_devices_copy_and_no_byte_goes_over_rails() {
    let (here, there) = (device(0), device(1));
    for mode in [&[][..], &[("progress", "caller")]] {
        let p = pair(mode);
        for len in [1, 513, 1_000_003] {
            let want = pattern(len, 7);
            let (source, _) = on(&here, &p.a, &want);
            let (target, memory) = on(&there, &p.b, &vec![0; len]);
            let remote = remote(&p.a, &target);
            assert!(remote.is_on_device());
            let write = Request::write(&p.to_b).segment(source.all(), remote.all());
            let prepared = p.a.prepare(write).unwrap();
            assert_eq!(prepared.path().kind, PathKind::PeerCopy, "{}", prepared.path());
            let outcome = prepared.post().unwrap().ended().unwrap();
            assert_eq!(outcome.bytes, len as u64);
            assert!(FakeDevice::contents(&memory) == want, "{len} bytes, {mode:?}");
            assert!(p.a.stats().peers[0].peer_copy_bytes >= len as u64);

            let (back, memory) = on(&here, &p.a, &vec![0; len]);
            finished(&p.a.read(&p.to_b, &back.all(), &remote.all()).unwrap());
            assert!(FakeDevice::contents(&memory) == want, "{len} bytes read, {mode:?}");
        }
        assert_eq!(sent_over_rails(&p.a) + sent_over_rails(&p.b), 0);
    }
}

#[test]
fn a_notification_comes_when_the_device_is_done() {
    let device = device(0);
    let p = pair(&[]);
    let (source, _) = on(&device, &p.a, &pattern(100_000, 1));
    let (target, memory) = on(&device, &p.b, &vec![0; 100_000]);
    let there = remote(&p.a, &target).all();
    let request = Request::write(&p.to_b).segment(source.all(), there).notification(b"x".to_vec());
    device.hold(true);
    let transfer = p.a.post(request).unwrap();
    assert!(p.b.wait_notification(Duration::from_millis(50)).is_none());
    assert!(!transfer.is_over());
    device.hold(false);
    assert_eq!(p.b.wait_notification(LONG).unwrap().data, b"x");
    assert!(FakeDevice::contents(&memory) == pattern(100_000, 1));
    finished(&transfer);
}

#[test]
fn scattered_blocks_of_several_regions_and_the_host_land_each_in_its_place() {
    let devices = [device(0), device(1)];
    let p = pair(&[]);
    let (count, len) = (3000u64, 48u64);
    let want = pattern((count * len) as usize, 3);
    let sources = [on(&devices[0], &p.a, &want).0, filled(&p.a, want.len(), 3)];
    let (first, first_memory) = on(&devices[1], &p.b, &vec![0; want.len()]);
    let (second, second_memory) = on(&devices[0], &p.b, &vec![0; want.len()]);
    let targets = [&first, &second].map(|region| remote(&p.a, region));
    let segments = (0..count).map(|i| {
        let from = sources[(i % 2) as usize].slice(i * len, len).unwrap();
        (from, targets[(i / 2 % 2) as usize].slice((count - 1 - i) * len, len).unwrap())
    });
    let prepared = p.a.prepare(Request::write(&p.to_b).segments(segments)).unwrap();
    assert_eq!(prepared.path().kind, PathKind::PeerCopy);
    for _ in 0..2 {
        finished(&prepared.post().unwrap());
    }
    let got = [FakeDevice::contents(&first_memory), FakeDevice::contents(&second_memory)];
    for i in 0..count as usize {
        let (from, to) = (i * 48, (count as usize - 1 - i) * 48);
        assert_eq!(got[i / 2 % 2][to..to + 48], want[from..from + 48], "{i}");
    }
}

#[test]
fn what_the_peer_does_not_allow_is_refused_as_over_rails() {
    let device = device(0);
    let p = pair(&[]);
    let (source, _) = on(&device, &p.a, &[1; 64]);
    let access = Access::READ;
    let target = p.b.register(device.memory(&[0; 64]).with_access(access)).unwrap();
    let write = p.a.write(&p.to_b, &source.all(), &remote(&p.a, &target).all()).unwrap();
    let refused = write.ended();
    let denied = RefusalCode::AccessDenied;
    assert!(matches!(refused, Err(TransferError::Refused { code, .. }) if code == denied));

    let gone = remote(&p.a, &on(&device, &p.b, &[0; 64]).0);
    let write = p.a.write(&p.to_b, &source.all(), &gone.all()).unwrap();
    assert!(matches!(write.ended(), Err(TransferError::Refused { .. })));
}

#[test]
fn no_notification_comes_of_a_write_without_one() {
    let device = device(0);
    let p = pair(&[]);
    let (source, _) = on(&device, &p.a, &[1; 8]);
    let (target, _) = on(&device, &p.b, &[0; 8]);
    let there = remote(&p.a, &target).all();
    let prepared = p.a.prepare(Request::write(&p.to_b).segment(source.all(), there)).unwrap();
    for _ in 0..2000 {
        // No call waits: a proxy notices that the device is done.
        prepared.post().unwrap().detach();
        assert!(p.a.drain(LONG).is_some());
    }
    assert!(p.b.take_notifications().is_empty());
}

#[test]
fn a_region_dropped_before_a_post_refuses_it_and_one_dropped_after_waits() {
    let device = device(0);
    let p = pair(&[]);
    let (source, _) = on(&device, &p.a, &pattern(1000, 2));
    let (target, memory) = on(&device, &p.b, &[0; 1000]);
    let there = remote(&p.a, &target).all();
    let prepared = p.a.prepare(Request::write(&p.to_b).segment(source.all(), there)).unwrap();
    device.hold(true);
    let transfer = prepared.post().unwrap();
    waits_for_copies(&device, || drop(target));
    finished(&transfer);
    assert!(FakeDevice::contents(&memory) == pattern(1000, 2));
    let code = RefusalCode::RegionDropped;
    let refused = prepared.post().unwrap().ended();
    assert!(matches!(refused, Err(TransferError::Refused { code: got, .. }) if got == code));
    drop(source);
    assert!(prepared.post().is_err(), "a region of this end is gone");
}

#[test]
fn a_device_that_fails_fails_the_transfer_and_not_the_engine() {
    let device = device(0);
    let p = pair(&[]);
    let (source, _) = on(&device, &p.a, &[7; 1000]);
    let (target, memory) = on(&device, &p.b, &[0; 1000]);
    let there = remote(&p.a, &target).all();
    let prepared = p.a.prepare(Request::write(&p.to_b).segment(source.all(), there)).unwrap();
    device.fail_after(0);
    let failed = prepared.post().unwrap().ended();
    assert!(matches!(failed, Err(TransferError::Device { .. })), "{failed:?}");
    for _ in 0..8 {
        // All queues are used, alternating, but not the one that failed.
        finished(&prepared.post().unwrap());
    }
    assert_eq!(FakeDevice::contents(&memory), [7; 1000]);
}

#[test]
fn a_dropped_or_detached_transfer_gives_its_place_in_the_pool_back() {
    let device = device(0);
    let p = pair(&[("ops_pool", "64")]);
    let (source, _) = on(&device, &p.a, &[7; 100]);
    let (target, _) = on(&device, &p.b, &[0; 100]);
    let there = remote(&p.a, &target).all();
    let prepared = p.a.prepare(Request::write(&p.to_b).segment(source.all(), there)).unwrap();
    for round in 0..200 {
        wait_for("a place", || match prepared.post() {
            Ok(transfer) if round % 2 == 0 => {
                transfer.detach();
                true
            }
            Ok(_dropped) => true,
            Err(error) => {
                assert!(error.is_busy(), "{error}");
                false
            }
        });
    }
    assert!(p.a.drain(LONG).is_some());
}

#[test]
fn each_path_says_why_it_is_taken() {
    let device = device(0);
    let say = |p: &Pair, from: &Region, to: &Region| {
        let there = remote(&p.a, to).all();
        let prepared = p.a.prepare(Request::write(&p.to_b).segment(from.all(), there)).unwrap();
        prepared.path().to_string()
    };
    let p = pair(&[]);
    let host = [filled(&p.a, 8, 1), zeroed(&p.b, 8)];
    let (near, _) = on(&device, &p.a, &[1; 8]);
    let (far, _) = on(&device, &p.b, &[1; 8]);
    assert_eq!(say(&p, &host[0], &host[1]), "tcp: the setting path says device");
    assert!(say(&p, &near, &far).starts_with("peer copy: both ends are in this process"));
    assert!(say(&p, &near, &host[1]).starts_with("peer copy"), "a device copies to the host, too");
    let message = p.a.prepare(Request::send(&p.to_b, 1).local(near.all())).unwrap();
    assert_eq!(message.path().kind, PathKind::Shared);
    let message = p.a.prepare(Request::receive(&p.to_b, 1).local(near.all())).unwrap();
    assert!(message.path().to_string().contains("its sender chooses"), "{}", message.path());
    let p = pair(&[("path", "tcp")]);
    let ((near, _), (far, _)) = (on(&device, &p.a, &[1; 8]), on(&device, &p.b, &[1; 8]));
    assert_eq!(say(&p, &near, &far), "tcp: the setting path says so");
}

fn apart(settings: &[(&str, &str)]) -> Pair {
    crate::common::apart(settings, settings)
}

#[test]
fn a_region_of_another_process_is_opened_once_and_copied_to_directly() {
    let (here, there) = (device(0), device(1));
    let p = apart(&[]);
    let want = pattern(1_000_003, 7);
    let (source, _) = on(&here, &p.a, &want);
    let (target, memory) = on(&there, &p.b, &vec![0; want.len()]);
    let remote = remote(&p.a, &target);
    for _ in 0..3 {
        let write = Request::write(&p.to_b).segment(source.all(), remote.all());
        let prepared = p.a.prepare(write).unwrap();
        let path = prepared.path().to_string();
        assert!(path.starts_with("peer copy: both ends are on this host"), "{path}");
        finished(&prepared.post().unwrap());
    }
    assert!(FakeDevice::contents(&memory) == want);
    assert_eq!(sent_over_rails(&p.a), 0);
    // A device can't reach host memory of another process.
    let host = filled(&p.a, 8, 1);
    let write = Request::write(&p.to_b).segment(host.all(), remote.slice(0, 8).unwrap());
    assert_eq!(p.a.prepare(write).unwrap().path().kind, PathKind::Shared);
    finished(&p.a.write(&p.to_b, &host.all(), &remote.slice(0, 8).unwrap()).unwrap());
    assert!(FakeDevice::contents(&memory)[..8] == pattern(8, 1));
}

#[test]
fn an_owner_that_drops_a_region_waits_for_copies_of_other_processes() {
    let (here, there) = (device(0), device(1));
    let p = apart(&[]);
    let (source, _) = on(&here, &p.a, &pattern(1000, 2));
    let (target, memory) = on(&there, &p.b, &[0; 1000]);
    let all = remote(&p.a, &target).all();
    let prepared = p.a.prepare(Request::write(&p.to_b).segment(source.all(), all)).unwrap();
    here.hold(true);
    let transfer = prepared.post().unwrap();
    waits_for_copies(&here, || drop(target));
    finished(&transfer);
    assert!(FakeDevice::contents(&memory) == pattern(1000, 2));
    let refused = prepared.post().unwrap().ended();
    let code = RefusalCode::RegionDropped;
    assert!(matches!(refused, Err(TransferError::Refused { code: got, .. }) if got == code));
    // When prepared again, it takes another path, where it is refused.
    let again = p.a.prepare(Request::write(&p.to_b).segment(source.all(), all)).unwrap();
    assert_eq!(again.path().kind, PathKind::Shared, "{}", again.path());
    assert!(again.post().unwrap().ended().is_err());
}

#[test]
fn a_region_that_peers_may_only_read_is_not_opened_to_them() {
    let device = device(0);
    let p = apart(&[]);
    let access = Access::READ;
    let source = p.b.register(device.memory(&[9; 64]).with_access(access)).unwrap();
    let (target, memory) = on(&device, &p.a, &[0; 64]);
    let all = remote(&p.a, &source).all();
    let prepared = p.a.prepare(Request::read(&p.to_b).segment(target.all(), all)).unwrap();
    assert!(prepared.path().to_string().contains("the peer may not both"), "{}", prepared.path());
    finished(&prepared.post().unwrap());
    assert_eq!(FakeDevice::contents(&memory), [9; 64]);
}

#[test]
fn an_owner_does_not_wait_for_a_peer_that_is_gone() {
    let (here, there) = (device(0), device(1));
    let p = apart(&[("peer_timeout_ms", "60000")]);
    let (source, _) = on(&here, &p.a, &[1; 64]);
    let (target, _) = on(&there, &p.b, &[0; 64]);
    finished(&p.a.write(&p.to_b, &source.all(), &remote(&p.a, &target).all()).unwrap());
    drop((source, p.a));
    wait_for("the peer to be gone", || p.to_a.lost().is_some());
    let begin = std::time::Instant::now();
    drop(target);
    assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
}

#[test]
fn an_engine_forgets_who_looks_at_its_name_so_others_can_look() {
    let p = apart(&[]);
    let (source, _) = on(&lone_device(0), &p.a, &[1; 8]);
    let (target, _) = on(&lone_device(1), &p.b, &[0; 8]);
    let write = Request::write(&p.to_b).segment(source.all(), remote(&p.a, &target).all());
    let prepared = p.a.prepare(write).unwrap();
    prepared.post().unwrap().ended().unwrap();
    assert_eq!(prepared.path().kind, PathKind::Shared);
    let name = format!("polyrail-{:032x}", p.a.instance().0);
    for _ in 0..3 * 4096 {
        wait_for("room for another look", || match ProvenProcess::with_name(&name) {
            Err(Unproven::Crowded) => false,
            found => found.is_ok(),
        });
    }
}
