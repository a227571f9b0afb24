//! Engine info (card), by which engines find each other: identity, rails, addresses, capabilities. Metadata are a card
//! with the capability that proves that its engine gave it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use polyrail_secure::{CAPABILITY_BYTES, Capability};

use super::{HelloError, MAGIC, MAX_RAILS, Network};
use crate::codec::{DecodeError, Reader, put_text};
use crate::id::InstanceId;
use crate::wire::WIRE_VERSION;

/// Maximum length in bytes of the name of an engine or a rail.
pub const MAX_NAME_BYTES: usize = 128;

/// Digits of an instance in a name.
const INSTANCE_DIGITS: usize = 32;

/// Features that both ends must have for either to use them; one bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities(pub u64);

impl Capabilities {
    /// CRC-32C of each chunk.
    pub const CHECKSUM: Self = Self(1);
    /// The accepting side may send on the same connection, so its flow of the same number needs no separate one. The
    /// reply's card has the bit if it will.
    pub const DUPLEX: Self = Self(2);
    /// Shared memory between processes of one host: payload in memory that both have open, and the messages that test
    /// whether they can open it. Either end may use it towards a peer whose card has the bit; no flow needs it.
    pub const SHARED_MEMORY: Self = Self(4);
    /// On a card: the engine wants payload sealed, so its senders seal.
    pub const SEALED_PAYLOAD: Self = Self(8);
    /// Messages that the sender copies into the receive's memory on one host, and receives that permit that. A receive
    /// may permit it to a peer whose card has the bit; no flow needs it.
    pub const COPIED_MESSAGES: Self = Self(16);
    /// A connection within one host whose bytes go through memory that both processes have open. The initiator may
    /// offer it to a peer whose card has the bit; a hello has the bit together with the place.
    pub const SHARED_STREAM: Self = Self(64);
    /// Receives that say that they are in a device's memory, so that their sender on the same host leaves payload in
    /// memory that both have open. A receive may say so to a peer whose card has the bit; no flow needs it.
    pub const SHARED_RECEIVES: Self = Self(128);
    /// A plugin that this engine hosts may carry the payload of flows towards it, once the engine has said that the
    /// plugin has accepted the connection. (Bit 32 was the same for engines that do not say so.)
    pub const CARRIERS: Self = Self(256);
    /// A goodbye among acknowledgements. An engine that leaves may send it on a flow from a peer whose card has the
    /// bit; no flow needs it.
    pub const BYE_TO_SENDER: Self = Self(512);
    /// Reasons in front of a goodbye among acknowledgements. An engine that gives a peer up sends one only if the
    /// peer's card has this bit; no flow needs it.
    pub const REASONS: Self = Self(1024);

    /// Capabilities of every engine of this version.
    const OF_ALL: Self = Self::CHECKSUM
        .with(Self::SHARED_MEMORY)
        .with(Self::COPIED_MESSAGES)
        .with(Self::SHARED_RECEIVES)
        .with(Self::BYE_TO_SENDER)
        .with(Self::REASONS);

    /// Returns the union of both sets.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns all bits except those of `other`.
    #[must_use]
    pub fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Returns the bits that both have.
    #[must_use]
    pub fn common(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Returns the capabilities of an engine of this version with these features.
    pub fn of_engine(features: EngineFeatures) -> Self {
        let EngineFeatures { duplex, stream, sealed, carriers } = features;
        let some = [
            (duplex, Self::DUPLEX),
            (stream, Self::SHARED_STREAM),
            (sealed, Self::SEALED_PAYLOAD),
            (carriers, Self::CARRIERS),
        ];
        some.into_iter().filter(|(has, _)| *has).fold(Self::OF_ALL, |all, (_, one)| all.with(one))
    }

    /// Returns the bits that both ends of a flow must have. A peer of another version may lack the rest.
    #[must_use]
    pub fn of_flow(self) -> Self {
        self.without(Self::SHARED_MEMORY)
            .without(Self::SEALED_PAYLOAD)
            .without(Self::COPIED_MESSAGES)
            .without(Self::SHARED_RECEIVES)
            .without(Self::BYE_TO_SENDER)
            .without(Self::REASONS)
            .without(Self::SHARED_STREAM)
    }

    /// Returns whether every bit of `other` is set.
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// Features of an engine that depend on its settings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineFeatures {
    /// One thread drives both directions of its connections.
    pub duplex: bool,
    /// Connections within one host may go through shared memory.
    pub stream: bool,
    /// The engine wants payload sealed.
    pub sealed: bool,
    /// The engine hosts a plugin that carries payload.
    pub carriers: bool,
}

/// Information that an engine gives to engines that are to connect to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metadata {
    /// Engine info, with its addresses.
    pub card: Card,
    /// Proves that the engine gave the metadata, directly or through others.
    pub capability: Capability,
}

/// Engine info: how an engine can be reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Card {
    /// Instance of the engine: the hash of its public key.
    pub instance: InstanceId,
    /// Machine (its boot): equal on both sides if they are on one host.
    pub host: u128,
    /// Host name and process, for people.
    pub name: String,
    /// Capabilities of the engine.
    pub capabilities: Capabilities,
    /// Addresses that the engine listens on, one for each rail.
    pub rails: Vec<RailCard>,
}

/// One rail of an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RailCard {
    /// Name of the interface, or the address if it has none.
    pub name: String,
    /// Listening address.
    pub address: SocketAddr,
    /// Length of the address's network prefix, in bits.
    pub prefix_len: u8,
    /// Speed of the link in Mbit/s, 0 if unknown.
    pub speed_mbps: u32,
}

impl Card {
    /// Returns whether a hello with the card `said` may come from the peer with this card. A card from the user may
    /// have addresses that a network on the way translates. A card from an earlier hello came from the peer itself, so
    /// it must be equal.
    pub fn may_say(&self, said: &Self, is_by_user: bool) -> bool {
        let names =
            |card: &Self| card.rails.iter().map(|rail| rail.name.clone()).collect::<Vec<_>>();
        if !is_by_user {
            return self == said;
        }
        (self.host, &self.name, names(self)) == (said.host, &said.name, names(said))
    }

    /// Returns the name of an engine that belongs to the engine with this card.
    pub fn companion_name(&self) -> String {
        let mut name = self.name.clone();
        while name.len() > MAX_NAME_BYTES - INSTANCE_DIGITS - 1 {
            name.pop();
        }
        format!("{name} {:0INSTANCE_DIGITS$x}", self.instance.0)
    }

    /// Returns the instance of the engine that this one claims to belong to, from the end of its name.
    pub fn companion_of(&self) -> Option<InstanceId> {
        let digits = self.name.get(self.name.len().checked_sub(INSTANCE_DIGITS)?..)?;
        u128::from_str_radix(digits, 16).ok().map(InstanceId)
    }

    /// Returns whether this engine may belong to `own`: it claims so, and is on the same host, at addresses of `own`.
    pub fn is_companion(&self, own: &Self) -> bool {
        let is_own =
            |rail: &RailCard| own.rails.iter().any(|r| r.address.ip() == rail.address.ip());
        self.host == own.host
            && self.rails.iter().all(is_own)
            && self.companion_of() == Some(own.instance)
    }
}

impl Metadata {
    /// Returns the metadata as bytes, which can be passed on by any private means.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.extend_from_slice(&WIRE_VERSION.to_le_bytes());
        self.encode_into(&mut out);
        out
    }

    /// Reads the output of [`Self::encode`].
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

    pub(super) fn encode_into(&self, out: &mut Vec<u8>) {
        self.card.encode_into(out);
        out.extend_from_slice(self.capability.bytes());
    }

    pub(super) fn decode_from(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let card = Card::decode_from(reader)?;
        let capability = Capability::new(reader.bytes::<CAPABILITY_BYTES>("capability")?);
        Ok(Self { card, capability })
    }
}

impl Card {
    pub(super) fn encode_into(&self, out: &mut Vec<u8>) {
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

    pub(super) fn decode_from(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
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
    /// Returns the network of the rail's address.
    pub fn network(&self) -> Network {
        Network { address: self.address.ip(), prefix_len: self.prefix_len }
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
