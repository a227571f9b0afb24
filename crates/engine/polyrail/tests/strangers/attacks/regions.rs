//! Attackers that ask for memory that they may not have, or keep memory that they were given.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use polyrail::{Access, Engine, Memory, Registrable};
use polyrail_gpu::fake::FakeDevice;
use polyrail_proto::hello::FlowHello;
use polyrail_proto::message::{Message, ReadPiece};
use polyrail_proto::wire::{AckFrame, ChunkHeader, Place};
use polyrail_proto::{InstanceId, RegionKey, TransferId};

use super::{GUARD, IMPATIENT, trial};
use crate::common::acquaintance::Acquaintance;
use crate::common::devices::{device, on};
use crate::common::stranger::{Stranger, card, frame, hello, key_of, notice, write_header};
use crate::common::*;

const NO_KEY: RegionKey = RegionKey { slot: 0, generation: 0, nonce: 0 };

#[test]
fn regions_that_a_peer_may_not_read_are_neither_read_nor_offered() {
    trial(&[], |victim| {
        let engine = &victim.engine;
        let memory = || Memory::from(vec![0x11; 4096]);
        let local = engine.register(memory().with_access(Access::LOCAL)).unwrap();
        let write_only = engine.register(memory().with_access(Access::WRITE)).unwrap();
        let granted = engine.register(memory().granted_to([InstanceId(7)])).unwrap();
        let wrong_nonce = RegionKey { nonce: 0, ..victim.key };
        let keys = [key_of(&local), key_of(&write_only), key_of(&granted), wrong_nonce];
        for key in keys {
            let mut liar = Acquaintance::neighbour(engine);
            let piece =
                ReadPiece { from: Place { key, offset: 0, len: 64 }, to_key: NO_KEY, to_offset: 0 };
            liar.say(1, &Message::ReadRequest { read: 1, shared: false, pieces: vec![piece] });
            let answer = liar.message(1);
            assert!(matches!(answer, Message::ReadFailed { read: 1, .. }), "{answer:?}");
            liar.say(2, &Message::RegionWanted { key });
            let answer = liar.message(2);
            assert!(matches!(answer, Message::RegionOffered { offered: Err(_), .. }), "{answer:?}");
        }
    });
}

/// Ends a region while a peer gives signs of life, and returns how long that took.
fn end_beside(liar: &mut Acquaintance, region: &polyrail::Region) -> Duration {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let tell = TellOnDrop(&over);
        scope.spawn(|| {
            let mut number = 100;
            while !over.load(Ordering::Relaxed) {
                number += 1;
                liar.from_engine.say(&AckFrame::Ack { sequence: 1 }.encode());
                liar.to_engine.say(&notice(number, 5));
                // Gives signs of life, ten times a second.
                std::thread::sleep(Duration::from_millis(100));
            }
        });
        let since = Instant::now();
        region.end();
        drop(tell);
        since.elapsed()
    })
}

#[test]
fn a_peer_that_is_refused_a_region_does_not_hold_up_its_end() {
    trial(IMPATIENT, |victim| {
        let region = filled(&victim.engine, 1 << 20, 3);
        let mut liar = Acquaintance::impostor(&victim.engine);
        liar.say(1, &Message::RegionWanted { key: key_of(&region) });
        let answer = liar.message(1);
        assert!(matches!(answer, Message::RegionOffered { offered: Err(_), .. }), "{answer:?}");
        assert!(end_beside(&mut liar, &region) < LONG / 3);
        victim.engine.take_notifications();
    });
}

#[test]
fn a_peer_that_lives_and_never_lets_go_of_an_offered_region_holds_up_its_end_for_a_bounded_time() {
    trial(IMPATIENT, |victim| {
        let region = filled(&victim.engine, 1 << 20, 3);
        let mut liar = Acquaintance::neighbour(&victim.engine);
        liar.say(1, &Message::RegionWanted { key: key_of(&region) });
        let answer = liar.message(1);
        if let Message::RegionOffered { offered: Err(why), .. } = &answer {
            assert!(why.contains("seccomp"), "{why}");
        }
        let took = end_beside(&mut liar, &region);
        assert!(took < LONG / 2, "{took:?}");
        victim.engine.take_notifications();
    });
}

/// Writes to memory of a device of the engine and reads it back, as an honest peer that has just come.
fn uses_device(engine: &Engine, region: &polyrail::Region) {
    const BYTES: usize = 256 << 10;
    let honest = builder().config(config(&[("rails", "127.0.0.1")])).apart().build().unwrap();
    let peer = honest.add_peer(&engine.metadata()).unwrap();
    let there = remote(&honest, region).slice(0, BYTES as u64).unwrap();
    let (source, back) = (filled(&honest, BYTES, 9), zeroed(&honest, BYTES));
    finished(&honest.write(&peer, &source.all(), &there).unwrap());
    finished(&honest.read(&peer, &back.all(), &there).unwrap());
    assert!(bytes(&back) == pattern(BYTES, 9));
}

#[test]
fn chunks_of_device_memory_that_are_begun_and_stall_keep_no_other_peer_out() {
    trial(&[], |victim| {
        const FLOWS: u32 = 16;
        const CHUNK: u32 = 256 << 10;
        let engine = &victim.engine;
        let (region, memory) = on(&device(0), engine, &vec![GUARD; 1 << 20]);
        let key = key_of(&region);
        let own = card(&["127.0.0.1:9".parse().unwrap()]);
        let held: Vec<Stranger> = (0..FLOWS)
            .map(|flow| {
                let hello = FlowHello { flow, flows: FLOWS, ..hello(engine, own.clone()) };
                let mut liar = Stranger::welcome_at(engine, hello);
                let header = ChunkHeader {
                    transfer: TransferId(u64::from(flow) + 1),
                    ..write_header(CHUNK, 1)
                };
                let place = Place { key, offset: 512 << 10, len: CHUNK.into() };
                liar.say_beginning(&frame(header, &[place], &[], &[]), CHUNK, &[1; 1000]);
                liar
            })
            .collect();
        uses_device(engine, &region);
        drop(held);
        uses_device(engine, &region);
        assert!(FakeDevice::contents(&memory)[512 << 10..].iter().all(|byte| *byte == GUARD));
    });
}

#[test]
fn reads_that_are_never_acknowledged_keep_no_other_peer_from_device_memory() {
    trial(&[], |victim| {
        let (region, _memory) = on(&device(0), &victim.engine, &vec![GUARD; 1 << 20]);
        let from = Place { key: key_of(&region), offset: 512 << 10, len: 256 << 10 };
        let held: Vec<Acquaintance> = (0..4)
            .map(|_| {
                let mut liar = Acquaintance::of(&victim.engine);
                for read in 1..=20 {
                    let pieces = vec![ReadPiece { from, to_key: NO_KEY, to_offset: 0 }];
                    liar.say(read, &Message::ReadRequest { read, shared: false, pieces });
                }
                liar
            })
            .collect();
        uses_device(&victim.engine, &region);
        drop(held);
    });
}
