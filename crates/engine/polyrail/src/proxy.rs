//! Proxies. The thread that drives a proxy moves its data: the proxy's own thread, or the user's.
//!
//! A proxy owns flows. Its core is behind one lock, which the driving thread holds while it works and releases to
//! sleep. So a thread that posts a small write can drive the proxy for a moment itself instead of waking the proxy's
//! thread.

mod core;
mod core_guard;
mod drive;
mod flow;

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use polyrail_proto::progress::Outlook;
use polyrail_sys::threads::monotonic_ns;
use polyrail_sys::{Memory, PollEvent};

use self::core::{CHECK_NS, Core};
use self::core_guard::DrivenCore;
use crate::base::driving::Driving;
use crate::engine::finish::Ends;
use crate::engine::pass::Pass;
use crate::engine::proxy_handle::ProxyHandle;
use crate::engine::state::{Drive, EngineShared};
use crate::wake::handover::Handover;
use crate::wake::sleeper::Sleeper;

/// Size of the memory that unwanted payload is read to.
const SCRATCH_BYTES: u64 = 256 << 10;
/// Number of passes that a caller makes in one call for work that others left to it meanwhile.
const LEFT_ROUNDS: u32 = 8;

/// A proxy: its handle, and the state that only its driving thread touches.
pub(crate) struct Proxy {
    handle: Arc<ProxyHandle>,
    core: Mutex<Core>,
    /// Mark for posts of callers while another thread drives, where callers drive.
    left: Handover,
    /// Memory that unwanted payload is read to.
    scratch: Memory,
    /// The one thread that may sleep on the poller.
    sleeper: Sleeper,
    /// Events that woke this thread. It alone locks them.
    events: Mutex<Vec<PollEvent>>,
}

/// Reading mode of a pass.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reads {
    Yes,
    /// Reads, but skips a peer whose lock is taken: the caller waits for no lock.
    Hastily,
    /// Reads nothing, and skips a peer whose lock is taken.
    No,
}

/// Result of a caller's own attempt to send.
struct Sent {
    /// Something moved.
    worked: bool,
    /// Something is left, because another thread holds a lock, or memory must be obtained first.
    is_held_up: bool,
}

impl Deref for Proxy {
    type Target = ProxyHandle;

    fn deref(&self) -> &ProxyHandle {
        &self.handle
    }
}

impl Proxy {
    /// `watches`: whether the proxy has a thread, which sleeps until a flow brings something.
    pub(crate) fn new(name: String, cpus: Vec<u32>, watches: bool) -> std::io::Result<Self> {
        Ok(Self {
            handle: Arc::new(ProxyHandle::new(name, cpus)?),
            core: Mutex::new(Core::new(watches)),
            left: Handover::new(),
            scratch: Memory::anonymous(SCRATCH_BYTES)?,
            sleeper: Sleeper::new(),
            events: Mutex::new(Vec::new()),
        })
    }

    /// The part of the proxy that other threads use.
    pub(crate) fn handle(&self) -> &Arc<ProxyHandle> {
        &self.handle
    }

    /// Sends what was left to this thread while it drove, unless another thread drives now and will.
    pub(crate) fn send_left_hastily(&self, engine: &Arc<EngineShared>) {
        for _ in 0..LEFT_ROUNDS {
            if !self.left.is_left() {
                return;
            }
            let Some(core) = self.try_lock() else { return };
            self.left.take();
            if self.send_for_caller(core, engine, monotonic_ns()).is_held_up {
                break;
            }
        }
        // Others post all the time, or hold a lock, and this thread has other work.
        engine.control.wake();
    }

    fn send_for_caller(
        &self,
        mut core: MutexGuard<'_, Core>,
        engine: &Arc<EngineShared>,
        now: u64,
    ) -> Sent {
        let worked = self.pass(&mut core, engine, now, Reads::No);
        let (asks, is_held_up) = (core.outlook() == Outlook::Ask, core.is_held_up);
        self.rouse_for(&mut core, engine, true);
        drop(core);
        if asks && !engine.settings.caller_driven {
            // A device has begun a copy, and the caller won't poll for its end: wake the proxy thread. Where callers
            // drive, `rouse_for` has woken the sleeping one.
            self.doorbell.ring();
        }
        Sent { worked, is_held_up }
    }

    /// The core, unless another thread drives it.
    fn try_core<'a>(&'a self, engine: &'a Arc<EngineShared>) -> Option<DrivenCore<'a>> {
        Some(DrivenCore::new(self.try_lock()?, self, engine))
    }

    fn try_lock(&self) -> Option<MutexGuard<'_, Core>> {
        self.core.try_lock()
    }

    fn lock(&self) -> MutexGuard<'_, Core> {
        self.core.lock()
    }

    /// Called with the core where callers drive: the thread that sleeps on the poller may wait for what just happened,
    /// and the event that would have woken it is used up.
    fn wake_sleeper(&self) {
        if self.sleeper.is_seated() {
            self.doorbell.rouse();
        }
    }

    /// Wakes the thread that sleeps on the poller if this one owes that: it may have taken that thread's wake-up, or,
    /// if it gives the core back, leave work to it. The sleeping thread goes by what it found before.
    fn rouse_for(&self, core: &mut Core, engine: &EngineShared, gives_back: bool) {
        if engine.settings.caller_driven && core.must_rouse(&self.sleeper, gives_back) {
            self.doorbell.rouse();
        }
    }

    /// Looks once at all flows that have something to do. Returns whether anything moved.
    fn pass(&self, core: &mut Core, engine: &Arc<EngineShared>, now: u64, reads: Reads) -> bool {
        bump(&self.counters.passes);
        let _driving = Driving::begin();
        let hasty = reads != Reads::Yes;
        let finishes = std::mem::take(&mut core.finishes);
        let copiers = std::mem::take(&mut core.copiers);
        let mut is_unannounced = std::mem::take(&mut core.is_unannounced);
        let mut pass = Pass {
            engine,
            ends: Ends { engine, now, finishes },
            scratch: &self.scratch,
            copiers,
            for_caller: false,
            sends: false,
            hasty,
        };
        let mut is_put_off = false;
        while let Some(command) = core.next_command(self) {
            // A caller waits for no lock, and the holder of a peer's lock may have no CPU for long.
            if hasty && command.peer().is_some_and(|peer| peer.is_held()) {
                core.put_off(command);
                self.doorbell.ring();
                is_put_off = true;
                break;
            }
            is_unannounced = false;
            core.obey(command, self, &mut pass);
        }
        if !core.events.is_empty() {
            core.note_events();
        }
        let mut worked = core.collect_copied(self, &mut pass);
        if reads != Reads::No {
            worked |= core.read_ready(self, &mut pass, true);
        }
        worked |= core.write_wanted(self, &mut pass);
        core.is_held_up |= is_put_off;
        // In this order: a poster that is no longer posting has rung.
        if is_unannounced && worked && !core.is_being_posted() && !self.doorbell.is_rung() {
            engine.count_rescue(&self.name, "moved what was announced to nobody");
        }
        // Skipped by a caller with something small to send, who reads nothing.
        if reads != Reads::No && pass.now >= core.next_check {
            worked |= core.check_stalls(self, &mut pass);
            core.next_check = pass.now + CHECK_NS;
        }
        let finished = pass.tell();
        worked |= finished;
        if engine.settings.caller_driven && (finished || pass.for_caller) {
            self.wake_sleeper();
        }
        if core.may_acknowledge(&pass) {
            core.flush_owed(self, &mut pass);
            // The last read on a connection that broke may have ended transfers.
            if pass.tell() {
                worked = true;
                self.wake_sleeper();
            }
        }
        core.finishes = pass.ends.finishes;
        core.copiers = pass.copiers;
        if core.is_held_up && engine.settings.caller_driven {
            self.left.leave();
        }
        if worked {
            bump(&self.counters.busy_passes);
        }
        worked
    }
}

impl Drive for Proxy {
    /// Leaves what has come to the thread that drives the proxy next: it may be large, and the caller, who has
    /// something small to send, waits for none of it.
    fn send_now(&self, engine: &Arc<EngineShared>, now: u64, tries: u32) -> bool {
        if engine.settings.caller_driven {
            self.left.leave();
            self.send_left_hastily(engine);
            return true;
        }
        for attempt in 0..tries {
            if attempt > 0 {
                std::hint::spin_loop();
            }
            if let Some(core) = self.try_lock() {
                let Sent { worked, is_held_up } = self.send_for_caller(core, engine, now);
                return worked && !is_held_up;
            }
        }
        false
    }

    /// Sends what callers left, on a thread that can wait for their locks.
    fn send_left(&self, engine: &Arc<EngineShared>) {
        if self.left.is_left()
            && let Some(mut core) = self.try_core(engine)
        {
            self.left.take();
            self.pass(&mut core, engine, monotonic_ns(), Reads::Yes);
        }
    }

    /// Drives the proxy for one pass after a look for events, unless another thread drives. Returns whether anything
    /// moved.
    fn try_poll(&self, engine: &Arc<EngineShared>) -> bool {
        let Some(mut core) = self.try_core(engine) else { return false };
        let now = monotonic_ns();
        // The awaited data mostly comes where bytes came from last: one system call brings it.
        if core.mark_hot() {
            let worked = self.pass(&mut core, engine, now, Reads::Hastily);
            // The other flows get their turn, too, however much comes there.
            let polled = core.poll_if_due(&self.doorbell.poller, now, worked)
                && self.pass(&mut core, engine, now, Reads::Hastily);
            return worked || polled;
        }
        core.poll(&self.doorbell.poller);
        self.pass(&mut core, engine, now, Reads::Hastily)
    }

    fn drive(
        &self,
        engine: &Arc<EngineShared>,
        spin: Duration,
        until: Option<Instant>,
        stop: &dyn Fn() -> bool,
    ) {
        self.drive_until(engine, spin, until, stop);
    }

    fn finish(&self, engine: &Arc<EngineShared>) {
        self.see_copies_through(engine);
    }
}

/// Adds one to a counter that only one thread at a time writes, without the cost of an atomic addition.
fn bump(counter: &AtomicU64) {
    counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}
