//! Operations of a peer.

use crate::reason::MessageHalf;

/// Kind of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OpKind {
    /// Bytes from here into the peer's memory.
    Write,
    /// Bytes from the peer's memory to here.
    Read,
    /// A message to the peer.
    Send {
        /// Tag of the message.
        tag: u64,
    },
    /// Room for a message from the peer.
    Receive {
        /// Tag of the message.
        tag: u64,
    },
}

impl OpKind {
    /// Returns which side of a message it is, if it is one.
    pub fn half(self) -> Option<MessageHalf> {
        match self {
            Self::Send { tag } => Some(MessageHalf::Send { tag }),
            Self::Receive { tag } => Some(MessageHalf::Receive { tag }),
            Self::Write | Self::Read => None,
        }
    }

    /// Returns whether this side sends the payload.
    pub fn sends(self) -> bool {
        matches!(self, Self::Write | Self::Send { .. })
    }

    /// Returns its name for messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::Read => "read",
            Self::Send { .. } => "send",
            Self::Receive { .. } => "receive",
        }
    }
}
