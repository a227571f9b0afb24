//! Faults of the network, and interference with a run by tests.

use std::time::Duration;

use super::{Action, Injection, Simulation};
use crate::network::{ConnectionId, Direction};
use crate::oracle::OpId;
use crate::scenario::Fault;
use crate::tap::Trick;
use crate::world::Actor;

/// Idle time of the nodes after which a run without a natural end is over: by then all late data has arrived.
const LAST_WORDS: Duration = Duration::from_millis(100);

impl Simulation {
    /// Injects one fault, and schedules the next; or ends the faults, when it is time.
    pub(super) fn run_chaos(&mut self) {
        if self.calm {
            return self.look_for_end();
        }
        let chaos = &self.scenario.chaos;
        let calm_at = polyrail_proto::Time::default().after(chaos.calm_at);
        if chaos.faults.is_empty() || self.world.now() >= calm_at {
            self.calm = true;
            for rail in 0..self.world.network.rails() {
                self.world.network.set_up(rail, rail < chaos.heals);
                self.world.network.slow_down(rail, 1);
            }
            self.end_tampering();
            self.world.poke_all();
            return self.look_for_end();
        }
        let fault = chaos.faults[self.world.rng.index(chaos.faults.len())];
        let pause = chaos.pause.as_nanos() as u64;
        self.strike(fault);
        let next = self.world.now().after(Duration::from_nanos(self.world.rng.below(pause)));
        self.world.clock.wake(Actor::Chaos, next.min(calm_at));
    }

    /// Detects the end of a run with a rail down for good, in which nodes retry forever.
    fn look_for_end(&mut self) {
        if self.scenario.chaos.heals >= self.world.network.rails() {
            return;
        }
        let idle = self.is_idle();
        self.over = idle && std::mem::replace(&mut self.was_idle, idle);
        if !self.over {
            self.world.clock.wake_in(Actor::Chaos, LAST_WORDS);
        }
    }

    /// Performs the injection that the test requested at this step.
    pub(super) fn injected(&mut self, injection: Injection) {
        match injection {
            Injection::Cancel => {
                for index in 0..self.world.oracle.operations().len() {
                    self.act(Action::Cancel(OpId(index as u32)));
                }
            }
            Injection::DropRegion(node) => self.act(Action::Drop(node, 0)),
            Injection::Reset => {
                for id in self.world.network.open() {
                    self.world.reset(id);
                }
            }
            Injection::HalfOpen => {
                for id in self.world.network.open() {
                    self.world.half_open(id);
                }
            }
            Injection::RailDown => self.take_down(0, Duration::from_millis(5)),
            Injection::Kill(node) => self.kill(node),
        }
    }

    /// Slows a rail to 1/`divisor` of its rate, and further until it is dead.
    pub(super) fn slow_down(&mut self, rail: usize, divisor: u64) {
        if self.calm {
            return;
        }
        self.world.network.slow_down(rail, divisor);
        if divisor < 1000 {
            let after = Duration::from_micros(200);
            self.plan(after, Action::RailSlower(rail, divisor * 3));
        } else {
            self.take_down(rail, Duration::from_millis(3));
            self.world.network.slow_down(rail, 1);
        }
    }

    fn strike(&mut self, fault: Fault) {
        let rail = self.world.rng.index(self.world.network.rails());
        let pause = Duration::from_micros(self.world.rng.below(8000));
        match fault {
            Fault::Reset => {
                if let Some(id) = self.some_connection() {
                    self.world.reset(id);
                }
            }
            Fault::HalfOpen => {
                if let Some(id) = self.some_connection() {
                    self.world.half_open(id);
                }
            }
            Fault::Stall => {
                if let Some(id) = self.some_connection() {
                    let direction = [Direction::Data, Direction::Acks][self.world.rng.index(2)];
                    let until = self.world.now().after(pause);
                    self.world.network.link(id, direction).stall(until);
                    self.world.poke(id, direction);
                }
            }
            Fault::RailDown => self.take_down(rail, pause),
            Fault::Blackout => {
                for rail in 0..self.world.network.rails() {
                    self.take_down(rail, pause);
                }
            }
            Fault::Slow => {
                let divisor = self.world.rng.between(1, 100);
                self.world.network.slow_down(rail, divisor);
            }
            Fault::Dying => self.slow_down(rail, 2),
            Fault::Tamper => {
                if let Some(id) = self.some_connection() {
                    self.tamper(id);
                }
            }
        }
    }

    /// Makes the attacker on the path change the next data.
    fn tamper(&mut self, id: ConnectionId) {
        let direction = [Direction::Data, Direction::Acks][self.world.rng.index(2)];
        let trick = match self.world.rng.index(7) {
            0 => Trick::Flip,
            1 => Trick::Cut,
            2 => Trick::Noise,
            3 => Trick::Drop,
            4 => Trick::Repeat,
            5 => Trick::Swap,
            _ => Trick::Replay(self.some_record()),
        };
        if let Some(tap) = self.world.network.link(id, direction).tap() {
            tap.arm(trick);
        }
    }

    /// Last record of a random connection, in either direction.
    fn some_record(&mut self) -> Vec<u8> {
        let all: Vec<ConnectionId> = self.world.network.all().collect();
        let id = all[self.world.rng.index(all.len())];
        let direction = [Direction::Data, Direction::Acks][self.world.rng.index(2)];
        let tap = self.world.network.link(id, direction).tap();
        tap.map(|tap| tap.last().to_vec()).unwrap_or_default()
    }

    /// Stops all attackers.
    fn end_tampering(&mut self) {
        for id in self.world.network.all() {
            for direction in [Direction::Data, Direction::Acks] {
                if let Some(tap) = self.world.network.link(id, direction).tap() {
                    tap.disarm();
                    self.world.tally.tricks += tap.tricks();
                }
            }
        }
    }

    fn take_down(&mut self, rail: usize, pause: Duration) {
        self.world.network.set_up(rail, false);
        self.plan(pause, Action::RailUp(rail));
    }

    fn some_connection(&mut self) -> Option<ConnectionId> {
        let open = self.world.network.open();
        (!open.is_empty()).then(|| open[self.world.rng.index(open.len())])
    }
}
