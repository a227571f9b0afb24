//! Messages that their sender copies straight into the receive, on one host: between engines of one process,
//! and between processes.

use std::time::Instant;

use super::ways::{Ends, Kind, SHORTEST};
use super::{ON, by_rails};
use crate::common::puppet::{Puppet, hex};
use crate::common::*;
use polyrail::{Access, Memory, PathKind, Registrable, Request, TransferError};

#[test]
fn messages_of_any_size_arrive_in_one_process_and_no_rail_carries_them() {
    let p = pair(ON);
    let mut sum = 0;
    for (round, len) in [131_072, 131_073, 262_144, 262_145, 1_000_003, (1 << 20) + 1, 17 << 20]
        .into_iter()
        .enumerate()
    {
        let want = pattern(len, round as u64);
        let (source, target) = (filled(&p.a, len, round as u64), zeroed(&p.b, len + 100));
        let request = Request::send(&p.to_b, 5).local(source.all());
        let prepared = p.a.prepare(request).unwrap();
        assert_eq!(prepared.path().kind, PathKind::SingleCopy, "{}", prepared.path());
        // Each of the two is first in some rounds. A receive may have more room.
        let receive = || p.b.receive(&p.to_a, 5, &target.all()).unwrap();
        let early = (round % 2 == 0).then(receive);
        let send = prepared.post().unwrap();
        let receive = early.unwrap_or_else(receive);
        assert_eq!(receive.ended().unwrap().bytes, len as u64);
        assert_eq!(send.ended().unwrap().bytes, len as u64);
        let found = bytes(&target);
        assert!(found[..len] == want && found[len..].iter().all(|byte| *byte == 0), "{len}");
        sum += len as u64;
    }
    assert_eq!((by_rails(&p.a), p.a.stats().totals.peer_copy_bytes), (0, sum));
    // Short messages take the rails.
    let mut sent = 0;
    for len in [8, SHORTEST as usize - 1] {
        let (source, target) = (filled(&p.a, len, 5), zeroed(&p.b, len));
        let receive = p.b.receive(&p.to_a, 6, &target.all()).unwrap();
        let prepared = p.a.prepare(Request::send(&p.to_b, 6).local(source.all())).unwrap();
        assert!(prepared.path().to_string().starts_with("tcp: it is short"), "{}", prepared.path());
        finished(&prepared.post().unwrap());
        assert_eq!(receive.ended().unwrap().bytes, len as u64);
        sent += len as u64;
        assert!(by_rails(&p.a) == sent && bytes(&target) == pattern(len, 5), "{len}");
    }
}

#[test]
fn a_message_that_is_too_long_takes_place_at_neither_end() {
    let p = pair(ON);
    let (source, target) = (filled(&p.a, 100_000, 1), zeroed(&p.b, 99_999));
    let receive = p.b.receive(&p.to_a, 1, &target.all()).unwrap();
    let send = p.a.send(&p.to_b, 1, &source.all()).unwrap();
    for ended in [send.ended(), receive.ended()] {
        let too_long = TransferError::TooLong { len: 100_000, capacity: 99_999 };
        assert!(
            matches!(&ended, Err(error) if error.to_string() == too_long.to_string()),
            "{ended:?}"
        );
    }
    assert!(bytes(&target).iter().all(|byte| *byte == 0));
}

#[test]
fn lists_of_parts_are_copied_to_their_places_in_one_process() {
    let p = pair(ON);
    // Cut differently at each end, from and to two regions alternately, backwards at one end.
    let (count, len) = (600_usize, 1021_usize);
    let sources = [1, 2].map(|seed| filled(&p.a, count * len, seed));
    let targets = [zeroed(&p.b, count * len), zeroed(&p.b, count * len)];
    let from = |i: usize| sources[i % 2].slice((i * len) as u64, len as u64).unwrap();
    let room = 2 * len as u64;
    let to = |i: usize| targets[i % 2].slice((count / 2 - 1 - i) as u64 * room, room).unwrap();
    let receives = Request::receive(&p.to_a, 1).locals((0..count / 2).map(to));
    let receive = p.b.post(receives).unwrap();
    finished(&p.a.post(Request::send(&p.to_b, 1).locals((0..count).map(from))).unwrap());
    assert_eq!(receive.ended().unwrap().bytes, (count * len) as u64);
    let patterns = [1, 2].map(|seed| pattern(count * len, seed));
    let found = targets.each_ref().map(bytes);
    for i in 0..count {
        let want = &patterns[i % 2][i * len..(i + 1) * len];
        let half = i / 2;
        let at = (count / 2 - 1 - half) * 2 * len + (i % 2) * len;
        assert!(&found[half % 2][at..at + len] == want, "{i}");
    }
    assert_eq!(by_rails(&p.a), 0);
}

#[test]
fn messages_of_many_tags_go_both_ways_between_processes_and_no_rail_carries_them() {
    let mut two = Ends::start(Kind::Receive, false, ON);
    let (tags, rounds) = (16_u64, 20_u64);
    for len in [131_073_usize, 262_144, 262_145, 1_000_003] {
        let at = |tag: u64| tag * len as u64;
        // All that landed before belongs to another message.
        let before = by_rails(&two.engine);
        assert_eq!(two.there.ask(&format!("echo {tags} {rounds} {len}")), "ready");
        let sources: Vec<_> = (0..tags)
            .map(|tag| two.engine.register(Memory::from(pattern(len, tag))).unwrap())
            .collect();
        for round in 0..rounds {
            for (tag, source) in sources.iter().enumerate() {
                source.write_at(0, &round.to_le_bytes()).unwrap();
                source.write_at(len as u64 - 1, &[tag as u8]).unwrap();
            }
            let receive = |tag: u64| {
                let here = two.room.slice(at(tag), len as u64).unwrap();
                two.engine.receive(&two.peer, 1000 + tag, &here).unwrap()
            };
            let receives: Vec<_> = (0..tags).map(receive).collect();
            let send = |tag: u64| {
                let source = &sources[tag as usize];
                two.engine.send(&two.peer, tag, &source.all()).unwrap()
            };
            let sends: Vec<_> = (0..tags).rev().map(send).collect();
            sends.iter().for_each(finished);
            for (tag, receive) in receives.iter().enumerate() {
                assert_eq!(receive.ended().unwrap().bytes, len as u64);
                let mut found = vec![0; len];
                two.room.read_at(at(tag as u64), &mut found).unwrap();
                assert!(found == bytes(&sources[tag]), "round {round}, tag {tag}, {len} bytes");
            }
        }
        assert_eq!(two.there.hear(), "echoed");
        assert_eq!(by_rails(&two.engine), before, "{len}");
    }
}

#[test]
fn what_the_peer_refuses_goes_another_way_and_the_path_says_why() {
    let off: &[(&str, &str)] = &[("path", "device")];
    // The peer refuses the request.
    let refusals = [
        (off, Access::ALL, "the setting path says device"),
        (ON, Access::LOCAL, "the peer may not both read and write it"),
    ];
    for (there, access, why) in refusals {
        let engine = engine(there);
        let mut puppet = Puppet::start(&engine, ON);
        let peer = engine.add_peer(&puppet.metadata).unwrap();
        assert_eq!(puppet.ask(&format!("add {}", hex(&engine.metadata()))), "added");
        assert_eq!(puppet.ask("room 1048576"), "has room");
        let target = engine.register(Memory::from(vec![0; 1 << 20]).with_access(access)).unwrap();
        let mut carried_by_rails = || {
            let before = by_rails(&engine);
            let receive = engine.receive(&peer, 1, &target.all()).unwrap();
            assert_eq!(puppet.ask("send 1 1048576 1 0"), "posted");
            assert_eq!(receive.ended().unwrap().bytes, 1 << 20);
            assert_eq!(puppet.hear(), "send 1: 1048576 bytes");
            (by_rails(&engine) - before, puppet.ask("path_of_send 1048576"))
        };
        // The first messages, until the peer's answers have come.
        let began = Instant::now();
        loop {
            let (bytes, path) = carried_by_rails();
            assert!([0, 1 << 20].contains(&bytes), "{why}: {bytes}");
            if path.starts_with("shared memory: ") && path.contains(why) {
                break;
            }
            assert!(
                path.starts_with("tcp: ") && path.contains(why) || path.contains("once it meets"),
                "{path}"
            );
            assert!(began.elapsed() < LONG, "{path}");
        }
        assert_eq!(carried_by_rails().0, 0, "{why}");
    }
}
