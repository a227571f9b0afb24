//! Strangers who claim to be somebody that the engine knows: they may disturb, and nothing that they
//! say makes lost bytes count as delivered.

mod common;

use common::stranger::{Stranger, frame, hello, key_of, write_header};
use common::*;
use polyrail::{Engine, RefusalCode, TransferError};
use polyrail_proto::TransferId;
use polyrail_proto::hello::Card;
use polyrail_proto::message::Message;
use polyrail_proto::wire::{ChunkHeader, Flags, Op};

fn card_of(engine: &Engine) -> Card {
    Card::decode(&engine.metadata()).unwrap()
}

/// A flow to `engine` of somebody who claims to be `claimed`, on a number that the real one leaves
/// free.
fn impostor(engine: &Engine, claimed: &Engine) -> Stranger {
    let hello = hello(engine, card_of(claimed));
    Stranger::welcome_at(
        engine,
        polyrail_proto::hello::FlowHello { flow: 500, flows: 501, ..hello },
    )
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
        match write.wait(LONG) {
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
        assert_eq!(forger.last_words(), [], "nothing is acknowledged");
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
