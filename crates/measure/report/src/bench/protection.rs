//! Protection of a run.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Proof of access and protection of the payload on the rails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Protection {
    /// This side's proof to the other side that it may connect.
    pub proof: ProvenBy,
    /// Protection of the payload that this side sent over rails. Memory that both sides have open is protected by their
    /// host alone.
    pub payload_sent: PayloadProtection,
    /// Protection of the payload that this side received over rails.
    pub payload_received: PayloadProtection,
}

/// Proof of one side that it may connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProvenBy {
    /// Same user on the same host.
    SameUser,
    /// A secret of `secret_file`.
    Secret,
    /// The invitation that the other side gave.
    Invitation,
    /// Certificates of both sides.
    Certificate,
    /// No proof: the settings admit every client.
    None,
}

/// Protection of payload on the rails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PayloadProtection {
    /// TCP's own checksum.
    None,
    /// A CRC-32C of each chunk, which detects accidental changes.
    Crc32c,
    /// Encryption and authentication.
    Aead,
}

impl fmt::Display for ProvenBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::SameUser => "same user",
            Self::Secret => "secret",
            Self::Invitation => "invitation",
            Self::Certificate => "certificate",
            Self::None => "none",
        })
    }
}

impl fmt::Display for PayloadProtection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::Crc32c => "crc32c",
            Self::Aead => "aead",
        })
    }
}

impl fmt::Display for Protection {
    /// Writes both, as in `proof: invitation; payload: none`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "proof: {}; payload: {}", self.proof, self.payload_sent)?;
        match self.payload_received == self.payload_sent {
            true => Ok(()),
            false => write!(f, " sent, {} received", self.payload_received),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_directions_are_told_apart_only_where_they_differ() {
        let (proof, payload_sent) = (ProvenBy::SameUser, PayloadProtection::Crc32c);
        let alike = Protection { proof, payload_sent, payload_received: payload_sent };
        assert_eq!(alike.to_string(), "proof: same user; payload: crc32c");
        let payload_received = PayloadProtection::None;
        let unlike = Protection { payload_received, ..alike };
        assert_eq!(unlike.to_string(), "proof: same user; payload: crc32c sent, none received");
    }
}
