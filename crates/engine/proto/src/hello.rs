//! What two engines say to each other before the first frame, and the card by which they find
//! each other.
//!
//! A connection begins with the three messages of the handshake (see [`polyrail_secure`]). The third
//! carries the **hello** of the side that connected; the **reply** is the first record of the other. Each has a
//! prefix, which will never change, so that an engine of another version gets a clear refusal instead
//! of looking like garbage:
//!
//! ```text
//! 0  "PLYR"   4 version u16   6 kind u16   8 body_len u32
//! kinds: 1 first, 2 second, 3 third message; 4 reply, a record; 5 refusal, in clear
//! ```
//!
//! A refusal in clear comes before anything is proven: it proves nothing either.

// `card` is how engines find each other, `prefix` what stands before each message.
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

/// The first bytes on every connection.
pub const MAGIC: [u8; 4] = *b"PLYR";
/// Bytes of the prefix.
pub const PREFIX_BYTES: usize = 12;
/// Most bytes after the prefix, where no certificate is in them.
pub const MAX_BODY_BYTES: usize = 16 << 10;
/// Most bytes after the prefix of a message that may show a certificate.
pub const MAX_CERTIFIED_BYTES: usize = MAX_BODY_BYTES + MAX_SHOWN_BYTES;
/// Most rails of an engine.
pub const MAX_RAILS: usize = 64;

const MAX_REASON_BYTES: usize = 512;

/// The first words of the side that connected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hello {
    /// This connection is a flow: its data goes from the connecting side to the other.
    Flow(FlowHello),
    /// Tell me who you are; here is who I am.
    Introduction(Metadata),
}

/// Which flow a connection is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowHello {
    /// Who connects.
    pub card: Card,
    /// Lets the other side connect back.
    pub capability: Capability,
    /// Whom it means to reach; another instance must refuse.
    pub target: InstanceId,
    /// Rail of the connecting side, by its card.
    pub from_rail: u16,
    /// Rail of the other side, by its card.
    pub to_rail: u16,
    /// The flow's channel.
    pub channel: u32,
    /// Which flow of all flows of this direction.
    pub flow: u32,
    /// How many flows this direction has.
    pub flows: u32,
    /// Counts the connections of this flow; a later one replaces an earlier one.
    pub epoch: u64,
    /// Chunks that the channel may have in flight: how often to acknowledge follows from it.
    pub window_chunks: u32,
    /// Features in use on this flow.
    pub capabilities: Capabilities,
    /// Memory through which the connection's bytes may go. The other side says in the memory itself,
    /// before it replies, whether it has opened it.
    pub stream: Option<SharedPlace>,
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Welcome.
    Accepted(Metadata),
    /// No, and why.
    Refused {
        /// For programs.
        code: RefusedCode,
        /// For people.
        reason: String,
    },
}

/// Why a connection is refused.
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
    /// No secret was proven that counts there.
    Unproven = 12,
    /// It takes no certificates.
    NoCertificates = 13,
    /// No CA that it trusts vouches for the certificate.
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
    /// The certificate is of somebody else than the engine that shows it.
    CertificateStatement = 20,
}

impl RefusedCode {
    /// The words for a peer that is refused by where it stands.
    pub fn words(self) -> &'static str {
        match self {
            Self::Removed => "it has removed this engine: its user has to add this one again",
            Self::SessionOver => "it has lost this engine since: add it again",
            Self::OtherCard => "another card is known for that instance than the hello says",
            _ => "flows of another session of it are up",
        }
    }

    /// Returns whether it is about the certificate of the side that is refused.
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

/// Bytes that are no hello of this version.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum HelloError {
    /// Not Polyrail at all.
    #[error("{}", foreign(*.got))]
    NotPolyrail {
        /// The first bytes.
        got: [u8; 4],
    },
    /// Polyrail of another version.
    #[error("peer speaks version {got} of the protocol, this engine speaks {WIRE_VERSION}")]
    Version {
        /// The peer's version.
        got: u16,
    },
    /// A kind of hello that this version does not know.
    #[error("field kind is {got}, allowed is {allowed}")]
    Kind {
        /// The kind read.
        got: u16,
        /// What may stand there.
        allowed: &'static str,
    },
    /// A hello that is larger than any can be.
    #[error("hello of {got} bytes, allowed is {max}")]
    TooLarge {
        /// The announced length.
        got: u32,
        /// The most that it may be.
        max: u32,
    },
    /// The body can't be read.
    #[error(transparent)]
    Body(#[from] DecodeError),
}

/// What speaks there in place of an engine, as far as its first bytes tell.
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
    /// The hello as bytes.
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

    /// Reads what [`Self::encode`] made.
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

    /// Who says it.
    pub fn card(&self) -> &Card {
        match self {
            Self::Flow(flow) => &flow.card,
            Self::Introduction(metadata) => &metadata.card,
        }
    }
}

impl Reply {
    /// The reply as bytes.
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

    /// Reads what [`Self::encode`] made.
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

/// Why a flow is not welcome where its peer should be.
pub const ANOTHER: &str =
    "another engine listens there: it was started again, or the address leads elsewhere";

impl FlowHello {
    /// Whether the engine with this card, which allows so many flows, can have the flow.
    ///
    /// # Errors
    /// Why not.
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

    /// What who connects hands over of itself.
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
