//! Proxies: whoever drives one moves data. A proxy thread does, or the user's own thread.
//!
//! A proxy owns flows. Its core is behind one lock, which whoever drives it holds while it works
//! and gives back to sleep; so a thread that posts a small write can drive the proxy for a moment
//! itself instead of waking its thread.

mod core;
mod held;

use std::cell::Cell;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use crossbeam_queue::SegQueue;
use polyrail_proto::{FlowIndex, Landed};
use polyrail_sys::threads::{bind_current, monotonic_ns, sleep_precisely, thread_cpu_time};
use polyrail_sys::{Memory, PollEvent, Poller};
use socket2::Socket;

use self::core::{CHECK_NS, Core, run_finishes};
use self::held::Held;
pub(crate) use self::held::Pause;
use crate::engine::EngineShared;
use crate::finish::Finish;
use crate::handover::Handover;
use crate::op::Op;
use crate::peer::PeerShared;
use crate::placement::Placement;
use crate::rx_flow::RxFlow;
use crate::signal::Signal;
use crate::staging::Copiers;
use crate::stats::ProxyStats;

/// Size of the memory that payload which nobody wants is read to.
const SCRATCH_BYTES: u64 = 256 << 10;
/// How long a caller sleeps at most before it looks whether what it waits for is over.
const CALLER_SLEEP: Duration = Duration::from_millis(100);
/// How long acknowledgements may wait for an answer of the caller to go first: a few round trips on
/// one host, nothing against one between hosts.
const ACK_HOLD_NS: u64 = 20_000;
/// While polling: rounds of some 40 ns for which the core is free.
const LINGER_LONG: u32 = 64;
const LINGER_SHORT: u32 = 6;
/// How long a proxy polls while devices copy for it and nothing else moves; then it looks every
/// [`COPY_SLEEP`]. Copies of a chunk take some 10 µs, unless the device has other things to do.
const COPY_SPIN_NS: u64 = 20_000;
pub(crate) const COPY_SLEEP: Duration = Duration::from_micros(20);
/// How often a caller tries to drive a proxy that somebody else drives: for as long as a look at a
/// socket takes.
pub(crate) const DRIVE_TRIES: u32 = 12;
/// Passes that a caller makes in one call for what others left to it meanwhile.
const LEFT_ROUNDS: u32 = 8;
/// While polling: looks at the clock every so many rounds.
const ROUNDS_PER_LOOK: u32 = 8;

thread_local! {
    /// Whether this thread is in a pass: what it waits for may have to come by the same proxy.
    static DRIVING: Cell<bool> = const { Cell::new(false) };
}

/// Whether the caller is a callback of a proxy.
pub(crate) fn is_driving() -> bool {
    DRIVING.get()
}

/// Says for as long as it lives that this thread is in a pass.
struct Driving(bool);

impl Driving {
    fn begin() -> Self {
        Self(DRIVING.replace(true))
    }
}

impl Drop for Driving {
    fn drop(&mut self) {
        DRIVING.set(self.0);
    }
}

pub(crate) struct Proxy {
    pub(crate) name: String,
    pub(crate) cpus: Vec<u32>,
    /// CPUs that its thread may use, as the system says.
    actual_cpus: Mutex<Vec<u32>>,
    core: Mutex<Core>,
    /// Where callers drive: what they post while another thread does.
    left: Handover,
    /// Payload that nobody wants is read to here.
    scratch: Memory,
    pub(crate) poller: Poller,
    signal: Signal,
    commands: SegQueue<Command>,
    /// Held by the one thread that may sleep on the poller.
    sleeper: Mutex<Vec<PollEvent>>,
    pub(crate) counters: ProxyCounters,
}

#[derive(Default)]
pub(crate) struct ProxyCounters {
    passes: AtomicU64,
    busy_passes: AtomicU64,
    sleeps: AtomicU64,
    cpu_ns: AtomicU64,
    last_cpu: AtomicI64,
    migrations: AtomicU64,
}

pub(crate) enum Command {
    AddTx {
        peer: Arc<PeerShared>,
        flow: FlowIndex,
        socket: Arc<Socket>,
    },
    AddRx {
        flow: Box<RxFlow>,
    },
    /// Data both ways on one connection.
    AddBoth {
        peer: Arc<PeerShared>,
        flow: FlowIndex,
        socket: Arc<Socket>,
        arriving: Box<RxFlow>,
    },
    /// The peer is gone: its flows are closed.
    DropPeer {
        peer: Arc<PeerShared>,
    },
    /// Devices copy from end to end for it: somebody has to see when they are done.
    Copying(Arc<Op>),
    /// A region of a device has ended: its memory is not to be kept.
    LetGo,
    /// Flows that were not read because the inbox was full may be read again.
    Resume,
}

/// Whether a pass reads what has come.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reads {
    Yes,
    /// And what somebody holds a lock for is left for the next time: the caller waits for nobody.
    Hastily,
    /// Nor is that waited for.
    No,
}

/// What a pass over the flows has at hand.
pub(crate) struct Pass<'a> {
    pub(crate) engine: &'a Arc<EngineShared>,
    /// Time at the beginning of the pass.
    pub(crate) now: u64,
    pub(crate) scratch: &'a Memory,
    /// To be done when no lock is held.
    pub(crate) finishes: Vec<Finish>,
    /// Queues of the devices whose memory is sent or received.
    pub(crate) copiers: Copiers,
    /// Something came that a caller may be waiting for.
    pub(crate) for_caller: bool,
    /// What somebody holds a lock for is left for another pass.
    pub(crate) hasty: bool,
}

/// What a caller that sent something itself achieved.
struct Sent {
    /// Something moved.
    worked: bool,
    /// Something is left, for which somebody else holds a lock.
    is_held_up: bool,
}

impl Sent {
    fn is_all(&self) -> bool {
        self.worked && !self.is_held_up
    }
}

impl Pass<'_> {
    /// A transfer of a peer is complete here.
    pub(crate) fn landed(&mut self, peer: &Arc<PeerShared>, landed: Landed) {
        crate::serve::landed(self, peer, landed);
    }
}

impl Proxy {
    /// `watches`: whether it has a thread, which sleeps until a flow brings something.
    pub(crate) fn new(name: String, cpus: Vec<u32>, watches: bool) -> std::io::Result<Self> {
        Ok(Self {
            name,
            cpus,
            actual_cpus: Mutex::default(),
            core: Mutex::new(Core::new(watches)),
            left: Handover::new(),
            scratch: Memory::anonymous(SCRATCH_BYTES)?,
            poller: Poller::new()?,
            signal: Signal::new(),
            commands: SegQueue::new(),
            sleeper: Mutex::new(Vec::new()),
            counters: ProxyCounters { last_cpu: AtomicI64::new(-1), ..ProxyCounters::default() },
        })
    }

    pub(crate) fn command(&self, command: Command) {
        self.commands.push(command);
        self.wake();
    }

    /// Leaves a command for when the proxy is awake, and wakes it only when there are many.
    pub(crate) fn leave(&self, command: Command) {
        const MANY: usize = 64;
        self.commands.push(command);
        if self.commands.len() >= MANY {
            self.wake();
        }
    }

    /// Has it let go of the memory of copies that are done. One that nobody drives need not be told
    /// for ever.
    pub(crate) fn let_go(&self) {
        const FEW: usize = 64;
        if self.commands.len() < FEW {
            self.command(Command::LetGo);
        }
    }

    /// There is work: the proxy looks at it, now or as soon as it is awake.
    pub(crate) fn wake(&self) {
        if self.signal.must_wake() {
            self.poller.wake();
        }
    }

    /// Has the proxy send what there is to send and says whether that is all; `None` if somebody
    /// else drives it at each of so many tries. `now` is the machine's monotonic clock.
    ///
    /// What has come is left to whoever drives it next: it may be large, and the caller, who has
    /// something small to send, waits for none of it.
    pub(crate) fn try_send(
        &self,
        engine: &Arc<EngineShared>,
        now: u64,
        tries: u32,
    ) -> Option<bool> {
        for _ in 1..tries {
            if let Some(core) = self.try_lock() {
                return Some(self.send_for_caller(core, engine, now).is_all());
            }
            std::hint::spin_loop();
        }
        self.try_lock().map(|core| self.send_for_caller(core, engine, now).is_all())
    }

    /// Has the proxy send what there is to send: this thread does, or whoever drives it just now,
    /// when that pass is over. So a caller never waits for a thread that has no CPU.
    pub(crate) fn send_or_leave(&self, engine: &Arc<EngineShared>) {
        self.left.leave();
        self.settle(engine);
    }

    /// Sends what was left to this thread while it drove, unless another one drives now and will.
    pub(crate) fn settle(&self, engine: &Arc<EngineShared>) {
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
        // Others post all the time, or hold a lock, and this thread has something else to do.
        engine.control.send_what_is_left();
    }

    /// Sends what callers left, by a thread that can wait for their locks.
    pub(crate) fn send_what_is_left(&self, engine: &Arc<EngineShared>) {
        if self.left.is_left()
            && let Some(mut core) = self.try_core(engine)
        {
            self.left.take();
            self.pass(&mut core, engine, monotonic_ns(), Reads::Yes);
        }
    }

    fn send_for_caller(
        &self,
        mut core: MutexGuard<'_, Core>,
        engine: &Arc<EngineShared>,
        now: u64,
    ) -> Sent {
        let worked = self.pass(&mut core, engine, now, Reads::No);
        let (is_copying, is_held_up) = (core.is_copying(), core.is_held_up);
        drop(core);
        if is_copying {
            // A device has begun something, and the caller has other things to do than to wait.
            self.wake();
        }
        Sent { worked, is_held_up }
    }

    /// Drives the proxy for one pass, unless somebody does, after a look for events. Says whether
    /// anything moved.
    pub(crate) fn try_poll(&self, engine: &Arc<EngineShared>) -> bool {
        let Some(mut core) = self.try_core(engine) else { return false };
        let now = monotonic_ns();
        // What is waited for mostly comes where bytes came from last: one system call brings it.
        if core.mark_hot() {
            let worked = self.pass(&mut core, engine, now, Reads::Hastily);
            // The others get their turn, too, however much comes there.
            let polled = core.poll_if_due(&self.poller, now, worked)
                && self.pass(&mut core, engine, now, Reads::Hastily);
            return worked || polled;
        }
        core.poll(&self.poller);
        self.pass(&mut core, engine, now, Reads::Hastily)
    }

    /// The proxy thread: drives until the engine closes.
    pub(crate) fn run(&self, engine: &Arc<EngineShared>, spin: Duration) {
        if !self.cpus.is_empty()
            && let Err(error) = bind_current(&self.cpus)
        {
            tracing::warn!(target: "polyrail::proxy", proxy = %self.name, %error, "not bound");
        }
        if let Err(error) = sleep_precisely() {
            // Only looks for what devices have done come later.
            tracing::debug!(target: "polyrail::proxy", proxy = %self.name, %error, "timer slack");
        }
        let actual = polyrail_sys::threads::allowed_cpus().unwrap_or_default();
        if engine.config.verbose_bindings {
            // At a level that is written by default: it was asked for.
            let (name, wanted) = (&self.name, &self.cpus);
            tracing::warn!(target: "polyrail::proxy", proxy = %name, ?wanted, ?actual, "bindings");
        } else if !self.cpus.is_empty() && actual != self.cpus {
            let (name, wanted) = (&self.name, &self.cpus);
            tracing::warn!(target: "polyrail::proxy", proxy = %name, ?wanted, ?actual, "not as bound");
        }
        *self.actual_cpus.lock().unwrap_or_else(PoisonError::into_inner) = actual;
        self.drive(engine, spin, None, &|| engine.is_closing());
        self.finish_copies(engine);
    }

    /// When the engine has closed: sees what devices still copy from end to end through, which is
    /// over soon. Nobody else will.
    pub(crate) fn finish_copies(&self, engine: &Arc<EngineShared>) {
        while let Some(mut core) = self.try_core(engine) {
            self.pass(&mut core, engine, monotonic_ns(), Reads::Yes);
            if !core.is_copying_directly() {
                return;
            }
            drop(core);
            std::thread::sleep(COPY_SLEEP);
        }
    }

    /// Drives until `stop` says so, or the time is over. While another thread sleeps on the
    /// poller, only passes are made.
    pub(crate) fn drive(
        &self,
        engine: &Arc<EngineShared>,
        spin: Duration,
        until: Option<Instant>,
        stop: &dyn Fn() -> bool,
    ) {
        let expired = || until.is_some_and(|until| Instant::now() >= until);
        let spin_ns = u64::try_from(spin.as_nanos()).unwrap_or(u64::MAX);
        // When something moved last; unknown after a sleep.
        let mut last_busy = None;
        let mut pause = Pause::default();
        loop {
            self.signal.awake();
            let Some(mut core) = self.try_core(engine) else {
                // Somebody else drives; what they move may be what is waited for.
                if stop() || expired() {
                    return;
                }
                pause.a_moment();
                continue;
            };
            pause = Pause::default();
            let mut now = monotonic_ns();
            let mut busy_at = *last_busy.get_or_insert(now);
            let mut lingers = false;
            let mut note_at = now + CHECK_NS;
            loop {
                let worked = self.pass(&mut core, engine, now, Reads::Yes);
                if stop() {
                    return;
                }
                if worked {
                    now = monotonic_ns();
                    busy_at = now;
                    // One that never sleeps is looked at now and then.
                    if now >= note_at {
                        self.note_thread();
                        note_at = now + CHECK_NS;
                    }
                    continue;
                }
                // A device that is done tells nobody, so it is asked.
                if core.is_copying() && !expired() {
                    now = monotonic_ns();
                    if now - busy_at < COPY_SPIN_NS {
                        core.poll(&self.poller);
                        continue;
                    }
                    break;
                }
                if spin.is_zero() {
                    break;
                }
                if !engine.settings.caller_driven {
                    // Whoever posts something small may find the core free, and send it.
                    now = monotonic_ns();
                    lingers = now - busy_at < spin_ns && !expired();
                    if lingers && core.poll_hot(&self.poller) {
                        continue;
                    }
                    break;
                }
                // A look at the clock costs a tenth of a look at a socket.
                if core.poll_hot(&self.poller) || !core.rounds.is_multiple_of(ROUNDS_PER_LOOK) {
                    continue;
                }
                now = monotonic_ns();
                if now - busy_at >= spin_ns || expired() {
                    break;
                }
            }
            if lingers {
                last_busy = Some(busy_at);
                // Where nothing comes but acknowledgements there is time.
                let rounds = if core.hot.is_none() { LINGER_LONG } else { LINGER_SHORT };
                drop(core);
                self.signal.linger(rounds);
                continue;
            }
            last_busy = None;
            if !core.owing.is_empty() {
                core.hold_acks_until = 0;
                if self.pass(&mut core, engine, monotonic_ns(), Reads::Yes) {
                    continue;
                }
            }
            let mut limit = core.sleep_limit(until);
            if engine.settings.caller_driven {
                // What is waited for may end where no proxy is driven, as by a deadline.
                limit = Some(limit.map_or(CALLER_SLEEP, |limit| limit.min(CALLER_SLEEP)));
            }
            core.watch_all(&self.poller);
            drop(core);
            self.note_thread();
            if expired() {
                return;
            }
            self.sleep(engine, limit);
            if stop() {
                return;
            }
        }
    }

    pub(crate) fn stats(&self) -> ProxyStats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ProxyStats {
            name: self.name.clone(),
            cpus: self.cpus.clone(),
            actual_cpus: self.actual_cpus.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            last_cpu: u32::try_from(self.counters.last_cpu.load(Ordering::Relaxed)).ok(),
            migrations: get(&self.counters.migrations),
            cpu_seconds: get(&self.counters.cpu_ns) as f64 / 1e9,
            passes: get(&self.counters.passes),
            busy_passes: get(&self.counters.busy_passes),
            sleeps: get(&self.counters.sleeps),
        }
    }

    /// The core, unless somebody else drives it.
    fn try_core<'a>(&'a self, engine: &'a Arc<EngineShared>) -> Option<Held<'a>> {
        Some(Held::new(self.try_lock()?, self, engine))
    }

    fn try_lock(&self) -> Option<MutexGuard<'_, Core>> {
        match self.core.try_lock() {
            Ok(core) => Some(core),
            Err(TryLockError::Poisoned(core)) => Some(core.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sleep(&self, engine: &Arc<EngineShared>, limit: Option<Duration>) {
        let Ok(mut events) = self.sleeper.try_lock() else {
            // Somebody else sleeps here and will drive; look again soon.
            std::thread::sleep(Duration::from_micros(50));
            return;
        };
        if !self.signal.may_sleep() {
            return;
        }
        self.counters.sleeps.fetch_add(1, Ordering::Relaxed);
        if let Err(error) = self.poller.wait(&mut events, limit) {
            tracing::error!(target: "polyrail::proxy", proxy = %self.name, %error, "epoll failed");
        }
        self.signal.awake();
        Held::new(self.lock(), self, engine).events.append(&mut events);
    }

    /// With callers at the wheel: whoever sleeps on the poller may wait for what just happened, and
    /// the event that it would have woken up for is used up.
    fn wake_sleeper(&self) {
        if let Err(TryLockError::WouldBlock) = self.sleeper.try_lock() {
            self.poller.wake();
        }
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

    /// One look at everything that has something to do. Says whether anything moved.
    fn pass(&self, core: &mut Core, engine: &Arc<EngineShared>, now: u64, reads: Reads) -> bool {
        bump(&self.counters.passes);
        let _driving = Driving::begin();
        let hasty = reads != Reads::Yes;
        let finishes = std::mem::take(&mut core.finishes);
        let copiers = std::mem::take(&mut core.copiers);
        let mut pass = Pass {
            engine,
            now,
            scratch: &self.scratch,
            finishes,
            copiers,
            for_caller: false,
            hasty,
        };
        // To ask is cheaper than to try.
        while !self.commands.is_empty()
            && let Some(command) = self.commands.pop()
        {
            core.obey(command, self, &mut pass);
        }
        core.note_events();
        let mut worked = core.collect_copied(self, &mut pass);
        if reads != Reads::No {
            worked |= core.read_ready(self, &mut pass);
        }
        worked |= core.write_wanted(self, &mut pass);
        // Not by a caller with something small to send, who reads nothing.
        if reads != Reads::No && pass.now >= core.next_check {
            core.check_stalls(self, &mut pass);
            core.next_check = pass.now + CHECK_NS;
        }
        let finished = run_finishes(&mut pass);
        worked |= finished;
        if engine.settings.caller_driven && (finished || pass.for_caller) {
            self.wake_sleeper();
        }
        // With callers at the wheel, something that they wait for is likely to be answered at once:
        // the answer goes first, and saves its peer a look at the acknowledgement.
        if engine.settings.caller_driven {
            if !core.owes_acks() {
                core.hold_acks_until = 0;
            } else if pass.for_caller && pass.now >= core.hold_acks_until {
                core.hold_acks_until = pass.now + ACK_HOLD_NS;
            }
        }
        if pass.now >= core.hold_acks_until {
            core.flush_owed(self, &mut pass);
        }
        core.finishes = pass.finishes;
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

/// Counts what one thread at a time counts, without the cost of an atomic addition.
fn bump(counter: &AtomicU64) {
    counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}

/// Proxies of an engine, and which flows they own.
pub(crate) struct ProxySet {
    pub(crate) all: Vec<Arc<Proxy>>,
    /// Those that send, and those that receive.
    pub(crate) tx: Placement,
    pub(crate) rx: Placement,
}
