//! What an engine knows of a peer. Its two `halves` have a protocol core each, under the locks of
//! `locking`; `parts` holds the rest, `flows` lead to it, an `op` is an operation with it, and `problems` and `ending`
//! say what went wrong with it, and who learns of its end.

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

/// A peer. The parts in [`Identity`] are its fields as well. No thread holds the locks of `tx` and `rx` at once. Each is
/// held for bookkeeping only, never during a system call on a socket.
pub(crate) struct PeerShared {
    identity: Identity,
    pub(crate) beside: Beside,
    pub(crate) account: Account,
    pub(crate) links: Links,
    pub(crate) life: Life,
    /// Posted operations that wait for a proxy to fetch them.
    pub(crate) posted: ArrayQueue<OpHandle>,
    /// Progress threads that send to it.
    pub(crate) wake: Wake,
    tx: Mutex<TxSide>,
    rx: Mutex<RxSide>,
    /// CPUs are to spare for waiting for these.
    spins: bool,
}

impl Deref for PeerShared {
    type Target = Identity;

    fn deref(&self) -> &Identity {
        &self.identity
    }
}

impl PeerShared {
    /// A peer of which nothing is known but its card. `tx`: the proxies that send; `doorbells`: those of all proxies.
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

    /// Returns whether its session is over.
    pub(crate) fn is_gone(&self) -> bool {
        self.life.standing.state().is_over()
    }

    /// Returns whether it is an engine of this process that has closed, though its good-bye may not be read yet. Its
    /// memory is still here, so nothing else would stop a copy.
    pub(crate) fn has_closed_here(&self) -> bool {
        self.life.closed_here.as_ref().is_some_and(|closed| closed.load(Ordering::Acquire))
    }

    /// Something happens to it that may end it, see [`Standing::end`].
    pub(crate) fn set_gone(&self, event: PeerEvent, why: LostReason) -> bool {
        let revoke = || self.beside.lease.get().into_iter().for_each(Lease::revoke);
        self.life.standing.end(event, why, revoke)
    }

    /// What its process looks at before it copies from and to memory here; revoked when it is gone.
    pub(crate) fn lease(&self) -> Result<&Lease, String> {
        let lease = Lease::of(&self.beside.lease)?;
        // Whoever ends it looks for this afterwards.
        if self.is_gone() { Err("the peer is gone".to_owned()) } else { Ok(lease) }
    }

    pub(crate) fn name(&self) -> &str {
        &self.card.name
    }

    pub(crate) fn instance(&self) -> InstanceId {
        self.card.instance
    }

    /// What seals the records of a connection to it. They are not encrypted in memory of this host, unless
    /// payload is to be.
    pub(crate) fn keys_over(&self, wire: &Wire, keys: Keys) -> Keys {
        let is_plain = wire.stream().is_some() && self.payload != Payload::Aead;
        if is_plain { keys.within_a_host() } else { keys }
    }

    /// Has nothing land any more if nothing has passed so far, either way; says whether that is so.
    pub(crate) fn close_unused(&self) -> bool {
        // Flows that it connects tell their session.
        !self.life.standing.connects_flows()
            && self.tx().sender.is_unused()
            && self.rx().receiver.close_unused()
    }

    /// Whether something is under way to it that can arrive, or it waits for acknowledgements that can leave.
    pub(crate) fn is_busy(&self) -> bool {
        let is_sending = || self.tx().sender.is_busy() && self.flows_up() > 0;
        self.links.unsettled.load(Ordering::Acquire) > 0 || is_sending()
    }
}

/// What of the configuration a peer needs.
pub(crate) struct PeerOptions<'a> {
    pub(crate) window_chunks: u32,
    pub(crate) ops_pool: u32,
    pub(crate) flow_limit: u32,
    pub(crate) engine: InstanceId,
    pub(crate) same_host: bool,
    /// Why its process is none of this host, or of no interest.
    pub(crate) obstacle: Option<&'static str>,
    /// CPUs are to spare for waiting for a lock.
    pub(crate) spins: bool,
    pub(crate) payload: Payload,
    /// Local rails.
    pub(crate) rails: usize,
    /// Shared by all peers.
    pub(crate) budgets: &'a Budgets,
    pub(crate) ending: Ending,
    /// Of an engine of this process: whether it has closed.
    pub(crate) closed_here: Option<Arc<AtomicBool>>,
}
