//! Messages that their sender copies straight into the receive, on one host: between engines of one process,
//! and between processes, one of which gives up, is killed or stopped in the middle.

use std::time::{Duration, Instant};

use crate::common::puppet::{Puppet, hex};
use crate::common::*;
use polyrail::{
    Access, Engine, Memory, PathKind, Peer, RefusalCode, Region, Registrable, Request, Transfer,
    TransferError,
};
use rustix::process::Signal;

const ON: &[(&str, &str)] = &[("path", "auto")];
const QUICK: &[(&str, &str)] =
    &[("path", "auto"), ("peer_timeout_ms", "1200"), ("reconnect_max_ms", "200")];
/// Bytes of a region that long messages are made of, as many times as a receive may have parts.
const ROOM: usize = 32 << 20;
const TIMES: u64 = 1024;
/// Nobody sends it.
const MINE: u8 = 0xee;
/// The shortest message that is copied.
const SHORTEST: u64 = 128 << 10;
const MARK_EVERY: usize = 32 << 10;

/// A process of its own with a room for messages, and this one's engine with another.
struct Two {
    engine: Engine,
    puppet: Puppet,
    peer: Peer,
    memory: Memory,
    room: Region,
}

impl Two {
    /// Once each end knows where the other's room is: the first messages take the rails.
    fn start(settings: &[(&str, &str)]) -> Self {
        let engine = engine(settings);
        let mut puppet = Puppet::start(&engine, settings);
        let peer = engine.add_peer(&puppet.metadata).unwrap();
        assert_eq!(puppet.ask(&format!("add {}", hex(&engine.metadata()))), "added");
        assert_eq!(puppet.ask(&format!("room {ROOM}")), "has room");
        let memory = Memory::from(vec![0; ROOM]);
        let room = engine.register(memory.clone()).unwrap();
        let mut two = Self { engine, puppet, peer, memory, room };
        two.until_copied("send");
        two.until_copied("receive");
        two
    }

    /// The puppet sends, or receives, until no rail carries that.
    fn until_copied(&mut self, order: &str) {
        let began = Instant::now();
        loop {
            let before = by_rails(&self.engine);
            assert_eq!(self.puppet.ask(&format!("{order} 7 {SHORTEST} 1 0")), "posted");
            let part = self.room.slice(0, SHORTEST).unwrap();
            let here = match order {
                "send" => self.engine.receive(&self.peer, 7, &part).unwrap(),
                _ => self.engine.send(&self.peer, 7, &part).unwrap(),
            };
            assert_eq!(here.ended().unwrap().bytes, SHORTEST);
            assert_eq!(self.puppet.hear(), format!("{order} 7: {SHORTEST} bytes"));
            if by_rails(&self.engine) == before {
                return;
            }
            assert!(began.elapsed() < LONG, "no message is copied");
        }
    }

    fn parts(&self) -> impl Iterator<Item = polyrail::RegionSlice> + use<> {
        let all = self.room.all();
        (0..TIMES).map(move |_| all.clone())
    }

    /// A receive of many gigabytes, into which the puppet copies by now.
    fn long_receive(&mut self, timeout: Option<Duration>, puppet_ms: u64) -> Transfer {
        assert_eq!(self.puppet.ask("peek"), "0", "what comes must be seen");
        self.room.write_at(0, &[MINE]).unwrap();
        let mut request = Request::receive(&self.peer, 1).locals(self.parts());
        if let Some(timeout) = timeout {
            request = request.timeout(timeout);
        }
        let before = by_rails(&self.engine);
        let receive = self.engine.post(request).unwrap();
        let order = format!("send 1 {ROOM} {TIMES} {puppet_ms}");
        assert_eq!(self.puppet.ask(&order), "posted");
        wait_for("bytes to land", || first_of(&self.memory) == 0);
        assert_eq!(by_rails(&self.engine), before, "a rail carries it");
        assert!(!receive.is_over());
        receive
    }

    /// A send of many gigabytes, which is copied to the puppet by now.
    fn long_send(&mut self, timeout: Option<Duration>, puppet_ms: u64) -> Transfer {
        let before = by_rails(&self.engine);
        self.room.write_at(0, &[MINE]).unwrap();
        let order = format!("receive 1 {ROOM} {TIMES} {puppet_ms}");
        assert_eq!(self.puppet.ask(&order), "posted");
        let mut request = Request::send(&self.peer, 1).locals(self.parts());
        if let Some(timeout) = timeout {
            request = request.timeout(timeout);
        }
        let send = self.engine.post(request).unwrap();
        let began = Instant::now();
        while self.puppet.ask("peek") != MINE.to_string() {
            assert!(began.elapsed() < LONG, "nothing lands");
        }
        assert_eq!(by_rails(&self.engine), before, "a rail carries it");
        assert!(!send.is_over());
        send
    }

    /// The user of a receive that is over uses its memory for something else.
    fn reuse(&self) {
        reuse(&self.memory);
    }

    fn assert_mine(&self, when: &str) {
        assert_mine(&self.memory, when);
    }
}

/// Marks some bytes of the memory, and is quick: what lands meanwhile is not to be written over.
fn reuse(memory: &Memory) {
    (0..ROOM as u64).step_by(MARK_EVERY).for_each(|at| memory.write_at(at, &[MINE]).unwrap());
}

fn assert_mine(memory: &Memory, when: &str) {
    let mut found = vec![0; ROOM];
    memory.read_at(0, &mut found).unwrap();
    let is_mine = found.iter().step_by(MARK_EVERY).all(|byte| *byte == MINE);
    assert!(is_mine, "{when}: a late copy landed");
}

fn first_of(memory: &Memory) -> u8 {
    let mut first = [0];
    memory.read_at(0, &mut first).unwrap();
    first[0]
}

/// What takes effect within a piece takes much less than the transfer.
fn soon(began: Instant) {
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
}

/// Payload that rails carried.
fn by_rails(engine: &Engine) -> u64 {
    let stats = engine.stats();
    stats.totals.tx_bytes + stats.totals.rx_bytes
}

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
        // Now the one is first, then the other. A receive may have more room.
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
    // What is short takes the rails.
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
    // Cut differently at each end, from and to two regions in turn, backwards at one end.
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
fn a_receive_that_ends_in_mid_copy_in_one_process_is_over_when_nothing_lands_any_more() {
    for (end, name) in [(0, "cancel"), (1, "deadline"), (2, "region"), (3, "engine")] {
        let p = pair(ON);
        let memory = Memory::from(vec![MINE; ROOM]);
        let (source, target) = (zeroed(&p.a, ROOM), p.b.register(memory.clone()).unwrap());
        let parts = |region: &Region| {
            let all = region.all();
            (0..TIMES).map(move |_| all.clone())
        };
        let mut request = Request::receive(&p.to_a, 1).locals(parts(&target));
        if end == 1 {
            request = request.timeout(Duration::from_millis(300));
        }
        let receive = p.b.post(request).unwrap();
        let send = p.a.post(Request::send(&p.to_b, 1).locals(parts(&source))).unwrap();
        wait_for("bytes to land", || first_of(&memory) == 0);
        let began = Instant::now();
        match end {
            0 => receive.cancel(),
            2 => target.end(),
            3 => p.b.close(),
            _ => {}
        }
        let ended = receive.ended();
        reuse(&memory);
        let is_right = match end {
            0 => matches!(ended, Err(TransferError::Cancelled)),
            1 => matches!(ended, Err(TransferError::Deadline { .. })),
            2 => matches!(ended, Err(TransferError::RegionDropped)),
            _ => matches!(ended, Err(TransferError::PeerLost { .. })),
        };
        assert!(is_right, "{name}: {ended:?}");
        soon(began);
        let sent = send.ended();
        assert!(
            matches!(sent, Err(TransferError::Refused { .. } | TransferError::PeerLost { .. })),
            "{name}: {sent:?}"
        );
        soon(began);
        assert_mine(&memory, name);
        // Of what ends with its region the rails find out why.
        assert!(end >= 2 || by_rails(&p.a) == 0, "{name}");
    }
}

#[test]
fn a_send_that_ends_in_mid_copy_in_one_process_fails_its_receive() {
    for (end, name) in [(0, "cancel"), (1, "deadline"), (2, "region")] {
        let p = pair(ON);
        let memory = Memory::from(vec![MINE; ROOM]);
        let (source, target) = (zeroed(&p.a, ROOM), p.b.register(memory.clone()).unwrap());
        let parts = |region: &Region| {
            let all = region.all();
            (0..TIMES).map(move |_| all.clone())
        };
        let receive = p.b.post(Request::receive(&p.to_a, 1).locals(parts(&target))).unwrap();
        let mut request = Request::send(&p.to_b, 1).locals(parts(&source));
        if end == 1 {
            request = request.timeout(Duration::from_millis(300));
        }
        let send = p.a.post(request).unwrap();
        wait_for("bytes to land", || first_of(&memory) == 0);
        let began = Instant::now();
        match end {
            0 => send.cancel(),
            2 => source.end(),
            _ => {}
        }
        let ended = send.ended();
        let is_right = match end {
            0 => matches!(ended, Err(TransferError::Cancelled)),
            1 => matches!(ended, Err(TransferError::Deadline { .. })),
            _ => matches!(ended, Err(TransferError::RegionDropped)),
        };
        assert!(is_right, "{name}: {ended:?}");
        let ended = receive.ended();
        assert!(matches!(ended, Err(TransferError::SendFailed { .. })), "{name}: {ended:?}");
        soon(began);
        // The next message finds its own receive.
        let small = zeroed(&p.b, 8192);
        let receive = p.b.receive(&p.to_a, 1, &small.all()).unwrap();
        finished(&p.a.send(&p.to_b, 1, &filled(&p.a, 8192, 3).all()).unwrap());
        assert_eq!(receive.ended().unwrap().bytes, 8192);
        assert!(bytes(&small) == pattern(8192, 3));
    }
}

#[test]
fn messages_of_many_tags_go_both_ways_between_processes_and_no_rail_carries_them() {
    let mut two = Two::start(ON);
    let (tags, rounds) = (16_u64, 20_u64);
    for len in [131_073_usize, 262_144, 262_145, 1_000_003] {
        let at = |tag: u64| tag * len as u64;
        // Whatever landed before is another message's.
        let before = by_rails(&two.engine);
        assert_eq!(two.puppet.ask(&format!("echo {tags} {rounds} {len}")), "ready");
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
        assert_eq!(two.puppet.hear(), "echoed");
        assert_eq!(by_rails(&two.engine), before, "{len}");
    }
}

#[test]
fn a_receive_that_ends_in_mid_copy_is_over_when_nothing_lands_any_more() {
    for (end, name) in [(0, "cancel"), (1, "deadline"), (2, "region"), (3, "engine")] {
        let mut two = Two::start(ON);
        let timeout = (end == 1).then_some(Duration::from_millis(400));
        let receive = two.long_receive(timeout, 0);
        let began = Instant::now();
        match end {
            0 => receive.cancel(),
            2 => two.room.end(),
            3 => two.engine.close(),
            _ => {}
        }
        let ended = receive.ended();
        two.reuse();
        let is_right = match end {
            0 => matches!(ended, Err(TransferError::Cancelled)),
            1 => matches!(ended, Err(TransferError::Deadline { .. })),
            2 => matches!(ended, Err(TransferError::RegionDropped)),
            _ => matches!(ended, Err(TransferError::PeerLost { .. })),
        };
        assert!(is_right, "{name}: {ended:?}");
        soon(began);
        let sent = two.puppet.hear();
        let refused = if end == 3 { "send 1: " } else { "refused" };
        assert!(sent.contains(refused) && !sent.ends_with("bytes"), "{name}: {sent}");
        soon(began);
        two.assert_mine(name);
        if end < 2 {
            // What comes later does so by a copy.
            two.until_copied("send");
        }
    }
}

#[test]
fn a_send_that_ends_in_mid_copy_fails_the_receive_of_another_process() {
    for (end, name) in [(0, "cancel"), (1, "deadline"), (2, "region")] {
        let mut two = Two::start(ON);
        let timeout = (end == 1).then_some(Duration::from_millis(400));
        let send = two.long_send(timeout, 0);
        let began = Instant::now();
        match end {
            0 => send.cancel(),
            2 => two.room.end(),
            _ => {}
        }
        let ended = send.ended();
        let is_right = match end {
            0 => matches!(ended, Err(TransferError::Cancelled)),
            1 => matches!(ended, Err(TransferError::Deadline { .. })),
            _ => matches!(ended, Err(TransferError::RegionDropped)),
        };
        assert!(is_right, "{name}: {ended:?}");
        let received = two.puppet.hear();
        assert!(received.starts_with("receive 1: ") && !received.ends_with("bytes"), "{received}");
        soon(began);
        if end < 2 {
            two.until_copied("receive");
        }
    }
}

#[test]
fn a_receive_of_another_process_that_ends_in_mid_copy_ends_the_send() {
    for (end, name) in [(0, "cancel"), (1, "deadline"), (2, "region")] {
        let mut two = Two::start(ON);
        let send = two.long_send(None, if end == 1 { 400 } else { 0 });
        let began = Instant::now();
        let received = match end {
            0 => two.puppet.ask("cancel 1"),
            2 => two.puppet.ask("end_room"),
            _ => two.puppet.hear(),
        };
        soon(began);
        let received = if received == "ended" { two.puppet.hear() } else { received };
        assert!(received.starts_with("receive 1: ") || received == "ended", "{name}: {received}");
        let sent = send.ended();
        let codes = [RefusalCode::NotExpected, RefusalCode::RegionDropped];
        assert!(
            matches!(&sent, Err(TransferError::Refused { code, .. }) if codes.contains(code)),
            "{name}: {sent:?}"
        );
        soon(began);
    }
}

#[test]
fn a_sender_that_ends_its_send_in_another_process_fails_the_receive_here() {
    for (end, name) in [(0, "cancel"), (1, "deadline"), (2, "region")] {
        let mut two = Two::start(ON);
        let receive = two.long_receive(None, if end == 1 { 400 } else { 0 });
        let began = Instant::now();
        let sent = match end {
            0 => two.puppet.ask("cancel 1"),
            2 => two.puppet.ask("end_room"),
            _ => two.puppet.hear(),
        };
        let ended = receive.ended();
        two.reuse();
        assert!(matches!(ended, Err(TransferError::SendFailed { .. })), "{name}: {ended:?}");
        soon(began);
        let sent = if sent == "ended" { two.puppet.hear() } else { sent };
        assert!(sent.starts_with("send 1: ") && !sent.ends_with("bytes"), "{name}: {sent}");
        two.assert_mine(name);
    }
}

#[test]
fn a_sender_that_is_killed_or_stopped_in_mid_copy_is_lost_and_writes_nothing_after_that() {
    for signal in [Signal::KILL, Signal::STOP] {
        let mut two = Two::start(QUICK);
        let receive = two.long_receive(None, 0);
        let began = Instant::now();
        match signal {
            Signal::KILL => two.puppet.kill(),
            other => two.puppet.signal(other),
        }
        let ended = receive.ended();
        two.reuse();
        assert!(matches!(ended, Err(TransferError::PeerLost { .. })), "{signal:?}: {ended:?}");
        soon(began);
        if signal == Signal::STOP {
            two.puppet.signal(Signal::CONT);
            let sent = two.puppet.hear();
            assert!(sent.starts_with("send 1: ") && !sent.ends_with("bytes"), "{sent}");
        }
        two.assert_mine(&format!("{signal:?}"));
    }
}

#[test]
fn a_receive_that_is_cancelled_while_its_sender_is_stopped_waits_until_that_is_given_up() {
    // It is to be cancelled before its sender is given up, also where CPUs are short.
    let mut two = Two::start(&[("path", "auto"), ("peer_timeout_ms", "4000")]);
    let receive = two.long_receive(None, 0);
    two.puppet.signal(Signal::STOP);
    let began = Instant::now();
    receive.cancel();
    let ended = receive.ended();
    two.reuse();
    assert!(matches!(ended, Err(TransferError::Cancelled)), "{ended:?}");
    assert!(two.peer.lost().is_some(), "until then it may have landed bytes");
    soon(began);
    two.puppet.signal(Signal::CONT);
    let sent = two.puppet.hear();
    assert!(sent.starts_with("send 1: ") && !sent.ends_with("bytes"), "{sent}");
    two.assert_mine("stopped");
}

#[test]
fn a_receiver_that_is_killed_or_stopped_in_mid_copy_ends_the_send_as_lost() {
    for signal in [Signal::KILL, Signal::STOP] {
        let mut two = Two::start(QUICK);
        let send = two.long_send(None, 0);
        let began = Instant::now();
        match signal {
            Signal::KILL => two.puppet.kill(),
            other => two.puppet.signal(other),
        }
        // A stopped process's memory can be copied to, but it takes note of nothing.
        let ended = send.ended();
        assert!(matches!(ended, Err(TransferError::PeerLost { .. })), "{signal:?}: {ended:?}");
        assert!(began.elapsed() < LONG);
        assert_eq!(two.engine.stats().ops_outstanding, 0);
        two.room.end();
    }
}

#[test]
fn callers_that_make_the_progress_send_and_receive_copies() {
    let caller: &[(&str, &str)] = &[("path", "auto"), ("progress", "caller")];
    let mut two = Two::start(caller);
    let receive = two.long_receive(None, 0);
    let began = Instant::now();
    receive.cancel();
    let ended = receive.ended();
    two.reuse();
    assert!(matches!(ended, Err(TransferError::Cancelled)), "{ended:?}");
    soon(began);
    let sent = two.puppet.hear();
    assert!(sent.contains("refused"), "{sent}");
    two.assert_mine("callers");
    two.until_copied("receive");
}

#[test]
fn what_may_not_be_copied_goes_another_way_and_the_path_says_why() {
    let off: &[(&str, &str)] = &[("path", "device")];
    // In one process.
    for (here, there, expected) in [
        (off, ON, "tcp: the setting path says device"),
        (ON, off, "tcp: the peer's settings forbid it"),
        (&[("path", "tcp")], ON, "tcp: the setting path says tcp"),
    ] {
        let (a, b) = (engine(here), engine(there));
        let (to_b, to_a) = (a.add_peer(&b.metadata()).unwrap(), b.add_peer(&a.metadata()).unwrap());
        let (source, target) = (filled(&a, 1 << 20, 1), zeroed(&b, 1 << 20));
        let receive = b.receive(&to_a, 1, &target.all()).unwrap();
        let prepared = a.prepare(Request::send(&to_b, 1).local(source.all())).unwrap();
        assert_eq!(prepared.path().to_string(), expected);
        finished(&prepared.post().unwrap());
        finished(&receive);
        assert!(bytes(&target) == pattern(1 << 20, 1) && by_rails(&a) == 1 << 20);
    }
    // Between two, where the peer refuses what it is asked for.
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
        // The first ones, until the peer's answers have come.
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
