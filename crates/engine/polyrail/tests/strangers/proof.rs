//! Proof of the right to connect: without a valid one a client neither gets in nor learns anything.

use std::fs::{self, Permissions};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::common::stranger::{Stranger, card, hello, metadata, metadata_of};
use crate::common::*;
use polyrail::{
    ConnectReason, Engine, EngineError, Explain, Flows, Invitation, LostReason, PeerError,
    PostError, RefusedCode, TransferError,
};
use polyrail_proto::hello::{Hello, Kind};
use polyrail_secure::{Capability, Identity, Initiator, Proof, Secret, read_secrets};
use polyrail_skip::HeldPort;

const OPEN: (&str, &str) = ("auth", "none");
/// Help for a secret that is not known at the other end.
const SECRET: &str = "the first secret here has to be one of those there";

/// The answer to a stranger that has proven nothing.
const UNPROVEN: &[u8] =
    b"PLYR\x02\0\x05\0\x36\0\0\0\x0c\0\x32\0no proof that counts here: another secret, or none";

fn works(engine: &Engine, other: &Engine) {
    let peer = engine.connect(other.addresses()[0]).join().unwrap();
    is_heard(engine, &peer, other);
}

fn is_heard(engine: &Engine, peer: &polyrail::Peer, other: &Engine) {
    engine.notify(peer, b"hello").unwrap().ended().unwrap();
    let came = other.wait_notification(LONG).expect("it was acknowledged");
    assert_eq!((came.peer.instance(), &came.data[..]), (engine.instance(), &b"hello"[..]));
}

/// Returns why an engine at a bare address refuses.
fn refusal(engine: &Engine, other: &Engine) -> (RefusedCode, PeerError) {
    let error = engine.connect(other.addresses()[0]).join().unwrap_err();
    match &error {
        PeerError::Connect { why: ConnectReason::Refused(why), address } => {
            assert_eq!(*address, other.addresses()[0]);
            (why.code, error)
        }
        other => panic!("{other}"),
    }
}

/// Checks that it is refused, with the help for the proof that was tried.
fn is_refused(engine: &Engine, other: &Engine, remedy: &str) {
    let before = (engine.peers(), other.peers());
    let (code, error) = refusal(engine, other);
    assert_eq!(code, RefusedCode::Unproven, "{error}");
    let help = error.help().unwrap();
    assert!(help.contains(remedy), "{remedy} is missing in: {help}");
    assert_eq!((engine.peers(), other.peers()), before);
}

/// Tries a proof by hand, sends a hello without waiting for an answer, and returns all that is sent back.
fn tries(engine: &Engine, proof: Proof, secret: &Secret, hello: &Hello) -> Vec<u8> {
    let mut stranger = Stranger::at(engine);
    let identity = Identity::fresh().unwrap();
    let (_, first) = Initiator::new(&identity, proof, secret).unwrap();
    let words = [Kind::First.framed(&first), Kind::Third.framed(&hello.encode())].concat();
    stranger.write(&words);
    stranger.last_words()
}

#[test]
fn a_stranger_without_a_proof_is_told_the_version_and_leaves_no_trace() {
    let engine = one_rail(&[("flow_limit", "16"), ("channels", "1")]);
    let other = one_rail(&[]);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let own = card(&[listener.local_addr().unwrap()]);
    let guess = Capability::fresh().unwrap().secret();
    let elsewhere = metadata_of(&other).capability.secret();
    let capability = metadata_of(&engine).capability.secret();
    let mut refused = 0;
    for hello in [Hello::Flow(hello(&engine, own.clone())), Hello::Introduction(metadata(&own))] {
        for (proof, secret) in [
            (Proof::Nothing, &Secret::nothing()),
            (Proof::Capability, &guess),
            (Proof::Capability, &elsewhere),
            (Proof::Capability, &Secret::nothing()),
            (Proof::Secret, &guess),
            (Proof::Host, &guess),
            // A secret of one kind is worth nothing as another kind.
            (Proof::Secret, &capability),
            (Proof::Host, &capability),
        ] {
            assert_eq!(tries(&engine, proof, secret, &hello), UNPROVEN, "{proof}");
            refused += 1;
            assert!(engine.peers().is_empty(), "{proof}");
            assert_eq!(engine.stats().refused_connections, refused, "{proof}");
        }
    }
    for first in [&[][..], &[9; 49], &[0; 49], &[1; 3000]] {
        let mut stranger = Stranger::at(&engine);
        stranger.write(&Kind::First.framed(first));
        assert_eq!(stranger.last_words(), UNPROVEN);
    }
    let mut older = Stranger::at(&engine);
    older.write(b"PLYR\x01\0\x01\0\0\0\0\0");
    let version = b"PLYR\x02\0\x05\0\x20\0\0\0\x01\0\x1c\0this engine speaks version 2";
    assert_eq!(older.last_words(), version);
    assert_eq!(engine.accept_peer(Duration::ZERO), None);
    assert!(listener.accept().is_err(), "nobody calls a stranger back");
    // There is as much room as before: all but the eighth that is reserved for peers without any connection.
    let peers =
        [4, 4, 4, 2].map(|total: usize| (total, one_rail(&[("channels", &total.to_string())])));
    for (total, peer) in &peers {
        let (up, total) = (*total, *total);
        let to_engine = peer.add_peer(&engine.metadata()).unwrap();
        wait_for("all of its flows", || to_engine.flows() == Flows { up, total });
        is_heard(peer, &to_engine, &engine);
    }
    assert_eq!(engine.peers().len(), 4);
}

#[test]
fn engines_of_one_user_on_one_host_connect_with_nothing_configured() {
    let (a, b) = (one_rail(&[]), one_rail(&[]));
    works(&a, &b);
}

#[test]
fn auth_none_needs_both_ends() {
    let [(open, too), (closed, other)] =
        [&[OPEN][..], &[]].map(|settings| (one_rail(settings), one_rail(settings)));
    works(&open, &too);
    is_refused(&open, &closed, "set auth=none there, too");
    // This engine proves something that the open one does not know.
    let folder = tempfile::tempdir().unwrap();
    let secret = file(folder.path(), "secret", &["a"]);
    let strict = with_secret(&secret);
    is_refused(&strict, &one_rail(&[OPEN]), SECRET);
    // Metadata are a proof anywhere.
    let peer = open.add_peer(&other.metadata()).unwrap();
    is_heard(&open, &peer, &other);
    let hello = Hello::Introduction(metadata(&card(&["127.0.0.1:9".parse().unwrap()])));
    let guess = Capability::fresh().unwrap().secret();
    assert_eq!(tries(&open, Proof::Host, &guess, &hello), UNPROVEN);
    assert_eq!(tries(&open, Proof::Capability, &guess, &hello), UNPROVEN);
}

/// Writes a secret file; each secret is a letter with zeros.
fn file(folder: &Path, name: &str, letters: &[&str]) -> PathBuf {
    let path = folder.join(name);
    let lines: Vec<String> = letters.iter().map(|letter| format!("{letter}0").repeat(20)).collect();
    fs::write(&path, lines.join("\n")).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    path
}

fn with_secret(path: &Path) -> Engine {
    one_rail(&[("secret_file", path.to_str().unwrap())])
}

#[test]
fn a_secret_file_lets_in_who_has_one_of_its_secrets() {
    let folder = tempfile::tempdir().unwrap();
    let [old, new, both] = [("old", &["a"][..]), ("new", &["b"]), ("both", &["a", "b"])]
        .map(|(name, letters)| file(folder.path(), name, letters));
    works(&with_secret(&old), &with_secret(&old));
    is_refused(&with_secret(&old), &with_secret(&new), SECRET);
    is_refused(&with_secret(&new), &with_secret(&old), SECRET);
    // An engine without a secret is of the same user, which counts; but not in the other direction.
    works(&one_rail(&[]), &with_secret(&old));
    is_refused(&with_secret(&old), &one_rail(&[]), SECRET);
    // While a secret is replaced, both are valid; the first is used to connect.
    let changing = with_secret(&both);
    works(&with_secret(&old), &changing);
    works(&with_secret(&new), &changing);
    works(&with_secret(&both), &with_secret(&old));
    is_refused(&with_secret(&both), &with_secret(&new), SECRET);
    // The content of the file counts, not its name.
    let copy = file(folder.path(), "copy", &["a"]);
    works(&with_secret(&copy), &with_secret(&old));
    let secret = &read_secrets(&"c0".repeat(20)).unwrap()[0];
    let hello = Hello::Introduction(metadata(&card(&["127.0.0.1:9".parse().unwrap()])));
    assert_eq!(tries(&changing, Proof::Secret, secret, &hello), UNPROVEN);
}

#[test]
fn a_secret_file_that_can_not_be_used_is_refused_with_field_value_and_what_is_allowed() {
    let folder = tempfile::tempdir().unwrap();
    let build = |path: &Path| {
        let settings = config(&[("secret_file", path.to_str().unwrap())]);
        let error = builder().config(settings).build().unwrap_err();
        assert!(matches!(error, EngineError::Secrets(_)), "{error}");
        let text = error.to_string();
        assert!(text.starts_with(&format!("secret_file {}", path.display())), "{text}");
        (text, error.help().unwrap(), error.exit_code())
    };
    let path = file(folder.path(), "secret", &["a"]);
    for mode in [0o644, 0o640, 0o602, 0o677] {
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        let (text, help, code) = build(&path);
        assert!(text.contains(&format!("mode {mode:04o}")), "{text}");
        assert!(text.contains("allowed: a regular file of this user"), "{text}");
        assert!(help.contains("chmod 600") && code == 2, "{help}");
    }
    let (text, help, _) = build(&folder.path().join("none"));
    assert!(text.contains("No such file") && help.contains("polyrail secret new"), "{text}");
    fs::write(&path, format!("{}\n", "ab".repeat(20)).repeat(9)).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    let (text, help, _) = build(&path);
    assert!(text.contains("9 secrets; allowed: 1 to 8"), "{text}");
    assert!(help.contains("remove the oldest lines"), "{help}");
    fs::write(&path, "short").unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    let (text, ..) = build(&path);
    assert!(text.contains("line 1 has 5 characters; allowed: 32 or more"), "{text}");
    assert!(!text.contains("short"), "a secret in a message: {text}");
}

#[test]
fn an_invitation_leads_to_the_engine_that_gave_it_and_to_no_other() {
    let (engine, other, third) = (one_rail(&[]), one_rail(&[]), one_rail(&[]));
    let invitation: Invitation = other.invitation().to_string().parse().unwrap();
    let peer = engine.connect_by(other.addresses()[0], &invitation).join().unwrap();
    assert_eq!(peer.instance(), other.instance());
    is_heard(&engine, &peer, &other);
    let at = third.addresses()[0];
    let error = engine.connect_by(at, &invitation).join().unwrap_err();
    let text = error.to_string();
    assert!(text.contains(&at.to_string()) && text.contains("the invitation"), "{text}");
    assert!(matches!(&error, PeerError::Connect { why: ConnectReason::Refused(why), .. }
        if why.code == RefusedCode::Unproven));
    // The instance of one engine with the capability of another: the engine there is not the one that is meant.
    let mut bytes = third.invitation().to_bytes();
    bytes[..16].copy_from_slice(&other.instance().0.to_le_bytes());
    let mixed = Invitation::from_bytes(&bytes);
    let error = engine.connect_by(at, &mixed).join().unwrap_err().to_string();
    assert!(error.contains("not the engine that is meant"), "{error}");
    assert!(third.peers().is_empty() && engine.peers() == [peer]);
    let text = invitation.to_string();
    for garbled in [&text[1..], &text[..67], &text.replace("pr2-", "pr1-"), &text.replace('a', "x")]
    {
        if garbled == text {
            continue;
        }
        let error = garbled.parse::<Invitation>().unwrap_err().to_string();
        assert!(error.contains("allowed are pr2- and 64 hexadecimal digits"), "{error}");
        assert!(!error.contains(&text[10..20]), "a secret in a message: {error}");
    }
}

#[test]
fn an_engine_that_was_started_again_is_another_one() {
    let settings = &[("channels", "1")];
    let engine = one_rail(settings);
    let held = HeldPort::new();
    let port = held.number().to_string();
    let before = one_rail(&[("listen_port", &port), ("channels", "1")]);
    let (metadata, invitation, at) =
        (before.metadata(), before.invitation(), before.addresses()[0]);
    let peer = engine.add_peer(&metadata).unwrap();
    is_heard(&engine, &peer, &before);
    drop(before);
    wait_for("its good-bye", || peer.lost().is_some());
    let after = one_rail(&[("listen_port", &port), ("channels", "1")]);
    assert_eq!(after.addresses()[0], at);
    let again = engine.add_peer(&metadata).unwrap();
    // The peer may have been refused before or after the notification is posted.
    let why = match engine.notify(&again, b"who is there?") {
        Ok(transfer) => match transfer.ended().unwrap_err() {
            TransferError::PeerLost { why, .. } => why,
            other => panic!("{other}"),
        },
        Err(PostError::PeerGone { why, .. }) => why,
        Err(other) => panic!("{other}"),
    };
    let LostReason::Refused(why) = why else { panic!("{why}") };
    assert_eq!(why.code, RefusedCode::Unproven);
    assert!(why.text.contains("started again"), "{why}");
    let error = engine.connect_by(at, &invitation).join().unwrap_err().to_string();
    assert!(error.contains("started again"), "{error}");
    assert!(after.peers().is_empty());
    let now = engine.add_peer(&after.metadata()).unwrap();
    is_heard(&engine, &now, &after);
}

#[test]
fn published_metadata_is_for_its_owner_alone() {
    let engine = one_rail(&[]);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rank0");
    let is_private = |path: &Path| {
        assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o7777, 0o600);
        let file = fs::read(path).unwrap();
        assert!(file.ends_with(&engine.metadata()), "{file:?}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "no draft is left");
    };
    engine.publish(&path).unwrap();
    is_private(&path);
    // Whatever the file's earlier permissions.
    fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
    // The second draft that this process writes.
    let draft = folder.path().join(format!("rank0.{}.1", std::process::id()));
    fs::write(&draft, "left by another process").unwrap();
    fs::set_permissions(&draft, Permissions::from_mode(0o666)).unwrap();
    engine.publish(&path).unwrap();
    is_private(&path);
}
