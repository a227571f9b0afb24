//! Start of a connection, as a state machine over bytes: the credentials of both ends, the initiator's hello, the
//! responder's reply. The driver moves the bytes and decides which engines are welcome.
//!
//! Submodules decide which addresses of an engine to try, and which unauthenticated clients need the user's consent.

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

/// The exchange at the start of a connection, seen from one end.
pub struct Exchange {
    talk: Talk,
    /// Unsent bytes of this end's last message.
    output: Vec<u8>,
    /// Room for the prefix of the next message and then its body, filled up to `filled`. The bytes after it belong to
    /// the flow.
    input: Vec<u8>,
    filled: usize,
    prefix: Option<Prefix>,
    names: Vec<String>,
    proven_by: Option<Proof>,
}

/// State of the exchange.
enum Talk {
    /// Initiator: sends its credential first, then `hello` to the engine `to`.
    FirstWords { initiator: Initiator, to: Option<InstanceId>, hello: Box<Hello> },
    /// Initiator: has sent its hello to this engine.
    Introduced { to: InstanceId, keys: Keys },
    /// Responder: nothing received.
    Stranger,
    /// Responder: the initiator has proven that it may connect, and gets this engine's identity.
    Answering(Responder),
    /// Responder: the initiator has proven its identity.
    Proven(Keys),
    /// A message was invalid.
    Over,
}

/// First message of the initiator, and its hello.
pub struct FirstWords {
    initiator: Initiator,
    first: Vec<u8>,
    to: Option<InstanceId>,
    hello: Hello,
}

/// Next action of the driver.
#[derive(Debug)]
pub enum Turn<'a> {
    /// Send some of these bytes, then [`Exchange::handle_written`].
    Write(&'a [u8]),
    /// Read into this room, then [`Exchange::handle_read`].
    Read(&'a mut [u8]),
}

/// Result of handling bytes.
#[derive(Debug)]
pub enum Event {
    /// A hello arrived: decide, then [`Exchange::reply`].
    Hello(Hello),
    /// A reply arrived. A refusal may be in clear, and then proves nothing.
    Reply(Reply),
    /// The reply is sent.
    ReplySent,
    /// The exchange has ended.
    Fault(Fault),
}

/// Reason why an exchange failed.
#[derive(Debug)]
pub enum Fault {
    /// The connection failed.
    Failed(ConnectReason),
    /// The other side sent invalid bytes.
    Rejected(HelloError),
    /// The initiator has no credential that is accepted here.
    Unproven(HandshakeError),
}

/// Makes the answer to the first message of an unauthenticated client.
type Answer<'a> = &'a dyn Fn(&[u8]) -> Result<(Responder, Vec<u8>), HandshakeError>;

impl FirstWords {
    /// Returns the first message to the engine with this number, if it is known. If the credential is this engine's
    /// certificate, from this file, the certificate has to be valid.
    ///
    /// # Errors
    /// The certificate is not valid, or the system gives no random bits.
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
    /// Maximum number of bytes of the next message.
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
    /// Returns the exchange of the responder.
    pub fn accepting() -> Self {
        Self::new(Talk::Stranger, Vec::new())
    }

    /// Returns the exchange of the initiator.
    pub fn connecting(FirstWords { initiator, first, to, hello }: FirstWords) -> Self {
        let talk = Talk::FirstWords { initiator, to, hello: Box::new(hello) };
        Self::new(talk, Kind::First.framed(&first))
    }

    fn new(talk: Talk, output: Vec<u8>) -> Self {
        let input = vec![0; PREFIX_BYTES];
        Self { talk, output, input, filled: 0, prefix: None, names: Vec::new(), proven_by: None }
    }

    /// Returns the driver's next action.
    pub fn turn(&mut self) -> Turn<'_> {
        match self.output.is_empty() {
            false => Turn::Write(&self.output),
            true => Turn::Read(&mut self.input[self.filled..]),
        }
    }

    /// Records that this many bytes of the message are sent.
    pub fn handle_written(&mut self, bytes: usize) -> Option<Event> {
        self.output.drain(..bytes);
        let is_replied = self.output.is_empty() && matches!(self.talk, Talk::Proven(_));
        is_replied.then_some(Event::ReplySent)
    }

    /// Records that this many bytes were read into the room; 0 is the end of the connection. `answer` makes the second
    /// message of the handshake.
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
                // Checked before allocating: an unauthenticated client gets no more room than it may need.
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

    /// Returns the refusal, in clear, for a Polyrail engine that is not welcome.
    pub fn goodbye(code: RefusedCode, reason: &str) -> Vec<u8> {
        Kind::Refusal.framed(&Reply::Refused { code, reason: reason.to_owned() }.encode())
    }

    /// Returns whether the other side has proven its identity.
    pub fn is_proven(&self) -> bool {
        matches!(self.talk, Talk::Introduced { .. } | Talk::Proven(_))
    }

    /// Returns whether the initiator has sent nothing yet.
    pub fn is_unheard(&self) -> bool {
        matches!(self.talk, Talk::Stranger) && self.prefix.is_none() && self.filled == 0
    }

    /// Returns the names on the other side's valid certificate; empty if its credential is another one.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Returns the credential that the initiator has used; `None` on the initiator's side, and before.
    pub fn proven_by(&self) -> Option<Proof> {
        self.proven_by
    }

    /// Returns the event that the exchange waits for, worded for error reasons.
    pub fn waits_for(&self) -> &'static str {
        match self.output.is_empty() {
            false => "room to write",
            true => FIRST_WORDS,
        }
    }

    /// Returns the keys of the flow that follows, once both ends are proven.
    pub fn into_keys(self) -> Option<Keys> {
        match self.talk {
            Talk::Introduced { keys, .. } | Talk::Proven(keys) => Some(keys),
            _ => None,
        }
    }

    /// Handles a whole message.
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

    /// Initiator: the other side has proven its identity.
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

    /// Initiator: the other side answers the hello.
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

    /// Responder: the other side proves its identity, and sends its hello.
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
