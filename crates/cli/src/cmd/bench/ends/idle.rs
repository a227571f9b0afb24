//! Limits on how long a client keeps its turn at the serving end while it asks and moves nothing.

use std::sync::Weak;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use polyrail::{Engine, Totals};
use polyrail_report::exit;

use crate::fault::Fault;

/// Time since the client being served last asked for something or moved payload.
pub(super) struct Idle(Mutex<State>);

struct State {
    has_asked: bool,
    since: Instant,
    looked: Instant,
    moved_bytes: u64,
}

impl Idle {
    /// Starts the time. `is_opened`: the engine was opened at a client's request. It may be the last of many whose
    /// turns come one after another.
    pub(super) fn new(is_opened: bool) -> Self {
        let now = Instant::now();
        Self(Mutex::new(State { has_asked: is_opened, since: now, looked: now, moved_bytes: 0 }))
    }

    /// Notes that the client asked for something other than a sign of life.
    pub(super) fn note_question(&self) {
        let mut state = self.0.lock();
        state.has_asked = true;
        state.since = Instant::now();
    }

    /// Refuses a client that never asked anything, and one that has been idle for too long while another one waits.
    /// `own` and `others` are the engines that serve the client.
    pub(super) fn check(
        &self,
        other_waits: bool,
        own: &Engine,
        others: &[Weak<Engine>],
    ) -> Result<(), Fault> {
        let mut state = self.0.lock();
        let waited = state.since.elapsed();
        let refused = |most| match waited > most {
            true => {
                let text = format!("it asked nothing for {} s", waited.as_secs());
                Err(Fault::new(exit::PEER, text))
            }
            false => Ok(()),
        };
        if !state.has_asked {
            return refused(FIRST_QUESTION);
        }
        if !other_waits || state.looked.elapsed() < LOOK {
            return Ok(());
        }
        state.looked = Instant::now();
        let others = others.iter().filter_map(Weak::upgrade);
        let others: u64 = others.map(|engine| bytes(engine.stats().totals)).sum();
        let moved = bytes(own.stats().totals) + others;
        // Keep-alive messages move a few bytes, too, and a closed engine leaves the sum.
        let is_moving = moved.abs_diff(state.moved_bytes) > KEEP_ALIVE_BYTES;
        state.moved_bytes = moved;
        if is_moving {
            state.since = Instant::now();
            return Ok(());
        }
        refused(IDLE_MAX)
    }
}

fn bytes(totals: Totals) -> u64 {
    totals.tx_bytes + totals.rx_bytes + totals.shared_bytes + totals.peer_copy_bytes
}

/// Limit for the first question of a client.
const FIRST_QUESTION: Duration = Duration::from_secs(10);
/// Limit for a client that is being served while another one waits: as long as a client waits for an answer.
const IDLE_MAX: Duration = Duration::from_secs(120);
/// Interval between checks of the counters.
const LOOK: Duration = Duration::from_secs(5);
const KEEP_ALIVE_BYTES: u64 = 4096;

#[cfg(test)]
mod tests {
    use polyrail::Config;

    use super::*;

    fn idle_for(seconds: u64, has_asked: bool) -> Idle {
        let before = |seconds| Instant::now().checked_sub(Duration::from_secs(seconds)).unwrap();
        let (since, looked) = (before(seconds), before(seconds));
        Idle(Mutex::new(State { has_asked, since, looked, moved_bytes: 0 }))
    }

    #[test]
    fn only_an_idle_client_loses_its_turn_and_only_while_another_one_waits() {
        let config = Config::builder().set("rails", "127.0.0.1").unwrap().build().unwrap();
        let engine = Engine::builder().config(config).build().unwrap();
        let check = |idle: &Idle, other_waits| idle.check(other_waits, &engine, &[]).is_ok();
        assert!(check(&idle_for(9, false), true) && !check(&idle_for(11, false), false));
        assert!(check(&idle_for(119, true), true) && check(&idle_for(999, true), false));
        assert!(!check(&idle_for(121, true), true));
        let idle = idle_for(121, true);
        idle.note_question();
        assert!(check(&idle, true));
        let moving = idle_for(121, true);
        moving.0.lock().moved_bytes = 1 << 20;
        assert!(check(&moving, true));
    }
}
