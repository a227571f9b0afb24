//! Accepted peers that then break the protocol, or touch memory that they may not. `attacks` has those that do so on
//! purpose, while an honest peer works.

use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use crate::common::acquaintance::Acquaintance;
use crate::common::stranger::{Stranger, card, frame, hello, key_of, on_this_host, write_header};
use crate::common::*;
use polyrail::{Access, Memory, Registrable};
use polyrail_proto::message::Message;
use polyrail_proto::wire::{AckFrame, ChunkHeader, Flags, Place, RefusalCode, SharedPlace, WireOp};
use polyrail_proto::{RegionKey, TransferId};
use polyrail_sys::SharedMemory;

/// Guard byte of a region, around the part that strangers know.
const GUARD: u8 = 0x77;

#[test]
fn a_malformed_frame_closes_its_flow_and_changes_nothing() {
    let engine = one_rail(&[]);
    let region = engine.register(Memory::from(vec![GUARD; 4096])).unwrap();
    let place = Place { key: key_of(&region), offset: 0, len: 64 };
    let good = frame(write_header(64, 1), &[place], &[], &[1; 64]);
    let patched = |at: usize, bytes: &[u8]| {
        let mut frame = good.clone();
        frame[at..at + bytes.len()].copy_from_slice(bytes);
        frame
    };
    let many = u32::MAX.to_le_bytes();
    let cases = [
        ("an unknown kind", patched(0, &[9])),
        ("an acknowledgement of nothing", AckFrame::Ack { sequence: 1 }.encode().to_vec()),
        ("an unknown operation", patched(1, &[9])),
        ("unknown flags", patched(2, &[0, 0x80])),
        ("a huge message", patched(4, &many)),
        ("a huge payload", patched(8, &many)),
        ("more pieces than allowed", patched(12, &[0xff, 0xff])),
        ("a reserved byte", patched(14, &[1])),
        ("transfer 0", patched(16, &[0])),
        ("a floor above the transfer", patched(32, &[200])),
        ("a chunk beyond the last", patched(24, &[1])),
        ("no chunks", patched(28, &[0])),
        ("more chunks than allowed", patched(28, &many)),
        ("pieces that don't add up", patched(56 + 24, &[65])),
        ("an empty piece", patched(56 + 24, &[0])),
        ("a piece beyond 2^64", patched(56 + 16, &[0xff; 8])),
        ("a place in no ring", patched(52, &[1])),
        ("a ring that was not announced", patched(2, &[8])),
        ("memory of another host", RING.encode().to_vec()),
    ];
    for (what, bytes) in cases {
        let mut peer =
            Stranger::welcome_at(&engine, hello(&engine, card(&["127.0.0.1:9".parse().unwrap()])));
        peer.say(&bytes);
        assert_eq!(peer.last_words(), b"", "{what}");
        assert!(crate::common::bytes(&region).iter().all(|byte| *byte == GUARD), "{what}");
    }
    // The flow of an honest peer still works, and proves that the good frame is good.
    let mut peer =
        Stranger::welcome_at(&engine, hello(&engine, card(&["127.0.0.1:9".parse().unwrap()])));
    peer.say(&good);
    assert_eq!(peer.ack(), AckFrame::Ack { sequence: 1 });
    assert_eq!(crate::common::bytes(&region)[..65], [&[1; 64][..], &[GUARD]].concat());
}

#[test]
fn what_came_whole_before_a_malformed_frame_counts() {
    let engine = one_rail(&[]);
    let mut peer =
        Stranger::welcome_at(&engine, hello(&engine, card(&["127.0.0.1:9".parse().unwrap()])));
    let header = ChunkHeader { flags: Flags::NOTIFY, meta_len: 5, ..write_header(0, 0) };
    let mut bytes = frame(header, &[], b"hello", &[]);
    bytes.push(9);
    peer.say(&bytes);
    peer.last_words();
    // A copy of it, on the next connection, would not be delivered: it has landed.
    assert_eq!(engine.wait_notification(LONG).expect("it is told of").data, b"hello");
}

#[test]
fn payload_as_it_is_changes_nothing_where_it_has_to_be_sealed() {
    for (payload, is_taken) in [("none", true), ("crc32c", true), ("aead", false)] {
        let engine = one_rail(&[("payload", payload)]);
        let region = engine.register(Memory::from(vec![GUARD; 4096])).unwrap();
        let place = Place { key: key_of(&region), offset: 0, len: 64 };
        let hello = hello(&engine, card(&["127.0.0.1:9".parse().unwrap()]));
        let mut peer = Stranger::welcome_at(&engine, hello);
        peer.say_raw(&frame(write_header(64, 1), &[place], &[], &[]), &[1; 64]);
        if is_taken {
            assert_eq!(peer.ack(), AckFrame::Ack { sequence: 1 }, "{payload}");
        } else {
            assert_eq!(peer.last_words(), b"", "{payload}");
        }
        let want = if is_taken { 1 } else { GUARD };
        assert_eq!(crate::common::bytes(&region)[..65], [&[want; 64][..], &[GUARD]].concat());
    }
}

const RING: SharedPlace = SharedPlace { process: 1, descriptor: 0, bytes: 4096, token: 5 };

#[test]
fn a_ring_that_can_not_be_opened_or_does_not_hold_what_is_said_changes_nothing() {
    let engine = one_rail(&[]);
    let region = engine.register(Memory::from(vec![GUARD; 4096])).unwrap();
    let place = Place { key: key_of(&region), offset: 0, len: 64 };
    let memory = SharedMemory::create(4096, 5).unwrap();
    memory.memory().write_at(256, &[1; 64]).unwrap();
    let process = std::process::id();
    let good = SharedPlace { process, descriptor: memory.descriptor(), ..RING };
    let in_ring = |number, at| {
        let mut header = ChunkHeader { transfer: TransferId(number), ..write_header(64, 1) };
        assert!(header.set_place_in_ring(at));
        frame(header, &[place], &[], &[])
    };
    let neighbour = || {
        let card = on_this_host(&engine, card(&["127.0.0.1:9".parse().unwrap()]));
        Stranger::welcome_at(&engine, hello(&engine, card))
    };
    for ring in [
        SharedPlace { token: 6, ..good },
        SharedPlace { bytes: 8192, ..good },
        SharedPlace { bytes: u64::MAX, ..good },
        SharedPlace { descriptor: 0, ..good },
        SharedPlace { process: u32::MAX, ..good },
    ] {
        let mut peer = neighbour();
        peer.say(&ring.encode());
        let code = RefusalCode::NoRing;
        for number in 1..3 {
            peer.say(&in_ring(number, 256));
            assert_eq!(peer.ack(), AckFrame::Refusal { sequence: number, code }, "{ring:?}");
        }
        // The flow lives on.
        let header = ChunkHeader { transfer: TransferId(3), ..write_header(64, 1) };
        peer.say(&frame(header, &[place], &[], &[GUARD; 64]));
        assert_eq!(peer.ack(), AckFrame::Ack { sequence: 3 });
    }
    let beyond = [&good.encode()[..], &in_ring(1, 4096)].concat();
    let twice = [good.encode(), good.encode()].concat();
    for bytes in [beyond, twice] {
        let mut peer = neighbour();
        peer.say(&bytes);
        assert_eq!(peer.last_words(), b"");
    }
    assert!(crate::common::bytes(&region).iter().all(|byte| *byte == GUARD));
    let mut peer = neighbour();
    peer.say(&[&good.encode()[..], &in_ring(1, 256)].concat());
    assert_eq!(peer.ack(), AckFrame::Ack { sequence: 1 });
    assert_eq!(crate::common::bytes(&region)[..65], [&[1; 64][..], &[GUARD]].concat());
}

#[test]
fn chunks_for_places_that_a_peer_may_not_touch_are_refused_and_change_nothing() {
    let engine = one_rail(&[]);
    let region = engine.register(Memory::from(vec![GUARD; 4096])).unwrap();
    let access = Access::READ;
    let protected = engine.register(Memory::from(vec![GUARD; 4096]).with_access(access)).unwrap();
    let key = key_of(&region);
    let guess = |change: fn(&mut RegionKey)| {
        let mut key = key;
        change(&mut key);
        Place { key, offset: 0, len: 64 }
    };
    let at = |offset, len| Place { key, offset, len };
    let data = |op, context| ChunkHeader { op, context, ..write_header(64, 1) };
    let cases = [
        (RefusalCode::StaleKey, guess(|key| key.nonce ^= 1), data(WireOp::Write, 0)),
        (RefusalCode::StaleKey, guess(|key| key.nonce = 0), data(WireOp::Write, 0)),
        (RefusalCode::StaleKey, guess(|key| key.generation += 1), data(WireOp::Write, 0)),
        (RefusalCode::UnknownRegion, guess(|key| key.slot = 1000), data(WireOp::Write, 0)),
        (RefusalCode::OutOfBounds, at(4033, 64), data(WireOp::Write, 0)),
        (RefusalCode::OutOfBounds, at(u64::MAX - 64, 64), data(WireOp::Write, 0)),
        (
            RefusalCode::AccessDenied,
            Place { key: key_of(&protected), offset: 0, len: 64 },
            data(WireOp::Write, 0),
        ),
        (RefusalCode::NotExpected, at(0, 64), data(WireOp::ReadData, 1)),
        (RefusalCode::NotExpected, at(0, 64), data(WireOp::SendData, 1)),
    ];
    let mut peer =
        Stranger::welcome_at(&engine, hello(&engine, card(&["127.0.0.1:9".parse().unwrap()])));
    for (index, (code, place, header)) in cases.into_iter().enumerate() {
        let number = index as u64 + 1;
        let header = ChunkHeader { transfer: TransferId(number), ..header };
        peer.say(&frame(header, &[place], &[], &[1; 64]));
        assert_eq!(peer.ack(), AckFrame::Refusal { sequence: number, code }, "case {index}");
        assert!(crate::common::bytes(&region).iter().all(|byte| *byte == GUARD), "case {index}");
        assert!(crate::common::bytes(&protected).iter().all(|byte| *byte == GUARD), "case {index}");
    }
    // The flow lives on.
    let header = ChunkHeader { transfer: TransferId(99), ..write_header(64, 1) };
    peer.say(&frame(header, &[at(8, 64)], &[], &[1; 64]));
    assert_eq!(peer.ack(), AckFrame::Ack { sequence: 10 });
    let discarded: u64 = engine.stats().peers[0].rails.iter().map(|r| r.discarded_bytes).sum();
    assert_eq!(discarded, 9 * 64);
}

#[test]
fn one_that_hangs_up_right_behind_its_last_bytes_is_not_kept() {
    let engine = one_rail(&[]);
    let region = engine.register(Memory::from(vec![GUARD; 64])).unwrap();
    let mut other = Acquaintance::of(&engine);
    // A notification, so that there is something to acknowledge.
    let notify = engine.notify(&other.peer, b"hello").unwrap();
    other.from_engine.read_exact(&mut [0; 56]).unwrap();
    other.from_engine.say_last(&AckFrame::Ack { sequence: 1 }.encode());
    notify.ended().unwrap();
    wait_for("the flow to the peer to be down", || other.peer.flows().up == 0);
    let place = Place { key: key_of(&region), offset: 0, len: 64 };
    other.to_engine.say_last(&frame(write_header(64, 1), &[place], &[], &[1; 64]));
    // The engine may or may not acknowledge this: the peer does not wait for it.
    other.to_engine.last_words();
    assert_eq!(bytes(&region), [1; 64]);
}

#[test]
fn the_answer_to_a_read_may_touch_only_what_the_read_asked_for() {
    let engine = one_rail(&[]);
    let mut other = Acquaintance::of(&engine);
    let region =
        engine.register(Memory::from(vec![GUARD; 4096]).with_access(Access::LOCAL)).unwrap();
    let theirs = other.region(&engine, 4096);
    let slice = region.slice(1024, 1024).unwrap();
    let read = engine.read(&other.peer, &slice, &theirs.slice(0, 1024).unwrap()).unwrap();
    let Message::ReadRequest { read: number, pieces, shared: false } = other.message(1) else {
        panic!()
    };
    assert_eq!(pieces.len(), 1);
    let place = |offset, len| Place { key: pieces[0].to_key, offset, len };
    let header = |transfer, len| ChunkHeader {
        op: WireOp::ReadData,
        context: number,
        transfer: TransferId(transfer),
        ..write_header(len, 1)
    };
    for (n, outside) in [place(0, 64), place(1023, 64), place(2047, 64)].into_iter().enumerate() {
        let sequence = n as u64 + 1;
        other.to_engine.say(&frame(header(sequence, 64), &[outside], &[], &[1; 64]));
        let code = RefusalCode::OutOfBounds;
        assert_eq!(other.to_engine.ack(), AckFrame::Refusal { sequence, code }, "case {n}");
    }
    assert!(bytes(&region).iter().all(|byte| *byte == GUARD));
    other.to_engine.say(&frame(header(9, 1024), &[place(1024, 1024)], &[], &[1; 1024]));
    assert_eq!(read.ended().unwrap().bytes, 1024);
    let got = bytes(&region);
    assert!(got[1024..2048].iter().all(|byte| *byte == 1));
    assert!(got[..1024].iter().chain(&got[2048..]).all(|byte| *byte == GUARD));
}

#[test]
fn one_that_asks_and_takes_no_answers_fills_no_memory() {
    // The peer reads nothing until it has sent all requests, and a busy machine needs time for that.
    let engine = one_rail(&[("peer_timeout_ms", "60000")]);
    let mut other = Acquaintance::of(&engine);
    let key = RegionKey { slot: 9, generation: 9, nonce: 9 };
    let wanted = Message::RegionWanted { key };
    let asked = 5000;
    for number in 1..=asked {
        other.say(number, &wanted);
    }
    while !matches!(other.to_engine.ack(), AckFrame::Ack { sequence } if sequence == asked) {}
    let waiting = engine.dump().matches("message: 0 bytes").count();
    assert_eq!(waiting, 1024);
    // Answers that it reads make room for others.
    for sequence in 1..=3 {
        let Message::RegionOffered { offered: Err(_), .. } = other.message(sequence) else {
            panic!("no answer")
        };
    }
    wait_for("room", || engine.dump().matches("message: 0 bytes").count() < 1024);
    other.say(asked + 1, &wanted);
    assert_eq!(other.to_engine.ack(), AckFrame::Ack { sequence: asked + 1 });
}

#[test]
fn one_that_shows_memory_which_is_not_its_own_does_not_hear_what_is_there() {
    let engine = one_rail(&[]);
    let memory = SharedMemory::create(4096, 5).unwrap();
    let (reader, _writer) = std::io::pipe().unwrap();
    let own = std::process::id();
    let place = |process, descriptor| SharedPlace { process, descriptor, ..RING };
    let mut heard = Vec::new();
    for shown in [
        // No process, this process with nothing there, with something else, and with another token.
        place(u32::MAX, 3),
        place(own, 1 << 20),
        place(own, reader.as_raw_fd() as u32),
        SharedPlace { token: 6, ..place(own, memory.descriptor()) },
        SharedPlace { bytes: 8192, ..place(own, memory.descriptor()) },
    ] {
        let mut other = Acquaintance::neighbour(&engine);
        other.say(1, &Message::MemoryShown { place: shown });
        let Message::MemorySeen { seen: Err(why) } = other.message(1) else { panic!("{shown:?}") };
        heard.push(why);
        // Again at once: the engine does not even check it.
        other.say(2, &Message::MemoryShown { place: place(own, memory.descriptor()) });
        let seen = other.message(2);
        let Message::MemorySeen { seen: Err(why) } = seen else { panic!("{seen:?}") };
        assert_eq!(why, "the peer was asked a moment ago");
    }
    let why = "the peer can't open memory of this process; its log says why";
    assert_eq!(heard, [why; 5]);
    // An honest neighbour gets the place of the engine's memory.
    let mut other = Acquaintance::neighbour(&engine);
    other.say(1, &Message::MemoryShown { place: place(own, memory.descriptor()) });
    let seen = other.message(1);
    let Message::MemorySeen { seen: Ok(theirs) } = seen else { panic!("{seen:?}") };
    assert_eq!(theirs.process, own);
}

#[test]
fn the_data_of_a_send_may_touch_only_the_receive_that_it_fills() {
    let engine = one_rail(&[]);
    let mut other = Acquaintance::of(&engine);
    let region =
        engine.register(Memory::from(vec![GUARD; 4096]).with_access(Access::LOCAL)).unwrap();
    let receive = engine.receive(&other.peer, 1, &region.slice(1024, 1024).unwrap()).unwrap();
    let Message::ReceivePosted(posted) = other.message(1) else { panic!() };
    let place = |offset, len| Place { key: posted.places[0].key, offset, len };
    let header = |transfer, len| ChunkHeader {
        op: WireOp::SendData,
        context: posted.receive,
        transfer: TransferId(transfer),
        ..write_header(len, 1)
    };
    for (n, outside) in [place(0, 64), place(1023, 64), place(2047, 64)].into_iter().enumerate() {
        let sequence = n as u64 + 1;
        other.to_engine.say(&frame(header(sequence, 64), &[outside], &[], &[1; 64]));
        let code = RefusalCode::OutOfBounds;
        assert_eq!(other.to_engine.ack(), AckFrame::Refusal { sequence, code }, "case {n}");
    }
    assert!(bytes(&region).iter().all(|byte| *byte == GUARD));
    other.to_engine.say(&frame(header(9, 512), &[place(1024, 512)], &[], &[1; 512]));
    assert_eq!(receive.ended().unwrap().bytes, 512);
}

#[test]
fn a_peer_that_acknowledges_what_was_never_sent_loses_its_flow_and_is_not_called_in_a_loop() {
    let engine = one_rail(&[("peer_timeout_ms", "2000"), ("reconnect_max_ms", "500")]);
    let mut other = Acquaintance::of(&engine);
    let notify = engine.notify(&other.peer, b"hello").unwrap();
    other.from_engine.say(&AckFrame::Ack { sequence: 1 << 40 }.encode());
    other.from_engine.last_words();
    // From now on it accepts every flow and hangs up.
    other.listener.set_nonblocking(true).unwrap();
    let mut calls = 0;
    let since = Instant::now();
    while since.elapsed() < Duration::from_millis(1000) {
        if let Ok((stream, _)) = other.listener.accept() {
            calls += 1;
            stream.set_nonblocking(false).unwrap();
            Stranger::with(stream).0.welcome(&other.card);
        }
        // Polls for calls during a second.
        std::thread::sleep(Duration::from_micros(50));
    }
    assert!((1..100).contains(&calls), "called {calls} times in a second");
    let dump = engine.dump();
    assert!(dump.contains("last problem: rail lo"), "{dump}");
    notify.cancel();
}
