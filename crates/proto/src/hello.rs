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

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use polyrail_secure::{CAPABILITY_BYTES, Capability, MAX_SHOWN_BYTES};
use thiserror::Error;

pub use crate::codec::DecodeError;
use crate::codec::{Reader, put_text};
use crate::id::InstanceId;
use crate::wire::WIRE_VERSION;

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

const MAX_NAME_BYTES: usize = 128;
const MAX_REASON_BYTES: usize = 512;

/// Features that both ends must have for either to use them; one bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities(pub u64);

impl Capabilities {
    /// CRC-32C of each chunk.
    pub const CHECKSUM: Self = Self(1);
    /// The accepting side may send on the same connection: its flow of the same number needs none
    /// of its own. The reply's card has the bit if it will.
    pub const DUPLEX: Self = Self(2);
    /// Shared memory between processes of one host: payload in memory that both have open, and the
    /// messages that test whether they can open it. Either end may use it towards a peer whose card
    /// has the bit; no flow needs it.
    pub const SHARED_MEMORY: Self = Self(4);
    /// Of a card: the engine wants payload sealed, so whoever sends to it seals.
    pub const SEALED_PAYLOAD: Self = Self(8);

    /// Either's.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// All but `other`.
    #[must_use]
    pub fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// What both have.
    #[must_use]
    pub fn common(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Whether every bit of `other` is set.
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// What an engine hands over to whom it wants to be connected by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metadata {
    /// How it can be reached.
    pub card: Card,
    /// Proves that the engine, or somebody whom it was handed to, handed it over.
    pub capability: Capability,
}

/// How an engine can be reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Card {
    /// Which run of which engine: the hash of its public key.
    pub instance: InstanceId,
    /// The machine (its boot): equal on both sides means that they are on one host.
    pub host: u128,
    /// For people: host name and process.
    pub name: String,
    /// What it can do.
    pub capabilities: Capabilities,
    /// The addresses it listens on, one for each rail.
    pub rails: Vec<RailCard>,
}

/// One rail of an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RailCard {
    /// The interface, or the address if it has none.
    pub name: String,
    /// Where it listens.
    pub address: SocketAddr,
    /// Bits of the address that name its network.
    pub prefix_len: u8,
    /// Speed of the link in Mbit/s, 0 if unknown.
    pub speed_mbps: u32,
}

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
    #[error("not a Polyrail connection: it starts with {got:02x?}")]
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

/// What follows a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Kind {
    /// The first message of the handshake.
    First = 1,
    /// The second.
    Second = 2,
    /// The third, which carries a [`Hello`].
    Third = 3,
    /// A record with a [`Reply`].
    Reply = 4,
    /// A [`Reply::Refused`] in clear.
    Refusal = 5,
}

impl Kind {
    /// A body behind its prefix.
    pub fn framed(self, body: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(PREFIX_BYTES + body.len());
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&WIRE_VERSION.to_le_bytes());
        out.extend_from_slice(&(self as u16).to_le_bytes());
        out.extend_from_slice(&(body.len() as u32).to_le_bytes());
        out.extend_from_slice(body);
        out
    }
}

/// A prefix, checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    kind: Kind,
    body_bytes: usize,
}

impl Prefix {
    /// Reads and checks a prefix.
    pub fn decode(bytes: &[u8; PREFIX_BYTES]) -> Result<Self, HelloError> {
        let [a, b, c, d, v0, v1, k0, k1, l0, l1, l2, l3] = *bytes;
        if [a, b, c, d] != MAGIC {
            return Err(HelloError::NotPolyrail { got: [a, b, c, d] });
        }
        let version = u16::from_le_bytes([v0, v1]);
        if version != WIRE_VERSION {
            return Err(HelloError::Version { got: version });
        }
        let len = u32::from_le_bytes([l0, l1, l2, l3]);
        let got = u16::from_le_bytes([k0, k1]);
        let kinds = [Kind::First, Kind::Second, Kind::Third, Kind::Reply, Kind::Refusal];
        let kind = kinds.into_iter().find(|kind| *kind as u16 == got);
        let kind = kind.ok_or(HelloError::Kind { got, allowed: "1 to 5" })?;
        let max = match kind {
            Kind::Second | Kind::Third => MAX_CERTIFIED_BYTES,
            Kind::First | Kind::Reply | Kind::Refusal => MAX_BODY_BYTES,
        };
        Self { kind, body_bytes: len as usize }.within(max)
    }

    /// The same, if no more bytes follow than these.
    pub fn within(self, max: usize) -> Result<Self, HelloError> {
        if self.body_bytes <= max {
            return Ok(self);
        }
        // It was read as a u32, and no bound is larger.
        let (got, max) = (self.body_bytes as u32, max as u32);
        Err(HelloError::TooLarge { got, max })
    }

    /// What follows.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Bytes that follow.
    pub fn body_bytes(&self) -> usize {
        self.body_bytes
    }
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

impl Metadata {
    /// The metadata as bytes that can be passed on by any private means.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.extend_from_slice(&WIRE_VERSION.to_le_bytes());
        self.encode_into(&mut out);
        out
    }

    /// Reads what [`Self::encode`] made.
    pub fn decode(bytes: &[u8]) -> Result<Self, HelloError> {
        let mut reader = Reader::new("metadata", bytes);
        let got = reader.bytes("magic")?;
        if got != MAGIC {
            return Err(HelloError::NotPolyrail { got });
        }
        let got = reader.u16("version")?;
        if got != WIRE_VERSION {
            return Err(HelloError::Version { got });
        }
        let metadata = Self::decode_from(&mut reader)?;
        reader.end()?;
        Ok(metadata)
    }

    fn encode_into(&self, out: &mut Vec<u8>) {
        self.card.encode_into(out);
        out.extend_from_slice(self.capability.bytes());
    }

    fn decode_from(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let card = Card::decode_from(reader)?;
        let capability = Capability::new(reader.bytes::<CAPABILITY_BYTES>("capability")?);
        Ok(Self { card, capability })
    }
}

impl Card {
    fn encode_into(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.instance.0.to_le_bytes());
        out.extend_from_slice(&self.host.to_le_bytes());
        put_text(out, &self.name, MAX_NAME_BYTES);
        out.extend_from_slice(&self.capabilities.0.to_le_bytes());
        debug_assert!(self.rails.len() <= MAX_RAILS, "checked when the engine is built");
        out.extend_from_slice(&(self.rails.len() as u16).to_le_bytes());
        for rail in &self.rails {
            put_text(out, &rail.name, MAX_NAME_BYTES);
            put_address(out, rail.address);
            out.push(rail.prefix_len);
            out.extend_from_slice(&rail.speed_mbps.to_le_bytes());
        }
    }

    fn decode_from(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let instance = InstanceId(reader.u128("instance")?);
        let host = reader.u128("host")?;
        let name = reader.text("name", MAX_NAME_BYTES)?;
        let capabilities = Capabilities(reader.u64("capabilities")?);
        let count = reader.count("rails", MAX_RAILS, "1 to 64")?;
        if count == 0 {
            return Err(reader.field("rails", 0, "1 to 64"));
        }
        let rail = |reader: &mut Reader<'_>| {
            let name = reader.text("rail name", MAX_NAME_BYTES)?;
            let address = address(reader)?;
            let prefix_len = reader.u8("prefix_len")?;
            let bits = if address.is_ipv4() { 32 } else { 128 };
            if prefix_len > bits {
                return Err(reader.field("prefix_len", prefix_len.into(), "0 to 32, IPv6: 128"));
            }
            Ok(RailCard { name, address, prefix_len, speed_mbps: reader.u32("speed_mbps")? })
        };
        let rails = (0..count).map(|_| rail(reader)).collect::<Result<_, _>>()?;
        Ok(Self { instance, host, name, capabilities, rails })
    }
}

impl RailCard {
    /// Whether both are in one network: same family, same leading bits.
    pub fn same_network(&self, other: &Self) -> bool {
        let bits = u32::from(self.prefix_len.min(other.prefix_len));
        match (self.address.ip(), other.address.ip()) {
            (IpAddr::V4(a), IpAddr::V4(b)) => {
                bits > 0 && (a.to_bits() ^ b.to_bits()).leading_zeros() >= bits
            }
            (IpAddr::V6(a), IpAddr::V6(b)) => {
                bits > 0 && (a.to_bits() ^ b.to_bits()).leading_zeros() >= bits
            }
            _ => false,
        }
    }
}

impl FlowHello {
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
        out.extend_from_slice(&self.capabilities.0.to_le_bytes());
    }

    fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let hello = Self {
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
        };
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

fn put_address(out: &mut Vec<u8>, address: SocketAddr) {
    match address.ip() {
        IpAddr::V4(ip) => {
            out.push(4);
            out.extend_from_slice(&ip.octets());
        }
        IpAddr::V6(ip) => {
            out.push(6);
            out.extend_from_slice(&ip.octets());
        }
    }
    out.extend_from_slice(&address.port().to_le_bytes());
}

fn address(reader: &mut Reader<'_>) -> Result<SocketAddr, DecodeError> {
    let ip: IpAddr = match reader.u8("family")? {
        4 => Ipv4Addr::from(reader.bytes::<4>("address")?).into(),
        6 => Ipv6Addr::from(reader.bytes::<16>("address")?).into(),
        got => return Err(reader.field("family", got.into(), "4 or 6")),
    };
    match reader.u16("port")? {
        0 => Err(reader.field("port", 0, "1 to 65535")),
        port => Ok(SocketAddr::new(ip, port)),
    }
}

#[cfg(test)]
mod tests;
