//! A connection that is not a flow yet: its socket, and the [`Exchange`] of first words. `Control` decides which are
//! welcome.

use std::borrow::Cow;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use polyrail_proto::FlowIndex;
use polyrail_proto::budget::Taken;
use polyrail_proto::exchange::{Event, Exchange, Fault, FirstWords, Turn};
use polyrail_proto::hello::{Hello, RefusedCode, Reply};
use polyrail_proto::liveness::Way;
use polyrail_proto::reason::{ConnectReason, THE_CONNECTION};
use polyrail_secure::{Keys, Proof, Responder};
use polyrail_sys::{In, IoVecs, Out, receive, send};
use socket2::Socket;

use crate::control::second_way::{Dialed, Race};
use crate::device::shared_memory::offer::StreamOffer;
use crate::device::shared_memory::stream::SharedStream;
use crate::engine::credentials::Credentials;
use crate::engine::peer::{PeerShared, RailPair};

/// A connection that is not a flow yet.
pub(crate) struct Handshake {
    pub(crate) socket: Socket,
    pub(crate) cause: Cause,
    pub(crate) remote: SocketAddr,
    pub(crate) deadline: Instant,
    /// Ways of a connection that this engine makes.
    pub(crate) race: Race,
    /// Time that the other side may take for its first words once there is a connection. Its kernel connects, so that
    /// says nothing of whether its threads have a CPU.
    patience: Duration,
    /// Whether there is no TCP connection yet.
    pub(crate) is_connecting: bool,
    pub(crate) exchange: Exchange,
    /// The hello and the number of the question, while the user is asked whether the engine may join.
    awaiting: Option<(u64, Hello)>,
}

/// The reason for a connection.
pub(crate) enum Cause {
    /// A client connected to a local rail. `then`: the next step once the reply is sent.
    Accepted { rail: usize, then: Option<Then> },
    /// This engine connects a flow.
    Flow {
        peer: Arc<PeerShared>,
        flow: FlowIndex,
        epoch: u64,
        /// Rails that it is tried on.
        pair: RailPair,
        /// Memory that the other end may open, or the reason why there is none.
        offer: Result<StreamOffer, Cow<'static, str>>,
    },
    /// This engine asks another one for its metadata; `of` is the number of the introduction.
    Introduction { of: usize, by: Proof },
}

/// A flow of a peer that was accepted.
pub(crate) struct Then {
    pub(crate) peer: Arc<PeerShared>,
    pub(crate) flow: FlowIndex,
    /// Rail of the peer that the flow comes from, by the peer's card.
    pub(crate) from_rail: usize,
    pub(crate) epoch: u64,
    pub(crate) window_chunks: u32,
    /// Whether the local flow of the same number uses this connection, too.
    pub(crate) duplex: bool,
    /// Memory of the other end that was opened here.
    pub(crate) stream: Option<Arc<SharedStream>>,
    /// Place among the peer's connections.
    pub(crate) place: Taken,
}

impl Handshake {
    pub(crate) fn accepted(
        socket: Socket,
        rail: usize,
        remote: SocketAddr,
        deadline: Instant,
    ) -> Self {
        Self {
            socket,
            cause: Cause::Accepted { rail, then: None },
            remote,
            deadline,
            race: Race::new(Way::Address, None),
            patience: Duration::ZERO,
            is_connecting: false,
            exchange: Exchange::accepting(),
            awaiting: None,
        }
    }

    /// Starts to connect, with these first words.
    pub(crate) fn connecting(
        Dialed { socket, way, second }: Dialed,
        cause: Cause,
        remote: SocketAddr,
        (deadline, patience): (Instant, Duration),
        words: FirstWords,
    ) -> Self {
        Self {
            socket,
            cause,
            remote,
            deadline,
            race: Race::new(way, second),
            patience,
            is_connecting: true,
            exchange: Exchange::connecting(words),
            awaiting: None,
        }
    }

    /// Advances as far as the socket allows. `None` while it waits for that, or for the user.
    pub(crate) fn step(&mut self, own: &Credentials) -> Option<Event> {
        while self.awaiting.is_none() {
            match self.go_on(own) {
                Ok(None) => {}
                Ok(event) => return event,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
                Err(error) => return Some(Event::Fault(Fault::Failed(error.into()))),
            }
        }
        None
    }

    /// Answers a hello.
    pub(crate) fn reply(&mut self, reply: &Reply, then: Option<Then>) {
        if let Cause::Accepted { then: slot, .. } = &mut self.cause {
            *slot = then;
        }
        self.exchange.reply(reply);
    }

    /// Takes the parts that the flow continues with.
    pub(crate) fn into_flow(self) -> Option<(Socket, Cause, Keys)> {
        Some((self.socket, self.cause, self.exchange.into_keys()?))
    }

    /// Keeps the hello while the user is asked whether its engine may join. It is answered afterwards.
    pub(crate) fn await_verdict(&mut self, question: u64, hello: Hello) {
        self.awaiting = Some((question, hello));
    }

    pub(crate) fn awaits(&self, question: u64) -> bool {
        self.awaiting.as_ref().is_some_and(|(number, _)| *number == question)
    }

    pub(crate) fn is_undecided(&self) -> bool {
        self.awaiting.is_some()
    }

    /// Takes the hello, now that the user has decided.
    pub(crate) fn take_awaiting(&mut self) -> Option<Hello> {
        Some(self.awaiting.take()?.1)
    }

    /// Sends a refused Polyrail the reason, in clear, as far as the socket accepts it at once.
    pub(crate) fn say_goodbye(&self, code: RefusedCode, reason: &str) {
        let bytes = Exchange::goodbye(code, reason);
        let mut from = IoVecs::<Out>::new();
        from.push_bytes(&bytes);
        let _ = send(self.socket.as_fd(), &mut from);
    }

    /// The reason for a handshake that ran out of time: what it was waiting for.
    pub(crate) fn timed_out(&self) -> ConnectReason {
        let waiting_for = match (self.is_connecting, self.is_undecided()) {
            (true, _) => THE_CONNECTION,
            (_, true) => "the user's word on whether it may join",
            _ => self.exchange.waits_for(),
        };
        ConnectReason::TimedOut { waiting_for }
    }

    fn go_on(&mut self, own: &Credentials) -> io::Result<Option<Event>> {
        if self.is_connecting {
            if !self.race.connect(&mut self.socket)? {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            self.is_connecting = false;
            self.deadline = self.deadline.max(Instant::now() + self.patience);
        }
        match self.exchange.turn() {
            Turn::Write(bytes) => {
                let mut from = IoVecs::<Out>::new();
                from.push_bytes(bytes);
                let sent = send(self.socket.as_fd(), &mut from)?;
                Ok(self.exchange.handle_written(sent))
            }
            Turn::Read(room) => {
                let mut into = IoVecs::<In>::new();
                into.push_buffer(room);
                let received = receive(self.socket.as_fd(), &mut into)?;
                let answer =
                    |first: &[u8]| Responder::new(&own.identity, &own.keyring.read(), first);
                Ok(self.exchange.handle_read(received, &answer))
            }
        }
    }
}
