//! Attackers that lie about their process and host. A stranger `of` another host does not claim to be on this one; an
//! `impostor` claims it, and the kernel does not confirm it; a `neighbour` is here, in this process as the kernel
//! confirms, and names other processes.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::fd::AsRawFd;
use std::process::{Child, Command, Stdio};

use polyrail::{Memory, Request};
use polyrail_gpu::fake::FakeDevice;
use polyrail_proto::RegionKey;
use polyrail_proto::TransferId;
use polyrail_proto::hello::{Capabilities, Card, FlowHello};
use polyrail_proto::message::{CopyLeave, Message, Offer, ReadPiece};
use polyrail_proto::wire::{AckFrame, ChunkHeader, Place, RefusalCode, SharedPlace, WireOp};
use polyrail_sys::SharedMemory;
use polyrail_sys::process::{Process, namespace};

use super::{IMPATIENT, Victim, heard, trial};
use crate::common::acquaintance::Acquaintance;
use crate::common::devices::{device, on};
use crate::common::stranger::{
    Stranger, card, claiming_this_host, frame, hello, key_of, on_this_host, write_header,
};
use crate::common::*;

const SECRET: &[u8] = b"the secret of a third process";
const RING_BYTES: u64 = 1 << 16;
const TOKEN: u128 = 7 << 90;
/// Environment variable of the third process.
const THIRD: &str = "POLYRAIL_TEST_THIRD_PROCESS";

/// A process of this user that has nothing to do with engines, with a sealed memfd that holds a secret.
struct Third {
    child: Child,
    place: SharedPlace,
}

/// Main of the third process: shows where its memory is, and waits to be killed.
#[test]
#[ignore = "other tests start it in a process of its own"]
fn third_process() {
    let Ok(token) = std::env::var(THIRD) else { return };
    let memory = SharedMemory::create(RING_BYTES, token.parse().unwrap()).unwrap();
    memory.memory().write_at(0, SECRET).unwrap();
    println!("@@ {}", memory.descriptor());
    std::io::stdin().lines().for_each(drop);
}

impl Third {
    fn start(token: u128) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["attacks::processes::third_process", "--exact", "--ignored", "--nocapture"])
            .env(THIRD, token.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let said = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let descriptor = said.filter_map(|line| line.split_once("@@ ")?.1.parse().ok()).next();
        let descriptor = descriptor.expect("it shows its memory");
        let process = child.id();
        Self { child, place: SharedPlace { process, descriptor, bytes: RING_BYTES, token } }
    }
}

impl Drop for Third {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Makes a chunk of the first bytes of a ring, for the beginning of a region.
fn chunk_in_ring(transfer: u64, key: RegionKey, len: u32) -> Vec<u8> {
    let mut header = ChunkHeader { transfer: TransferId(transfer), ..write_header(len, 1) };
    assert!(header.set_place_in_ring(0));
    frame(header, &[Place { key, offset: 0, len: len.into() }], &[], &[])
}

#[test]
fn a_ring_of_a_third_process_is_opened_for_no_peer() {
    // Zeroes are at the beginning of most programs' memory; and the attacker may know the token.
    for token in [0, TOKEN] {
        let third = Third::start(token);
        trial(&[], |victim| {
            let copy = zeroed(&victim.engine, RING_BYTES as usize);
            let (announced, key) = (third.place.encode(), key_of(&copy));
            let chunk = chunk_in_ring(1, key, RING_BYTES as u32);
            for mut liar in
                [Acquaintance::impostor(&victim.engine), Acquaintance::neighbour(&victim.engine)]
            {
                liar.to_engine.say(&[&announced[..], &chunk].concat());
                let refusal = AckFrame::Refusal { sequence: 1, code: RefusalCode::NoRing };
                assert_eq!(liar.to_engine.ack(), refusal, "token {token}");
            }
            assert!(bytes(&copy).iter().all(|byte| *byte == 0), "the secret was copied");
        });
    }
}

#[test]
fn a_ring_is_not_opened_where_only_rails_are_wanted_or_for_another_host() {
    let memory = SharedMemory::create(RING_BYTES, TOKEN).unwrap();
    let place = place_of(&memory);
    trial(&[("path", "tcp")], |victim| {
        let mut liar = Acquaintance::neighbour(&victim.engine);
        liar.to_engine.say(&place.encode());
        wait_for("the flow to be closed: path says tcp", || heard(&mut liar.to_engine).is_closed);
    });
    trial(&[], |victim| {
        let mut liar = Acquaintance::of(&victim.engine);
        liar.to_engine.say(&place.encode());
        wait_for("the flow to be closed: it says that it is elsewhere", || {
            heard(&mut liar.to_engine).is_closed
        });
    });
}

fn place_of(memory: &SharedMemory) -> SharedPlace {
    SharedPlace {
        process: std::process::id(),
        descriptor: memory.descriptor(),
        bytes: memory.memory().len(),
        token: memory.token(),
    }
}

#[test]
fn pages_and_streams_of_a_third_process_are_opened_for_no_peer() {
    let third = Third::start(TOKEN);
    trial(&[], |victim| {
        let shown = SharedPlace { bytes: 4096, ..third.place };
        for mut liar in [
            Acquaintance::of(&victim.engine),
            Acquaintance::impostor(&victim.engine),
            Acquaintance::neighbour(&victim.engine),
        ] {
            liar.say(1, &Message::MemoryShown { place: shown });
            let answer = liar.message(1);
            assert!(matches!(answer, Message::MemorySeen { seen: Err(_) }), "{answer:?}");
        }
    });
    let victim = engine(&[("rails", "127.0.0.1"), ("progress", "caller"), ("channels", "1")]);
    let offered = |change: fn(&polyrail::Engine, Card) -> Card, place| {
        let own = card(&["127.0.0.1:9".parse().unwrap()]);
        let capabilities =
            own.capabilities.with(Capabilities::DUPLEX).with(Capabilities::SHARED_STREAM);
        let own = change(&victim, Card { capabilities, ..own });
        let capabilities = Capabilities::DUPLEX;
        let hello = FlowHello { capabilities, stream: Some(place), ..hello(&victim, own) };
        let _stranger = Stranger::welcome_at(&victim, hello);
        victim.dump()
    };
    let own = SharedMemory::create(RING_BYTES, TOKEN).unwrap();
    for (change, place, why) in [
        (claiming_this_host as fn(&_, _) -> _, place_of(&own), "not in this network namespace"),
        (on_this_host, third.place, "can't be opened"),
    ] {
        // With the size of a stream; another size is refused earlier.
        let dump = offered(change, SharedPlace { bytes: 4096 + (2 << 20), ..place });
        assert!(dump.contains(why), "{dump}");
    }
}

/// Asks for a read to be left in shared memory; returns the header of its first answer.
fn shared_read(victim: &Victim, liar: &mut Acquaintance) -> Option<ChunkHeader> {
    let to_key = RegionKey { slot: 1, generation: 1, nonce: 1 };
    let pieces = vec![ReadPiece { from: victim.place(0, 256 << 10), to_key, to_offset: 0 }];
    liar.say(1, &Message::ReadRequest { read: 1, shared: true, pieces });
    liar.from_engine.stream.set_read_timeout(Some(LONG)).unwrap();
    liar.next().ok().map(|(header, ..)| header)
}

#[test]
fn no_read_is_left_in_shared_memory_for_another_host_or_where_only_rails_are_wanted() {
    trial(&[("path", "tcp")], |victim| {
        let mut liar = Acquaintance::neighbour(&victim.engine);
        assert_eq!(shared_read(victim, &mut liar), None, "a violation");
    });
    trial(&[], |victim| {
        let mut other_host = Acquaintance::of(&victim.engine);
        assert_eq!(shared_read(victim, &mut other_host), None, "a violation");
        let mut impostor = Acquaintance::impostor(&victim.engine);
        let header = shared_read(victim, &mut impostor).expect("the rails carry it");
        assert_eq!((header.op, header.place_in_ring()), (WireOp::ReadData, None));
        // A real neighbour gets it in memory, so the attack is effective.
        let mut neighbour = Acquaintance::neighbour(&victim.engine);
        let header = shared_read(victim, &mut neighbour).expect("it is served");
        assert!(header.place_in_ring().is_some());
    });
}

#[test]
fn memory_that_is_no_engine_s_or_changes_meanwhile_breaks_nothing() {
    trial(&[], |victim| {
        let (file, (pipe, _writer)) =
            (File::open("/proc/self/exe").unwrap(), std::io::pipe().unwrap());
        let good = SharedMemory::create(1 << 20, TOKEN).unwrap();
        let place =
            |descriptor: i32| SharedPlace { descriptor: descriptor as u32, ..place_of(&good) };
        for bad in [
            place(file.as_raw_fd()),
            place(pipe.as_raw_fd()),
            place(1 << 20),
            SharedPlace { bytes: 1 << 42, ..place_of(&good) },
            SharedPlace { bytes: 1 << 16, ..place_of(&good) },
            SharedPlace { token: 0, ..place_of(&good) },
        ] {
            let mut liar = Acquaintance::neighbour(&victim.engine);
            liar.to_engine.say(&bad.encode());
            liar.to_engine.say(&chunk_in_ring(1, victim.key, 4096));
            let refusal = AckFrame::Refusal { sequence: 1, code: RefusalCode::NoRing };
            assert_eq!(liar.to_engine.ack(), refusal, "{bad:?}");
        }
        // The owner writes to the ring while the engine copies from it: only memory that the attacker may write
        // changes.
        let target = zeroed(&victim.engine, 1 << 20);
        let mut liar = Acquaintance::neighbour(&victim.engine);
        liar.to_engine.say(&place_of(&good).encode());
        for number in 1..=50 {
            good.memory().write_at(0, &vec![number as u8; 1 << 20]).unwrap();
            liar.to_engine.say(&chunk_in_ring(number, key_of(&target), 1 << 20));
            good.memory().write_at(0, &vec![0xff; 1 << 20]).unwrap();
            // A slow engine repeats its last acknowledgement.
            while match liar.to_engine.ack() {
                AckFrame::Ack { sequence } => sequence < number,
                other => panic!("{other:?}"),
            } {}
        }
    });
}

#[test]
fn offers_of_host_memory_of_another_process_or_of_this_one_are_not_taken() {
    let third = Third::start(TOKEN);
    trial(IMPATIENT, |victim| {
        let secret = Memory::from(vec![0x77; 1 << 20]);
        let at = secret.address(0, 1 << 20).unwrap() as u64;
        let namespace = namespace().unwrap();
        let host_memory = |process: Process, base: u64| {
            let words = [process.started, base, 1 << 20, base, base, 0x77 << 56, 0x77 << 56];
            let export =
                [b"PRH2".to_vec(), words.iter().flat_map(|word| word.to_le_bytes()).collect()];
            let descriptors = Vec::new();
            Offer { process: process.number, namespace, descriptors, export: export.concat() }
        };
        let (own, other) = (Process::own().unwrap(), Process::of(third.child.id()).unwrap());
        let init = Process { number: 1, namespace, started: 0 };
        let cut = |mut offer: Offer| {
            offer.export.pop();
            offer
        };
        for offer in [
            host_memory(own, at),
            host_memory(own, u64::MAX - 4095),
            host_memory(other, 0x40_0000),
            host_memory(init, at),
            cut(host_memory(own, at)),
            Offer { descriptors: vec![0, 1, 2], ..host_memory(own, at) },
        ] {
            for mut liar in
                [Acquaintance::impostor(&victim.engine), Acquaintance::neighbour(&victim.engine)]
            {
                takes_rails(victim, &mut liar, &victim.region, &offer);
            }
        }
        let mut now = vec![0; 1 << 20];
        secret.read_at(0, &mut now).unwrap();
        assert!(now.iter().all(|byte| *byte == 0x77), "memory at the offered address was changed");
    });
}

/// Has the engine write to a region of the liar, which answers with this offer: the payload must come over the rails.
/// Returns why the engine took those.
fn takes_rails(
    victim: &Victim,
    liar: &mut Acquaintance,
    from: &polyrail::Region,
    offer: &Offer,
) -> String {
    let engine = &victim.engine;
    let mut description = from.describe();
    description[6..22].copy_from_slice(&liar.card.instance.0.to_le_bytes());
    let there = engine.import(&description).unwrap();
    std::thread::scope(|scope| {
        let peer = liar.peer.clone();
        let write = scope.spawn(move || {
            let request = Request::write(&peer).segment(from.all(), there.all());
            let prepared = engine.prepare(request).unwrap();
            (prepared.post().unwrap(), prepared.path().to_string())
        });
        liar.from_engine.stream.set_read_timeout(Some(LONG)).unwrap();
        let (mut sequence, mut said) = (0, 0);
        loop {
            let (header, meta, payload) = liar.next().expect("the rails carry it");
            sequence += 1;
            liar.from_engine.say(&AckFrame::Ack { sequence }.encode());
            if header.op == WireOp::Write && !payload.is_empty() {
                break;
            }
            let message = Message::decode(&meta);
            let number = said + 1;
            match message {
                Ok(Message::RegionWanted { key }) => {
                    let offered = Ok(offer.clone());
                    liar.say(number, &Message::RegionOffered { key, offered });
                    said = number;
                }
                Ok(Message::MemoryShown { .. }) => {
                    liar.say(number, &Message::MemorySeen { seen: Err("no".into()) });
                    said = number;
                }
                _ => {}
            }
        }
        let (write, why) = write.join().unwrap();
        write.cancel();
        engine.remove_peer(&liar.peer);
        why
    })
}

#[test]
fn offers_of_device_memory_have_no_descriptor_of_a_third_process_taken() {
    let third = Third::start(TOKEN);
    trial(IMPATIENT, |victim| {
        let (region, _memory) = on(&device(0), &victim.engine, &vec![0x33; 1 << 20]);
        let namespace = namespace().unwrap();
        let offer = |process, descriptors: Vec<u32>| Offer {
            process,
            namespace,
            descriptors,
            export: vec![7; 100],
        };
        let (another, own) = ("says that it is another process", "");
        for (offer, found) in [
            (offer(third.child.id(), (0..200).collect()), another),
            (offer(third.child.id(), Vec::new()), another),
            (offer(std::process::id(), vec![1 << 20]), own),
            (offer(std::process::id(), (0..200).collect()), own),
        ] {
            let mut impostor = Acquaintance::impostor(&victim.engine);
            let why = takes_rails(victim, &mut impostor, &region, &offer);
            assert!(why.contains("not in this network namespace"), "{why}");
            let mut neighbour = Acquaintance::neighbour(&victim.engine);
            let why = takes_rails(victim, &mut neighbour, &region, &offer);
            assert!(why.contains(found), "{why}");
        }
    });
}

#[test]
fn memory_is_offered_to_no_peer_that_only_says_that_it_is_here_or_against_the_settings() {
    let device = device(0);
    for (settings, who) in [
        (&[][..], Acquaintance::of as fn(&_) -> _),
        (&[], Acquaintance::impostor),
        (&[("path", "tcp")], Acquaintance::neighbour),
        (&[("path", "shared")], Acquaintance::neighbour),
    ] {
        trial(settings, |victim| {
            let (on_device, _memory) = on(&device, &victim.engine, &[1; 4096]);
            let mut liar = who(&victim.engine);
            for (number, key) in [(1, victim.key), (2, key_of(&on_device))] {
                liar.say(number, &Message::RegionWanted { key });
                let answer = liar.message(number);
                let is_refused = matches!(answer, Message::RegionOffered { offered: Err(_), .. });
                assert!(is_refused, "{settings:?}: {answer:?}");
            }
        });
    }
    // And host memory to no peer, if single copies are off.
    trial(&[("path", "device")], |victim| {
        let mut liar = Acquaintance::neighbour(&victim.engine);
        liar.say(1, &Message::RegionWanted { key: victim.key });
        let answer = liar.message(1);
        assert!(matches!(answer, Message::RegionOffered { offered: Err(_), .. }), "{answer:?}");
    });
}

#[test]
fn a_receive_gives_no_leave_to_share_memory_against_the_settings_or_to_another_host() {
    let device = device(0);
    for (settings, who) in [
        (&[][..], Acquaintance::of as fn(&_) -> Acquaintance),
        (&[("path", "tcp")], Acquaintance::neighbour),
    ] {
        trial(settings, |victim| {
            let (region, memory) = on(&device, &victim.engine, &vec![5; 2 << 20]);
            let mut liar = who(&victim.engine);
            let receive = victim.engine.receive(&liar.peer, 1, &region.all()).unwrap();
            let Message::ReceivePosted(posted) = liar.message(1) else { panic!("no receive") };
            assert_eq!(posted.leave, CopyLeave::No, "{settings:?}");
            receive.cancel();
            victim.engine.remove_peer(&liar.peer);
            assert!(FakeDevice::contents(&memory).iter().all(|byte| *byte == 5));
        });
    }
}
