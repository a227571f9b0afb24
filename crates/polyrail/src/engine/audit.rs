//! Looks for what must not be: something to send, and nobody who is going to send it.
//!
//! Nothing depends on it. Whoever makes work asks and wakes a proxy; if that is ever forgotten, the
//! work would wait for the next event by luck. Here it is found by the control thread, mended, and
//! counted, so that a test or a user sees that it happened.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use polyrail_proto::FlowIndex;
use polyrail_sys::threads::monotonic_ns;

use crate::engine::peer::PeerShared;
use crate::engine::state::EngineShared;

/// For how long work is left alone before it counts as forgotten, in ns. The control thread may look
/// twice within a microsecond, as each lost connection wakes it, while whoever has made the work
/// waits for a CPU before it asks. What is forgotten stays so.
const FORGOTTEN: u64 = 100_000_000;

/// What the looks at a peer saw, since work was first seen to be left alone.
#[derive(Debug, Default)]
pub(crate) struct Audit {
    /// Chunks sent by then, plus one; 0 if no work was left alone at the last look.
    left_at: AtomicU64,
    /// When that was.
    since: AtomicU64,
}

impl EngineShared {
    /// Has work sent that was left alone at each look for a while, in which nothing else moved:
    /// whoever has made it is between two lines for a moment only.
    pub(crate) fn audit(self: &Arc<Self>, peer: &Arc<PeerShared>) {
        // With callers at the wheel work waits for the next call.
        if self.settings.caller_driven {
            return;
        }
        let (audit, now) = (&peer.audit, monotonic_ns());
        let sent: u64 = peer.flows.iter().map(|flow| flow.stats.tx_chunks.get()).sum();
        let mark = if self.is_left_alone(peer, now) { sent + 1 } else { 0 };
        if audit.left_at.swap(mark, Ordering::Relaxed) != mark {
            audit.since.store(now, Ordering::Relaxed);
        }
        if mark == 0 || now - audit.since.load(Ordering::Relaxed) < FORGOTTEN {
            return;
        }
        audit.left_at.store(0, Ordering::Relaxed);
        self.rescues.add(1);
        tracing::warn!(target: "polyrail::engine", peer = peer.name(),
            "something to send was left alone; please report this");
        self.ask_all(peer);
    }

    /// Whether there is something to send and nobody is asked to, or who is asked sleeps with an
    /// idle flow.
    fn is_left_alone(&self, peer: &PeerShared, now: u64) -> bool {
        let tx = peer.tx();
        if !tx.sender.has_work() && peer.posted.is_empty() {
            return false;
        }
        // Whoever tells may have no CPU between asking and waking.
        if peer.flows_up() == 0 || peer.announcing.load(Ordering::Acquire) > 0 {
            return false;
        }
        let is_idle = |index: usize| {
            let flow = &peer.flows[index];
            let takes = flow.up.load(Ordering::Acquire)
                && flow.rests_until.load(Ordering::Relaxed) < now
                && tx.sender.in_flight(FlowIndex(index as u32)) == 0
                && tx.sender.has_room(FlowIndex(index as u32))
                && !tx.sender.is_denied(FlowIndex(index as u32));
            takes
                && peer.tx_proxies.wants(peer.tx_proxies.place_of(flow.proxy))
                && self.proxies.all[flow.proxy].is_asleep()
        };
        !peer.tx_proxies.wants_any() || (0..peer.flows.len()).any(is_idle)
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use polyrail_config::Config;
    use polyrail_proto::Time;

    use super::*;
    use crate::api::engine::Engine;

    #[test]
    fn what_nobody_is_told_of_is_sent_after_a_while_and_counted() {
        const LONG: Duration = Duration::from_secs(30);
        // With more channels another proxy may look for work at that time.
        let one = [("rails", "127.0.0.1"), ("channels", "1")];
        let config =
            one.iter().try_fold(Config::builder(), |config, (name, value)| config.set(name, value));
        let config = config.unwrap().build().unwrap();
        let engine = || Engine::builder().config(config.clone()).build().unwrap();
        let (a, b) = (engine(), engine());
        let to_b = a.add_peer(&b.metadata()).unwrap();
        a.notify(&to_b, b"first").unwrap().wait(LONG).unwrap().unwrap();
        assert_eq!(a.stats().rescues, 0, "whoever posts tells");
        // Work for which nobody is asked, as a forgotten wake-up would leave it.
        to_b.shared.tx().ask(Time(monotonic_ns()));
        // Has the control thread look.
        let _watch = a.watch(&to_b);
        let began = Instant::now();
        while to_b.shared.tx().sender.is_busy() || a.stats().rescues == 0 {
            assert!(began.elapsed() < LONG, "{}", a.dump());
            std::thread::yield_now();
        }
        assert_eq!(a.stats().rescues, 1);
    }
}
