//! Results of attempts to connect flows, as evidence about a peer: refusals by kernels, and final refusals by engines.

use std::time::Duration;

use super::state::{PeerEvent, PeerState};
use crate::hello::RefusedCode;
use crate::id::Time;

/// How long a rail that worked has to refuse connections until it counts as refusing, by two attempts at least. An
/// engine keeps its listeners for as long as it lives, so one refusal would do. But a kernel with a full connection
/// queue may refuse as well, and so may a firewall that is being reloaded; both let a second attempt through. A
/// connection that is reset later than that says nothing: it was accepted, if only by a relay or an engine that has no
/// room for it at the moment.
pub const CONFIRM: Duration = Duration::from_millis(100);

/// Confirmation time for a peer that no rail has led to yet. Its metadata is that of an engine that was listening when
/// it gave it, so refusals on all rails mean that it has ended since. A firewall that refuses on this side, where the
/// peer's own flows come through, has this long to let one through.
pub const CONFIRM_NEW: Duration = Duration::from_secs(1);

/// Returns whether a flow that is refused with this code need not be tried again. If every flow got such a code, the
/// peer is given up. If only some did, their addresses lead to another engine, as with private networks of the same
/// numbers.
///
/// A refusal is `proven` if its sender has proven to be the peer. Any host on the path can send unproven ones, so they
/// never end a peer that was ever connected.
pub fn is_final(code: RefusedCode, proven: bool, state: PeerState) -> bool {
    let was_connected = state != PeerState::New;
    let is_final = match code {
        // None of these changes while the peer runs.
        RefusedCode::WrongInstance
        | RefusedCode::Unproven
        | RefusedCode::Version
        | RefusedCode::NotAdmitted
        | RefusedCode::SessionOver => true,
        // Two engines that disconnect and meet again do so one after the other: until this one was connected once, the
        // other may still have to add it.
        RefusedCode::Removed => was_connected,
        _ => false,
    };
    is_final && (proven || !was_connected)
}

/// Results of the latest attempts to connect, since flows were up.
#[derive(Debug)]
pub struct Attempts {
    /// By rail pair.
    rails: Vec<RailAttempts>,
    /// By flow: set if it got a final refusal, and true if that is proven.
    words: Vec<Option<bool>>,
}

#[derive(Clone, Debug, Default)]
struct RailAttempts {
    /// A flow was up on the pair, or one came from its address. Otherwise the address may be another machine's, which
    /// may refuse forever.
    has_led_there: bool,
    /// First and last time of the uninterrupted refusals by a kernel, for want of a listener.
    refused: Option<(Time, Time)>,
}

impl Attempts {
    /// Returns a record without attempts.
    pub fn new(rails: usize, flows: usize) -> Self {
        Self { rails: vec![RailAttempts::default(); rails], words: vec![None; flows] }
    }

    /// Records that a flow of this rail pair is up; see [`Self::leads_there`] if this engine connected it.
    pub fn up(&mut self, rail: usize, flow: usize) {
        self.words[flow] = None;
        self.somebody_there(rail);
    }

    /// Forgets a pair that is replaced by other rails.
    pub fn forget(&mut self, rail: usize) {
        self.rails[rail] = RailAttempts::default();
    }

    /// Records that the pair leads to the peer.
    pub fn leads_there(&mut self, rail: usize) {
        self.rails[rail].has_led_there = true;
    }

    /// Returns whether the pair was seen to lead to the peer.
    pub fn has_led_there(&self, rail: usize) -> bool {
        self.rails[rail].has_led_there
    }

    /// Records that a kernel refused a connection: there is no listener.
    pub fn nobody_there(&mut self, rail: usize, now: Time) {
        let refused = &mut self.rails[rail].refused;
        *refused = Some((refused.map_or(now, |(since, _)| since), now));
    }

    /// Records any other result of an attempt: a timeout, no route, a connection.
    pub fn somebody_there(&mut self, rail: usize) {
        self.rails[rail].refused = None;
    }

    /// Records that the listener refused a flow; `word` is set if the refusal is final, and true if it is proven.
    pub fn refused(&mut self, rail: usize, flow: usize, word: Option<bool>) {
        self.words[flow] = word;
        self.somebody_there(rail);
    }

    /// Records that another engine refused a flow. That shows as much about the peer as if there were no listener, see
    /// [`Self::nobody_there`].
    pub fn refused_by_another(&mut self, flow: usize, word: Option<bool>) {
        self.words[flow] = word;
    }

    /// Returns whether it takes another attempt to know that a pair has no listener.
    pub fn is_unsure(&self, rail: usize) -> bool {
        let rail = &self.rails[rail];
        rail.has_led_there && rail.refused.is_some() && !rail.refuses_for(CONFIRM)
    }

    /// Returns the event that all attempts together amount to.
    pub fn verdict(&self) -> Option<PeerEvent> {
        let mut led = self.rails.iter().filter(|rail| rail.has_led_there).peekable();
        let is_nobody_there = match led.peek() {
            Some(_) => led.all(|rail| rail.refuses_for(CONFIRM)),
            None => !self.rails.is_empty() && self.rails.iter().all(|r| r.refuses_for(CONFIRM_NEW)),
        };
        if is_nobody_there {
            return Some(PeerEvent::NobodyThere);
        }
        let words: Vec<bool> = self.words.iter().copied().collect::<Option<_>>()?;
        let proven = words.iter().all(|proven| *proven);
        (!self.words.is_empty()).then_some(PeerEvent::Dismissed { proven })
    }
}

impl RailAttempts {
    fn refuses_for(&self, confirm: Duration) -> bool {
        self.refused.is_some_and(|(since, until)| until.since(since) >= confirm)
    }
}
