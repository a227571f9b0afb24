//! Holder of a proxy's core, and the work that it does when it gives the core back.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use parking_lot::MutexGuard;

use super::Proxy;
use super::core::Core;
use crate::engine::state::EngineShared;

/// A core while this thread drives it. Its drop sends what others left meanwhile.
pub(super) struct DrivenCore<'a> {
    // Fields are dropped in this order.
    core: MutexGuard<'a, Core>,
    _then: SendsLeft<'a>,
}

struct SendsLeft<'a> {
    proxy: &'a Proxy,
    engine: &'a Arc<EngineShared>,
}

impl<'a> DrivenCore<'a> {
    pub(super) fn new(
        core: MutexGuard<'a, Core>,
        proxy: &'a Proxy,
        engine: &'a Arc<EngineShared>,
    ) -> Self {
        Self { core, _then: SendsLeft { proxy, engine } }
    }
}

impl Drop for DrivenCore<'_> {
    fn drop(&mut self) {
        let SendsLeft { proxy, engine } = self._then;
        proxy.rouse_for(&mut self.core, engine, true);
    }
}

impl Drop for SendsLeft<'_> {
    fn drop(&mut self) {
        // A proxy with its own thread is woken instead.
        if self.engine.settings.caller_driven {
            self.proxy.send_left_hastily(self.engine);
        }
    }
}

impl Deref for DrivenCore<'_> {
    type Target = Core;

    fn deref(&self) -> &Core {
        &self.core
    }
}

impl DerefMut for DrivenCore<'_> {
    fn deref_mut(&mut self) -> &mut Core {
        &mut self.core
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::atomic::Ordering;
    use std::sync::mpsc;
    use std::time::{Duration, Instant};

    use polyrail_config::Config;

    use polyrail_sys::threads::monotonic_ns;

    use crate::api::engine::Engine;
    use crate::base::driving::is_driving;
    use crate::engine::proxy_handle::ProxyCommand;
    use crate::proxy::{Proxy, Reads};

    const LONG: Duration = Duration::from_secs(30);

    fn engine(settings: &[(&str, &str)]) -> Engine {
        let builder = Config::builder().set("rails", "127.0.0.1").unwrap();
        let set = |builder: polyrail_config::ConfigBuilder, pair: &(&str, &str)| {
            builder.set(pair.0, pair.1).unwrap()
        };
        let config = settings.iter().fold(builder, set).build().unwrap();
        Engine::builder().config(config).build().unwrap()
    }

    /// The thread that holds a lock may have no CPU for long.
    #[test]
    fn to_post_and_to_poll_waits_for_no_lock_of_the_peer_and_what_is_left_is_sent() {
        for mode in [&[][..], &[("progress", "caller")]] {
            let (a, b) = (engine(mode), engine(mode));
            let to_b = a.add_peer(&b.metadata()).unwrap();
            a.notify(&to_b, b"first").unwrap().detach();
            assert_eq!(b.wait_notification(LONG).expect("it comes").data, b"first");
            let (posts, posted) = mpsc::channel();
            let held = to_b.shared.tx();
            std::thread::scope(|scope| {
                let (a, to_b) = (&a, &to_b);
                scope.spawn(move || {
                    let transfer = a.notify(to_b, b"second").unwrap();
                    let _ = transfer.try_wait();
                    transfer.detach();
                    posts.send(()).unwrap();
                });
                let is_posted = posted.recv_timeout(Duration::from_secs(10)).is_ok();
                drop(held);
                assert!(is_posted, "{mode:?}: it waits for the lock");
            });
            // No more calls to a.
            assert_eq!(b.wait_notification(LONG).expect("it comes").data, b"second");
        }
    }

    /// The thread goes on with the core that it locked to note what had come.
    #[test]
    fn a_thread_that_wakes_up_keeps_the_core() {
        for mode in [&[][..], &[("progress", "caller")]] {
            let a = engine(mode);
            // No other thread drives it.
            let proxy = Proxy::new("apart".to_owned(), Vec::new(), false).unwrap();
            let is_held = Cell::new(true);
            let stop = || {
                // So a callback that the question calls waits for no other pass.
                is_held.set(is_held.get() && proxy.try_lock().is_none() && is_driving());
                // Ends its next sleep at once.
                proxy.doorbell.rouse();
                proxy.counters.sleeps.load(Ordering::Relaxed) > 0
            };
            let until = Instant::now() + LONG;
            proxy.drive_until(a.shared(), Duration::ZERO, Some(until), &stop);
            assert!(Instant::now() < until && is_held.get(), "{mode:?}");
            assert!(proxy.try_lock().is_some(), "{mode:?}: it gives the core back");
        }
    }

    /// Others may have driven since the caller gave the core back.
    #[test]
    fn a_caller_that_is_about_to_sleep_asks_once_more() {
        let a = engine(&[("progress", "caller")]);
        let until = Some(Instant::now() + LONG);
        let proxy = Proxy::new("apart".to_owned(), Vec::new(), false).unwrap();
        let asked = Cell::new(0);
        // Called in its pass, and when it sits.
        let stop = || asked.replace(asked.get() + 1) > 0;
        proxy.drive_until(a.shared(), Duration::ZERO, until, &stop);
        assert_eq!(proxy.counters.sleeps.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn who_does_not_get_the_core_answers_no_ring() {
        let a = engine(&[("progress", "caller")]);
        let proxy = Proxy::new("apart".to_owned(), Vec::new(), false).unwrap();
        proxy.doorbell.ring();
        let held = proxy.lock();
        proxy.drive_until(a.shared(), Duration::ZERO, None, &|| true);
        assert!(proxy.doorbell.is_rung());
        drop(held);
        proxy.drive_until(a.shared(), Duration::ZERO, None, &|| true);
        assert!(!proxy.doorbell.is_rung());
    }

    #[test]
    fn a_caller_makes_a_pass_for_a_wake_up_that_another_took() {
        let a = engine(&[("progress", "caller")]);
        for owes in [false, true] {
            let proxy = Proxy::new("apart".to_owned(), Vec::new(), false).unwrap();
            proxy.try_core(a.shared()).unwrap().debts.note_look(owes);
            let passes = Cell::new(0);
            let stop = || {
                // Ends its next sleep at once.
                proxy.doorbell.rouse();
                let has_slept = proxy.counters.sleeps.load(Ordering::Relaxed) > 0;
                if !has_slept {
                    passes.set(proxy.counters.passes.load(Ordering::Relaxed));
                }
                has_slept
            };
            let until = Some(Instant::now() + LONG);
            proxy.drive_until(a.shared(), Duration::ZERO, until, &stop);
            assert_eq!(passes.get(), 1 + u64::from(owes));
            // The caller has left without a pass for what woke it.
            assert!(!proxy.lock().debts.may_sleep());
        }
    }

    #[test]
    fn a_caller_puts_off_what_has_to_wait_for_a_lock() {
        let (a, b) = (engine(&[]), engine(&[]));
        let to_b = a.add_peer(&b.metadata()).unwrap();
        // Only this test drives it.
        let proxy = Proxy::new("apart".to_owned(), Vec::new(), false).unwrap();
        let due = &to_b.shared.links.unsettled;
        due.store(1, Ordering::Release);
        proxy.command(ProxyCommand::Settle { peer: to_b.shared.clone(), says_bye: false });
        let pass = |reads| {
            proxy.pass(&mut proxy.lock(), a.shared(), monotonic_ns(), reads);
            due.load(Ordering::Acquire)
        };
        let held = to_b.shared.tx();
        assert_eq!([Reads::No, Reads::Hastily].map(pass), [1, 1]);
        drop(held);
        assert_eq!(pass(Reads::Yes), 0);
    }
}
