//! Attackers that lie about chunks, acknowledgements and numbers, or send messages that were not requested.

use std::io::Read;
use std::time::{Duration, Instant};

use polyrail::{Memory, Outcome};
use polyrail_proto::message::{
    Carried, CopyLeave, Message, Offer, PostedReceive, ReadPiece, copied_message,
};
use polyrail_proto::wire::{AckFrame, ChunkHeader, Flags, Place, RefusalCode, SharedPlace, WireOp};
use polyrail_proto::{FlowIndex, RegionKey, TransferId};

use super::{GUARD, IMPATIENT, SILENCE, Victim, heard, trial};
use crate::common::acquaintance::{Acquaintance, control};
use crate::common::stranger::{Stranger, card, frame, hello, key_of, notice, write_header};
use crate::common::*;

/// Any key: the error is found before the key is looked up.
const NO_KEY: RegionKey = RegionKey { slot: 0, generation: 0, nonce: 0 };

/// Makes a stranger that is accepted and has one connection.
fn guest(victim: &Victim) -> Stranger {
    let card = card(&["127.0.0.1:9".parse().unwrap()]);
    Stranger::welcome_at(&victim.engine, hello(&victim.engine, card))
}

#[test]
fn acknowledgements_of_what_was_never_sent_complete_no_write() {
    trial(IMPATIENT, |victim| {
        let engine = &victim.engine;
        let all = [2, 1 << 40, u64::MAX].map(|sequence| {
            let mut liar = Acquaintance::of(engine);
            let there = liar.region(engine, 4096);
            liar.from_engine.say(&AckFrame::Ack { sequence }.encode());
            let write = engine.write(&liar.peer, &zeroed(engine, 4096).all(), &there.all());
            (liar, write.unwrap())
        });
        for (_liar, write) in all {
            write.ended().unwrap_err();
        }
    });
}

#[test]
fn a_refusal_of_any_code_completes_no_write_and_is_not_answered_in_a_loop() {
    trial(IMPATIENT, |victim| {
        let engine = &victim.engine;
        for code in 1..=16 {
            let mut liar = Acquaintance::of(engine);
            let there = liar.region(engine, 4096);
            let write = engine.write(&liar.peer, &zeroed(engine, 4096).all(), &there.all());
            let write = write.unwrap();
            liar.from_engine.stream.set_read_timeout(Some(SILENCE)).unwrap();
            let (since, mut frames) = (Instant::now(), 0_u64);
            while since.elapsed() < SILENCE && liar.next().is_ok() {
                frames += 1;
                let refusal = AckFrame::Refusal { sequence: frames, code: RefusalCode::StaleKey };
                let mut refusal = refusal.encode();
                refusal[1] = code;
                liar.from_engine.say(&refusal);
            }
            assert!(frames < 1000, "code {code}: sent again {frames} times");
            write.cancel();
            if let Some(ended) = write.wait(Duration::ZERO) {
                ended.unwrap_err();
            }
            engine.remove_peer(&liar.peer);
        }
    });
}

#[test]
fn low_water_marks_that_jump_tell_no_notification_twice() {
    const MAX: u64 = u64::MAX;
    let cases: [&[(u64, u64)]; 4] = [
        &[(MAX, MAX), (1, 1)],
        &[(100, 100), (50, 1), (99, 100)],
        &[(5, 5), (4, 4), (3, 3)],
        &[(1, 1), (MAX - 1, 1), (2, 2), (1, 1)],
    ];
    trial(&[], |victim| {
        for case in cases {
            let mut liar = guest(victim);
            for (transfer, floor) in case {
                liar.say(&notice(*transfer, *floor));
            }
            heard(&mut liar);
            let mut numbers: Vec<u64> = case.iter().map(|(transfer, _)| *transfer).collect();
            numbers.sort_unstable();
            numbers.dedup();
            let told = victim.engine.take_notifications().len();
            assert!(told <= numbers.len(), "{case:?}: {told}");
        }
    });
}

#[test]
fn chunks_that_claim_the_same_place_or_number_land_within_it() {
    trial(IMPATIENT, |victim| {
        let payload = vec![GUARD; 1 << 16];
        let mut twice = guest(victim);
        for chunk in 0..2 {
            let header = ChunkHeader { chunk, chunk_count: 2, ..write_header(64, 1) };
            twice.say(&frame(header, &[victim.place(0, 64)], &[], &payload[..64]));
        }
        let mut one_place = guest(victim);
        let places = [victim.place(0, 256); 256];
        one_place.say(&frame(write_header(1 << 16, 256), &places, &[], &payload));
        let mut recount = guest(victim);
        for (chunk, chunk_count) in [(0, 4), (1, 5), (2, 1000), (0, 1 << 22), (3, 4)] {
            let header = ChunkHeader { chunk, chunk_count, ..write_header(8, 1) };
            recount.say(&frame(header, &[victim.place(0, 8)], &[], &payload[..8]));
        }
        // One chunk on two flows, both half sent, and the first one ends.
        let own = card(&["127.0.0.1:9".parse().unwrap()]);
        let mut flows = [0, 1].map(|flow| {
            let hello = polyrail_proto::hello::FlowHello {
                flow,
                flows: 2,
                ..hello(&victim.engine, own.clone())
            };
            Stranger::welcome_at(&victim.engine, hello)
        });
        let head = frame(write_header(1 << 16, 1), &[victim.place(0, 1 << 16)], &[], &[]);
        for flow in &mut flows {
            flow.say_beginning(&head, 1 << 16, &payload[..1 << 15]);
        }
        let [first, mut second] = flows;
        drop(first);
        second.write(&payload[1 << 15..]);
        for liar in [&mut twice, &mut one_place, &mut recount, &mut second] {
            let heard = heard(liar);
            let is_answered = heard.is_closed || heard.acknowledged > 0 || heard.refused > 0;
            assert!(is_answered, "{heard:?}");
        }
    });
}

#[test]
fn transfers_that_are_begun_without_end_or_with_gaps_are_bounded() {
    trial(&[("peer_timeout_ms", "20000")], |victim| {
        for step in [1, 2] {
            let mut liar = guest(victim);
            let mut answers = liar.stream.try_clone().unwrap();
            answers.set_read_timeout(Some(LONG)).unwrap();
            let reader = std::thread::spawn(move || {
                let (mut buffer, mut all) = (vec![0; 1 << 16], 0);
                while let Ok(bytes @ 1..) = answers.read(&mut buffer) {
                    all += bytes;
                }
                all
            });
            let begun = |number: u64| {
                let header = ChunkHeader {
                    transfer: TransferId(number * step),
                    chunk_count: if step == 1 { 1 << 22 } else { 1 },
                    ..write_header(1, 1)
                };
                frame(header, &[victim.place(0, 1)], &[], &[GUARD])
            };
            liar.say_all((1..=20_000).map(begun));
            // The engine may have hung up.
            let _ = liar.stream.shutdown(std::net::Shutdown::Write);
            assert!(reader.join().unwrap() > 0, "no answer");
        }
    });
}

#[test]
fn notifications_of_many_identities_that_are_not_taken_are_bounded() {
    trial(&[], |victim| {
        const EACH: u64 = 40;
        const GUESTS: usize = 30;
        let meta = vec![1; 60_000];
        let guests: Vec<_> = (0..GUESTS)
            .map(|_| {
                let mut liar = guest(victim);
                // From here on the engine reads nothing from it.
                liar.stream.set_write_timeout(Some(Duration::from_millis(20))).unwrap();
                for number in 1..=EACH {
                    let header = ChunkHeader {
                        flags: Flags::NOTIFY,
                        meta_len: meta.len() as u32,
                        transfer: TransferId(number),
                        ..write_header(0, 0)
                    };
                    liar.say(&frame(header, &[], &meta, &[]));
                }
                liar
            })
            .collect();
        let waiting = victim.engine.stats().notifications_waiting;
        let limit = victim.engine.config().notification_queue;
        assert!(waiting as u64 <= u64::from(limit), "{waiting} wait, {limit} may");
        drop(guests);
        victim.engine.take_notifications();
    });
}

#[test]
fn a_write_to_a_peer_that_lives_and_never_acknowledges_can_be_cancelled() {
    trial(IMPATIENT, |victim| {
        let engine = &victim.engine;
        let mut liar = Acquaintance::of(engine);
        let there = liar.region(engine, 1 << 20);
        let write = engine.write(&liar.peer, &victim.region.all(), &there.all()).unwrap();
        let mut unread = liar.from_engine.stream.try_clone().unwrap();
        let reader = std::thread::spawn(move || std::io::copy(&mut unread, &mut std::io::sink()));
        let since = Instant::now();
        for number in 1.. {
            if since.elapsed() > Duration::from_millis(700) {
                break;
            }
            liar.from_engine.say(&AckFrame::Ack { sequence: 0 }.encode());
            liar.to_engine.say(&notice(number, number));
            // Gives signs of life, twenty times a second.
            std::thread::sleep(Duration::from_millis(50));
        }
        assert!(write.wait(Duration::ZERO).is_none_or(|ended| ended.is_err()));
        write.cancel();
        write.ended().unwrap_err();
        engine.remove_peer(&liar.peer);
        drop(liar);
        // The reader notices that the engine has hung up.
        let _ = reader.join().unwrap();
        engine.take_notifications();
    });
}

#[test]
fn claims_that_a_message_was_copied_are_believed_of_no_peer_that_could_not() {
    trial(&[], |victim| {
        for (neighbour, len) in [(false, 4096), (true, 4096), (true, 1 << 20)] {
            for claim in [len, len + 1, 1 << 40, 0] {
                let engine = &victim.engine;
                let mut liar = match neighbour {
                    true => Acquaintance::impostor(engine),
                    false => Acquaintance::of(engine),
                };
                let slice = victim.region.slice(0, len).unwrap();
                let receive = engine.receive(&liar.peer, 1, &slice).unwrap();
                let Message::ReceivePosted(posted) = liar.message(1) else { panic!("no receive") };
                assert_ne!(posted.leave, CopyLeave::Yes, "it has no region open");
                let header = ChunkHeader {
                    op: WireOp::SendData,
                    meta_len: 8,
                    context: posted.receive,
                    ..write_header(0, 0)
                };
                liar.to_engine.say(&frame(header, &[], &copied_message(claim), &[]));
                heard(&mut liar.to_engine);
                let ended = receive.wait(Duration::ZERO);
                let is_done = matches!(ended, Some(Ok(Outcome { .. })));
                assert!(!is_done, "neighbour {neighbour}: {claim} of {len}: {ended:?}");
                receive.cancel();
                engine.remove_peer(&liar.peer);
            }
        }
    });
}

/// Makes messages that answer no question of the engine, or make impossible requests.
fn unasked(victim: &Victim) -> Vec<Message> {
    let key = victim.key;
    let place = SharedPlace { process: 1, descriptor: 3, bytes: 4096, token: 5 };
    let offer = Offer {
        process: 1,
        namespace: 0,
        descriptors: (0..4096).collect(),
        export: vec![7; 40_000],
    };
    let of = Carried { flow: FlowIndex(u32::MAX), epoch: u64::MAX };
    let posted = |receive, places, leave| {
        Message::ReceivePosted(PostedReceive { receive, tag: 1, places, leave })
    };
    let piece = ReadPiece { from: victim.place(0, 1), to_key: key, to_offset: u64::MAX };
    vec![
        Message::Cancel { transfer: TransferId(u64::MAX) },
        Message::ReadFailed { read: 7, code: RefusalCode::Busy },
        Message::ReadCancelled { read: u64::MAX },
        posted(u64::MAX, Vec::new(), CopyLeave::Yes),
        posted(2, vec![victim.place(0, 64); 1024], CopyLeave::Share),
        Message::ReceiveWithdrawn { receive: 99 },
        Message::SendTooLong { receive: 0, len: u64::MAX },
        Message::SendFailed { receive: u64::MAX },
        Message::RegionOffered { key, offered: Ok(offer) },
        Message::RegionOffered { key, offered: Err("\x1b[2J\n".repeat(60)) },
        Message::RegionEnded { key },
        Message::MemorySeen { seen: Ok(place) },
        Message::MemorySeen { seen: Err("\x1b[2Jx".into()) },
        Message::MemoryShown { place },
        Message::CarrierWanted { of, rail: u16::MAX, plugin: "x".repeat(100) },
        Message::CarrierOffered { of, offered: Ok(vec![1; 256]) },
        Message::CarrierAccepted { of, accepted: Ok(()) },
        Message::ReadRequest { read: 0, shared: true, pieces: Vec::new() },
        Message::ReadRequest { read: u64::MAX, shared: false, pieces: vec![piece; 1024] },
    ]
}

#[test]
fn messages_that_were_not_asked_for_change_nothing() {
    trial(IMPATIENT, |victim| {
        for (number, message) in unasked(victim).into_iter().enumerate() {
            let mut liar = Acquaintance::impostor(&victim.engine);
            for transfer in 1..=20 {
                liar.to_engine.say(&control(transfer, &message));
            }
            wait_for(&format!("an answer to message {number}"), || {
                let heard = heard(&mut liar.to_engine);
                heard.is_closed || heard.acknowledged > 0 || heard.refused > 0
            });
            assert!(!victim.engine.dump().contains('\x1b'), "{message:?}");
            victim.engine.remove_peer(&liar.peer);
        }
    });
}

#[test]
fn a_payload_that_stalls_keeps_no_region_from_ending() {
    trial(IMPATIENT, |victim| {
        for drips in [false, true] {
            let region = victim.engine.register(Memory::from(vec![GUARD; 1 << 20])).unwrap();
            let mut liar = guest(victim);
            let place = Place { key: key_of(&region), offset: 0, len: 1 << 20 };
            let head = frame(write_header(1 << 20, 1), &[place], &[], &[]);
            liar.say_beginning(&head, 1 << 20, &[1; 10_000]);
            wait_for("the payload to land", || bytes(&region)[9_999] == 1);
            let over = std::sync::atomic::AtomicBool::new(false);
            std::thread::scope(|scope| {
                let _tell = TellOnDrop(&over);
                let dripping = drips.then(|| liar.stream.try_clone().unwrap());
                scope.spawn(|| {
                    let Some(mut stream) = dripping else { return };
                    while !over.load(std::sync::atomic::Ordering::Relaxed) {
                        let _ = std::io::Write::write_all(&mut stream, &[1]);
                        // Sends a byte each millisecond.
                        std::thread::sleep(Duration::from_millis(1));
                    }
                });
                let since = Instant::now();
                region.end();
                assert!(since.elapsed() < LONG / 3, "drips {drips}: {:?}", since.elapsed());
            });
        }
    });
}

#[test]
fn keys_and_bounds_that_are_wrong_give_no_byte_of_a_read() {
    trial(&[], |victim| {
        let far = |offset, len| ReadPiece {
            from: victim.place(offset, len),
            to_key: NO_KEY,
            to_offset: 0,
        };
        for piece in [far((1 << 20) - 10, 64), far(u64::MAX - 70, 64), far(0, 1 << 63)] {
            let mut liar = Acquaintance::of(&victim.engine);
            liar.say(1, &Message::ReadRequest { read: 1, shared: false, pieces: vec![piece; 3] });
            let answer = liar.message(1);
            assert!(matches!(answer, Message::ReadFailed { read: 1, .. }), "{answer:?}");
        }
    });
}
