//! Sessions with the peer: hellos, their answers, and the results of a session's end.

use polyrail_proto::hello::RefusedCode;
use polyrail_proto::life::{Action, Epoch, Greeter, Live, PeerEvent, PeerState, Step, overdue};
use polyrail_proto::{Failure, InstanceId, Time};

use super::rx::RxFlow;
use super::{Node, Sabotage};
use crate::link::Leave;
use crate::network::ConnectionId;
use crate::world::{Actor, World};

impl Node {
    /// Handles a connection that reaches this node with a hello.
    pub fn accept(&mut self, world: &mut World, id: ConnectionId) {
        let connection = world.network.connection(id);
        let hello = connection.hello;
        let waiting = self.greeters.remove(&id);
        if world.network.is_answered(id) || !world.network.is_up(connection.rail) {
            return;
        }
        if hello.to != self.instance {
            return refuse(world, id, RefusedCode::WrongInstance);
        }
        // One session at a time: the one with another run of the peer must end first.
        if hello.from != self.peer_instance && !self.is_lost() {
            return refuse(world, id, RefusedCode::Limit);
        }
        let new = || Greeter::new(hello.epoch, world.now().since(Time::default()));
        let mut greeter = match waiting.map_or_else(new, Ok) {
            Ok(greeter) => greeter,
            Err(why) => return world.oracle.violate(format!("an honest peer: {why}")),
        };
        let session = greeter.session();
        loop {
            let (live, parting) = (self.live(), self.parted.get(hello.from));
            let is_unused = || self.inbound.receiver.is_unused();
            match greeter.next(live, parting, true, is_unused) {
                Step::Welcome => return self.welcome(world, id, session),
                Step::Begin if self.is_quiet() => {
                    self.begin(world, hello.from);
                    return self.welcome(world, id, session);
                }
                // Something of the session before is still in progress.
                Step::Begin | Step::Wait => {
                    self.greeters.insert(id, greeter);
                    return world.soon(Actor::Accept(id), 1000);
                }
                Step::End(_) => self.lose_peer(world, PeerState::Lost),
                Step::EndBoth(_) => {
                    self.lose_peer(world, PeerState::Lost);
                    self.parted.entry(hello.from).end(session);
                    return refuse(world, id, RefusedCode::SessionOver);
                }
                Step::Probe => {
                    self.probe(world);
                    return refuse(world, id, RefusedCode::OtherSession);
                }
                Step::Refuse(code) => return refuse(world, id, code),
            }
        }
    }

    fn live(&self) -> Option<Live> {
        let has_flows_up = self.rx.iter().any(|rx| rx.connections().next().is_some());
        let Self { state, number: own, heard, .. } = *self;
        (!state.is_over()).then_some(Live { state, own, heard, has_flows_up })
    }

    fn welcome(&mut self, world: &mut World, id: ConnectionId, session: u32) {
        if self.heard != Some(session) {
            world.session_heard(self.peer);
        }
        self.heard = Some(session);
        let connection = world.network.connection(id);
        let (flow, client) = (connection.flow, connection.client);
        let epoch = Epoch(connection.hello.epoch).of_connection();
        let latency = world.network.latency(connection.rail);
        let rx = &mut self.rx[flow.0 as usize];
        if epoch <= rx.epoch {
            // An older attempt that was slower.
            return world.network.server_leaves(id, Leave::Abort);
        }
        rx.epoch = epoch;
        // The thread that owns the flow learns of it later. Meanwhile it continues to read the rest of the old stream.
        let at = world.now().after(latency * world.rng.below(20) as u32);
        if let Some((older, _)) = rx.next.replace((id, at)) {
            world.network.server_leaves(older, Leave::Abort);
        }
        world.network.accept(id);
        world.clock.wake(Actor::Rx(self.id, flow.0), at);
        world.clock.wake_in(Actor::Tx(client, flow.0), latency);
    }

    /// Sends something on the flows that are up, to check that their client is still there.
    fn probe(&self, world: &mut World) {
        for id in self.rx.iter().flat_map(RxFlow::connections) {
            if world.network.is_abandoned(id) {
                world.reset(id);
            }
        }
    }

    /// Applies an event to the peer, which may be lost because of it.
    pub(super) fn happens(&mut self, world: &mut World, event: PeerEvent) {
        match self.state.after(event) {
            (state, Action::End) => self.lose_peer(world, state),
            (state, _) => self.state = state,
        }
    }

    /// Runs the node's clock: deadlines, and whether the peer is still there.
    pub fn run_timer(&mut self, world: &mut World) {
        let now = world.now();
        let sending = self.outbound.handle_timeout(now);
        let (leaving, awaited) = self.inbound.handle_timeout(now);
        self.leaving.extend(leaving.into_iter().map(|it| (it, Failure::Deadline)));
        self.outbound.note_landed(now, self.landed);
        self.pump(world);
        let silence = self.outbound.sender.silence(now);
        if let Some(event) = overdue(self.settings.silence, None, silence, || false) {
            return self.happens(world, event);
        }
        let is_busy = self.outbound.sender.is_busy();
        let patience = is_busy.then(|| now.after(self.settings.silence - silence));
        if let Some(at) = [sending, awaited, patience].into_iter().flatten().min() {
            world.clock.wake(Actor::Timer(self.id), at);
        }
    }

    pub(super) fn is_lost(&self) -> bool {
        self.state.is_over()
    }

    /// Ends the session and everything in it.
    fn lose_peer(&mut self, world: &mut World, state: PeerState) {
        self.state = state;
        self.parted.end_session(self.peer_instance, state, self.heard);
        for flow in 0..self.tx.len() as u32 {
            self.drop_flow(world, flow);
            // The owner of the incoming flow closes it at its next turn.
            world.soon(Actor::Rx(self.id, flow), 1000);
        }
        world.lost.push(self.id);
        world.soon(Actor::User, 1000);
        self.outbound.lose();
        self.end_awaited(|_| true, Failure::PeerLost);
        self.pump(world);
    }

    /// Adds the peer for the user, by the metadata of its run. Returns false if something of a session that is over is
    /// still in progress. Then the user has to try again.
    pub fn add(&mut self, world: &mut World) -> bool {
        let peer = world.instances[self.peer];
        match self.state.after(PeerEvent::Add) {
            (_, Action::Begin) if !self.is_quiet() => false,
            (_, Action::Begin) => {
                // The end of the last session no longer prevents a new one.
                self.parted.entry(peer).state = PeerState::Unknown;
                self.begin(world, peer);
                true
            }
            _ => true,
        }
    }

    /// Begins a session with this run of the peer. The previous one is over and has nothing in progress.
    fn begin(&mut self, world: &mut World, peer: InstanceId) {
        if !self.handles.is_empty() {
            world.oracle.violate(format!("{:?} outlive their session", self.handles.keys()));
        }
        world.tally.sessions += 1;
        let mut fresh = Self::new(world, (self.id, self.peer), self.settings);
        if self.settings.sabotage == Sabotage::KeepsSession {
            std::mem::swap(&mut fresh.inbound, &mut self.inbound);
        }
        *self = Self {
            instance: self.instance,
            peer_instance: peer,
            number: self.number + 1,
            parted: std::mem::take(&mut self.parted),
            greeters: std::mem::take(&mut self.greeters),
            ..fresh
        };
        for flow in 0..self.tx.len() as u32 {
            world.soon(Actor::Tx(self.id, flow), 10_000);
        }
    }

    /// True if a session that is over has nothing in progress any more.
    fn is_quiet(&self) -> bool {
        let is_quiet = |rx: &RxFlow| rx.connections().next().is_none() && !rx.is_delivering();
        self.rx.iter().all(is_quiet)
            && self.landings.is_empty()
            && self.leaving.is_empty()
            && self.dropping.is_empty()
    }

    /// Run and session of the peer that this session communicates with.
    pub(super) fn heard_from(&self) -> (InstanceId, u32) {
        (self.peer_instance, self.heard.unwrap_or_default())
    }
}

/// Refuses a client, which learns it a moment later.
fn refuse(world: &mut World, id: ConnectionId, code: RefusedCode) {
    world.network.refuse(id, code);
    let connection = world.network.connection(id);
    let (client, flow) = (connection.client, connection.flow.0);
    let latency = world.network.latency(connection.rail);
    world.clock.wake_in(Actor::Tx(client, flow), latency);
}

#[cfg(test)]
mod tests {
    use polyrail_proto::FlowIndex;

    use super::*;
    use crate::memory::Memory;
    use crate::network::{Hello, Network};
    use crate::oracle::Oracle;
    use crate::rng::Rng;
    use crate::scenario::Scenario;

    fn world(scenario: &Scenario) -> World {
        let mut rng = Rng::new(1);
        let mut memories = vec![Memory::default(), Memory::default()];
        let oracle = Oracle::new(&mut memories, false, &mut rng);
        World::new(Network::new(2, &scenario.rails, scenario.buffers), memories, oracle, rng)
    }

    #[test]
    fn a_hello_that_waits_is_refused_after_some_tries() {
        let scenario = Scenario::calm();
        let mut world = world(&scenario);
        let mut node = Node::new(&world, (1, 0), scenario.node);
        // A session is over, and some of its data is still in flight.
        node.state = PeerState::Lost;
        node.dropping.push(0);
        let [from, to] = [0, 1].map(InstanceId);
        let epoch = Epoch::first(2).in_hello(None, false, false).0;
        let hello = Hello { from, to, epoch };
        let id = world.network.connect(0, (0, 1), FlowIndex(0), hello).unwrap();
        let mut tries = 0;
        while !world.network.is_answered(id) && tries < 100 {
            assert_eq!(node.greeters.len(), tries.min(1));
            node.accept(&mut world, id);
            tries += 1;
        }
        assert_eq!(world.network.refusal(id), Some(RefusedCode::OtherSession), "{tries} tries");
        assert!(tries > 1 && node.greeters.is_empty(), "{tries} tries");
    }
}
