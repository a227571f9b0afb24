//! A run: two nodes, their users, and the faults, in virtual time.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use polyrail_proto::Time;

use crate::liar::Liar;
use crate::memory::Memory;
use crate::network::{Network, NodeId};
use crate::node::Node;
use crate::oracle::{Kind, OpId, Oracle, Posting};
use crate::rng::Rng;
use crate::scenario::{Fault, Scenario};
use crate::world::{Actor, Tally, World};

mod chaos;
mod restart;
mod scripted;
mod users;

/// Maximum turns of a run. Normal runs take some thousand; a run that reaches this loops forever.
const TURNS_MAX: u64 = 5_000_000;

/// A scenario with a seed, which determine the whole run.
#[derive(Debug)]
pub struct Simulation {
    scenario: Scenario,
    seed: u64,
    world: World,
    nodes: Vec<Node>,
    dead: Vec<bool>,
    /// Planned actions of users and chaos, by time.
    agenda: BTreeMap<(Time, u64), Action>,
    posted: usize,
    injection: Option<(u64, Injection)>,
    liar: Option<Liar>,
    lies_left: u32,
    calm: bool,
    was_idle: bool,
    over: bool,
    /// Number of the first operation that users post when nothing else is in progress.
    last: Option<usize>,
}

/// Interference with a run from outside, at a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Injection {
    /// The user cancels all operations in progress.
    Cancel,
    /// The user of that node drops its first region.
    DropRegion(NodeId),
    /// Every connection is torn.
    Reset,
    /// Every connection is torn for its sender only.
    HalfOpen,
    /// The first rail is down for a while.
    RailDown,
    /// The process of that node is killed, and restarted later if the scenario says so.
    Kill(NodeId),
}

/// Result of a run without a violation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    pub steps: u64,
    /// Duration in virtual time.
    pub took: Duration,
    /// Counters of events.
    pub tally: Tally,
}

/// Result of a run with a violation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The seed of the run.
    pub seed: u64,
    /// Step in which it showed.
    pub step: u64,
    pub at: Time,
    pub what: String,
    /// State of the nodes.
    pub state: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, step, at, what, state } = self;
        write!(f, "seed {seed:#x}, step {step}, {} us: {what}\n{state}", at.0 / 1000)
    }
}

#[derive(Clone, Debug)]
enum Action {
    Post(Posting, u32),
    Cancel(OpId),
    Drop(NodeId, u32),
    Register(NodeId, u32),
    RailUp(usize),
    RailSlower(usize, u64),
    Reset(crate::network::ConnectionId),
    Kill(NodeId),
    Restart(NodeId),
    Add(NodeId),
}

impl Simulation {
    /// Creates a run at its beginning.
    pub fn new(scenario: &Scenario, seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let memory = |rng: &mut Rng| {
            let mut memory = Memory::default();
            scenario.regions.iter().for_each(|len| memory.add(*len, rng));
            memory
        };
        let mut memories = vec![memory(&mut rng), memory(&mut rng)];
        let is_hostile = scenario.chaos.faults.contains(&Fault::Tamper);
        let payload_is_exposed = is_hostile && scenario.node.sealed.is_none();
        let corruption = scenario.node.corrupt_per_mille > 0 || payload_is_exposed;
        let oracle = Oracle::new(&mut memories, corruption, &mut rng);
        let mut network = Network::new(2, &scenario.rails, scenario.buffers);
        if is_hostile {
            network = network.tapped(Rng::new(rng.bits()));
        }
        let world = World { is_hostile, ..World::new(network, memories, oracle, rng) };
        let nodes = [(0, 1), (1, 0)].map(|ends| Node::new(&world, ends, scenario.node));
        let mut simulation = Self {
            scenario: scenario.clone(),
            seed,
            world,
            nodes: nodes.into(),
            dead: vec![false; 2],
            agenda: BTreeMap::new(),
            posted: 0,
            injection: None,
            liar: None,
            lies_left: scenario.chaos.lies,
            calm: false,
            was_idle: false,
            over: false,
            last: None,
        };
        simulation.begin();
        simulation
    }

    /// Injects an interference before the step with that number.
    #[must_use]
    pub fn inject(mut self, step: u64, injection: Injection) -> Self {
        self.injection = Some((step, injection));
        self
    }

    /// Runs to the end.
    ///
    /// # Errors
    /// The first violation of an invariant.
    pub fn run(mut self) -> Result<Summary, Violation> {
        loop {
            while let Some(actor) = self.world.clock.next_turn() {
                self.turn(actor);
                if self.world.now() > Time::default().after(self.scenario.bound) {
                    self.world.oracle.violate("not over within the bound of virtual time");
                }
                if self.world.clock.turns() > TURNS_MAX {
                    self.world.oracle.violate("everybody is busy, but nothing comes of it");
                }
                if self.world.oracle.violation().is_some() {
                    return Err(self.violation());
                }
                if std::mem::take(&mut self.over) {
                    break;
                }
            }
            // No event is left.
            if !self.give_up_unpaired() && !self.try_once_more() {
                break;
            }
            self.was_idle = false;
            self.world.soon(Actor::Chaos, 1000);
        }
        self.check_end();
        match self.world.oracle.violation() {
            Some(_) => Err(self.violation()),
            None => Ok(Summary {
                steps: self.world.clock.turns(),
                took: self.world.now().since(Time::default()),
                tally: self.world.tally,
            }),
        }
    }

    fn begin(&mut self) {
        (0..self.nodes.len()).for_each(|node| self.wake_flows(node));
        self.world.soon(Actor::User, 50_000);
        self.world.soon(Actor::Chaos, self.scenario.chaos.pause.as_nanos() as u64);
        if self.lies_left > 0 {
            self.liar = Some(Liar::new(&mut self.world.rng));
            self.world.soon(Actor::Liar, 50_000);
        }
        if let Some((node, after)) = self.scenario.chaos.kill {
            self.plan(after, Action::Kill(node));
        }
    }

    fn turn(&mut self, actor: Actor) {
        if let Some((step, injection)) = self.injection
            && step == self.world.clock.turns()
        {
            self.injected(injection);
        }
        let dead = match actor {
            Actor::Tx(node, _) | Actor::Rx(node, _) | Actor::Timer(node) => self.dead[node],
            Actor::Accept(id) => self.dead[self.world.network.connection(id).server],
            Actor::Link(..) | Actor::User | Actor::Chaos | Actor::Liar => false,
        };
        if dead {
            return;
        }
        let world = &mut self.world;
        match actor {
            Actor::Link(id, direction) => world.move_bytes(id, direction),
            Actor::Accept(id) => {
                let server = world.network.connection(id).server;
                self.nodes[server].accept(world, id);
            }
            Actor::Tx(node, flow) => self.nodes[node].run_tx(world, flow),
            Actor::Rx(node, flow) => self.nodes[node].run_rx(world, flow),
            Actor::Timer(node) => self.nodes[node].run_timer(world),
            Actor::User => self.run_user(),
            Actor::Chaos => self.run_chaos(),
            Actor::Liar => self.run_liar(),
        }
    }

    /// A turn of the liar, which sends data to the first node, whose memory it must not access.
    fn run_liar(&mut self) {
        let (Some(liar), world) = (&mut self.liar, &mut self.world) else { return };
        let now = world.now();
        if let Err(what) = liar.turn(now, &world.memories[0], &mut world.rng) {
            world.oracle.violate(what);
        }
        self.lies_left -= 1;
        if self.lies_left > 0 {
            world.soon(Actor::Liar, 30_000);
        }
    }

    fn act(&mut self, action: Action) {
        let world = &mut self.world;
        match action {
            Action::Post(posting, attempts) => self.post(posting, attempts),
            Action::Cancel(id) => {
                let node = world.oracle.operation(id).posting.node;
                if !self.dead[node] {
                    self.nodes[node].cancel(world, id);
                }
            }
            Action::Drop(node, slot) if !self.dead[node] => {
                self.nodes[node].drop_region(world, slot);
            }
            Action::Drop(..) => {}
            Action::Register(node, slot) => {
                world.memories[node].register(slot, &mut world.rng);
                world.soon(Actor::User, 1000);
            }
            Action::RailUp(rail) if self.calm && rail >= self.scenario.chaos.heals => {}
            Action::RailUp(rail) => {
                world.network.set_up(rail, true);
                world.poke_all();
            }
            Action::RailSlower(rail, divisor) => self.slow_down(rail, divisor),
            Action::Reset(id) => world.reset(id),
            Action::Kill(node) => self.kill(node),
            Action::Restart(node) => self.restart(node),
            Action::Add(node) => self.add(node),
        }
    }

    fn plan(&mut self, after: Duration, action: Action) {
        let at = self.world.now().after(after);
        let number = self.world.rng.bits();
        self.agenda.insert((at, number), action);
        self.world.clock.wake(Actor::User, at);
    }

    /// True if nodes wait only for partners of sends and receives.
    fn is_idle(&self) -> bool {
        let unpaired = self.unpaired().len();
        let open = self.world.oracle.operations().iter().filter(|o| o.is_open());
        self.agenda.is_empty() && open.count() == unpaired && self.nodes.iter().all(Node::is_idle)
    }

    fn unpaired(&self) -> Vec<OpId> {
        let operations = self.world.oracle.operations().iter().enumerate();
        operations
            .filter(|(_, o)| o.is_open() && o.partner().is_none())
            .filter(|(_, o)| matches!(o.posting.kind, Kind::Send { .. } | Kind::Receive { .. }))
            .map(|(index, _)| OpId(index as u32))
            .collect()
    }

    /// Ends sends and receives without a partner, once nothing else is in progress. Returns true if there were any.
    fn give_up_unpaired(&mut self) -> bool {
        let unpaired = self.unpaired();
        for id in &unpaired {
            self.act(Action::Cancel(*id));
        }
        !unpaired.is_empty()
    }

    fn check_end(&mut self) {
        let whole = !self.dead.contains(&true);
        match self.liar.as_mut().map(Liar::end) {
            Some(Ok(counts)) => self.world.tally.lies = counts,
            Some(Err(what)) => self.world.oracle.violate(what),
            None => {}
        }
        for (node, engine) in self.nodes.iter().enumerate() {
            if whole && !(engine.is_idle() && engine.active_count() == 0) {
                self.world.oracle.violate(format!("node {node} is not idle at the end"));
            }
        }
        self.check_last();
        self.world.oracle.finish(&self.world.memories, whole);
    }

    fn violation(&self) -> Violation {
        let nodes: Vec<String> = self.nodes.iter().map(Node::describe).collect();
        let open = self.world.oracle.operations().iter().enumerate();
        let open = open.filter(|(_, o)| o.outcome.is_none());
        let open: Vec<String> = open
            .map(|(index, o)| {
                format!("operation {index}: {:?} of node {}", o.posting.kind, o.posting.node)
            })
            .collect();
        Violation {
            seed: self.seed,
            step: self.world.clock.turns(),
            at: self.world.now(),
            what: self.world.oracle.violation().unwrap_or("nothing").to_owned(),
            state: [nodes, open].concat().join("\n"),
        }
    }
}
