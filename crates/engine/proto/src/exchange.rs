//! The first words on a connection, as a state machine over bytes: the proof of both ends, the hello of the one that
//! connected, the reply of the other. Its driver moves the bytes and decides who is welcome.
//!
//! Beside it: which addresses of an engine are asked, and which strangers the user is asked about.

mod admissions;
mod introduction;
mod refusing;

use std::mem::replace;
use std::path::Path;
use std::sync::Arc;

use polyrail_secure::{
    Certified, HandshakeError, Identity, Initiator, Keys, Proof, Proven, Responder, Role, Secret,
};

pub use self::admissions::Admissions;
pub use self::introduction::{Introduction, may_take_a_secret, refusal_of_introduction};
pub use self::refusing::{refusal_of, refusal_of_words};
use crate::InstanceId;
use crate::hello::{
    Hello, HelloError, Kind, MAX_BODY_BYTES, MAX_CERTIFIED_BYTES, PREFIX_BYTES, Prefix,
    RefusedCode, Reply,
};
use crate::reason::{ConnectReason, FIRST_WORDS, Whose};

/// The first words on a connection, seen from one end.
pub struct Exchange {
    talk: Talk,
    /// Bytes that are still to be sent of the last message of this end.
    output: Vec<u8>,
    /// Room for the prefix of the next message and then its body, of which this much is filled. What follows belongs
    /// to the flow.
    input: Vec<u8>,
    filled: usize,
    prefix: Option<Prefix>,
    names: Vec<String>,
    proven_by: Option<Proof>,
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

/// The first words of the side that connects.
pub struct FirstWords {
    initiator: Initiator,
    first: Vec<u8>,
    to: Option<InstanceId>,
    hello: Hello,
}

/// What the driver has to do next.
#[derive(Debug)]
pub enum Turn<'a> {
    /// Send some of these bytes, then [`Exchange::handle_written`].
    Write(&'a [u8]),
    /// Read into this room, then [`Exchange::handle_read`].
    Read(&'a mut [u8]),
}

/// What bytes brought about.
#[derive(Debug)]
pub enum Event {
    /// A hello came: decide, then [`Exchange::reply`].
    Hello(Hello),
    /// A reply came; a refusal may be in clear, and then proves nothing.
    Reply(Reply),
    /// The reply is out.
    ReplySent,
    /// It is over.
    Fault(Fault),
}

/// Why an exchange came to nothing.
#[derive(Debug)]
pub enum Fault {
    /// It failed.
    Failed(ConnectReason),
    /// The other side's words are not what they should be.
    Rejected(HelloError),
    /// The side that connected proved nothing that counts here.
    Unproven(HandshakeError),
}

/// Makes the answer to the first message of a stranger.
type Answer<'a> = &'a dyn Fn(&[u8]) -> Result<(Responder, Vec<u8>), HandshakeError>;

impl FirstWords {
    /// To the engine with this number, if it is known. A certificate of this engine, from this file, has to hold if
    /// it is what proves.
    ///
    /// # Errors
    /// The certificate does not hold, or the system gives no random bits.
    pub fn new(
        identity: &Identity,
        (proof, secret): (Proof, &Secret),
        certified: Option<(&Arc<Certified>, Option<&Path>)>,
        to: Option<InstanceId>,
        hello: Hello,
    ) -> Result<Self, ConnectReason> {
        let begun = match certified.filter(|_| proof == Proof::Certificate) {
            None => Initiator::new(identity, proof, secret),
            Some((certified, file)) => {
                let of = Whose::ThisEngine;
                let file = || file.map(Path::to_owned);
                let holds = certified.holds_as(Role::Initiator);
                holds.map_err(|why| ConnectReason::Certificate { of, why, file: file() })?;
                Initiator::by_certificate(identity, certified.clone())
            }
        };
        let (initiator, first) = begun?;
        Ok(Self { initiator, first, to, hello })
    }
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

impl Exchange {
    /// Of the side that was connected to.
    pub fn accepting() -> Self {
        Self::new(Talk::Stranger, Vec::new())
    }

    /// Of the side that connects.
    pub fn connecting(FirstWords { initiator, first, to, hello }: FirstWords) -> Self {
        let talk = Talk::FirstWords { initiator, to, hello: Box::new(hello) };
        Self::new(talk, Kind::First.framed(&first))
    }

    fn new(talk: Talk, output: Vec<u8>) -> Self {
        let input = vec![0; PREFIX_BYTES];
        Self { talk, output, input, filled: 0, prefix: None, names: Vec::new(), proven_by: None }
    }

    /// What is to be done now.
    pub fn turn(&mut self) -> Turn<'_> {
        match self.output.is_empty() {
            false => Turn::Write(&self.output),
            true => Turn::Read(&mut self.input[self.filled..]),
        }
    }

    /// So many bytes of the message are sent.
    pub fn handle_written(&mut self, bytes: usize) -> Option<Event> {
        self.output.drain(..bytes);
        let is_replied = self.output.is_empty() && matches!(self.talk, Talk::Proven(_));
        is_replied.then_some(Event::ReplySent)
    }

    /// So many bytes came into the room; none are the end of the connection. `answer` makes the second message of the
    /// handshake.
    pub fn handle_read(&mut self, bytes: usize, answer: Answer<'_>) -> Option<Event> {
        if bytes == 0 {
            return Some(Event::Fault(Fault::Failed(ConnectReason::Closed)));
        }
        self.filled += bytes;
        let prefix = match self.prefix {
            Some(prefix) => prefix,
            None => {
                let prefix = self.input.first_chunk::<PREFIX_BYTES>()?;
                if self.filled < PREFIX_BYTES {
                    return None;
                }
                // Before there is room for it: so a stranger gets no more than it may need.
                let max = self.talk.most_bytes();
                match Prefix::decode(prefix).and_then(|prefix| prefix.within(max)) {
                    Ok(prefix) => prefix,
                    Err(error) => return Some(Event::Fault(Fault::Rejected(error))),
                }
            }
        };
        self.prefix = Some(prefix);
        self.input.resize(PREFIX_BYTES + prefix.body_bytes(), 0);
        if self.filled < self.input.len() {
            return None;
        }
        (self.prefix, self.filled) = (None, 0);
        let mut message = replace(&mut self.input, vec![0; PREFIX_BYTES]);
        let heard = self.handle_message(prefix.kind(), &mut message[PREFIX_BYTES..], answer);
        heard.unwrap_or_else(|fault| Some(Event::Fault(fault)))
    }

    /// Answers a hello.
    pub fn reply(&mut self, reply: &Reply) {
        if let Talk::Proven(keys) = &mut self.talk {
            let mut record = Vec::new();
            let begin = keys.sealer.begin(&mut record);
            record.extend_from_slice(&reply.encode());
            keys.sealer.seal(&mut record, begin, 0);
            self.output = Kind::Reply.framed(&record);
        }
    }

    /// The words for a Polyrail that is not welcome, in clear.
    pub fn goodbye(code: RefusedCode, reason: &str) -> Vec<u8> {
        Kind::Refusal.framed(&Reply::Refused { code, reason: reason.to_owned() }.encode())
    }

    /// Whether the other side has proven who it is.
    pub fn is_proven(&self) -> bool {
        matches!(self.talk, Talk::Introduced { .. } | Talk::Proven(_))
    }

    /// Whether the side that connected has sent nothing yet.
    pub fn is_unheard(&self) -> bool {
        matches!(self.talk, Talk::Stranger) && self.prefix.is_none() && self.filled == 0
    }

    /// The names on the certificate of the other side, once it holds; none if it proved something else.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// How the side that connected has proven that it may; `None` on that side, and before.
    pub fn proven_by(&self) -> Option<Proof> {
        self.proven_by
    }

    /// The event that is waited for, as reasons say it.
    pub fn waits_for(&self) -> &'static str {
        match self.output.is_empty() {
            false => "room to write",
            true => FIRST_WORDS,
        }
    }

    /// The keys of the flow that follows, once both ends are proven.
    pub fn into_keys(self) -> Option<Keys> {
        match self.talk {
            Talk::Introduced { keys, .. } | Talk::Proven(keys) => Some(keys),
            _ => None,
        }
    }

    /// A message came as a whole.
    fn handle_message(
        &mut self,
        kind: Kind,
        body: &mut [u8],
        answer: Answer<'_>,
    ) -> Result<Option<Event>, Fault> {
        match (replace(&mut self.talk, Talk::Over), kind) {
            (Talk::FirstWords { .. } | Talk::Introduced { .. }, Kind::Refusal) => {
                Reply::decode(body).map(Event::Reply).map(Some).map_err(Fault::Rejected)
            }
            (Talk::FirstWords { initiator, to, hello }, Kind::Second) => {
                self.introduce(initiator, to, &hello, body)
            }
            (Talk::Introduced { to, keys }, Kind::Reply) => self.handle_reply(to, keys, body),
            (Talk::Stranger, Kind::First) => {
                let (responder, second) = answer(body).map_err(Fault::Unproven)?;
                self.output = Kind::Second.framed(&second);
                self.talk = Talk::Answering(responder);
                Ok(None)
            }
            (Talk::Answering(responder), Kind::Third) => self.handle_hello(responder, body),
            (_, kind) => {
                let allowed = "the next message of the handshake";
                Err(Fault::Rejected(HelloError::Kind { got: kind as u16, allowed }))
            }
        }
    }

    /// Here: the other side has shown who it is.
    fn introduce(
        &mut self,
        mut initiator: Initiator,
        expected: Option<InstanceId>,
        hello: &Hello,
        second: &[u8],
    ) -> Result<Option<Event>, Fault> {
        let failed = |error: HandshakeError| Fault::Failed(error.into());
        let to = InstanceId(initiator.read(second).map_err(failed)?.instance());
        self.names = initiator.names().to_vec();
        if expected.is_some_and(|expected| expected != to) {
            return Err(failed(HandshakeError::OtherIdentity));
        }
        let (third, keys) = initiator.finish(&hello.encode()).map_err(failed)?;
        self.output = Kind::Third.framed(&third);
        self.talk = Talk::Introduced { to, keys };
        Ok(None)
    }

    /// Here: the other side answers the hello.
    fn handle_reply(
        &mut self,
        to: InstanceId,
        mut keys: Keys,
        record: &mut [u8],
    ) -> Result<Option<Event>, Fault> {
        let failed = |error: HandshakeError| Fault::Failed(error.into());
        let words = keys.opener.open_whole(record).map_err(|_| failed(HandshakeError::Unproven))?;
        let reply = Reply::decode(words).map_err(Fault::Rejected)?;
        if matches!(&reply, Reply::Accepted(metadata) if metadata.card.instance != to) {
            return Err(failed(HandshakeError::OtherIdentity));
        }
        self.talk = Talk::Introduced { to, keys };
        Ok(Some(Event::Reply(reply)))
    }

    /// There: it shows who it is, and says its hello.
    fn handle_hello(&mut self, responder: Responder, third: &[u8]) -> Result<Option<Event>, Fault> {
        let Proven { initiator, proof, names, words, keys } =
            responder.finish(third).map_err(Fault::Unproven)?;
        let hello = Hello::decode(&words).map_err(Fault::Rejected)?;
        if hello.card().instance.0 != initiator.instance() {
            return Err(Fault::Unproven(HandshakeError::OtherIdentity));
        }
        (self.names, self.proven_by) = (names, Some(proof));
        self.talk = Talk::Proven(keys);
        Ok(Some(Event::Hello(hello)))
    }
}

#[cfg(test)]
mod tests;
