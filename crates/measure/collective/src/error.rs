//! What ends the work of a rank.

use polyrail_nccl_abi::NetError;

/// Why an operation did not come to its end.
#[derive(Debug, thiserror::Error)]
pub enum RankError {
    /// The plugin could not be used, or a call of it failed.
    #[error(transparent)]
    Net(#[from] NetError),
    /// It has no device.
    #[error("the plugin has no device")]
    NoDevice,
    /// The memory could not be had.
    #[error("there are no {bytes} bytes of memory")]
    Memory {
        /// How much was asked for.
        bytes: usize,
    },
    /// An operation on more elements than there is memory for.
    #[error("{bytes} bytes do not fit into {room}")]
    TooLong {
        /// What the operation needs.
        bytes: usize,
        room: usize,
    },
    /// As many handles as connections are needed.
    #[error("{got} handles were given for {wanted} connections")]
    Handles {
        /// How many were given.
        got: usize,
        /// How many are needed.
        wanted: usize,
    },
    /// Its connections are not there, or an operation on them has failed.
    #[error("the rank is not connected, or an operation of it has failed")]
    NotReady,
    /// The deadline has passed.
    #[error("{waits_for}")]
    Late {
        /// What did not happen in time.
        waits_for: String,
    },
    /// A message was not as long as it had to be.
    #[error("a message from rank {from} has {got} bytes, not {wanted}")]
    Length { from: usize, got: usize, wanted: usize },
}
