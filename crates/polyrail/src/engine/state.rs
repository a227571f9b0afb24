//! What all parts of an engine share, and the ways in which operations enter and end.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::Waker;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use polyrail_config::{Config, Polling};
use polyrail_proto::hello::{Card, Metadata};
use polyrail_proto::{Failure, FlowIndex, InstanceId, Time};
use polyrail_sys::process::Original;
use polyrail_sys::threads::monotonic_ns;

use crate::base::callback::Callbacks;
use crate::base::error::{PostError, TransferError};
use crate::base::invitation::Invitation;
use crate::base::reason::{ConnectReason, LostReason};
use crate::device::budget::Budget;
use crate::device::imports::Imports;
use crate::device::peer_copy::PeerCopyQueues;
use crate::device::shared_page::Page;
use crate::engine::awaited::Awaited;
use crate::engine::begin::{begin_read, begin_receive};
use crate::engine::control_handle::ControlHandle;
use crate::engine::counters::Counter;
use crate::engine::credentials::Credentials;
use crate::engine::inbox::Inbox;
use crate::engine::joining::Hook;
use crate::engine::life::PeerEvent;
use crate::engine::observer::Observer;
use crate::engine::op::{Op, OpsPool};
use crate::engine::pass::Ends;
use crate::engine::peer::{Announcing, PeerShared};
use crate::engine::peer_handle::Peer;
use crate::engine::prepared::{OpKind, Prepared};
use crate::engine::proven_names::ProvenNames;
use crate::engine::proxy_handle::{DRIVE_TRIES, ProxyCommand, ProxySet};
use crate::engine::sessions::Parted;
use crate::engine::settings::EngineSettings;
use crate::engine::tally::Durations;
use crate::engine::tasks::{Bells, PendingAnswer, question};
use crate::engine::totals::Totals;
use crate::engine::trace::Trace;
use crate::engine::{local_engines, rail_selection};
use crate::memory::registry::Registry;
use crate::wake::spin::{POLL_NS, Pollers, Waits};

/// Where proxies spin: small transfers that leave with the caller's own thread though this many
/// others are under way.
const DIRECT_PENDING: usize = 2;
/// Transfers from this size on are worth a proxy each.
const LARGE_BYTES: u64 = 64 << 10;

pub(crate) struct EngineShared {
    /// Work that somebody would have left alone for good; see [`crate::engine::audit`].
    pub(crate) rescues: Counter,
    pub(crate) pollers: Pollers,
    /// How long callers have waited lately.
    waits: Waits,
    pub(crate) config: Config,
    pub(crate) settings: EngineSettings,
    pub(crate) credentials: Credentials,
    pub(crate) card: Card,
    pub(crate) rails: Vec<rail_selection::ChosenRail>,
    pub(crate) registry: Arc<Registry>,
    pub(crate) callbacks: Arc<Callbacks>,
    pub(crate) inbox: Inbox,
    /// Peers that came by themselves and wait to be accepted.
    pub(crate) joined: Awaited<VecDeque<Peer>>,
    pub(crate) pool: Arc<OpsPool>,
    pub(crate) proxies: ProxySet,
    pub(crate) control: ControlHandle,
    pub(crate) trace: Option<Trace>,
    pub(crate) observer: Option<Arc<dyn Observer>>,
    /// Says who may join.
    pub(crate) admit: Option<Arc<Hook>>,
    pub(crate) staging: Arc<Budget>,
    pub(crate) peer_copies: PeerCopyQueues,
    pub(crate) imports: Imports,
    /// What peers of this host open to see whether they can.
    pub(crate) page: Page,
    pub(crate) peers: RwLock<Vec<Arc<PeerShared>>>,
    /// What moved with peers that are gone; added to while the list of peers is locked.
    pub(crate) past: Mutex<Totals>,
    /// What the statistics have told of all peers so far.
    pub(crate) told: Mutex<Totals>,
    pub(crate) parted: Mutex<Parted>,
    /// Whom certificates say that others are.
    pub(crate) names: ProvenNames,
    pub(crate) next_peer: AtomicU32,
    /// Peers that were removed where nobody may wait, and until when they hear of it.
    pub(crate) leaving: Mutex<Vec<(Arc<PeerShared>, Instant)>>,
    /// It takes no operations and no peers any more.
    closed: AtomicBool,
    /// Its threads are to end.
    closing: AtomicBool,
    pub(crate) bells: Arc<Bells>,
    pub(crate) original: Arc<Original>,
    pub(crate) started: Instant,
}

/// Parts of an engine that are made before it.
pub(crate) struct Parts {
    pub(crate) config: Config,
    pub(crate) settings: EngineSettings,
    pub(crate) credentials: Credentials,
    pub(crate) card: Card,
    pub(crate) rails: Vec<rail_selection::ChosenRail>,
    pub(crate) proxies: ProxySet,
    pub(crate) control: ControlHandle,
    pub(crate) trace: Option<Trace>,
    pub(crate) observer: Option<Arc<dyn Observer>>,
    /// Says who may join.
    pub(crate) admit: Option<Arc<Hook>>,
}

impl EngineShared {
    pub(crate) fn new(parts: Parts) -> Self {
        let Parts {
            config,
            settings,
            credentials,
            card,
            rails,
            proxies,
            control,
            trace,
            observer,
            admit,
        } = parts;
        let (callbacks, original) = (Arc::<Callbacks>::default(), Arc::<Original>::default());
        let bells = Arc::new(Bells::new(callbacks.clone()));
        Self {
            rescues: Counter::default(),
            pollers: Pollers::new(config.polling == Polling::Auto, settings.cpus),
            waits: Waits::default(),
            inbox: Inbox::new(config.notification_queue as usize, bells.clone()),
            pool: Arc::new(OpsPool::new(
                config.ops_pool,
                (!config.metrics_listen.is_empty()).then(Durations::new),
                callbacks.clone(),
                bells.clone(),
            )),
            registry: Arc::new(Registry::new(
                callbacks.clone(),
                original.clone(),
                local_engines::region_ended,
            )),
            callbacks,
            joined: Awaited::new(bells.clone()),
            staging: Budget::new(config.staging_limit_bytes),
            peer_copies: PeerCopyQueues::default(),
            imports: Imports::default(),
            page: Page::new(),
            peers: RwLock::default(),
            past: Mutex::default(),
            told: Mutex::default(),
            parted: Mutex::default(),
            names: ProvenNames::default(),
            next_peer: AtomicU32::new(1),
            leaving: Mutex::default(),
            closed: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            bells,
            original,
            started: Instant::now(),
            config,
            settings,
            credentials,
            card,
            rails,
            proxies,
            control,
            trace,
            observer,
            admit,
        }
    }

    /// Whether this process is a copy, by `fork`, of the one whose engine this is: its threads are
    /// not here, its connections are not to be touched, and locks may be held for ever.
    pub(crate) fn is_forked(&self) -> bool {
        self.original.is_copy()
    }

    /// Whether it takes no operations and no peers any more.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Whether its threads are to end.
    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    pub(crate) fn peers(&self) -> Vec<Arc<PeerShared>> {
        self.peers.read().clone()
    }

    pub(crate) fn peer(&self, instance: InstanceId) -> Option<Arc<PeerShared>> {
        let peers = self.peers.read();
        peers.iter().find(|peer| peer.instance() == instance).cloned()
    }

    /// Enters an operation.
    /// `notification`: instead of the request's own.
    pub(crate) fn post(
        self: &Arc<Self>,
        prepared: &Arc<Prepared>,
        notification: Option<Vec<u8>>,
    ) -> Result<Arc<Op>, PostError> {
        if self.is_forked() {
            return Err(PostError::Forked);
        }
        if self.is_closed() {
            return Err(PostError::Closed);
        }
        let peer = &prepared.peer;
        let gone = || PostError::PeerGone { peer: prepared.peer_name(), why: peer.lost_reason() };
        if peer.is_gone() || peer.is_parting() {
            return Err(gone());
        }
        if let OpKind::Send { .. } | OpKind::Receive { .. } = prepared.kind {
            prepared.regions.iter().for_each(|region| region.note_waiting());
        }
        prepared.check_regions()?;
        let busy = PostError::Busy { limit: self.pool.limit() };
        let op = Op::new(prepared.clone(), notification, &self.pool).ok_or_else(|| busy.clone())?;
        if let Some(copies) = &prepared.copies {
            self.post_copies(&op, copies);
            if self.is_closing() {
                // Its proxies may have looked for the last time.
                self.finish_copies();
            }
            return Ok(op);
        }
        let announcing = Announcing::begin(peer);
        match prepared.kind {
            OpKind::Write | OpKind::Send { .. } => {
                if peer.posted.push(op.clone()).is_err() {
                    op.fail(TransferError::Cancelled);
                    return Err(busy);
                }
            }
            OpKind::Receive { tag } => begin_receive(peer, &op, tag),
            OpKind::Read => begin_read(peer, &op),
        }
        if peer.is_gone() {
            // It went while this was entered: whoever ended its operations may have missed it.
            self.end_posted(peer);
            self.cancel_for(&op, Failure::PeerLost);
            return Ok(op);
        }
        let bytes = prepared.plan.bytes();
        let small = prepared.kind != OpKind::Read && bytes <= self.config.inline_bytes;
        let proxies = match prepared.kind.sends() {
            // Ask one proxy for each chunk that waits, those of operations included that no proxy
            // has fetched yet. A proxy that finds more than it can send asks another.
            true if bytes >= LARGE_BYTES => {
                prepared.plan.chunk_count() as usize + peer.posted.len().saturating_sub(1)
            }
            _ => 1,
        };
        self.send(peer, &announcing, small, proxies, op.posted.0);
        Ok(op)
    }

    /// There is something to send to the peer that others than the user's thread may begin.
    pub(crate) fn send_soon(self: &Arc<Self>, peer: &Arc<PeerShared>) {
        self.send(peer, &Announcing::begin(peer), false, usize::MAX, 0);
    }

    /// Has everybody look who sends to the peer.
    pub(crate) fn ask_all(&self, peer: &PeerShared) {
        let _announcing = Announcing::begin(peer);
        self.wake_all(peer.tx_proxies.want(usize::MAX).all().iter().copied());
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
            self.proxies.all[peer.flows[index].proxy].check();
        }
    }

    /// Has this proxy look for something to send to the peer.
    pub(crate) fn ask(&self, peer: &PeerShared, proxy: usize) {
        let _announcing = Announcing::begin(peer);
        peer.tx_proxies.join(peer.tx_proxies.place_of(proxy));
        self.proxies.all[proxy].wake();
    }

    /// Has one more proxy send to the peer, if there is one that was not asked.
    pub(crate) fn ask_another(&self, peer: &PeerShared) {
        if !peer.tx_proxies.may_ask_another() {
            return;
        }
        let _announcing = Announcing::begin(peer);
        if let Some(other) = peer.tx_proxies.ask_another() {
            self.proxies.all[other].wake();
        }
    }

    fn wake_all(&self, proxies: impl Iterator<Item = usize>) {
        proxies.for_each(|proxy| self.proxies.all[proxy].wake());
    }

    /// With `progress = caller`: looks for events and moves data. Says whether any moved.
    pub(crate) fn help(self: &Arc<Self>) -> bool {
        // Callers drive a single proxy.
        self.settings.caller_driven && !self.is_forked() && self.proxies.driven[0].try_poll(self)
    }

    /// With `progress = caller`: polls the task again at once, as nobody else makes progress.
    pub(crate) fn poll_again(&self, waker: &Waker) {
        if self.settings.caller_driven {
            waker.wake_by_ref();
        }
    }

    /// Finds out who listens there. With an invitation it must be the engine that gave it.
    pub(crate) fn introduce(
        &self,
        address: SocketAddr,
        invitation: Option<Invitation>,
    ) -> PendingAnswer<Result<Metadata, ConnectReason>> {
        if self.is_forked() {
            return PendingAnswer::of_nobody(&self.bells);
        }
        let (answer, asked) = question(&self.bells);
        self.control.introduce(address, invitation, answer);
        if self.is_closing() {
            // The control thread may not look any more.
            self.control.forget_commands();
        }
        asked
    }

    /// Waits until `over`, at most until the moment given, sleeping by `sleep` (which may return
    /// early) or moving data.
    pub(crate) fn wait_until(
        self: &Arc<Self>,
        until: Option<Instant>,
        over: impl Fn() -> bool,
        sleep: impl Fn(Duration),
    ) {
        if self.is_forked() {
            return;
        }
        let spin = Duration::from_micros(self.config.wait_spin_us.into());
        if until.is_some_and(|until| Instant::now() >= until) {
            // A look: one pass at most, and no wait for who drives just now.
            if !over() {
                self.help();
            }
            return;
        }
        if self.settings.caller_driven {
            let stop = || over() || self.is_closing();
            while !stop() {
                self.proxies.driven[0].drive(self, spin, until, &stop);
                if stop() || until.is_some_and(|until| Instant::now() >= until) {
                    return;
                }
            }
            return;
        }
        // The other way there and back again, with what devices do on it.
        const POLL: Duration = Duration::from_nanos(2 * POLL_NS);
        let polls = self.pollers.are_allowed() && self.waits.are_short();
        let spin = if polls { spin.max(POLL) } else { spin };
        let start = Instant::now();
        self.wait_asleep(start, spin, until, over, sleep);
        self.waits.note(u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX));
    }

    /// Polls for `spin` from `start`, then sleeps.
    fn wait_asleep(
        &self,
        start: Instant,
        spin: Duration,
        until: Option<Instant>,
        over: impl Fn() -> bool,
        sleep: impl Fn(Duration),
    ) {
        /// Whoever ends what is waited for wakes the waiter.
        const FOREVER: Duration = Duration::from_secs(86_400);
        while !over() {
            let now = Instant::now();
            if until.is_some_and(|until| now >= until) {
                return;
            }
            if now - start < spin {
                std::hint::spin_loop();
                continue;
            }
            sleep(until.map_or(FOREVER, |until| until - now));
        }
    }

    /// Tells proxies to read again from those peers whose share of the inbox was full and is no
    /// more.
    pub(crate) fn resume_reading<'a>(&self, peers: impl IntoIterator<Item = &'a Arc<PeerShared>>) {
        for peer in peers {
            if self.inbox.resume(peer) {
                for proxy in self.proxies.rx.proxies() {
                    self.proxies.all[proxy].command(ProxyCommand::Resume { peer: peer.clone() });
                }
            }
        }
    }

    /// With `progress = caller`: sends what callers left to others.
    pub(crate) fn send_what_is_left(self: &Arc<Self>) {
        if self.settings.caller_driven {
            self.proxies.driven[0].send_what_is_left(self);
        }
    }

    /// When it has closed: ends what devices still copy.
    pub(crate) fn finish_copies(self: &Arc<Self>) {
        self.proxies.driven.iter().for_each(|proxy| proxy.finish_copies(self));
    }

    pub(crate) fn finish_trace(&self) {
        if let Some(trace) = &self.trace
            && let Err(error) = trace.write(self)
        {
            let path = trace.path().display().to_string();
            tracing::error!(target: "polyrail::engine", path, %error, "can't write the trace");
        }
    }

    pub(crate) fn ends(&self) -> Ends<'_> {
        Ends { settings: &self.settings, now: monotonic_ns(), finishes: Vec::new() }
    }

    /// Has someone send: so many proxies are asked to.
    fn send(
        self: &Arc<Self>,
        peer: &Arc<PeerShared>,
        announcing: &Announcing<'_>,
        small: bool,
        proxies: usize,
        now: u64,
    ) {
        self.connect_flows(peer);
        self.control.nudge();
        // A small transfer leaves with the caller's own thread if nothing is under way; while
        // something is, it gathers with others until their number makes a call worth while. Where
        // proxies spin, time counts for more than calls.
        let few = if self.config.proxy_spin_us > 0 { DIRECT_PENDING } else { 0 };
        let direct = small
            && (peer.posted.len() >= self.config.append_batch as usize
                || self.pending_of(peer) <= few);
        if self.settings.caller_driven {
            peer.want_tx(proxies);
            if direct {
                self.proxies.driven[0].send_or_leave(self);
            }
            return;
        }
        let asked = peer.want_tx(proxies);
        if direct && self.drive_one_of(asked.all(), now, few > 0) {
            // It has sent everything.
        } else if announcing.is_alone || self.pollers.are_allowed() {
            self.wake_all(asked.to_wake(|proxy| self.proxies.all[proxy].must_be_told()));
        } else {
            // Whoever asked some of them may have no CPU to wake them with.
            self.wake_all(asked.all().iter().copied());
        }
    }

    /// Sends with this thread what there is to send. Says whether that is all.
    fn drive_one_of(self: &Arc<Self>, proxies: &[usize], now: u64, insists: bool) -> bool {
        // If its thread drives the proxy just now, it will see what is wanted.
        let tries = if insists { DRIVE_TRIES } else { 1 };
        proxies
            .iter()
            .any(|proxy| self.proxies.driven[*proxy].try_send(self, now, tries) == Some(true))
    }

    /// Chunks that wait to be sent. Who sends or takes acknowledgements just now is not waited for:
    /// a proxy with a thread of its own goes on by itself, and callers leave it to each other.
    fn pending_of(&self, peer: &PeerShared) -> usize {
        peer.pending().unwrap_or(if self.settings.caller_driven { 0 } else { usize::MAX })
    }

    pub(crate) fn connect_flows(&self, peer: &Arc<PeerShared>) {
        // In this order: most often they are connected, and a look costs less.
        if !peer.wants_flows() && peer.want_flows() {
            self.control.connect(peer.clone());
        }
    }

    /// Ends everything, having told the peers if that is possible at once.
    pub(crate) fn close(self: &Arc<Self>) {
        if self.is_forked() || self.closed.swap(true, Ordering::AcqRel) {
            return;
        }
        let peers = self.peers();
        self.say_bye(&peers, PeerEvent::Close);
        for peer in peers {
            self.lose_peer(&peer, PeerEvent::Told, LostReason::EngineClosed);
        }
        self.closing.store(true, Ordering::Release);
        self.inbox.queue.close();
        self.joined.close();
        for proxy in &self.proxies.all {
            proxy.wake();
        }
        self.control.stop();
    }
}
