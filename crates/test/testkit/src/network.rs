//! The network between nodes: rails that carry connections, and their faults.

use std::time::Duration;

use polyrail_proto::hello::RefusedCode;
use polyrail_proto::{FlowIndex, InstanceId, Time};

use crate::link::{Advance, Ended, Lane, Leave, Link};
use crate::rng::Rng;

pub type NodeId = usize;

/// Number of a connection, never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u32);

/// The two streams of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Direction {
    /// From the side that connected: chunks.
    Data,
    /// Back to it: acknowledgements.
    Acks,
}

/// A rail of a scenario.
#[derive(Clone, Copy, Debug)]
pub struct RailSettings {
    /// Bytes per second, each way.
    pub rate: u64,
    /// Time on the wire, one way.
    pub latency: Duration,
}

/// Sizes of the buffers of a connection, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Buffers {
    /// At the writer.
    pub send: usize,
    /// At the reader.
    pub receive: usize,
}

/// First bytes of a client on a connection.
#[derive(Clone, Copy, Debug)]
pub struct Hello {
    pub from: InstanceId,
    /// Run of the peer that it wants to reach.
    pub to: InstanceId,
    /// Number of the attempt, with sessions of both ends; see [`polyrail_proto::life::Epoch`].
    pub epoch: u64,
}

/// All rails and all connections of the run.
#[derive(Debug)]
pub struct Network {
    rails: Vec<Rail>,
    connections: Vec<Connection>,
    buffers: Buffers,
    /// Random numbers of the attacker on the path of all connections, if there is one.
    adversary: Option<Rng>,
}

/// One path between two nodes.
#[derive(Debug)]
struct Rail {
    settings: RailSettings,
    /// Lanes by the number of the sending node.
    lanes: Vec<Lane>,
}

/// A connection from `client`, which sends data, to `server`, which acknowledges it.
#[derive(Debug)]
pub struct Connection {
    /// Index of the rail that carries it.
    pub rail: usize,
    pub client: NodeId,
    /// Node that was connected to.
    pub server: NodeId,
    /// Index of the client's flow.
    pub flow: FlowIndex,
    /// First message of the client.
    pub hello: Hello,
    /// True if the server has accepted it.
    pub accepted: bool,
    /// Reason of the server's refusal, if it has refused the client.
    refused: Option<RefusedCode>,
    data: Link,
    acks: Link,
    client_failed: bool,
    client_left: bool,
    server_left: bool,
}

impl Network {
    /// Creates a network of `nodes` nodes. All rails join every pair.
    pub fn new(nodes: usize, rails: &[RailSettings], buffers: Buffers) -> Self {
        let rail = |settings: &RailSettings| {
            let (rate, latency) = (settings.rate, settings.latency);
            let lane = Lane { rate, latency, up: true, busy_until: Time::default() };
            Rail { settings: *settings, lanes: vec![lane; nodes] }
        };
        Self {
            rails: rails.iter().map(rail).collect(),
            connections: Vec::new(),
            buffers,
            adversary: None,
        }
    }

    /// Adds an attacker on the path of every connection.
    #[must_use]
    pub fn tapped(mut self, rng: Rng) -> Self {
        self.adversary = Some(rng);
        self
    }

    /// Number of rails.
    pub fn rails(&self) -> usize {
        self.rails.len()
    }

    /// Begins a connection of `flow`. Returns `None` if the rail is down.
    pub fn connect(
        &mut self,
        rail: usize,
        (client, server): (NodeId, NodeId),
        flow: FlowIndex,
        hello: Hello,
    ) -> Option<ConnectionId> {
        if !self.is_up(rail) {
            return None;
        }
        let mut link = || {
            let link = Link::new(self.buffers.send, self.buffers.receive);
            match &mut self.adversary {
                Some(rng) => link.tapped(Rng::new(rng.bits())),
                None => link,
            }
        };
        self.connections.push(Connection {
            rail,
            client,
            server,
            flow,
            hello,
            accepted: false,
            refused: None,
            data: link(),
            acks: link(),
            client_failed: false,
            client_left: false,
            server_left: false,
        });
        Some(ConnectionId(self.connections.len() as u32 - 1))
    }

    /// State of a connection.
    pub fn connection(&self, id: ConnectionId) -> &Connection {
        &self.connections[id.0 as usize]
    }

    /// Accepts the client, as its server.
    pub fn accept(&mut self, id: ConnectionId) {
        self.connections[id.0 as usize].accepted = true;
    }

    /// Refuses the client, as its server, and closes the server's end.
    pub fn refuse(&mut self, id: ConnectionId, code: RefusedCode) {
        self.connections[id.0 as usize].refused = Some(code);
        self.server_leaves(id, Leave::Finish);
    }

    /// True if the server has answered the client's hello or closed its end.
    pub fn is_answered(&self, id: ConnectionId) -> bool {
        let connection = &self.connections[id.0 as usize];
        connection.accepted || connection.server_left
    }

    /// The server's refusal, unless the connection broke before the client received it.
    pub fn refusal(&self, id: ConnectionId) -> Option<RefusedCode> {
        let connection = &self.connections[id.0 as usize];
        connection.refused.filter(|_| !connection.client_failed)
    }

    /// True if bytes of the server would find that the client has left: its machine answers them with a reset.
    pub fn is_abandoned(&self, id: ConnectionId) -> bool {
        let connection = &self.connections[id.0 as usize];
        connection.client_left && self.is_up(connection.rail)
    }

    /// Connections of which at least one end is open.
    pub fn open(&self) -> Vec<ConnectionId> {
        let open = |c: &Connection| !(c.client_left && c.server_left);
        let all = self.connections.iter().enumerate();
        all.filter(|(_, c)| open(c)).map(|(index, _)| ConnectionId(index as u32)).collect()
    }

    /// All connections of the run.
    pub fn all(&self) -> impl Iterator<Item = ConnectionId> + use<> {
        (0..self.connections.len() as u32).map(ConnectionId)
    }

    /// A stream of a connection, for its writer and its reader.
    pub fn link(&mut self, id: ConnectionId, direction: Direction) -> &mut Link {
        let connection = &mut self.connections[id.0 as usize];
        match direction {
            Direction::Data => &mut connection.data,
            Direction::Acks => &mut connection.acks,
        }
    }

    /// Moves the bytes of one stream as far as they get by `now`.
    pub fn advance(
        &mut self,
        now: Time,
        id: ConnectionId,
        direction: Direction,
        rng: &mut Rng,
    ) -> Advance {
        let connection = &mut self.connections[id.0 as usize];
        let (link, from) = match direction {
            Direction::Data => (&mut connection.data, connection.client),
            Direction::Acks => (&mut connection.acks, connection.server),
        };
        link.advance(now, &mut self.rails[connection.rail].lanes[from], rng)
    }

    /// True if the client knows that its connection is dead.
    pub fn client_sees_failure(&self, id: ConnectionId) -> bool {
        let connection = &self.connections[id.0 as usize];
        connection.client_failed || connection.acks.ended().is_some()
    }

    /// End of the connection for the server, if it is over.
    pub fn server_sees_end(&self, id: ConnectionId) -> Option<Ended> {
        self.connections[id.0 as usize].data.ended()
    }

    /// Closes the client's end.
    pub fn client_leaves(&mut self, id: ConnectionId, how: Leave) {
        let connection = &mut self.connections[id.0 as usize];
        connection.client_left = true;
        connection.data.leave(how);
        connection.acks.reader_leaves();
    }

    /// Closes the server's end.
    pub fn server_leaves(&mut self, id: ConnectionId, how: Leave) {
        let connection = &mut self.connections[id.0 as usize];
        connection.server_left = true;
        connection.acks.leave(how);
        connection.data.reader_leaves();
    }

    /// Tears a connection. Both ends learn of it, the server after the bytes it has received.
    pub fn reset(&mut self, id: ConnectionId) {
        let connection = &mut self.connections[id.0 as usize];
        connection.client_failed = true;
        connection.data.tear();
        connection.acks.tear();
    }

    /// Tears a connection for its client only: the bytes it has sent still arrive.
    pub fn half_open(&mut self, id: ConnectionId) {
        self.connections[id.0 as usize].client_failed = true;
    }

    /// Takes a rail up or down. Bytes on a rail that is down stay there.
    pub fn set_up(&mut self, rail: usize, up: bool) {
        for lane in &mut self.rails[rail].lanes {
            lane.up = up;
        }
    }

    /// True if a rail is up.
    pub fn is_up(&self, rail: usize) -> bool {
        self.rails[rail].lanes.iter().all(|lane| lane.up)
    }

    /// Slows a rail down: its rate becomes 1/`divisor` of the configured one.
    pub fn slow_down(&mut self, rail: usize, divisor: u64) {
        let rail = &mut self.rails[rail];
        for lane in &mut rail.lanes {
            lane.rate = (rail.settings.rate / divisor.max(1)).max(1);
        }
    }

    /// Time on the wire of a rail.
    pub fn latency(&self, rail: usize) -> Duration {
        self.rails[rail].settings.latency
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HELLO: Hello = Hello { from: InstanceId(0), to: InstanceId(1), epoch: 1 };

    fn network() -> (Network, ConnectionId) {
        let rail = RailSettings { rate: 100_000_000, latency: Duration::from_micros(5) };
        let buffers = Buffers { send: 1000, receive: 1000 };
        let mut network = Network::new(2, &[rail, rail], buffers);
        let id = network.connect(1, (0, 1), FlowIndex(1), HELLO).unwrap();
        (network, id)
    }

    /// Delivers all bytes that can be delivered.
    fn settle(network: &mut Network, id: ConnectionId) {
        let mut rng = Rng::new(3);
        for direction in [Direction::Data, Direction::Acks] {
            let mut now = Time(0);
            while let Some(next) = network.advance(now, id, direction, &mut rng).next {
                now = next.max(now);
            }
        }
    }

    #[test]
    fn a_half_open_connection_still_brings_what_its_client_gave_up() {
        let (mut network, id) = network();
        network.link(id, Direction::Data).write(b"late duplicate");
        network.half_open(id);
        assert!(network.client_sees_failure(id));
        network.client_leaves(id, Leave::Finish);
        settle(&mut network, id);
        assert_eq!(network.link(id, Direction::Data).read(100), b"late duplicate");
        assert_eq!(network.server_sees_end(id), Some(Ended::Finished));
    }

    #[test]
    fn a_server_that_leaves_is_noticed_by_its_client() {
        let (mut network, id) = network();
        network.accept(id);
        network.server_leaves(id, Leave::Abort);
        settle(&mut network, id);
        assert!(network.client_sees_failure(id));
        assert_eq!(network.open(), [id]);
        network.client_leaves(id, Leave::Abort);
        assert!(network.open().is_empty());
    }

    #[test]
    fn nothing_connects_over_a_rail_that_is_down() {
        let (mut network, id) = network();
        network.set_up(1, false);
        assert!(network.connect(1, (0, 1), FlowIndex(1), HELLO).is_none());
        assert!(network.connect(0, (0, 1), FlowIndex(0), HELLO).is_some());
        network.link(id, Direction::Data).write(b"stuck");
        settle(&mut network, id);
        assert_eq!(network.link(id, Direction::Data).readable(), 0);
        network.set_up(1, true);
        settle(&mut network, id);
        assert_eq!(network.link(id, Direction::Data).readable(), 5);
    }
}
