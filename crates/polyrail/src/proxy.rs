//! Proxies: whoever drives one moves data. A proxy thread does, or the user's own thread.
//!
//! A proxy owns flows. Its core is behind one lock, which whoever drives it holds while it works
//! and gives back to sleep; so a thread that posts a small write can drive the proxy for a moment
//! itself instead of waking its thread.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use crossbeam_queue::SegQueue;
use polyrail_proto::{FlowIndex, Landed};
use polyrail_sys::threads::{bind_current, monotonic_ns, thread_cpu_time};
use polyrail_sys::{Memory, PollEvent, Poller};
use slab::Slab;
use socket2::Socket;

use crate::engine::EngineShared;
use crate::finish::{Finish, drain_tx};
use crate::peer::PeerShared;
use crate::rx_flow::RxFlow;
use crate::signal::Signal;
use crate::stats::ProxyStats;
use crate::tx_flow::{Down, TxFlow};

/// How often flows with chunks in flight are checked for a stall.
const CHECK_NS: u64 = 50_000_000;
/// How long a caller sleeps at most before it looks whether what it waits for is over.
const CALLER_SLEEP: Duration = Duration::from_millis(100);
/// How long acknowledgements may wait for an answer of the caller to go first: a few round trips on
/// one host, nothing against one between hosts.
const ACK_HOLD_NS: u64 = 20_000;
/// Payload that nobody wants is read to here.
const SCRATCH_BYTES: u64 = 256 << 10;
/// While polling: looks at the busiest flow directly, and at all of them every so many rounds.
const ROUNDS_PER_POLL: u32 = 16;
/// While polling: looks at the clock every so many rounds.
const ROUNDS_PER_LOOK: u32 = 8;

pub(crate) struct Proxy {
    pub(crate) name: String,
    pub(crate) cpus: Vec<u32>,
    core: Mutex<Core>,
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
    /// Flows that were not read because the inbox was full may be read again.
    Resume,
}

/// Flows of a proxy, and which of them have something to do.
struct Core {
    flows: Slab<AnyFlow>,
    /// Peers with flows from here, with those flows.
    outbound: Vec<Outbound>,
    /// Flows that may have bytes to read.
    ready: Vec<usize>,
    /// The flow that last brought bytes.
    hot: Option<usize>,
    events: Vec<PollEvent>,
    /// Flows with acknowledgements to send, and until when those may wait.
    owing: Vec<usize>,
    hold_acks_until: u64,
    scratch: Memory,
    next_check: u64,
    finishes: Vec<Finish>,
    rounds: u32,
}

struct Outbound {
    peer: Arc<PeerShared>,
    flows: Vec<usize>,
    /// A flow has a frame that is not out yet. No other proxy knows of it, so it can't hang on
    /// `tx_wanted`, which any of them clears when there is nothing new.
    unfinished: bool,
}

/// A connection and what it carries.
enum AnyFlow {
    Tx(Box<TxFlow>),
    Rx(Box<RxFlow>),
    /// Data both ways: where one thread drives both directions anyway, so that small messages and
    /// their answers need one TCP connection, whose acknowledgements then travel with data.
    Both(Box<TxFlow>, Box<RxFlow>),
}

/// What a pass over the flows has at hand.
pub(crate) struct Pass<'a> {
    pub(crate) engine: &'a Arc<EngineShared>,
    /// Time at the beginning of the pass.
    pub(crate) now: u64,
    pub(crate) scratch: &'a Memory,
    /// To be done when no lock is held.
    pub(crate) finishes: Vec<Finish>,
    /// Something came that a caller may be waiting for.
    pub(crate) for_caller: bool,
}

impl Pass<'_> {
    /// A transfer of a peer is complete here.
    pub(crate) fn landed(&mut self, peer: &Arc<PeerShared>, landed: Landed) {
        crate::serve::landed(self, peer, landed);
    }
}

impl Proxy {
    pub(crate) fn new(name: String, cpus: Vec<u32>) -> std::io::Result<Self> {
        Ok(Self {
            name,
            cpus,
            core: Mutex::new(Core {
                flows: Slab::new(),
                outbound: Vec::new(),
                ready: Vec::new(),
                hot: None,
                events: Vec::new(),
                owing: Vec::new(),
                hold_acks_until: 0,
                scratch: Memory::anonymous(SCRATCH_BYTES)?,
                next_check: 0,
                finishes: Vec::new(),
                rounds: 0,
            }),
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

    /// There is work: the proxy looks at it, now or as soon as it is awake.
    pub(crate) fn wake(&self) {
        if self.signal.must_wake() {
            self.poller.wake();
        }
    }

    /// Drives the proxy for one pass, unless somebody does already.
    /// `now` is the machine's monotonic clock.
    pub(crate) fn try_pass(&self, engine: &Arc<EngineShared>, now: u64) -> bool {
        self.try_core().is_some_and(|mut core| self.pass(&mut core, engine, now))
    }

    /// Like [`Self::try_pass`], but also looks for events first.
    pub(crate) fn try_poll(&self, engine: &Arc<EngineShared>) -> bool {
        let Some(mut core) = self.try_core() else { return false };
        core.poll(&self.poller);
        self.pass(&mut core, engine, monotonic_ns())
    }

    /// The proxy thread: drives until the engine closes.
    pub(crate) fn run(&self, engine: &Arc<EngineShared>, spin: Duration) {
        if !self.cpus.is_empty()
            && let Err(error) = bind_current(&self.cpus)
        {
            tracing::warn!(target: "polyrail::proxy", proxy = %self.name, %error, "not bound");
        }
        if engine.config.verbose_bindings {
            let actual = polyrail_sys::threads::allowed_cpus().unwrap_or_default();
            let message = "thread bindings";
            let (name, wanted) = (&self.name, &self.cpus);
            tracing::info!(target: "polyrail::proxy", proxy = %name, ?wanted, ?actual, message);
        }
        self.drive(engine, spin, None, &|| engine.is_closing());
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
        loop {
            self.signal.awake();
            let Some(mut core) = self.try_core() else {
                // Somebody else drives; what they move may be what is waited for.
                if stop() || expired() {
                    return;
                }
                std::thread::yield_now();
                continue;
            };
            let mut now = monotonic_ns();
            let mut busy_at = now;
            loop {
                let worked = self.pass(&mut core, engine, now);
                if stop() {
                    return;
                }
                if worked {
                    now = monotonic_ns();
                    busy_at = now;
                    continue;
                }
                if spin.is_zero() {
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
            if !core.owing.is_empty() {
                core.hold_acks_until = 0;
                if self.pass(&mut core, engine, monotonic_ns()) {
                    continue;
                }
            }
            let mut limit = core.sleep_limit(until);
            if engine.settings.caller_driven {
                // What is waited for may end where no proxy is driven, as by a deadline.
                limit = Some(limit.map_or(CALLER_SLEEP, |limit| limit.min(CALLER_SLEEP)));
            }
            drop(core);
            self.note_thread();
            if expired() {
                return;
            }
            self.sleep(limit);
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
            last_cpu: u32::try_from(self.counters.last_cpu.load(Ordering::Relaxed)).ok(),
            cpu_seconds: get(&self.counters.cpu_ns) as f64 / 1e9,
            passes: get(&self.counters.passes),
            busy_passes: get(&self.counters.busy_passes),
            sleeps: get(&self.counters.sleeps),
        }
    }

    fn try_core(&self) -> Option<MutexGuard<'_, Core>> {
        match self.core.try_lock() {
            Ok(core) => Some(core),
            Err(TryLockError::Poisoned(core)) => Some(core.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sleep(&self, limit: Option<Duration>) {
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
        self.lock().events.append(&mut events);
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
        let cpu = polyrail_sys::threads::current_cpu();
        self.counters.last_cpu.store(i64::from(cpu), Ordering::Relaxed);
    }

    /// One look at everything that has something to do. Says whether anything moved.
    fn pass(&self, core: &mut Core, engine: &Arc<EngineShared>, now: u64) -> bool {
        self.counters.passes.fetch_add(1, Ordering::Relaxed);
        let scratch = core.scratch.clone();
        let finishes = std::mem::take(&mut core.finishes);
        let mut pass = Pass { engine, now, scratch: &scratch, finishes, for_caller: false };
        while let Some(command) = self.commands.pop() {
            core.obey(command, self, &mut pass);
        }
        core.note_events();
        let mut worked = core.read_ready(self, &mut pass);
        worked |= core.write_wanted(self, &mut pass);
        if pass.now >= core.next_check {
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
        if engine.settings.caller_driven && pass.for_caller && pass.now >= core.hold_acks_until {
            core.hold_acks_until = pass.now + ACK_HOLD_NS;
        }
        if pass.now >= core.hold_acks_until {
            core.flush_owed(self, &mut pass);
        }
        core.finishes = pass.finishes;
        if worked {
            self.counters.busy_passes.fetch_add(1, Ordering::Relaxed);
        }
        worked
    }
}

impl Core {
    /// Looks for events without waiting.
    fn poll(&mut self, poller: &Poller) -> bool {
        let before = self.events.len();
        if let Err(error) = poller.wait(&mut self.events, Some(Duration::ZERO)) {
            tracing::error!(target: "polyrail::proxy", %error, "epoll failed");
        }
        self.events.len() > before
    }

    /// While polling: most rounds only try to read where bytes came from last, which costs one
    /// system call that brings the bytes, instead of two.
    fn poll_hot(&mut self, poller: &Poller) -> bool {
        self.rounds = self.rounds.wrapping_add(1);
        if let Some(hot) = self.hot
            && !self.rounds.is_multiple_of(ROUNDS_PER_POLL)
            && self.flows.contains(hot)
        {
            self.mark_readable(hot);
            return false;
        }
        self.poll(poller)
    }

    fn mark_readable(&mut self, key: usize) {
        match self.flows.get_mut(key) {
            Some(AnyFlow::Tx(flow)) => flow.readable = true,
            Some(AnyFlow::Rx(flow) | AnyFlow::Both(_, flow)) => flow.readable = true,
            None => return,
        }
        if !self.ready.contains(&key) {
            self.ready.push(key);
        }
    }

    fn note_events(&mut self) {
        for event in std::mem::take(&mut self.events) {
            let key = event.token as usize;
            if event.readable {
                self.mark_readable(key);
            }
            if event.writable {
                match self.flows.get_mut(key) {
                    Some(AnyFlow::Tx(flow) | AnyFlow::Both(flow, _)) if !flow.writable => {
                        flow.writable = true;
                        flow.peer.want_tx();
                    }
                    Some(AnyFlow::Rx(flow)) if flow.owes_acks() => self.owing.push(key),
                    _ => {}
                }
            }
        }
    }

    fn read_ready(&mut self, proxy: &Proxy, pass: &mut Pass<'_>) -> bool {
        let mut worked = false;
        let mut still_ready = Vec::new();
        for key in std::mem::take(&mut self.ready) {
            let (read, more) = match self.flows.get_mut(key) {
                Some(AnyFlow::Tx(flow)) => (flow.read(pass), flow.readable),
                Some(AnyFlow::Rx(flow)) => {
                    let read = flow.read(pass);
                    if flow.owes_acks() && !self.owing.contains(&key) {
                        self.owing.push(key);
                    }
                    // A full inbox leaves the flow ready: it is looked at again on `Resume`.
                    (read, flow.readable)
                }
                Some(AnyFlow::Both(flow, arriving)) => {
                    let read = arriving.read(pass).and_then(|any| {
                        flow.take_acks(arriving.take_acks(), pass)?;
                        Ok(any)
                    });
                    if arriving.owes_acks() && !self.owing.contains(&key) {
                        self.owing.push(key);
                    }
                    (read, arriving.readable)
                }
                None => continue,
            };
            match read {
                Ok(true) => {
                    worked = true;
                    // Acknowledgements can wait for a look at all flows; data is waited for.
                    if !matches!(self.flows.get(key), Some(AnyFlow::Tx(_))) {
                        self.hot = Some(key);
                    }
                }
                Ok(false) => {}
                Err(down) => {
                    worked = true;
                    self.drop_flow(key, down, proxy, pass);
                    continue;
                }
            }
            if more {
                still_ready.push(key);
            }
        }
        self.ready.append(&mut still_ready);
        worked
    }

    fn write_wanted(&mut self, proxy: &Proxy, pass: &mut Pass<'_>) -> bool {
        let mut worked = false;
        let mut broken: Vec<(usize, Down)> = Vec::new();
        for outbound in &mut self.outbound {
            if !outbound.unfinished && !outbound.peer.tx_wanted.load(Ordering::Acquire) {
                continue;
            }
            outbound.unfinished = false;
            // Always in the same order: small messages stay on one flow, where the peer looks first.
            for key in &outbound.flows {
                // Frames that are begun are finished whether or not anything new is wanted.
                let wanted = |flow: &TxFlow| {
                    flow.is_unfinished() || flow.peer.tx_wanted.load(Ordering::Acquire)
                };
                let (wrote, unfinished) = match self.flows.get_mut(*key) {
                    Some(AnyFlow::Tx(flow)) if wanted(flow) => {
                        (flow.write(pass, None), flow.is_unfinished())
                    }
                    Some(AnyFlow::Both(flow, arriving)) if wanted(flow) => {
                        (flow.write(pass, Some(arriving)), flow.is_unfinished())
                    }
                    _ => continue,
                };
                outbound.unfinished |= unfinished;
                match wrote {
                    Ok(wrote) => worked |= wrote,
                    Err(down) => broken.push((*key, down)),
                }
            }
        }
        for (key, down) in broken {
            worked = true;
            self.drop_flow(key, down, proxy, pass);
        }
        worked
    }

    fn check_stalls(&mut self, proxy: &Proxy, pass: &mut Pass<'_>) {
        let mut broken = Vec::new();
        for (key, flow) in &mut self.flows {
            if let AnyFlow::Tx(flow) | AnyFlow::Both(flow, _) = flow
                && let Err(down) = flow.check_stall(pass)
            {
                broken.push((key, down));
            }
        }
        for (key, down) in broken {
            self.drop_flow(key, down, proxy, pass);
        }
    }

    /// Sends the acknowledgements that wait.
    fn flush_owed(&mut self, proxy: &Proxy, pass: &mut Pass<'_>) {
        let mut still_owing = Vec::new();
        while let Some(key) = self.owing.pop() {
            let flushed = match self.flows.get_mut(key) {
                Some(AnyFlow::Rx(flow)) => flow.flush_acks(),
                Some(AnyFlow::Both(flow, arriving)) => {
                    if flow.take_along(arriving) {
                        flow.write(pass, None).map(drop)
                    } else {
                        // In the middle of a frame: when that is out, or with it.
                        still_owing.push(key);
                        Ok(())
                    }
                }
                _ => continue,
            };
            if let Err(down) = flushed {
                self.drop_flow(key, down, proxy, pass);
            }
        }
        self.owing.append(&mut still_owing);
    }

    /// `None` if nothing has to be checked before something happens.
    fn sleep_limit(&self, until: Option<Instant>) -> Option<Duration> {
        let in_flight = self.outbound.iter().any(|o| o.peer.tx().sender.is_busy());
        let check = in_flight.then_some(Duration::from_nanos(CHECK_NS));
        let rest = until.map(|until| until.saturating_duration_since(Instant::now()));
        match (check, rest) {
            (Some(check), Some(rest)) => Some(check.min(rest)),
            (check, rest) => check.or(rest),
        }
    }

    fn obey(&mut self, command: Command, proxy: &Proxy, pass: &mut Pass<'_>) {
        match command {
            Command::AddTx { peer, flow, socket } => {
                if !peer.is_gone() {
                    self.departs(&peer, flow, &socket, pass);
                    let tx_flow = Box::new(TxFlow::new(peer.clone(), flow, socket.clone()));
                    let key = self.flows.insert(AnyFlow::Tx(tx_flow));
                    self.outbound_of(peer).push(key);
                    self.watch(key, &socket, proxy, pass);
                }
            }
            Command::AddRx { flow } => {
                if self.arrives(&flow, proxy, pass) {
                    let socket = flow.socket().clone();
                    let key = self.flows.insert(AnyFlow::Rx(flow));
                    self.watch(key, &socket, proxy, pass);
                }
            }
            Command::AddBoth { peer, flow, socket, arriving } => {
                if self.arrives(&arriving, proxy, pass) {
                    self.departs(&peer, flow, &socket, pass);
                    let tx_flow = Box::new(TxFlow::new(peer.clone(), flow, socket.clone()));
                    let key = self.flows.insert(AnyFlow::Both(tx_flow, arriving));
                    self.outbound_of(peer).push(key);
                    self.watch(key, &socket, proxy, pass);
                }
            }
            Command::DropPeer { peer } => {
                let of_peer = |flow: &AnyFlow| Arc::ptr_eq(flow.peer(), &peer);
                let keys: Vec<usize> =
                    self.flows.iter().filter(|(_, f)| of_peer(f)).map(|(key, _)| key).collect();
                for key in keys {
                    self.drop_flow(key, Down("the peer is gone".into()), proxy, pass);
                }
                self.outbound.retain(|outbound| !Arc::ptr_eq(&outbound.peer, &peer));
            }
            Command::Resume => {
                let keys: Vec<usize> = self.flows.iter().map(|(key, _)| key).collect();
                for key in keys {
                    self.mark_readable(key);
                }
            }
        }
    }

    /// A flow towards the peer is connected.
    fn departs(
        &mut self,
        peer: &Arc<PeerShared>,
        flow: FlowIndex,
        socket: &Arc<Socket>,
        pass: &Pass<'_>,
    ) {
        let slot = &peer.flows[flow.0 as usize];
        *slot.socket.lock().unwrap_or_else(PoisonError::into_inner) = Some(socket.clone());
        peer.tx().sender.handle_flow_up(polyrail_proto::Time(pass.now), flow);
        slot.refused.store(false, Ordering::Relaxed);
        slot.up_since.store(pass.now, Ordering::Relaxed);
        slot.up.store(true, Ordering::Release);
        peer.want_tx();
    }

    fn outbound_of(&mut self, peer: Arc<PeerShared>) -> &mut Vec<usize> {
        let known = self.outbound.iter().position(|o| Arc::ptr_eq(&o.peer, &peer));
        let index = known.unwrap_or_else(|| {
            self.outbound.push(Outbound { peer, flows: Vec::new(), unfinished: false });
            self.outbound.len() - 1
        });
        &mut self.outbound[index].flows
    }

    /// A flow of the peer is connected; an older connection of it is closed. Says whether it is
    /// welcome.
    fn arrives(&mut self, flow: &RxFlow, proxy: &Proxy, pass: &mut Pass<'_>) -> bool {
        let same = |other: &RxFlow| other.flow == flow.flow && Arc::ptr_eq(&other.peer, &flow.peer);
        let old = self.flows.iter().find_map(|(key, other)| match other {
            AnyFlow::Rx(other) | AnyFlow::Both(_, other) if same(other) => Some((key, other.epoch)),
            _ => None,
        });
        if let Some((key, epoch)) = old {
            if epoch >= flow.epoch {
                return false;
            }
            self.drop_flow(key, Down("replaced by a newer connection".into()), proxy, pass);
        }
        if flow.peer.is_gone() {
            return false;
        }
        flow.peer.rx_flows_up.fetch_add(1, Ordering::Relaxed);
        true
    }

    fn watch(&mut self, key: usize, socket: &Socket, proxy: &Proxy, pass: &mut Pass<'_>) {
        if let Err(error) = proxy.poller.add(socket.as_fd(), key as u64) {
            self.drop_flow(key, error.into(), proxy, pass);
        } else {
            self.mark_readable(key);
        }
    }

    fn drop_flow(&mut self, key: usize, why: Down, proxy: &Proxy, pass: &mut Pass<'_>) {
        let Some(flow) = self.flows.try_remove(key) else { return };
        if self.hot == Some(key) {
            self.hot = None;
        }
        match flow {
            AnyFlow::Tx(flow) => self.departed(key, &flow, &why, proxy, pass),
            AnyFlow::Rx(flow) => arrived(&flow, &why, proxy, pass),
            AnyFlow::Both(flow, arriving) => {
                self.departed(key, &flow, &why, proxy, pass);
                arrived(&arriving, &why, proxy, pass);
            }
        }
    }

    /// A flow towards a peer is gone: its chunks go out on others, and it is connected again.
    fn departed(
        &mut self,
        key: usize,
        flow: &TxFlow,
        why: &Down,
        proxy: &Proxy,
        pass: &mut Pass<'_>,
    ) {
        // What the kernel still holds is sent again elsewhere: it must not arrive later.
        let _ = polyrail_sys::tcp::reset_on_close(&**flow.socket());
        let _ = proxy.poller.remove(flow.socket().as_fd());
        for outbound in &mut self.outbound {
            outbound.flows.retain(|other| *other != key);
        }
        let (peer, index) = (&flow.peer, flow.flow);
        let slot = &peer.flows[index.0 as usize];
        slot.up.store(false, Ordering::Release);
        *slot.socket.lock().unwrap_or_else(PoisonError::into_inner) = None;
        if let Ok(info) = polyrail_sys::tcp::info(&**flow.socket()) {
            slot.stats.past_retransmits.add(info.retransmits);
        }
        slot.stats.down.add(1);
        let mut tx = peer.tx();
        let given_back = tx.sender.handle_flow_down(index);
        slot.stats.resent_chunks.add(given_back as u64);
        drain_tx(&mut tx, pass);
        drop(tx);
        peer.want_tx();
        pass.engine.wake_tx(peer);
        pass.engine.control.flow_lost(peer.clone(), index, why.0.clone());
    }
}

/// A flow from a peer is gone.
fn arrived(flow: &RxFlow, why: &Down, proxy: &Proxy, pass: &mut Pass<'_>) {
    let _ = proxy.poller.remove(flow.socket().as_fd());
    let mut rx = flow.peer.rx();
    rx.receiver.handle_flow_down(flow.flow);
    let mut landed = Vec::new();
    while let Some(event) = rx.receiver.poll_event() {
        landed.push(event);
    }
    drop(rx);
    for event in landed {
        pass.landed(&flow.peer, event);
    }
    flow.peer.rx_flows_up.fetch_sub(1, Ordering::Relaxed);
    pass.engine.control.arrival_lost(flow.peer.clone(), flow.flow, why.0.clone());
}

impl AnyFlow {
    fn peer(&self) -> &Arc<PeerShared> {
        match self {
            Self::Tx(flow) | Self::Both(flow, _) => &flow.peer,
            Self::Rx(flow) => &flow.peer,
        }
    }
}

fn run_finishes(pass: &mut Pass<'_>) -> bool {
    let any = !pass.finishes.is_empty();
    pass.finishes.drain(..).for_each(Finish::run);
    any
}

/// Proxies of an engine, and which flows they own.
pub(crate) struct ProxySet {
    pub(crate) all: Vec<Arc<Proxy>>,
    /// Indices of those that send, and of those that receive.
    pub(crate) tx: Vec<usize>,
    pub(crate) rx: Vec<usize>,
}
