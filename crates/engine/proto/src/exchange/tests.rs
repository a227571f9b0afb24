use polyrail_secure::{Capability, Keyring};

use super::*;
use crate::hello::{Capabilities, Card, Metadata, RailCard};

struct Engine {
    identity: Identity,
    keyring: Keyring,
}

impl Engine {
    fn new(secret: u8) -> Self {
        let capability = Capability::new([secret; 16]).secret();
        let (identity, shared, host) = (Identity::fresh().unwrap(), Vec::new(), None);
        Self {
            identity,
            keyring: Keyring { capability, shared, host, certified: None, open: false },
        }
    }

    fn instance(&self) -> InstanceId {
        InstanceId(self.identity.public().instance())
    }

    fn metadata(&self) -> Metadata {
        let rail = RailCard {
            name: "eth0".to_owned(),
            address: "10.0.0.1:1".parse().unwrap(),
            prefix_len: 24,
            speed_mbps: 0,
        };
        let card = Card {
            instance: self.instance(),
            host: 1,
            name: "node".to_owned(),
            capabilities: Capabilities::default(),
            rails: vec![rail],
        };
        Metadata { card, capability: Capability::new([3; 16]) }
    }

    /// Connects to the engine with this number, using its own secret.
    fn calls(&self, to: Option<InstanceId>) -> Exchange {
        let proof = (Proof::Capability, &self.keyring.capability);
        let hello = Hello::Introduction(self.metadata());
        Exchange::connecting(FirstWords::new(&self.identity, proof, None, to, hello).unwrap())
    }
}

/// Bytes that each end has written and the other has not read.
type OnTheWay = [Vec<u8>; 2];

/// Moves bytes between the ends in pieces of this size until an end has an event or none moves. Returns which end. `of`
/// is the responder's engine.
fn talk(
    ends: &mut [Exchange; 2],
    on_the_way: &mut OnTheWay,
    piece: usize,
    of: &Engine,
) -> Option<(usize, Event)> {
    let answer = |first: &[u8]| Responder::new(&of.identity, &of.keyring, first);
    loop {
        let mut moved = false;
        for (at, end) in ends.iter_mut().enumerate() {
            let event = match end.turn() {
                Turn::Write(bytes) => {
                    let bytes = bytes[..bytes.len().min(piece)].to_vec();
                    on_the_way[at].extend_from_slice(&bytes);
                    moved = true;
                    end.handle_written(bytes.len())
                }
                Turn::Read(room) => {
                    let came: &mut Vec<u8> = &mut on_the_way[1 - at];
                    let len = room.len().min(piece).min(came.len());
                    if len == 0 {
                        continue;
                    }
                    room[..len].copy_from_slice(&came[..len]);
                    came.drain(..len);
                    moved = true;
                    end.handle_read(len, &answer)
                }
            };
            if let Some(event) = event {
                return Some((at, event));
            }
        }
        if !moved {
            return None;
        }
    }
}

#[test]
fn both_ends_are_proven_however_the_bytes_are_cut() {
    let (caller, called) = (Engine::new(7), Engine::new(7));
    for piece in [1, 2, 13, 1 << 20] {
        let mut ends = [caller.calls(Some(called.instance())), Exchange::accepting()];
        assert!(ends[1].is_unheard() && !ends[1].is_proven());
        let mut on_the_way = OnTheWay::default();
        let mut next = |ends: &mut _| talk(ends, &mut on_the_way, piece, &called);
        let Some((1, Event::Hello(hello))) = next(&mut ends) else { panic!() };
        assert_eq!(hello.card().instance, caller.instance());
        assert_eq!(ends[1].proven_by(), Some(Proof::Capability));
        let accepted = Reply::Accepted(called.metadata());
        ends[1].reply(&accepted);
        let (sent, got) = (next(&mut ends), next(&mut ends));
        assert!(matches!(sent, Some((1, Event::ReplySent))), "{sent:?}");
        assert!(matches!(&got, Some((0, Event::Reply(reply))) if *reply == accepted), "{got:?}");
        assert!(next(&mut ends).is_none());
        assert!(ends.into_iter().all(|end| end.is_proven() && end.into_keys().is_some()));
    }
}

#[test]
fn another_secret_proves_nothing_and_is_refused_without_a_hint() {
    let (caller, called) = (Engine::new(7), Engine::new(8));
    let mut ends = [caller.calls(None), Exchange::accepting()];
    let Some((1, Event::Fault(Fault::Unproven(error)))) =
        talk(&mut ends, &mut OnTheWay::default(), 5, &called)
    else {
        panic!()
    };
    let (code, words) = refusal_of(&error);
    assert_eq!(code, RefusedCode::Unproven);
    // The initiator reads the refusal even though it is in clear.
    let goodbye = Exchange::goodbye(code, words);
    let mut end = caller.calls(None);
    while let Turn::Write(bytes) = end.turn() {
        let len = bytes.len();
        assert!(end.handle_written(len).is_none());
    }
    let nobody = |_: &[u8]| panic!("it connects");
    let mut event = None;
    for byte in goodbye {
        let Turn::Read(room) = end.turn() else { panic!() };
        room[0] = byte;
        event = end.handle_read(1, &nobody);
    }
    let Some(Event::Reply(Reply::Refused { reason, .. })) = event else { panic!("{event:?}") };
    assert!(reason == words && !end.is_proven());
}

#[test]
fn another_engine_than_the_one_that_is_meant_is_not_told_the_hello() {
    let (caller, called) = (Engine::new(7), Engine::new(7));
    let mut ends = [caller.calls(Some(InstanceId(1))), Exchange::accepting()];
    let said = talk(&mut ends, &mut OnTheWay::default(), 5, &called);
    let Some((0, Event::Fault(Fault::Failed(ConnectReason::Impostor(why))))) = said else {
        panic!("{said:?}")
    };
    assert_eq!(why, HandshakeError::OtherIdentity);
}

#[test]
fn words_that_are_no_first_message_end_the_exchange() {
    let called = Engine::new(7);
    let answer = |first: &[u8]| Responder::new(&called.identity, &called.keyring, first);
    let says = |bytes: &[u8]| {
        let mut end = Exchange::accepting();
        let mut event = None;
        for byte in bytes {
            let Turn::Read(room) = end.turn() else { panic!() };
            room[0] = *byte;
            event = end.handle_read(1, &answer);
        }
        let Some(Event::Fault(Fault::Rejected(error))) = event else { panic!("{event:?}") };
        error
    };
    assert_eq!(refusal_of_words(&says(b"GET / HTTP/1.1"[..12].as_ref())), None);
    let reply = refusal_of_words(&says(&Kind::Reply.framed(b"x"))).unwrap();
    assert_eq!(reply.0, RefusedCode::Malformed);
    assert!(reply.1.contains("the next message of the handshake"), "{}", reply.1);
    let event = Exchange::accepting().handle_read(0, &answer);
    assert!(matches!(event, Some(Event::Fault(Fault::Failed(ConnectReason::Closed)))), "{event:?}");
}
