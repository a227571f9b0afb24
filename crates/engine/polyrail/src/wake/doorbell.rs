//! Wake-up of a progress thread, without a system call when it is awake.

use std::io;
use std::time::Duration;

use crate::sync::{AtomicU32, Ordering, PollEvent, Poller};

const AWAKE: u32 = 0;
/// Asleep until a ring, an event, or a check of flows in flight.
const ASLEEP: u32 = 1;
/// The same, or until a time at which the thread has something to do.
const DOZING: u32 = 2;
const RUNG: u32 = 3;

/// The end of a sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slept {
    /// Not begun: there is something to do.
    No,
    /// Ended by a ring or an event, or something was due.
    Woken,
    /// Ended by its limit, with nothing due and no ring.
    Alone,
}

/// The doorbell of a progress thread, and the poller that the thread sleeps on.
///
/// The thread calls [`Doorbell::begin`], looks for work, and if there is none calls [`Doorbell::sleep`]. Others make
/// work and then [`Doorbell::ring`]. Either the thread sees the work, or it does not sleep, or it is woken.
#[derive(Debug)]
pub(crate) struct Doorbell {
    state: AtomicU32,
    pub(crate) poller: Poller,
}

impl Doorbell {
    pub(crate) fn new(poller: Poller) -> Self {
        Self { state: AtomicU32::new(AWAKE), poller }
    }

    /// Announces work: the thread looks for it, now or as soon as it is awake.
    pub(crate) fn ring(&self) {
        self.ring_for(false);
    }

    /// Rings for work of a peer. `is_announced`: earlier work of the peer is announced to the thread. An earlier ring that
    /// is unanswered covers both; the load leaves the cache line to the thread. If there is none, the earlier poster may
    /// have lost its CPU before it rang. Or the thread sleeps because its flows could not send the earlier work.
    pub(super) fn ring_for(&self, is_announced: bool) {
        if is_announced && self.state.load(Ordering::Acquire) == RUNG {
            return;
        }
        if matches!(self.state.swap(RUNG, Ordering::AcqRel), ASLEEP | DOZING) {
            self.poller.wake();
        }
    }

    /// Wakes the thread that sleeps on the poller, or ends its next sleep. Announces no work.
    pub(crate) fn rouse(&self) {
        self.poller.wake();
    }

    /// Called by the thread before it looks for work. Returns whether it was rung since it last began. If another
    /// thread sleeps here, that thread stays asleep, and the next ring wakes it.
    pub(crate) fn begin(&self) -> bool {
        // Acquire pairs with the release in `ring_for`: work from before the ring is seen now.
        self.state.compare_exchange(RUNG, AWAKE, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Whether the thread was rung since it began to look.
    pub(crate) fn is_rung(&self) -> bool {
        self.state.load(Ordering::Acquire) == RUNG
    }

    /// Whether the thread sleeps, has nothing due, and was not rung.
    pub(crate) fn is_asleep(&self) -> bool {
        self.state.load(Ordering::Acquire) == ASLEEP
    }

    /// Polls for a ring, for this many rounds of some 40 ns.
    pub(crate) fn linger(&self, rounds: u32) {
        for _ in 0..rounds {
            if self.state.load(Ordering::Relaxed) == RUNG {
                return;
            }
            std::hint::spin_loop();
        }
    }

    /// Sleeps until a ring, an event, or the end of `limit`, unless the thread was rung since it began to look.
    /// `has_nothing`: a last look for work that neither rings nor is an event, unless the other end knows of the sleep.
    /// One thread at a time.
    pub(crate) fn sleep(
        &self,
        events: &mut Vec<PollEvent>,
        limit: Option<Duration>,
        is_due: bool,
        has_nothing: impl FnOnce() -> bool,
    ) -> io::Result<Slept> {
        let asleep = if is_due { DOZING } else { ASLEEP };
        let change = |from, to| {
            self.state.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
        };
        if !change(AWAKE, asleep) {
            return Ok(Slept::No);
        }
        let waited = has_nothing().then(|| self.poller.wait(events, limit));
        let was_rung = !change(asleep, AWAKE);
        let Some(waited) = waited else { return Ok(Slept::No) };
        waited?;
        let is_alone = !was_rung && !is_due && events.is_empty();
        Ok(if is_alone { Slept::Alone } else { Slept::Woken })
    }
}
