//! Waits of callers: asleep, or with `progress = caller` moving data themselves.

use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use polyrail_proto::progress::POLL_NS;

use crate::engine::peer::Owner;
use crate::engine::state::EngineShared;

impl EngineShared {
    /// With `progress = caller`: looks for events and moves data. Returns whether any moved.
    pub(crate) fn help(self: &Arc<Self>) -> bool {
        // Callers drive a single proxy.
        self.settings.caller_driven && !self.is_forked() && self.proxies.driven[0].try_poll(self)
    }

    /// With `progress = caller`: polls the task again at once, because no other thread makes progress.
    pub(crate) fn poll_again(&self, waker: &Waker) {
        if self.settings.caller_driven {
            waker.wake_by_ref();
        }
    }

    /// Waits until `over`, at most until the given moment. Sleeps by `sleep` (which may return early), or moves data.
    pub(crate) fn wait_until(
        self: &Arc<Self>,
        until: Option<Instant>,
        over: impl Fn() -> bool,
        sleep: impl Fn(Duration),
    ) {
        if self.is_forked() {
            return;
        }
        let spin = self.config.spin.of_calls();
        if until.is_some_and(|until| Instant::now() >= until) {
            // A look: at most one pass, without waiting for another thread that drives.
            if !over() {
                self.help();
            }
            return;
        }
        if self.settings.caller_driven {
            let stop = || over() || self.is_closing();
            while !stop() {
                self.proxies.driven[0].drive(self, spin, until, &stop);
                if stop() || until.is_some_and(|until| Instant::now() >= until) {
                    return;
                }
            }
            return;
        }
        // A round trip, with a device's work in between.
        const POLL: Duration = Duration::from_nanos(2 * POLL_NS);
        let polls = self.pace.pollers.are_allowed() && self.pace.waits.are_short();
        let spin = if polls { spin.max(POLL) } else { spin };
        let start = Instant::now();
        self.wait_asleep(start, spin, until, over, sleep);
        self.pace.waits.note(u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX));
    }

    /// Polls for `spin` from `start`, then sleeps.
    fn wait_asleep(
        &self,
        start: Instant,
        spin: Duration,
        until: Option<Instant>,
        over: impl Fn() -> bool,
        sleep: impl Fn(Duration),
    ) {
        /// The thread that ends what is awaited wakes the waiter.
        const FOREVER: Duration = Duration::from_secs(86_400);
        while !over() {
            let now = Instant::now();
            if until.is_some_and(|until| now >= until) {
                return;
            }
            if now - start < spin {
                std::hint::spin_loop();
                continue;
            }
            sleep(until.map_or(FOREVER, |until| until - now));
        }
    }
}

/// `Self::help` and the other calls here are the methods above, which take precedence over those of the trait.
impl Owner for EngineShared {
    fn is_forked(&self) -> bool {
        Self::is_forked(self)
    }

    fn look_after(&self) {
        self.control.start_ticking();
    }

    fn help(self: Arc<Self>) -> bool {
        Self::help(&self)
    }

    fn wait_until(
        self: Arc<Self>,
        until: Option<Instant>,
        over: &dyn Fn() -> bool,
        sleep: &dyn Fn(Duration),
    ) {
        Self::wait_until(&self, until, over, sleep);
    }

    fn poll_again(&self, waker: &Waker) {
        Self::poll_again(self, waker);
    }
}
