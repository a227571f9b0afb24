//! The first words on a connection, written and read without blocking. `Control` decides who is
//! welcome.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use polyrail_proto::FlowIndex;
use polyrail_proto::hello::{Card, Hello, HelloError, PREFIX_BYTES, Prefix, RefusedCode, Reply};
use polyrail_sys::{In, IoVecs, Out, receive, send};
use socket2::Socket;

use crate::base::reason::ConnectReason;
use crate::engine::peer::PeerShared;
use crate::engine::quotas::FlowPlace;
use crate::engine::tasks::Answer;

/// A connection that is not a flow yet.
pub(crate) struct Handshake {
    pub(crate) socket: Socket,
    pub(crate) cause: Cause,
    pub(crate) remote: SocketAddr,
    pub(crate) deadline: Instant,
    /// How long the other side may take for its first words once there is a connection. Its kernel
    /// connects, so that says nothing of whether its threads have a CPU.
    patience: Duration,
    stage: Stage,
    output: Vec<u8>,
    input: Vec<u8>,
    prefix: Option<Prefix>,
    /// What it said, while the user is asked whether it may join, and the number of the question.
    awaiting: Option<(u64, Hello)>,
}

/// Why there is a connection.
pub(crate) enum Cause {
    /// Somebody connected to a rail of ours. Afterwards: what to do once the reply is out.
    Accepted { rail: usize, then: Option<Then> },
    /// We connect a flow.
    Flow {
        peer: Arc<PeerShared>,
        flow: FlowIndex,
        epoch: u64,
        /// How long to wait before the next try if this one fails.
        pause: Duration,
    },
    /// We ask somebody who he is.
    Introduction { answer: Answer<Result<Card, ConnectReason>> },
}

/// A flow of a peer that was accepted.
pub(crate) struct Then {
    pub(crate) peer: Arc<PeerShared>,
    pub(crate) flow: FlowIndex,
    pub(crate) epoch: u64,
    pub(crate) window_chunks: u32,
    /// Our flow of the same number goes back on this connection.
    pub(crate) duplex: bool,
    /// Its place among the peer's connections.
    pub(crate) place: FlowPlace,
}

/// Strangers come in thousands, as port scanners do: the log has one line of them in a while.
#[derive(Default)]
pub(crate) struct TurnedAway {
    logged: Option<Instant>,
    since: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Connecting,
    Writing,
    Reading,
    /// The user is asked.
    Deciding,
}

/// Where a handshake stands.
pub(crate) enum Step {
    /// It waits for the socket.
    Waiting,
    /// A hello came: decide, then [`Handshake::reply`].
    Hello(Hello),
    /// A reply came.
    Reply(Reply),
    /// The reply is out.
    ReplySent,
    /// It failed.
    Failed(ConnectReason),
    /// The other side's first words are not what they should be.
    Rejected(HelloError),
}

impl TurnedAway {
    pub(crate) fn log(&mut self, rail: &str, remote: SocketAddr, why: &ConnectReason) {
        const PAUSE: Duration = Duration::from_secs(1);
        if self.logged.is_some_and(|logged| logged.elapsed() < PAUSE) {
            self.since += 1;
            return;
        }
        let others = std::mem::take(&mut self.since);
        tracing::warn!(target: "polyrail::peer", rail, %remote, %why, others, "turned away");
        self.logged = Some(Instant::now());
    }
}

impl Handshake {
    pub(crate) fn accepted(
        socket: Socket,
        rail: usize,
        remote: SocketAddr,
        deadline: Instant,
    ) -> Self {
        let cause = Cause::Accepted { rail, then: None };
        Self::new(socket, cause, remote, deadline, Stage::Reading, Vec::new())
    }

    pub(crate) fn connecting(
        socket: Socket,
        cause: Cause,
        remote: SocketAddr,
        deadline: Instant,
        patience: Duration,
        hello: &Hello,
    ) -> Self {
        let connecting =
            Self::new(socket, cause, remote, deadline, Stage::Connecting, hello.encode());
        Self { patience, ..connecting }
    }

    /// Goes as far as the socket allows.
    pub(crate) fn step(&mut self) -> Step {
        loop {
            let step = match self.stage {
                Stage::Connecting => self.connect(),
                Stage::Writing => self.write(),
                Stage::Reading => self.read(),
                Stage::Deciding => return Step::Waiting,
            };
            match step {
                Ok(Some(step)) => return step,
                Ok(None) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Step::Waiting,
                Err(error) => return Step::Failed(error.into()),
            }
        }
    }

    /// Answers a hello.
    pub(crate) fn reply(&mut self, reply: &Reply, then: Option<Then>) {
        if let Cause::Accepted { then: slot, .. } = &mut self.cause {
            *slot = then;
        }
        self.output = reply.encode();
        self.stage = Stage::Writing;
    }

    /// The user is asked whether it may join; what it said is answered afterwards.
    pub(crate) fn await_verdict(&mut self, question: u64, hello: Hello) {
        self.awaiting = Some((question, hello));
        self.stage = Stage::Deciding;
    }

    pub(crate) fn awaits(&self, question: u64) -> bool {
        self.awaiting.as_ref().is_some_and(|(number, _)| *number == question)
    }

    pub(crate) fn is_undecided(&self) -> bool {
        self.awaiting.is_some()
    }

    /// What it said, now that the user has decided.
    pub(crate) fn take_awaiting(&mut self) -> Option<Hello> {
        Some(self.awaiting.take()?.1)
    }

    /// Tells a Polyrail that is not welcome why, as far as the socket takes it at once.
    pub(crate) fn say_goodbye(&self, code: RefusedCode, reason: &str) {
        let bytes = Reply::Refused { code, reason: reason.to_owned() }.encode();
        let mut from = IoVecs::<Out>::new();
        from.push_bytes(&bytes);
        let _ = send(self.socket.as_fd(), &mut from);
    }

    /// What a handshake that ran out of time was waiting for.
    pub(crate) fn timed_out(&self) -> ConnectReason {
        let waiting_for = match self.stage {
            Stage::Connecting => "the connection",
            Stage::Writing => "room to write",
            Stage::Reading => "the other side's first words",
            Stage::Deciding => "the user's word on whether it may join",
        };
        ConnectReason::TimedOut { waiting_for }
    }

    fn new(
        socket: Socket,
        cause: Cause,
        remote: SocketAddr,
        deadline: Instant,
        stage: Stage,
        output: Vec<u8>,
    ) -> Self {
        let (input, patience) = (Vec::new(), Duration::ZERO);
        let (prefix, awaiting) = (None, None);
        Self { socket, cause, remote, deadline, patience, stage, output, input, prefix, awaiting }
    }

    fn connect(&mut self) -> io::Result<Option<Step>> {
        if let Some(error) = self.socket.take_error()? {
            return Err(error);
        }
        match self.socket.peer_addr() {
            Ok(_) => {
                self.stage = Stage::Writing;
                self.deadline = self.deadline.max(Instant::now() + self.patience);
                Ok(None)
            }
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(Some(Step::Waiting)),
            Err(error) => Err(error),
        }
    }

    fn write(&mut self) -> io::Result<Option<Step>> {
        let mut from = IoVecs::<Out>::new();
        from.push_bytes(&self.output);
        let sent = send(self.socket.as_fd(), &mut from)?;
        self.output.drain(..sent);
        if !self.output.is_empty() {
            return Ok(None);
        }
        if matches!(self.cause, Cause::Accepted { .. }) {
            return Ok(Some(Step::ReplySent));
        }
        self.stage = Stage::Reading;
        Ok(None)
    }

    /// Reads exactly the prefix, then exactly the body: what follows belongs to the flow.
    fn read(&mut self) -> io::Result<Option<Step>> {
        let wanted = PREFIX_BYTES + self.prefix.map_or(0, |prefix| prefix.body_bytes());
        let have = self.input.len();
        if have < wanted {
            self.input.resize(wanted, 0);
            let mut into = IoVecs::<In>::new();
            into.push_buffer(&mut self.input[have..]);
            let received = receive(self.socket.as_fd(), &mut into);
            self.input.truncate(have + received.as_ref().copied().unwrap_or(0));
            return match received? {
                0 => Ok(Some(Step::Failed(ConnectReason::Closed))),
                _ => Ok(None),
            };
        }
        Ok(self.decode().unwrap_or_else(|error| Some(Step::Rejected(error))))
    }

    fn decode(&mut self) -> Result<Option<Step>, HelloError> {
        let Some((prefix, body)) = self.input.split_first_chunk::<PREFIX_BYTES>() else {
            return Ok(None);
        };
        let Some(known) = self.prefix else {
            self.prefix = Some(Prefix::decode(prefix)?);
            return Ok(None);
        };
        let step = match self.cause {
            Cause::Accepted { .. } => Step::Hello(Hello::decode(known, body)?),
            _ => Step::Reply(Reply::decode(known, body)?),
        };
        self.input.clear();
        self.prefix = None;
        Ok(Some(step))
    }
}
