//! Part of one end in the samples of a size: it streams transfers, or plays ping-pong.

use polyrail::PreparedTransfer;

use super::ping_pong::PingPong;
use super::work::Work;
use crate::cmd::bench::memory::Buffers;
use crate::cmd::bench::talk::{End, Link, Regions, SetUp};
use crate::fault::Fault;

pub(crate) enum Part<'l> {
    Stream(Work<'l>),
    PingPong(PingPong<'l>),
}

impl<'l> Part<'l> {
    /// Prepares the requests of this end. `theirs` are the regions of the other end.
    pub(crate) fn new(
        link: &'l Link<'l>,
        buffers: &Buffers,
        set_up: &SetUp,
        theirs: &Regions,
        end: End,
    ) -> Result<Self, Fault> {
        if set_up.latency {
            return Ok(Self::PingPong(PingPong::new(link, buffers, set_up, theirs)?));
        }
        let work = Work::new(link.engine, &link.peer, buffers, set_up, theirs, end)?;
        Ok(Self::Stream(work))
    }

    /// Returns one of the requests that this end posts.
    pub(crate) fn example(&self) -> Option<&PreparedTransfer> {
        match self {
            Self::Stream(work) => work.example(),
            Self::PingPong(game) => Some(game.example()),
        }
    }
}
