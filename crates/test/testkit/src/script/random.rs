//! Random scripts, of steps whose outcome depends on the script only.

use super::{CHUNK_BYTES, Order, REGIONS, Script, Step};
use crate::network::NodeId;
use crate::rng::Rng;

/// Events of a random script. Each is a few steps.
const EVENTS: u32 = 12;

/// A script being built.
struct Draft {
    script: Script,
    rng: Rng,
    /// Sends and receives that may wait for each other. Their peers know of them.
    loose: Vec<usize>,
    /// Regions from this slot on were never used.
    unused: u32,
}

impl Script {
    /// Creates the script of `seed`.
    pub fn random(seed: u64) -> Self {
        let (script, rng) = (Self::default(), Rng::new(seed));
        let mut draft = Draft { script, rng, loose: Vec::new(), unused: 1 };
        for _ in 0..EVENTS {
            draft.event();
        }
        for operation in std::mem::take(&mut draft.loose) {
            draft.script.cancel(operation);
        }
        draft.script.settle();
        draft.script.to_the_end()
    }
}

impl Draft {
    fn event(&mut self) {
        let node = self.rng.index(2);
        match self.rng.below(8) {
            0 => {
                let len = self.rng.size(3 * CHUNK_BYTES as usize) as u64;
                let write = Order::write(node, len);
                self.script.done(if self.rng.per_mille(500) { write.notifying() } else { write });
            }
            1 => {
                let len = self.rng.size(3 * CHUNK_BYTES as usize) as u64;
                self.script.done(Order::read(node, len));
            }
            2..=4 => {
                let half = self.half(node);
                self.script.settle();
                self.loose.push(half);
            }
            5 => {
                self.change_a_mind();
                self.script.settle();
            }
            6 => self.hold(),
            _ => self.drop_region(node),
        }
    }

    /// Posts a send or a receive of less than a chunk, which may be too long for its partner.
    fn half(&mut self, node: NodeId) -> usize {
        let len = self.rng.between(1, CHUNK_BYTES);
        let tag = self.rng.below(2);
        self.script.post(match self.rng.per_mille(500) {
            true => Order::send(node, tag, len),
            false => Order::receive(node, tag, len),
        })
    }

    /// Cancels a send or a receive, which may be over.
    fn change_a_mind(&mut self) {
        if !self.loose.is_empty() {
            let index = self.rng.index(self.loose.len());
            self.script.cancel(self.loose[index]);
        }
    }

    /// Holds the rail, which may be cut, while users post and cancel.
    fn hold(&mut self) {
        self.script.then(Step::Hold);
        let mut halves = Vec::new();
        for _ in 0..self.rng.between(1, 5) {
            let node = self.rng.index(2);
            match self.rng.below(5) {
                0 => {
                    self.script.post(Order::notify(node));
                }
                1 => {
                    let len = self.rng.between(1, CHUNK_BYTES);
                    let write = self.script.post(Order::write(node, len));
                    if self.rng.per_mille(500) {
                        self.script.cancel(write);
                    }
                }
                2 | 3 => halves.push(self.half(node)),
                _ => self.change_a_mind(),
            }
        }
        if self.rng.per_mille(500) {
            self.script.then(Step::Cut);
        }
        self.script.then(Step::Release);
        self.script.settle();
        self.loose.append(&mut halves);
    }

    /// Drops a region while bytes are in flight to it.
    fn drop_region(&mut self, node: NodeId) {
        if self.unused == REGIONS {
            return;
        }
        let slot = self.unused;
        self.unused += 1;
        let len = self.rng.between(1, CHUNK_BYTES);
        self.script.then(Step::Hold);
        let (order, at) = match self.rng.below(3) {
            0 => (Order::write(node, len), 1 - node),
            1 => (Order::read(node, len), 1 - node),
            _ => (Order::receive(node, 7, len), node),
        };
        let operation = self.script.post(order.at(slot));
        self.script.then(Step::Drop(at, slot));
        if order.node == at {
            self.script.wait(operation);
        }
        self.script.then(Step::Release);
        self.script.settle();
    }
}
