//! Proxies: whoever drives one moves data. A proxy thread does, or the user's own thread.
//!
//! A proxy owns flows. Its core is behind one lock, which whoever drives it holds while it works
//! and gives back to sleep; so a thread that posts a small write can drive the proxy for a moment
//! itself instead of waking its thread.

mod core;
mod drive;
mod held;
pub(crate) mod placement;

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use crossbeam_queue::SegQueue;
use polyrail_proto::{FlowIndex, Landed};
use polyrail_sys::threads::monotonic_ns;
use polyrail_sys::{Memory, PollEvent, Poller};
use socket2::Socket;

use self::core::{CHECK_NS, Core, run_finishes};
use self::held::Held;
use crate::base::driving::Driving;
use crate::device::staging::Copiers;
use crate::diag::stats::ProxyStats;
use crate::engine::finish::Finish;
use crate::engine::op::Op;
use crate::engine::peer::PeerShared;
use crate::engine::state::EngineShared;
use crate::proxy::placement::Placement;
use crate::receiver::flow::RxFlow;
use crate::wake::handover::Handover;
use crate::wake::outlook::Outlook;
use crate::wake::signal::Signal;

/// Size of the memory that payload which nobody wants is read to.
const SCRATCH_BYTES: u64 = 256 << 10;
/// How long acknowledgements may wait for an answer of the caller to go first: a few round trips on
/// one host, nothing against one between hosts.
const ACK_HOLD_NS: u64 = 20_000;
/// How often a caller tries to drive a proxy that somebody else drives: for as long as a look at a
/// socket takes.
pub(crate) const DRIVE_TRIES: u32 = 12;
/// Passes that a caller makes in one call for what others left to it meanwhile.
const LEFT_ROUNDS: u32 = 8;

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
    /// How it sleeps, if it does: see `Sleep::must_be_told`.
    must_be_told: AtomicBool,
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
    rescues: AtomicU64,
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
    /// Whether the peer is still there, on flows that come from it, is to be found out.
    Probe {
        peer: Arc<PeerShared>,
    },
    /// Devices copy from end to end for it: somebody has to see when they are done.
    Copying(Arc<Op>),
    /// A region of a device has ended: its memory is not to be kept.
    LetGo,
    /// Flows of the peer that were not read because its share of the inbox was full may be read again.
    Resume {
        peer: Arc<PeerShared>,
    },
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
        crate::receiver::serve::landed(self, peer, landed);
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
            must_be_told: AtomicBool::new(false),
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

    /// Has a proxy that sleeps check its flows for stalls. That tells it of nothing to move.
    pub(crate) fn check(&self) {
        self.poller.wake();
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
        let (asks, is_held_up) = (core.outlook() == Outlook::Ask, core.is_held_up);
        drop(core);
        if asks {
            // A device has begun something, and the caller has other things to do than to ask.
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
            rescues: get(&self.counters.rescues),
        }
    }

    /// Whether its thread sleeps until it is told of something, and nobody has.
    pub(crate) fn is_asleep(&self) -> bool {
        self.must_be_told.load(Ordering::Relaxed) && self.signal.is_asleep()
    }

    pub(crate) fn rescues(&self) -> u64 {
        self.counters.rescues.load(Ordering::Relaxed)
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

    /// With callers at the wheel: whoever sleeps on the poller may wait for what just happened, and
    /// the event that it would have woken up for is used up.
    fn wake_sleeper(&self) {
        if let Err(TryLockError::WouldBlock) = self.sleeper.try_lock() {
            self.poller.wake();
        }
    }

    /// One look at everything that has something to do. Says whether anything moved.
    fn pass(&self, core: &mut Core, engine: &Arc<EngineShared>, now: u64, reads: Reads) -> bool {
        bump(&self.counters.passes);
        let _driving = Driving::begin();
        let hasty = reads != Reads::Yes;
        let finishes = std::mem::take(&mut core.finishes);
        let copiers = std::mem::take(&mut core.copiers);
        let mut is_unannounced = std::mem::take(&mut core.is_unannounced);
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
            is_unannounced = false;
            core.obey(command, self, &mut pass);
        }
        core.note_events();
        let mut worked = core.collect_copied(self, &mut pass);
        if reads != Reads::No {
            worked |= core.read_ready(self, &mut pass);
        }
        worked |= core.write_wanted(self, &mut pass);
        // In this order: whoever is through with telling has told.
        if is_unannounced && worked && !core.is_being_told() && !self.signal.is_told() {
            self.counters.rescues.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(target: "polyrail::proxy", proxy = %self.name,
                "moved what nobody had told it of; please report this");
        }
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
