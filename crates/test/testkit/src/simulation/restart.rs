//! Processes that are killed and restarted, and users who add their lost peer again.

use std::time::Duration;

use polyrail_proto::InstanceId;

use super::{Action, Simulation};
use crate::link::Leave;
use crate::network::{Direction, NodeId};
use crate::node::Node;
use crate::oracle::{Kind, Outcome, Posting};
use crate::world::Actor;

/// Pause until a user tries again to add a peer whose last session is not quiet yet.
const AGAIN: Duration = Duration::from_micros(100);
/// Bytes of the writes at the end.
const LAST_BYTES: u64 = 1000;

impl Simulation {
    pub(super) fn kill(&mut self, node: NodeId) {
        if std::mem::replace(&mut self.dead[node], true) {
            return;
        }
        // Operations that users posted at the end may fail because of the kill: they try once more.
        self.last = None;
        self.world.oracle.node_lost(node);
        for id in self.world.network.open() {
            let connection = self.world.network.connection(id);
            // The kernel of the node reports it at once, or its machine is gone and keepalive detects that.
            let after = Duration::from_micros(self.world.rng.below(20) * 1000);
            if connection.client == node {
                self.world.network.client_leaves(id, Leave::Vanish);
            } else {
                self.world.network.server_leaves(id, Leave::Vanish);
            }
            self.world.poke(id, Direction::Data);
            self.plan(after, Action::Reset(id));
        }
        if let Some(after) = self.scenario.chaos.restart {
            self.plan(after, Action::Restart(node));
        }
    }

    /// Restarts the process as another run of the engine: it has no state of the one before, and registers its memory
    /// again.
    pub(super) fn restart(&mut self, node: NodeId) {
        let world = &mut self.world;
        let before = world.instances[node];
        world.instances[node] = InstanceId(before.0 + 2);
        for slot in 0..world.memories[node].slots() as u32 {
            world.memories[node].unregister(slot);
            world.oracle.region_dropped(&mut world.memories, &mut world.rng, node, slot);
            world.memories[node].register(slot, &mut world.rng);
        }
        // The new run has done that.
        world.dropped.retain(|(owner, _)| *owner != node);
        let is_done = |it: &Action| matches!(it, Action::Register(owner, _) if *owner == node);
        self.agenda.retain(|_, action| !is_done(action));
        self.nodes[node] = Node::new(world, (node, 1 - node), self.scenario.node);
        self.dead[node] = false;
        self.wake_flows(node);
        self.world.soon(Actor::User, 1000);
    }

    pub(super) fn wake_flows(&mut self, node: NodeId) {
        for flow in 0..self.scenario.node.channels * self.scenario.node.sockets {
            self.world.soon(Actor::Tx(node, flow), 10_000);
        }
    }

    /// Adds a node's peer again, for its user. The user of a killed node does so as it starts.
    pub(super) fn add(&mut self, node: NodeId) {
        if !self.dead[node] && !self.nodes[node].add(&mut self.world) {
            self.plan(AGAIN, Action::Add(node));
        }
    }

    /// Posts a write by each user that must be done, when nothing else is in progress and peers that lost each other
    /// must come back. Returns true if it posts them now.
    pub(super) fn try_once_more(&mut self) -> bool {
        if !self.scenario.chaos.comes_back || self.last.is_some() {
            return false;
        }
        self.last = Some(self.world.oracle.operations().len());
        for node in 0..self.nodes.len() {
            let (source, destination) = (Some(node), Some(1 - node));
            let (kind, lens, notify) = (Kind::Write, vec![LAST_BYTES], true);
            self.post(Posting { kind, node, source, destination, lens, notify }, 0);
        }
        true
    }

    pub(super) fn check_last(&mut self) {
        let Some(last) = self.last else { return };
        let last = &self.world.oracle.operations()[last..];
        let done = last.iter().filter(|it| it.outcome == Some(Outcome::Done)).count();
        if done < self.nodes.len() {
            self.world.oracle.violate("peers that came back do not reach each other");
        }
    }
}
