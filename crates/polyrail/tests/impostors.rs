//! Strangers who claim to be somebody that the engine knows: they may disturb, and nothing that they
//! say makes lost bytes count as delivered.

mod common;

use std::net::TcpListener;

use common::stranger::{self, Stranger, frame, hello, key_of, write_header};
use common::*;
use polyrail::{Engine, RefusalCode, TransferError};
use polyrail_proto::TransferId;
use polyrail_proto::hello::{Card, FlowHello, Hello, RefusedCode, Reply};
use polyrail_proto::message::Message;
use polyrail_proto::wire::{ChunkHeader, Flags, Op};

fn card_of(engine: &Engine) -> Card {
    Card::decode(&engine.metadata()).unwrap()
}

/// The session of the first peer that an engine knows, which is easy to guess.
const SESSION: u64 = 1 << 32;

/// A flow to `engine` of somebody who claims to be `claimed`, on a number that the real one leaves
/// free.
fn impostor(engine: &Engine, claimed: &Engine) -> Stranger {
    let hello = hello(engine, card_of(claimed));
    Stranger::welcome_at(engine, FlowHello { flow: 500, flows: 501, epoch: SESSION + 1, ..hello })
}

fn notice(transfer: u64, floor: u64) -> Vec<u8> {
    let header = ChunkHeader {
        flags: Flags::NOTIFY,
        meta_len: 1,
        transfer: TransferId(transfer),
        floor: TransferId(floor),
        ..write_header(0, 0)
    };
    frame(header, &[], b"x", &[])
}

/// Writes a pattern again and again: what is reported done is there, and says how often it was not
/// refused.
fn all_that_is_done_is_there(p: &Pair, rounds: u64) -> u64 {
    let len = 300_000;
    let target = zeroed(&p.b, len);
    let there = remote(&p.a, &target);
    let mut done = 0;
    for seed in 1..=rounds {
        let source = filled(&p.a, len, seed);
        let write = p.a.write(&p.to_b, &source.all(), &there.all()).unwrap();
        match write.ended() {
            Ok(_) => {
                assert!(bytes(&target) == pattern(len, seed), "reported done, and not there");
                done += 1;
            }
            Err(TransferError::Refused { code: RefusalCode::TransferOver, .. }) => {}
            Err(other) => panic!("{other}"),
        }
    }
    done
}

#[test]
fn a_forged_floor_ends_its_flow_and_nothing_else() {
    let p = pair(&[]);
    assert_eq!(all_that_is_done_is_there(&p, 3), 3);
    for floor in [1 << 60, u64::MAX] {
        let mut forger = impostor(&p.b, &p.a);
        forger.say(&notice(floor, floor));
        assert_eq!(forger.last_words(), b"", "nothing is acknowledged");
    }
    assert_eq!(all_that_is_done_is_there(&p, 20), 20);
}

#[test]
fn numbers_that_were_used_by_an_impostor_are_refused_and_not_swallowed() {
    let p = pair(&[]);
    assert_eq!(all_that_is_done_is_there(&p, 1), 1);
    let mut forger = impostor(&p.b, &p.a);
    // Messages and cancels of what the real peer sends next.
    for transfer in 1..40 {
        forger.say(&notice(transfer, 1));
    }
    let cancels = (40..80).map(|transfer| Message::Cancel { transfer: TransferId(transfer) });
    for (number, cancel) in (1 << 40..).zip(cancels) {
        let meta = cancel.encode();
        let transfer = TransferId(number);
        let meta_len = meta.len() as u32;
        let header = ChunkHeader { op: Op::Control, meta_len, transfer, ..write_header(0, 0) };
        forger.say(&frame(header, &[], &meta, &[]));
    }
    wait_for("all of it to be taken", || p.b.stats().notifications_waiting >= 38);
    let last = polyrail_proto::wire::AckFrame::Ack { sequence: 79 };
    while forger.ack() != last {}
    // Some are used up; those after them are nobody's.
    let done = all_that_is_done_is_there(&p, 200);
    assert!((1..200).contains(&done), "{done} of 200");
    assert_eq!(all_that_is_done_is_there(&p, 20), 20);
    // And what has the key lands, whoever sends it: that is what keys are for.
    let region = zeroed(&p.b, 64);
    let place = polyrail_proto::wire::Place { key: key_of(&region), offset: 0, len: 64 };
    let header = ChunkHeader { transfer: TransferId(1 << 41), ..write_header(64, 1) };
    forger.say(&frame(header, &[place], &[], &[1; 64]));
    wait_for("it to land", || bytes(&region) == [1; 64]);
}

/// Somebody with a port of his own, on which he would take what is meant for another.
struct Thief {
    listener: TcpListener,
    card: Card,
}

impl Thief {
    /// Claims to be `victim` at its own address.
    fn of(victim: &Engine) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let mut card = card_of(victim);
        card.rails.truncate(1);
        card.rails[0].address = listener.local_addr().unwrap();
        Self { listener, card }
    }

    /// Whether anybody has connected to it by now.
    fn was_called(&self) -> bool {
        self.listener.accept().is_ok()
    }
}

#[test]
fn metadata_given_by_the_user_beats_the_card_of_a_hello() {
    let (a, b) = (engine(&[]), engine(&[]));
    let thief = Thief::of(&b);
    let mut flow = Stranger::welcome_at(&a, hello(&a, thief.card.clone()));
    wait_for("the stranger to be taken for b", || a.peers().len() == 1);
    let taken_for_b = a.peers().remove(0);
    let to_b = a.add_peer(&b.metadata()).unwrap();
    assert_eq!(flow.last_words(), b"", "its flows are closed");
    let why = taken_for_b.lost().unwrap();
    assert_eq!(why, polyrail::LostReason::OtherMetadata);
    let to_a = b.add_peer(&a.metadata()).unwrap();
    let p = Pair { a, b, to_b, to_a };
    assert_eq!(all_that_is_done_is_there(&p, 5), 5);
    assert!(!thief.was_called());
    // Later it is refused, with a reason.
    let mut late = Stranger::at(&p.a);
    late.say(&Hello::Flow(hello(&p.a, thief.card.clone())).encode());
    match late.reply() {
        Reply::Refused { code: RefusedCode::OtherCard, reason } => {
            assert!(reason.contains("another card is known"), "{reason}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(all_that_is_done_is_there(&p, 5), 5);
}

#[test]
fn metadata_given_by_the_user_is_kept_when_the_peer_was_lost_and_comes_back() {
    let p = pair(&[]);
    assert_eq!(all_that_is_done_is_there(&p, 1), 1);
    p.b.remove_peer(&p.to_a);
    wait_for("a to hear of it", || p.to_b.lost().is_some());
    let thief = Thief::of(&p.b);
    let mut early = Stranger::at(&p.a);
    early.say(
        &Hello::Flow(FlowHello { epoch: 9 << 32, ..hello(&p.a, thief.card.clone()) }).encode(),
    );
    let reply = early.reply();
    assert!(matches!(reply, Reply::Refused { code: RefusedCode::OtherCard, .. }), "{reply:?}");
    assert!(!thief.was_called());
}

#[test]
fn an_impostor_in_another_session_does_not_end_one_that_has_flows_up() {
    let p = pair(&[]);
    assert_eq!(all_that_is_done_is_there(&p, 1), 1);
    for epoch in [1, 9 << 32] {
        let mut other = Stranger::at(&p.b);
        other.say(&Hello::Flow(FlowHello { epoch, ..hello(&p.b, card_of(&p.a)) }).encode());
        let reply = other.reply();
        let code = RefusedCode::OtherSession;
        assert!(matches!(&reply, Reply::Refused { code: c, .. } if *c == code), "{reply:?}");
    }
    assert_eq!(all_that_is_done_is_there(&p, 10), 10);
    assert_eq!(lost_flows(&p.a), 0);
    assert_eq!((p.to_a.lost(), p.to_b.lost()), (None, None));
}

#[test]
fn a_stranger_whose_notifications_nobody_takes_stops_nobody_else() {
    for settings in [&[][..], &[("progress", "caller")]] {
        let p = pair(&[&[("notification_queue", "64")], settings].concat());
        assert_eq!(all_that_is_done_is_there(&p, 1), 1);
        let honest = |text: &[u8]| p.a.notify(&p.to_b, text).unwrap().ended().unwrap();
        honest(b"first");
        let card = stranger::card(&["127.0.0.1:9".parse().unwrap()]);
        let mut loud = Stranger::welcome_at(&p.b, hello(&p.b, card));
        let flood: Vec<u8> = (1..2000).flat_map(|transfer| notice(transfer, 1)).collect();
        loud.say(&flood);
        let waiting = || {
            p.b.progress();
            p.b.stats().notifications_waiting
        };
        wait_for("its share to be full", || waiting() > 32);
        assert_eq!(all_that_is_done_is_there(&p, 3), 3);
        honest(b"second");
        // A visit to its flow may take in more than its share, a packet at most.
        assert!(waiting() < 600, "{}", waiting());
        // Nor when it has left, whatever it left.
        drop(loud);
        assert_eq!(all_that_is_done_is_there(&p, 3), 3);
        honest(b"third");
        let taken = p.b.take_notifications();
        let honest: Vec<_> =
            taken.iter().filter(|one| one.peer == p.to_a).map(|one| &one.data[..]).collect();
        assert_eq!(honest, [&b"first"[..], b"second", b"third"]);
    }
}

#[test]
fn what_peers_left_behind_that_are_gone_fills_no_memory() {
    let engine = one_rail(&[
        ("notification_queue", "64"),
        ("rail_stall_ms", "50"),
        ("peer_timeout_ms", "200"),
    ]);
    for _ in 0..20 {
        let card = stranger::card(&["127.0.0.1:9".parse().unwrap()]);
        let mut loud = Stranger::welcome_at(&engine, hello(&engine, card));
        let flood: Vec<u8> = (1..=50).flat_map(|transfer| notice(transfer, 1)).collect();
        loud.say(&flood);
        let last = polyrail_proto::wire::AckFrame::Ack { sequence: 50 };
        while loud.ack() != last {}
        drop(loud);
        wait_for("it to be forgotten", || engine.peers().is_empty());
        assert!(engine.stats().notifications_waiting <= 64);
    }
    assert_eq!(engine.take_notifications().len(), 64);
}
