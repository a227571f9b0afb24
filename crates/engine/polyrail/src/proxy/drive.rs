//! Driving a proxy: passes while something moves, then looking, lingering or sleeping.

mod sleep;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use polyrail_proto::progress::{Outlook, Pace};
use polyrail_sys::threads::{bind_current, monotonic_ns, sleep_precisely, thread_cpu_time};

use self::sleep::sleep_of;
use super::core::Core;
use super::core_guard::DrivenCore;
use super::{Proxy, Reads};
use crate::base::driving::Driving;
use crate::base::pause::{COPY_SLEEP, Pause};
use crate::engine::state::EngineShared;
use crate::wake::CHECKS;
use crate::wake::doorbell::Slept;

/// While polling: rounds of some 40 ns for which the core is free.
const LINGER_LONG: u32 = 64;
const LINGER_SHORT: u32 = 6;
/// Time for which a proxy polls while devices copy for it and nothing else moves. Then it looks every [`COPY_SLEEP`].
/// Copies of a chunk take some 10 µs, unless the device has other things to do.
const COPY_SPIN_NS: u64 = 20_000;
/// Interval at which a busy thread asks the poller for other flows that have become readable.
const POLL_EVERY_NS: u64 = 1_000_000;
/// While polling: number of rounds between looks at the clock.
const ROUNDS_PER_LOOK: u32 = 8;

/// Limits of a drive, and its state while nothing moves.
struct DriveState<'a> {
    engine: &'a Arc<EngineShared>,
    spin_ns: u64,
    until: Option<Instant>,
    stop: &'a dyn Fn() -> bool,
    /// Time at which something last moved; unknown after a sleep.
    busy_at: Option<u64>,
    pace: Pace,
    /// Time at which the thread's counters are read again, which takes two system calls.
    note_at: u64,
    /// Time at which the poller is asked again although something moves.
    poll_at: Option<u64>,
    /// Time since which the proxy thread has polled and found nothing.
    polls_since: Option<u64>,
    /// Set if the thread woke up although nothing was due, and nothing had come.
    woke_alone: bool,
    /// The core that this thread has locked since its last pass, or since it woke up.
    held: Option<DrivenCore<'a>>,
}

/// The reason why passes stop for a while.
enum Idle {
    /// The driving call has what it wanted.
    Stopped,
    /// The core must be free for this many rounds. Then passes go on.
    Lingers(u32),
    /// Nothing is left to do.
    Through,
}

impl<'a> DriveState<'a> {
    fn new(
        engine: &'a Arc<EngineShared>,
        spin_ns: u64,
        until: Option<Instant>,
        stop: &'a dyn Fn() -> bool,
    ) -> Self {
        Self {
            engine,
            spin_ns,
            until,
            stop,
            busy_at: None,
            pace: Pace::default(),
            note_at: 0,
            poll_at: None,
            polls_since: None,
            woke_alone: false,
            held: None,
        }
    }

    /// Whether to stop. The core may be locked meanwhile, so callbacks that this calls must not wait for a pass.
    fn is_over(&self) -> bool {
        let _driving = Driving::begin();
        (self.stop)()
    }

    /// Reads the thread's counters now and then.
    fn note_thread(&mut self, proxy: &Proxy) {
        const EVERY_NS: u64 = 10_000_000;
        let now = self.pace.busy_at();
        if now >= self.note_at {
            proxy.note_thread();
            self.note_at = now + EVERY_NS;
        }
    }

    /// Counts the polling time, which is over: something came, or polling no longer pays.
    fn count_polling(&mut self, proxy: &Proxy, now: u64) {
        if let Some(since) = self.polls_since.take() {
            proxy.counters.polled_ns.fetch_add(now.saturating_sub(since), Ordering::Relaxed);
        }
    }

    fn is_expired(&self) -> bool {
        self.until.is_some_and(|until| Instant::now() >= until)
    }
}

impl Proxy {
    /// Runs the proxy thread: drives until the engine closes.
    pub(crate) fn run(&self, engine: &Arc<EngineShared>, spin: Duration) {
        let _ = self.thread.set(std::thread::current().id());
        if !self.cpus.is_empty()
            && let Err(error) = bind_current(&self.cpus)
        {
            tracing::warn!(target: "polyrail::proxy", proxy = %self.name, %error, "not bound");
        }
        if let Err(error) = sleep_precisely() {
            // Only looks at devices' progress come later.
            tracing::debug!(target: "polyrail::proxy", proxy = %self.name, %error, "timer slack");
        }
        let actual = polyrail_sys::threads::allowed_cpus().unwrap_or_default();
        if engine.config.verbose_bindings {
            // At a level that is written by default, because the user asked for it.
            let name = &self.name;
            let wanted =
                if self.cpus.is_empty() { "any".into() } else { format!("{:?}", self.cpus) };
            tracing::warn!(target: "polyrail::proxy", proxy = %name, %wanted, ?actual, "bindings");
        } else if !self.cpus.is_empty() && actual != self.cpus {
            let (name, wanted) = (&self.name, &self.cpus);
            tracing::warn!(target: "polyrail::proxy", proxy = %name, ?wanted, ?actual, "not as bound");
        }
        *self.actual_cpus.lock() = actual;
        self.drive_until(engine, spin, None, &|| engine.is_closing());
        self.see_copies_through(engine);
    }

    /// Completes end-to-end copies of devices after the engine has closed. They are over soon, and no other thread will
    /// do it.
    pub(super) fn see_copies_through(&self, engine: &Arc<EngineShared>) {
        while let Some(mut core) = self.try_core(engine) {
            self.pass(&mut core, engine, monotonic_ns(), Reads::Yes);
            let is_copying = core.is_copying_end_to_end();
            // A thread that leaves a command and finds the core taken relies on the thread that gives it back.
            drop(core);
            if is_copying {
                std::thread::sleep(COPY_SLEEP);
            } else if self.commands.is_empty() {
                return;
            }
        }
    }

    /// Drives until `stop` returns true, or the time is over. While another thread sleeps on the poller, it only makes
    /// passes.
    pub(super) fn drive_until<'a>(
        &'a self,
        engine: &'a Arc<EngineShared>,
        spin: Duration,
        until: Option<Instant>,
        stop: &'a dyn Fn() -> bool,
    ) {
        let spin_ns = u64::try_from(spin.as_nanos()).unwrap_or(u64::MAX);
        let mut drive = DriveState::new(engine, spin_ns, until, stop);
        let mut pause = Pause::default();
        loop {
            let Some(mut core) = drive.held.take().or_else(|| self.try_core(engine)) else {
                // Another thread drives; what it moves may be what this one waits for.
                if stop() || drive.is_expired() {
                    return;
                }
                pause.a_moment();
                continue;
            };
            pause = Pause::default();
            // Only with the core: a ring that this thread answers is followed by its pass.
            drive.woke_alone &= !self.doorbell.begin();
            core.is_unannounced = CHECKS && std::mem::take(&mut drive.woke_alone);
            match self.work(&mut core, &mut drive) {
                Idle::Stopped => {
                    drive.pace.stop(&engine.pace.pollers);
                    return;
                }
                Idle::Lingers(rounds) => {
                    drop(core);
                    self.doorbell.linger(rounds);
                }
                Idle::Through => {
                    if !self.rest(core, &mut drive) {
                        return;
                    }
                }
            }
        }
    }

    /// Sleeps until there is something to do. Returns whether to go on then.
    fn rest<'a>(&'a self, mut core: DrivenCore<'a>, drive: &mut DriveState<'a>) -> bool {
        drive.busy_at = None;
        drive.count_polling(self, monotonic_ns());
        drive.pace.stop(&drive.engine.pace.pollers);
        if self.send_held_acks(&mut core, drive.engine) {
            drive.held = Some(core);
            return true;
        }
        let sleep = sleep_of(&mut core, drive);
        core.watch_all(&self.doorbell.poller);
        drop(core);
        drive.note_thread(self);
        if drive.is_expired() {
            return false;
        }
        let slept;
        (slept, drive.held) = self.sleep(drive, &sleep);
        drive.woke_alone = slept == Slept::Alone;
        // Without the core, a callback may wait for a pass of another thread.
        let is_over = if drive.held.is_some() { drive.is_over() } else { (drive.stop)() };
        if !is_over {
            return true;
        }
        if let Some(core) = &mut drive.held {
            // No pass follows here, so the reason that kept this thread awake may concern the next one that sleeps.
            core.debts.note_look(true);
        }
        false
    }

    /// Makes passes while something moves, and as long afterwards as polling pays.
    fn work(&self, core: &mut Core, drive: &mut DriveState<'_>) -> Idle {
        let mut now = monotonic_ns();
        let mut busy_at = *drive.busy_at.get_or_insert(now);
        loop {
            let worked = self.pass(core, drive.engine, now, Reads::Yes);
            if drive.is_over() {
                return Idle::Stopped;
            }
            if worked {
                let began = now;
                drive.count_polling(self, began);
                now = monotonic_ns();
                busy_at = now;
                drive.busy_at = Some(now);
                drive.pace.note_busy(began, now);
                core.interruptions.note_arrival(began);
                drive.note_thread(self);
                let poll_at = drive.poll_at.get_or_insert(now + POLL_EVERY_NS);
                if now >= *poll_at {
                    // Flows that always bring something don't keep the thread from the others.
                    *poll_at = now + POLL_EVERY_NS;
                    core.poll(&self.doorbell.poller);
                    self.rouse_for(core, drive.engine, false);
                }
                continue;
            }
            let idle = if core.outlook() == Outlook::Ask && !drive.is_expired() {
                self.poll_for_devices(core, busy_at, &mut now)
            } else if drive.engine.settings.caller_driven {
                self.poll_as_caller(core, drive, busy_at, &mut now)
            } else {
                self.poll_as_thread(core, drive, busy_at, &mut now)
            };
            if let Some(idle) = idle {
                return idle;
            }
        }
    }

    /// Looks for arrivals while devices copy, if that pays.
    fn poll_for_devices(&self, core: &mut Core, busy_at: u64, now: &mut u64) -> Option<Idle> {
        *now = monotonic_ns();
        if *now - busy_at >= COPY_SPIN_NS {
            return Some(Idle::Through);
        }
        core.poll(&self.doorbell.poller);
        None
    }

    /// Looks for arrivals, with pauses in which the core is free: a thread that posts something small may find it free,
    /// and send.
    fn poll_as_thread(
        &self,
        core: &mut Core,
        drive: &mut DriveState<'_>,
        busy_at: u64,
        now: &mut u64,
    ) -> Option<Idle> {
        drive.polls_since.get_or_insert(busy_at);
        let spin_ns = drive.spin_ns.max(drive.pace.poll_ns(&drive.engine.pace.pollers));
        *now = monotonic_ns();
        if *now - busy_at >= spin_ns || drive.is_expired() {
            return Some(Idle::Through);
        }
        if core.poll_hot(&self.doorbell.poller) {
            return None;
        }
        // There is time where only acknowledgements come.
        Some(Idle::Lingers(if core.hot.is_none() { LINGER_LONG } else { LINGER_SHORT }))
    }

    /// Looks for arrivals as long as callers should.
    fn poll_as_caller(
        &self,
        core: &mut Core,
        drive: &DriveState<'_>,
        busy_at: u64,
        now: &mut u64,
    ) -> Option<Idle> {
        if drive.spin_ns == 0 || core.interruptions.are_frequent(*now) {
            return Some(Idle::Through);
        }
        let has_news = core.poll_hot(&self.doorbell.poller);
        // A look at the clock costs a tenth of a look at a socket.
        if !core.rounds.is_multiple_of(ROUNDS_PER_LOOK) {
            return None;
        }
        let before = std::mem::replace(now, monotonic_ns());
        core.interruptions.note(before, *now);
        let is_idle = !has_news && *now - busy_at >= drive.spin_ns;
        if is_idle {
            core.interruptions.note_sleep(*now);
        }
        (is_idle || drive.is_expired()).then_some(Idle::Through)
    }

    /// Sends the acknowledgements that were held for an answer, before a sleep. Returns whether anything moved.
    fn send_held_acks(&self, core: &mut Core, engine: &Arc<EngineShared>) -> bool {
        if core.owing.is_empty() {
            return false;
        }
        core.ack_hold.release();
        self.pass(core, engine, monotonic_ns(), Reads::Yes)
    }

    fn note_thread(&self) {
        let cpu_ns = u64::try_from(thread_cpu_time().as_nanos()).unwrap_or(u64::MAX);
        self.counters.cpu_ns.store(cpu_ns, Ordering::Relaxed);
        let cpu = i64::from(polyrail_sys::threads::current_cpu());
        let before = self.counters.last_cpu.swap(cpu, Ordering::Relaxed);
        if before >= 0 && before != cpu {
            self.counters.migrations.fetch_add(1, Ordering::Relaxed);
        }
    }
}
