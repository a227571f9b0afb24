//! Attackers that lie while they connect, and attackers that come and go.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use polyrail::Engine;
use polyrail_proto::InstanceId;
use polyrail_proto::hello::{Hello, Kind, Reply};
use polyrail_proto::message::Message;
use polyrail_proto::wire::SharedPlace;
use polyrail_secure::{Capability, Identity, Initiator, Proof};

use super::{IMPATIENT, trial};
use crate::common::acquaintance::{Acquaintance, control};
use crate::common::stranger::{Stranger, card, hello, metadata, metadata_of, notice};
use crate::common::*;

/// An address that no stranger listens on.
fn nowhere() -> std::net::SocketAddr {
    "127.0.0.1:9".parse().unwrap()
}

#[test]
fn parts_of_handshakes_that_are_repeated_mixed_or_reflected_make_no_peer() {
    trial(&[], |victim| {
        let engine = &victim.engine;
        let identity = Identity::fresh().unwrap();
        let secret = metadata_of(engine).capability.secret();
        let begin = || Initiator::new(&identity, Proof::Capability, &secret).unwrap();
        let mut own = hello(engine, card(&[nowhere()]));
        own.card.instance = InstanceId(identity.public().instance());
        let (mut initiator, first) = begin();
        let mut real = Stranger::at(engine);
        real.write(&Kind::First.framed(&first));
        let (_, second) = real.words();
        initiator.read(&second).unwrap();
        let (third, keys) = initiator.finish(&Hello::Flow(own.clone()).encode()).unwrap();

        let mut repeated = Stranger::at(engine);
        repeated.write(&Kind::First.framed(&first));
        assert_ne!(repeated.words().1, second, "each answer is another one");
        let after_first = |words: &[u8]| {
            let mut stranger = Stranger::at(engine);
            stranger.write(&Kind::First.framed(&first));
            stranger.words();
            stranger.write(words);
            // The only check is that the engine hangs up.
            stranger.last_words();
        };
        repeated.write(&Kind::Third.framed(&third));
        repeated.last_words();
        after_first(&Kind::Second.framed(&second));
        after_first(&Kind::First.framed(&first));
        let mut early = Stranger::at(engine);
        early.write(&Kind::Third.framed(&third));
        early.last_words();
        assert_eq!(engine.peers().len(), 1, "the honest one");
        real.write(&Kind::Third.framed(&third));
        real.is_proven(keys);
        assert!(matches!(real.reply(), Reply::Accepted(_)), "the handshake itself is good");

        // The card of an instance other than the key's.
        let (mut initiator, first) = begin();
        let mut stranger = Stranger::at(engine);
        stranger.write(&Kind::First.framed(&first));
        initiator.read(&stranger.words().1).unwrap();
        own.card.instance = engine.instance();
        let (third, _) = initiator.finish(&Hello::Flow(own).encode()).unwrap();
        stranger.write(&Kind::Third.framed(&third));
        stranger.last_words();
        assert_eq!(engine.peers().len(), 2);
    });
}

#[test]
fn an_engine_that_is_led_back_to_itself_by_a_relay_does_not_become_its_own_peer() {
    trial(&[], |victim| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut lure = metadata(&card(&[listener.local_addr().unwrap()]));
        // The victim's own capability, handed out as the attacker's.
        lure.capability = metadata_of(&victim.engine).capability;
        let peer = victim.engine.add_peer(&lure.encode()).unwrap();
        let (one, _) = listener.accept().unwrap();
        let two = TcpStream::connect(victim.engine.addresses()[0]).unwrap();
        let relay = |mut from: TcpStream, mut to: TcpStream| {
            let _ = std::io::copy(&mut from, &mut to);
            let _ = to.shutdown(std::net::Shutdown::Both);
        };
        std::thread::scope(|scope| {
            let (from, to) = (one.try_clone().unwrap(), two.try_clone().unwrap());
            scope.spawn(move || relay(from, to));
            // The engine hangs up, as the other end is not the engine that it calls.
            relay(two, one);
        });
        assert_eq!(peer.flows().up, 0);
        victim.engine.remove_peer(&peer);
    });
}

#[test]
fn wrong_secrets_are_answered_alike_however_near_they_are() {
    trial(&[], |victim| {
        let identity = Identity::fresh().unwrap();
        let right = metadata_of(&victim.engine).capability.secret();
        let wrong = Capability::new([9; 16]).secret();
        let answers: Vec<Vec<u8>> =
            [(&wrong, Proof::Capability), (&right, Proof::Capability), (&right, Proof::Secret)]
                .into_iter()
                .map(|(secret, proof)| {
                    let (_, mut first) = Initiator::new(&identity, proof, secret).unwrap();
                    *first.last_mut().unwrap() ^= 1;
                    let mut stranger = Stranger::at(&victim.engine);
                    stranger.write(&Kind::First.framed(&first));
                    stranger.last_words()
                })
                .collect();
        assert_eq!(answers[0], answers[1], "one bit of the right one");
        assert_eq!(answers[0], answers[2], "the right one as another kind of secret");
    });
}

#[test]
fn hellos_with_odd_numbers_are_answered_and_change_nothing() {
    trial(&[], |victim| {
        let engine = &victim.engine;
        let (mut answered, mut hung_up) = (0, 0);
        let odd = [0, 1, 63, u32::MAX];
        for (number, flow) in odd.into_iter().cycle().take(48).enumerate() {
            let mut odd_hello = hello(engine, card(&[nowhere()]));
            let pick = |step: usize| odd[(number / step) % 4];
            (odd_hello.flow, odd_hello.flows) = (flow, pick(4));
            odd_hello.window_chunks = pick(2);
            odd_hello.channel = pick(3);
            odd_hello.epoch = u64::from(pick(5));
            (odd_hello.from_rail, odd_hello.to_rail) = (pick(6) as u16, pick(7) as u16);
            let place = SharedPlace { process: 1, descriptor: 0, bytes: 2 << 20, token: 1 };
            odd_hello.stream = (number % 3 == 0).then_some(place);
            let mut stranger = Stranger::at(engine);
            let instance = odd_hello.card.instance;
            stranger.prove(engine, instance, &Hello::Flow(odd_hello).encode());
            // The engine hangs up if the words are not a hello at all.
            match stranger.stream.read(&mut [0]) {
                Ok(1) => answered += 1,
                Ok(_) => hung_up += 1,
                Err(error) if error.kind() == ErrorKind::ConnectionReset => hung_up += 1,
                Err(error) => panic!("no answer: {error}"),
            }
        }
        assert!(answered > 0 && answered + hung_up == 48, "{answered} and {hung_up}");
    });
}

#[test]
fn connections_that_stay_half_open_keep_no_new_peer_out() {
    trial(&[], |victim| {
        let whole = b"PLYR\x02\x00\x01\x00\x31\x00\x00\x00\x01abc";
        let half_open: Vec<TcpStream> = (0..600)
            .map(|number| {
                let mut stream = TcpStream::connect(victim.engine.addresses()[0]).unwrap();
                // The engine may have hung up by now.
                let _ = stream.write_all(&whole[..number % whole.len()]);
                stream
            })
            .collect();
        let late = one_rail(&[]);
        let peer = late.add_peer(&victim.engine.metadata()).unwrap();
        late.notify(&peer, b"here").unwrap().ended().unwrap();
        drop(half_open);
    });
}

fn come_and_go(engine: &Engine, times: usize) {
    for _ in 0..times {
        let mut guest = Stranger::welcome_at(engine, hello(engine, card(&[nowhere()])));
        guest.say(&notice(1, 1));
        assert_eq!(engine.wait_notification(LONG).expect("it tells one").data, b"x");
        guest.say(&control(2, &Message::Bye));
    }
    wait_for("the guests to be gone", || engine.peers().len() == 1);
}

#[test]
fn identities_that_come_and_go_leave_no_peers_behind() {
    trial(&[], |victim| {
        come_and_go(&victim.engine, 100);
        assert_eq!(victim.engine.peers().len(), 1);
    });
}

#[test]
fn an_engine_grows_by_no_more_for_later_guests_than_for_earlier_ones() {
    trial(&[], |victim| {
        come_and_go(&victim.engine, 50);
        let once = victim.engine.dump().lines().count();
        come_and_go(&victim.engine, 150);
        let later = victim.engine.dump().lines().count();
        assert!(later < once + 50, "the state dump has grown from {once} to {later} lines");
    });
}

#[test]
fn an_identity_that_comes_again_with_another_card_is_refused_or_the_same_peer() {
    trial(IMPATIENT, |victim| {
        let engine = &victim.engine;
        let known = Acquaintance::of(engine);
        for number in 0..20_u32 {
            let mut other = hello(engine, known.card.clone());
            match number % 4 {
                0 => other.card.name = format!("x{number}"),
                1 => other.card.host = u128::from(number) << 64,
                2 => other.flows = 1 + number % 9,
                _ => other.epoch = u64::MAX,
            }
            let changes_card = number % 4 < 2;
            let reply = Stranger::greeting(engine, &Hello::Flow(other)).reply();
            let is_refused = matches!(reply, Reply::Refused { .. });
            assert!(is_refused || !changes_card, "{number}: {reply:?}");
            assert_eq!(engine.peers().len(), 2, "it is one peer");
        }
    });
}

#[test]
fn cards_that_lead_elsewhere_make_an_engine_connect_nowhere() {
    trial(&[], |victim| {
        let engine = &victim.engine;
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let elsewhere = listener.local_addr().unwrap();
        let own = engine.addresses()[0];
        let cards = (0..10).flat_map(|_| [card(&[own]), card(&[elsewhere; 60])]);
        let guests: Vec<_> =
            cards.map(|card| Stranger::welcome_at(engine, hello(engine, card))).collect();
        let (since, mut calls) = (Instant::now(), 0);
        while since.elapsed() < Duration::from_millis(500) {
            match listener.accept() {
                Ok(_) => calls += 1,
                // Polls for calls during half a second.
                Err(_) => std::thread::sleep(Duration::from_millis(5)),
            }
        }
        assert_eq!(calls, 0, "nothing is to be sent to them");
        drop(guests);
    });
}
