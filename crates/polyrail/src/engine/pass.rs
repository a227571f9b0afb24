//! A pass of a proxy over its flows.

use std::io;
use std::sync::Arc;

use polyrail_sys::Memory;

use crate::device::staging::Copiers;
use crate::engine::finish::Finish;
use crate::engine::state::EngineShared;

/// What a pass over the flows has at hand.
pub(crate) struct Pass<'a> {
    pub(crate) engine: &'a Arc<EngineShared>,
    /// Time at the beginning of the pass.
    pub(crate) now: u64,
    pub(crate) scratch: &'a Memory,
    /// To be done when no lock is held.
    pub(crate) finishes: Vec<Finish>,
    /// Queues of the devices whose memory is sent or received.
    pub(crate) copiers: Copiers,
    /// Something came that a caller may be waiting for.
    pub(crate) for_caller: bool,
    /// What somebody holds a lock for is left for another pass.
    pub(crate) hasty: bool,
}

/// Why a flow ends.
#[derive(Debug)]
pub(crate) struct Down(pub(crate) String);

impl From<io::Error> for Down {
    fn from(error: io::Error) -> Self {
        Self(error.to_string())
    }
}
