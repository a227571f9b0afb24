//! Errors in bytes that should be frames, or in the contents of a frame.

use polyrail_secure::OpenError;
use thiserror::Error;

/// Bytes that are not a frame of this protocol version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum WireError {
    /// The first byte of a frame is not a known kind.
    #[error("frame kind {got} is unknown, expected {expected}")]
    UnknownFrame {
        /// Byte read.
        got: u8,
        /// Allowed values.
        expected: &'static str,
    },
    /// A field has a value that this version does not allow.
    #[error("frame field {field} is {got}, allowed is {allowed}")]
    Field {
        /// Name of the field as in the layout of the frame.
        field: &'static str,
        /// Value read.
        got: u64,
        /// Allowed values.
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
    /// A record can't be opened.
    #[error(transparent)]
    Record(#[from] OpenError),
    /// A record ends within a frame.
    #[error("a record ends within a frame")]
    CutFrame,
    /// A record announces a number of bytes after it that differs from the payload of its frame.
    #[error("{raw} bytes follow a record as they are, the payload of its frame has {payload}")]
    RawMismatch {
        /// Number in the record.
        raw: u32,
        /// Number in its frame.
        payload: u32,
    },
    /// Unsealed payload where only sealed payload is allowed.
    #[error("payload is not sealed; this end is set to payload = aead")]
    RawPayload,
    /// An acknowledgement names frames that were never sent.
    #[error("acknowledgement of frame {got}, but only {sent} were sent")]
    AckBeyondSent {
        /// Sequence read.
        got: u64,
        /// Frames sent on the flow.
        sent: u64,
    },
}
