//! How others talk to the control thread.

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

/// How others talk to the control thread.
pub(crate) struct ControlHandle {
    pub(crate) poller: Arc<Poller>,
    pub(crate) commands: SegQueue<ControlCommand>,
    /// Whether the thread looks after peers regularly just now.
    pub(crate) ticking: AtomicBool,
    pub(crate) refused: AtomicU64,
}

/// What the thread is asked to do.
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
        /// Its reason, if it said one.
        says: Option<String>,
    },
    /// The peer is asked something, by a thread that can wait for its lock.
    Ask {
        peer: Arc<PeerShared>,
        question: Message,
    },
    /// The user has said whether a peer may join.
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

    /// The thread looks at none any more: whoever waits for an answer gets none.
    pub(crate) fn forget_commands(&self) {
        while self.commands.pop().is_some() {}
    }

    /// The engine is closing, or callers have left something to send: the thread has to look.
    pub(crate) fn wake(&self) {
        self.poller.wake();
    }

    /// Returns whether the thread looks after peers regularly. It may change at any time.
    #[inline]
    pub(crate) fn is_ticking(&self) -> bool {
        self.ticking.load(Ordering::Relaxed)
    }

    /// Something is outstanding: deadlines count.
    pub(crate) fn start_ticking(&self) {
        if !self.is_ticking() && !self.ticking.swap(true, Ordering::AcqRel) {
            self.poller.wake();
        }
    }

    /// Has the thread do something.
    pub(crate) fn command(&self, command: ControlCommand) {
        self.commands.push(command);
        self.poller.wake();
    }
}
