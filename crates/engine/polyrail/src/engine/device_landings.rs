//! The devices and plugins that bring chunks of a peer's flows into place, readable under the lock of the peer.

use polyrail_carrier::Lane;
use polyrail_proto::wire::RefusalCode;
use polyrail_proto::{Landings, Permission};

use crate::memory::tickets::{Tickets, all_done};

/// The devices or the plugin that bring a chunk.
#[derive(Default)]
pub(crate) struct Bringer {
    /// None before the copies begin.
    pub(crate) tickets: Option<Tickets>,
    /// The plugin connection that brings the chunk.
    pub(crate) lane: Option<Lane>,
}

impl Bringer {
    /// Returns the outcome, if known: the chunk is in place, or never will be.
    pub(crate) fn ended(&self) -> Option<Permission> {
        match &self.tickets {
            Some(tickets) => match all_done(tickets) {
                Ok(is_done) => is_done.then_some(Ok(())),
                Err(_) => Some(Err(RefusalCode::Device)),
            },
            // The plugin still has the chunk and does not return.
            None => self.lane.as_ref()?.is_given_up().then_some(Err(RefusalCode::Device)),
        }
    }
}

/// Plugin connections that still bring chunks.
pub(crate) fn busy_lanes(landings: &Landings<Bringer>) -> impl Iterator<Item = Lane> + use<> {
    let mut lanes: Vec<Lane> = Vec::new();
    for lane in landings.unsettled().filter_map(|bringer| bringer.lane.as_ref()) {
        if !lanes.iter().any(|known| known.is(lane)) {
            lanes.push(lane.clone());
        }
    }
    lanes.into_iter()
}
