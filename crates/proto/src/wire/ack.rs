//! The frame towards the sender: an acknowledgement, a refusal or a good-bye. `refusal` has the codes.

use super::{
    ACK_BYTES, KIND_ACK, KIND_BYE, KIND_REFUSAL, RefusalCode, WireError, field, u64_at, zero,
};

/// What a receiver says about the chunk frames of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AckFrame {
    /// Every frame up to `sequence` is in place.
    Ack {
        /// Frames counted from 1.
        sequence: u64,
    },
    /// The frame `sequence` was not taken; all before it are in place.
    Refusal {
        /// Frames counted from 1.
        sequence: u64,
        /// Why.
        code: RefusalCode,
    },
    /// The receiver leaves: [`crate::message::Message::Bye`] of one that sends on no flow of its own. Only for a
    /// sender with [`crate::hello::Capabilities::BYE_TO_SENDER`].
    Bye,
}

impl AckFrame {
    /// Whether a frame that begins with this byte is one towards the sender.
    pub fn is_kind(kind: u8) -> bool {
        matches!(kind, KIND_ACK | KIND_REFUSAL | KIND_BYE)
    }

    /// The frame as bytes.
    pub fn encode(self) -> [u8; ACK_BYTES] {
        let (kind, code, sequence) = match self {
            Self::Ack { sequence } => (KIND_ACK, 0, sequence),
            Self::Refusal { sequence, code } => (KIND_REFUSAL, code as u8, sequence),
            Self::Bye => (KIND_BYE, 0, 0),
        };
        let mut bytes = [0; ACK_BYTES];
        bytes[0] = kind;
        bytes[1] = code;
        bytes[8..].copy_from_slice(&sequence.to_le_bytes());
        bytes
    }

    /// Reads an acknowledgement frame.
    pub fn decode(bytes: &[u8; ACK_BYTES]) -> Result<Self, WireError> {
        let sequence = u64_at(bytes, 8);
        let reserved = u64_at(bytes, 0) >> 16;
        match bytes[0] {
            KIND_ACK | KIND_REFUSAL | KIND_BYE if reserved != 0 => Err(zero(reserved)),
            KIND_ACK if bytes[1] != 0 => Err(field("code", bytes[1], "0 in an acknowledgement")),
            KIND_ACK => Ok(Self::Ack { sequence }),
            KIND_REFUSAL => {
                let code = RefusalCode::from_wire(bytes[1])
                    .ok_or_else(|| field("code", bytes[1], "1 to 16"))?;
                Ok(Self::Refusal { sequence, code })
            }
            KIND_BYE if bytes[1] != 0 => Err(field("code", bytes[1], "0 in a good-bye")),
            KIND_BYE if sequence != 0 => Err(field("sequence", sequence, "0 in a good-bye")),
            KIND_BYE => Ok(Self::Bye),
            got => {
                let expected = "2 (ack), 3 (refusal) or 5 (good-bye)";
                Err(WireError::UnknownFrame { got, expected })
            }
        }
    }
}
