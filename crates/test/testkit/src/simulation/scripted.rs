//! A script in the simulated world.

use std::time::Duration;

use super::{Action, Simulation, Violation};
use crate::network::RailSettings;
use crate::oracle::{Kind, OpId, Outcome, Posting};
use crate::scenario::Scenario;
use crate::script::{CHUNK_BYTES, Order, REGION_BYTES, REGIONS, Report, Script, Seen, Step};

/// Time for which a held rail stands still before the script continues, so that all possible events happen.
const HELD: Duration = Duration::from_millis(5);

impl Simulation {
    /// Creates the world of scripts: one rail, one flow each way, and users who follow the script.
    pub fn scripted(seed: u64) -> Self {
        let mut scenario = Scenario::calm();
        scenario.rails =
            vec![RailSettings { rate: 1_000_000_000, latency: Duration::from_micros(20) }];
        scenario.node.channels = 1;
        scenario.node.chunk_bytes = CHUNK_BYTES;
        scenario.node.silence = Duration::from_secs(30);
        scenario.node.stall = Duration::from_millis(200);
        scenario.regions = vec![REGION_BYTES as usize; REGIONS as usize];
        scenario.load.operations = 0;
        Self::new(&scenario, seed)
    }

    /// Performs the script. The world must be one of [`Self::scripted`].
    ///
    /// # Errors
    /// The first violation of an invariant, or a step that waits in vain.
    pub fn perform(mut self, script: &Script) -> Result<Report, Violation> {
        let is_settled = |it: &Self| it.nodes.iter().all(|node| node.is_up() && node.is_idle());
        self.go_on(|it| it.calm && is_settled(it))?;
        let mut report = Report::default();
        // Operations by number in the script.
        let mut ids = Vec::new();
        for (number, step) in script.steps().iter().enumerate() {
            match *step {
                Step::Post(order) => ids.push(self.follow(order)?),
                Step::Cancel(operation) => {
                    self.act(Action::Cancel(ids[operation]));
                }
                Step::Drop(node, slot) => self.act(Action::Drop(node, slot)),
                Step::Hold => self.world.network.set_up(0, false),
                Step::Cut => {
                    for id in self.world.network.open() {
                        self.world.reset(id);
                    }
                }
                Step::Release => {
                    let until = self.world.now().after(HELD);
                    self.plan(HELD, Action::RailUp(0));
                    self.go_on(|it| it.world.now() >= until)?;
                    let is_open = |(operation, id): (usize, &OpId)| {
                        let is_open = self.world.oracle.operation(*id).outcome.is_none();
                        (is_open && script.counts_as_open(operation)).then_some(operation)
                    };
                    let open = ids.iter().enumerate().filter_map(is_open).collect();
                    report.seen.push((number, Seen::Open(open)));
                }
                Step::Await(operation) => {
                    let id = ids[operation];
                    self.go_on(|it| it.world.oracle.operation(id).outcome.is_some())?;
                    report.seen.push((number, self.seen(operation, &ids)));
                }
                Step::Settle => self.go_on(is_settled)?,
                Step::Close(node) => self.nodes[node].close(&mut self.world),
            }
        }
        for (node, id) in &self.world.notices {
            let operation = ids.iter().position(|known| known == id);
            report.notified[*node].extend(operation);
        }
        Ok(report)
    }

    fn follow(&mut self, order: Order) -> Result<OpId, Violation> {
        let Order { node, kind, notify, len, slot, within } = order;
        let (source, destination) = order.ends();
        let lens = if kind == Kind::Notify { Vec::new() } else { vec![len] };
        let posting = Posting { kind, node, source, destination, lens, notify };
        let world = &mut self.world;
        let (memories, rng) = (&mut world.memories, &mut world.rng);
        let Some(id) = world.oracle.post_in(memories, rng, posting, Some(slot)) else {
            world.oracle.violate("there is no room for an operation of the script");
            return Err(self.violation());
        };
        let deadline = within.map(|within| self.world.now().after(within));
        self.nodes[node].post(&mut self.world, id, deadline);
        Ok(id)
    }

    fn seen(&self, operation: usize, ids: &[OpId]) -> Seen {
        let known = self.world.oracle.operation(ids[operation]);
        let send = known.partner().filter(|_| matches!(known.posting.kind, Kind::Receive { .. }));
        let moved = send.map_or(known, |send| self.world.oracle.operation(send));
        let end = match &known.outcome {
            Some(Outcome::Failed(why)) => {
                Err(why.strip_prefix("refused by the peer: ").unwrap_or(why).to_owned())
            }
            _ => Ok(moved.bytes()),
        };
        let met = send.filter(|_| end.is_ok());
        let met = met.and_then(|send| ids.iter().position(|id| *id == send));
        Seen::Over { operation, end, met }
    }

    /// Continues until a condition holds.
    fn go_on(&mut self, holds: impl Fn(&Self) -> bool) -> Result<(), Violation> {
        while !holds(self) && self.world.oracle.violation().is_none() {
            // Scripts register no region in the place of a dropped one, and add no peer again.
            self.world.dropped.clear();
            self.world.lost.clear();
            match self.world.clock.next_turn() {
                Some(actor) => self.turn(actor),
                None => self.world.oracle.violate("the script waits for what never comes"),
            }
        }
        match self.world.oracle.violation() {
            Some(_) => Err(self.violation()),
            None => Ok(()),
        }
    }
}
