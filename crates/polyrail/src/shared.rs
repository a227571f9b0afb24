//! What all parts of an engine share, and the ways in which operations enter and end.

use std::collections::{HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use polyrail_config::Config;
use polyrail_proto::hello::Card;
use polyrail_proto::message::Message;
use polyrail_proto::wire::Op as WireOp;
use polyrail_proto::{Failure, FlowIndex, InstanceId, Time};
use polyrail_sys::Memory;
use polyrail_sys::threads::monotonic_ns;

use crate::budget::Budget;
use crate::control::ControlHandle;
use crate::direct::DirectQueues;
use crate::engine::Peer;
use crate::error::{PeerError, PostError, TransferError};
use crate::finish::{Finish, begin_read, begin_receive, drain_tx};
use crate::inbox::Inbox;
use crate::observer::Observer;
use crate::op::{Op, OpsPool, Purpose};
use crate::peer::{Layout, OpRef, PeerOptions, PeerShared, TxSide};
use crate::proxy::{Command, DRIVE_TRIES, Pass, ProxySet};
use crate::rails;
use crate::region::Registry;
use crate::request::{Kind, Prepared};
use crate::settings::EngineSettings;
use crate::share::Imports;
use crate::sharing::Page;
use crate::staging::{Copiers, wait_all, wait_patiently};
use crate::trace::Trace;

/// Instances that this engine has parted with; a limit on memory, the oldest is forgotten first.
const PARTED_MAX: usize = 4096;
/// Where proxies spin: small transfers that leave with the caller's own thread though this many
/// others are under way.
const DIRECT_PENDING: usize = 2;
/// Transfers from this size on are worth a proxy each.
const LARGE_BYTES: u64 = 64 << 10;
/// How long a closing engine tries to tell its peers.
const FAREWELL: Duration = Duration::from_millis(1000);

pub(crate) struct EngineShared {
    pub(crate) config: Config,
    pub(crate) settings: EngineSettings,
    pub(crate) card: Card,
    pub(crate) rails: Vec<rails::Rail>,
    pub(crate) registry: Arc<Registry>,
    pub(crate) inbox: Inbox,
    pub(crate) joined: Joined,
    pub(crate) pool: Arc<OpsPool>,
    pub(crate) proxies: ProxySet,
    pub(crate) control: ControlHandle,
    pub(crate) trace: Option<Trace>,
    pub(crate) observer: Option<Arc<dyn Observer>>,
    pub(crate) scratch: Memory,
    pub(crate) staging: Arc<Budget>,
    pub(crate) direct: DirectQueues,
    pub(crate) imports: Imports,
    /// What peers of this host open to see whether they can.
    pub(crate) page: Page,
    peers: RwLock<Vec<Arc<PeerShared>>>,
    parted: Mutex<Parted>,
    next_peer: AtomicU32,
    closing: AtomicBool,
}

/// Peers that came by themselves and wait to be accepted.
#[derive(Default)]
pub(crate) struct Joined {
    queue: Mutex<VecDeque<Peer>>,
    arrived: Condvar,
}

#[derive(Default)]
struct Parted {
    known: HashSet<InstanceId>,
    order: VecDeque<InstanceId>,
}

/// Parts of an engine that are made before it.
pub(crate) struct Parts {
    pub(crate) config: Config,
    pub(crate) settings: EngineSettings,
    pub(crate) card: Card,
    pub(crate) rails: Vec<rails::Rail>,
    pub(crate) proxies: ProxySet,
    pub(crate) control: ControlHandle,
    pub(crate) trace: Option<Trace>,
    pub(crate) observer: Option<Arc<dyn Observer>>,
    pub(crate) scratch: Memory,
}

impl EngineShared {
    pub(crate) fn new(parts: Parts) -> Self {
        let Parts { config, settings, card, rails, proxies, control, trace, observer, scratch } =
            parts;
        Self {
            inbox: Inbox::new(config.notification_queue as usize),
            pool: Arc::new(OpsPool::new(config.ops_pool)),
            registry: Arc::default(),
            joined: Joined::default(),
            staging: Budget::new(config.staging_limit_bytes),
            direct: DirectQueues::default(),
            imports: Imports::default(),
            page: Page::new(),
            peers: RwLock::default(),
            parted: Mutex::default(),
            next_peer: AtomicU32::new(1),
            closing: AtomicBool::new(false),
            config,
            settings,
            card,
            rails,
            proxies,
            control,
            trace,
            observer,
            scratch,
        }
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    pub(crate) fn peers(&self) -> Vec<Arc<PeerShared>> {
        self.peers.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn peer(&self, instance: InstanceId) -> Option<Arc<PeerShared>> {
        let peers = self.peers.read().unwrap_or_else(PoisonError::into_inner);
        peers.iter().find(|peer| peer.instance() == instance).cloned()
    }

    /// Adds a peer, or finds it. `wanted`: by this side's will, so flows are connected at once and
    /// an earlier parting is forgotten.
    pub(crate) fn add_peer(
        self: &Arc<Self>,
        card: Card,
        wanted: bool,
    ) -> Result<Arc<PeerShared>, PeerError> {
        if self.is_closing() {
            return Err(PeerError::Closed);
        }
        if card.instance == self.card.instance {
            return Err(PeerError::Myself);
        }
        let instance = card.instance;
        let known = |known: Arc<PeerShared>| {
            if wanted {
                self.connect_flows(&known);
            }
            Ok(known)
        };
        if let Some(peer) = self.peer(instance) {
            return known(peer);
        }
        // Before the lock is taken, which everybody needs who looks for a peer.
        let peer = Arc::new(self.make_peer(card)?);
        let mut peers = self.peers.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(other) = peers.iter().find(|peer| peer.instance() == instance).cloned() {
            drop(peers);
            return known(other);
        }
        peers.push(peer.clone());
        drop(peers);
        tracing::debug!(target: "polyrail::peer", peer = peer.name(), wanted, "added");
        if wanted {
            self.parted.lock().unwrap_or_else(PoisonError::into_inner).forget(instance);
            self.connect_flows(&peer);
        } else {
            self.joined.push(Peer { shared: peer.clone() });
        }
        Ok(peer)
    }

    fn make_peer(&self, card: Card) -> Result<PeerShared, PeerError> {
        let layout = self.layout(&card)?;
        let options = PeerOptions {
            window_chunks: self.config.window_chunks,
            ops_pool: self.config.ops_pool,
            flow_limit: self.config.flow_limit,
            same_host: card.host == self.card.host,
            rails: self.rails.len(),
            staging: &self.staging,
        };
        let number = self.next_peer.fetch_add(1, Ordering::Relaxed);
        Ok(PeerShared::new(number, card, layout, &self.proxies.tx, options))
    }

    /// Whether the instance must not come back by itself.
    pub(crate) fn has_parted(&self, instance: InstanceId) -> bool {
        let parted = self.parted.lock().unwrap_or_else(PoisonError::into_inner);
        parted.known.contains(&instance)
    }

    pub(crate) fn remove_peer(self: &Arc<Self>, peer: &Arc<PeerShared>) {
        if !peer.is_gone() {
            self.say_bye(std::slice::from_ref(peer));
        }
        self.lose_peer(peer, "removed here".to_owned());
    }

    /// The peer is gone: every operation with it ends, its flows are closed.
    pub(crate) fn lose_peer(self: &Arc<Self>, peer: &Arc<PeerShared>, why: String) {
        if !peer.set_gone(why) {
            return;
        }
        tracing::info!(target: "polyrail::peer", peer = peer.name(), why = peer.lost_text(), "gone");
        self.parted.lock().unwrap_or_else(PoisonError::into_inner).remember(peer.instance());
        let mut peers = self.peers.write().unwrap_or_else(PoisonError::into_inner);
        peers.retain(|other| !Arc::ptr_eq(other, peer));
        drop(peers);
        self.joined.forget(peer);
        self.end_posted(peer);
        wait_all(&self.imports.end_all(peer.instance()));
        let mut pass = self.pass();
        let mut tx = peer.tx();
        tx.sender.end_all(Failure::PeerLost);
        for OpRef(op) in tx.matcher.drain_sends() {
            pass.finishes.push(Finish::Failed(op, Failure::PeerLost));
        }
        drain_tx(&mut tx, &mut pass);
        drop(tx);
        self.end_awaited(peer, |_| true, Failure::PeerLost, &mut pass);
        pass.finishes.drain(..).for_each(Finish::run);
        for proxy in &self.proxies.all {
            proxy.command(Command::DropPeer { peer: peer.clone() });
        }
        if let Some(observer) = &self.observer {
            observer.lost(&Peer { shared: peer.clone() }, &peer.lost_text());
        }
        self.help();
    }

    /// Enters an operation.
    pub(crate) fn post(self: &Arc<Self>, prepared: &Arc<Prepared>) -> Result<Arc<Op>, PostError> {
        let peer = &prepared.peer;
        let gone = || PostError::PeerGone { peer: prepared.peer_name(), why: peer.lost_text() };
        if peer.is_gone() {
            return Err(gone());
        }
        prepared.check_regions()?;
        let busy = PostError::Busy { limit: self.pool.limit() };
        let op = Op::new(prepared.clone(), &self.pool).ok_or_else(|| busy.clone())?;
        if let Some(copies) = &prepared.copies {
            self.post_direct(&op, copies);
            if self.is_closing() {
                // Its proxies may have looked for the last time.
                self.finish_copies();
            }
            return Ok(op);
        }
        match prepared.kind {
            Kind::Write | Kind::Send { .. } => {
                if peer.posted.push(op.clone()).is_err() {
                    op.fail(TransferError::Cancelled);
                    return Err(busy);
                }
            }
            Kind::Receive { tag } => begin_receive(peer, &op, tag),
            Kind::Read => begin_read(peer, &op),
        }
        if peer.is_gone() {
            // It went while this was entered: whoever ended its operations may have missed it.
            self.end_posted(peer);
            self.cancel_for(&op, Failure::PeerLost);
            return Ok(op);
        }
        let bytes = prepared.plan.bytes();
        let small = prepared.kind != Kind::Read && bytes <= self.config.inline_bytes;
        let lanes = match prepared.kind.sends() {
            // What is large keeps those busy who have it, so that others are needed for the next.
            // Where that can't be seen, each that is asked finds more and asks another.
            true if bytes >= LARGE_BYTES => {
                prepared.plan.chunk_count() as usize + peer.pending().unwrap_or(1)
            }
            _ => 1,
        };
        self.send(peer, small, lanes, op.posted.0);
        Ok(op)
    }

    /// There is something to send to the peer that others than the user's thread may begin.
    pub(crate) fn send_soon(self: &Arc<Self>, peer: &Arc<PeerShared>) {
        self.send(peer, false, usize::MAX, 0);
    }

    /// Wakes whoever sends to the peer.
    pub(crate) fn wake_tx(&self, peer: &PeerShared) {
        self.wake_all(peer.lanes.proxies());
    }

    /// Proxies look after their flows while they know of something in flight. One that went to sleep
    /// with nothing does not know what the thread of a caller has sent meanwhile.
    pub(crate) fn wake_stalled(&self, peer: &PeerShared, time: Time) {
        // A proxy wants to look twice: once to note how far the kernel is.
        let stall = self.settings.rail_stall / 2;
        let tx = peer.tx();
        let is_stalled =
            |index: &usize| tx.sender.is_stalled(time, FlowIndex(*index as u32), stall);
        let stalled: Vec<usize> = (0..peer.flows.len()).filter(is_stalled).collect();
        drop(tx);
        for index in stalled {
            self.proxies.all[peer.flows[index].proxy].wake();
        }
    }

    fn wake_all(&self, proxies: &[usize]) {
        for proxy in proxies {
            self.proxies.all[*proxy].wake();
        }
    }

    /// With `progress = caller`: looks for events and moves data. Says whether any moved.
    pub(crate) fn help(self: &Arc<Self>) -> bool {
        // Callers drive a single proxy.
        self.settings.caller_driven && self.proxies.all[0].try_poll(self)
    }

    /// Waits until `over`, at most until the moment given, sleeping by `sleep` (which may return
    /// early) or moving data.
    pub(crate) fn wait_until(
        self: &Arc<Self>,
        until: Option<Instant>,
        over: impl Fn() -> bool,
        sleep: impl Fn(Duration),
    ) {
        const SLICE: Duration = Duration::from_millis(100);
        let spin = Duration::from_micros(self.config.wait_spin_us.into());
        if self.settings.caller_driven {
            let stop = || over() || self.is_closing();
            while !stop() {
                self.proxies.all[0].drive(self, spin, until, &stop);
                if stop() || until.is_some_and(|until| Instant::now() >= until) {
                    return;
                }
            }
            return;
        }
        let start = Instant::now();
        while !over() {
            let now = Instant::now();
            if until.is_some_and(|until| now >= until) {
                return;
            }
            if now - start < spin {
                std::hint::spin_loop();
                continue;
            }
            sleep(until.map_or(SLICE, |until| (until - now).min(SLICE)));
        }
    }

    /// The user wants an operation to end.
    pub(crate) fn cancel(self: &Arc<Self>, op: &Arc<Op>) {
        self.cancel_for(op, Failure::Cancelled);
    }

    pub(crate) fn cancel_for(self: &Arc<Self>, op: &Arc<Op>, failure: Failure) {
        // What a device has begun can't be stopped, and is over soon; its notification can.
        if op.is_over() || op.is_copying() && op.transfer().is_none() {
            return;
        }
        let peer = &op.prepared.peer;
        let mut pass = self.pass();
        match op.prepared.kind {
            Kind::Write | Kind::Send { .. } => {
                let mut tx = peer.tx();
                match op.transfer() {
                    Some(id) => {
                        tx.sender.end(id, failure);
                        drain_tx(&mut tx, &mut pass);
                    }
                    None => {
                        if let Kind::Send { tag } = op.prepared.kind {
                            tx.matcher.cancel_send(tag, &OpRef(op.clone()));
                        }
                        // Still in the pool: whoever fetches it sees that it is over.
                        pass.finishes.push(Finish::Failed(op.clone(), failure));
                    }
                }
            }
            Kind::Read | Kind::Receive { .. } => {
                self.end_awaited(peer, |other| Arc::ptr_eq(other, op), failure, &mut pass);
            }
        }
        pass.finishes.drain(..).for_each(Finish::run);
        self.send_soon(peer);
    }

    /// Ends operations whose deadline has passed.
    pub(crate) fn end_late(self: &Arc<Self>, peer: &Arc<PeerShared>, now: Time) {
        let late = |op: &Arc<Op>| op.deadline.is_some_and(|deadline| deadline <= now);
        let mut pass = self.pass();
        let mut tx = peer.tx();
        let was_idle = !tx.sender.has_work();
        fetch_old(peer, &mut tx, now, &mut pass);
        tx.sender.handle_timeout(now);
        let waiting: Vec<Arc<Op>> =
            tx.matcher.sends().map(|(_, OpRef(op))| op.clone()).filter(late).collect();
        drain_tx(&mut tx, &mut pass);
        let has_begun = was_idle && tx.sender.has_work();
        drop(tx);
        if has_begun {
            self.send_soon(peer);
        }
        self.end_awaited(peer, late, Failure::Deadline, &mut pass);
        pass.finishes.drain(..).for_each(Finish::run);
        for op in waiting {
            self.cancel_for(&op, Failure::Deadline);
        }
    }

    /// Tells proxies to read again, if they stopped because the inbox was full.
    pub(crate) fn resume_reading(&self) {
        if self.inbox.resume() {
            for proxy in self.proxies.rx.proxies() {
                self.proxies.all[proxy].command(Command::Resume);
            }
        }
    }

    /// Ends everything, having told the peers if that is possible at once.
    pub(crate) fn close(self: &Arc<Self>) {
        let peers = self.peers();
        self.say_bye(&peers);
        for peer in peers {
            self.lose_peer(&peer, "this engine closed".to_owned());
        }
        self.closing.store(true, Ordering::Release);
        for proxy in &self.proxies.all {
            proxy.wake();
        }
        self.control.stop();
    }

    /// With `progress = caller`: sends what callers left to others.
    pub(crate) fn send_what_is_left(self: &Arc<Self>) {
        if self.settings.caller_driven {
            self.proxies.all[0].send_what_is_left(self);
        }
    }

    /// When it has closed: ends what devices still copy.
    pub(crate) fn finish_copies(self: &Arc<Self>) {
        self.proxies.all.iter().for_each(|proxy| proxy.finish_copies(self));
    }

    pub(crate) fn finish_trace(&self) {
        if let Some(trace) = &self.trace
            && let Err(error) = trace.write(self)
        {
            let path = trace.path().display().to_string();
            tracing::error!(target: "polyrail::engine", path, %error, "can't write the trace");
        }
    }

    pub(crate) fn pass(self: &Arc<Self>) -> Pass<'_> {
        let now = monotonic_ns();
        let scratch = &self.scratch;
        let (finishes, copiers) = (Vec::new(), Copiers::default());
        Pass { engine: self, now, scratch, finishes, copiers, for_caller: false, hasty: false }
    }

    /// Has someone send: so many proxies are asked to.
    fn send(self: &Arc<Self>, peer: &Arc<PeerShared>, small: bool, lanes: usize, now: u64) {
        let asked = peer.want_tx(lanes);
        if !peer.connecting.load(Ordering::Relaxed) {
            self.connect_flows(peer);
        }
        self.control.nudge();
        // A small transfer leaves with the caller's own thread if nothing is under way; while
        // something is, it gathers with others until their number makes a call worth while. Where
        // proxies spin, time counts for more than calls.
        let few = if self.config.proxy_spin_us > 0 { DIRECT_PENDING } else { 0 };
        let direct = small
            && (peer.posted.len() >= self.config.append_batch as usize
                || self.pending_of(peer) <= few);
        if self.settings.caller_driven {
            if direct {
                self.proxies.all[0].send_or_leave(self);
            }
            return;
        }
        // If its thread drives the proxy just now, it will see what is wanted.
        let tries = if few > 0 { DRIVE_TRIES } else { 1 };
        let drive = |proxy: &usize| self.proxies.all[*proxy].try_send(self, now, tries);
        if !direct || asked.iter().all(|proxy| drive(proxy) != Some(true)) {
            self.wake_all(asked);
        }
    }

    /// Chunks that wait to be sent. Who sends or takes acknowledgements just now is not waited for:
    /// a proxy with a thread of its own goes on by itself, and callers leave it to each other.
    fn pending_of(&self, peer: &PeerShared) -> usize {
        peer.pending().unwrap_or(if self.settings.caller_driven { 0 } else { usize::MAX })
    }

    fn connect_flows(&self, peer: &Arc<PeerShared>) {
        if !peer.connecting.swap(true, Ordering::AcqRel) {
            self.control.connect(peer.clone());
        }
    }

    fn layout(&self, card: &Card) -> Result<Layout, PeerError> {
        let pairs = rails::pair(&self.card.rails, &card.rails)?;
        let channels = match self.config.channels {
            // At most four times MAX_RAILS, which fits.
            0 => pairs.len() as u32 * self.settings.channels_per_rail,
            channels => channels,
        };
        let layout = Layout { pairs, channels, sockets: self.config.sockets };
        let flows = u64::from(layout.channels) * u64::from(layout.sockets);
        if flows > self.config.flow_limit.into() {
            return Err(PeerError::FlowLimit { flows, limit: self.config.flow_limit });
        }
        Ok(layout)
    }

    /// Ends what waits in the pool of a peer that is gone.
    fn end_posted(&self, peer: &PeerShared) {
        while let Some(op) = peer.posted.pop() {
            op.fail_for(Failure::PeerLost);
        }
    }

    /// Ends reads and receives: when this returns, nothing of them lands any more.
    fn end_awaited(
        self: &Arc<Self>,
        peer: &Arc<PeerShared>,
        which: impl Fn(&Arc<Op>) -> bool,
        failure: Failure,
        pass: &mut Pass<'_>,
    ) {
        let mut over: Vec<(WireOp, u64, Arc<Op>)> = Vec::new();
        {
            let mut rx = peer.rx();
            let rx = &mut *rx;
            let reads = rx.reads.extract_if(|_, part| which(&part.op));
            over.extend(reads.map(|(read, part)| (WireOp::ReadData, read, part.op)));
            let receives = rx.receives.extract_if(|_, receive| which(&receive.op));
            over.extend(receives.map(|(n, receive)| (WireOp::SendData, n, receive.op)));
        }
        for (wire_op, context, op) in over {
            // A flow may be inside a non-blocking system call, or a device copy.
            wait_patiently(|| peer.rx().expel(wire_op, context));
            if failure != Failure::PeerLost {
                let message = match wire_op {
                    WireOp::ReadData => Message::ReadCancelled { read: context },
                    _ => Message::ReceiveWithdrawn { receive: context },
                };
                peer.tx().tell(Time(pass.now), &message, Purpose::Tell);
            }
            pass.finishes.push(Finish::Failed(op, failure));
        }
    }

    fn say_bye(self: &Arc<Self>, peers: &[Arc<PeerShared>]) {
        let reachable = |peer: &&Arc<PeerShared>| peer.flows_up() > 0 && !peer.is_gone();
        let told: Vec<_> = peers.iter().filter(reachable).collect();
        for peer in &told {
            peer.leaving.store(true, Ordering::Release);
            peer.tx().tell(Time(monotonic_ns()), &Message::Bye, Purpose::Tell);
            self.send_soon(peer);
        }
        let until = Instant::now() + FAREWELL;
        let busy = |peer: &&Arc<PeerShared>| peer.tx().sender.is_busy() && peer.flows_up() > 0;
        while told.iter().copied().any(|peer| busy(&peer)) && Instant::now() < until {
            if !self.help() {
                std::thread::sleep(Duration::from_micros(200));
            }
        }
    }
}

/// Moves what was posted long ago and never fetched, because no flow is up or none takes bytes,
/// to where its deadline is looked after. In order, so sends of one tag keep theirs.
fn fetch_old(peer: &Arc<PeerShared>, tx: &mut TxSide, now: Time, pass: &mut Pass<'_>) {
    const OLD: Duration = Duration::from_millis(50);
    // Once the peer is gone its operations have been ended, and no more may enter.
    while !peer.is_gone()
        && let Some(op) = peer.posted.pop()
    {
        let old = now.since(op.posted) >= OLD;
        tx.submit_op(now, op, pass);
        if !old {
            break;
        }
    }
}

impl Joined {
    pub(crate) fn wait(&self, timeout: Duration) -> Option<Peer> {
        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let empty = |queue: &mut VecDeque<Peer>| queue.is_empty();
        let waited = self.arrived.wait_timeout_while(queue, timeout, empty);
        waited.unwrap_or_else(PoisonError::into_inner).0.pop_front()
    }

    /// The peer has left before anybody accepted it, if ever anybody does.
    fn forget(&self, peer: &Arc<PeerShared>) {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.retain(|other| !Arc::ptr_eq(&other.shared, peer));
    }

    fn push(&self, peer: Peer) {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).push_back(peer);
        self.arrived.notify_one();
    }
}

impl Parted {
    fn remember(&mut self, instance: InstanceId) {
        if self.known.insert(instance) {
            self.order.push_back(instance);
        }
        if self.order.len() > PARTED_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
    }

    fn forget(&mut self, instance: InstanceId) {
        if self.known.remove(&instance) {
            self.order.retain(|other| *other != instance);
        }
    }
}
