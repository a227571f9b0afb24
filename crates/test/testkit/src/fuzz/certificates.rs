//! Handshakes with arbitrary certificates.

use std::sync::{Arc, OnceLock};

use polyrail_secure::{
    Capability, Certified, Files, HandshakeError, Identity, Initiator, Keyring, Policy, Proof,
    Proven, Responder, Secret, UnixSeconds,
};

use super::handshake::changed;
use crate::pki::{Issuer, Key, Kind, Params};

/// Both ends, the same for all inputs.
struct Ends {
    a: Identity,
    b: Identity,
    of_a: Arc<Certified>,
    keyring: Keyring,
}

/// A policy with a time at which the certificates are valid.
struct Always;

impl Policy for Always {
    fn now(&self) -> UnixSeconds {
        UnixSeconds(1_782_864_000)
    }

    fn allows(&self, _: &str) -> bool {
        true
    }
}

const NAME: &str = "spiffe://example.org/a";
const WORDS: &[u8] = b"hello";

/// The year 2026.
const VALID: (u64, u64) = (1_767_225_600, 1_798_761_600);

fn ends() -> &'static Ends {
    static ENDS: OnceLock<Ends> = OnceLock::new();
    ENDS.get_or_init(|| {
        let (ca, trust) = Issuer::root(&Params::of_ca("ca", VALID));
        let certified = |identity: &Identity| {
            let key = Key::new(Kind::P256);
            let chain = ca.certificate(&key, &Params::of_engine(&[NAME], VALID, &[]));
            let key = key.pem();
            let files =
                Files { chain: chain.as_bytes(), key: key.as_bytes(), trust: trust.as_bytes() };
            let certified = Certified::new(&files, identity.public(), Arc::new(Always));
            Arc::new(certified.expect("files that fit"))
        };
        let identity = || Identity::fresh().expect("random bits");
        let (a, b) = (identity(), identity());
        let keyring = Keyring {
            capability: Capability::fresh().expect("random bits").secret(),
            shared: Vec::new(),
            host: None,
            certified: Some(certified(&b)),
            open: false,
        };
        let of_a = certified(&a);
        Ends { a, b, of_a, keyring }
    })
}

/// Like [`changed`], which reaches only the beginning. The first byte selects the start of the change, in 256ths of the
/// message.
fn changed_anywhere(message: &[u8], data: &[u8]) -> Vec<u8> {
    let [part, data @ ..] = data else { return message.to_vec() };
    let (before, rest) = message.split_at(message.len() * usize::from(*part) / 256);
    [before, &changed(rest, data)].concat()
}

/// Returns the responder's result for a third message with this content.
fn said(words: &[u8]) -> Result<Proven, HandshakeError> {
    let Ends { a, b, keyring, .. } = ends();
    let (mut initiator, first) =
        Initiator::new(a, Proof::Certificate, &Secret::certificates()).expect("a first message");
    let (responder, second) = Responder::new(b, keyring, &first).expect("a second message");
    initiator.read(&second).expect("the real second message");
    let (third, _) = initiator.finish(words).expect("a third message");
    responder.finish(&third)
}

pub(super) fn run(data: &[u8]) {
    let shown = ends().of_a.shown();
    let framed = |shown: &[u8]| {
        let len = u16::try_from(shown.len()).expect("inputs are small").to_le_bytes();
        [&len, shown, WORDS].concat()
    };
    let real = framed(shown);
    let head = &real[..real.len() - WORDS.len()];
    for words in
        [data.to_vec(), changed_anywhere(&real, data), framed(&changed_anywhere(shown, data))]
    {
        match said(&words) {
            Ok(proven) => {
                assert_eq!(words.strip_prefix(head), Some(&proven.words[..]), "{words:02x?}");
                assert_eq!(
                    (proven.names, proven.initiator),
                    (vec![NAME.to_owned()], ends().a.public())
                );
            }
            Err(error) => assert!(!words.starts_with(head), "the real one is refused: {error}"),
        }
    }
}
