//! An authenticated process that lies: the engines it can make this one connect to, and the amount of state it can
//! leave here.

use super::*;
use crate::hub::MOST_WAITING;
use crate::wire::ExpressCard;

/// An engine that sends the plugin's messages itself, and the listener handle that it has.
struct Liar {
    engine: Engine,
    peer: Peer,
    handle: Handle,
}

impl Liar {
    fn at(listener: &[u8; HANDLE_BYTES]) -> Self {
        let handle = Handle::decode(listener).unwrap();
        let engine = engine_at("127.0.0.1", "liar");
        let asked = engine.connect_any(&handle.addresses, Some(&handle.invitation));
        let peer = asked.join().unwrap();
        Self { engine, peer, handle }
    }

    fn says(&self, from: u64, express: Option<&Engine>) {
        let metadata = express.map(Engine::metadata).unwrap_or_default();
        let instance = express.map(|engine| engine.instance().0);
        let express = instance.map(|instance| ExpressCard { instance, metadata: &metadata });
        let body = Body::Hello { nonce: self.handle.nonce, from, express };
        let message = Message { to: self.handle.listener, body }.encode();
        self.engine.notify(&self.peer, &message).unwrap().join().unwrap();
    }

    /// Numbers of the refused ends.
    fn refused(&self, count: usize) -> Vec<u64> {
        let mut refused = Vec::new();
        until("no refusal", || {
            for said in self.engine.take_notifications() {
                let said = Message::decode(&said.data).unwrap();
                assert_eq!(said.body, Body::Refused);
                refused.push(said.to);
            }
            refused.len() >= count
        });
        refused
    }
}

fn engine_at(rails: &str, name: &str) -> Engine {
    let config = Config::builder().set("rails", rails).unwrap().build().unwrap();
    Engine::builder().config(config).name(name).build().unwrap()
}

/// An engine that the local caller-driven engine would connect to, and not wait for.
fn greater_than(here: &Net, rails: &str, name: &str) -> Engine {
    let own = here.express.as_ref().unwrap().engine().instance();
    (0..1000).map(|_| engine_at(rails, name)).find(|engine| engine.instance() > own).unwrap()
}

/// Engines that were accepted as the caller-driven engines of the arrivals.
fn taken_over(listener: &Listener, count: usize) -> Vec<Option<InstanceId>> {
    (0..count).map(|_| listener.pop().expect("it has arrived").express).collect()
}

#[test]
fn who_says_hello_names_no_engine_at_other_addresses_and_none_of_another_process() {
    for (rails, is_named) in [("127.0.0.2", true), ("127.0.0.1", false)] {
        let here = net(&Arc::default());
        let (listener, handle) = here.listen().unwrap();
        let liar = Liar::at(&handle);
        let name = if is_named { liar.engine.companion_name() } else { "another".to_owned() };
        let elsewhere = greater_than(&here, rails, &name);
        // The first card counts, so a correct one comes too late.
        liar.says(1, Some(&elsewhere));
        liar.says(2, Some(&greater_than(&here, "127.0.0.1", &liar.engine.companion_name())));
        assert_eq!(taken_over(&listener, 2), [None, None]);
        assert!(here.express.as_ref().unwrap().engine().peers().is_empty());
        assert!(elsewhere.peers().is_empty(), "it was connected to");
    }
}

#[test]
fn a_process_has_one_express_engine_however_often_it_says_hello() {
    let here = net(&Arc::default());
    let (listener, handle) = here.listen().unwrap();
    let liar = Liar::at(&handle);
    let mates = [(); 3].map(|()| greater_than(&here, "127.0.0.1", &liar.engine.companion_name()));
    for (from, mate) in mates.iter().chain([&mates[0]]).enumerate() {
        liar.says(from as u64, Some(mate));
    }
    let first = Some(mates[0].instance());
    assert_eq!(taken_over(&listener, 4), [first, None, None, first]);
    let peers = here.express.as_ref().unwrap().engine().peers();
    assert_eq!(peers.iter().map(Peer::instance).collect::<Vec<_>>(), [mates[0].instance()]);
    // When the process is gone, its engine is removed as soon as another process arrives.
    let gone = liar.engine.instance();
    drop(liar);
    until("it is not gone", || here.engine.peer(gone).is_none());
    let other = Liar::at(&handle);
    let mate = greater_than(&here, "127.0.0.1", &other.engine.companion_name());
    other.says(1, Some(&mate));
    assert_eq!(taken_over(&listener, 1), [Some(mate.instance())]);
    // The removal begins with a goodbye.
    until("it stays", || {
        here.express.as_ref().unwrap().engine().progress();
        peers[0].lost().is_some()
    });
}

#[test]
fn a_listener_keeps_so_many_of_a_process_waiting_and_refuses_the_rest() {
    let here = net(&Arc::default());
    let (listener, handle) = here.listen().unwrap();
    let liar = Liar::at(&handle);
    let most = MOST_WAITING as u64;
    (0..most + 2).chain([0, most - 1]).for_each(|from| liar.says(from, None));
    assert_eq!(liar.refused(2), [most, most + 1]);
    let (other, hub) = (Liar::at(&handle), here.hub.clone());
    other.says(7, None);
    let waiting: Vec<u64> = std::iter::from_fn(|| listener.pop()).map(|a| a.from).collect();
    assert_eq!(waiting, (0..most).chain([7]).collect::<Vec<_>>());
    // Arrivals of processes that are gone make room.
    (0..most).for_each(|from| other.says(from, None));
    let gone = other.engine.instance();
    drop(other);
    until("it is not gone", || here.engine.peer(gone).is_none());
    liar.says(8, None);
    assert_eq!(listener.pop().map(|arrival| arrival.from), Some(8));
    assert!(listener.pop().is_none());
    drop(hub.remove(listener.key));
}

#[test]
fn before_the_welcome_no_express_engine_is_believed() {
    let (here, there) = (net(&Arc::default()), net(&Arc::default()));
    let (_listener, attempt) = asked(&here, &there);
    let Stage::Waiting { send } = &attempt.stage else { panic!("it has said hello") };
    let express = there.express.as_ref().unwrap().engine();
    let stranger = engine_at("127.0.0.1", &here.engine.companion_name());
    let to_there = stranger.add_peer(&express.metadata()).unwrap();
    let message = Message { to: send.end.key, body: Body::Posted { count: 1 } }.encode();
    let said = stranger.notify(&to_there, &message).unwrap();
    let mut peer = None;
    until("it does not come", || {
        express.progress();
        peer = express.peer(stranger.instance());
        peer.is_some()
    });
    assert!(!send.is_told_by(&peer.unwrap()));
    said.detach();
    drop(there.hub.remove(send.end.key));
}
