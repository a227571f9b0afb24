//! What may be wrong with bytes that should be frames, or with what a frame says.

use polyrail_secure::OpenError;
use thiserror::Error;

/// Bytes that are not a frame of this protocol version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum WireError {
    /// The first byte of a frame is no known kind.
    #[error("frame kind {got} is unknown, expected {expected}")]
    UnknownFrame {
        /// The byte read.
        got: u8,
        /// What may stand there.
        expected: &'static str,
    },
    /// A field has a value that this version does not allow.
    #[error("frame field {field} is {got}, allowed is {allowed}")]
    Field {
        /// Name of the field as in the layout of the frame.
        field: &'static str,
        /// The value read.
        got: u64,
        /// The allowed values.
        allowed: &'static str,
    },
    /// The pieces do not add up to the payload.
    #[error("the pieces of a chunk have {pieces} bytes, its payload {payload}")]
    PiecesMismatch {
        /// Sum of the table; `u64::MAX` if it overflows.
        pieces: u64,
        /// `payload_len`.
        payload: u32,
    },
    /// A record does not open.
    #[error(transparent)]
    Record(#[from] OpenError),
    /// A record ends within a frame.
    #[error("a record ends within a frame")]
    CutFrame,
    /// A record announces other bytes behind it than the payload of its frame.
    #[error("{raw} bytes follow a record as they are, the payload of its frame has {payload}")]
    RawMismatch {
        /// What the record says.
        raw: u32,
        /// What its frame says.
        payload: u32,
    },
    /// Payload comes as it is where only sealed payload is allowed.
    #[error("payload is not sealed; this end is set to payload = aead")]
    RawPayload,
    /// An acknowledgement names frames that were never sent.
    #[error("acknowledgement of frame {got}, but only {sent} were sent")]
    AckBeyondSent {
        /// The sequence read.
        got: u64,
        /// Frames sent on the flow.
        sent: u64,
    },
}
