//! The first words on a connection, written and read without blocking. `Control` decides who is
//! welcome.

use std::borrow::Cow;
use std::io;
use std::mem::{replace, take};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use polyrail_proto::hello::{
    Hello, HelloError, Kind, MAX_BODY_BYTES, MAX_CERTIFIED_BYTES, PREFIX_BYTES, Prefix,
    RefusedCode, Reply,
};
use polyrail_proto::{FlowIndex, InstanceId};
use polyrail_secure::{HandshakeError, Initiator, Keys, Proof, Proven, Responder, Role, Secret};
use polyrail_sys::{In, IoVecs, Out, receive, send};
use socket2::Socket;

use crate::base::reason::{ConnectReason, THE_CONNECTION, Whose};
use crate::control::second_way::{Dialed, Race};
use crate::device::shared_memory::offer::StreamOffer;
use crate::device::shared_memory::stream::SharedStream;
use crate::engine::credentials::Credentials;
use crate::engine::peer::{PeerShared, RailPair, Way};
use crate::engine::proven_names::Names;
use crate::engine::quotas::FlowPlace;

/// Why a flow is not welcome where its peer should be.
pub(crate) const ANOTHER: &str =
    "another engine listens there: it was started again, or the address leads elsewhere";

/// A connection that is not a flow yet.
pub(crate) struct Handshake {
    pub(crate) socket: Socket,
    pub(crate) cause: Cause,
    pub(crate) remote: SocketAddr,
    pub(crate) deadline: Instant,
    /// The ways of a connection that is made here.
    pub(crate) race: Race,
    /// How long the other side may take for its first words once there is a connection. Its kernel
    /// connects, so that says nothing of whether its threads have a CPU.
    patience: Duration,
    stage: Stage,
    talk: Talk,
    output: Vec<u8>,
    input: Vec<u8>,
    prefix: Option<Prefix>,
    /// The names on the certificate of the other side, once it holds.
    names: Names,
    /// How the side that connected has proven that it may.
    proven_by: Option<Proof>,
    /// What it said, while the user is asked whether it may join, and the number of the question.
    awaiting: Option<(u64, Hello)>,
}

/// What was said so far.
enum Talk {
    /// Here: it connects, and has proven that it may. It will say this to that engine.
    FirstWords { initiator: Initiator, to: Option<InstanceId>, hello: Box<Hello> },
    /// Here: it said its hello to this engine.
    Introduced { to: InstanceId, keys: Keys },
    /// There: nothing.
    Stranger,
    /// There: it has proven that it may connect, and hears who this is.
    Answering(Responder),
    /// There: it has proven who it is.
    Proven(Keys),
    /// A message did not hold.
    Over,
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
        /// The rails that it is tried on.
        pair: RailPair,
        /// Memory that the other end may open, or why there is none.
        offer: Result<StreamOffer, Cow<'static, str>>,
    },
    /// We ask somebody who he is; `of` is the number of the introduction.
    Introduction { of: usize, by: Proof },
}

/// The first words of the side that connects.
pub(crate) struct FirstWords {
    initiator: Initiator,
    first: Vec<u8>,
    to: Option<InstanceId>,
    hello: Hello,
}

impl FirstWords {
    /// To the engine with this number, if it is known. For a certificate, the own one has to hold.
    pub(crate) fn new(
        own: &Credentials,
        (proof, secret): (Proof, &Secret),
        to: Option<InstanceId>,
        hello: Hello,
    ) -> Result<Self, ConnectReason> {
        let certified = own.certified().filter(|_| proof == Proof::Certificate);
        let begun = match certified {
            None => Initiator::new(&own.identity, proof, secret),
            Some(certified) => {
                let of = Whose::ThisEngine;
                let file = || Some(own.certificates.as_ref()?.file().to_owned());
                let holds = certified.holds_as(Role::Initiator);
                holds.map_err(|why| ConnectReason::Certificate { of, why, file: file() })?;
                Initiator::by_certificate(&own.identity, certified)
            }
        };
        let (initiator, first) = begun?;
        Ok(Self { initiator, first, to, hello })
    }
}

/// A flow of a peer that was accepted.
pub(crate) struct Then {
    pub(crate) peer: Arc<PeerShared>,
    pub(crate) flow: FlowIndex,
    /// Rail of the peer that it comes from, by its card.
    pub(crate) from_rail: usize,
    pub(crate) epoch: u64,
    pub(crate) window_chunks: u32,
    /// Our flow of the same number goes back on this connection.
    pub(crate) duplex: bool,
    /// Memory of the other end that was opened here.
    pub(crate) stream: Option<Arc<SharedStream>>,
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
    /// A reply came; a refusal may be in clear, and then proves nothing.
    Reply(Reply),
    /// The reply is out.
    ReplySent,
    /// It failed.
    Failed(ConnectReason),
    /// The other side's words are not what they should be.
    Rejected(HelloError),
    /// Who connected proved nothing that counts here.
    Unproven(HandshakeError),
}

/// Why a message ends the handshake; as steps say it.
enum Fault {
    Failed(ConnectReason),
    Rejected(HelloError),
    Unproven(HandshakeError),
}

impl Talk {
    /// Most bytes of the next message.
    fn most_bytes(&self) -> usize {
        match self {
            Self::FirstWords { .. } => MAX_CERTIFIED_BYTES,
            Self::Answering(responder) if responder.proof() == Proof::Certificate => {
                MAX_CERTIFIED_BYTES
            }
            _ => MAX_BODY_BYTES,
        }
    }
}

impl From<Fault> for Step {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Failed(why) => Self::Failed(why),
            Fault::Rejected(error) => Self::Rejected(error),
            Fault::Unproven(error) => Self::Unproven(error),
        }
    }
}

/// Why somebody was turned away: [`ConnectReason`] has the words of who connects.
fn of_who_came(why: &ConnectReason) -> String {
    match why {
        ConnectReason::Impostor(error) => error.to_string(),
        ConnectReason::Certificate { of: Whose::OtherEngine, why, .. } => {
            format!("its certificate {why}")
        }
        ConnectReason::Closed => "it hung up without a word, as who does not accept this \
                                  engine's proof or certificate"
            .to_owned(),
        other => other.to_string(),
    }
}

impl TurnedAway {
    pub(crate) fn log(&mut self, rail: &str, remote: SocketAddr, why: &ConnectReason) {
        const PAUSE: Duration = Duration::from_secs(1);
        if self.logged.is_some_and(|logged| logged.elapsed() < PAUSE) {
            self.since += 1;
            return;
        }
        let others = std::mem::take(&mut self.since);
        let why = of_who_came(why);
        tracing::warn!(target: "polyrail::peer", rail, %remote, why, others, "turned away");
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
        Self::new(socket, cause, remote, deadline, Stage::Reading, Talk::Stranger)
    }

    /// Connects to `to`, if that is known, and says `hello` there.
    pub(crate) fn connecting(
        Dialed { socket, way, second }: Dialed,
        cause: Cause,
        remote: SocketAddr,
        (deadline, patience): (Instant, Duration),
        greeting: FirstWords,
    ) -> Self {
        let FirstWords { initiator, first, to, hello } = greeting;
        let talk = Talk::FirstWords { initiator, to, hello: Box::new(hello) };
        let connecting = Self::new(socket, cause, remote, deadline, Stage::Connecting, talk);
        let race = Race::new(way, second);
        Self { patience, race, output: Kind::First.framed(&first), ..connecting }
    }

    /// Goes as far as the socket allows.
    pub(crate) fn step(&mut self, own: &Credentials) -> Step {
        loop {
            let step = match self.stage {
                Stage::Connecting => self.connect(),
                Stage::Writing => self.write(),
                Stage::Reading => self.read(own),
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
        if let Talk::Proven(keys) = &mut self.talk {
            let mut record = Vec::new();
            let begin = keys.sealer.begin(&mut record);
            record.extend_from_slice(&reply.encode());
            keys.sealer.seal(&mut record, begin, 0);
            self.output = Kind::Reply.framed(&record);
            self.stage = Stage::Writing;
        }
    }

    /// Whether the other side has proven who it is.
    pub(crate) fn is_proven(&self) -> bool {
        matches!(self.talk, Talk::Introduced { .. } | Talk::Proven(_))
    }

    /// Whether the side that connected has sent nothing yet.
    pub(crate) fn is_unheard(&self) -> bool {
        matches!(self.talk, Talk::Stranger) && self.prefix.is_none() && self.input.is_empty()
    }

    /// Whether there is no TCP connection yet.
    pub(crate) fn is_connecting(&self) -> bool {
        self.stage == Stage::Connecting
    }

    /// The names on the certificate of the other side; none if it proved something else.
    pub(crate) fn names(&self) -> &Names {
        &self.names
    }

    /// How the side that connected has proven that it may; `None` on that side, and before.
    pub(crate) fn proven_by(&self) -> Option<Proof> {
        self.proven_by
    }

    /// What the flow goes on with.
    pub(crate) fn into_flow(self) -> Option<(Socket, Cause, Keys)> {
        match self.talk {
            Talk::Introduced { keys, .. } | Talk::Proven(keys) => {
                Some((self.socket, self.cause, keys))
            }
            _ => None,
        }
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

    /// Tells a Polyrail that is not welcome why, in clear, as far as the socket takes it at once.
    pub(crate) fn say_goodbye(&self, code: RefusedCode, reason: &str) {
        let words = Reply::Refused { code, reason: reason.to_owned() }.encode();
        let bytes = Kind::Refusal.framed(&words);
        let mut from = IoVecs::<Out>::new();
        from.push_bytes(&bytes);
        let _ = send(self.socket.as_fd(), &mut from);
    }

    /// What a handshake that ran out of time was waiting for.
    pub(crate) fn timed_out(&self) -> ConnectReason {
        let waiting_for = match self.stage {
            Stage::Connecting => THE_CONNECTION,
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
        talk: Talk,
    ) -> Self {
        let (output, input, patience) = (Vec::new(), Vec::new(), Duration::ZERO);
        let (prefix, awaiting, names, proven_by) = (None, None, Names::default(), None);
        Self {
            socket,
            cause,
            remote,
            deadline,
            race: Race::new(Way::Address, None),
            patience,
            stage,
            talk,
            output,
            input,
            prefix,
            names,
            proven_by,
            awaiting,
        }
    }

    fn connect(&mut self) -> io::Result<Option<Step>> {
        if !self.race.connect(&mut self.socket)? {
            return Ok(Some(Step::Waiting));
        }
        self.stage = Stage::Writing;
        self.deadline = self.deadline.max(Instant::now() + self.patience);
        Ok(None)
    }

    fn write(&mut self) -> io::Result<Option<Step>> {
        let mut from = IoVecs::<Out>::new();
        from.push_bytes(&self.output);
        let sent = send(self.socket.as_fd(), &mut from)?;
        self.output.drain(..sent);
        if !self.output.is_empty() {
            return Ok(None);
        }
        if matches!(self.talk, Talk::Proven(_)) {
            return Ok(Some(Step::ReplySent));
        }
        self.stage = Stage::Reading;
        Ok(None)
    }

    /// Reads exactly the prefix, then exactly the body: what follows belongs to the flow.
    fn read(&mut self, own: &Credentials) -> io::Result<Option<Step>> {
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
        let Some(prefix) = self.prefix.take() else {
            let Some(prefix) = self.input.first_chunk::<PREFIX_BYTES>() else { return Ok(None) };
            // Before there is room for it: so a stranger gets no more than it may need.
            let max = self.talk.most_bytes();
            return match Prefix::decode(prefix).and_then(|prefix| prefix.within(max)) {
                Ok(prefix) => {
                    self.prefix = Some(prefix);
                    Ok(None)
                }
                Err(error) => Ok(Some(Step::Rejected(error))),
            };
        };
        let mut message = take(&mut self.input);
        Ok(self.hear(prefix.kind(), &mut message[PREFIX_BYTES..], own))
    }

    /// A message came as a whole.
    fn hear(&mut self, kind: Kind, body: &mut [u8], own: &Credentials) -> Option<Step> {
        let heard = match (replace(&mut self.talk, Talk::Over), kind) {
            (Talk::FirstWords { .. } | Talk::Introduced { .. }, Kind::Refusal) => {
                Reply::decode(body).map(Step::Reply).map(Some).map_err(Fault::Rejected)
            }
            (Talk::FirstWords { initiator, to, hello }, Kind::Second) => {
                self.introduce(initiator, to, &hello, body)
            }
            (Talk::Introduced { to, keys }, Kind::Reply) => self.hear_reply(to, keys, body),
            (Talk::Stranger, Kind::First) => self.answer(own, body),
            (Talk::Answering(responder), Kind::Third) => self.hear_hello(responder, body),
            (_, kind) => {
                let allowed = "the next message of the handshake";
                Err(Fault::Rejected(HelloError::Kind { got: kind as u16, allowed }))
            }
        };
        heard.unwrap_or_else(|fault| Some(fault.into()))
    }

    /// Here: the other side has shown who it is.
    fn introduce(
        &mut self,
        mut initiator: Initiator,
        expected: Option<InstanceId>,
        hello: &Hello,
        second: &[u8],
    ) -> Result<Option<Step>, Fault> {
        let failed = |error: HandshakeError| Fault::Failed(error.into());
        let to = InstanceId(initiator.read(second).map_err(failed)?.instance());
        self.names = initiator.names().into();
        if expected.is_some_and(|expected| expected != to) {
            return Err(failed(HandshakeError::OtherIdentity));
        }
        let (third, keys) = initiator.finish(&hello.encode()).map_err(failed)?;
        self.say(Kind::Third, &third);
        self.talk = Talk::Introduced { to, keys };
        Ok(None)
    }

    /// Here: the other side answers the hello.
    fn hear_reply(
        &mut self,
        to: InstanceId,
        mut keys: Keys,
        record: &mut [u8],
    ) -> Result<Option<Step>, Fault> {
        let failed = |error: HandshakeError| Fault::Failed(error.into());
        let words = keys.opener.open_whole(record).map_err(|_| failed(HandshakeError::Unproven))?;
        let reply = Reply::decode(words).map_err(Fault::Rejected)?;
        if matches!(&reply, Reply::Accepted(metadata) if metadata.card.instance != to) {
            return Err(failed(HandshakeError::OtherIdentity));
        }
        self.talk = Talk::Introduced { to, keys };
        Ok(Some(Step::Reply(reply)))
    }

    /// There: somebody wants to prove that it may connect.
    fn answer(&mut self, own: &Credentials, first: &[u8]) -> Result<Option<Step>, Fault> {
        let answered = Responder::new(&own.identity, &own.keyring.read(), first);
        let (responder, second) = answered.map_err(Fault::Unproven)?;
        self.say(Kind::Second, &second);
        self.talk = Talk::Answering(responder);
        Ok(None)
    }

    /// There: it shows who it is, and says its hello.
    fn hear_hello(&mut self, responder: Responder, third: &[u8]) -> Result<Option<Step>, Fault> {
        let Proven { initiator, proof, names, words, keys } =
            responder.finish(third).map_err(Fault::Unproven)?;
        let hello = Hello::decode(&words).map_err(Fault::Rejected)?;
        if hello.card().instance.0 != initiator.instance() {
            return Err(Fault::Unproven(HandshakeError::OtherIdentity));
        }
        self.names = names.into();
        self.proven_by = Some(proof);
        self.talk = Talk::Proven(keys);
        Ok(Some(Step::Hello(hello)))
    }

    fn say(&mut self, kind: Kind, body: &[u8]) {
        self.output = kind.framed(body);
        self.stage = Stage::Writing;
    }
}
