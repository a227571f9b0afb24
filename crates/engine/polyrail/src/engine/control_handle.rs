//! Interface of other threads to the control thread.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crossbeam_queue::SegQueue;
use polyrail_proto::FlowIndex;
use polyrail_proto::hello::Metadata;
use polyrail_proto::invitation::Invitation;
use polyrail_proto::liveness::FlowLife;
use polyrail_proto::message::Message;
use polyrail_proto::reason::Unmet;
use polyrail_sys::Poller;

use crate::engine::joining::Admission;
use crate::engine::peer::PeerShared;
use crate::engine::tasks::Answer;

/// The control thread as other threads see it.
pub(crate) struct ControlHandle {
    pub(crate) poller: Arc<Poller>,
    pub(crate) commands: SegQueue<ControlCommand>,
    /// Set while the thread regularly looks after peers.
    pub(crate) ticking: AtomicBool,
    pub(crate) refused: AtomicU64,
}

/// A request to the control thread.
pub(crate) enum ControlCommand {
    Connect {
        peer: Arc<PeerShared>,
    },
    FlowLost {
        peer: Arc<PeerShared>,
        flow: FlowIndex,
        why: String,
        life: FlowLife,
    },
    ArrivalLost {
        peer: Arc<PeerShared>,
        flow: FlowIndex,
        why: String,
    },
    PeerLeft {
        peer: Arc<PeerShared>,
        /// The peer's reason, if it gave one.
        says: Option<String>,
    },
    /// Ask the peer a question, on a thread that can wait for its lock.
    Ask {
        peer: Arc<PeerShared>,
        question: Message,
    },
    /// The user has decided whether a peer may join.
    Decided {
        question: u64,
        verdict: Admission,
    },
    Introduce {
        addresses: Vec<SocketAddr>,
        invitation: Option<Invitation>,
        answer: Answer<Result<Metadata, Unmet>>,
    },
}

impl ControlHandle {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            poller: Arc::new(Poller::new()?),
            commands: SegQueue::new(),
            ticking: AtomicBool::new(false),
            refused: AtomicU64::new(0),
        })
    }

    /// Drops all commands, which the thread reads no more. Callers that wait for an answer get none.
    pub(crate) fn forget_commands(&self) {
        while self.commands.pop().is_some() {}
    }

    /// Wakes the thread: the engine is closing, or callers have left something to send.
    pub(crate) fn wake(&self) {
        self.poller.wake();
    }

    /// Whether the thread regularly looks after peers. May change at any time.
    #[inline]
    pub(crate) fn is_ticking(&self) -> bool {
        self.ticking.load(Ordering::Relaxed)
    }

    /// Starts regular looks, because something is outstanding and deadlines count.
    pub(crate) fn start_ticking(&self) {
        if !self.is_ticking() && !self.ticking.swap(true, Ordering::AcqRel) {
            self.poller.wake();
        }
    }

    /// Queues a command and wakes the thread.
    pub(crate) fn command(&self, command: ControlCommand) {
        self.commands.push(command);
        self.poller.wake();
    }
}
