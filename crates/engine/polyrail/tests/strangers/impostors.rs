//! Impostors are refused, and nothing changes: an instance is the hash of a key, and only the owner of that key can
//! prove it. A stranger that proves its own identity may disturb itself only.

use std::net::TcpListener;

use crate::common::stranger::{
    self, Stranger, card_of, frame, hello, key_of, metadata, metadata_of, notice, write_header,
};
use crate::common::*;
use polyrail::{Engine, Invitation, LostReason};
use polyrail_proto::TransferId;
use polyrail_proto::hello::{Card, FlowHello, Hello, Kind, Metadata, RefusedCode, Reply};
use polyrail_proto::message::Message;
use polyrail_proto::wire::{AckFrame, ChunkHeader, Place, WireOp};
use polyrail_secure::{Identity, Keyring, Responder};

/// Session of the first peer that an engine knows, which is easy to guess.
const SESSION: u64 = 1 << 48;

fn control(number: u64, message: &Message) -> Vec<u8> {
    let (meta, transfer) = (message.encode(), TransferId(number));
    let meta_len = meta.len() as u32;
    let header = ChunkHeader { op: WireOp::Control, meta_len, transfer, ..write_header(0, 0) };
    frame(header, &[], &meta, &[])
}

/// Writes a pattern again and again, and checks that all of it arrives.
fn all_goes_on(p: &Pair, rounds: u64) {
    let len = 300_000;
    let target = zeroed(&p.b, len);
    let there = remote(&p.a, &target);
    for seed in 1..=rounds {
        let source = filled(&p.a, len, seed);
        p.a.write(&p.to_b, &source.all(), &there.all()).unwrap().ended().unwrap();
        assert!(bytes(&target) == pattern(len, seed), "reported done, and not there");
    }
    assert_eq!((lost_flows(&p.a), lost_flows(&p.b)), (0, 0));
    assert_eq!((p.to_a.lost(), p.to_b.lost()), (None, None));
}

/// Checks that this hello without the key of the card is refused, whatever follows it.
fn is_refused(engine: &Engine, hello: &Hello, then: &[u8]) {
    let before = (engine.peers(), engine.stats().refused_connections);
    let mut impostor = Stranger::greeting(engine, hello);
    // The impostor does not wait for an answer.
    impostor.say(then);
    let reply = impostor.reply();
    let Reply::Refused { code: RefusedCode::Unproven, .. } = reply else { panic!("{reply:?}") };
    assert_eq!(impostor.last_words(), b"");
    assert_eq!((engine.peers(), engine.stats().refused_connections), (before.0, before.1 + 1));
}

#[test]
fn who_claims_to_be_another_is_refused_whatever_it_says() {
    let p = pair(&[]);
    all_goes_on(&p, 3);
    let card = card_of(&p.a);
    // An impostor chooses the instance that it claims to be, the number of a flow and of a session.
    for (flow, epoch) in [(0, SESSION + 100), (500, SESSION + 1), (0, 9 * SESSION), (0, u64::MAX)] {
        let hello = FlowHello { flow, flows: flow + 1, epoch, ..hello(&p.b, card.clone()) };
        for forged in [
            notice(1, 1),
            notice(u64::MAX, u64::MAX),
            control(1 << 40, &Message::Bye),
            control(1 << 40, &Message::Cancel { transfer: TransferId(5) }),
            AckFrame::Ack { sequence: 1 << 40 }.encode().to_vec(),
        ] {
            is_refused(&p.b, &Hello::Flow(hello.clone()), &forged);
        }
    }
    is_refused(&p.b, &Hello::Introduction(metadata(&card)), &[]);
    assert_eq!(p.b.stats().notifications_waiting, 0);
    all_goes_on(&p, 20);
}

#[test]
fn who_answers_in_place_of_another_hears_no_hello_and_gets_no_flow() {
    // The thief knows what the victim's peers know, and has its own key.
    let (engine, victim) = (one_rail(&[]), one_rail(&[]));
    let thief = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut stolen = metadata_of(&victim);
    stolen.card.rails[0].address = thief.local_addr().unwrap();
    let keyring = Keyring {
        capability: stolen.capability.secret(),
        shared: Vec::new(),
        host: None,
        certified: None,
        open: false,
    };
    let peer = engine.add_peer(&stolen.encode()).unwrap();
    for _ in 0..3 {
        let mut called = Stranger::on(thief.accept().unwrap().0);
        let (prefix, first) = called.words();
        assert_eq!(prefix.kind(), Kind::First);
        let identity = Identity::fresh().unwrap();
        let (_, second) = Responder::new(&identity, &keyring, &first).unwrap();
        called.write(&Kind::Second.framed(&second));
        assert_eq!(called.last_words(), b"", "it says nothing more");
    }
    assert_eq!((peer.flows().up, peer.lost()), (0, None));
    let dump = engine.dump();
    assert!(dump.contains("not the engine that is meant"), "{dump}");
    // Nor by an invitation, which has the same content except for the addresses.
    let asked = engine.connect_by(thief.local_addr().unwrap(), &victim.invitation());
    let error = std::thread::scope(|scope| {
        scope.spawn(|| {
            loop {
                // The engine also tries flows.
                let mut called = Stranger::on(thief.accept().unwrap().0);
                let (_, first) = called.words();
                let identity = Identity::fresh().unwrap();
                let (_, second) = Responder::new(&identity, &keyring, &first).unwrap();
                called.write(&Kind::Second.framed(&second));
                called.last_words();
                if asked.try_wait().is_some() {
                    return;
                }
            }
        });
        asked.join().unwrap_err().to_string()
    });
    assert!(error.contains("not the engine that is meant"), "{error}");
}

#[test]
fn who_proves_to_be_himself_is_not_taken_for_the_one_whose_card_he_shows() {
    let (engine, victim) = (one_rail(&[]), one_rail(&[]));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let own = metadata(&stranger::card(&[at]));
    let mut invitation = own.card.instance.0.to_le_bytes().to_vec();
    invitation.extend_from_slice(own.capability.bytes());
    let invitation = Invitation::from_bytes(invitation.as_slice().try_into().unwrap());
    for shown in [card_of(&victim), card_of(&engine)] {
        let asked = engine.connect_by(at, &invitation);
        Stranger::accept(&listener).0.welcome(&shown);
        let error = asked.join().unwrap_err().to_string();
        assert!(error.contains("not the engine that is meant"), "{error}");
        assert!(engine.peers().is_empty());
    }
    let asked = engine.connect_by(at, &invitation);
    Stranger::accept(&listener).0.welcome(&own.card);
    assert_eq!(asked.join().unwrap().instance(), own.card.instance);
}

#[test]
fn a_floor_that_is_a_lie_ends_its_own_flow_and_nothing_else() {
    let p = pair(&[]);
    all_goes_on(&p, 3);
    for floor in [1 << 60, u64::MAX] {
        let card = stranger::card(&["127.0.0.1:9".parse().unwrap()]);
        let mut liar = Stranger::welcome_at(&p.b, hello(&p.b, card));
        liar.say(&notice(floor, floor));
        assert_eq!(liar.last_words(), b"", "nothing is acknowledged");
    }
    all_goes_on(&p, 20);
}

#[test]
fn numbers_that_a_peer_uses_up_or_cancels_are_its_own() {
    let p = pair(&[]);
    all_goes_on(&p, 1);
    let card = stranger::card(&["127.0.0.1:9".parse().unwrap()]);
    let mut other = Stranger::welcome_at(&p.b, hello(&p.b, card));
    // Messages and cancels with the numbers of what a sends next.
    for transfer in 1..40 {
        other.say(&notice(transfer, 1));
    }
    for transfer in 40..80 {
        let cancel = Message::Cancel { transfer: TransferId(transfer) };
        other.say(&control((1 << 40) + transfer, &cancel));
    }
    let last = AckFrame::Ack { sequence: 79 };
    while other.ack() != last {}
    assert_eq!(p.b.stats().notifications_waiting, 39);
    all_goes_on(&p, 100);
    // A write with the key of a region lands, whichever peer sends it: that is the purpose of keys.
    let region = zeroed(&p.b, 64);
    let place = Place { key: key_of(&region), offset: 0, len: 64 };
    let header = ChunkHeader { transfer: TransferId(1 << 41), ..write_header(64, 1) };
    other.say(&frame(header, &[place], &[], &[1; 64]));
    wait_for("it to land", || bytes(&region) == [1; 64]);
    // Nor does its goodbye end another peer.
    other.say(&control(1 << 42, &Message::Bye));
    wait_for("it to be gone", || p.b.peers() == [p.to_a.clone()]);
    all_goes_on(&p, 3);
}

/// A stranger with its own port, on which it would take connections that are meant for another.
struct Thief {
    listener: TcpListener,
    card: Card,
}

impl Thief {
    /// Makes a thief that claims to be `victim` at the thief's own address.
    fn of(victim: &Engine) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let mut card = card_of(victim);
        card.rails.truncate(1);
        card.rails[0].address = listener.local_addr().unwrap();
        Self { listener, card }
    }

    /// Whether it has been connected to.
    fn was_called(&self) -> bool {
        self.listener.accept().is_ok()
    }
}

#[test]
fn nobody_is_called_at_an_address_that_somebody_else_says_for_him() {
    let p = pair(&[]);
    let thief = Thief::of(&p.b);
    let forged = |epoch| {
        let hello = FlowHello { epoch, ..hello(&p.a, thief.card.clone()) };
        is_refused(&p.a, &Hello::Flow(hello), &[]);
        is_refused(&p.a, &Hello::Introduction(metadata(&thief.card)), &[]);
    };
    // While the two are connected, when one has left, and before they ever met.
    all_goes_on(&p, 1);
    forged(SESSION + 1);
    all_goes_on(&p, 5);
    p.b.remove_peer(&p.to_a);
    wait_for("a to hear of it", || p.to_b.lost().is_some());
    forged(9 * SESSION);
    let (alone, met) = (engine(&[]), one_rail(&[]));
    let other = Thief::of(&met);
    is_refused(&alone, &Hello::Flow(hello(&alone, other.card.clone())), &[]);
    assert!(alone.peers().is_empty() && p.a.peers().is_empty());
    assert!(!thief.was_called() && !other.was_called());
}

#[test]
fn metadata_given_by_the_user_beats_the_card_of_a_hello() {
    let engine = one_rail(&[]);
    let [told, given] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let addresses = [&told, &given].map(|listener| listener.local_addr().unwrap());
    let mut card = stranger::card(&addresses);
    let (at_given, at_told) = (card.rails.pop().unwrap(), card.rails.clone());
    let mut flow = Stranger::welcome_at(&engine, hello(&engine, card.clone()));
    wait_for("the peer to be known by its hello", || engine.peers().len() == 1);
    let by_hello = engine.peers().remove(0);
    card.rails = vec![at_given];
    let by_user = engine.add_peer(&metadata(&card).encode()).unwrap();
    assert_eq!(flow.last_words(), b"", "its flows are closed");
    assert_eq!(by_hello.lost(), Some(LostReason::OtherMetadata));
    // The peer stays connected: a peer that is cut off has to take this engine's flows first.
    let (mut theirs, _) = Stranger::accept(&given);
    theirs.welcome(&card);
    // The peer may come from another address than the user gave, for instance if its addresses are translated.
    let translated = Card { rails: at_told, ..card.clone() };
    Stranger::welcome_at(&engine, hello(&engine, translated));
    // But not under another name.
    let renamed = Card { name: "another".to_owned(), ..card };
    let mut late = Stranger::greeting(&engine, &Hello::Flow(hello(&engine, renamed)));
    match late.reply() {
        Reply::Refused { code: RefusedCode::OtherCard, reason } => {
            assert!(reason.contains("another card is known"), "{reason}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!((engine.peers(), by_user.lost()), (vec![by_user.clone()], None));
}

#[test]
fn an_engine_that_was_added_in_another_name_gets_no_flow() {
    let (engine, other) = (one_rail(&[("peer_timeout_ms", "1000")]), one_rail(&[]));
    let mut metadata = Metadata::decode(&other.metadata()).unwrap();
    metadata.card.name = "another".to_owned();
    let peer = engine.add_peer(&metadata.encode()).unwrap();
    wait_for("it to be given up", || peer.lost().is_some());
    let why = peer.lost().unwrap().to_string();
    assert!(why.contains("it calls itself otherwise than the metadata that was added"), "{why}");
}

#[test]
fn a_peer_in_another_session_does_not_end_its_own_that_has_flows_up() {
    let engine = one_rail(&[]);
    let card = stranger::card(&["127.0.0.1:9".parse().unwrap()]);
    let mut flow = Stranger::welcome_at(&engine, hello(&engine, card.clone()));
    wait_for("the flow to be up", || engine.peers().len() == 1);
    flow.say(&notice(1, 1));
    assert_eq!(flow.ack(), AckFrame::Ack { sequence: 1 });
    for epoch in [SESSION, 9 * SESSION, 0xffff * SESSION] {
        let hello = FlowHello { epoch, ..hello(&engine, card.clone()) };
        let mut other = Stranger::greeting(&engine, &Hello::Flow(hello));
        let reply = other.reply();
        let code = RefusedCode::OtherSession;
        assert!(matches!(&reply, Reply::Refused { code: c, .. } if *c == code), "{reply:?}");
    }
    flow.say(&notice(2, 1));
    let last = AckFrame::Ack { sequence: 2 };
    while flow.ack() != last {}
    assert_eq!(engine.peers()[0].lost(), None);
}

#[test]
fn a_stranger_whose_notifications_nobody_takes_stops_nobody_else() {
    for settings in [&[][..], &[("progress", "caller")]] {
        let p = pair(&[&[("notification_queue", "64")], settings].concat());
        all_goes_on(&p, 1);
        let honest = |text: &[u8]| p.a.notify(&p.to_b, text).unwrap().ended().unwrap();
        honest(b"first");
        let card = stranger::card(&["127.0.0.1:9".parse().unwrap()]);
        let mut loud = Stranger::welcome_at(&p.b, hello(&p.b, card));
        loud.say_each((1..2000).map(|transfer| notice(transfer, 1)));
        let waiting = || {
            p.b.progress();
            p.b.stats().notifications_waiting
        };
        wait_for("its share to be full", || waiting() > 32);
        all_goes_on(&p, 3);
        honest(b"second");
        // A visit to its flow may take in more than its share, a packet at most.
        assert!(waiting() < 600, "{}", waiting());
        // Nor after it has left, whatever it left.
        drop(loud);
        all_goes_on(&p, 3);
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
        let last = AckFrame::Ack { sequence: 50 };
        while loud.ack() != last {}
        drop(loud);
        wait_for("it to be forgotten", || engine.peers().is_empty());
        assert!(engine.stats().notifications_waiting <= 64);
    }
    assert_eq!(engine.take_notifications().len(), 64);
}
