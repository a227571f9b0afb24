//! The sleep of the thread that drives a proxy.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use polyrail_proto::progress::Outlook;
use polyrail_sys::PollEvent;
use polyrail_sys::threads::monotonic_ns;

use super::{DriveState, Proxy};
use crate::base::pause::{COPY_SLEEP, Pause};
use crate::engine::proxy_handle::ProxyCommand;
use crate::proxy::core::Core;
use crate::proxy::core_guard::DrivenCore;
use crate::wake::doorbell::Slept;

/// Maximum sleep of a caller. Then it checks whether its call is over.
const CALLER_SLEEP: Duration = Duration::from_millis(100);

/// Parameters of a proxy's sleep.
pub(super) struct Sleep {
    limit: Option<Duration>,
    /// Whether something must be done at its end that nothing announces. A check for stalls does not count: anything
    /// that can be moved then was left alone.
    is_due: bool,
    /// The outlook that the limit was made for.
    outlook: Outlook,
}

impl Proxy {
    /// Sleeps until there is work or the limit is over. Returns soon if another thread sleeps here. Returns how the
    /// sleep ended. Also returns the core, for this thread to drive next, after a sleep or after a last look that found
    /// work. A thread that slept gets no core only if its call is over.
    pub(super) fn sleep<'a>(
        &'a self,
        drive: &DriveState<'a>,
        sleep: &Sleep,
    ) -> (Slept, Option<DrivenCore<'a>>) {
        let engine = drive.engine;
        let Some(seat) = self.sleeper.sit() else {
            // Another thread sleeps here and will drive; look again soon.
            std::thread::sleep(Duration::from_micros(50));
            return (Slept::No, None);
        };
        let mut events = self.events.lock();
        let mut kept = None;
        // Look only after taking the seat: by then the previous sleeper has noted that it is awake. Other callers may
        // have driven since this thread gave the core back. This look sees their work, and later drivers rouse the
        // thread that sits.
        let has_nothing = || {
            let has_nothing = !engine.settings.caller_driven || {
                // Another caller may drive for long. This one checks meanwhile whether its own call is over.
                let Some(mut core) = self.try_core(engine) else { return false };
                let is_as_before = core.outlook() == sleep.outlook;
                let may_sleep = is_as_before && core.debts.may_sleep();
                let has_nothing = may_sleep && !drive.is_over() && core.may_sleep();
                if has_nothing {
                    core.debts.note_sleep(Some(sleep.outlook));
                } else {
                    core.is_awake();
                    kept = Some(core);
                }
                has_nothing
            };
            self.counters.sleeps.fetch_add(has_nothing.into(), Ordering::Relaxed);
            has_nothing
        };
        let slept = self.doorbell.sleep(&mut events, sleep.limit, sleep.is_due, has_nothing);
        let slept = slept.unwrap_or_else(|error| {
            tracing::error!(target: "polyrail::proxy", proxy = %self.name, %error, "epoll failed");
            Slept::Woken
        });
        if slept == Slept::No {
            // The core outlives the seat.
            return (slept, kept);
        }
        let mut core = self.lock_after_sleep(drive, &mut events);
        if let Some(core) = &mut core {
            core.is_awake();
            core.take_events(&mut events);
        } else {
            // The wake-up may be meant for the next thread that sleeps here.
            self.doorbell.rouse();
        }
        drop(events);
        // Give the seat up last: now this thread sleeps here no longer.
        drop(seat);
        (slept, core)
    }

    /// Takes the core after a sleep. Another caller may drive it for long. Then this thread passes its events to that
    /// caller, and checks meanwhile whether its own call is over. Returns `None` if it is.
    fn lock_after_sleep<'a>(
        &'a self,
        drive: &DriveState<'a>,
        events: &mut Vec<PollEvent>,
    ) -> Option<DrivenCore<'a>> {
        let engine = drive.engine;
        if !engine.settings.caller_driven {
            return Some(DrivenCore::new(self.lock(), self, engine));
        }
        let mut pause = Pause::default();
        loop {
            let core = self.try_core(engine);
            if core.is_some() {
                return core;
            }
            // Pass the events on before `stop`, which may call a callback that drives.
            if !events.is_empty() {
                self.command(ProxyCommand::Events(std::mem::take(events)));
            }
            if (drive.stop)() || drive.is_expired() {
                return None;
            }
            pause.a_moment();
        }
    }
}

/// Returns the sleep that a proxy may have in the core's present state.
pub(super) fn sleep_of(core: &mut Core, drive: &DriveState<'_>) -> Sleep {
    let check = core.check_due();
    let outlook = core.outlook();
    let due = match outlook {
        Outlook::Ask => Some(COPY_SLEEP),
        Outlook::Told => check.map(from_now),
        Outlook::Until(at) => Some(from_now(check.map_or(at, |check| check.min(at)))),
    };
    let rest = drive.until.map(|until| until.saturating_duration_since(Instant::now()));
    // A caller's operation may end where no proxy is driven, as by a deadline.
    let caller = drive.engine.settings.caller_driven.then_some(CALLER_SLEEP);
    let limit = due.into_iter().chain(rest).chain(caller).min();
    // Callers leave each other work without a ring: the next caller does it.
    Sleep { limit, is_due: outlook != Outlook::Told || caller.is_some(), outlook }
}

fn from_now(at: u64) -> Duration {
    Duration::from_nanos(at.saturating_sub(monotonic_ns()))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;
    use std::sync::atomic::AtomicBool;
    use std::sync::mpsc;

    use polyrail_config::Config;

    use super::*;
    use crate::api::engine::Engine;
    use crate::base::pause::wait_patiently;

    const LONG: Duration = Duration::from_secs(30);

    /// An engine that callers drive, and a proxy that only the test drives.
    fn apart() -> (Engine, Proxy) {
        let config = Config::builder().set("rails", "127.0.0.1").unwrap();
        let config = config.set("progress", "caller").unwrap().build().unwrap();
        let engine = Engine::builder().config(config).build().unwrap();
        (engine, Proxy::new("apart".to_owned(), Vec::new(), false).unwrap())
    }

    fn has_slept(proxy: &Proxy) -> bool {
        proxy.counters.sleeps.load(Ordering::Relaxed) > 0
    }

    /// Else it would notice the end of its own call only when the other one gives the core back.
    #[test]
    fn a_caller_that_is_about_to_sleep_does_not_wait_for_one_that_drives() {
        let (a, proxy) = apart();
        let drive = DriveState::new(a.shared(), 0, None, &|| false);
        let kind = sleep_of(&mut proxy.lock(), &drive);
        let held = proxy.lock();
        assert!(matches!(proxy.sleep(&drive, &kind), (Slept::No, None)));
        drop(held);
    }

    /// A device copies, and does not announce the end of the copy.
    #[test]
    fn a_sleeping_caller_is_roused_when_another_has_begun_a_copy() {
        let (a, proxy) = apart();
        std::thread::scope(|scope| {
            let sleeper = scope.spawn(|| {
                let drive = DriveState::new(a.shared(), 0, None, &|| false);
                let rest = sleep_of(&mut proxy.lock(), &drive);
                let began = Instant::now();
                let (_, core) = proxy.sleep(&drive, &Sleep { limit: Some(LONG), ..rest });
                (core.map(|core| core.outlook()), began.elapsed())
            });
            wait_patiently(|| has_slept(&proxy) || sleeper.is_finished());
            proxy.lock().withholds_acks = true;
            drop(proxy.try_core(a.shared()));
            let (outlook, slept) = sleeper.join().unwrap();
            assert!(outlook == Some(Outlook::Ask) && slept < LONG, "{outlook:?} after {slept:?}");
        });
    }

    #[test]
    fn a_caller_that_wakes_up_does_not_wait_for_one_that_drives_and_leaves_it_the_events() {
        let (a, _) = apart();
        let (socket, _other_end) = UnixStream::pair().unwrap();
        for is_over in [true, false] {
            let proxy = Proxy::new("apart".to_owned(), Vec::new(), false).unwrap();
            let (is_held, (leaves, left)) = (AtomicBool::new(false), mpsc::channel());
            std::thread::scope(|scope| {
                let (proxy, a, is_held) = (&proxy, &a, &is_held);
                let sleeper = scope.spawn(move || {
                    // The call of the sleeper ends, or its time is over.
                    let stop = || is_over && is_held.load(Ordering::Relaxed);
                    let mut drive = DriveState::new(a.shared(), 0, None, &stop);
                    let rest = sleep_of(&mut proxy.lock(), &drive);
                    drive.until = (!is_over).then(Instant::now);
                    let slept = proxy.sleep(&drive, &Sleep { limit: Some(LONG), ..rest });
                    leaves.send((slept.0, slept.1.is_some())).unwrap();
                });
                wait_patiently(|| has_slept(proxy) || sleeper.is_finished());
                let held = proxy.lock();
                is_held.store(true, Ordering::Relaxed);
                // The socket has room, which wakes the other thread.
                proxy.doorbell.poller.add(socket.as_fd(), 7).unwrap();
                let left = left.recv_timeout(Duration::from_secs(10));
                drop(held);
                assert_eq!(left, Ok((Slept::Woken, false)), "it waits for the core");
            });
            let Some(ProxyCommand::Events(events)) = proxy.commands.pop() else {
                panic!("it takes the events with it");
            };
            assert!(events.iter().any(|event| event.token == 7 && event.writable), "{events:?}");
            assert!(!proxy.sleeper.is_seated());
            let is_woken = proxy.doorbell.poller.wait(&mut Vec::new(), Some(Duration::ZERO));
            assert!(is_woken.unwrap(), "the next one that sleeps here is roused");
        }
    }
}
