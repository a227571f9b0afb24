//! State that an engine keeps of a peer. Each of the two `halves` has a protocol core, under the locks of `locking`.
//! `parts` holds the rest, `flows` lead to the peer, and an `op` is an operation with it. `problems` collects its
//! errors, and `ending` wakes the waiters for its end.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crossbeam_queue::ArrayQueue;
use parking_lot::Mutex;
use polyrail_config::Payload;
use polyrail_proto::hello::Metadata;
use polyrail_proto::life::{PeerEvent, Standing};
use polyrail_proto::placement::Placement;
use polyrail_proto::quotas::PeerQuotas;
use polyrail_proto::reason::LostReason;
use polyrail_proto::{InstanceId, ReceiverLimits, SenderConfig};
use polyrail_secure::Keys;

use crate::device::host_proof::Lease;
use crate::device::wire::Wire;
use crate::engine::budgets::Budgets;
use crate::wake::Wake;
use crate::wake::doorbell::Doorbell;

mod ending;
mod flows;
mod halves;
mod locking;
mod op;
mod parts;
mod prepared;
mod problems;

pub(crate) use ending::{Ending, Owner};
pub(crate) use flows::FlowSlot;
pub(crate) use halves::{Arrival, Delivery, RxSide, TxSide};
pub(crate) use locking::Locked;
pub(crate) use op::{Op, OpHandle, OpRef, OpsPool};
use parts::{Account, Beside, Identity, Life, Links};
pub(crate) use polyrail_proto::pairing::{Layout, RailPair};
pub(crate) use polyrail_proto::peer::OpKind;
pub(crate) use prepared::{Prepared, Segments};
pub(crate) use problems::{Down, silent_for};

/// A peer. Derefs to [`Identity`]. No thread holds the locks of `tx` and `rx` at once. Each is held for bookkeeping
/// only, never during a system call on a socket.
pub(crate) struct PeerShared {
    identity: Identity,
    pub(crate) beside: Beside,
    pub(crate) account: Account,
    pub(crate) links: Links,
    pub(crate) life: Life,
    /// Posted operations that a proxy has yet to fetch.
    pub(crate) posted: ArrayQueue<OpHandle>,
    /// Progress threads that send to the peer.
    pub(crate) wake: Wake,
    tx: Mutex<TxSide>,
    rx: Mutex<RxSide>,
    /// Whether spare CPUs allow spinning for these locks.
    spins: bool,
}

impl Deref for PeerShared {
    type Target = Identity;

    fn deref(&self) -> &Identity {
        &self.identity
    }
}

impl PeerShared {
    /// Creates a peer of which only the card is known. `tx`: placement on the sending proxies; `doorbells`: those of
    /// all proxies.
    pub(crate) fn new(
        number: u32,
        Metadata { card, capability }: Metadata,
        layout: Layout,
        tx: &Placement,
        doorbells: &[Arc<Doorbell>],
        options: PeerOptions<'_>,
    ) -> Self {
        let config = SenderConfig {
            window_chunks: options.window_chunks,
            channels: layout.channels,
            sockets: layout.sockets,
            rails: layout.rails() as u32,
        };
        let flows = flows::flow_slots(&layout, number, tx);
        let senders = flows::proxies_of(&flows).into_iter();
        let pairs = layout.pairs.len();
        let connections = options.budgets.connections.share();
        let quotas = PeerQuotas::new(options.ops_pool, connections);
        let limits = ReceiverLimits { flows: options.flow_limit, ..ReceiverLimits::default() };
        let (tx_side, rx_side) =
            (TxSide::new(config, pairs, &quotas), RxSide::new(limits, &quotas));
        Self {
            beside: Beside::new(card.instance, &options),
            account: Account::new(quotas, options.rails),
            posted: ArrayQueue::new(options.ops_pool as usize),
            wake: Wake::new(senders.map(|proxy| (proxy, doorbells[proxy].clone())).collect()),
            life: Life::new(Standing::new(pairs, flows.len()), options.ending, options.closed_here),
            links: Links::new(flows),
            tx: Mutex::new(tx_side),
            rx: Mutex::new(rx_side),
            spins: options.spins,
            identity: Identity {
                number,
                card,
                capability,
                names: Mutex::default(),
                by_user: AtomicBool::new(false),
                payload: options.payload,
                engine: options.engine,
                says_same_host: options.same_host,
                layout,
            },
        }
    }

    pub(crate) fn metadata(&self) -> Metadata {
        Metadata { card: self.card.clone(), capability: self.capability.clone() }
    }

    /// Whether its session is over.
    pub(crate) fn is_gone(&self) -> bool {
        self.life.standing.state().is_over()
    }

    /// Whether the peer is an engine of this process that has closed, even if its goodbye is still unread. Its memory
    /// still exists, so nothing else would stop a copy.
    pub(crate) fn has_closed_here(&self) -> bool {
        self.life.closed_here.as_ref().is_some_and(|closed| closed.load(Ordering::Acquire))
    }

    /// Applies an event that may end the peer, see [`Standing::end`].
    pub(crate) fn set_gone(&self, event: PeerEvent, why: LostReason) -> bool {
        let revoke = || self.beside.lease.get().into_iter().for_each(Lease::revoke);
        self.life.standing.end(event, why, revoke)
    }

    /// The lease that the peer's process checks before it copies from and to memory here. Revoked when the peer is
    /// gone.
    pub(crate) fn lease(&self) -> Result<&Lease, String> {
        let lease = Lease::of(&self.beside.lease)?;
        // A thread that ends the peer looks for the lease after marking it gone.
        if self.is_gone() { Err("the peer is gone".to_owned()) } else { Ok(lease) }
    }

    pub(crate) fn name(&self) -> &str {
        &self.card.name
    }

    pub(crate) fn instance(&self) -> InstanceId {
        self.card.instance
    }

    /// Keys that seal the records of a connection to the peer. Records are not encrypted in memory of this host, unless
    /// the payload must be.
    pub(crate) fn keys_over(&self, wire: &Wire, keys: Keys) -> Keys {
        let is_plain = wire.stream().is_some() && self.payload != Payload::Aead;
        if is_plain { keys.within_a_host() } else { keys }
    }

    /// Stops all landing if nothing has passed in either direction so far. Returns whether it stopped.
    pub(crate) fn close_unused(&self) -> bool {
        // Flows that this engine connects carry their session.
        !self.life.standing.connects_flows()
            && self.tx().sender.is_unused()
            && self.rx().receiver.close_unused()
    }

    /// Whether the peer has sends under way that can arrive, or awaits acknowledgements that can leave.
    pub(crate) fn is_busy(&self) -> bool {
        let is_sending = || self.tx().sender.is_busy() && self.flows_up() > 0;
        self.links.unsettled.load(Ordering::Acquire) > 0 || is_sending()
    }
}

/// Configuration that a peer needs.
pub(crate) struct PeerOptions<'a> {
    pub(crate) window_chunks: u32,
    pub(crate) ops_pool: u32,
    pub(crate) flow_limit: u32,
    pub(crate) engine: InstanceId,
    pub(crate) same_host: bool,
    /// Reason not to share memory with its process: another host, or a setting.
    pub(crate) obstacle: Option<&'static str>,
    /// Whether spare CPUs allow spinning for a lock.
    pub(crate) spins: bool,
    pub(crate) payload: Payload,
    /// Number of local rails.
    pub(crate) rails: usize,
    /// Shared by all peers.
    pub(crate) budgets: &'a Budgets,
    pub(crate) ending: Ending,
    /// For a peer in this process: set when its engine closes.
    pub(crate) closed_here: Option<Arc<AtomicBool>>,
}
