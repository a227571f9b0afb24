//! What an engine knows of a peer: both protocol cores, the flows, and who waits for what.

use std::collections::{HashMap, VecDeque};
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crossbeam_queue::ArrayQueue;
use parking_lot::{Mutex, MutexGuard};
use polyrail_config::Payload;
use polyrail_gpu::Ticket;
use polyrail_proto::hello::{Card, Metadata};
use polyrail_proto::matching::Matcher;
use polyrail_proto::wire::{Place, RefusalCode, WireOp};
use polyrail_proto::{
    FlowIndex, InstanceId, Landed, Receiver, ReceiverLimits, Sender, SenderConfig, Time, TransferId,
};
use polyrail_secure::Capability;
use polyrail_sys::tcp;
use polyrail_sys::threads::monotonic_ns;
use slab::Slab;
use socket2::Socket;

use crate::base::callback::HoldsUserLock;
use crate::base::error::TransferError;
use crate::base::reason::{Flows, LostReason, TransferProgress};
use crate::device::budget::{Budget, Stock};
use crate::device::shared_page::Sharing;
use crate::device::staging::Direction;
use crate::engine::audit::Audit;
use crate::engine::counters::{ArrivalStats, FlowStats};
use crate::engine::device_landings::Landing;
use crate::engine::inbox::Share;
use crate::engine::life::{Attempts, PeerState};
use crate::engine::op::{Op, Outgoing};
use crate::engine::pass::{Down, Pass};
use crate::engine::placement::Placement;
use crate::engine::proven_names::Names;
use crate::engine::quotas::Quotas;
use crate::engine::sessions::first_epoch;
use crate::engine::suspects::Suspects;
use crate::engine::tally::Tally;
use crate::wake::spin::spin_while_locked;
use crate::wake::tx_proxies::{AskedProxies, TxProxies};

mod covering;
mod ending;
mod standing;

pub(crate) use covering::covers;
pub(crate) use ending::Ending;

/// A peer. No thread holds the locks of `tx` and `rx` at once. Each is held for bookkeeping only,
/// never during a system call on a socket.
pub(crate) struct PeerShared {
    pub(crate) number: u32,
    pub(crate) card: Card,
    /// What this engine proves to it.
    pub(crate) capability: Capability,
    /// Who it is, by its certificate.
    pub(crate) names: Mutex<Names>,
    /// How payload for it is protected on the rails.
    pub(crate) payload: Payload,
    /// The engine whose peer it is.
    pub(crate) engine: InstanceId,
    pub(crate) same_host: bool,
    /// What was moved to and from it, beside the rails' own counters.
    pub(crate) tally: Tally,
    /// Whether that can be done.
    pub(crate) sharing: Sharing,
    /// Pinned memory of the flows towards it, and of those from it.
    pub(crate) tx_stock: Arc<Stock>,
    pub(crate) rx_stock: Arc<Stock>,
    pub(crate) inbox_share: Share,
    /// What it takes up here, and may.
    pub(crate) quotas: Arc<Quotas>,
    /// Whether the user gave its card.
    pub(crate) by_user: AtomicBool,
    /// One more than the session of its hellos; 0 before the first.
    pub(crate) heard: AtomicU64,
    /// Nothing has passed either way, and nothing will: its session may begin anew.
    pub(crate) is_unused: AtomicBool,
    /// Who connects the flows towards it, as a number of [`Outward`].
    outward: AtomicU8,
    pub(crate) layout: Layout,
    /// Posted operations that wait for a proxy to fetch them.
    pub(crate) posted: ArrayQueue<Arc<Op>>,
    /// Proxies that send to it.
    pub(crate) tx_proxies: TxProxies,
    pub(crate) flows: Vec<FlowSlot>,
    tx: Mutex<TxSide>,
    rx: Mutex<RxSide>,
    /// CPUs are to spare for waiting for these.
    spins: bool,
    life: Mutex<Life>,
    /// The state in `life`, for those who only look.
    state: AtomicU8,
    lost: OnceLock<LostReason>,
    pub(crate) ending: Ending,
    last_problem: Mutex<Option<String>>,
    /// When it was last asked for a sign of life, by the monotonic clock.
    pub(crate) asked: AtomicU64,
    /// Counters of flows towards us, by local rail.
    pub(crate) arrivals: Vec<ArrivalStats>,
    /// Flows towards us that are connected.
    pub(crate) rx_flows_up: AtomicU32,
    pub(crate) audit: Audit,
    /// How many threads have asked proxies to send and not woken them yet.
    pub(crate) announcing: AtomicU32,
    /// How many want to learn of its death though no transfer may be under way.
    pub(crate) watches: AtomicU32,
}

/// Which rails a direction uses, and how its flows lie on them.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    /// Local rail and rail of the peer, by their cards.
    pub(crate) pairs: Vec<(usize, usize)>,
    pub(crate) channels: u32,
    pub(crate) sockets: u32,
}

/// Where the peer stands, and what its flows came to.
struct Life {
    state: PeerState,
    attempts: Attempts,
}

/// Who connects the flows towards a peer.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Outward {
    /// Nobody: it came to us, and we have nothing to send to it.
    Unwanted,
    /// This engine.
    Connects,
    /// The peer: they are the other direction of those that arrive from it.
    Answers,
}

/// A flow towards the peer.
pub(crate) struct FlowSlot {
    pub(crate) proxy: usize,
    pub(crate) up: AtomicBool,
    /// When it came up last, by the monotonic clock.
    pub(crate) up_since: AtomicU64,
    /// Until when it takes nothing, by the monotonic clock.
    pub(crate) rests_until: AtomicU64,
    pub(crate) epoch: AtomicU64,
    pub(crate) stats: FlowStats,
    /// Held for looking at its counters only; the proxy owns the stream.
    pub(crate) socket: Mutex<Option<Arc<Socket>>>,
}

/// A half of a peer, locked. What the user gave does not end meanwhile.
pub(crate) struct Locked<'a, T> {
    // In this order: the lock is free when things end.
    guard: MutexGuard<'a, T>,
    _held: HoldsUserLock,
}

impl<T> Deref for Locked<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for Locked<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

/// The sending half.
pub(crate) struct TxSide {
    pub(crate) sender: Sender<Outgoing>,
    pub(crate) outgoing: Slab<Outgoing>,
    pub(crate) matcher: Matcher<OpRef>,
    /// Reads of the peer that are being served: its number to ours.
    pub(crate) serving: HashMap<u64, TransferId>,
    pub(crate) quotas: Arc<Quotas>,
    /// How long flows may stall, if longer than the setting: it doubles each time that one is given
    /// up and none has brought an acknowledgement since. Then it is the peer that is slow to take,
    /// and no other rail will do better.
    pub(crate) patience: Duration,
    suspects: Suspects,
    /// The peer is gone, and all that was under way with it has been ended.
    pub(crate) has_ended: bool,
    /// Passes until the next fetch from the pool.
    pub(crate) fetch_in: u32,
}

/// The receiving half.
pub(crate) struct RxSide {
    pub(crate) receiver: Receiver,
    /// Posted receives by their number.
    pub(crate) receives: HashMap<u64, WaitingReceive>,
    pub(crate) next_receive: u64,
    /// Parts of reads under way by their number.
    pub(crate) reads: HashMap<u64, ReadPart>,
    pub(crate) next_read: u64,
    /// What became of transfers here and was not delivered yet.
    arrived: VecDeque<Arrived>,
    /// Reads and receives that the peer ended, until nothing of them lands any more.
    failing: Vec<Failing>,
    /// Chunks that devices copy into place.
    pub(crate) landings: Vec<Landing>,
    /// Copies from and to regions that the peer has ended.
    pub(crate) ending: Vec<Ticket>,
    /// When acknowledgements were first and last seen to have to wait.
    pub(crate) unquiet_ns: (u64, u64),
}

/// What became of a transfer here.
pub(crate) enum Arrived {
    /// It is complete. With the read or receive that waited for it.
    Whole(Landed, Option<Arc<Op>>),
    /// The peer ended it, and nothing of it lands any more.
    Failed(Arc<Op>, TransferError),
}

/// A read or receive that the peer ended.
struct Failing {
    wire_op: WireOp,
    context: u64,
    op: Arc<Op>,
    error: TransferError,
}

/// A receive that waits for its message.
pub(crate) struct WaitingReceive {
    pub(crate) op: Arc<Op>,
    pub(crate) places: Vec<Place>,
    pub(crate) capacity: u64,
}

/// A part of a read that waits for its data.
pub(crate) struct ReadPart {
    pub(crate) op: Arc<Op>,
    pub(crate) places: Vec<Place>,
}

/// An operation, compared by identity.
#[derive(Clone)]
pub(crate) struct OpRef(pub(crate) Arc<Op>);

impl PartialEq for OpRef {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl RxSide {
    /// Takes the next transfer that is complete here, or that the peer has ended.
    pub(crate) fn poll_arrived(&mut self) -> Option<Arrived> {
        self.note_arrived();
        self.arrived.pop_front()
    }

    /// The peer has ended a read or receive, which fails for that once nothing of it lands any
    /// more: a device may be copying.
    pub(crate) fn fail(
        &mut self,
        (wire_op, context): (WireOp, u64),
        op: Arc<Op>,
        error: TransferError,
    ) {
        self.failing.push(Failing { wire_op, context, op, error });
    }

    /// Takes each complete transfer together with the operation that waited for it, under the lock
    /// under which its last chunk landed: the peer hears that it is done, so nobody may end that
    /// operation otherwise.
    pub(crate) fn note_arrived(&mut self) {
        while let Some(landed) = self.receiver.poll_event() {
            let op = match landed.op {
                WireOp::ReadData => self.reads.remove(&landed.context).map(|part| part.op),
                WireOp::SendData => self.receives.remove(&landed.context).map(|it| it.op),
                WireOp::Write | WireOp::Control => None,
            };
            self.arrived.push_back(Arrived::Whole(landed, op));
        }
        if self.failing.is_empty() {
            return;
        }
        let receiver = &mut self.receiver;
        let over = self.failing.extract_if(.., |it| receiver.expel(it.wire_op, it.context));
        self.arrived.extend(over.map(|it| Arrived::Failed(it.op, it.error)));
    }
}

impl Layout {
    pub(crate) fn flows(&self) -> u32 {
        self.channels * self.sockets
    }

    /// Rails that a transfer may be spread over.
    pub(crate) fn rails(&self) -> usize {
        self.pairs.len()
    }

    /// Channels go round the rails, so that each rail has as many as any other, or one fewer.
    pub(crate) fn pair_of(&self, flow: FlowIndex) -> (usize, usize) {
        self.pairs[self.pair_index(flow)]
    }

    pub(crate) fn pair_index(&self, flow: FlowIndex) -> usize {
        self.channel_of(flow) as usize % self.pairs.len()
    }

    pub(crate) fn channel_of(&self, flow: FlowIndex) -> u32 {
        flow.0 / self.sockets
    }

    /// The proxy that sends on a flow: one for all flows of a channel.
    fn proxy_of(&self, flow: FlowIndex, proxies: &Placement) -> usize {
        let (rail, _) = self.pair_of(flow);
        proxies.proxy(rail, self.channel_of(flow), self.pairs.len() as u32, 1)
    }
}

impl PeerShared {
    pub(crate) fn new(
        number: u32,
        Metadata { card, capability }: Metadata,
        layout: Layout,
        proxies: &Placement,
        options: PeerOptions<'_>,
    ) -> Self {
        let config = SenderConfig {
            window_chunks: options.window_chunks,
            channels: layout.channels,
            sockets: layout.sockets,
            rails: layout.rails() as u32,
        };
        let flows: Vec<FlowSlot> = (0..layout.flows())
            .map(|flow| FlowSlot {
                proxy: layout.proxy_of(FlowIndex(flow), proxies),
                up: AtomicBool::new(false),
                up_since: AtomicU64::new(0),
                rests_until: AtomicU64::new(0),
                epoch: AtomicU64::new(first_epoch(number)),
                stats: FlowStats::default(),
                socket: Mutex::new(None),
            })
            .collect();
        let pairs = layout.pairs.len();
        let quotas = Arc::new(Quotas::new(options.ops_pool));
        let limits = ReceiverLimits { flows: options.flow_limit, ..ReceiverLimits::default() };
        Self {
            number,
            engine: options.engine,
            same_host: options.same_host,
            tally: Tally::default(),
            sharing: Sharing::default(),
            tx_stock: options.staging.stock(Direction::Out),
            rx_stock: options.staging.stock(Direction::In),
            inbox_share: Share::default(),
            quotas: quotas.clone(),
            by_user: AtomicBool::new(false),
            heard: AtomicU64::new(0),
            is_unused: AtomicBool::new(false),
            outward: AtomicU8::new(Outward::Unwanted as u8),
            posted: ArrayQueue::new(options.ops_pool as usize),
            tx_proxies: TxProxies::new(proxies_of(&flows)),
            life: Mutex::new(Life {
                state: PeerState::New,
                attempts: Attempts::new(pairs, flows.len()),
            }),
            state: AtomicU8::new(PeerState::New as u8),
            flows,
            tx: Mutex::new(TxSide {
                sender: Sender::new(config),
                outgoing: Slab::new(),
                matcher: quotas.matcher(),
                serving: HashMap::new(),
                quotas,
                patience: Duration::ZERO,
                suspects: Suspects::new(pairs),
                has_ended: false,
                fetch_in: 0,
            }),
            rx: Mutex::new(RxSide {
                receiver: Receiver::new(limits),
                receives: HashMap::new(),
                arrived: VecDeque::new(),
                failing: Vec::new(),
                next_receive: 1,
                reads: HashMap::new(),
                next_read: 1,
                landings: Vec::new(),
                ending: Vec::new(),
                unquiet_ns: (0, 0),
            }),
            spins: options.spins,
            lost: OnceLock::new(),
            ending: options.ending,
            last_problem: Mutex::new(None),
            asked: AtomicU64::new(0),
            arrivals: (0..options.rails).map(|_| ArrivalStats::default()).collect(),
            rx_flows_up: AtomicU32::new(0),
            audit: Audit::default(),
            announcing: AtomicU32::new(0),
            watches: AtomicU32::new(0),
            card,
            capability,
            names: Mutex::default(),
            payload: options.payload,
            layout,
        }
    }

    pub(crate) fn metadata(&self) -> Metadata {
        Metadata { card: self.card.clone(), capability: self.capability.clone() }
    }

    pub(crate) fn name(&self) -> &str {
        &self.card.name
    }

    pub(crate) fn instance(&self) -> InstanceId {
        self.card.instance
    }

    /// The sending half. The state stays consistent if a holder panicked: each change is whole
    /// before the lock is released.
    pub(crate) fn tx(&self) -> Locked<'_, TxSide> {
        self.lock(&self.tx)
    }

    /// Both locks are held for a microsecond. Whoever sleeps for one is away for far longer, and
    /// then all who come later sleep, too; so where CPUs are to spare it is tried for a while.
    fn lock<'a, T>(&self, mutex: &'a Mutex<T>) -> Locked<'a, T> {
        let held = HoldsUserLock::begin();
        let mut left = self.pauses();
        loop {
            if let Some(guard) = mutex.try_lock() {
                return Locked { guard, _held: held };
            }
            spin_while_locked(mutex, &mut left);
            if left == 0 {
                return Locked { guard: mutex.lock(), _held: held };
            }
        }
    }

    /// Does something without the lock of the receiving half, which its holder gets back afterwards:
    /// as in [`Self::lock`], after a while of trying.
    pub(crate) fn without_rx<R>(&self, rx: &mut Locked<'_, RxSide>, work: impl FnOnce() -> R) -> R {
        MutexGuard::unlocked(&mut rx.guard, || {
            let done = work();
            spin_while_locked(&self.rx, &mut self.pauses());
            done
        })
    }

    /// How often to look at a lock before it does not pay any longer.
    fn pauses(&self) -> u32 {
        /// About 20 µs.
        const PAUSES: u32 = 500;
        if self.spins { PAUSES } else { 0 }
    }

    /// Chunks that wait to be sent; `None` if somebody sends or takes acknowledgements just now,
    /// whom it is not worth to wait for.
    pub(crate) fn pending(&self) -> Option<usize> {
        self.tx.try_lock().map(|tx| tx.sender.pending())
    }

    /// Whether somebody holds the sending half just now, perhaps without a CPU.
    pub(crate) fn is_tx_held(&self) -> bool {
        self.tx.is_locked()
    }

    /// The same for either half.
    pub(crate) fn is_held(&self) -> bool {
        self.is_tx_held() || self.rx.is_locked()
    }

    /// The receiving half. See [`Self::tx`].
    pub(crate) fn rx(&self) -> Locked<'_, RxSide> {
        self.lock(&self.rx)
    }

    /// Has nothing land any more if nothing has passed so far, either way; says whether that is so.
    pub(crate) fn close_unused(&self) -> bool {
        // Flows that it connects tell their session.
        !self.connects_flows() && self.tx().sender.is_unused() && self.rx().receiver.close_unused()
    }

    /// Why it is gone, or is about to be.
    pub(crate) fn lost_reason(&self) -> LostReason {
        self.lost.get().cloned().unwrap_or(LostReason::Removed)
    }

    /// Remembers what went wrong last on some flow, for the error that may follow.
    pub(crate) fn note_problem(&self, text: String) {
        *self.last_problem.lock() = Some(text);
    }

    pub(crate) fn last_problem(&self) -> Option<String> {
        self.last_problem.lock().clone()
    }

    /// Where things stand, for an error message.
    pub(crate) fn progress(&self) -> TransferProgress {
        let silence = self.tx().sender.silence(Time(monotonic_ns()));
        let (flows, last_problem) = (self.all_flows(), self.what_holds());
        TransferProgress { peer: self.name().to_owned(), flows, silence, last_problem }
    }

    /// A peer that serves as many reads as it may, and brings their data, makes progress with those
    /// that have to wait for that.
    pub(crate) fn note_served_reads(&self, tx: &mut TxSide, now: Time) {
        if tx.sender.held_back() == Some(RefusalCode::ReadQuota) {
            let landed = self.arrivals.iter().map(|rail| rail.rx_bytes.get()).sum();
            if self.quotas.is_bringing(landed) {
                tx.sender.handle_peer_at_work(now);
            }
        }
    }

    /// Why nothing goes on, as far as that is known.
    fn what_holds(&self) -> Option<String> {
        let held_back = self.tx().sender.held_back();
        held_back.map(|code| code.reason().to_owned()).or_else(|| self.last_problem())
    }

    /// The peer breaks the rules: says so in the log, and for the flow that brought it.
    pub(crate) fn breach(&self, why: &dyn std::fmt::Display) -> Down {
        if let Some(others) = self.quotas.logs.breach.left_out() {
            let name = self.name();
            tracing::warn!(target: "polyrail::peer", peer = name, %why, others, "breach");
        }
        let why = why.to_string();
        *self.quotas.breach.lock() = Some(why.clone());
        Down(why)
    }

    /// Whether something is under way to it that can arrive.
    pub(crate) fn is_busy(&self) -> bool {
        self.tx().sender.is_busy() && self.flows_up() > 0
    }

    pub(crate) fn all_flows(&self) -> Flows {
        Flows { up: self.flows_up(), total: self.flows.len() }
    }

    pub(crate) fn flows_up(&self) -> usize {
        self.flows.iter().filter(|flow| flow.up.load(Ordering::Relaxed)).count()
    }

    /// Whether it has said something on a flow towards it that nobody has read yet.
    pub(crate) fn has_unread(&self) -> bool {
        let has_unread = |slot: &FlowSlot| {
            let socket = slot.socket.lock();
            socket.as_ref().is_some_and(|socket| matches!(tcp::has_unread(&**socket), Ok(true)))
        };
        self.flows.iter().any(has_unread)
    }

    /// A flow is connected.
    pub(crate) fn flow_up(&self, flow: FlowIndex, now: Time) {
        let mut tx = self.tx();
        tx.sender.handle_flow_up(now, flow);
        tx.suspects.clear(self.layout.pair_index(flow));
    }

    /// A flow has stalled, so its rail may be dead. Where there is no other one, nothing is gained
    /// by knowing that.
    pub(crate) fn suspect_rail_of(&self, tx: &mut TxSide, flow: FlowIndex, now: Time) {
        let pair = self.layout.pair_index(flow);
        let is_elsewhere = |index: usize| self.layout.pair_index(FlowIndex(index as u32)) != pair;
        let mut up = self.flows.iter().enumerate().filter(|(_, f)| f.up.load(Ordering::Relaxed));
        if up.any(|(index, _)| is_elsewhere(index)) {
            tx.suspects.note(pair, now);
        }
    }

    /// Whether the rail of a flow may be dead, for all that the flow has seen.
    pub(crate) fn is_suspect(&self, tx: &TxSide, flow: FlowIndex, quiet: Duration) -> bool {
        tx.suspects.hold(self.layout.pair_index(flow), tx.sender.flow_progress(flow), quiet)
    }

    /// Says that there is something to send, enough for so many proxies. If a flow is down, all are
    /// asked: the first ones may have none.
    pub(crate) fn want_tx(&self, proxies: usize) -> AskedProxies<'_> {
        let some_down = self.flows_up() < self.flows.len();
        self.tx_proxies.want(if some_down { usize::MAX } else { proxies })
    }

    /// Has the flows pull that the sender core wants to: chunks were left to them, or denied to them
    /// until now.
    pub(crate) fn wake_wanted(&self, tx: &mut TxSide, pass: &Pass<'_>) {
        for flow in tx.sender.wakes(Time(pass.now)) {
            pass.engine.ask(self, self.flows[flow.0 as usize].proxy);
        }
    }
}

fn proxies_of(flows: &[FlowSlot]) -> Vec<usize> {
    let mut proxies: Vec<usize> = Vec::new();
    for flow in flows {
        if !proxies.contains(&flow.proxy) {
            proxies.push(flow.proxy);
        }
    }
    proxies
}

/// While it lives, a thread makes work for the proxies of a peer and has not told all of them. It
/// may lose its CPU there for long.
pub(crate) struct Announcing<'a> {
    peer: &'a PeerShared,
    /// Nobody else did when it began.
    pub(crate) is_alone: bool,
}

impl<'a> Announcing<'a> {
    pub(crate) fn begin(peer: &'a PeerShared) -> Self {
        let is_alone = peer.announcing.fetch_add(1, Ordering::AcqRel) == 0;
        Self { peer, is_alone }
    }
}

impl Drop for Announcing<'_> {
    fn drop(&mut self) {
        self.peer.announcing.fetch_sub(1, Ordering::AcqRel);
    }
}

/// What of the configuration a peer needs.
pub(crate) struct PeerOptions<'a> {
    pub(crate) window_chunks: u32,
    pub(crate) ops_pool: u32,
    pub(crate) flow_limit: u32,
    pub(crate) engine: InstanceId,
    pub(crate) same_host: bool,
    /// CPUs are to spare for waiting for a lock.
    pub(crate) spins: bool,
    pub(crate) payload: Payload,
    /// Local rails.
    pub(crate) rails: usize,
    /// Pinned memory of all peers together.
    pub(crate) staging: &'a Arc<Budget>,
    pub(crate) ending: Ending,
}

/// Why a peer with which nothing went on for `silence` is given up.
pub(crate) fn silent_for(peer: &PeerShared, silence: Duration) -> LostReason {
    let (flows, last_problem) = (peer.all_flows(), peer.what_holds());
    match flows.up {
        0 => LostReason::Unreachable { silence, last_problem },
        _ => LostReason::NoProgress { silence, flows, last_problem },
    }
}
