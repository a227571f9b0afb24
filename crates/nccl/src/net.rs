//! A device in use: its engine, and how connections on it come about.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use polyrail::{Connecting, Engine, InstanceId, Peer};
use polyrail_config::Config;
use polyrail_nccl_abi::HANDLE_BYTES;

use crate::error::CallError;
use crate::express::{Express, Way};
use crate::hub::{Any, Arrival, Hub, Listener};
use crate::recv::RecvEnd;
use crate::send::SendEnd;
use crate::wire::{Body, Handle, Message};

/// How long what was sent may take to arrive once everything is closed. A peer that is known to be
/// dead is not waited for.
const FAREWELL: Duration = Duration::from_millis(500);

/// A device with its engine running.
pub(crate) struct Net {
    hub: Arc<Hub>,
    config: Config,
    engine: Engine,
    express: Option<Arc<Express>>,
    /// Connects to the engine above, for ranks that share a process: no engine is its own peer.
    mirror: OnceLock<Engine>,
}

/// A connection that is being made.
pub(crate) struct Attempt {
    handle: Handle,
    stage: Stage,
}

enum Stage {
    /// Asking who listens at the address of this index.
    Asking { at: usize, connecting: Connecting },
    /// The peer is known but does not know yet that we wait: the engine had no room for the
    /// message.
    Greeting { peer: Peer },
    /// The other side knows of this end; it has to accept it.
    Waiting { send: Arc<SendEnd> },
}

impl Net {
    pub(crate) fn new(config: Config, hub: &Arc<Hub>) -> Result<Self, CallError> {
        let engine = build(&config, hub)?;
        hub.attach(&engine);
        let express = Express::new(&config, hub)?;
        Ok(Self { hub: hub.clone(), config, engine, express, mirror: OnceLock::new() })
    }

    pub(crate) fn listen(&self) -> Result<(Arc<Listener>, [u8; HANDLE_BYTES]), CallError> {
        let nonce = rand_u64()?;
        let (engine, express) = (self.engine.clone(), self.express.clone());
        let (key, listener) = self.hub.insert(|key| {
            let listener = Arc::new(Listener::new(engine, express, key, nonce));
            (Any::Listener(listener.clone()), listener)
        });
        let handle = Handle {
            listener: key,
            nonce,
            invitation: self.engine.invitation(),
            addresses: self.engine.addresses(),
        };
        Ok((listener, handle.encode()))
    }

    /// The first step towards a connection.
    pub(crate) fn begin(&self, handle: Handle) -> Result<Attempt, CallError> {
        let engine = self.engine_for(handle.invitation.instance())?;
        let stage = match engine.peer(handle.invitation.instance()) {
            Some(peer) => self.hello(engine, peer, &handle)?,
            None => {
                let connecting = engine.connect_by(handle.addresses[0], &handle.invitation);
                Stage::Asking { at: 0, connecting }
            }
        };
        Ok(Attempt { handle, stage })
    }

    /// The next step; the connection once it is there.
    pub(crate) fn advance(&self, attempt: &mut Attempt) -> Result<Option<Arc<SendEnd>>, CallError> {
        match &mut attempt.stage {
            Stage::Asking { at, connecting } => match connecting.try_wait() {
                None => Ok(None),
                Some(Ok(peer)) => {
                    let engine = self.engine_for(peer.instance())?;
                    attempt.stage = self.hello(engine, peer, &attempt.handle)?;
                    Ok(None)
                }
                Some(Err(error)) => {
                    let next = *at + 1;
                    let Some(address) = attempt.handle.addresses.get(next) else {
                        return Err(CallError::Broken(error.to_string()));
                    };
                    let engine = self.engine_for(attempt.handle.invitation.instance())?;
                    let connecting = engine.connect_by(*address, &attempt.handle.invitation);
                    attempt.stage = Stage::Asking { at: next, connecting };
                    Ok(None)
                }
            },
            Stage::Greeting { peer } => {
                let (peer, engine) =
                    (peer.clone(), self.engine_for(attempt.handle.invitation.instance())?);
                attempt.stage = self.hello(engine, peer, &attempt.handle)?;
                Ok(None)
            }
            Stage::Waiting { send } => {
                send.end.check()?;
                Ok(send.end.is_connected().then(|| send.clone()))
            }
        }
    }

    fn hello(&self, engine: &Engine, peer: Peer, handle: &Handle) -> Result<Stage, CallError> {
        // No engine is its own peer, so ranks that share a process have no express way.
        let is_own = handle.invitation.instance() == self.engine.instance();
        let express = self.express.clone().filter(|_| !is_own);
        let (key, send) = self.hub.insert(|key| {
            let batches = self.hub.batches.clone();
            let send = SendEnd::new(engine.clone(), peer.clone(), key, express.clone(), batches);
            (Any::Send(send.clone()), send)
        });
        let express = express.as_ref().map(|express| express.card());
        let body = Body::Hello { nonce: handle.nonce, from: key, express };
        let message = Message { to: handle.listener, body }.encode();
        match send.end.tell(message) {
            Ok(()) => Ok(Stage::Waiting { send }),
            Err(error) => {
                drop(self.hub.remove(key));
                if error.is_busy() {
                    return Ok(Stage::Greeting { peer });
                }
                Err(CallError::Broken(error.to_string()))
            }
        }
    }

    fn engine_for(&self, instance: InstanceId) -> Result<&Engine, CallError> {
        if instance != self.engine.instance() {
            return Ok(&self.engine);
        }
        match self.mirror.get() {
            Some(mirror) => Ok(mirror),
            None => {
                let mirror = build(&self.config, &self.hub)?;
                Ok(self.mirror.get_or_init(|| mirror))
            }
        }
    }
}

impl Net {
    /// Waits until every sent message has arrived: a small one counts as sent once it has left.
    pub(crate) fn drain(&self) {
        if let Some(express) = &self.express {
            express.drain(FAREWELL);
        }
        self.engine.drain(FAREWELL);
        if let Some(mirror) = self.mirror.get() {
            mirror.drain(FAREWELL);
        }
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        self.drain();
        self.hub.detach(&self.engine);
    }
}

/// The next connection that a listener got, if any.
pub(crate) fn accept(hub: &Hub, listener: &Listener) -> Result<Option<Arc<RecvEnd>>, CallError> {
    let Some(arrival) = listener.pop() else { return Ok(None) };
    let Arrival { peer, from, express } = arrival;
    let engine = &listener.engine;
    let batch = hub.batches.of(engine, &peer);
    let way = listener.express.as_ref().zip(express).map(|(here, there)| Way::to(here, there));
    let (key, recv) = hub.insert(|key| {
        let recv = RecvEnd::new(engine.clone(), peer.clone(), key, way, batch);
        recv.end.set_remote(from);
        (Any::Recv(recv.clone()), recv)
    });
    let undo = || {
        recv.shut();
        drop(hub.remove(key));
    };
    let mailbox = recv.open().inspect_err(|_| undo())?;
    let welcome = Body::Welcome { from: key, mailbox: &mailbox, express: recv.express_card() };
    match recv.end.tell(recv.end.encode(welcome)) {
        Ok(()) => Ok(Some(recv)),
        Err(error) => {
            undo();
            if error.is_busy() {
                listener.put_back(Arrival { peer, from, express });
                return Ok(None);
            }
            Err(CallError::Broken(error.to_string()))
        }
    }
}

impl Attempt {
    /// The end to remove if the connection never comes about.
    pub(crate) fn key(&self) -> Option<u64> {
        match &self.stage {
            Stage::Asking { .. } | Stage::Greeting { .. } => None,
            Stage::Waiting { send } => Some(send.end.key),
        }
    }

    /// Whom it is meant for.
    pub(crate) fn target(&self) -> String {
        let addresses: Vec<String> = self.handle.addresses.iter().map(|a| a.to_string()).collect();
        addresses.join(", ")
    }
}

fn build(config: &Config, hub: &Arc<Hub>) -> Result<Engine, CallError> {
    let builder = Engine::builder().config(config.clone()).observer(hub.clone());
    builder.build().map_err(|error| CallError::Engine(error.to_string()))
}

fn rand_u64() -> Result<u64, CallError> {
    getrandom::u64().map_err(|error| CallError::Engine(format!("random bits: {error}")))
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::time::Instant;

    use polyrail::{Memory, Observer};
    use polyrail_nccl_abi::MAX_REQUESTS;

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

    /// A listener with somebody who waits to be accepted, and who that is.
    fn asked(here: &Net, there: &Net) -> (Arc<Listener>, Attempt) {
        let (listener, handle) = here.listen().unwrap();
        let mut attempt = there.begin(Handle::decode(&handle).unwrap()).unwrap();
        until("nobody comes", || {
            assert!(there.advance(&mut attempt).unwrap().is_none(), "nobody accepted yet");
            listener.pop().map(|arrival| listener.put_back(arrival)).is_some()
        });
        (listener, attempt)
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

    /// A connection from there to here.
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
    fn small_messages_pass_through_no_proxy_and_could_take_every_rail() {
        let (hub, other) = (Arc::<Hub>::default(), Arc::<Hub>::default());
        let rails = "127.0.0.1,127.0.0.2";
        let (here, there) = (net_of(rails, &hub), net_of(rails, &other));
        let (send, recv) = connected(&here, &there);
        let from = Memory::from((0..=255).collect::<Vec<u8>>());
        let from = send.end.regions.add(&there.engine, from, 1000).unwrap();
        let into = recv.end.regions.add(&here.engine, Memory::from(vec![0; 256]), 2000).unwrap();
        let exchange = |len: usize| {
            let sent = taken(|| send.send(from, 1000, len));
            let received = taken(|| recv.receive(into, 2000, 256));
            until("not there", || received.test() == Progress::Done { bytes: len as u64 });
            until("not sent", || sent.test() == Progress::Done { bytes: len as u64 });
        };
        let engine = there.express.as_ref().unwrap().engine();
        let chunks =
            |rails: &[polyrail::RailStats]| rails.iter().map(|rail| rail.tx_chunks).sum::<u64>();
        let by_express =
            || engine.stats().peers.iter().map(|peer| chunks(&peer.rails)).sum::<u64>();
        until("no express way", || {
            exchange(5);
            by_express() > 0
        });
        let express = engine.peers().pop().unwrap();
        until("not all rails", || {
            exchange(0);
            express.flows() == polyrail::Flows { up: 2, total: 2 }
        });
        let before = by_express();
        let by_proxies = || {
            let stats = here.engine.stats();
            stats.peers.iter().map(|peer| chunks(&peer.rails)).sum::<u64>()
        };
        let proxies_before = by_proxies();
        let start = Instant::now();
        (1..=256).for_each(exchange);
        // So do the 16 messages that tell how many receives are posted.
        let noted = by_proxies() - proxies_before;
        assert!(noted < 8, "{noted} notes by proxies");
        // One that finds too many which are not acknowledged yet takes a proxy. None waits for the
        // thread that looks every 50 ms.
        let taken = by_express() - before;
        assert!(taken >= 64, "{taken} of 256");
        assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
        let mut bytes = [0; 256];
        recv.end.regions.get(into, 2000, 256).region.read_at(0, &mut bytes).unwrap();
        assert!(bytes.iter().enumerate().all(|(at, byte)| *byte == at as u8), "{bytes:?}");
    }

    #[test]
    fn what_receives_announce_leaves_together_when_one_is_tested() {
        let (hub, other) = (Arc::<Hub>::default(), Arc::<Hub>::default());
        let (here, there) = (net(&hub), net(&other));
        let pairs: Vec<_> = (0..4).map(|_| connected(&here, &there)).collect();
        const LEN: usize = 200_000;
        let said = || {
            let stats = here.engine.stats();
            stats.peers[0].rails.iter().map(|rail| rail.tx_chunks).sum::<u64>()
        };
        let until_still = || {
            until("the connections are made", || {
                let before = said();
                // For so long nothing may be sent.
                std::thread::sleep(Duration::from_millis(20));
                said() == before
            });
            said()
        };
        let from = Memory::from((0..LEN).map(|at| at as u8).collect::<Vec<_>>());
        let before = until_still();
        let posted: Vec<_> = pairs
            .iter()
            .map(|(send, recv)| {
                let into = Memory::from(vec![0; LEN]);
                let into = recv.end.regions.add(&here.engine, into, 2000).unwrap();
                let received = taken(|| recv.receive(into, 2000, LEN));
                let from = send.end.regions.add(&there.engine, from.clone(), 1000).unwrap();
                (taken(|| send.send(from, 1000, LEN)), received, recv, into)
            })
            .collect();
        let notes = until_still() - before;
        assert!(notes < 4, "{notes} messages before one of them is tested");
        until("not there", || posted[0].1.test() == Progress::Done { bytes: LEN as u64 });
        for (sent, received, recv, into) in &posted[1..] {
            until("not there", || received.test() == Progress::Done { bytes: LEN as u64 });
            until("not sent", || sent.test() == Progress::Done { bytes: LEN as u64 });
            let mut bytes = vec![0; LEN];
            let region = recv.end.regions.get(*into, 2000, LEN).region;
            region.read_at(0, &mut bytes).unwrap();
            assert!(bytes.iter().enumerate().all(|(at, byte)| *byte == at as u8));
        }
        // One notification for four receives, and what engines say to each other.
        let notes = said() - before;
        assert!((1..4).contains(&notes), "{notes} messages");
    }

    /// Messages of eight bytes one after the other, each received before the next.
    struct Small<'a> {
        send: &'a SendEnd,
        recv: &'a RecvEnd,
        from: usize,
        into: usize,
    }

    impl<'a> Small<'a> {
        fn new((here, recv): (&Net, &'a RecvEnd), (there, send): (&Net, &'a SendEnd)) -> Self {
            let memory = || Memory::from(vec![0; 8]);
            let from = send.end.regions.add(&there.engine, memory(), 1000).unwrap();
            let into = recv.end.regions.add(&here.engine, memory(), 1000).unwrap();
            Self { send, recv, from, into }
        }

        fn send(&self) -> &'a Request {
            taken(|| self.send.send(self.from, 1000, 8))
        }

        fn receive(&self) {
            let received = taken(|| self.recv.receive(self.into, 1000, 8));
            until("not there", || received.test() == Progress::Done { bytes: 8 });
        }

        fn exchange(&self) {
            let sent = self.send();
            self.receive();
            until("not sent", || sent.test() == Progress::Done { bytes: 8 });
        }
    }

    /// Chunks that the express engine of a process has sent.
    fn sent_by_express(net: &Net) -> u64 {
        let peers = net.express.as_ref().unwrap().engine().stats().peers;
        peers.iter().flat_map(|peer| &peer.rails).map(|rail| rail.tx_chunks).sum()
    }

    #[test]
    fn what_small_receives_have_to_say_goes_with_messages() {
        let (hub, other) = (Arc::<Hub>::default(), Arc::<Hub>::default());
        let (here, there) = (net(&hub), net(&other));
        let ((send, recv), (back, came_back)) =
            (connected(&here, &there), connected(&there, &here));
        let ping = Small::new((&here, &recv), (&there, &send));
        let pong = Small::new((&there, &came_back), (&here, &back));
        until("no express way", || {
            ping.exchange();
            pong.exchange();
            sent_by_express(&here) > 0 && sent_by_express(&there) > 0
        });
        let before = sent_by_express(&here) + sent_by_express(&there);
        for _ in 0..4 * WINDOW {
            ping.exchange();
            pong.exchange();
        }
        let sent = sent_by_express(&here) + sent_by_express(&there) - before;
        assert_eq!(sent, 8 * WINDOW, "a message for each, and no more");
        // With no traffic the other way, it travels alone.
        let before = sent_by_express(&here);
        (0..4 * WINDOW).for_each(|_| ping.exchange());
        let notes = sent_by_express(&here) - before;
        assert!((1..16).contains(&notes), "{notes} notes");
    }

    #[test]
    fn what_an_express_way_that_is_lost_should_have_taken_along_is_said_again() {
        let (hub, other) = (Arc::<Hub>::default(), Arc::<Hub>::default());
        let (here, there) = (net(&hub), net(&other));
        let (send, recv) = connected(&here, &there);
        let small = Small::new((&here, &recv), (&there, &send));
        // Until something is left, and no message comes by to take it along.
        until("nothing is left", || {
            small.exchange();
            recv.has_left_something()
        });
        let send_on = || {
            let sent = small.send();
            (sent.test() == Progress::Pending).then_some(sent)
        };
        let held = (0..2 * WINDOW).find_map(|_| send_on()).unwrap();
        let peer = here.express.as_ref().unwrap().engine().peers().pop().unwrap();
        hub.lost(&peer, &polyrail::LostReason::Removed);
        until("it is held for ever", || {
            // As whoever tests something in that process does.
            hub.batches.flush();
            held.test() == Progress::Done { bytes: 8 }
        });
    }

    #[test]
    fn what_was_sent_before_the_sender_left_can_be_taken_later() {
        let (hub, other) = (Arc::<Hub>::default(), Arc::<Hub>::default());
        let (here, there) = (net(&hub), net(&other));
        let (send, recv) = connected(&here, &there);
        let memory = |text: &[u8]| Memory::from(text.to_vec());
        let from = send.end.regions.add(&there.engine, memory(b"from here"), 1000).unwrap();
        for _ in 0..WINDOW {
            let request = taken(|| send.send(from, 1000, 9));
            until("not sent", || request.test() == Progress::Done { bytes: 9 });
        }
        send.close();
        drop(other.remove(send.end.key));
        let instance = there.engine.instance();
        drop((send, there));
        until("it is not gone", || here.engine.peer(instance).is_none());
        let into = recv.end.regions.add(&here.engine, memory(&[0; 9]), 1000).unwrap();
        for _ in 0..WINDOW {
            let request = taken(|| recv.receive(into, 1000, 9));
            assert_eq!(request.test(), Progress::Done { bytes: 9 });
        }
        assert!(recv.receive(into, 1000, 9).is_err(), "there is no more");
        recv.close();
    }

    #[test]
    fn messages_of_all_sizes_arrive_if_only_one_side_has_the_express_way() {
        let net = |express: &str, hub: &Arc<Hub>| {
            let config = Config::builder().set("rails", "127.0.0.1").unwrap();
            let config = config.set("nccl_express_bytes", express).unwrap().build().unwrap();
            Net::new(config, hub).unwrap()
        };
        for (receiver, sender) in [("0", "32KiB"), ("32KiB", "0"), ("1B", "32KiB")] {
            let (hub, other) = (Arc::<Hub>::default(), Arc::<Hub>::default());
            let (here, there) = (net(receiver, &hub), net(sender, &other));
            let (listener, mut attempt) = asked(&here, &there);
            let recv = accept(&hub, &listener).unwrap().unwrap();
            let mut connected = None;
            until("not connected", || {
                connected = there.advance(&mut attempt).unwrap();
                connected.is_some()
            });
            let send = connected.unwrap();
            let bytes: Vec<u8> = (0..200_000u32).map(|at| (at % 251) as u8).collect();
            let from = Memory::from(bytes.clone());
            let from = send.end.regions.add(&there.engine, from, 1000).unwrap();
            for len in [0, 1, 1 << 10, (1 << 10) + 1, 32 << 10, (32 << 10) + 1, 128 << 10, 200_000]
            {
                let into = Memory::from(vec![0; len.max(1)]);
                let into = recv.end.regions.add(&here.engine, into, 2000).unwrap();
                let sent = taken(|| send.send(from, 1000, len));
                let received = taken(|| recv.receive(into, 2000, len));
                let whole = Progress::Done { bytes: len as u64 };
                until("not there", || received.test() == whole);
                until("not sent", || sent.test() == whole);
                let mut got = vec![0; len];
                recv.end.regions.get(into, 2000, len).region.read_at(0, &mut got).unwrap();
                assert!(got == bytes[..len], "{len} bytes of {sender} to {receiver}");
                recv.end.regions.remove(into).unwrap();
            }
            send.close();
            recv.close();
            drop((other.remove(send.end.key), hub.remove(recv.end.key)));
        }
    }

    #[test]
    fn receives_are_taken_before_any_message_came() {
        let (hub, other) = (Arc::<Hub>::default(), Arc::<Hub>::default());
        let (here, there) = (net(&hub), net(&other));
        let (_send, recv) = connected(&here, &there);
        let into = recv.end.regions.add(&here.engine, Memory::from(vec![0; 8]), 2000).unwrap();
        for _ in 0..MAX_REQUESTS {
            taken(|| recv.receive(into, 2000, 8));
        }
        assert!(recv.receive(into, 2000, 8).unwrap().is_none(), "NCCL has no more outstanding");
    }

    #[test]
    fn receives_are_announced_though_only_sends_are_tested() {
        let (hub, other) = (Arc::<Hub>::default(), Arc::<Hub>::default());
        let (here, there) = (net(&hub), net(&other));
        const LEN: usize = 200_000;
        let memory = || Memory::from(vec![1; LEN]);
        let exchange = |to: &Net, from: &Net| {
            let (send, recv) = connected(to, from);
            let into = recv.end.regions.add(&to.engine, memory(), 1000).unwrap();
            let source = send.end.regions.add(&from.engine, memory(), 1000).unwrap();
            taken(|| recv.receive(into, 1000, LEN));
            // The second one stays under way: a process without a request to test would send
            // nothing.
            for _ in 0..2 {
                taken(|| send.send(source, 1000, LEN));
            }
            (send, recv)
        };
        let ends = [exchange(&here, &there), exchange(&there, &here)];
        let mut over = [false; 2];
        until("a send waits for a receive that is posted", || {
            for (over, (send, _)) in over.iter_mut().zip(&ends) {
                let progress = send.end.request(0).test();
                assert_eq!(send.end.request(1).test(), Progress::Pending);
                assert!(
                    progress != Progress::Failed,
                    "{:?}",
                    send.end.check().map_err(|e| e.to_string())
                );
                *over |= progress == Progress::Done { bytes: LEN as u64 };
            }
            over == [true; 2]
        });
    }

    #[test]
    fn what_is_posted_counts_though_it_is_heard_before_the_welcome() {
        let (hub, other) = (Arc::<Hub>::default(), Arc::<Hub>::default());
        let (here, there) = (net(&hub), net(&other));
        let memory = || Memory::from(vec![0; 8]);
        let from = |send: &SendEnd| send.end.regions.add(&there.engine, memory(), 1000).unwrap();
        let into = |recv: &RecvEnd| recv.end.regions.add(&here.engine, memory(), 1000).unwrap();
        let both = |send: &Request, recv: &Request| {
            until("a message is held for ever", || {
                send.test();
                recv.test() != Progress::Pending
            });
        };
        let engine = there.express.as_ref().unwrap().engine();
        let (first, firsts) = connected(&here, &there);
        let (source, target) = (from(&first), into(&firsts));
        until("no express way", || {
            let received = taken(|| firsts.receive(target, 1000, 8));
            both(taken(|| first.send(source, 1000, 8)), received);
            engine.peers().first().is_some_and(|peer| peer.flows().up > 0)
        });
        for _ in 0..50 {
            let (listener, mut attempt) = asked(&here, &there);
            let recv = accept(&here.hub, &listener).unwrap().unwrap();
            let target = into(&recv);
            let take = || taken(|| recv.receive(target, 1000, 8));
            let mut ahead: VecDeque<_> = (0..MAX_REQUESTS).map(|_| take()).collect();
            let mut send = None;
            until("not connected", || {
                // As some other connection of the process does.
                engine.progress();
                send = there.advance(&mut attempt).unwrap();
                send.is_some()
            });
            let send = send.unwrap();
            let source = from(&send);
            for _ in 0..WINDOW + 1 {
                let received = ahead.pop_front().unwrap_or_else(take);
                both(taken(|| send.send(source, 1000, 8)), received);
            }
            drop((other.remove(send.end.key), hub.remove(recv.end.key)));
        }
    }
}
