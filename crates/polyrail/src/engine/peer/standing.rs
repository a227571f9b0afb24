//! Where a peer stands: its state, who connects its flows, and what became of the latest attempts.

use std::net::IpAddr;
use std::sync::atomic::Ordering;

use polyrail_proto::hello::RefusedCode;
use polyrail_proto::life::{Action, Epoch, PeerEvent, PeerState, is_final};
use polyrail_proto::reason::LostReason;
use polyrail_proto::{FlowIndex, Time};

use super::{Life, Outward, PeerShared, RailPair};

impl PeerShared {
    pub(crate) fn state(&self) -> PeerState {
        PeerState::from_number(self.state.load(Ordering::Acquire))
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.state().is_over()
    }

    /// Whether it is being told good-bye: it will close its flows, which are not to be connected
    /// again, and takes no operations.
    pub(crate) fn is_parting(&self) -> bool {
        self.state().is_parting()
    }

    /// Whether it is an engine of this process that has closed, though its good-bye may not be read yet. Its
    /// memory is still here, so nothing else would stop a copy.
    pub(crate) fn has_closed_here(&self) -> bool {
        self.closed_here.as_ref().is_some_and(|closed| closed.load(Ordering::Acquire))
    }

    /// Something happens to it that ends nothing at once. See [`Self::set_gone`] for what does.
    pub(crate) fn happens(&self, event: PeerEvent) -> Action {
        let mut life = self.life.lock();
        let (state, action) = life.state.after(event);
        let ends = matches!(action, Action::End | Action::EndBoth | Action::BeginAnew);
        // What comes after its end is another session's.
        if !ends && !life.state.is_over() {
            self.enter(&mut life, state);
        }
        action
    }

    /// Something happens to it that ends it, if it does: from now on it takes no operations. Says
    /// whether this call made it so.
    pub(crate) fn set_gone(&self, event: PeerEvent, why: LostReason) -> bool {
        let mut life = self.life.lock();
        let (state, action) = life.state.after(event);
        let state = match action {
            Action::End | Action::EndBoth => state,
            // That state is of the session which follows.
            Action::BeginAnew => PeerState::Lost,
            _ => return false,
        };
        let first = self.lost.set(why).is_ok();
        self.enter(&mut life, state);
        if let Some(lease) = self.lease.get() {
            lease.revoke();
        }
        first
    }

    /// Looks whether flows are up, and notes it.
    pub(crate) fn note_flows(&self) {
        let mut life = self.life.lock();
        // Under the lock: a flow that comes up meanwhile is noted after this.
        let event = if self.is_reached() { PeerEvent::Up } else { PeerEvent::Down };
        let (state, _) = life.state.after(event);
        self.enter(&mut life, state);
    }

    /// A flow towards it is up.
    pub(crate) fn note_flow_up(&self, flow: FlowIndex) {
        let (mut life, pair) = (self.life.lock(), self.layout.pair_index(flow));
        life.attempts.up(pair, flow.0 as usize);
        if self.connects_flows() {
            life.note_led(pair, self.layout.pairs.at(pair).1);
        }
        let (state, _) = life.state.after(PeerEvent::Up);
        self.enter(&mut life, state);
    }

    /// Whether flows are up that it would be told on, or hears us by.
    fn is_reached(&self) -> bool {
        let arrivals = self.rx_flows_up.load(Ordering::Acquire);
        self.flows_up() > 0 || (!self.wants_flows() && arrivals > 0)
    }

    /// Flows of this position take other rails from now on. What refused on
    /// the former rails says nothing of these; whether the rail there led to the peer is known.
    pub(crate) fn change_pair(&self, index: usize, pair: RailPair) {
        if self.layout.pairs.at(index) != pair {
            self.layout.pairs.replace(index, pair);
            let mut life = self.life.lock();
            life.attempts.forget(index);
            if life.led_rails & 1 << pair.1 != 0 {
                life.attempts.leads_there(index);
            }
        }
    }

    /// A flow of it came from this address.
    pub(crate) fn note_origin(&self, address: IpAddr) {
        let mut life = self.life.lock();
        for (index, (_, to)) in self.layout.pairs.iter().enumerate() {
            if self.card.rails[to].address.ip().to_canonical() == address.to_canonical() {
                life.note_led(index, to);
            }
        }
    }

    /// A kernel refused a connection on these rails. Says whether that must be confirmed soon.
    pub(crate) fn note_nobody_there(&self, pair: usize, now: Time) -> bool {
        let mut life = self.life.lock();
        life.attempts.nobody_there(pair, now);
        life.state == PeerState::CutOff && life.attempts.is_unsure(pair)
    }

    /// A connection on these rails came to something else than that.
    pub(crate) fn note_somebody_there(&self, pair: usize) {
        self.life.lock().attempts.somebody_there(pair);
    }

    /// Whoever listens refused a flow.
    pub(crate) fn note_refused(&self, flow: FlowIndex, code: RefusedCode, proven: bool) {
        let mut life = self.life.lock();
        let word = is_final(code, proven, life.state).then_some(proven);
        let index = flow.0 as usize;
        // It does not take what the peer's own metadata proves.
        if code == RefusedCode::Unproven && !proven {
            life.attempts.refused_by_another(index, word);
        } else {
            life.attempts.refused(self.layout.pair_index(flow), index, word);
        }
    }

    /// The session of the peer that was heard in this one.
    pub(crate) fn heard_session(&self) -> Option<u32> {
        // It was made of a u32.
        self.heard.load(Ordering::Acquire).checked_sub(1).map(|session| session as u32)
    }

    /// A hello of this session of the peer is welcome.
    pub(crate) fn note_heard(&self, session: u32) {
        self.heard.store(u64::from(session) + 1, Ordering::Release);
    }

    /// The epoch of a hello that is said now.
    pub(crate) fn epoch_in_hello(&self, epoch: Epoch) -> Epoch {
        let was_acknowledged = self.tx().sender.was_acknowledged();
        let has_taken = !self.rx().receiver.is_unused();
        epoch.in_hello(self.heard_session(), was_acknowledged, has_taken)
    }

    /// What all attempts to connect flows say together, while none is up.
    pub(crate) fn verdict(&self) -> Option<PeerEvent> {
        let life = self.life.lock();
        if self.is_reached() { None } else { life.attempts.verdict() }
    }

    /// Whether flows of it are up, for all that is known.
    pub(crate) fn has_arrivals(&self) -> bool {
        self.rx_flows_up.load(Ordering::Acquire) > 0
    }

    /// Pairs of rails that were seen to lead to it.
    pub(crate) fn pairs_that_lead_there(&self) -> Vec<usize> {
        let life = self.life.lock();
        (0..self.layout.pairs.len()).filter(|pair| life.attempts.has_led_there(*pair)).collect()
    }

    /// Whether flows towards it are wanted: not before the first use if it came to us.
    pub(crate) fn wants_flows(&self) -> bool {
        self.outward.load(Ordering::Acquire) != Outward::Unwanted as u8
    }

    /// Whether this engine connects the flows towards it.
    pub(crate) fn connects_flows(&self) -> bool {
        self.outward.load(Ordering::Acquire) == Outward::Connects as u8
    }

    /// Flows towards it are wanted from now on. Says whether this engine has to begin to connect them.
    pub(crate) fn want_flows(&self) -> bool {
        self.decide(Outward::Connects)
    }

    /// Whether flows to the peer are to be the other direction of those that come from it. Decided
    /// with the first of them, unless flows are being connected already.
    pub(crate) fn answers(&self, flows: u32) -> bool {
        if self.layout.flows() != flows {
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

    fn enter(&self, life: &mut Life, state: PeerState) {
        life.state = state;
        self.state.store(state as u8, Ordering::Release);
    }
}
