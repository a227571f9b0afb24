//! Chunks that land after their flow has moved on: from `Receiver::detach` to `Receiver::handle_landed`.

use super::{LandingId, Permission, Settled};

/// Chunks that devices or plugins bring into place, visible to all threads that hold the lock of the peer. `B` is the
/// driver's record of the device or plugin that brings a chunk. Any thread may find the chunk done, so none waits for
/// another thread.
#[derive(Debug, Default)]
pub struct Landings<B>(Vec<Landing<B>>);

#[derive(Debug)]
struct Landing<B> {
    id: LandingId,
    by: B,
    settled: Option<Settled>,
    /// The chunk's flow is gone.
    is_orphan: bool,
}

impl<B: Default> Landings<B> {
    /// Settles by `landed` the chunks that have `ended`, and forgets those whose flow is gone.
    pub fn settle(
        &mut self,
        ended: impl Fn(&B) -> Option<Permission>,
        mut landed: impl FnMut(LandingId, Permission) -> Settled,
    ) {
        for landing in self.0.iter_mut().filter(|landing| landing.settled.is_none()) {
            landing.settled = ended(&landing.by).map(|end| landed(landing.id, end));
        }
        self.0.retain(|landing| !landing.is_orphan || landing.settled.is_none());
    }

    /// Adds a chunk that is to be brought; its device or plugin is not known yet.
    pub fn lands(&mut self, id: LandingId) {
        self.0.push(Landing { id, by: B::default(), settled: None, is_orphan: false });
    }

    /// Changes the record of the chunk's device or plugin.
    pub fn note(&mut self, id: LandingId, change: impl FnOnce(&mut B)) {
        if let Some(landing) = self.landing(id) {
            change(&mut landing.by);
        }
    }

    /// Returns the records of the chunks that are not settled.
    pub fn unsettled(&self) -> impl Iterator<Item = &B> {
        self.0.iter().filter(|landing| landing.settled.is_none()).map(|landing| &landing.by)
    }

    /// Removes the landing if it is settled.
    pub fn take_settled(&mut self, id: LandingId) -> Option<Settled> {
        let index = self.0.iter().position(|landing| landing.id == id)?;
        let settled = self.0[index].settled?;
        self.0.swap_remove(index);
        Some(settled)
    }

    /// Removes a landing that nothing brings any longer.
    pub fn remove(&mut self, id: LandingId) {
        self.0.retain(|landing| landing.id != id);
    }

    /// Marks a chunk whose flow is gone.
    pub fn orphan(&mut self, id: LandingId) {
        if let Some(landing) = self.landing(id) {
            landing.is_orphan = true;
        }
    }

    /// Returns whether a chunk is in progress whose flow is gone.
    pub fn has_orphans(&self) -> bool {
        self.0.iter().any(|landing| landing.is_orphan)
    }

    fn landing(&mut self, id: LandingId) -> Option<&mut Landing<B>> {
        self.0.iter_mut().find(|landing| landing.id == id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::RefusalCode;

    #[test]
    fn a_landing_is_settled_once_and_kept_until_it_is_taken_unless_its_flow_is_gone() {
        let (mut landings, [a, b, c]) =
            (Landings::<Option<bool>>::default(), [1, 2, 3].map(LandingId));
        let settle = |landings: &mut Landings<Option<bool>>| {
            let mut ended = Vec::new();
            let end = |by: &Option<bool>| by.map(|it| it.then_some(()).ok_or(RefusalCode::Device));
            landings.settle(end, |id, end| {
                ended.push((id, end));
                end.map_or_else(Settled::Refuse, |()| Settled::Ack)
            });
            ended
        };
        [a, b, c].into_iter().for_each(|id| landings.lands(id));
        assert_eq!(settle(&mut landings), []);
        landings.note(a, |by| *by = Some(true));
        landings.orphan(b);
        assert!(landings.take_settled(a).is_none() && landings.has_orphans());
        assert_eq!(settle(&mut landings), [(a, Ok(()))]);
        landings.note(b, |by| *by = Some(false));
        assert_eq!(landings.unsettled().collect::<Vec<_>>(), [&Some(false), &None]);
        assert_eq!(settle(&mut landings), [(b, Err(RefusalCode::Device))], "once each");
        assert!(!landings.has_orphans() && landings.take_settled(b).is_none());
        assert_eq!(landings.take_settled(a), Some(Settled::Ack));
        assert!(landings.take_settled(a).is_none());
        landings.remove(c);
        assert_eq!(landings.unsettled().count(), 0);
    }
}
