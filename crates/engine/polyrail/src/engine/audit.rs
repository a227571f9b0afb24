//! The watchdog: finds work that no thread attends to, and gets it done.
//!
//! Nothing depends on it. Posters announce their work. If a poster forgets to, the work waits until some event happens
//! to move it. The control thread finds such work, wakes threads for it, and counts it, so that tests and
//! users see it.

use std::sync::atomic::Ordering;

use polyrail_proto::FlowIndex;
use polyrail_sys::threads::monotonic_ns;

use crate::engine::peer::PeerShared;
use crate::engine::state::EngineShared;
use crate::wake::ALL;

impl EngineShared {
    /// Makes threads send work that was left alone at several looks in a row, between which nothing else moved.
    pub(crate) fn audit(&self, peer: &PeerShared) {
        // Work waits for the next call where callers drive.
        if self.settings.caller_driven {
            return;
        }
        let sent = peer.links.flows.iter().map(|flow| flow.stats.tx_chunks.get()).sum();
        if peer.life.looks.note(sent, self.is_left_alone(peer, monotonic_ns())) {
            self.count_rescue(peer.name(), "something to send was left alone");
            peer.wake.announce(ALL);
        }
    }

    /// Counts and logs a missing wake-up.
    pub(crate) fn count_rescue(&self, of: &str, what: &str) {
        self.pace.rescues.add(1);
        tracing::warn!(target: "polyrail::engine", of, "{what}; please report this");
    }

    /// Whether there is work to send that was announced to no thread, or only to threads that sleep with an idle flow.
    fn is_left_alone(&self, peer: &PeerShared, now: u64) -> bool {
        let tx = peer.tx();
        if !tx.sender.has_work() && peer.posted.is_empty() {
            return false;
        }
        if peer.flows_up() == 0 || peer.wake.is_posting() {
            return false;
        }
        let is_idle = |index: usize| {
            let flow = &peer.links.flows[index];
            let takes = flow.up.load(Ordering::Acquire)
                && flow.rests_until.load(Ordering::Relaxed) < now
                && tx.sender.in_flight(FlowIndex(index as u32)) == 0
                && tx.sender.has_room(FlowIndex(index as u32))
                && !tx.sender.is_denied(FlowIndex(index as u32));
            takes
                && peer.wake.claim(peer.wake.place_of(flow.proxy))
                && self.proxies.all[flow.proxy].doorbell.is_asleep()
        };
        !peer.wake.is_announced() || (0..peer.links.flows.len()).any(is_idle)
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use polyrail_config::Config;
    use polyrail_proto::Time;

    use super::*;
    use crate::api::engine::Engine;
    use crate::engine::peer_handle::Peer;

    const LONG: Duration = Duration::from_secs(30);

    fn engines() -> (Engine, Engine, Peer) {
        // With more channels another proxy may look for work at that time.
        let one = [("rails", "127.0.0.1"), ("channels", "1")];
        let config =
            one.iter().try_fold(Config::builder(), |config, (name, value)| config.set(name, value));
        let config = config.unwrap().build().unwrap();
        let engine = || Engine::builder().config(config.clone()).build().unwrap();
        let (a, b) = (engine(), engine());
        let to_b = a.add_peer(&b.metadata()).unwrap();
        a.notify(&to_b, b"first").unwrap().wait(LONG).unwrap().unwrap();
        assert_eq!(a.stats().rescues, 0, "posts announce");
        (a, b, to_b)
    }

    #[test]
    fn what_is_announced_to_nobody_is_sent_after_a_while_and_counted() {
        let (a, _b, to_b) = engines();
        // Work that is not announced, as a forgotten wake-up would leave it.
        to_b.shared.tx().ask(Time(monotonic_ns()));
        // Makes the control thread look.
        let _watch = a.watch(&to_b);
        let began = Instant::now();
        while to_b.shared.tx().sender.is_busy() || a.stats().rescues == 0 {
            assert!(began.elapsed() < LONG, "{}", a.dump());
            std::thread::yield_now();
        }
        assert_eq!(a.stats().rescues, 1);
    }

    #[test]
    fn what_a_thread_that_was_not_rung_moves_is_counted() {
        let (a, b, to_b) = engines();
        let from_a = b.shared().peer(a.shared().card.instance).expect("it has connected");
        let wake = &to_b.shared.wake;
        let sends = wake.threads().next().expect("one sends");
        let doorbell = &a.shared().proxies.all[sends].doorbell;
        // With something in flight that is not acknowledged meanwhile, the thread wakes up for checks.
        let held = from_a.rx();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                a.notify(&to_b, b"second").unwrap().detach();
                // This thread may have sent it. Then the other one sleeps without a check until it knows.
                doorbell.ring();
                let began = Instant::now();
                let wait = |until: &dyn Fn() -> bool| {
                    while !until() {
                        assert!(began.elapsed() < LONG, "{}", a.dump());
                        std::thread::yield_now();
                    }
                };
                // The thread may be awake for a check just when the work comes.
                while a.stats().rescues == 0 {
                    wait(&|| doorbell.is_asleep());
                    to_b.shared.tx().ask(Time(monotonic_ns()));
                    wake.resume(0);
                    wait(&|| !to_b.shared.tx().sender.has_work());
                }
            });
        });
        drop(held);
    }
}
