//! Memory of peers that were known: their states without a session, and sessions that are over.

use std::collections::{BTreeMap, VecDeque};

use super::state::PeerState;
use crate::hello::Metadata;
use crate::id::InstanceId;

/// Maximum remembered instances; the oldest is forgotten first.
const PARTED_MAX: usize = 4096;
/// Maximum remembered ended sessions of an instance.
const SESSIONS_MAX: usize = 16;

/// Memory of peers that were known, within bounds.
#[derive(Debug, Default)]
pub struct Parted {
    known: BTreeMap<InstanceId, Parting>,
    order: VecDeque<InstanceId>,
}

/// Memory of one instance.
#[derive(Clone, Debug, Default)]
pub struct Parting {
    /// State while it has no session.
    pub state: PeerState,
    /// Metadata that the user gave for it, if ever.
    pub given: Option<Metadata>,
    /// Ended sessions of the instance, newest last.
    over: VecDeque<u32>,
}

impl Parted {
    /// Returns the memory of an instance, if there is one.
    pub fn get(&self, instance: InstanceId) -> Option<&Parting> {
        self.known.get(&instance)
    }

    /// Returns the memory of an instance, created if missing.
    pub fn entry(&mut self, instance: InstanceId) -> &mut Parting {
        if !self.known.contains_key(&instance) {
            self.order.push_back(instance);
            if self.order.len() > PARTED_MAX
                && let Some(oldest) = self.order.pop_front()
            {
                self.known.remove(&oldest);
            }
        }
        self.known.entry(instance).or_default()
    }

    /// Records that a session with the instance is over. `heard`: the session of the instance in it, if the two
    /// exchanged data.
    pub fn end_session(&mut self, instance: InstanceId, state: PeerState, heard: Option<u32>) {
        let parting = self.entry(instance);
        if parting.state != PeerState::Removed {
            parting.state = state;
        }
        if let Some(session) = heard {
            parting.end(session);
        }
    }
}

impl Parting {
    /// Returns the ended sessions of the instance, newest last.
    pub fn over(&self) -> impl Iterator<Item = u32> + '_ {
        self.over.iter().copied()
    }

    /// Records that a session of the instance is over.
    pub fn end(&mut self, session: u32) {
        self.over.push_back(session);
        if self.over.len() > SESSIONS_MAX {
            self.over.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_instances_and_sessions_are_forgotten_first() {
        let mut parted = Parted::default();
        for number in 0..=PARTED_MAX as u128 {
            parted.entry(InstanceId(number)).state = PeerState::Lost;
        }
        assert!(parted.get(InstanceId(0)).is_none() && parted.get(InstanceId(1)).is_some());
        let parting = parted.entry(InstanceId(1));
        (0..=SESSIONS_MAX as u32).for_each(|session| parting.end(session));
        assert!(parting.over().eq(1..=SESSIONS_MAX as u32));
    }

    #[test]
    fn a_removed_peer_stays_removed_when_its_session_ends() {
        let (mut parted, one) = (Parted::default(), InstanceId(1));
        parted.end_session(one, PeerState::Lost, Some(4));
        assert_eq!(parted.get(one).map(|parting| parting.state), Some(PeerState::Lost));
        parted.entry(one).state = PeerState::Removed;
        parted.end_session(one, PeerState::Lost, None);
        let parting = parted.get(one).unwrap();
        assert_eq!(parting.state, PeerState::Removed);
        assert!(parting.over().eq([4]), "nothing came of the second one");
    }
}
