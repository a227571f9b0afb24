//! How others talk to the control thread.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};

use crossbeam_queue::SegQueue;
use polyrail_proto::FlowIndex;
use polyrail_proto::hello::Card;
use polyrail_sys::Poller;

use crate::engine::peer::PeerShared;

/// How others talk to the control thread.
pub(crate) struct ControlHandle {
    pub(crate) poller: Poller,
    pub(crate) commands: SegQueue<ControlCommand>,
    /// Whether the thread looks after peers regularly just now.
    pub(crate) ticking: AtomicBool,
    pub(crate) refused: AtomicU64,
}

/// What the thread is asked to do.
pub(crate) enum ControlCommand {
    Connect { peer: Arc<PeerShared> },
    FlowLost { peer: Arc<PeerShared>, flow: FlowIndex, why: String },
    ArrivalLost { peer: Arc<PeerShared>, flow: FlowIndex, why: String },
    PeerLeft { peer: Arc<PeerShared> },
    Introduce { address: SocketAddr, answer: mpsc::Sender<Result<Card, String>> },
    Stop,
}

impl ControlHandle {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            poller: Poller::new()?,
            commands: SegQueue::new(),
            ticking: AtomicBool::new(false),
            refused: AtomicU64::new(0),
        })
    }

    pub(crate) fn connect(&self, peer: Arc<PeerShared>) {
        self.command(ControlCommand::Connect { peer });
    }

    pub(crate) fn flow_lost(&self, peer: Arc<PeerShared>, flow: FlowIndex, why: String) {
        self.command(ControlCommand::FlowLost { peer, flow, why });
    }

    pub(crate) fn arrival_lost(&self, peer: Arc<PeerShared>, flow: FlowIndex, why: String) {
        self.command(ControlCommand::ArrivalLost { peer, flow, why });
    }

    pub(crate) fn peer_left(&self, peer: Arc<PeerShared>) {
        self.command(ControlCommand::PeerLeft { peer });
    }

    pub(crate) fn introduce(&self, address: SocketAddr) -> mpsc::Receiver<Result<Card, String>> {
        let (answer, receiver) = mpsc::channel();
        self.command(ControlCommand::Introduce { address, answer });
        receiver
    }

    pub(crate) fn stop(&self) {
        self.command(ControlCommand::Stop);
    }

    /// Something is outstanding: deadlines count.
    pub(crate) fn nudge(&self) {
        if !self.ticking.load(Ordering::Relaxed) && !self.ticking.swap(true, Ordering::AcqRel) {
            self.poller.wake();
        }
    }

    /// The thread sends what callers left to each other, as nobody else has time.
    pub(crate) fn send_what_is_left(&self) {
        self.poller.wake();
    }

    fn command(&self, command: ControlCommand) {
        self.commands.push(command);
        self.poller.wake();
    }
}
