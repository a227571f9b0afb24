//! What brings chunks into place for a peer's flows, as all see it who hold the lock of the peer.

use polyrail_carrier::Lane;
use polyrail_proto::wire::RefusalCode;
use polyrail_proto::{Landings, Permission};

use crate::memory::tickets::{Tickets, all_done};

/// The bringer of a chunk: devices, or a plugin.
#[derive(Default)]
pub(crate) struct Bringer {
    /// None before the copies are begun.
    pub(crate) tickets: Option<Tickets>,
    /// The connection of a plugin that brings it.
    pub(crate) lane: Option<Lane>,
}

impl Bringer {
    /// Returns the outcome, if it is known: the chunk is in place, or never will be.
    pub(crate) fn ended(&self) -> Option<Permission> {
        match &self.tickets {
            Some(tickets) => match all_done(tickets) {
                Ok(is_done) => is_done.then_some(Ok(())),
                Err(_) => Some(Err(RefusalCode::Device)),
            },
            // The plugin has it, and does not return.
            None => self.lane.as_ref()?.is_given_up().then_some(Err(RefusalCode::Device)),
        }
    }
}

/// Connections of plugins that bring something.
pub(crate) fn busy_lanes(landings: &Landings<Bringer>) -> impl Iterator<Item = Lane> + use<> {
    let mut lanes: Vec<Lane> = Vec::new();
    for lane in landings.unsettled().filter_map(|bringer| bringer.lane.as_ref()) {
        if !lanes.iter().any(|known| known.is(lane)) {
            lanes.push(lane.clone());
        }
    }
    lanes.into_iter()
}
