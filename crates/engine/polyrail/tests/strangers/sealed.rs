//! A man in the middle between two engines, who changes, repeats, holds back, invents and keeps what crosses. He can
//! end connections, as the owner of the cable can, and nothing else.

use std::net::TcpListener;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::common::meddler::{Meddler, Part, Shape};
use crate::common::relay::with;
use crate::common::stranger::{Stranger, key_of, metadata_of};
use crate::common::*;
use polyrail::{Engine, Flows, Peer};
use polyrail_proto::hello::{Kind, RefusedCode, Reply};

/// Two engines with one flow each way. All that `a` sends to `b` passes the meddler.
struct Meddled {
    a: Engine,
    b: Engine,
    to_b: Peer,
    meddler: Meddler,
}

impl Meddled {
    fn new(
        a: &[(&'static str, &'static str)],
        b: &[(&'static str, &'static str)],
        hook: impl FnMut(Part) -> Vec<u8> + Send + 'static,
    ) -> Self {
        let build = |more: &[_]| one_rail(&[&with(more)[..], &[("channels", "1")]].concat());
        let (a, b) = (build(a), build(b));
        let meddler = Meddler::to(b.addresses()[0], hook);
        let mut metadata = metadata_of(&b);
        metadata.card.rails[0].address = meddler.address;
        let to_b = a.add_peer(&metadata.encode()).unwrap();
        Self { a, b, to_b, meddler }
    }

    /// Writes and notifies. Checks that all arrives unchanged, each notification once and in order.
    fn all_arrives(&self, writes: usize, len: usize) {
        let targets: Vec<_> = (0..writes).map(|_| zeroed(&self.b, len)).collect();
        let sources: Vec<_> = (0..writes).map(|n| filled(&self.a, len, n as u64)).collect();
        let posted: Vec<_> = (0..writes)
            .flat_map(|n| {
                let there = remote(&self.a, &targets[n]);
                let write = self.a.write(&self.to_b, &sources[n].all(), &there.all()).unwrap();
                [write, self.a.notify(&self.to_b, &[n as u8]).unwrap()]
            })
            .collect();
        posted.iter().for_each(finished);
        for (n, target) in targets.iter().enumerate() {
            assert!(bytes(target) == pattern(len, n as u64), "write {n}");
        }
        let mut came = Vec::new();
        while came.len() < writes {
            let one = self.b.wait_notification(LONG).expect("it was acknowledged");
            assert_eq!(one.peer.instance(), self.a.instance());
            came.extend(one.data);
        }
        came.sort_unstable();
        assert_eq!(came, (0..writes as u8).collect::<Vec<_>>());
        assert!(self.b.take_notifications().is_empty());
    }
}

fn holds(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

/// A change to a record, which may be kept for the next one.
type Harm = fn(Vec<u8>, &mut Option<Vec<u8>>) -> Vec<u8>;

const HARMS: [(&str, Harm); 9] = [
    ("the sealed length", |record, _| flipped(record, 1)),
    ("the raw length", |record, _| flipped(record, 4)),
    ("the first sealed byte", |record, _| flipped(record, 8)),
    ("the middle", |record, _| {
        let middle = record.len() / 2;
        flipped(record, middle)
    }),
    ("the tag", |record, _| {
        let last = record.len() - 1;
        flipped(record, last)
    }),
    ("left out", |_, _| Vec::new()),
    ("repeated", |record, _| [record.clone(), record].concat()),
    ("swapped with the next", |record, kept| {
        *kept = Some(record);
        Vec::new()
    }),
    ("another one before it", |record, _| [vec![0; 24], record].concat()),
];

fn flipped(mut bytes: Vec<u8>, at: usize) -> Vec<u8> {
    bytes[at] ^= 4;
    bytes
}

/// Makes a hook that applies it to a record of the first connection, in that direction.
fn harming(
    up: bool,
    at: usize,
    harm: Harm,
    done: Arc<AtomicUsize>,
) -> impl FnMut(Part) -> Vec<u8> + Send {
    let mut kept = None;
    move |part| {
        let Part { connection, shape, number, bytes, .. } = part;
        if connection != 0 || part.up != up {
            return bytes;
        }
        if shape == Shape::Record && number == at {
            done.fetch_add(1, Ordering::Relaxed);
            return harm(bytes, &mut kept);
        }
        // Behind the next record, with the payload that was behind it.
        let is_record = shape == Shape::Record;
        match kept.take_if(|_| is_record) {
            Some(kept) => [bytes, kept].concat(),
            None => bytes,
        }
    }
}

#[test]
fn a_record_that_is_changed_left_out_repeated_or_moved_ends_its_connection_and_nothing_else() {
    for (up, payload) in [(true, "none"), (true, "aead"), (false, "none")] {
        for (what, harm) in HARMS {
            // A record that is repeated in front of its payload passes for payload, which is not protected.
            if up && payload == "none" && what == "repeated" {
                continue;
            }
            let done = Arc::new(AtomicUsize::new(0));
            let hook = harming(up, if up { 3 } else { 1 }, harm, done.clone());
            let p = Meddled::new(&[("payload", payload)], &[], hook);
            p.all_arrives(12, 100_000);
            // Acknowledgements of completed transfers may still be under way.
            p.a.notify(&p.to_b, b"last").unwrap().ended().unwrap();
            assert_eq!(done.load(Ordering::Relaxed), 1, "{what}, up {up}");
            wait_for("another connection", || p.meddler.connections() > 1);
            p.a.notify(&p.to_b, b"again").unwrap().ended().unwrap();
            assert_eq!((p.a.peers().len(), p.b.peers().len()), (1, 1), "{what}, up {up}");
            assert_eq!(p.to_b.lost(), None, "{what}, up {up}");
        }
    }
}

#[test]
fn with_sealed_payload_every_changed_byte_is_noticed() {
    const HARMED: usize = 24;
    let harmed = Arc::new(AtomicUsize::new(0));
    let count = harmed.clone();
    let mut random = Random(7);
    let mut last = None;
    let hook = move |part: Part| {
        assert_ne!(part.shape, Shape::Raw, "payload crosses as it is");
        // Once on each connection, and only a limited number of times.
        let harm = part.shape == Shape::Record
            && last.is_none_or(|last| part.connection > last)
            && count.load(Ordering::Relaxed) < HARMED
            && random.below(12) == 0;
        if !harm {
            return part.bytes;
        }
        last = Some(part.connection);
        count.fetch_add(1, Ordering::Relaxed);
        let at = random.below(part.bytes.len() as u64 - 8) as usize;
        flipped(part.bytes, 8 + at)
    };
    let p = Meddled::new(&[("payload", "aead")], &[], hook);
    let round = || p.all_arrives(8, 300_000);
    while harmed.load(Ordering::Relaxed) < HARMED {
        round();
    }
    round();
    assert!(p.meddler.connections() > HARMED, "{}", p.meddler.connections());
}

/// Moves data both ways and returns all that crossed between the two, in both directions.
fn all_that_crosses(a: &'static str, b: &'static str) -> (Vec<u8>, [Vec<u8>; 2]) {
    let crossed = Arc::new(Mutex::new(Vec::new()));
    let keep = |crossed: Arc<Mutex<Vec<u8>>>| {
        move |part: Part| {
            crossed.lock().unwrap().extend_from_slice(&part.bytes);
            part.bytes
        }
    };
    let p = Meddled::new(&[("payload", a)], &[("payload", b)], keep(crossed.clone()));
    // The bytes that b sends pass as well.
    let back = Meddler::to(p.a.addresses()[0], keep(crossed.clone()));
    let mut metadata = metadata_of(&p.a);
    metadata.card.rails[0].address = back.address;
    let to_a = p.b.add_peer(&metadata.encode()).unwrap();
    let len = 200_000;
    let (here, there) = (filled(&p.a, len, 1), filled(&p.b, len, 2));
    let (room_here, room_there) = (zeroed(&p.a, len), zeroed(&p.b, len));
    let to_b = || p.a.peer(p.b.instance()).unwrap();
    let write = p.a.write(&to_b(), &here.all(), &remote(&p.a, &room_there).all()).unwrap();
    write.ended().unwrap();
    let read = p.a.read(&to_b(), &room_here.all(), &remote(&p.a, &there).all()).unwrap();
    read.ended().unwrap();
    p.b.notify(&to_a, b"known words of a notification").unwrap().ended().unwrap();
    assert!(bytes(&room_here) == pattern(len, 2) && bytes(&room_there) == pattern(len, 1));
    let nonces = [&here, &there, &room_here, &room_there];
    let nonces = nonces.map(|region| key_of(region).nonce.to_le_bytes().to_vec());
    let crossed = crossed.lock().unwrap().clone();
    for nonce in &nonces {
        assert!(!holds(&crossed, nonce), "the key of a region crosses in clear");
    }
    assert!(!holds(&crossed, b"known words"), "a message crosses in clear");
    for engine in [&p.a, &p.b] {
        let metadata = metadata_of(engine);
        assert!(!holds(&crossed, metadata.capability.bytes()), "a capability in clear");
        assert!(!holds(&crossed, &metadata.card.instance.0.to_le_bytes()), "who it is, in clear");
    }
    let middle = len / 2..len / 2 + 16;
    (crossed, [1, 2].map(|seed| pattern(len, seed)[middle.clone()].to_vec()))
}

#[test]
fn payload_is_sealed_both_ways_if_either_end_wants_it_and_keys_always_are() {
    for (a, b, sealed) in [
        // The control: without sealing, the test would see the payload.
        ("none", "none", false),
        ("crc32c", "none", false),
        ("aead", "none", true),
        ("none", "aead", true),
        ("crc32c", "aead", true),
        ("aead", "aead", true),
    ] {
        let (crossed, payload) = all_that_crosses(a, b);
        for bytes in payload {
            assert_eq!(!holds(&crossed, &bytes), sealed, "{a} and {b}");
        }
    }
}

#[test]
fn a_changed_byte_anywhere_in_the_handshake_ends_it_and_the_flow_comes_up_later() {
    let settings = [
        ("rails", "127.0.0.1,127.0.0.2"),
        ("channels", "2"),
        ("reconnect_max_ms", "2"),
        ("connect_timeout_ms", "200"),
        ("peer_timeout_ms", "1000"),
    ];
    let (a, b) = (engine(&settings), engine(&settings));
    // Changes byte n of all that both send, in the order in which they send it, once n others were changed.
    let (changed, said) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (count, total) = (changed.clone(), said.clone());
    // The current connection's number, the bytes sent on it, and whether one was changed.
    let (mut connection, mut before, mut spoilt) = (0, 0, false);
    let meddler = Meddler::to(b.addresses()[0], move |mut part| {
        if part.connection > connection {
            (connection, before, spoilt) = (part.connection, 0, false);
        }
        // The last bytes on a connection that was given up may come after the first ones on the next.
        if part.connection < connection {
            return part.bytes;
        }
        if part.shape != Shape::Message || spoilt {
            return part.bytes;
        }
        let at = count.load(Ordering::Relaxed).checked_sub(before);
        before += part.bytes.len();
        total.store(before, Ordering::Relaxed);
        if let Some(byte) = at.and_then(|at| part.bytes.get_mut(at)) {
            *byte ^= 1 << (before % 8);
            spoilt = true;
            count.fetch_add(1, Ordering::Relaxed);
        }
        part.bytes
    });
    let mut metadata = metadata_of(&b);
    metadata.card.rails[0].address = meddler.address;
    let to_b = a.add_peer(&metadata.encode()).unwrap();
    let since = std::time::Instant::now();
    while !to_b.flows().are_all_up() {
        assert!(since.elapsed() < 2 * LONG, "{} connections", meddler.connections());
        let instances = |engine: &Engine| {
            engine.peers().iter().map(polyrail::Peer::instance).collect::<Vec<_>>()
        };
        assert_eq!(instances(&a), [b.instance()]);
        // The other may not have come yet.
        assert!(instances(&b).iter().all(|instance| *instance == a.instance()));
        // Polls the known peers.
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    // The engines use the first connection on which nothing was changed.
    let (changed, said) = (changed.load(Ordering::Relaxed), said.load(Ordering::Relaxed));
    assert!(changed > 400 && changed == said, "{changed} of {said} bytes");
    assert!(meddler.connections() > changed);
    let (source, target) = (filled(&a, 1 << 20, 1), zeroed(&b, 1 << 20));
    a.write(&to_b, &source.all(), &remote(&a, &target).all()).unwrap().ended().unwrap();
    assert!(bytes(&target) == pattern(1 << 20, 1));
    assert_eq!(to_b.lost(), None);
}

#[test]
fn what_was_recorded_gets_nothing_at_either_end() {
    let recorded = Arc::new(Mutex::new([Vec::new(), Vec::new()]));
    let keep = recorded.clone();
    let p = Meddled::new(&[], &[], move |part| {
        keep.lock().unwrap()[usize::from(part.up)].push(part.bytes.clone());
        part.bytes
    });
    p.a.notify(&p.to_b, b"once").unwrap().ended().unwrap();
    assert_eq!(p.b.wait_notification(LONG).unwrap().data, b"once");
    let Meddled { a, b, to_b, meddler } = p;
    a.remove_peer(&to_b);
    wait_for("b to hear of it", || b.peers().is_empty());
    drop(meddler);
    let [down, up] = std::mem::take(&mut *recorded.lock().unwrap());

    let before = b.stats().refused_connections;
    let mut again = Stranger::at(&b);
    again.write(&up.concat());
    // The first message is as valid as before; the rest needs the key that was used up with it.
    assert_eq!(again.words().0.kind(), Kind::Second);
    let reply = again.reply();
    assert!(matches!(reply, Reply::Refused { code: RefusedCode::Unproven, .. }), "{reply:?}");
    again.last_words();
    assert!(b.peers().is_empty() && b.take_notifications().is_empty());
    assert_eq!(b.stats().refused_connections, before + 1);

    let place = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut metadata = metadata_of(&b);
    metadata.card.rails[0].address = place.local_addr().unwrap();
    let peer = a.add_peer(&metadata.encode()).unwrap();
    for _ in 0..3 {
        let mut called = Stranger::on(place.accept().unwrap().0);
        called.write(&down.concat());
        assert_eq!(called.words().0.kind(), Kind::First);
        assert_eq!(called.last_words(), b"");
    }
    assert_eq!(peer.flows(), Flows { up: 0, total: 1 });
}
