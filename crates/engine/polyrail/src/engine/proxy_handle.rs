//! How others talk to proxies. Proxies themselves are in a layer above, with the flows that they
//! drive.

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

/// How often a caller tries to drive a proxy that somebody else drives: for as long as a look at a
/// socket takes.
pub(crate) const DRIVE_TRIES: u32 = 12;

/// What others see of a proxy: they wake it, leave commands for it, and read its counters.
pub(crate) struct ProxyHandle {
    pub(crate) name: String,
    pub(crate) cpus: Vec<u32>,
    /// Its thread, once that runs.
    pub(crate) thread: OnceLock<ThreadId>,
    /// CPUs that its thread may use, as the system says.
    pub(crate) actual_cpus: Mutex<Vec<u32>>,
    pub(crate) doorbell: Arc<Doorbell>,
    pub(crate) commands: SegQueue<ProxyCommand>,
    pub(crate) counters: ProxyCounters,
}

/// What a proxy counts. Whoever drives it writes, one at a time.
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

/// What a proxy is asked to do with its flows.
pub(crate) enum ProxyCommand {
    /// A flow is connected.
    Add(Box<Connected>),
    /// Connections of the peer are about to end: all that has landed is acknowledged, and if `says_bye`, the
    /// peer is told good-bye behind that on flows that come from it.
    Settle { peer: Arc<PeerShared>, says_bye: bool },
    /// The peer is gone: its flows are closed.
    DropPeer { peer: Arc<PeerShared> },
    /// Whether the peer is still there, on flows that come from it, is to be found out.
    Probe { peer: Arc<PeerShared> },
    /// Devices copy from end to end for it: somebody has to see when they are done.
    Copying(OpHandle),
    /// A region of a device has ended: its memory is not to be kept.
    LetGo,
    /// A peer that has no pinned memory waits for some: flows give back what they don't use, and those whose payload has
    /// stalled end.
    GiveBack,
    /// Flows of the peer that were not read because its share of the inbox was full may be read
    /// again.
    Resume { peer: Arc<PeerShared> },
    /// A thread got these events from the poller and can't note them: another one drives.
    Events(Vec<PollEvent>),
}

impl ProxyCommand {
    /// Whose locks it takes.
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

/// A connection of a flow. It carries data one way or both: by flows of the same number.
pub(crate) struct Connected {
    pub(crate) peer: Arc<PeerShared>,
    pub(crate) flow: FlowIndex,
    pub(crate) wire: Wire,
    /// Made in its handshake.
    pub(crate) keys: Keys,
    /// Whether this engine sends data on it.
    pub(crate) sends: bool,
    /// If the peer does.
    pub(crate) arriving: Option<Arriving>,
}

/// A connection that brings a flow of a peer.
pub(crate) struct Arriving {
    /// Which connection of the flow this is.
    pub(crate) epoch: u64,
    pub(crate) rail: usize,
    pub(crate) window_chunks: u32,
    /// Its place among the peer's connections; none if this engine made the connection.
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

    /// Gives a command that can wait until the proxy is awake, which is woken only when there are many.
    pub(crate) fn command_later(&self, command: ProxyCommand) {
        const MANY: usize = 64;
        self.commands.push(command);
        if self.commands.len() >= MANY {
            self.doorbell.ring();
        }
    }

    /// Has it let go of the memory of copies that are done. One that nobody drives need not be told
    /// for ever.
    pub(crate) fn let_go(&self) {
        const FEW: usize = 64;
        if self.commands.len() < FEW {
            self.command(ProxyCommand::LetGo);
        }
    }
}
