//! Frame towards the sender: an acknowledgement, a refusal or a goodbye. `refusal` has the codes.

use super::{
    ACK_BYTES, KIND_ACK, KIND_BYE, KIND_REFUSAL, KIND_WORDS, RefusalCode, WireError, field, u64_at,
    zero,
};

/// Maximum bytes of [`Words`] in a frame.
const WORDS_BYTES: usize = ACK_BYTES - 2;
/// Maximum bytes of the reason for which an engine gives a peer up.
pub const MAX_WORDS_BYTES: usize = 40 * WORDS_BYTES;

/// Answer of a receiver to the chunk frames of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AckFrame {
    /// Every frame up to `sequence` is in place.
    Ack {
        /// Frames counted from 1.
        sequence: u64,
    },
    /// The frame `sequence` was refused; all before it are in place.
    Refusal {
        /// Frames counted from 1.
        sequence: u64,
        /// Reason of the refusal.
        code: RefusalCode,
    },
    /// The receiver leaves: [`crate::message::Message::Bye`] of an engine that sends on no flow itself. Only for a
    /// sender with [`crate::hello::Capabilities::BYE_TO_SENDER`].
    Bye,
    /// A part of the reason for which the receiver gives the sender up; [`Self::Bye`] ends it. Only for a sender
    /// with [`crate::hello::Capabilities::REASONS`].
    Words(Words),
}

/// A few bytes of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Words {
    /// At most the number of bytes, and at least 1.
    len: u8,
    /// Zeros behind the text.
    bytes: [u8; WORDS_BYTES],
}

impl Words {
    /// Returns a text in frames, the first [`MAX_WORDS_BYTES`] of it.
    pub fn of(text: &str) -> impl Iterator<Item = AckFrame> {
        let end = text.floor_char_boundary(MAX_WORDS_BYTES);
        text.as_bytes()[..end].chunks(WORDS_BYTES).map(|part| {
            let mut bytes = [0; WORDS_BYTES];
            bytes[..part.len()].copy_from_slice(part);
            // At most WORDS_BYTES.
            AckFrame::Words(Self { len: part.len() as u8, bytes })
        })
    }

    /// Returns the bytes, which may end in the middle of a character.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    fn decode(bytes: &[u8; ACK_BYTES]) -> Result<Self, WireError> {
        let mut words = Self { len: bytes[1], bytes: [0; WORDS_BYTES] };
        words.bytes.copy_from_slice(&bytes[2..]);
        match usize::from(words.len) {
            1..=WORDS_BYTES if words.bytes[usize::from(words.len)..].iter().all(|b| *b == 0) => {
                Ok(words)
            }
            _ => Err(field("length", words.len, "1 to 14 bytes of a reason, and zeros behind")),
        }
    }
}

impl AckFrame {
    /// Returns whether a frame that begins with this byte is one towards the sender.
    pub fn is_kind(kind: u8) -> bool {
        matches!(kind, KIND_ACK | KIND_REFUSAL | KIND_BYE | KIND_WORDS)
    }

    /// Returns the frame as bytes.
    pub fn encode(self) -> [u8; ACK_BYTES] {
        let (kind, code, sequence) = match self {
            Self::Ack { sequence } => (KIND_ACK, 0, sequence),
            Self::Refusal { sequence, code } => (KIND_REFUSAL, code as u8, sequence),
            Self::Bye => (KIND_BYE, 0, 0),
            Self::Words(words) => {
                let mut bytes = [0; ACK_BYTES];
                bytes[..2].copy_from_slice(&[KIND_WORDS, words.len]);
                bytes[2..].copy_from_slice(&words.bytes);
                return bytes;
            }
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
            KIND_WORDS => Words::decode(bytes).map(Self::Words),
            got => {
                let expected = "2 (ack), 3 (refusal), 5 (good-bye) or 6 (a reason)";
                Err(WireError::UnknownFrame { got, expected })
            }
        }
    }
}
