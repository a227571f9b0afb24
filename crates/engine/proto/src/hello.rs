//! Messages of two engines before the first frame, and the engine info (card) by which they find each other.
//!
//! A connection begins with the three messages of the handshake (see [`polyrail_secure`]). The third carries the
//! **hello** of the initiator; the **reply** is the first record of the responder. Each message has a prefix that will
//! never change, so an engine of another version gets a clear refusal and is not mistaken for garbage:
//!
//! ```text
//! 0  "PLYR"   4 version u16   6 kind u16   8 body_len u32
//! kinds: 1 first, 2 second, 3 third message; 4 reply, a record; 5 refusal, in clear
//! ```
//!
//! A refusal in clear is sent before anything is proven, so it proves nothing.

// `card` holds the engine info, `prefix` the start of each message.
mod card;
mod network;
mod prefix;

use polyrail_secure::{CAPABILITY_BYTES, Capability, MAX_SHOWN_BYTES};
use thiserror::Error;

pub use self::card::{Capabilities, Card, EngineFeatures, MAX_NAME_BYTES, Metadata, RailCard};
pub use self::network::Network;
pub use self::prefix::{Kind, Prefix};
pub use crate::codec::DecodeError;
use crate::codec::{Reader, put_text};
use crate::id::InstanceId;
use crate::wire::{RING_BYTES, SharedPlace, WIRE_VERSION};

/// First bytes on every connection.
pub const MAGIC: [u8; 4] = *b"PLYR";
/// Bytes of the prefix.
pub const PREFIX_BYTES: usize = 12;
/// Maximum bytes after the prefix of a message without a certificate.
pub const MAX_BODY_BYTES: usize = 16 << 10;
/// Maximum bytes after the prefix of a message that may contain a certificate.
pub const MAX_CERTIFIED_BYTES: usize = MAX_BODY_BYTES + MAX_SHOWN_BYTES;
/// Maximum number of rails of an engine.
pub const MAX_RAILS: usize = 64;

const MAX_REASON_BYTES: usize = 512;

/// Hello of the initiator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hello {
    /// Opens a flow: data goes from the initiator to the responder.
    Flow(FlowHello),
    /// Requests the responder's metadata, and gives the initiator's.
    Introduction(Metadata),
}

/// Identifies the flow that a connection is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowHello {
    /// Card of the initiator.
    pub card: Card,
    /// Lets the other side connect back.
    pub capability: Capability,
    /// Instance that the initiator means to reach; another instance must refuse.
    pub target: InstanceId,
    /// Rail of the initiator, by its card.
    pub from_rail: u16,
    /// Rail of the responder, by its card.
    pub to_rail: u16,
    /// The flow's channel.
    pub channel: u32,
    /// Index among all flows of this direction.
    pub flow: u32,
    /// Number of flows of this direction.
    pub flows: u32,
    /// Number of the flow's connection; a later one replaces an earlier one.
    pub epoch: u64,
    /// Maximum chunks that the channel may have in flight. The frequency of acknowledgements follows from it.
    pub window_chunks: u32,
    /// Features in use on this flow.
    pub capabilities: Capabilities,
    /// Memory through which the connection's bytes may go. The responder writes into that memory, before it replies,
    /// whether it has opened it.
    pub stream: Option<SharedPlace>,
}

/// Reply to a hello.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The hello is accepted.
    Accepted(Metadata),
    /// The hello is refused.
    Refused {
        /// Code, for programs.
        code: RefusedCode,
        /// Reason, for people.
        reason: String,
    },
}

/// Reason why a connection is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
#[non_exhaustive]
pub enum RefusedCode {
    /// The protocol version differs.
    Version = 1,
    /// The hello can't be read.
    Malformed = 2,
    /// Another instance was meant: this engine was started since.
    WrongInstance = 3,
    /// The peer was removed here.
    Removed = 4,
    /// A limit on connections is reached.
    Limit = 5,
    /// A feature in use is not supported here.
    Capability = 6,
    /// One end has lost the other since the flow's session began.
    SessionOver = 7,
    /// Another card is known for the instance.
    OtherCard = 8,
    /// Another session of the instance is connected.
    OtherSession = 9,
    /// The user there does not want the peer.
    NotAdmitted = 10,
    /// The user there has not said yet whether the peer is wanted.
    Undecided = 11,
    /// The initiator has no credential that is accepted there.
    Unproven = 12,
    /// The engine takes no certificates.
    NoCertificates = 13,
    /// The certificate was not issued by a CA that the engine trusts.
    CertificateUntrusted = 14,
    /// The certificate has expired, by the clock there.
    CertificateExpired = 15,
    /// The certificate is not valid yet, by the clock there.
    CertificateNotYetValid = 16,
    /// The certificate is not for an engine that connects.
    CertificateUsage = 17,
    /// The names on the certificate are not allowed there.
    NameNotAllowed = 18,
    /// The certificate can't be read.
    CertificateMalformed = 19,
    /// The certificate belongs to an engine other than the one that presents it.
    CertificateStatement = 20,
}

impl RefusedCode {
    /// Returns the text for a peer that is refused because of its state.
    pub fn words(self) -> &'static str {
        match self {
            Self::Removed => "it has removed this engine: its user has to add this one again",
            Self::SessionOver => "it has lost this engine since: add it again",
            Self::OtherCard => "another card is known for that instance than the hello says",
            _ => "flows of another session of it are up",
        }
    }

    /// Returns whether the code is about the certificate of the refused side.
    pub fn is_about_certificate(self) -> bool {
        (Self::CertificateUntrusted as u16..=Self::CertificateStatement as u16)
            .contains(&(self as u16))
    }

    fn from_wire(code: u16) -> Option<Self> {
        [
            Self::Version,
            Self::Malformed,
            Self::WrongInstance,
            Self::Removed,
            Self::Limit,
            Self::Capability,
            Self::SessionOver,
            Self::OtherCard,
            Self::OtherSession,
            Self::NotAdmitted,
            Self::Undecided,
            Self::Unproven,
            Self::NoCertificates,
            Self::CertificateUntrusted,
            Self::CertificateExpired,
            Self::CertificateNotYetValid,
            Self::CertificateUsage,
            Self::NameNotAllowed,
            Self::CertificateMalformed,
            Self::CertificateStatement,
        ]
        .into_iter()
        .find(|known| *known as u16 == code)
    }
}

/// Bytes that are not a valid hello of this version.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum HelloError {
    /// The connection does not speak Polyrail's protocol.
    #[error("{}", foreign(*.got))]
    NotPolyrail {
        /// The first bytes.
        got: [u8; 4],
    },
    /// The peer speaks another version of the protocol.
    #[error("peer speaks version {got} of the protocol, this engine speaks {WIRE_VERSION}")]
    Version {
        /// The peer's version.
        got: u16,
    },
    /// The kind of hello is unknown to this version.
    #[error("field kind is {got}, allowed is {allowed}")]
    Kind {
        /// The kind read.
        got: u16,
        /// Allowed values.
        allowed: &'static str,
    },
    /// The hello is larger than the limit.
    #[error("hello of {got} bytes, allowed is {max}")]
    TooLarge {
        /// The announced length.
        got: u32,
        /// The limit.
        max: u32,
    },
    /// The body can't be read.
    #[error(transparent)]
    Body(#[from] DecodeError),
}

/// Describes a foreign protocol by its first bytes.
fn foreign(got: [u8; 4]) -> String {
    let language = match &got {
        b"HTTP" | b"GET " | b"HEAD" | b"POST" | b"PUT " | b"PRI " => "HTTP",
        b"SSH-" => "SSH",
        [0x15 | 0x16, 3, ..] => "TLS",
        _ => return format!("not a Polyrail connection: it starts with {got:02x?}"),
    };
    format!("it speaks {language}, and is no Polyrail")
}

impl Hello {
    /// Returns the hello as bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Self::Flow(flow) => {
                out.extend_from_slice(&1u16.to_le_bytes());
                flow.encode(&mut out);
            }
            Self::Introduction(metadata) => {
                out.extend_from_slice(&2u16.to_le_bytes());
                metadata.encode_into(&mut out);
            }
        }
        out
    }

    /// Reads the output of [`Self::encode`].
    pub fn decode(bytes: &[u8]) -> Result<Self, HelloError> {
        let mut reader = Reader::new("hello", bytes);
        let hello = match reader.u16("purpose")? {
            1 => Self::Flow(FlowHello::decode(&mut reader)?),
            2 => Self::Introduction(Metadata::decode_from(&mut reader)?),
            got => {
                let allowed = "1 (flow) or 2 (introduction)";
                return Err(reader.field("purpose", got.into(), allowed).into());
            }
        };
        reader.end()?;
        Ok(hello)
    }

    /// Returns the card of the sender.
    pub fn card(&self) -> &Card {
        match self {
            Self::Flow(flow) => &flow.card,
            Self::Introduction(metadata) => &metadata.card,
        }
    }
}

impl Reply {
    /// Returns the reply as bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Self::Accepted(metadata) => {
                out.extend_from_slice(&0u16.to_le_bytes());
                metadata.encode_into(&mut out);
            }
            Self::Refused { code, reason } => {
                out.extend_from_slice(&(*code as u16).to_le_bytes());
                put_text(&mut out, reason, MAX_REASON_BYTES);
            }
        }
        out
    }

    /// Reads the output of [`Self::encode`].
    pub fn decode(bytes: &[u8]) -> Result<Self, HelloError> {
        let mut reader = Reader::new("reply", bytes);
        let reply = match reader.u16("code")? {
            0 => Self::Accepted(Metadata::decode_from(&mut reader)?),
            got => Self::Refused {
                code: RefusedCode::from_wire(got)
                    .ok_or_else(|| reader.field("code", got.into(), "0 to 20"))?,
                reason: reader.text("reason", MAX_REASON_BYTES)?,
            },
        };
        reader.end()?;
        Ok(reply)
    }
}

/// Refusal text for a flow that reaches another engine than its peer.
pub const ANOTHER: &str =
    "another engine listens there: it was started again, or the address leads elsewhere";

impl FlowHello {
    /// Checks whether the engine with this card and this limit of flows can accept the flow.
    ///
    /// # Errors
    /// The reason for refusing the flow.
    pub fn check(&self, own: &Card, flow_limit: u32) -> Result<(), (RefusedCode, String)> {
        if self.target != own.instance {
            return Err((RefusedCode::WrongInstance, ANOTHER.to_owned()));
        }
        let needed = self.capabilities.without(Capabilities::DUPLEX);
        if !own.capabilities.contains(needed) {
            return Err((RefusedCode::Capability, "a feature in use is unknown here".to_owned()));
        }
        if self.flows > flow_limit {
            let reason = format!("{} flows asked for, flow_limit is {flow_limit}", self.flows);
            return Err((RefusedCode::Limit, reason));
        }
        Ok(())
    }

    /// Returns the metadata of the initiator.
    pub fn metadata(&self) -> Metadata {
        Metadata { card: self.card.clone(), capability: self.capability.clone() }
    }

    fn encode(&self, out: &mut Vec<u8>) {
        self.card.encode_into(out);
        out.extend_from_slice(self.capability.bytes());
        out.extend_from_slice(&self.target.0.to_le_bytes());
        out.extend_from_slice(&self.from_rail.to_le_bytes());
        out.extend_from_slice(&self.to_rail.to_le_bytes());
        for value in [self.channel, self.flow, self.flows] {
            out.extend_from_slice(&value.to_le_bytes());
        }
        out.extend_from_slice(&self.epoch.to_le_bytes());
        out.extend_from_slice(&self.window_chunks.to_le_bytes());
        let offered = match self.stream {
            Some(_) => Capabilities::SHARED_STREAM,
            None => Capabilities::default(),
        };
        let others = self.capabilities.without(Capabilities::SHARED_STREAM);
        out.extend_from_slice(&others.with(offered).0.to_le_bytes());
        if let Some(place) = self.stream {
            out.extend_from_slice(&place.encode());
        }
    }

    fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let mut hello = Self {
            card: Card::decode_from(reader)?,
            capability: Capability::new(reader.bytes::<CAPABILITY_BYTES>("capability")?),
            target: InstanceId(reader.u128("target")?),
            from_rail: reader.u16("from_rail")?,
            to_rail: reader.u16("to_rail")?,
            channel: reader.u32("channel")?,
            flow: reader.u32("flow")?,
            flows: reader.u32("flows")?,
            epoch: reader.u64("epoch")?,
            window_chunks: reader.u32("window_chunks")?,
            capabilities: Capabilities(reader.u64("capabilities")?),
            stream: None,
        };
        if hello.capabilities.contains(Capabilities::SHARED_STREAM) {
            hello.capabilities = hello.capabilities.without(Capabilities::SHARED_STREAM);
            let place = reader.bytes::<RING_BYTES>("stream")?;
            let allowed = "the place of shared memory";
            let wrong = |_| reader.field("stream", place[0].into(), allowed);
            hello.stream = Some(SharedPlace::decode(&place).map_err(wrong)?);
        }
        if usize::from(hello.from_rail) >= hello.card.rails.len() {
            let allowed = "less than the rails on the card";
            return Err(reader.field("from_rail", hello.from_rail.into(), allowed));
        }
        if hello.flow >= hello.flows {
            return Err(reader.field("flow", hello.flow.into(), "less than flows"));
        }
        Ok(hello)
    }
}

#[cfg(test)]
mod tests;
