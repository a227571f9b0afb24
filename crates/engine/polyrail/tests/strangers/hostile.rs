//! Strangers on the listening port: garbage, scanners, slow clients, and peers of other versions.

use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::stranger::{Stranger, card, hello, metadata};
use crate::common::*;
use polyrail::{Engine, LostReason, TransferError};
use polyrail_proto::hello::{FlowHello, Hello, Kind, RefusedCode, Reply};
use polyrail_sys::tcp;

fn refused(engine: &Engine) -> u64 {
    engine.stats().refused_connections
}

/// Moves data between two engines while `attack` runs, byte-exact, and some more after it.
fn undisturbed(p: &Pair, attack: impl FnOnce()) {
    let over = AtomicBool::new(false);
    let len = 1 << 20;
    let target = zeroed(&p.b, len);
    let there = remote(&p.a, &target);
    std::thread::scope(|scope| {
        let transfers = scope.spawn(|| {
            let mut round = 0;
            while !over.load(Ordering::Relaxed) || round < 3 {
                let source = filled(&p.a, len, round);
                p.a.write(&p.to_b, &source.all(), &there.all()).unwrap().ended().unwrap();
                assert!(bytes(&target) == pattern(len, round), "round {round}");
                round += 1;
            }
        });
        let tell = TellOnDrop(&over);
        attack();
        drop(tell);
        transfers.join().unwrap();
    });
    let rails = p.a.stats().peers.into_iter().flat_map(|peer| peer.rails);
    assert_eq!(rails.map(|rail| rail.down_count).sum::<u64>(), 0, "a flow was disturbed");
}

#[test]
fn garbage_browsers_and_port_scanners_are_turned_away_and_disturb_nobody() {
    let p = pair(&[]);
    undisturbed(&p, || {
        for garbage in [&b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"[..], &[0; 12], &[0xff; 5000]] {
            let mut stranger = Stranger::at(&p.b);
            stranger.say(garbage);
            assert_eq!(stranger.last_words(), b"", "strangers are told nothing");
        }
        assert_eq!(refused(&p.b), 3);
        for _ in 0..1000 {
            drop(TcpStream::connect(p.b.addresses()[0]).unwrap());
        }
        wait_for("the scan to be counted", || refused(&p.b) == 1003);
    });
}

#[test]
fn slow_strangers_are_dropped_and_keep_no_peer_out() {
    let settings = [("flow_limit", "256"), ("connect_timeout_ms", "20000")];
    let p = pair(&settings);
    let words = Kind::First.framed(&[1; 49]);
    let (over, address) = (AtomicBool::new(false), p.b.addresses()[0]);
    let slow = || {
        let mut streams: Vec<(TcpStream, usize)> = Vec::new();
        while !over.load(Ordering::Relaxed) {
            while streams.len() < 40 {
                streams.push((TcpStream::connect(address).unwrap(), 0));
            }
            // One byte each; a client that is turned away then comes again.
            streams.retain_mut(|(stream, at)| {
                *at += 1;
                std::io::Write::write_all(stream, &words[*at - 1..*at]).is_ok()
                    && *at + 1 < words.len()
            });
            // The test is about clients this slow.
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    undisturbed(&p, || {
        std::thread::scope(|scope| {
            let _tell = TellOnDrop(&over);
            scope.spawn(slow);
            wait_for("the limit to be reached", || refused(&p.b) >= 32);
            // A new peer gets through in spite of them.
            let other = engine(&[("reconnect_max_ms", "100")]);
            let to_b = other.add_peer(&p.b.metadata()).unwrap();
            let (source, target) = (filled(&other, 1 << 20, 5), zeroed(&p.b, 1 << 20));
            let there = remote(&other, &target);
            let write = other.write(&to_b, &source.all(), &there.all()).unwrap();
            write.ended().unwrap();
        });
    });
}

#[test]
fn a_stranger_that_says_nothing_is_dropped_in_time() {
    let engine = one_rail(&[("connect_timeout_ms", "200")]);
    let mut silent = Stranger::at(&engine);
    let since = Instant::now();
    assert_eq!(silent.last_words(), b"");
    assert!(since.elapsed() >= Duration::from_millis(150), "{:?}", since.elapsed());
    assert_eq!(refused(&engine), 1);
}

#[test]
fn strangers_that_say_hello_and_hang_up_leave_nothing_behind() {
    let engine = one_rail(&[("peer_timeout_ms", "500")]);
    for round in 0..200 {
        let hello = hello(&engine, card(&["127.0.0.1:9".parse().unwrap()]));
        let stranger = Stranger::greeting(&engine, &Hello::Flow(hello));
        if round % 2 == 0 {
            tcp::reset_on_close(&stranger.stream).unwrap();
        }
    }
    wait_for("the first to be known", || !engine.peers().is_empty());
    wait_for("all to be forgotten", || engine.peers().is_empty());
    // No call took the peers while they existed.
    assert_eq!(engine.accept_peer(Duration::ZERO), None);
}

fn with_version(mut bytes: Vec<u8>, version: u16) -> Vec<u8> {
    bytes[4..6].copy_from_slice(&version.to_le_bytes());
    bytes
}

#[test]
fn a_peer_of_another_version_that_connects_is_told_so() {
    let engine = one_rail(&[]);
    let mut newer = Stranger::at(&engine);
    newer.write(&with_version(Kind::First.framed(&[1; 49]), 3));
    match newer.reply() {
        Reply::Refused { code: RefusedCode::Version, reason } => {
            assert!(reason.contains("version 2"), "{reason}");
        }
        other => panic!("{other:?}"),
    }
    newer.last_words();
    assert_eq!((refused(&engine), engine.peers().len()), (1, 0));
}

#[test]
fn transfers_to_a_peer_of_another_version_fail_with_both_versions() {
    let engine = one_rail(&[]);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let newer = card(&[listener.local_addr().unwrap()]);
    let newer = metadata(&newer).encode();
    let error = engine.add_peer(&with_version(newer.clone(), 3)).unwrap_err().to_string();
    assert!(error.contains("version 3") && error.contains("speaks 2"), "{error}");
    // A peer's metadata may be older than its program.
    let peer = engine.add_peer(&newer).unwrap();
    let notify = engine.notify(&peer, b"hello").unwrap();
    let mut stranger = Stranger::on(listener.accept().unwrap().0);
    let no = Reply::Refused { code: RefusedCode::Version, reason: "I speak version 3".to_owned() };
    stranger.write(&with_version(Kind::Refusal.framed(&no.encode()), 3));
    match notify.ended().unwrap_err() {
        TransferError::PeerLost { peer, why } => {
            assert_eq!(peer, "stranger");
            assert_eq!(why, LostReason::Version { got: 3 });
            let why = why.to_string();
            assert!(why.contains("version 3") && why.contains("speaks 2"), "{why}");
        }
        other => panic!("{other}"),
    }
}

#[test]
fn a_hello_that_is_too_large_or_unreadable_or_meant_for_another_is_refused_with_the_reason() {
    let engine = one_rail(&[]);
    let good = hello(&engine, card(&["127.0.0.1:9".parse().unwrap()]));
    let refused_at = |mut stranger: Stranger| match stranger.reply() {
        Reply::Refused { code, reason } => {
            stranger.last_words();
            (code, reason)
        }
        other => panic!("{other:?}"),
    };
    let in_clear = |bytes: &[u8]| {
        let mut stranger = Stranger::at(&engine);
        stranger.write(bytes);
        refused_at(stranger)
    };
    let mut large = Kind::First.framed(&[]);
    large[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
    let (code, reason) = in_clear(&large);
    assert_eq!(code, RefusedCode::Malformed);
    assert!(reason.contains("4294967295") && reason.contains("16384"), "{reason}");
    let mut unknown = Kind::First.framed(&[]);
    unknown[6] = 9;
    let (code, reason) = in_clear(&unknown);
    assert_eq!(code, RefusedCode::Malformed);
    assert!(reason.contains("kind is 9, allowed is 1 to 5"), "{reason}");
    for early in [Kind::Second, Kind::Third, Kind::Reply, Kind::Refusal] {
        let (code, reason) = in_clear(&early.framed(&[1; 49]));
        assert_eq!(code, RefusedCode::Malformed);
        assert!(reason.contains(&format!("kind is {}", early as u16)), "{reason}");
    }
    let mut unreadable = Hello::Flow(good.clone()).encode();
    unreadable[0] = 9;
    let mut stranger = Stranger::at(&engine);
    stranger.prove(&engine, good.card.instance, &unreadable);
    let (code, reason) = refused_at(stranger);
    assert_eq!(code, RefusedCode::Malformed);
    assert!(reason.contains("purpose of hello is 9, allowed is 1 (flow) or 2"), "{reason}");
    let refusal = |hello| refused_at(Stranger::greeting(&engine, &Hello::Flow(hello)));
    let mut other = good.clone();
    other.target.0 ^= 1;
    assert_eq!(refusal(other).0, RefusedCode::WrongInstance);
    let (code, reason) = refusal(FlowHello { flows: 5000, ..good.clone() });
    assert_eq!(code, RefusedCode::Limit);
    assert!(reason.contains("5000") && reason.contains("4096"), "{reason}");
    let unreachable = card(&["[fd00::9]:9".parse().unwrap()]);
    let (_, reason) = refusal(FlowHello { card: unreachable, ..good.clone() });
    assert!(reason.contains("fd00::9") && reason.contains("127.0.0.1"), "{reason}");
    assert_eq!(engine.peers().len(), 0);
    // A correct hello is accepted.
    Stranger::welcome_at(&engine, good);
}
