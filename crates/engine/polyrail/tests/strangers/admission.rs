//! Admission of peers by the user's hook.

use std::convert::Infallible;
use std::net::TcpStream;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex};

use crate::common::*;
use polyrail::{
    Admission, ConnectReason, Engine, Incoming, InstanceId, LostReason, PeerError, RefusedCode,
};

type Asked = Arc<Mutex<Vec<(String, InstanceId)>>>;

fn guarded(
    settings: &[(&str, &str)],
    hook: impl Fn(&Incoming) -> Admission + Send + Sync + 'static,
) -> (Engine, Asked) {
    let asked = Asked::default();
    let noted = asked.clone();
    let builder = builder().config(config(settings)).admit(move |incoming| {
        assert!(incoming.address().ip().is_loopback() && incoming.is_same_host());
        assert_eq!(incoming.listens_on().len(), 4);
        noted.lock().unwrap().push((incoming.name().to_owned(), incoming.instance()));
        hook(incoming)
    });
    (builder.build().unwrap(), asked)
}

fn named(name: &str, settings: &[(&str, &str)]) -> Engine {
    builder().config(config(settings)).name(name).build().unwrap()
}

/// Makes a gate for a hook, which waits until the other half is dropped.
fn gate() -> (Sender<Infallible>, impl Fn() + Send + Sync + 'static) {
    let (closed, opened) = mpsc::channel::<Infallible>();
    let opened = Mutex::new(opened);
    let pass = move || {
        let Err(why) = opened.lock().unwrap().recv_timeout(LONG);
        assert_eq!(why, RecvTimeoutError::Disconnected, "nobody opens the gate");
    };
    (closed, pass)
}

/// Returns why the peer is gone, which must happen soon.
fn refusal(engine: &Engine, guard: &Engine) -> (RefusedCode, String) {
    let peer = engine.add_peer(&guard.metadata()).unwrap();
    wait_for("the refusal", || peer.lost().is_some());
    match peer.lost().unwrap() {
        LostReason::Refused(refusal) => (refusal.code, refusal.text),
        other => panic!("{other}"),
    }
}

fn is_heard(guard: &Engine, engine: &Engine) {
    let peer = engine.add_peer(&guard.metadata()).unwrap();
    engine.notify(&peer, b"hello").unwrap().ended().unwrap();
    let came = guard.wait_notification(LONG).expect("it comes");
    assert_eq!(came.peer.instance(), engine.instance());
}

#[test]
fn a_peer_is_asked_about_once_and_the_reason_of_a_refusal_is_told_at_both_ends() {
    let (guard, asked) = guarded(&[], |incoming| match incoming.name() {
        "friend" => Admission::Accept,
        _ => Admission::refuse("friends only"),
    });
    let friend = named("friend", &[]);
    is_heard(&guard, &friend);
    assert_eq!(*asked.lock().unwrap(), [("friend".to_owned(), friend.instance())]);
    // All rails are up, and the hook was called once.
    let peer = guard.accept_peer(LONG).expect("it joined");
    wait_for("the flows", || friend.peers()[0].flows().are_all_up());
    assert_eq!((peer.name(), asked.lock().unwrap().len()), ("friend", 1));

    let foe = named("foe", &[]);
    let refused = (RefusedCode::NotAdmitted, "friends only".to_owned());
    assert_eq!(refusal(&foe, &guard), refused);
    assert!(guard.stats().refused_connections > 0);
    assert!(guard.peer(foe.instance()).is_none());
    match foe.connect(guard.addresses()[0]).join() {
        Err(PeerError::Connect { why: ConnectReason::Refused(why), .. }) => {
            assert_eq!((why.code, why.text), refused);
        }
        other => panic!("{other:?}"),
    }
    // The hook is not called for a peer that the user adds.
    let before = asked.lock().unwrap().len();
    guard.add_peer(&foe.metadata()).unwrap();
    is_heard(&guard, &foe);
    assert_eq!(asked.lock().unwrap().len(), before);
}

#[test]
fn who_connects_by_address_is_asked_about_once() {
    let (guard, asked) = guarded(&[], |_| Admission::Accept);
    let engine = named("one", &[]);
    engine.connect(guard.addresses()[0]).join().unwrap();
    is_heard(&guard, &engine);
    assert_eq!(asked.lock().unwrap().len(), 1);
}

#[test]
fn a_hook_that_panics_refuses_and_is_told_of() {
    let (guard, _) = guarded(&[], |_| panic!("on purpose"));
    let (code, text) = refusal(&named("one", &[]), &guard);
    assert_eq!(code, RefusedCode::NotAdmitted);
    assert!(text.contains("panicked"), "{text}");
    assert!(guard.stats().callback_panics > 0);
}

#[test]
fn a_hook_that_blocks_holds_nobody_else_and_may_decide_late() {
    let (closed, pass) = gate();
    let calls = Arc::new(AtomicU32::new(0));
    let count = calls.clone();
    let settings = [("connect_timeout_ms", "200"), ("reconnect_max_ms", "100")];
    let (guard, _) = guarded(&settings, move |incoming| {
        if incoming.name() == "slow" {
            count.fetch_add(1, Ordering::SeqCst);
            pass();
        }
        Admission::Accept
    });
    let slow = named("slow", &[("reconnect_max_ms", "100"), ("peer_timeout_ms", "60000")]);
    match slow.connect(guard.addresses()[0]).join() {
        Err(PeerError::Connect { why: ConnectReason::Refused(why), .. }) => {
            assert_eq!(why.code, RefusedCode::Undecided);
        }
        other => panic!("{other:?}"),
    }
    let peer = slow.add_peer(&guard.metadata()).unwrap();
    is_heard(&guard, &named("quick", &[]));
    assert_eq!((peer.lost(), calls.load(Ordering::SeqCst)), (None, 1));
    // A late decision counts when the peer comes again.
    drop(closed);
    is_heard(&guard, &slow);
    assert_eq!(calls.load(Ordering::SeqCst), 1);
}

#[test]
fn strangers_do_not_take_the_place_of_a_peer_that_waits_for_the_users_word() {
    let (closed, pass) = gate();
    let (guard, asked) = guarded(&[("flow_limit", "128")], move |_| {
        pass();
        Admission::Accept
    });
    let engine = named("one", &[]);
    let connecting = engine.connect(guard.addresses()[0]);
    wait_for("the question", || !asked.lock().unwrap().is_empty());
    // These clients send nothing. The engine has four slots for handshakes.
    let strangers: Vec<TcpStream> =
        (0..10).map(|_| TcpStream::connect(guard.addresses()[0]).unwrap()).collect();
    wait_for("strangers to be turned away", || guard.stats().refused_connections >= 7);
    drop(closed);
    assert_eq!(connecting.join().unwrap().instance(), guard.instance());
    drop(strangers);
}

#[test]
fn an_engine_closes_while_a_hook_blocks() {
    let (_closed, pass) = gate();
    let (guard, asked) = guarded(&[], move |_| {
        pass();
        Admission::Accept
    });
    let engine = named("one", &[]);
    let peer = engine.add_peer(&guard.metadata()).unwrap();
    wait_for("the question", || !asked.lock().unwrap().is_empty());
    drop(guard);
    assert_eq!(peer.flows().up, 0);
}
