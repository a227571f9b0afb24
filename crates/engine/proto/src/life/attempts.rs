//! What attempts to connect flows say of a peer: refusals of kernels, and final words of engines.

use std::time::Duration;

use super::state::{PeerEvent, PeerState};
use crate::hello::RefusedCode;
use crate::id::Time;

/// How long a rail that worked has to refuse connections until it counts as refusing, by two
/// attempts at least. An engine keeps its listeners for as long as it lives, so one refusal would
/// do; but a kernel whose queue of connections is full may refuse as well, and so may a firewall
/// that is being loaded again. Both let a second attempt through. A connection that is reset later
/// than that says nothing: somebody took it, if only a relay or an engine that has no room for it
/// just now.
pub const CONFIRM: Duration = Duration::from_millis(100);

/// The same for a peer that no rail has led to yet. Its metadata is that of an engine which listened
/// when it gave it, so that refusals on all rails mean that it has ended since. A firewall that
/// refuses on this side, where the peer's own flows come through, has this long to let one through.
pub const CONFIRM_NEW: Duration = Duration::from_secs(1);

/// Whether a flow that is refused so need not be tried again. If every flow got such a word, the
/// peer is given up; if only some did, their addresses lead to another engine, as private networks
/// of the same numbers do.
///
/// A word is `proven` if its sender has proven to be the peer. Anybody on the way can say the
/// others, so they never end a peer that was ever connected.
pub fn is_final(code: RefusedCode, proven: bool, state: PeerState) -> bool {
    let was_connected = state != PeerState::New;
    let is_final = match code {
        // None of them changes while the peer runs.
        RefusedCode::WrongInstance
        | RefusedCode::Unproven
        | RefusedCode::Version
        | RefusedCode::NotAdmitted
        | RefusedCode::SessionOver => true,
        // Two engines that part and meet again do so one after the other: until it was connected
        // once, the other may still have to add this one.
        RefusedCode::Removed => was_connected,
        _ => false,
    };
    is_final && (proven || !was_connected)
}

/// What came of the latest attempts to connect, since flows were up.
#[derive(Debug)]
pub struct Attempts {
    /// By pair of rails.
    rails: Vec<RailAttempts>,
    /// By flow: whether it got a final word, and whether that is proven.
    words: Vec<Option<bool>>,
}

#[derive(Clone, Debug, Default)]
struct RailAttempts {
    /// A flow was up on it, or one came from its address. The address may be another machine's
    /// otherwise, which may refuse for ever.
    has_led_there: bool,
    /// Since when all attempts were refused by a kernel, for want of a listener, and until when.
    refused: Option<(Time, Time)>,
}

impl Attempts {
    /// No attempt so far.
    pub fn new(rails: usize, flows: usize) -> Self {
        Self { rails: vec![RailAttempts::default(); rails], words: vec![None; flows] }
    }

    /// A flow of this pair of rails is up; see [`Self::leads_there`] if this engine connected it.
    pub fn up(&mut self, rail: usize, flow: usize) {
        self.words[flow] = None;
        self.somebody_there(rail);
    }

    /// Other rails take the place of the pair, so nothing is known of it.
    pub fn forget(&mut self, rail: usize) {
        self.rails[rail] = RailAttempts::default();
    }

    /// The pair leads to the peer.
    pub fn leads_there(&mut self, rail: usize) {
        self.rails[rail].has_led_there = true;
    }

    /// Whether the pair was seen to lead to the peer.
    pub fn has_led_there(&self, rail: usize) -> bool {
        self.rails[rail].has_led_there
    }

    /// A kernel refused a connection: nobody listens.
    pub fn nobody_there(&mut self, rail: usize, now: Time) {
        let refused = &mut self.rails[rail].refused;
        *refused = Some((refused.map_or(now, |(since, _)| since), now));
    }

    /// An attempt came to anything else than that: time ran out, no way there, a connection.
    pub fn somebody_there(&mut self, rail: usize) {
        self.rails[rail].refused = None;
    }

    /// A flow was refused by whoever listens; `word` says whether that is proven, if it is final.
    pub fn refused(&mut self, rail: usize, flow: usize, word: Option<bool>) {
        self.words[flow] = word;
        self.somebody_there(rail);
    }

    /// A flow was refused by another engine. That says as much of the peer as if nobody listened,
    /// see [`Self::nobody_there`].
    pub fn refused_by_another(&mut self, flow: usize, word: Option<bool>) {
        self.words[flow] = word;
    }

    /// Whether it takes another attempt to know that nobody listens on a pair.
    pub fn is_unsure(&self, rail: usize) -> bool {
        let rail = &self.rails[rail];
        rail.has_led_there && rail.refused.is_some() && !rail.refuses_for(CONFIRM)
    }

    /// What all attempts together say.
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
