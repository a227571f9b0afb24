//! Interface of other threads to proxies. The proxies themselves are in a layer above, with the flows that they drive.

use std::sync::atomic::{AtomicI64, AtomicU64};
use std::sync::{Arc, OnceLock};
use std::thread::ThreadId;

use crossbeam_queue::SegQueue;
use parking_lot::Mutex;
use polyrail_proto::FlowIndex;
use polyrail_proto::budget::Taken;
use polyrail_secure::Keys;
use polyrail_sys::{PollEvent, Poller};

use crate::device::wire::Wire;
use crate::engine::peer::{OpHandle, PeerShared};
use crate::wake::doorbell::Doorbell;

/// Number of times a caller tries to drive a proxy that another thread drives. The tries last as long as a look at a
/// socket.
pub(crate) const DRIVE_TRIES: u32 = 12;

/// A proxy as other threads see it: they wake it, leave commands for it, and read its counters.
pub(crate) struct ProxyHandle {
    pub(crate) name: String,
    pub(crate) cpus: Vec<u32>,
    /// The thread of the proxy, once it runs.
    pub(crate) thread: OnceLock<ThreadId>,
    /// CPUs that its thread may use, as the system reports them.
    pub(crate) actual_cpus: Mutex<Vec<u32>>,
    pub(crate) doorbell: Arc<Doorbell>,
    pub(crate) commands: SegQueue<ProxyCommand>,
    pub(crate) counters: ProxyCounters,
}

/// Counters of a proxy. The thread that drives it writes them, one at a time.
#[derive(Default)]
pub(crate) struct ProxyCounters {
    pub(crate) passes: AtomicU64,
    pub(crate) busy_passes: AtomicU64,
    pub(crate) sleeps: AtomicU64,
    pub(crate) cpu_ns: AtomicU64,
    pub(crate) polled_ns: AtomicU64,
    pub(crate) last_cpu: AtomicI64,
    pub(crate) migrations: AtomicU64,
}

/// A request to a proxy about its flows.
pub(crate) enum ProxyCommand {
    /// A flow has connected.
    Add(Box<Connected>),
    /// Connections of the peer are about to end. The proxy acknowledges all that has landed. With `says_bye` it then
    /// says goodbye on flows that come from the peer.
    Settle { peer: Arc<PeerShared>, says_bye: bool },
    /// The peer is gone. The proxy closes its flows.
    DropPeer { peer: Arc<PeerShared> },
    /// Probe the flows that come from the peer, to find out whether it still exists.
    Probe { peer: Arc<PeerShared> },
    /// Devices copy this operation end to end. The proxy checks when they are done.
    Copying(OpHandle),
    /// A region of a device has ended. Its memory must be released.
    LetGo,
    /// A peer without pinned memory waits for some. Flows give back what they don't use, and flows whose payload has
    /// stalled end.
    GiveBack,
    /// Read again from flows of the peer that stopped because its share of the inbox was full.
    Resume { peer: Arc<PeerShared> },
    /// A thread got these events from the poller and can't note them, because another thread drives.
    Events(Vec<PollEvent>),
}

impl ProxyCommand {
    /// The peer whose locks the command takes.
    pub(crate) fn peer(&self) -> Option<&Arc<PeerShared>> {
        match self {
            Self::Add(connected) => Some(&connected.peer),
            Self::Settle { peer, .. }
            | Self::DropPeer { peer }
            | Self::Probe { peer }
            | Self::Resume { peer } => Some(peer),
            Self::Copying(_) | Self::LetGo | Self::GiveBack | Self::Events(_) => None,
        }
    }
}

/// A connection of a flow. It carries data one way, or both ways for flows of the same number.
pub(crate) struct Connected {
    pub(crate) peer: Arc<PeerShared>,
    pub(crate) flow: FlowIndex,
    pub(crate) wire: Wire,
    /// Keys from its handshake.
    pub(crate) keys: Keys,
    /// Whether this engine sends data on it.
    pub(crate) sends: bool,
    /// Set if the peer sends data on it.
    pub(crate) arriving: Option<Arriving>,
}

/// A connection that brings a flow of a peer.
pub(crate) struct Arriving {
    /// Number of this connection among those of the flow.
    pub(crate) epoch: u64,
    pub(crate) rail: usize,
    pub(crate) window_chunks: u32,
    /// Place among the peer's connections. None if this engine made the connection.
    pub(crate) place: Option<Taken>,
}

impl ProxyHandle {
    pub(crate) fn new(name: String, cpus: Vec<u32>) -> std::io::Result<Self> {
        Ok(Self {
            name,
            cpus,
            thread: OnceLock::new(),
            actual_cpus: Mutex::default(),
            doorbell: Arc::new(Doorbell::new(Poller::new()?)),
            commands: SegQueue::new(),
            counters: ProxyCounters { last_cpu: AtomicI64::new(-1), ..ProxyCounters::default() },
        })
    }

    pub(crate) fn command(&self, command: ProxyCommand) {
        self.commands.push(command);
        self.doorbell.ring();
    }

    /// Queues a command that can wait until the proxy is awake. Wakes the proxy only when many are queued.
    pub(crate) fn command_later(&self, command: ProxyCommand) {
        const MANY: usize = 64;
        self.commands.push(command);
        if self.commands.len() >= MANY {
            self.doorbell.ring();
        }
    }

    /// Makes the proxy release the memory of finished copies. Queues at most a few such commands, because an undriven
    /// proxy would not drain them.
    pub(crate) fn let_go(&self) {
        const FEW: usize = 64;
        if self.commands.len() < FEW {
            self.command(ProxyCommand::LetGo);
        }
    }
}
