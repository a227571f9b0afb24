//! Errors of a rank.

use polyrail_nccl_abi::NetError;

/// Reason why a rank failed.
#[derive(Debug, thiserror::Error)]
pub enum RankError {
    /// The plugin could not be used, or one of its calls failed.
    #[error(transparent)]
    Net(#[from] NetError),
    /// The plugin has no device.
    #[error("the plugin has no device")]
    NoDevice,
    /// Memory could not be allocated.
    #[error("there are no {bytes} bytes of memory")]
    Memory {
        /// Bytes requested.
        bytes: usize,
    },
    /// The operation needs more memory than the rank has, or has another number of ranks.
    #[error("{bytes} bytes do not fit into {room}")]
    TooLong {
        /// Bytes that the operation needs.
        bytes: usize,
        room: usize,
    },
    /// The number of handles differs from the number of connections.
    #[error("{got} handles were given for {wanted} connections")]
    Handles {
        /// Handles that were given.
        got: usize,
        /// Handles that are needed.
        wanted: usize,
    },
    /// The rank is not connected, or an earlier operation failed.
    #[error("the rank is not connected, or an operation of it has failed")]
    NotReady,
    /// The deadline passed.
    #[error("{waits_for}")]
    Late {
        /// Event that did not happen in time.
        waits_for: String,
    },
    /// A message had the wrong length.
    #[error("a message from rank {from} has {got} bytes, not {wanted}")]
    Length { from: usize, got: usize, wanted: usize },
}
