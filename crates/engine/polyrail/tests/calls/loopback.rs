//! Every operation over real sockets on loopback, both ends in one process.

use std::time::Duration;

use crate::common::*;
use polyrail::{
    Access, Explain, Flows, Memory, PeerError, PostError, RefusalCode, Region, RegionError,
    Registrable, Request, TransferError,
};

const MODES: [&[(&str, &str)]; 3] = [
    &[],
    &[("proxy_layout", "merged"), ("channels", "8"), ("sockets", "2")],
    &[("payload", "crc32c"), ("chunk_bytes", "64KiB"), ("window_chunks", "2")],
];

#[test]
fn a_write_of_any_size_arrives_byte_exact_over_all_rails() {
    for mode in MODES {
        let p = pair(mode);
        for len in [0, 1, 8, 4095, 65_536, 1_000_003, 64 << 20] {
            let source = filled(&p.a, len, 7);
            let target = zeroed(&p.b, len);
            let transfer = p.a.write(&p.to_b, &source.all(), &remote(&p.a, &target).all()).unwrap();
            assert_eq!(transfer.ended().unwrap().bytes, len as u64);
            assert!(bytes(&target) == pattern(len, 7), "{len} bytes, {mode:?}");
        }
        let stats = p.a.stats();
        let used = stats.peers[0].rails.iter().filter(|rail| rail.tx_bytes > 0).count();
        assert_eq!(used, 4, "{:?}", stats.peers[0].rails);
    }
}

/// Callers read few flows themselves, and ask the poller about many.
#[test]
fn callers_that_never_sleep_miss_nothing_on_few_flows_or_many() {
    for channels in ["1", "4", "24"] {
        // Sockets fill up, and no event announces that they have room again.
        let p = pair(&[
            ("progress", "caller"),
            ("channels", channels),
            ("socket_buffer_bytes", "64KiB"),
        ]);
        for len in [0, 8, 65_536, 16 << 20] {
            let source = filled(&p.a, len, 11);
            let target = zeroed(&p.b, len);
            let there = remote(&p.a, &target).all();
            let request = Request::write(&p.to_b).segment(source.all(), there);
            let request = request.notification(b"here".to_vec());
            let transfer = p.a.post(request).unwrap();
            wait_for("the write", || {
                p.a.progress();
                p.b.progress();
                transfer.is_over() && p.b.stats().notifications_waiting > 0
            });
            assert_eq!(p.b.take_notifications().len(), 1);
            assert_eq!(transfer.ended().unwrap().bytes, len as u64, "{channels} channels");
            assert!(bytes(&target) == pattern(len, 11), "{len} bytes, {channels} channels");
        }
        let Pair { a, b, to_b, .. } = p;
        drop(b);
        wait_for("the flows to be down", || {
            a.progress();
            to_b.flows().up == 0
        });
    }
}

#[test]
fn a_caller_that_waits_for_what_does_not_come_keeps_its_deadline() {
    for settings in [&[("channels", "1")][..], &[("channels", "4")], &[("preset", "latency")]] {
        let p = pair(&[&[("progress", "caller")], settings].concat());
        wait_for("flows", || {
            p.a.progress();
            p.b.progress();
            p.to_b.flows().up > 0
        });
        let room = zeroed(&p.a, 8);
        let receive = p.a.receive(&p.to_b, 1, &room.all()).unwrap();
        let start = std::time::Instant::now();
        for _ in 0..3 {
            assert!(receive.wait(Duration::from_millis(50)).is_none());
            assert!(p.b.wait_notification(Duration::from_millis(50)).is_none());
        }
        let took = start.elapsed();
        assert!(took < Duration::from_secs(10), "{took:?}, {settings:?}");
    }
}

#[test]
fn a_read_of_any_size_arrives_byte_exact() {
    for mode in MODES {
        let p = pair(mode);
        for len in [0, 1, 8, 4095, 1_000_003, 16 << 20] {
            let source = filled(&p.b, len, 9);
            let target = zeroed(&p.a, len);
            let transfer = p.a.read(&p.to_b, &target.all(), &remote(&p.a, &source).all()).unwrap();
            assert_eq!(transfer.ended().unwrap().bytes, len as u64);
            assert!(bytes(&target) == pattern(len, 9), "{len} bytes, {mode:?}");
        }
    }
}

#[test]
fn scattered_segments_land_each_in_its_place() {
    let p = pair(&[]);
    let (count, len) = (100_000u64, 48u64);
    let source = filled(&p.a, (count * len) as usize, 3);
    let target = zeroed(&p.b, (2 * count * len) as usize);
    let there = remote(&p.a, &target);
    let segments = (0..count).map(|i| {
        let local = source.slice(i * len, len).unwrap();
        // Backwards and with gaps, so that nothing merges.
        (local, there.slice(2 * (count - 1 - i) * len, len).unwrap())
    });
    let prepared =
        p.a.prepare(Request::write(&p.to_b).segments(segments).notification(b"all".to_vec()))
            .unwrap();
    assert_eq!(prepared.segments(), count as usize);
    for _ in 0..2 {
        assert_eq!(prepared.post().unwrap().ended().unwrap().bytes, count * len);
        assert_eq!(p.b.wait_notification(LONG).unwrap().data, b"all");
    }
    let (want, got) = (pattern((count * len) as usize, 3), bytes(&target));
    for i in 0..count as usize {
        let (from, to) = (i * 48, 2 * (count as usize - 1 - i) * 48);
        assert_eq!(got[to..to + 48], want[from..from + 48]);
        assert_eq!(got[to + 48..to + 96], [0; 48]);
    }
    // And back again, as a vectored read.
    let back = zeroed(&p.a, (count * len) as usize);
    let segments = (0..count).map(|i| {
        let local = back.slice(i * len, len).unwrap();
        (local, there.slice(2 * (count - 1 - i) * len, len).unwrap())
    });
    let prepared = p.a.prepare(Request::read(&p.to_b).segments(segments)).unwrap();
    assert_eq!(prepared.post().unwrap().ended().unwrap().bytes, count * len);
    assert!(bytes(&back) == want);
}

#[test]
fn a_notification_comes_after_the_bytes_of_its_write() {
    let p = pair(&[("chunk_bytes", "16KiB")]);
    let target = zeroed(&p.b, 1 << 20);
    let there = remote(&p.a, &target);
    for round in 1..=50 {
        let source = filled(&p.a, 1 << 20, round);
        let request = Request::write(&p.to_b)
            .segment(source.all(), there.all())
            .notification(round.to_le_bytes().to_vec());
        let transfer = p.a.post(request).unwrap();
        let seen = p.b.wait_notification(LONG).unwrap();
        assert!(bytes(&target) == pattern(1 << 20, round), "round {round}");
        assert_eq!(seen.data, round.to_le_bytes());
        assert_eq!(seen.peer, p.to_a);
        transfer.ended().unwrap();
    }
    p.a.notify(&p.to_b, b"").unwrap().ended().unwrap();
    assert_eq!(p.b.take_notifications()[0].data, b"");
}

#[test]
fn messages_of_a_tag_keep_their_order_whichever_side_is_first() {
    let p = pair(&[]);
    let source = filled(&p.a, 300_000, 5);
    let target = zeroed(&p.b, 400_000);
    let early = p.b.receive(&p.to_a, 1, &target.slice(0, 100_000).unwrap()).unwrap();
    let sends: Vec<_> = (0..3)
        .map(|i| p.a.send(&p.to_b, 1, &source.slice(i * 100_000, 100_000 - i).unwrap()).unwrap())
        .collect();
    assert_eq!(early.ended().unwrap().bytes, 100_000);
    assert!(!sends[1].is_over(), "its receive is not posted yet");
    for i in 1..3 {
        let slice = target.slice(i * 100_000, 100_000).unwrap();
        let received = p.b.receive(&p.to_a, 1, &slice).unwrap().ended().unwrap();
        assert_eq!(received.bytes, 100_000 - i, "the length of the message");
    }
    sends.iter().for_each(|send| assert!(send.ended().is_ok()));
    let (got, want) = (bytes(&target), pattern(300_000, 5));
    for (from, len) in [(0, 100_000), (100_000, 99_999), (200_000, 99_998)] {
        assert!(got[from..from + len] == want[from..from + len], "message at {from}");
    }
}

#[test]
fn a_message_longer_than_its_receive_fails_on_both_sides() {
    let p = pair(&[]);
    let source = filled(&p.a, 100, 5);
    let target = zeroed(&p.b, 99);
    let receive = p.b.receive(&p.to_a, 1, &target.all()).unwrap();
    let send = p.a.send(&p.to_b, 1, &source.all()).unwrap();
    let error = TransferError::TooLong { len: 100, capacity: 99 };
    assert_eq!(send.ended().unwrap_err(), error);
    assert_eq!(receive.ended().unwrap_err(), error);
    assert_eq!(bytes(&target), [0; 99]);
}

#[test]
fn both_directions_and_many_transfers_at_once_are_byte_exact() {
    let p = pair(&[]);
    let len = 3_000_017;
    let (from_a, from_b) = (filled(&p.a, len, 1), filled(&p.b, len, 2));
    let targets_b: Vec<_> = (0..8).map(|_| zeroed(&p.b, len)).collect();
    let targets_a: Vec<_> = (0..8).map(|_| zeroed(&p.a, len)).collect();
    let mut transfers = Vec::new();
    for (in_a, in_b) in targets_a.iter().zip(&targets_b) {
        transfers.push(p.a.write(&p.to_b, &from_a.all(), &remote(&p.a, in_b).all()).unwrap());
        transfers.push(p.b.write(&p.to_a, &from_b.all(), &remote(&p.b, in_a).all()).unwrap());
    }
    for transfer in transfers {
        transfer.ended().unwrap();
    }
    assert!(targets_b.iter().all(|target| bytes(target) == pattern(len, 1)));
    assert!(targets_a.iter().all(|target| bytes(target) == pattern(len, 2)));
}

#[test]
fn a_full_ops_pool_is_a_status_and_loses_nothing() {
    let p = pair(&[("ops_pool", "64")]);
    let source = filled(&p.a, 8, 1);
    let target = zeroed(&p.b, 8);
    let prepared =
        p.a.prepare(Request::write(&p.to_b).segment(source.all(), remote(&p.a, &target).all()))
            .unwrap();
    let (mut done, mut busy, mut waiting) = (0, 0, std::collections::VecDeque::new());
    while done < 5000 {
        match prepared.post() {
            Ok(transfer) => waiting.push_back(transfer),
            Err(error) => {
                assert!(error.is_busy(), "{error}");
                busy += 1;
                waiting.pop_front().unwrap().ended().unwrap();
                done += 1;
            }
        }
    }
    assert!(busy > 0);
    assert!(waiting.iter().all(|transfer| transfer.ended().is_ok()));
    assert_eq!(p.a.stats().ops_outstanding, 0);
}

#[test]
fn callers_can_make_the_progress_themselves() {
    let settings = [("progress", "caller"), ("proxy_layout", "merged")];
    let p = pair(&settings);
    let b = p.b.clone();
    let target = zeroed(&p.b, 1 << 20);
    let there = remote(&p.a, &target);
    let source = filled(&p.a, 1 << 20, 4);
    std::thread::scope(|scope| {
        let answer = scope.spawn(move || b.wait_notification(LONG).unwrap().data);
        let request =
            Request::write(&p.to_b).segment(source.all(), there.all()).notification(vec![1, 2, 3]);
        let transfer = p.a.post(request).unwrap();
        transfer.ended().unwrap();
        assert_eq!(answer.join().unwrap(), [1, 2, 3]);
    });
    assert!(bytes(&target) == pattern(1 << 20, 4));
}

#[test]
fn what_may_not_be_touched_is_refused_with_the_reason() {
    let p = pair(&[]);
    let source = filled(&p.a, 64, 1);
    let target = zeroed(&p.b, 64);
    let there = remote(&p.a, &target);
    let refused = |remote: &polyrail::RemoteRegion| {
        let transfer = p.a.write(&p.to_b, &source.all(), &remote.all()).unwrap();
        match transfer.ended().unwrap_err() {
            TransferError::Refused { code, .. } => code,
            other => panic!("{other}"),
        }
    };
    let read_only = Access::READ;
    let memory = Memory::from(vec![0; 64]);
    let protected = p.b.register(memory.with_access(read_only)).unwrap();
    assert_eq!(refused(&remote(&p.a, &protected)), RefusalCode::AccessDenied);
    drop(target);
    assert_eq!(refused(&there), RefusalCode::RegionDropped);
    let _again = zeroed(&p.b, 64);
    assert_eq!(refused(&there), RefusalCode::StaleKey);
    let read = p.a.read(&p.to_b, &source.all(), &there.all()).unwrap();
    let error = read.ended().unwrap_err();
    assert!(matches!(error, TransferError::Refused { code: RefusalCode::StaleKey, .. }), "{error}");
    assert!(error.help().is_some());
    // The engine lives on.
    let good = zeroed(&p.b, 64);
    p.a.write(&p.to_b, &source.all(), &remote(&p.a, &good).all()).unwrap().ended().unwrap();
}

#[test]
fn wrong_requests_are_refused_before_anything_moves() {
    let p = pair(&[]);
    let local = zeroed(&p.a, 64);
    let there = remote(&p.a, &zeroed(&p.b, 64));
    let own = remote(&p.a, &local);
    let (head, all) = (local.slice(0, 8).unwrap(), local.all());
    let post = |error: Result<_, PostError>| error.err().unwrap().to_string();
    let lengths = post(p.a.write(&p.to_b, &head, &there.all()));
    assert_eq!(lengths, "segment 0 has 8 bytes here and 64 at the peer");
    assert!(post(p.a.write(&p.to_b, &all, &own.all())).contains("another engine"));
    let long = p.a.prepare(Request::write(&p.to_b).notification(vec![0; 65_537]));
    assert!(long.unwrap_err().to_string().contains("allowed is 0 to 65536"));
    let outside = RegionError::OutOfBounds { offset: 60, len: 5, size: 64 };
    assert_eq!(local.slice(60, 5).unwrap_err(), outside);
    assert!(p.a.import(b"garbage").is_err());
    assert!(p.a.add_peer(b"garbage").is_err());
    assert!(p.a.add_peer(&p.a.metadata()).is_err());
}

fn nothing_lands(target: &Region, round: u64) {
    target.write_at(0, &vec![0xaa; target.len() as usize]).unwrap();
    // Time in which late bytes could land.
    std::thread::sleep(Duration::from_millis(5));
    assert!(bytes(target).iter().all(|byte| *byte == 0xaa), "round {round}");
}

#[test]
fn a_cancelled_transfer_ends_and_nothing_of_it_lands_later() {
    let p = pair(&[("chunk_bytes", "64KiB")]);
    let len = 64 << 20;
    let source = filled(&p.a, len, 1);
    let target = zeroed(&p.b, len);
    let there = remote(&p.a, &target);
    for round in 0..20 {
        let transfer = p.a.write(&p.to_b, &source.all(), &there.all()).unwrap();
        // Each round cancels at another point of the transfer.
        std::thread::sleep(Duration::from_micros(300 * round));
        transfer.cancel();
        match transfer.ended() {
            Err(TransferError::Cancelled) | Ok(_) => {}
            Err(other) => panic!("{other}"),
        }
        nothing_lands(&target, round);
    }
}

#[test]
fn a_cancelled_receive_or_read_lets_nothing_land() {
    let p = pair(&[]);
    let len = 8 << 20;
    let source = filled(&p.b, len, 1);
    let target = zeroed(&p.a, len);
    for round in 0..10 {
        let read = p.a.read(&p.to_b, &target.all(), &remote(&p.a, &source).all()).unwrap();
        let receive = p.a.receive(&p.to_b, round, &target.all()).unwrap();
        let send = p.b.send(&p.to_a, round, &source.all()).unwrap();
        // Each round cancels at another point of the transfers.
        std::thread::sleep(Duration::from_micros(200 * round));
        read.cancel();
        receive.cancel();
        drop((read.ended(), receive.ended()));
        nothing_lands(&target, round);
        send.cancel();
        let _ = send.ended();
    }
    assert_eq!((p.a.stats().ops_outstanding, p.b.stats().ops_outstanding), (0, 0));
}

#[test]
fn dropping_transfers_and_regions_in_use_is_safe() {
    let p = pair(&[]);
    let len = 32 << 20;
    for round in 0..10 {
        let source = filled(&p.a, len, 1);
        let target = zeroed(&p.b, len);
        let there = remote(&p.a, &target);
        let dropped = p.a.write(&p.to_b, &source.all(), &there.all()).unwrap();
        let kept = p.a.write(&p.to_b, &source.all(), &there.all()).unwrap();
        // Each round drops at another point of the transfers.
        std::thread::sleep(Duration::from_micros(500 * round));
        drop(dropped);
        if round % 2 == 0 {
            drop(source)
        } else {
            drop(target)
        }
        match kept.ended() {
            Ok(_) | Err(TransferError::RegionDropped | TransferError::Refused { .. }) => {}
            Err(other) => panic!("{other}"),
        }
    }
    // Everything still works.
    let (source, target) = (filled(&p.a, len, 2), zeroed(&p.b, len));
    p.a.write(&p.to_b, &source.all(), &remote(&p.a, &target).all()).unwrap().ended().unwrap();
    assert!(bytes(&target) == pattern(len, 2));
}

#[test]
fn a_deadline_ends_what_can_not_go_on() {
    let p = pair(&[]);
    let source = filled(&p.a, 64, 1);
    let timeout = Duration::from_millis(150);
    let send = Request::send(&p.to_b, 1).local(source.all()).timeout(timeout);
    let receive = Request::receive(&p.to_b, 1).local(source.all()).timeout(timeout);
    let halves = [
        (p.a.post(send), "the peer has not received the whole message of tag 1; peer"),
        (p.a.post(receive), "no whole message of tag 1 has come; peer"),
    ];
    for (posted, told) in halves {
        let error = posted.unwrap().ended().unwrap_err();
        assert!(error.to_string().contains(told), "{error}");
        assert!(error.help().unwrap().contains("the same tag"), "{:?}", error.help());
        let TransferError::Deadline { deadline, progress } = error else { panic!("{error}") };
        assert_eq!(deadline, timeout);
        assert_eq!((&*progress.peer, progress.flows.total), (p.to_b.name(), 4));
        assert!(progress.to_string().contains("flows up"), "{progress}");
    }
    let waited = p.a.send(&p.to_b, 2, &source.all()).unwrap();
    assert_eq!(waited.wait(Duration::from_millis(20)), None, "it goes on");
    assert!(!waited.is_over());
}

#[test]
fn a_metadata_file_is_waited_for_and_named_if_it_can_not_be_read() {
    let a = engine(&[]);
    let path = std::path::Path::new("/no/such/folder/rank7");
    assert!(a.find_peer(path, Duration::from_millis(50)).is_none());
    assert!(a.publish(path).is_err());
    for nameless in ["", "/", ".."] {
        let error = a.find_peer(nameless.as_ref(), LONG).unwrap().unwrap_err().to_string();
        assert!(error.contains("it is no name of a file"), "{error}");
    }
    let folder = tempfile::tempdir().unwrap();
    let error = a.find_peer(folder.path(), LONG).unwrap().unwrap_err().to_string();
    assert!(error.contains(&folder.path().display().to_string()), "{error}");
    // Reading this one would wait for a writer.
    let fifo = folder.path().join("fifo");
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::RWXU).unwrap();
    let error = a.find_peer(&fifo, LONG).unwrap().unwrap_err().to_string();
    let text = format!("{}: it is a named pipe; allowed: a regular file", fifo.display());
    assert!(error.ends_with(&text), "{error}");
}

#[test]
fn who_waits_for_a_metadata_file_hears_that_the_engine_is_closed() {
    let a = engine(&[]);
    let path = std::path::Path::new("/no/such/folder/rank7");
    std::thread::scope(|scope| {
        let (told, waits) = std::sync::mpsc::channel();
        let a = &a;
        scope.spawn(move || told.send(a.find_peer(path, Duration::MAX)));
        let early = waits.recv_timeout(Duration::from_millis(50));
        a.close();
        assert!(early.is_err(), "{early:?}");
        let found = waits.recv_timeout(LONG).expect("it hears of the end");
        assert!(matches!(found, Some(Err(PeerError::Closed))), "{found:?}");
    });
    let folder = tempfile::tempdir().unwrap();
    let late = folder.path().join("late");
    assert!(a.publish(&late).unwrap_err().to_string().contains("closed") && !late.exists());
}

#[test]
fn threads_may_publish_and_read_one_file() {
    let (a, b) = (engine(&[]), engine(&[]));
    let folder = tempfile::tempdir().unwrap();
    let path = &folder.path().join("rank0");
    let to_a = &b.add_peer(&a.metadata()).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..200 {
                    a.publish(path).unwrap();
                    let found = b.find_peer(path, Duration::ZERO).expect("it is there");
                    assert_eq!(&found.unwrap(), to_a);
                }
            });
        }
    });
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "no draft is left");
}

#[test]
fn a_state_dump_names_peers_flows_and_what_waits() {
    let p = pair(&[]);
    let source = filled(&p.a, 64, 1);
    let _send = p.a.send(&p.to_b, 77, &source.all()).unwrap();
    let _receive = p.a.receive(&p.to_b, 78, &source.all()).unwrap();
    wait_for("all flows to be up", || p.to_b.flows() == Flows { up: 4, total: 4 });
    p.a.notify(&p.to_b, b"x").unwrap().ended().unwrap();
    let dump = p.a.dump();
    for part in ["4 of 4 flows up", "send tag 77", "receive 1: room for 64", "rail lo@127.0.0.3"] {
        assert!(dump.contains(part), "{part} is missing in:\n{dump}");
    }
}

#[test]
fn the_affinity_of_the_caller_is_never_changed() {
    let before = polyrail_sys::threads::allowed_cpus().unwrap();
    let first = before[0].to_string();
    let p = pair(&[("tx_bindings", &first), ("rx_bindings", &first)]);
    let (source, target) = (filled(&p.a, 1 << 20, 1), zeroed(&p.b, 1 << 20));
    p.a.write(&p.to_b, &source.all(), &remote(&p.a, &target).all()).unwrap().ended().unwrap();
    assert_eq!(polyrail_sys::threads::allowed_cpus().unwrap(), before);
    let proxies = p.a.stats().proxies;
    assert!(proxies.iter().all(|proxy| proxy.cpus == [before[0]]), "{proxies:?}");
}

#[test]
fn a_peer_of_another_engine_is_refused_by_name_and_left_alone() {
    let p = pair(&[]);
    let c = engine(&[("proxies", "1")]);
    let (source, target) = (filled(&c, 8, 1), zeroed(&p.b, 8));
    let there = remote(&c, &target);
    match c.write(&p.to_b, &source.all(), &there.all()) {
        Err(PostError::ForeignPeer { peer }) => assert_eq!(peer, p.to_b.name()),
        other => panic!("{other:?}"),
    }
    c.remove_peer(&p.to_b);
    p.a.notify(&p.to_b, b"still a peer of a").unwrap().ended().unwrap();
    assert_eq!(bytes(&target), [0; 8]);
}
