//! The users of both nodes: they post operations, cancel some, and drop regions.

use std::time::Duration;

use super::{Action, Simulation};
use crate::oracle::{Kind, Posting};
use crate::scenario::Dish;
use crate::world::Actor;

/// Attempts of a user to find memory for an operation before skipping it.
const ATTEMPTS: u32 = 50;

impl Simulation {
    /// Lets users do everything that is due, and post the operations allowed now.
    pub(super) fn run_user(&mut self) {
        while let Some(entry) = self.agenda.first_entry()
            && entry.key().0 <= self.world.now()
        {
            let action = entry.remove();
            self.act(action);
        }
        for (node, slot) in std::mem::take(&mut self.world.dropped) {
            let pause = Duration::from_micros(self.world.rng.below(500));
            self.plan(pause, Action::Register(node, slot));
        }
        for node in std::mem::take(&mut self.world.lost) {
            if self.scenario.chaos.comes_back {
                let pause = Duration::from_micros(self.world.rng.below(2000));
                self.plan(pause, Action::Add(node));
            }
        }
        self.post_more();
        if let Some(((at, _), _)) = self.agenda.first_key_value() {
            self.world.clock.wake(Actor::User, *at);
        }
    }

    fn post_more(&mut self) {
        let load = &self.scenario.load;
        if self.posted >= load.operations || self.dead.contains(&true) {
            return;
        }
        let under_way = self.world.oracle.operations().iter().filter(|o| o.is_open());
        if under_way.count() < load.depth {
            let dish = match load.in_order {
                true => load.menu[self.posted % load.menu.len()],
                false => load.menu[self.world.rng.index(load.menu.len())],
            };
            self.posted += 1;
            self.order(dish);
            let pause = self.scenario.load.pause.as_nanos() as u64;
            self.world.soon(Actor::User, pause);
        }
    }

    fn order(&mut self, dish: Dish) {
        let node = self.world.rng.index(2);
        let peer = 1 - node;
        let lens = self.lens();
        let posting = |kind, source, destination, lens, notify| Posting {
            kind,
            node,
            source,
            destination,
            lens,
            notify,
        };
        match dish {
            Dish::Write | Dish::WriteNotify => {
                let notify = dish == Dish::WriteNotify;
                self.post(posting(Kind::Write, Some(node), Some(peer), lens, notify), 0);
            }
            Dish::Read => self.post(posting(Kind::Read, Some(peer), Some(node), lens, false), 0),
            Dish::Notify => self.post(posting(Kind::Notify, None, None, Vec::new(), true), 0),
            Dish::SendReceive => {
                let tag = self.world.rng.below(3);
                // Sometimes the receive is too short.
                let room = match self.world.rng.per_mille(100) {
                    true => lens.iter().sum::<u64>() / 2,
                    false => self.scenario.load.max_bytes,
                };
                let send = posting(Kind::Send { tag }, Some(node), None, lens, false);
                let rooms = vec![room / 2, room - room / 2];
                let receive = posting(Kind::Receive { tag }, None, Some(peer), rooms, false);
                let receive = Posting { node: peer, ..receive };
                let send_first = self.world.rng.per_mille(500);
                let (first, second) = if send_first { (send, receive) } else { (receive, send) };
                self.post(first, 0);
                let pause = Duration::from_nanos(self.world.rng.below(200_000));
                self.plan(pause, Action::Post(second, 0));
            }
        }
        if self.world.rng.per_mille(self.scenario.load.drops) {
            let slot = self.world.rng.index(self.scenario.regions.len()) as u32;
            let after = self.patience();
            let node = self.world.rng.index(2);
            self.plan(after, Action::Drop(node, slot));
        }
    }

    pub(super) fn post(&mut self, posting: Posting, attempts: u32) {
        let world = &mut self.world;
        let node = posting.node;
        if self.dead[node] {
            return;
        }
        let Some(id) = world.oracle.post(&mut world.memories, &mut world.rng, posting.clone())
        else {
            if attempts < ATTEMPTS {
                let pause = self.scenario.load.pause.max(Duration::from_micros(50));
                self.plan(pause, Action::Post(posting, attempts + 1));
            }
            return;
        };
        let (hurried, cancelled) = (self.scenario.load.hurried, self.scenario.load.cancelled);
        let is_hurried = self.world.rng.per_mille(hurried);
        let deadline = is_hurried.then(|| self.world.now().after(self.patience()));
        if self.world.rng.per_mille(cancelled) {
            let after = self.patience();
            self.plan(after, Action::Cancel(id));
        }
        self.nodes[node].post(&mut self.world, id, deadline);
    }

    fn patience(&mut self) -> Duration {
        Duration::from_nanos(self.world.rng.below(self.scenario.load.patience.as_nanos() as u64))
    }

    /// Lengths of the segments of an operation: often small, sometimes zero.
    fn lens(&mut self) -> Vec<u64> {
        let load = &self.scenario.load;
        let rng = &mut self.world.rng;
        let bytes = match rng.below(10) {
            0 => 0,
            1..=4 => rng.between(1, load.max_bytes.min(2048)),
            _ => rng.between(1, load.max_bytes),
        };
        let segments = rng.between(1, load.max_segments);
        let mut lens: Vec<u64> =
            (1..segments).map(|_| rng.below(2 * bytes / segments + 1)).collect();
        let used: u64 = lens.iter().sum();
        lens.push(bytes.saturating_sub(used));
        lens
    }
}
