//! Prefix of every message at the start of a connection: magic, version, kind, length.

use super::{HelloError, MAGIC, MAX_BODY_BYTES, MAX_CERTIFIED_BYTES, PREFIX_BYTES};
use crate::wire::WIRE_VERSION;

/// Kind of the message behind a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Kind {
    /// The first message of the handshake.
    First = 1,
    /// The second message of the handshake.
    Second = 2,
    /// The third message, which carries a [`crate::hello::Hello`].
    Third = 3,
    /// A record with a [`crate::hello::Reply`].
    Reply = 4,
    /// A [`crate::hello::Reply::Refused`] in clear.
    Refusal = 5,
}

impl Kind {
    /// Returns the body behind its prefix.
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

/// A checked prefix.
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

    /// Checks that at most `max` bytes follow.
    pub fn within(self, max: usize) -> Result<Self, HelloError> {
        if self.body_bytes <= max {
            return Ok(self);
        }
        // The length was read as a u32, and no bound is larger.
        let (got, max) = (self.body_bytes as u32, max as u32);
        Err(HelloError::TooLarge { got, max })
    }

    /// Returns the kind of the message that follows.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Returns the number of bytes that follow.
    pub fn body_bytes(&self) -> usize {
        self.body_bytes
    }
}
