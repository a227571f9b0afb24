//! Setup of connections, and helpers for the tests of established connections: `messages`, `announcements` and `liars`.

mod announcements;
mod liars;
mod messages;

use std::time::Instant;

use polyrail::Memory;

use super::*;
use crate::request::{Handle as Request, Progress};
use crate::wire::WINDOW;

fn net(hub: &Arc<Hub>) -> Net {
    net_of("127.0.0.1", hub)
}

fn net_of(rails: &str, hub: &Arc<Hub>) -> Net {
    let config = Config::builder().set("rails", rails).unwrap().build().unwrap();
    Net::new(config, hub).unwrap()
}

fn until(what: &str, mut over: impl FnMut() -> bool) {
    let start = Instant::now();
    while !over() {
        assert!(start.elapsed() < Duration::from_secs(30), "{what}");
        std::thread::yield_now();
    }
}

/// Retries as NCCL does when a call can't succeed at once.
fn taken<'a>(call: impl Fn() -> Result<Option<&'a Request>, CallError>) -> &'a Request {
    let mut taken = None;
    until("it is never taken", || {
        taken = call().unwrap();
        taken.is_some()
    });
    taken.unwrap()
}

/// A listener with a connection that waits to be accepted, and that connection.
fn asked(here: &Net, there: &Net) -> (Arc<Listener>, Attempt) {
    let (listener, handle) = here.listen().unwrap();
    let mut attempt = there.begin(Handle::decode(&handle).unwrap()).unwrap();
    until("nobody comes", || {
        assert!(there.advance(&mut attempt).unwrap().is_none(), "nobody accepted yet");
        listener.pop().map(|arrival| listener.put_back(arrival)).is_some()
    });
    (listener, attempt)
}

/// A connection from `there` to `here`.
fn connected(here: &Net, there: &Net) -> (Arc<SendEnd>, Arc<RecvEnd>) {
    let (listener, mut attempt) = asked(here, there);
    let recv = accept(&here.hub, &listener).unwrap().unwrap();
    let mut connected = None;
    until("not connected", || {
        connected = there.advance(&mut attempt).unwrap();
        connected.is_some()
    });
    (connected.unwrap(), recv)
}

#[test]
fn an_engine_ends_though_somebody_could_not_be_accepted() {
    let (hub, other) = (Arc::<Hub>::default(), Arc::<Hub>::default());
    let (here, there) = (net(&hub), net(&other));
    let (listener, attempt) = asked(&here, &there);
    let instance = there.engine.instance();
    drop(other.remove(attempt.key().unwrap()));
    drop((attempt, there));
    until("it is not gone", || here.engine.peer(instance).is_none());
    assert!(matches!(accept(&hub, &listener), Err(CallError::Broken(_))));
    drop(hub.remove(listener.key));
    drop((listener, here));
    assert_eq!(Arc::strong_count(&hub), 1, "an engine that lives would know the hub");
}

#[test]
fn an_engine_without_room_connects_later() {
    let (hub, other) = (Arc::<Hub>::default(), Arc::<Hub>::default());
    let config = Config::builder().set("rails", "127.0.0.1").unwrap();
    let config = config.set("ops_pool", "64").unwrap().build().unwrap();
    let (here, there) = (net(&hub), Net::new(config, &other).unwrap());
    let peer = there.engine.add_peer(&here.engine.metadata()).unwrap();
    let room = there.engine.register(Memory::from(vec![0; 8])).unwrap();
    let receive = |tag| there.engine.receive(&peer, tag, &room.all());
    let all: Vec<_> = (0..64).map(|tag| receive(tag).unwrap()).collect();
    assert!(receive(64).is_err_and(|error| error.is_busy()), "there is room");
    let (listener, handle) = here.listen().unwrap();
    let mut attempt = there.begin(Handle::decode(&handle).unwrap()).unwrap();
    for _ in 0..10 {
        assert!(there.advance(&mut attempt).unwrap().is_none());
        assert!(matches!(attempt.stage, Stage::Greeting { .. }));
    }
    all.iter().for_each(polyrail::Transfer::cancel);
    until("nobody comes", || {
        assert!(there.advance(&mut attempt).unwrap().is_none(), "nobody accepted yet");
        listener.pop().is_some()
    });
}

#[test]
fn whoever_waits_for_a_listener_that_closes_is_told() {
    let (hub, other) = (Arc::<Hub>::default(), Arc::<Hub>::default());
    let (here, there) = (net(&hub), net(&other));
    let (listener, mut attempt) = asked(&here, &there);
    listener.close();
    drop(hub.remove(listener.key));
    until("it waits on", || there.advance(&mut attempt).is_err());
    drop(other.remove(attempt.key().unwrap()));
}
