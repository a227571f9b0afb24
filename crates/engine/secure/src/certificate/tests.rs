use std::sync::atomic::{AtomicU64, Ordering};

use polyrail_testkit::pki::{Issuer, Key, Kind, Params, Usage};

use super::*;
use crate::{HandshakeError, Identity, Initiator, Keyring, Proof, Proven, Responder, Secret};

/// 1 July 2026; certificates are valid in that year.
const NOW: u64 = 1_782_864_000;
const IN_2026: u64 = 1_767_225_600;
const IN_2027: u64 = 1_798_761_600;
const DAY: u64 = 86_400;
/// First days of months in 2026.
const MARCH: u64 = IN_2026 + 59 * DAY;
const JUNE: u64 = IN_2026 + 151 * DAY;
const AUGUST: u64 = IN_2026 + 212 * DAY;
const DECEMBER: u64 = IN_2026 + 334 * DAY;

struct Rules {
    now: AtomicU64,
    allowed: &'static str,
}

impl Policy for Rules {
    fn now(&self) -> UnixSeconds {
        UnixSeconds(self.now.load(Ordering::Relaxed))
    }

    fn allows(&self, name: &str) -> bool {
        name.starts_with(self.allowed)
    }
}

fn policy(allowed: &'static str) -> Arc<Rules> {
    Arc::new(Rules { now: NOW.into(), allowed })
}

struct Ca {
    issuer: Issuer,
    pem: String,
}

/// A certificate with its key, in the form of files.
struct Leaf {
    chain: String,
    key: String,
}

fn params(names: &[&str]) -> Params {
    Params::of_engine(names, (IN_2026, IN_2027), &[Usage::ServerAuth, Usage::ClientAuth])
}

fn of_ca(name: &str) -> Params {
    Params::of_ca(name, (IN_2026, IN_2027))
}

impl Ca {
    fn root(name: &str) -> Self {
        let (issuer, pem) = Issuer::root(&of_ca(name));
        Self { issuer, pem }
    }

    fn below(&self, name: &str) -> Self {
        self.issues_ca(&of_ca(name))
    }

    fn issues_ca(&self, params: &Params) -> Self {
        let (issuer, pem) = self.issuer.below(params);
        Self { issuer, pem }
    }

    fn issues(&self, params: &Params, kind: Kind) -> Leaf {
        let key = Key::new(kind);
        Leaf { chain: self.issuer.certificate(&key, params), key: key.pem() }
    }

    fn leaf(&self, names: &[&str]) -> Leaf {
        self.issues(&params(names), Kind::P256)
    }
}

impl Leaf {
    fn certified(
        &self,
        trust: &str,
        key: &Identity,
        policy: &Arc<Rules>,
    ) -> Result<Arc<Certified>, CertificateFileError> {
        let (chain, private) = (self.chain.as_bytes(), self.key.as_bytes());
        let files = Files { chain, key: private, trust: trust.as_bytes() };
        Certified::new(&files, key.public(), policy.clone()).map(Arc::new)
    }
}

/// Two engines with certificates of one CA.
struct Ends {
    a: Identity,
    b: Identity,
    ca: Ca,
    of_a: Arc<Certified>,
    of_b: Arc<Certified>,
    rules: Arc<Rules>,
}

fn ends() -> Ends {
    let (a, b) = (Identity::fresh().unwrap(), Identity::fresh().unwrap());
    let (ca, rules) = (Ca::root("ca"), policy(""));
    let of_a = ca.leaf(&["a.example"]).certified(&ca.pem, &a, &rules).unwrap();
    let of_b = ca.leaf(&["spiffe://example/b"]).certified(&ca.pem, &b, &rules).unwrap();
    Ends { a, b, ca, of_a, of_b, rules }
}

fn keyring(certified: &Arc<Certified>) -> Keyring {
    let certified = Some(certified.clone());
    let capability = Secret::derived("test", b"");
    Keyring { capability, shared: Vec::new(), host: None, certified, open: false }
}

/// Runs a whole handshake. Returns which end refused, or what both know.
fn run(
    (a, of_a): (&Identity, &Arc<Certified>),
    (b, of_b): (&Identity, &Arc<Certified>),
) -> Result<(Vec<String>, Proven), (Role, HandshakeError)> {
    let (mut initiator, first) = Initiator::by_certificate(a, of_a.clone()).unwrap();
    let (responder, second) = Responder::new(b, &keyring(of_b), &first).unwrap();
    assert_eq!(responder.proof(), Proof::Certificate);
    initiator.read(&second).map_err(|error| (Role::Initiator, error))?;
    let names = initiator.names().to_vec();
    let (third, _) = initiator.finish(b"hello").unwrap();
    let proven = responder.finish(&third).map_err(|error| (Role::Responder, error))?;
    Ok((names, proven))
}

fn refusal(
    a: (&Identity, &Arc<Certified>),
    b: (&Identity, &Arc<Certified>),
) -> (Role, CertificateError) {
    match run(a, b) {
        Err((by, HandshakeError::Certificate(why))) => (by, why),
        Err((_, other)) => panic!("{other}"),
        Ok(_) => panic!("nobody refused"),
    }
}

#[test]
fn both_ends_know_the_names_of_each_other() {
    let Ends { a, b, of_a, of_b, .. } = ends();
    let (names, proven) = run((&a, &of_a), (&b, &of_b)).unwrap();
    assert_eq!(names, ["spiffe://example/b"]);
    assert_eq!(proven.names, ["a.example"]);
    assert_eq!((proven.initiator, proven.proof), (a.public(), Proof::Certificate));
    assert_eq!(proven.words, b"hello");
    assert_eq!(format!("{of_a:?} {of_b:?}"), "Certified(a.example) Certified(spiffe://example/b)");
}

#[test]
fn every_kind_of_key_signs_statements_and_a_chain_may_have_steps() {
    let Ends { a, b, ca, of_b, rules, .. } = ends();
    let inner = ca.below("inner");
    let innermost = inner.below("innermost");
    for kind in [Kind::Ed25519, Kind::P256, Kind::P384] {
        let leaf = innermost.issues(&params(&["A.Example", "other.example"]), kind);
        let chain = [&leaf.chain[..], &inner.pem, &innermost.pem].concat();
        let of_a = Leaf { chain, ..leaf }.certified(&ca.pem, &a, &rules).unwrap();
        let (_, proven) = run((&a, &of_a), (&b, &of_b)).unwrap();
        assert_eq!(proven.names, ["a.example", "other.example"], "{kind:?}");
    }
}

#[test]
fn a_certificate_of_another_ca_is_refused_by_either_end() {
    let Ends { a, b, ca, of_b, rules, .. } = ends();
    // A CA of the same name, but with another key.
    let other = Ca::root("ca");
    let leaf = other.leaf(&["a.example"]);
    let distrusting = leaf.certified(&other.pem, &a, &rules).unwrap();
    let (by, why) = refusal((&a, &distrusting), (&b, &of_b));
    assert!(matches!(why, CertificateError::Untrusted { .. }), "{why}");
    assert_eq!(by, Role::Initiator);
    let both = [&other.pem[..], &ca.pem].concat();
    let trusting = leaf.certified(&both, &a, &rules).unwrap();
    let (by, why) = refusal((&a, &trusting), (&b, &of_b));
    assert!(matches!(why, CertificateError::Untrusted { .. }), "{why}");
    assert_eq!(by, Role::Responder);
}

#[test]
fn a_certificate_holds_in_its_time_only() {
    let Ends { a, b, ca, of_b, rules, .. } = ends();
    let of_a = |from, until, own: &Arc<Rules>| {
        let params = Params { valid: (from, until), ..params(&["a.example"]) };
        ca.issues(&params, Kind::Ed25519).certified(&ca.pem, &a, own)
    };
    // The clock of that engine is wrong, or the engine lies.
    let (early, late) = (policy(""), policy(""));
    early.now.store(NOW - DAY * 90, Ordering::Relaxed);
    late.now.store(NOW + DAY * 90, Ordering::Relaxed);
    let expired = of_a(MARCH, JUNE, &early).unwrap();
    let (by, why) = refusal((&a, &expired), (&b, &of_b));
    let at = UnixSeconds(JUNE);
    let past = CertificateError::Expired { whose: "a.example".to_owned(), at };
    assert_eq!(past.to_string(), "expired at 2026-06-01T00:00:00Z (a.example)");
    assert_eq!((by, why), (Role::Responder, past.clone()));
    assert_eq!(at.to_string(), "2026-06-01T00:00:00Z");
    let (by, why) = refusal((&b, &of_b), (&a, &expired));
    assert_eq!((by, why), (Role::Initiator, past.clone()));
    assert_eq!(expired.holds_as(Role::Initiator), Ok(()));
    early.now.store(NOW, Ordering::Relaxed);
    assert_eq!(expired.holds_as(Role::Initiator), Err(past.clone()));

    let future = of_a(AUGUST, DECEMBER, &late).unwrap();
    let (_, why) = refusal((&b, &of_b), (&a, &future));
    let from = UnixSeconds(AUGUST);
    let to_come = CertificateError::NotYetValid { whose: "a.example".to_owned(), from };
    assert_eq!(why, to_come);
    assert_eq!(why.to_string(), "is valid from 2026-08-01T00:00:00Z only (a.example)");
    // At build time, too.
    let own = |result: Result<_, _>| match result {
        Err(CertificateFileError::Own(why)) => why,
        other => panic!("{other:?}"),
    };
    assert_eq!(own(of_a(MARCH, JUNE, &rules)), past);
    assert_eq!(own(of_a(AUGUST, AUGUST, &rules)), to_come);
    assert_eq!(
        own(of_a(AUGUST, MARCH, &rules)).to_string(),
        "can't be used: it ends before it begins"
    );
}

#[test]
fn a_ca_of_the_chain_that_has_expired_is_named() {
    let Ends { a, ca, rules, .. } = ends();
    let inner = ca.issues_ca(&Params::of_ca("old CA", (IN_2026, JUNE)));
    let leaf = inner.leaf(&["a.example"]);
    let chain = [&leaf.chain[..], &inner.pem].concat();
    match (Leaf { chain, ..leaf }).certified(&ca.pem, &a, &rules) {
        Err(CertificateFileError::Own(why)) => assert_eq!(
            why.to_string(),
            "expired at 2026-06-01T00:00:00Z (CN=old CA, a CA of its chain)"
        ),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_certificate_is_for_what_its_extended_key_usage_says() {
    let Ends { a, b, ca, of_b, rules, .. } = ends();
    let with = |usages: &[Usage]| {
        let params = Params { usages: usages.to_vec(), ..params(&["a.example"]) };
        ca.issues(&params, Kind::Ed25519).certified(&ca.pem, &a, &rules)
    };
    let client = with(&[Usage::ClientAuth]).unwrap();
    let server = with(&[Usage::ServerAuth]).unwrap();
    run((&a, &client), (&b, &of_b)).unwrap();
    run((&b, &of_b), (&a, &server)).unwrap();
    let usage = |role| CertificateError::Usage { role };
    let (by, why) = refusal((&b, &of_b), (&a, &client));
    assert_eq!((by, why), (Role::Initiator, usage(Role::Responder)));
    let (by, why) = refusal((&a, &server), (&b, &of_b));
    assert_eq!((by, why), (Role::Responder, usage(Role::Initiator)));
    assert_eq!(server.holds_as(Role::Initiator), Err(usage(Role::Initiator)));
    // Without the extension, a certificate is for any use.
    let any = with(&[]).unwrap();
    run((&a, &any), (&b, &of_b)).unwrap();
    let error = with(&[Usage::CodeSigning]).err();
    assert_eq!(error, Some(CertificateFileError::Own(usage(Role::Responder))));
}

#[test]
fn names_are_dns_names_and_one_spiffe_id() {
    let Ends { a, b, ca, of_b, rules, .. } = ends();
    let of_a = |names: &[&str]| ca.leaf(names).certified(&ca.pem, &a, &rules);
    let spiffe = "spiffe://example/ns/x";
    for names in [&[spiffe][..], &["a.example", spiffe], &["https://a.example/", "a.example"]] {
        let (_, proven) = run((&a, &of_a(names).unwrap()), (&b, &of_b)).unwrap();
        let expected: Vec<&str> =
            names.iter().copied().filter(|name| !name.starts_with("https")).collect();
        assert_eq!(proven.names, expected);
    }
    let nameless = CertificateFileError::Own(CertificateError::Nameless);
    for names in [
        &[][..],
        &["https://a.example/"],
        &["spiffe://example/a", "spiffe://example/b"],
        &["spiffe://example/a", "https://a.example/"],
        &["a.example", "spiffe://example/../b"],
        &["a.example", "SPIFFE://example/b"],
    ] {
        assert_eq!(of_a(names).err(), Some(nameless.clone()), "{names:?}");
    }
    // Both ends accept only allowed names.
    let strict = policy("spiffe://example/");
    let strictly = ca.leaf(&["c.example"]).certified(&ca.pem, &b, &strict).unwrap();
    run((&a, &of_a(&["a.example", spiffe]).unwrap()), (&b, &strictly)).unwrap();
    let other = of_a(&["a.example"]).unwrap();
    let not_allowed = CertificateError::NotAllowed { names: vec!["a.example".to_owned()] };
    let expected = (Role::Responder, not_allowed.clone());
    assert_eq!(refusal((&a, &other), (&b, &strictly)), expected);
    assert_eq!(refusal((&b, &strictly), (&a, &other)), (Role::Initiator, not_allowed));
}

#[test]
fn a_certificate_is_worth_nothing_in_the_hands_of_somebody_else() {
    let Ends { a, b, ca, of_a, of_b, rules } = ends();
    // Chain and statement of another engine, unchanged, with the thief's own key pair.
    let thief = Identity::fresh().unwrap();
    let expected = (Role::Responder, CertificateError::Statement);
    assert_eq!(refusal((&thief, &of_a), (&b, &of_b)), expected);
    let expected = (Role::Initiator, CertificateError::Statement);
    assert_eq!(refusal((&a, &of_a), (&thief, &of_b)), expected);
    // A public chain, with the thief's own signature.
    let stolen = Shown::decode(of_a.shown()).unwrap();
    let own = ca.leaf(&["thief.example"]).certified(&ca.pem, &thief, &rules).unwrap();
    let Shown { signature, .. } = Shown::decode(own.shown()).unwrap();
    let forged = Shown { signature, ..stolen }.encode().unwrap();
    let verified = of_b.verify(&forged, thief.public(), Role::Initiator);
    assert_eq!(verified, Err(CertificateError::Statement));
    // A statement ends with its certificate, even if the next one has the same key.
    let key = Key::new(Kind::P256);
    let certificate = || ca.issuer.certificate(&key, &params(&["a.example"]));
    let of_key = || Leaf { chain: certificate(), key: key.pem() };
    let old = of_key().certified(&ca.pem, &a, &rules).unwrap();
    let new = of_key().certified(&ca.pem, &b, &rules).unwrap();
    let Shown { signature, .. } = Shown::decode(old.shown()).unwrap();
    let Shown { chain, .. } = Shown::decode(new.shown()).unwrap();
    let mixed = Shown { chain, signature }.encode().unwrap();
    let verified = of_b.verify(&mixed, a.public(), Role::Initiator);
    assert_eq!(verified, Err(CertificateError::Statement));
    assert!(of_b.verify(old.shown(), a.public(), Role::Initiator).is_ok());
}

#[test]
fn what_is_shown_is_bounded_and_read_to_its_end() {
    let Ends { a, of_a, of_b, .. } = ends();
    let shown = of_a.shown().to_vec();
    let verify = |shown: &[u8]| of_b.verify(shown, a.public(), Role::Initiator);
    assert!(verify(&shown).is_ok());
    for len in 0..shown.len() {
        let why = verify(&shown[..len]).unwrap_err();
        assert!(matches!(why, CertificateError::Malformed { .. }), "{len}: {why}");
    }
    for bit in 0..shown.len() * 8 {
        let mut changed = shown.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        assert!(verify(&changed).is_err(), "bit {bit}");
    }
    // Certificates after a valid leaf are not checked, but counted.
    let followed = |others: &[&[u8]]| {
        let Shown { chain, signature } = Shown::decode(&shown).unwrap();
        let framed = |part: &[u8]| [&(part.len() as u16).to_le_bytes(), part].concat();
        let mut out =
            [framed(&signature), vec![1 + others.len() as u8], framed(&chain[0])].concat();
        others.iter().for_each(|other| out.extend(framed(other)));
        out
    };
    assert!(verify(&followed(&[&b"junk"[..]; CHAIN_MAX - 1])).is_ok());
    for garbled in [
        followed(&[&b"junk"[..]; CHAIN_MAX]),
        followed(&[&[0; 8 << 10][..]; 2]),
        [&shown[..], &[0]].concat(),
        vec![0; 3],
        [&[0, 0, 5][..], &[0; 12]].concat(),
        vec![0xff; MAX_SHOWN_BYTES + 1],
        [&2000u16.to_le_bytes()[..], &[0; 2000], &[1, 1, 0, 0x30]].concat(),
        [&[0, 0, 1, 4, 0][..], b"\x30\x82\xff\xff"].concat(),
    ] {
        let why = verify(&garbled).unwrap_err();
        assert!(matches!(why, CertificateError::Malformed { .. }), "{why}");
    }
}

#[test]
fn a_chain_that_was_made_to_cost_is_refused() {
    let Ends { a, ca, of_b, .. } = ends();
    // Each could be below each other, and below the CA, but the CA has signed none of them.
    let fake = Ca::root("ca");
    let steps: Vec<Ca> = (1..CHAIN_MAX).map(|_| fake.below("ca")).collect();
    let leaf = fake.leaf(&["a.example"]);
    let chain = steps.iter().fold(leaf.chain, |chain, step| chain + &step.pem);
    let files = Files { chain: chain.as_bytes(), key: b"", trust: ca.pem.as_bytes() };
    let chain = files.chain().unwrap();
    let shown = Shown { chain, signature: vec![0; 64] }.encode().unwrap();
    let why = of_b.verify(&shown, a.public(), Role::Initiator).unwrap_err();
    assert!(matches!(why, CertificateError::Untrusted { .. }), "{why}");
}

#[test]
fn who_has_no_certificates_hears_nothing_of_them() {
    let Ends { a, b, of_a, of_b, .. } = ends();
    let (_, first) = Initiator::by_certificate(&a, of_a).unwrap();
    let without = Keyring { certified: None, ..keyring(&of_b) };
    let refused = Responder::new(&b, &without, &first).err();
    assert_eq!(refused, Some(HandshakeError::NotAccepted(Proof::Certificate)));
    // Other credentials show no certificate.
    let ring = keyring(&of_b);
    let (mut initiator, first) = Initiator::new(&a, Proof::Capability, &ring.capability).unwrap();
    let (responder, second) = Responder::new(&b, &ring, &first).unwrap();
    assert!(second.len() < 128);
    initiator.read(&second).unwrap();
    let (third, _) = initiator.finish(b"hello").unwrap();
    let proven = responder.finish(&third).unwrap();
    assert_eq!((&proven.words[..], proven.names.len()), (&b"hello"[..], 0));
}

#[test]
fn an_initiator_says_nothing_to_whom_it_has_not_verified() {
    let Ends { a, b, of_a, of_b, .. } = ends();
    let begin = || Initiator::by_certificate(&a, of_a.clone()).unwrap();
    let thief = Identity::fresh().unwrap();
    let (mut initiator, first) = begin();
    let (_, second) = Responder::new(&thief, &keyring(&of_b), &first).unwrap();
    assert!(initiator.read(&second).is_err());
    assert_eq!(initiator.finish(b"hello").err(), Some(HandshakeError::Library));
    // A message without a certificate, or with a cut one, is refused as well.
    let (mut initiator, first) =
        Initiator::new(&a, Proof::Certificate, &Secret::certificates()).unwrap();
    let (responder, second) = Responder::new(&b, &keyring(&of_b), &first).unwrap();
    initiator.read(&second).unwrap();
    let (third, _) = initiator.finish(&[9, 0, 1, 2]).unwrap();
    let refused = responder.finish(&third).err();
    assert!(matches!(
        refused,
        Some(HandshakeError::Certificate(CertificateError::Malformed { .. }))
    ));
}

#[test]
fn files_that_can_not_be_used_are_refused_with_what_is_allowed() {
    let Ends { a, ca, rules, .. } = ends();
    let leaf = ca.leaf(&["a.example"]);
    let (chain, key, trust) = (&leaf.chain[..], &leaf.key[..], &ca.pem[..]);
    let refused = |chain: &str, key: &str, trust: &str| {
        let leaf = Leaf { chain: chain.to_owned(), key: key.to_owned() };
        leaf.certified(trust, &a, &rules).unwrap_err()
    };
    let cut = &chain[..chain.len() / 2];
    assert!(matches!(refused(cut, key, trust), CertificateFileError::ChainText { .. }));
    let none = CertificateFileError::Chain { count: 0, bytes: 0 };
    assert_eq!(refused("", key, trust), none);
    assert_eq!(refused(key, key, trust), none);
    let why = refused(&chain.repeat(6), key, trust);
    assert!(matches!(why, CertificateFileError::Chain { count: 6, .. }), "{why}");
    for text in ["", chain, "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"] {
        let why = refused(chain, text, trust);
        assert!(matches!(why, CertificateFileError::Key { .. }), "{why}");
    }
    let why = refused(chain, &key.replace("PRIVATE", "EC PRIVATE"), trust).to_string();
    assert!(why.contains("SEC1") && why.contains("as PKCS#8"), "{why}");
    assert!(!why.contains(&key[40..60]), "a secret in a message: {why}");
    assert_eq!(refused(chain, &ca.leaf(&[]).key, trust), CertificateFileError::OtherKey);
    for text in ["", key, &trust[..trust.len() / 2], &trust.repeat(33)] {
        let why = refused(chain, key, text);
        assert!(matches!(why, CertificateFileError::Trust { .. }), "{why}");
    }
    // The holder of its key could issue certificates for any name.
    let with_leaf = refused(chain, key, &format!("{trust}{chain}")).to_string();
    assert!(with_leaf.starts_with("certificate 2 is not one of a CA; allowed are"), "{with_leaf}");
    let why = refused(chain, key, &Ca::root("other").pem);
    assert!(matches!(why, CertificateFileError::Own(CertificateError::Untrusted { .. })), "{why}");
}

#[test]
fn times_are_written_as_people_read_them() {
    for (seconds, text) in [
        (0, "1970-01-01T00:00:00Z"),
        (951_782_399, "2000-02-28T23:59:59Z"),
        (951_782_400, "2000-02-29T00:00:00Z"),
        (951_868_800, "2000-03-01T00:00:00Z"),
        (IN_2027, "2027-01-01T00:00:00Z"),
        (4_107_542_399, "2100-02-28T23:59:59Z"),
        (4_107_542_400, "2100-03-01T00:00:00Z"),
        (253_402_300_799, "9999-12-31T23:59:59Z"),
    ] {
        assert_eq!(UnixSeconds(seconds).to_string(), text);
    }
}
