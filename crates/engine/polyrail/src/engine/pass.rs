//! A pass of a proxy over its flows.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use polyrail_sys::Memory;

use crate::device::staging::Copiers;
use crate::engine::finish::Ends;
use crate::engine::state::EngineShared;

/// What a pass over the flows has at hand.
pub(crate) struct Pass<'a> {
    pub(crate) engine: &'a Arc<EngineShared>,
    /// What ends meanwhile, since the beginning of the pass.
    pub(crate) ends: Ends<'a>,
    pub(crate) scratch: &'a Memory,
    /// Queues of the devices whose memory is sent or received.
    pub(crate) copiers: Copiers,
    /// Something came that a caller may be waiting for.
    pub(crate) for_caller: bool,
    /// Something was taken up that a caller sends.
    pub(crate) sends: bool,
    /// What somebody holds a lock for is left for another pass.
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
