//! Handshakes with any bytes as messages.

use std::collections::HashSet;
use std::sync::{Mutex, OnceLock, PoisonError};

use polyrail_secure::{
    Capability, HandshakeError, Identity, Initiator, Keyring, Proof, Responder, Secret,
};

/// Text of the third message.
const WORDS: &[u8] = b"hello";

/// Both engines, the same for all inputs, because making keys takes long. Their secrets are unknown outside of this
/// process, so an input is never a message of an earlier run.
struct Ends {
    a: Identity,
    b: Identity,
    secret: Secret,
    keyring: Keyring,
    /// First messages made so far. A fuzzer may replay one, but can't continue that handshake.
    first: Mutex<HashSet<Vec<u8>>>,
}

fn ends() -> &'static Ends {
    static ENDS: OnceLock<Ends> = OnceLock::new();
    ENDS.get_or_init(|| {
        let fresh = || Capability::fresh().expect("random bits").secret();
        let secret = fresh();
        let shared = [fresh(), fresh()].into();
        let (capability, certified) = (secret.clone(), None);
        let keyring = Keyring { capability, shared, host: None, certified, open: false };
        let identity = || Identity::fresh().expect("random bits");
        let first = Mutex::default();
        Ends { a: identity(), b: identity(), secret, keyring, first }
    })
}

/// Changes a message like an attacker on the path: the first byte selects the position, the second the kind of change,
/// and the rest is combined with or inserted into the message.
pub(super) fn changed(message: &[u8], data: &[u8]) -> Vec<u8> {
    let [at, what, rest @ ..] = data else { return message.to_vec() };
    let at = usize::from(*at) % message.len();
    let mut changed = message.to_vec();
    match what % 4 {
        0 => changed[at..].iter_mut().zip(rest).for_each(|(byte, other)| *byte ^= other),
        1 => changed.truncate(at),
        2 => {
            changed.splice(at..at, rest.iter().copied());
        }
        _ => changed = [&message[..at], rest].concat(),
    }
    changed
}

pub(super) fn run(data: &[u8]) {
    let Ends { a, b, secret, keyring, first: made } = ends();
    let made = || made.lock().unwrap_or_else(PoisonError::into_inner);
    let start = || {
        let (initiator, first) =
            Initiator::new(a, Proof::Capability, secret).expect("a first message");
        made().insert(first.clone());
        (initiator, first)
    };
    let answer = |first: &[u8]| Responder::new(b, keyring, first);

    let (_, first) = start();
    for message in [data.to_vec(), changed(&first, data)] {
        let is_made = made().contains(&message);
        assert_eq!(answer(&message).is_ok(), is_made, "first message {message:02x?}");
    }

    let (mut initiator, first) = start();
    let (_, second) = answer(&first).expect("a second message");
    let message = changed(&second, data);
    let is_real = message == second;
    let read = initiator.read(&message);
    assert_eq!(read.is_ok_and(|who| who == b.public()), is_real, "second message {message:02x?}");
    let (mut initiator, _) = start();
    assert_eq!(initiator.read(data), Err(HandshakeError::Unproven), "a second message");

    let (mut initiator, first) = start();
    let (responder, second) = answer(&first).expect("a second message");
    initiator.read(&second).expect("the real second message");
    let (third, _) = initiator.finish(WORDS).expect("a third message");
    let message = changed(&third, data);
    match responder.finish(&message) {
        Ok(proven) => {
            assert_eq!(message, third);
            assert_eq!((proven.initiator, &proven.words[..]), (a.public(), WORDS));
        }
        Err(_) => assert_ne!(message, third, "the real third message is refused"),
    }
    let (responder, _) = answer(&first).expect("a second message");
    assert!(responder.finish(data).is_err(), "a third message {data:02x?}");
}
