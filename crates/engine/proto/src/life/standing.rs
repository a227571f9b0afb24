//! Standing of a peer: its state, the side that connects its flows, and the outcome of the latest attempts.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use super::attempts::{Attempts, is_final};
use super::state::{Action, PeerEvent, PeerState};
use crate::hello::{RailCard, RefusedCode};
use crate::id::{FlowIndex, Time};
use crate::pairing::{Layout, Pairs, RailPair};
use crate::reason::LostReason;

/// Standing of a peer, for threads that report events and for those that only read.
#[derive(Debug)]
pub struct Standing {
    life: Mutex<Life>,
    /// Copy of the state in `life`, for readers.
    state: AtomicU8,
    /// Side that connects the flows towards the peer, as a number of [`Outward`].
    outward: AtomicU8,
    /// The session of its hellos plus one; 0 before the first.
    heard: AtomicU64,
    lost: OnceLock<LostReason>,
}

/// State, and results of attempts to connect.
#[derive(Debug)]
struct Life {
    state: PeerState,
    attempts: Attempts,
    /// Rails of the peer, as bits, that were seen to lead to it.
    led_rails: u64,
}

/// Side that connects the flows towards a peer.
#[derive(Clone, Copy)]
#[repr(u8)]
enum Outward {
    /// Neither engine: the peer connected to this one, which has nothing to send to it.
    Unwanted,
    /// This engine.
    Connects,
    /// The peer: the flows are the other direction of those that arrive from it.
    Answers,
}

impl Life {
    /// Records that the pair at this position, with this rail of the peer, leads to the peer.
    fn note_led(&mut self, index: usize, rail: usize) {
        self.attempts.leads_there(index);
        // A card has at most 64 rails.
        self.led_rails |= 1 << rail;
    }
}

impl Standing {
    /// Returns a new peer with this many rail pairs and flows, none of which was up.
    pub fn new(pairs: usize, flows: usize) -> Self {
        let (state, attempts) = (PeerState::New, Attempts::new(pairs, flows));
        Self {
            life: Mutex::new(Life { state, attempts, led_rails: 0 }),
            state: AtomicU8::new(state as u8),
            outward: AtomicU8::new(Outward::Unwanted as u8),
            heard: AtomicU64::new(0),
            lost: OnceLock::new(),
        }
    }

    /// Returns the peer's state.
    #[inline]
    pub fn state(&self) -> PeerState {
        PeerState::from_number(self.state.load(Ordering::Acquire))
    }

    /// Returns whether the peer is being sent a goodbye: its flows will close and are not to be connected again, and it
    /// takes no operations.
    #[inline]
    pub fn is_parting(&self) -> bool {
        self.state().is_parting()
    }

    /// Handles an event that ends nothing at once. See [`Self::end`] for the others.
    pub fn happens(&self, event: PeerEvent) -> Action {
        let mut life = self.life();
        let (state, action) = life.state.after(event);
        let ends = matches!(action, Action::End | Action::EndBoth | Action::BeginAnew);
        // Events after the peer's end belong to another session.
        if !ends && !life.state.is_over() {
            self.enter(&mut life, state);
        }
        action
    }

    /// Handles an event that may end the peer, which takes no operations afterwards. Returns whether this call ended
    /// it. `and_then` runs at its end, before another call here continues.
    pub fn end(&self, event: PeerEvent, why: LostReason, and_then: impl FnOnce()) -> bool {
        let mut life = self.life();
        let (state, action) = life.state.after(event);
        let state = match action {
            Action::End | Action::EndBoth => state,
            // The action's state is that of the next session.
            Action::BeginAnew => PeerState::Lost,
            _ => return false,
        };
        let first = self.lost.set(why).is_ok();
        self.enter(&mut life, state);
        and_then();
        first
    }

    /// Returns the reason for the peer's end, if it has ended.
    pub fn lost(&self) -> Option<&LostReason> {
        self.lost.get()
    }

    /// Checks whether flows are up by which the peer is reached, and records the result.
    pub fn note_flows(&self, is_reached: impl FnOnce() -> bool) {
        let mut life = self.life();
        // Under the lock: a flow that comes up meanwhile is noted after this.
        let event = if is_reached() { PeerEvent::Up } else { PeerEvent::Down };
        let (state, _) = life.state.after(event);
        self.enter(&mut life, state);
    }

    /// Records that a flow towards the peer is up.
    pub fn note_flow_up(&self, layout: &Layout, flow: FlowIndex) {
        let (mut life, pair) = (self.life(), layout.pair_index(flow));
        life.attempts.up(pair, flow.0 as usize);
        if self.connects_flows() {
            life.note_led(pair, layout.pairs.at(pair).1);
        }
        let (state, _) = life.state.after(PeerEvent::Up);
        self.enter(&mut life, state);
    }

    /// Moves the flows of this position to other rails. A refusal on the former rails says nothing about the new ones;
    /// whether the new remote rail led to the peer is known.
    pub fn change_pair(&self, pairs: &Pairs, index: usize, pair: RailPair) {
        if pairs.at(index) != pair {
            pairs.replace(index, pair);
            let mut life = self.life();
            life.attempts.forget(index);
            if life.led_rails & 1 << pair.1 != 0 {
                life.attempts.leads_there(index);
            }
        }
    }

    /// Records that a flow of the peer came from this address. `rails`: those of its card.
    pub fn note_origin(&self, pairs: &Pairs, rails: &[RailCard], address: IpAddr) {
        let mut life = self.life();
        for (index, (_, to)) in pairs.iter().enumerate() {
            if rails[to].address.ip().to_canonical() == address.to_canonical() {
                life.note_led(index, to);
            }
        }
    }

    /// Records that a kernel refused a connection on these rails. Returns whether that must be confirmed soon.
    pub fn note_nobody_there(&self, pair: usize, now: Time) -> bool {
        let mut life = self.life();
        life.attempts.nobody_there(pair, now);
        life.state == PeerState::CutOff && life.attempts.is_unsure(pair)
    }

    /// Records any other result of a connection on these rails.
    pub fn note_somebody_there(&self, pair: usize) {
        self.life().attempts.somebody_there(pair);
    }

    /// Records that the engine that listens there refused a flow. `proven`: it has proven to be the peer.
    pub fn note_refused(&self, layout: &Layout, flow: FlowIndex, code: RefusedCode, proven: bool) {
        let mut life = self.life();
        let word = is_final(code, proven, life.state).then_some(proven);
        let index = flow.0 as usize;
        // An engine that rejects the peer's own metadata is another engine.
        if code == RefusedCode::Unproven && !proven {
            life.attempts.refused_by_another(index, word);
        } else {
            life.attempts.refused(layout.pair_index(flow), index, word);
        }
    }

    /// Returns the peer's session as last received in this one.
    pub fn heard_session(&self) -> Option<u32> {
        // The value was made from a u32.
        self.heard.load(Ordering::Acquire).checked_sub(1).map(|session| session as u32)
    }

    /// Records that a hello of this session of the peer is welcome.
    pub fn note_heard(&self, session: u32) {
        self.heard.store(u64::from(session) + 1, Ordering::Release);
    }

    /// Returns the event that all attempts to connect flows amount to; `None` while flows are up by which the peer is
    /// reached.
    pub fn verdict(&self, is_reached: impl FnOnce() -> bool) -> Option<PeerEvent> {
        let life = self.life();
        if is_reached() { None } else { life.attempts.verdict() }
    }

    /// Returns the rail pairs that were seen to lead to the peer.
    pub fn pairs_that_lead_there(&self, pairs: &Pairs) -> Vec<usize> {
        let life = self.life();
        (0..pairs.len()).filter(|pair| life.attempts.has_led_there(*pair)).collect()
    }

    /// Returns whether flows towards the peer are wanted. If the peer connected first, they are not before the first
    /// use.
    #[inline]
    pub fn wants_flows(&self) -> bool {
        self.outward.load(Ordering::Acquire) != Outward::Unwanted as u8
    }

    /// Returns whether this engine connects the flows towards the peer.
    #[inline]
    pub fn connects_flows(&self) -> bool {
        self.outward.load(Ordering::Acquire) == Outward::Connects as u8
    }

    /// Makes flows towards the peer wanted. Returns whether this engine has to begin to connect them.
    pub fn want_flows(&self) -> bool {
        self.decide(Outward::Connects)
    }

    /// Returns whether flows to the peer are to be the other direction of those that come from it, of which there are
    /// `flows`. The first of them decides, unless flows are being connected already.
    pub fn answers(&self, layout: &Layout, flows: u32) -> bool {
        if layout.flows() != flows {
            return false;
        }
        self.decide(Outward::Answers);
        self.outward.load(Ordering::Acquire) == Outward::Answers as u8
    }

    fn decide(&self, outward: Outward) -> bool {
        let (unwanted, outward) = (Outward::Unwanted as u8, outward as u8);
        let order = (Ordering::AcqRel, Ordering::Acquire);
        self.outward.compare_exchange(unwanted, outward, order.0, order.1).is_ok()
    }

    fn life(&self) -> MutexGuard<'_, Life> {
        self.life.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self, life: &mut Life, state: PeerState) {
        life.state = state;
        self.state.store(state as u8, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pairing::Pairing;

    fn layout(pairs: &[RailPair]) -> Layout {
        let pairs = pairs.to_vec();
        let idle = (vec![None; pairs.len()], vec![None; pairs.len()]);
        let pairs = Pairs::new(Pairing { pairs, idle_local: idle.0, idle_remote: idle.1 });
        Layout { channels: pairs.len() as u32, pairs, sockets: 1 }
    }

    #[test]
    fn a_peer_ends_once_and_what_follows_its_end_changes_nothing() {
        let standing = Standing::new(1, 1);
        let mut ended = 0;
        assert!(!standing.end(PeerEvent::Told, LostReason::Removed, || ended += 1));
        assert_eq!((standing.state(), standing.lost()), (PeerState::New, None));
        assert!(standing.end(PeerEvent::Bye, LostReason::Closed, || ended += 1));
        assert!(!standing.end(PeerEvent::Bye, LostReason::Removed, || ended += 1));
        assert_eq!((standing.lost(), ended), (Some(&LostReason::Closed), 1));
        standing.note_flows(|| true);
        assert_eq!(standing.happens(PeerEvent::Add), Action::Begin);
        assert_eq!(standing.state(), PeerState::Lost, "its new session is another peer's");
    }

    #[test]
    fn a_rail_that_led_there_is_known_at_its_next_position() {
        let (standing, layout) = (Standing::new(2, 2), layout(&[(0, 0), (1, 1)]));
        assert!(standing.want_flows() && !standing.want_flows());
        standing.note_flow_up(&layout, FlowIndex(1));
        assert_eq!(standing.state(), PeerState::Connected);
        assert_eq!(standing.pairs_that_lead_there(&layout.pairs), [1]);
        standing.change_pair(&layout.pairs, 0, (0, 1));
        standing.change_pair(&layout.pairs, 1, (1, 0));
        assert_eq!(standing.pairs_that_lead_there(&layout.pairs), [0]);
    }

    #[test]
    fn the_first_use_decides_who_connects() {
        let (standing, layout) = (Standing::new(1, 1), layout(&[(0, 0)]));
        assert!(!standing.answers(&layout, 2), "the peer is set up otherwise");
        assert!(!standing.wants_flows());
        assert!(standing.answers(&layout, 1) && standing.wants_flows());
        assert!(!standing.want_flows() && !standing.connects_flows());
    }

    #[test]
    fn sessions_from_0_on_are_heard() {
        let standing = Standing::new(1, 1);
        assert_eq!(standing.heard_session(), None);
        standing.note_heard(0);
        assert_eq!(standing.heard_session(), Some(0));
    }
}
