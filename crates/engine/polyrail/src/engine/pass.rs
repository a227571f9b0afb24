//! A pass of a proxy over its flows.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use polyrail_sys::Memory;

use crate::device::staging::Copiers;
use crate::engine::finish::Ends;
use crate::engine::state::EngineShared;

/// State of a pass over the flows.
pub(crate) struct Pass<'a> {
    pub(crate) engine: &'a Arc<EngineShared>,
    /// Ends that were found since the beginning of the pass.
    pub(crate) ends: Ends<'a>,
    pub(crate) scratch: &'a Memory,
    /// Queues of the devices whose memory is sent or received.
    pub(crate) copiers: Copiers,
    /// Set when something came that a caller may be waiting for.
    pub(crate) for_caller: bool,
    /// Set when something was accepted that a caller sends.
    pub(crate) sends: bool,
    /// Skips everything that needs a lock which another thread holds, and leaves it for another pass.
    pub(crate) hasty: bool,
}

impl<'a> Deref for Pass<'a> {
    type Target = Ends<'a>;

    fn deref(&self) -> &Ends<'a> {
        &self.ends
    }
}

impl<'a> DerefMut for Pass<'a> {
    fn deref_mut(&mut self) -> &mut Ends<'a> {
        &mut self.ends
    }
}
