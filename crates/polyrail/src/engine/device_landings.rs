//! What devices copy into place for a peer's flows, as all see it who hold the lock of the peer.

use polyrail_carrier::Lane;
use polyrail_proto::peer::Leaving;
use polyrail_proto::wire::RefusalCode;
use polyrail_proto::{LandingId, Settled};

use crate::engine::op::OpRef;
use crate::engine::peer::RxSide;
use crate::memory::tickets::{Tickets, all_done};

/// A chunk that devices copy into place, as all who hold the lock of its peer see it. Any of them
/// may find it done, so that nobody who waits for that waits for another thread.
pub(crate) struct Landing {
    id: LandingId,
    /// None before the copies are begun.
    tickets: Option<Tickets>,
    /// The connection of a plugin that brings it.
    lane: Option<Lane>,
    settled: Option<Settled>,
    /// Its flow is gone.
    is_orphan: bool,
}

impl RxSide {
    /// Finds out which copies are done.
    pub(crate) fn settle(&mut self) {
        for landing in &mut self.landings {
            if landing.settled.is_some() {
                continue;
            }
            let landed = match &landing.tickets {
                Some(tickets) => match all_done(tickets) {
                    Ok(false) => continue,
                    Ok(true) => Ok(()),
                    Err(_) => Err(RefusalCode::Device),
                },
                // The plugin has it, and does not return.
                None if landing.lane.as_ref().is_some_and(Lane::is_given_up) => {
                    Err(RefusalCode::Device)
                }
                None => continue,
            };
            landing.settled = Some(self.half.receiver.handle_landed(landing.id, landed));
        }
        self.landings.retain(|landing| !landing.is_orphan || landing.settled.is_none());
        self.note_arrived();
    }

    /// Whether acknowledgements may leave: [`polyrail_proto::Receiver::is_quiet`], and no device
    /// here copies from or to a region that the peer has ended.
    pub(crate) fn is_quiet(&mut self) -> bool {
        self.settle();
        self.ending.retain(|ticket| matches!(ticket.is_done(), Ok(false)));
        self.ending.is_empty() && self.receiver.is_quiet()
    }

    /// Since when acknowledgements have to wait. To be asked every 0.5 s while they do, or it
    /// begins anew.
    pub(crate) fn unquiet_since(&mut self, now: u64) -> u64 {
        const ASKED_EVERY_NS: u64 = 500_000_000;
        let (since, last) = self.unquiet_ns;
        let since = if now.saturating_sub(last) > ASKED_EVERY_NS { now } else { since };
        self.unquiet_ns = (since, now);
        since
    }

    /// [`polyrail_proto::peer::Inbound::has_left`], with a look at what devices have done.
    pub(crate) fn has_left(&mut self, leaving: &Leaving<OpRef>) -> bool {
        self.settle();
        self.half.has_left(leaving)
    }

    /// A chunk is to be copied.
    pub(crate) fn lands(&mut self, id: LandingId) {
        self.landings.push(Landing {
            id,
            tickets: None,
            lane: None,
            settled: None,
            is_orphan: false,
        });
    }

    /// Whether copies are under way whose flow is gone.
    pub(crate) fn has_orphans(&self) -> bool {
        self.landings.iter().any(|landing| landing.is_orphan)
    }

    /// A plugin is to bring it.
    pub(crate) fn begins_on(&mut self, id: LandingId, lane: &Lane) {
        if let Some(landing) = self.landing(id) {
            landing.lane = Some(lane.clone());
        }
    }

    pub(crate) fn begun(&mut self, id: LandingId, tickets: Tickets) {
        if let Some(landing) = self.landing(id) {
            landing.tickets = Some(tickets);
        }
    }

    fn landing(&mut self, id: LandingId) -> Option<&mut Landing> {
        self.landings.iter_mut().find(|landing| landing.id == id)
    }

    /// Connections of plugins that bring something.
    pub(crate) fn busy_lanes(&self) -> impl Iterator<Item = Lane> + use<> {
        let open = self.landings.iter().filter(|landing| landing.settled.is_none());
        let mut lanes: Vec<Lane> = Vec::new();
        for lane in open.filter_map(|landing| landing.lane.as_ref()) {
            if !lanes.iter().any(|known| known.is(lane)) {
                lanes.push(lane.clone());
            }
        }
        lanes.into_iter()
    }

    /// Takes the landing away if it is settled.
    pub(crate) fn take_settled(&mut self, id: LandingId) -> Option<Settled> {
        let index = self.landings.iter().position(|landing| landing.id == id)?;
        let settled = self.landings[index].settled?;
        self.landings.swap_remove(index);
        Some(settled)
    }

    pub(crate) fn give_up(&mut self, id: LandingId, code: RefusalCode) -> Settled {
        self.landings.retain(|landing| landing.id != id);
        self.receiver.handle_landed(id, Err(code))
    }

    /// Its flow is gone.
    pub(crate) fn orphan(&mut self, id: LandingId) {
        if let Some(landing) = self.landing(id) {
            landing.is_orphan = true;
        }
    }
}
