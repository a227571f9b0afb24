//! A pass of a proxy over its flows.

use std::io;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use polyrail_sys::Memory;

use crate::device::staging::Copiers;
use crate::engine::finish::Finish;
use crate::engine::settings::EngineSettings;
use crate::engine::state::EngineShared;

/// Ends of operations that somebody finds who holds a lock, kept until none is held.
pub(crate) struct Ends<'a> {
    pub(crate) settings: &'a EngineSettings,
    /// When this began.
    pub(crate) now: u64,
    /// To be done when no lock is held.
    pub(crate) finishes: Vec<Finish>,
}

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

impl Ends<'_> {
    /// No lock is held: whoever waits hears of the ends. Says whether there were any.
    pub(crate) fn tell(&mut self) -> bool {
        let any = !self.finishes.is_empty();
        self.finishes.drain(..).for_each(Finish::run);
        any
    }
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

/// Why a flow ends.
#[derive(Debug)]
pub(crate) struct Down(pub(crate) String);

impl From<io::Error> for Down {
    fn from(error: io::Error) -> Self {
        Self(error.to_string())
    }
}
