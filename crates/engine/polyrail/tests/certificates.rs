//! Engines with certificates of an organisation connect by address alone, and no others do. Alone in their process: a
//! call to an engine that is gone may reach one whose refusals are counted here.

mod common;

use std::fs::Permissions;
use std::io::{self, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::{Duration, Instant};

use common::pki::Usage::{ClientAuth, ServerAuth};
use common::pki::{BOTH, Ca, DAY, Leaf, Place, Wanted, config_of, now};
use common::stranger::{Stranger, card, metadata};
use common::*;
use polyrail::{
    Admission, CertificateError, CertificateFileError, CertificatesError, ConnectReason, Engine,
    EngineError, Explain, Peer, PeerError, RefusedCode, Role, Whose,
};
use polyrail_proto::hello::{Hello, Kind, MAX_BODY_BYTES, MAX_CERTIFIED_BYTES, Reply};
use polyrail_secure::{Certified, Identity, Initiator, Proof, Secret};

fn connect(engine: &Engine, other: &Engine) -> Result<Peer, (ConnectReason, Option<String>)> {
    engine.connect(other.addresses()[0]).join().map_err(|error| match &error {
        PeerError::Connect { why, .. } => (why.clone(), error.help()),
        other => panic!("{other}"),
    })
}

fn works(engine: &Engine, other: &Engine) -> Peer {
    let peer = connect(engine, other).unwrap();
    engine.notify(&peer, b"hello").unwrap().ended().unwrap();
    let came = other.wait_notification(LONG).expect("it was acknowledged");
    assert_eq!((came.peer.instance(), &came.data[..]), (engine.instance(), &b"hello"[..]));
    peer
}

/// Returns why an engine does not connect to another. Neither may have the other as a peer afterwards, unless it had
/// before.
fn refusal(engine: &Engine, other: &Engine) -> (ConnectReason, String) {
    let has = |one: &Engine, another: &Engine| one.peer(another.instance()).is_some();
    let before = (has(engine, other), has(other, engine));
    let (why, help) = connect(engine, other).unwrap_err();
    assert!((before.0 || !has(engine, other)) && (before.1 || !has(other, engine)));
    (why, help.expect("every reason has a remedy"))
}

fn code(why: &ConnectReason) -> RefusedCode {
    match why {
        ConnectReason::Refused(refusal) => refusal.code,
        other => panic!("{other}"),
    }
}

/// Returns what is wrong with the certificate of the other end.
fn theirs(why: ConnectReason) -> CertificateError {
    match why {
        ConnectReason::Certificate { of: Whose::OtherEngine, why, file: None } => why,
        other => panic!("{other}"),
    }
}

#[test]
fn both_ends_know_the_names_of_each_other() {
    let ca = Ca::new("ca");
    let (a, b) = ("a.example.org", "spiffe://example.org/ml/b");
    let (place_a, place_b) = (ca.place(a), ca.place(b));
    let asked = Arc::new(Mutex::new(Vec::new()));
    let noted = asked.clone();
    let guard = builder().config(place_b.config("*.example.org", &[])).admit(move |incoming| {
        noted.lock().unwrap().push(incoming.proven_names().to_vec());
        Admission::Accept
    });
    let (b_engine, a_engine) =
        (guard.build().unwrap(), place_a.engine("spiffe://example.org/ml/*"));
    let to_b = works(&a_engine, &b_engine);
    let to_a = b_engine.peer(a_engine.instance()).unwrap();
    assert_eq!(
        (to_b.proven_names(), to_a.proven_names()),
        (vec![b.to_owned()], vec![a.to_owned()])
    );
    assert_eq!(*asked.lock().unwrap(), [[a]]);
    assert_eq!(b_engine.stats().peers[0].proven_names, [a]);
    let dump = a_engine.dump();
    assert!(dump.contains("by its certificate it is spiffe://example.org/ml/b"), "{dump}");
    // Also in the other direction, though they know each other.
    assert_eq!(works(&b_engine, &a_engine), to_a);
}

#[test]
fn certificates_go_beside_metadata_invitations_and_secrets() {
    let ca = Ca::new("ca");
    let (a, b) = (ca.engine("a.example.org"), ca.engine("b.example.org"));
    let plain = one_rail(&[]);
    for (engine, other) in [(&a, &b), (&plain, &a), (&b, &plain)] {
        let peer = engine.add_peer(&other.metadata()).unwrap();
        engine.notify(&peer, b"hello").unwrap().ended().unwrap();
        assert!(peer.proven_names().is_empty());
        assert_eq!(other.wait_notification(LONG).unwrap().data, b"hello");
    }
    let third = ca.engine("c.example.org");
    third.connect_by(plain.addresses()[0], &plain.invitation()).join().unwrap();
    // An engine of the same user, which counts as always.
    let other = one_rail(&[]);
    works(&other, &a);
    // But an engine that has a certificate shows it, and not every engine accepts that.
    let (why, help) = refusal(&third, &other);
    assert_eq!(code(&why), RefusedCode::NoCertificates, "{why}");
    assert!(help.contains("certificates") && help.contains("secret_file"), "{help}");
    // A peer that is known already gets its name once there is a certificate.
    let to_b = works(&a, &b);
    assert_eq!(to_b.proven_names(), ["b.example.org"]);
}

#[test]
fn a_fleet_changes_from_a_secret_to_certificates_without_an_interruption() {
    let (ca, folder) = (Ca::new("ca"), tempfile::tempdir().unwrap());
    let path = folder.path().join("secret");
    std::fs::write(&path, "st".repeat(20)).unwrap();
    std::fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    let secret = [("secret_file", path.to_str().unwrap()), ("connect_timeout_ms", "1000")];
    let (before, after) = (one_rail(&secret), ca.engine("after.example.org"));
    let place = ca.place("between.example.org");
    let between = builder().config(place.config("*", &secret)).build().unwrap();
    assert!(works(&between, &before).proven_names().is_empty());
    works(&before, &between);
    assert_eq!(works(&between, &after).proven_names(), ["after.example.org"]);
    works(&after, &between);
    // An engine without the secret is refused, after the time in which it could have come again. An engine that got in
    // by the secret after all is not: that would be counted by then, too.
    refusal(&after, &before);
    let since = Instant::now();
    wait_for("the count", || before.stats().refused_connections > 0);
    wait_for("twice connect_timeout_ms", || since.elapsed() > Duration::from_secs(2));
    assert_eq!(before.stats().refused_connections, 1);
    // A secret does not make up for a certificate that is accepted and invalid.
    let strict = builder().config(place.config("strict.example.org", &secret)).build().unwrap();
    let (why, _) = refusal(&between, &strict);
    assert_eq!(code(&why), RefusedCode::NameNotAllowed, "{why}");
}

#[test]
fn a_certificate_of_another_ca_is_refused_by_either_end() {
    let (ca, other) = (Ca::new("ca"), Ca::new("ca"));
    let engine = ca.engine("a.example.org");
    let (why, help) = refusal(&engine, &other.engine("b.example.org"));
    let why = theirs(why);
    assert!(matches!(why, CertificateError::Untrusted { .. }), "{why}");
    assert!(help.contains("trust_file"), "{help}");
    let both = [&ca.pem[..], &other.pem].concat();
    let trusting = Place::with(&other.leaf("b.example.org"), &both).engine("*");
    let refused = engine.stats().refused_connections;
    let (why, help) = refusal(&trusting, &engine);
    assert_eq!(code(&why), RefusedCode::CertificateUntrusted, "{why}");
    assert!(help.contains("trust_file"), "{help}");
    wait_for("the count", || engine.stats().refused_connections == refused + 1);
    // Works once each trusts the CA of the other.
    let trusted = Place::with(&ca.leaf("a.example.org"), &both).engine("*");
    works(&trusting, &trusted);
}

#[test]
fn a_name_that_is_not_allowed_is_refused_by_either_end() {
    let ca = Ca::new("ca");
    let (a, b) = ("spiffe://example.org/a", "spiffe://example.org/b");
    let (open, strict) = (ca.engine(a), ca.place(b).engine("spiffe://example.org/other/*,b"));
    let (why, help) = refusal(&strict, &open);
    assert_eq!(theirs(why), CertificateError::NotAllowed { names: vec![a.to_owned()] });
    assert!(help.contains("allowed_names"), "{help}");
    let (why, help) = refusal(&open, &strict);
    assert_eq!(code(&why), RefusedCode::NameNotAllowed, "{why}");
    assert!(help.contains("allowed_names there"), "{help}");
    let own = format!("it is that of {a}, from certificate_file /");
    assert!(why.to_string().contains(&own), "{why}");
    assert!(!why.to_string().contains("other"), "a stranger hears what would be allowed: {why}");
    works(&ca.engine(b), &ca.place(b).engine(&format!("x.example.org, {b}")));
}

#[test]
fn a_certificate_is_for_what_its_extended_key_usage_says() {
    let ca = Ca::new("ca");
    let engine = ca.engine("a.example.org");
    let [client, server] = [&[ClientAuth][..], &[ServerAuth]].map(|usages| {
        let valid = (now() - DAY, now() + DAY);
        let leaf = ca.makes(Wanted { names: &["b.example.org"], valid, usages });
        Place::with(&leaf, &ca.pem).engine("*")
    });
    works(&client, &engine);
    works(&engine, &server);
    let (why, help) = refusal(&engine, &client);
    assert_eq!(theirs(why), CertificateError::Usage { role: Role::Responder });
    assert!(help.contains("clientAuth and serverAuth"), "{help}");
    // The engine itself finds that no other would accept its certificate.
    let (why, _) = refusal(&server, &engine);
    let usage = CertificateError::Usage { role: Role::Initiator };
    assert!(
        matches!(&why, ConnectReason::Certificate { of: Whose::ThisEngine, why, .. } if *why == usage),
        "{why}"
    );
}

/// Connects by hand as the owner of `identity`, shows `shown`, and sends a hello. Returns the reply.
fn shows(engine: &Engine, identity: &Identity, shown: &[u8]) -> Reply {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut card = card(&[listener.local_addr().unwrap()]);
    card.instance = polyrail::InstanceId(identity.public().instance());
    let hello = Hello::Introduction(metadata(&card)).encode();
    let (mut stranger, initiator) = answered(engine, identity);
    let len = (shown.len() as u16).to_le_bytes();
    let (third, keys) = initiator.finish(&[&len, shown, &hello].concat()).unwrap();
    stranger.write(&Kind::Third.framed(&third));
    stranger.is_proven(keys);
    stranger.reply()
}

/// Connects up to the second message, which every client gets.
fn answered(engine: &Engine, identity: &Identity) -> (Stranger, Initiator) {
    let mut stranger = Stranger::at(engine);
    let public = Secret::certificates();
    let (mut initiator, first) = Initiator::new(identity, Proof::Certificate, &public).unwrap();
    stranger.write(&Kind::First.framed(&first));
    let (prefix, second) = stranger.words();
    assert_eq!(prefix.kind(), Kind::Second);
    assert_eq!(initiator.read(&second).unwrap().instance(), engine.instance().0);
    (stranger, initiator)
}

#[test]
fn who_lies_about_its_certificate_is_told_why_and_leaves_no_trace() {
    let ca = Ca::new("ca");
    let engine = ca.engine("a.example.org");
    let (own, thief) = (Identity::fresh().unwrap(), Identity::fresh().unwrap());
    let leaf = ca.leaf("b.example.org");
    let certified = |leaf: &Leaf, clock| leaf.certified(&own, &ca.pem, clock);
    let refused = |identity: &Identity, shown: &[u8]| match shows(&engine, identity, shown) {
        Reply::Refused { code, .. } => code,
        Reply::Accepted(metadata) => panic!("{metadata:?}"),
    };
    let of = |valid, usages: &_, clock: u64| {
        let leaf = ca.makes(Wanted { names: &["b.example.org"], valid, usages });
        refused(&own, certified(&leaf, clock as i64).shown())
    };
    let (long, day) = ((now() - 9 * DAY, now() + 9 * DAY), DAY);
    let past = of((now() - 9 * day, now() - day), BOTH, 0u64.wrapping_sub(2 * day));
    assert_eq!(past, RefusedCode::CertificateExpired);
    let future = of((now() + day, now() + 9 * day), BOTH, 2 * day);
    assert_eq!(future, RefusedCode::CertificateNotYetValid);
    assert_eq!(of(long, &[ServerAuth], 0), RefusedCode::CertificateUsage);
    let foreign = Ca::new("ca");
    let other = foreign.leaf("b.example.org").certified(&own, &foreign.pem, 0);
    assert_eq!(refused(&own, other.shown()), RefusedCode::CertificateUntrusted);

    // Chain and statement of another engine, which the thief has seen.
    let good = certified(&leaf, 0).shown().to_vec();
    assert_eq!(refused(&thief, &good), RefusedCode::CertificateStatement);
    let whole = good.len();
    for (garbled, expected) in [
        (vec![], RefusedCode::CertificateMalformed),
        (good[..whole / 2].to_vec(), RefusedCode::CertificateMalformed),
        ([&good[..], b"more"].concat(), RefusedCode::CertificateMalformed),
        (vec![0xff; 16 << 10], RefusedCode::CertificateMalformed),
        // The name of the first and only subject alternative name, in the DER.
        (replaced(&good, b"b.example.org", b"c.example.org"), RefusedCode::CertificateUntrusted),
    ] {
        assert_eq!(refused(&own, &garbled), expected, "{} bytes", garbled.len());
    }
    assert!(engine.peers().is_empty());
    wait_for("the count", || engine.stats().refused_connections == 10);
    // The same message is accepted when it is unchanged.
    assert!(matches!(shows(&engine, &own, &good), Reply::Accepted(_)));
}

fn replaced(bytes: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    let at = bytes.windows(from.len()).position(|part| part == from).expect("it is in there");
    [&bytes[..at], to, &bytes[at + from.len()..]].concat()
}

#[test]
fn messages_are_bounded_before_they_are_read() {
    let ca = Ca::new("ca");
    let engine = ca.engine("a.example.org");
    let prefix = |kind: Kind, len: usize| {
        let mut prefix = kind.framed(&[]);
        prefix[8..12].copy_from_slice(&(len as u32).to_le_bytes());
        prefix
    };
    let is_refused = |mut stranger: Stranger, max: usize| match stranger.reply() {
        Reply::Refused { code: RefusedCode::Malformed, reason } => {
            assert!(reason.ends_with(&format!("allowed is {max}")), "{reason}");
        }
        other => panic!("{other:?}"),
    };
    let identity = Identity::fresh().unwrap();
    let (mut stranger, _) = answered(&engine, &identity);
    stranger.write(&prefix(Kind::Third, MAX_CERTIFIED_BYTES + 1));
    is_refused(stranger, MAX_CERTIFIED_BYTES);
    // A client that has said nothing yet, or proves something else, has no certificate to show.
    let mut stranger = Stranger::at(&engine);
    stranger.write(&prefix(Kind::Third, MAX_BODY_BYTES + 1));
    is_refused(stranger, MAX_BODY_BYTES);
    let mut stranger = Stranger::at(&engine);
    let secret = common::stranger::metadata_of(&engine).capability.secret();
    let (_, first) = Initiator::new(&identity, Proof::Capability, &secret).unwrap();
    stranger.write(&Kind::First.framed(&first));
    let (_, second) = stranger.words();
    assert!(second.len() < 128, "a certificate is shown to nobody who does not ask");
    stranger.write(&prefix(Kind::Third, MAX_BODY_BYTES + 1));
    is_refused(stranger, MAX_BODY_BYTES);
}

#[test]
fn an_engine_says_no_hello_to_whom_it_has_not_verified() {
    let ca = Ca::new("ca");
    let engine = ca.engine("a.example.org");
    let (own, thief) = (Identity::fresh().unwrap(), Identity::fresh().unwrap());
    let certified = ca.leaf("b.example.org").certified(&own, &ca.pem, 0);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let answers = |identity: &Identity, certified: &Arc<Certified>| {
        let connecting = engine.connect(address);
        let mut stranger = Stranger::on(listener.accept().unwrap().0);
        let (_, first) = stranger.words();
        let keyring = polyrail_secure::Keyring {
            capability: Secret::certificates(),
            shared: Vec::new(),
            host: None,
            certified: Some(certified.clone()),
            open: false,
        };
        let answer = polyrail_secure::Responder::new(identity, &keyring, &first);
        let (_, second) = answer.unwrap();
        stranger.write(&Kind::Second.framed(&second));
        let heard = stranger.last_words();
        assert!(heard.is_empty(), "{} bytes were said", heard.len());
        match connecting.join().unwrap_err() {
            PeerError::Connect { why, .. } => theirs(why),
            other => panic!("{other}"),
        }
    };
    assert_eq!(answers(&thief, &certified), CertificateError::Statement);
    let valid = (now() - 9 * DAY, now() - DAY);
    let past = ca.makes(Wanted { names: &["b.example.org"], valid, usages: BOTH });
    let past = past.certified(&own, &ca.pem, -2 * DAY as i64);
    assert!(matches!(answers(&own, &past), CertificateError::Expired { .. }));
}

#[test]
fn an_expired_certificate_refuses_new_connections_and_says_whose_it_is() {
    let ca = Ca::new("ca");
    let (engine, late) = (ca.engine("a.example.org"), ca.engine("c.example.org"));
    // On a busy machine the validity may be over before they are connected.
    let (place, until, other, peer) = loop {
        let until = now() + 3;
        let valid = (now() - DAY, until);
        let leaf = ca.makes(Wanted { names: &["b.example.org"], valid, usages: BOTH });
        let place = Place::with(&leaf, &ca.pem);
        if let Ok(other) = builder().config(place.config("*", &[])).build()
            && let Ok(peer) = connect(&engine, &other)
        {
            break (place, until, other, peer);
        }
    };
    wait_for("its end", || now() > until + 1);
    let at = polyrail::UnixSeconds(until);
    let expired = CertificateError::Expired { whose: "b.example.org".to_owned(), at };
    let (why, help) = refusal(&late, &other);
    let said = format!("of the engine there expired at {at} (b.example.org)");
    assert!(why.to_string().contains(&said), "{why}");
    assert_eq!(theirs(why), expired);
    assert!(help.contains("renew"), "{help}");
    let (why, help) = refusal(&other, &late);
    let file = place.path("cert.pem");
    let said = format!(
        "the certificate of this engine expired at {at} (b.example.org); it is from certificate_file {}",
        file.display()
    );
    assert_eq!(why.to_string(), said);
    let file = Some(file);
    assert_eq!(why, ConnectReason::Certificate { of: Whose::ThisEngine, why: expired, file });
    assert!(help.contains("renewed certificate into that file"), "{help}");
    // An existing connection stays.
    engine.notify(&peer, b"still").unwrap().ended().unwrap();
    // A renewed certificate is picked up.
    place.put(&ca.leaf("b.example.org"), &ca.pem);
    wait_for("the renewed certificate", || connect(&late, &other).is_ok());
    works(&other, &late);
}

/// Log of all engines of this process.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

static LOG: LazyLock<Log> = LazyLock::new(|| {
    let log = Log::default();
    let writer = log.clone();
    tracing_subscriber::fmt().with_writer(move || writer.clone()).with_ansi(false).init();
    log
});

/// Counts the lines of the log that contain both parts.
fn logged(part: &str, other: &str) -> usize {
    let text = String::from_utf8_lossy(&LOG.0.lock().unwrap()).into_owned();
    text.lines().filter(|line| line.contains(part) && line.contains(other)).count()
}

#[test]
fn renewed_files_are_taken_up_and_bad_ones_are_not() {
    LazyLock::force(&LOG);
    let (ca, next) = (Ca::new("ca"), Ca::new("next"));
    let place = ca.place("old.example.org");
    let engine = place.engine("*");
    let both = [&ca.pem[..], &next.pem].concat();
    let trusting = Place::with(&ca.leaf("b.example.org"), &both);
    let name = || {
        let other = trusting.engine("*");
        let there = connect(&other, &engine).unwrap().proven_names();
        // The engine shows the same where it connects, unless it has reloaded the files meanwhile.
        connect(&engine, &other).unwrap();
        let here = other.peer(engine.instance()).unwrap().proven_names();
        if here == there { here.concat() } else { String::new() }
    };
    assert_eq!(name(), "old.example.org");
    place.put(&ca.leaf("new.example.org"), &ca.pem);
    wait_for("the new certificate", || name() == "new.example.org");
    // There is no event for a check of unchanged files: engines check once a second.
    let looks = || {
        let since = Instant::now();
        wait_for("two looks", || {
            assert_eq!(name(), "new.example.org");
            since.elapsed() > Duration::from_millis(2200)
        });
    };
    looks();
    assert_eq!(logged("certificates renewed", "new.example.org"), 1, "nothing was new since");

    // Files that don't belong together, or are missing.
    let key = place.path("key.pem").display().to_string();
    place.write("key.pem", &ca.leaf("new.example.org").key);
    let stays = |part: &str, path: &str| {
        assert_eq!(name(), "new.example.org");
        logged(part, path) == 1
    };
    wait_for("a warning", || stays("keeps the old", &key));
    looks();
    assert_eq!(logged("keeps the old", &key), 1, "a file that stays bad is told of once");
    let chain = place.path("cert.pem").display().to_string();
    place.write("cert.pem", "nothing");
    wait_for("a warning", || stays("keeps the old", &chain));
    std::fs::remove_file(place.path("cert.pem")).unwrap();
    wait_for("a warning", || stays("No such file", &chain));

    // Another CA: new certificates are accepted, and old ones no more.
    let old = ca.engine("late.example.org");
    place.put(&next.leaf("next.example.org"), &next.pem);
    wait_for("the other CA", || {
        let other = Place::with(&next.leaf("b.example.org"), &both).engine("*");
        connect(&other, &engine).is_ok_and(|peer| peer.proven_names() == ["next.example.org"])
    });
    let (why, _) = refusal(&engine, &old);
    assert!(matches!(theirs(why), CertificateError::Untrusted { .. }));
}

#[test]
fn files_that_can_not_be_used_are_refused_with_field_value_and_what_is_allowed() {
    let ca = Ca::new("ca");
    let good = ca.leaf("a.example.org");
    let refused = |place: &Place, setting: &str, file: &str, says: &[&str]| {
        let error = builder().config(place.config("*", &[])).build().unwrap_err();
        let (text, help) = (error.to_string(), error.help().unwrap());
        let path = place.path(file);
        assert!(text.starts_with(&format!("{setting} {}", path.display())), "{text}");
        assert!(says.iter().all(|part| text.contains(part)), "{text}");
        assert!(!text.contains(&good.key[60..80]), "a secret in a message: {text}");
        assert_eq!((error.exit_code(), help.is_empty()), (2, false));
        match error {
            EngineError::Certificates(error) => error,
            other => panic!("{other}"),
        }
    };
    let place = Place::with(&good, &ca.pem);
    let with = |file: &str, text: &str, setting: &str, says: &[&str]| {
        place.put(&good, &ca.pem);
        place.write(file, text);
        refused(&place, setting, file, says)
    };
    let (chain, key, trust) = ("certificate_file", "certificate_key_file", "trust_file");
    let empty = with("cert.pem", "nothing", chain, &["0 certificates", "allowed are 1 to 4"]);
    assert!(empty.help().contains("no line `-----BEGIN CERTIFICATE-----`"), "{}", empty.help());
    with("cert.pem", &good.chain[..90], chain, &["allowed are certificates in PEM"]);
    with("cert.pem", &good.chain.repeat(5), chain, &["5 certificates", "allowed are 1 to 4"]);
    with("key.pem", "", key, &["no private key", "Ed25519, ECDSA (P-256, P-384) or RSA"]);
    with("key.pem", &ca.leaf("a").key, key, &["does not fit the first certificate"]);
    let empty = with("ca.pem", "", trust, &["0 certificates", "allowed are 1 to 32"]);
    assert!(empty.help().contains("no line `-----BEGIN CERTIFICATE-----`"), "{}", empty.help());
    with("ca.pem", &"x".repeat(300 << 10), trust, &["too long; allowed: at most 256 KiB"]);
    place.put(&good, &Ca::new("other").pem);
    refused(&place, chain, "cert.pem", &["not vouched for by a CA of trust_file"]);
    let replace = |leaf: Leaf, says: &[&str]| {
        place.put(&leaf, &ca.pem);
        refused(&place, chain, "cert.pem", says)
    };
    let made = |names: &[&str], valid| ca.makes(Wanted { names, valid, usages: BOTH });
    let past = replace(made(&["a"], (now() - 2 * DAY, now() - DAY)), &["expired at 20", "(a)"]);
    assert!(matches!(
        past,
        CertificatesError::Content {
            why: CertificateFileError::Own(CertificateError::Expired { .. }),
            ..
        }
    ));
    replace(made(&["a"], (now() + DAY, now() + 2 * DAY)), &["is valid from 20", "(a)"]);
    replace(made(&["a"], (now() + DAY, now() - DAY)), &["can't be used: it ends before it begins"]);
    replace(made(&[], (now() - DAY, now() + DAY)), &["DNS names or exactly one SPIFFE ID"]);
    place.put(&good, &ca.pem);
    let open = |mode| Permissions::from_mode(mode);
    for mode in [0o644, 0o640, 0o604] {
        std::fs::set_permissions(place.path("key.pem"), open(mode)).unwrap();
        let says = format!("mode {mode:04o}");
        refused(&place, key, "key.pem", &[&says, "that nobody else can read or write"]);
    }
    std::fs::set_permissions(place.path("key.pem"), open(0o600)).unwrap();
    for mode in [0o666, 0o664, 0o646] {
        std::fs::set_permissions(place.path("ca.pem"), open(mode)).unwrap();
        let says = format!("mode {mode:04o} lets others write it");
        let error = refused(&place, trust, "ca.pem", &[&says]);
        assert!(error.help().contains("chmod go-w"), "{}", error.help());
    }
    std::fs::remove_file(place.path("ca.pem")).unwrap();
    refused(&place, trust, "ca.pem", &["No such file"]);
    place.put(&good, &ca.pem);
    drop(place.engine("*"));
}

/// Runs a script; a failure shows its output.
fn run(folder: &Path, script: &str) {
    let mut shell = Command::new("bash");
    let output = shell.args(["-ec", script]).current_dir(folder).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{script}\n{said}");
}

/// The first script of the page that tells users how to make certificates.
fn documented() -> &'static str {
    let page = include_str!("../../../../docs/certificates.md");
    let (_, begun) = page.split_once("```sh\n").unwrap();
    begun.split_once("```\n").unwrap().0
}

#[test]
fn certificates_of_openssl_are_taken() {
    if Command::new("openssl").arg("version").output().is_err() {
        let again = "apt-get install openssl && cargo test -p polyrail --test certificates";
        return polyrail_skip::skip("openssl is not installed", again);
    }
    let folder = tempfile::tempdir().unwrap();
    let file = |name: String| folder.path().join(name);
    let engine = |host: &str| {
        let files = ["pem", "key"].map(|end| file(format!("{host}.{end}")));
        let [chain, key] = files;
        let files = [chain, key, file("ca.pem".to_owned())];
        builder().config(config_of(&files, "*.example.org,spiffe://example.org/*", &[])).build()
    };
    run(folder.path(), documented());
    let (one, two) = (engine("node1").unwrap(), engine("node2").unwrap());
    assert_eq!(works(&one, &two).proven_names(), ["node2.example.org"]);
    // Other kinds of keys, each below a CA of its own kind that is below the first one.
    for (kind, options) in [
        ("rsa", "-newkey rsa:2048"),
        ("p384", "-newkey ec -pkeyopt ec_paramgen_curve:P-384"),
        ("ed25519", "-newkey ed25519"),
    ] {
        let script = format!(
            "openssl req {options} -nodes -subj /CN=step-{kind} -keyout step.key -out step.csr
             echo basicConstraints=critical,CA:TRUE >step.ext
             openssl x509 -req -in step.csr -extfile step.ext -days 9 \\
                 -CA ca.pem -CAkey ca.key -CAcreateserial -out step.pem
             openssl req {options} -nodes -subj /CN={kind} -keyout {kind}.key -out leaf.csr
             echo subjectAltName=URI:spiffe://example.org/{kind} >leaf.ext
             openssl x509 -req -in leaf.csr -extfile leaf.ext -days 9 \\
                 -CA step.pem -CAkey step.key -CAcreateserial -out leaf.pem
             cat leaf.pem step.pem >{kind}.pem"
        );
        run(folder.path(), &script);
        let other = engine(kind).unwrap();
        let name = format!("spiffe://example.org/{kind}");
        assert_eq!(works(&one, &other).proven_names(), std::slice::from_ref(&name));
        works(&other, &one);
        assert_eq!(one.peer(other.instance()).unwrap().proven_names(), [name]);
    }
    // Errors for keys that are not accepted distinguish them in users' terms.
    for (command, said) in [
        ("genrsa 1024", "an RSA key of fewer than 2048 bits; allowed is a key of Ed25519"),
        (
            "genpkey -algorithm X25519",
            "a private key of another kind, or a damaged one; allowed is",
        ),
    ] {
        run(folder.path(), &format!("cp node1.key good && openssl {command} >node1.key"));
        let error = engine("node1").unwrap_err();
        assert!(error.to_string().contains(said), "{error}");
        run(folder.path(), "cat good >node1.key");
    }
    // The form in which other tools write keys is refused with the command that converts it.
    run(folder.path(), "openssl ec -in node1.key -out node1.key.old && mv node1.key.old node1.key");
    let error = engine("node1").unwrap_err();
    assert!(error.to_string().contains("SEC1"), "{error}");
    let help = error.help().unwrap();
    assert!(help.contains("openssl pkcs8 -topk8"), "{help}");
    let command = help.split('`').nth(1).unwrap();
    let command = command.replace("KEY", "node1.key").replace("FILE", "node1.new");
    run(folder.path(), &format!("{command} && mv node1.new node1.key"));
    works(&two, &engine("node1").unwrap());
}
