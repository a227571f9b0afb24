//! Matches tagged sends and receives at the sender.
//!
//! The receiver announces each posted receive. The sender pairs the oldest send of a tag with the oldest receive of
//! that tag and then writes straight into the receive's memory. So a message needs no buffer at the receiver and lands
//! once, and a receive posted early costs the send no round trip. A send waits until its receive is posted: there are
//! no unexpected messages.

use std::collections::{BTreeMap, HashMap, VecDeque};

use crate::deadlines::Deadlines;
use crate::id::Time;
use crate::message::PostedReceive;
use crate::quota::QuotaExceeded;

/// Pairs sends with the receives that the peer has posted. `S` is the driver's handle on a send.
#[derive(Debug)]
pub struct Matcher<S> {
    limits: MatcherLimits,
    next_receive: u64,
    /// Announcements, and withdrawals (`None`), that arrived before their predecessors, on a faster rail. The
    /// announcement of a withdrawn receive may arrive later or never.
    early: BTreeMap<u64, Option<PostedReceive>>,
    receives: HashMap<u64, VecDeque<PostedReceive>>,
    /// Tag of each waiting receive.
    tags: HashMap<u64, u64>,
    /// Places of all receives, including early ones.
    places: usize,
    /// Waiting sends, by tag and then in posting order.
    sends: BTreeMap<WaitingSend, S>,
    next_send: u64,
    deadlines: Deadlines<WaitingSend>,
}

/// Tag of a send, and its number among all sends.
type WaitingSend = (u64, u64);

/// Limits on what a peer may make a matcher remember. A peer that exceeds them violates the protocol: the driver
/// refuses announcements well before.
#[derive(Clone, Copy, Debug)]
pub struct MatcherLimits {
    /// Receives that wait for a send, and numbers that are ahead of their predecessors.
    pub receives: usize,
    /// Places of those receives, 40 bytes each.
    pub places: usize,
}

/// A send and the receive that it fills.
#[derive(Debug, PartialEq, Eq)]
pub struct Match<S> {
    /// Driver's handle of the send.
    pub send: S,
    /// Matched receive.
    pub receive: PostedReceive,
}

impl Default for MatcherLimits {
    fn default() -> Self {
        Self { receives: 1 << 17, places: 1 << 19 }
    }
}

impl<S: PartialEq> Default for Matcher<S> {
    fn default() -> Self {
        Self::new(MatcherLimits::default())
    }
}

impl<S: PartialEq> Matcher<S> {
    /// Returns a matcher without sends and receives.
    pub fn new(limits: MatcherLimits) -> Self {
        Self {
            limits,
            next_receive: 1,
            early: BTreeMap::new(),
            receives: HashMap::new(),
            tags: HashMap::new(),
            places: 0,
            sends: BTreeMap::new(),
            next_send: 0,
            deadlines: Deadlines::default(),
        }
    }

    /// Posts a send with `tag`. If no receive waits for it, the send waits, until its deadline if it has one.
    pub fn send(&mut self, tag: u64, send: S, deadline: Option<Time>) -> Option<Match<S>> {
        match self.take_receive(tag) {
            Some(receive) => {
                self.tags.remove(&receive.receive);
                self.places -= receive.places.len();
                Some(Match { send, receive })
            }
            None => {
                let waiting = (tag, self.next_send);
                self.next_send += 1;
                self.sends.insert(waiting, send);
                if let Some(deadline) = deadline {
                    let waits = |other: &WaitingSend| self.sends.contains_key(other);
                    self.deadlines.note(deadline, waiting, self.sends.len(), waits);
                }
                None
            }
        }
    }

    /// Handles a receive that the peer posted. Appends the matches of it and of its successors to `matches`.
    ///
    /// An error means that the peer violates the protocol, and changes nothing.
    pub fn handle_posted(
        &mut self,
        posted: PostedReceive,
        matches: &mut Vec<Match<S>>,
    ) -> Result<(), QuotaExceeded> {
        if posted.receive < self.next_receive || self.early.contains_key(&posted.receive) {
            return Ok(());
        }
        let places = self.places + posted.places.len();
        QuotaExceeded::check("places of posted receives", places, self.limits.places)?;
        self.check_one_more(posted.receive)?;
        self.places = places;
        self.early.insert(posted.receive, Some(posted));
        self.go_on(matches);
        Ok(())
    }

    /// Handles a withdrawn receive, which matches nothing even if its announcement arrives later. Returns whether it
    /// was still waiting for a send. Appends the matches of its successors to `matches`.
    ///
    /// An error means that the peer violates the protocol, and changes nothing.
    pub fn handle_withdrawn(
        &mut self,
        receive: u64,
        matches: &mut Vec<Match<S>>,
    ) -> Result<bool, QuotaExceeded> {
        if receive >= self.next_receive {
            if !self.early.contains_key(&receive) {
                self.check_one_more(receive)?;
            }
            if let Some(Some(posted)) = self.early.insert(receive, None) {
                self.places -= posted.places.len();
            }
            self.go_on(matches);
            return Ok(true);
        }
        let Some(tag) = self.tags.remove(&receive) else { return Ok(false) };
        let Some(queue) = self.receives.get_mut(&tag) else { return Ok(false) };
        // Receives wait in the order of their numbers.
        let Ok(index) = queue.binary_search_by_key(&receive, |posted| posted.receive) else {
            return Ok(false);
        };
        self.places -= queue.remove(index).map_or(0, |posted| posted.places.len());
        if queue.is_empty() {
            self.receives.remove(&tag);
        }
        Ok(true)
    }

    /// Cancels a send. Returns whether it was still waiting for a receive.
    pub fn cancel_send(&mut self, tag: u64, send: &S) -> bool {
        let mut of_tag = self.sends.range((tag, 0)..=(tag, u64::MAX));
        let found = of_tag.find(|(_, waiting)| *waiting == send).map(|(key, _)| *key);
        found.is_some_and(|key| self.sends.remove(&key).is_some())
    }

    /// Takes waiting sends, in order of tags and of posting.
    pub fn take_sends(&mut self, which: impl Fn(&S) -> bool) -> Vec<S> {
        self.sends.extract_if(.., |_, send| which(send)).map(|(_, send)| send).collect()
    }

    /// Takes the waiting sends whose deadline has passed, in order of deadlines, and appends them to `late`. Returns
    /// when the next one is due.
    pub fn handle_timeout(&mut self, now: Time, late: &mut Vec<S>) -> Option<Time> {
        loop {
            match self.deadlines.first(|waiting| self.sends.contains_key(waiting)) {
                Some((deadline, waiting)) if deadline <= now => {
                    late.extend(self.sends.remove(&waiting));
                }
                first => return first.map(|(deadline, _)| deadline),
            }
        }
    }

    /// Returns every send that waits for a receive, with its tag, in order of tags and of posting.
    pub fn sends(&self) -> impl Iterator<Item = (u64, &S)> {
        self.sends.iter().map(|((tag, _), send)| (*tag, send))
    }

    /// Returns the number of receives that wait for a send, plus numbers that are ahead of their predecessors.
    pub fn waiting_receives(&self) -> usize {
        self.tags.len() + self.early.len()
    }

    /// Returns the number of places of those receives.
    pub fn waiting_places(&self) -> usize {
        self.places
    }

    /// Returns the number of sends that wait for a receive.
    pub fn waiting_sends(&self) -> usize {
        self.sends.len()
    }

    /// Checks that a receive of this number may be remembered in addition to all others.
    fn check_one_more(&self, receive: u64) -> Result<(), QuotaExceeded> {
        // The next number may release those that are ahead, and always has room if they had.
        let known = self.waiting_receives();
        let known = if receive == self.next_receive { self.tags.len() } else { known };
        QuotaExceeded::check("posted receives", known + 1, self.limits.receives)
    }

    // The queue of a tag is removed with its last entry: tags may be used once and never again.
    fn take_receive(&mut self, tag: u64) -> Option<PostedReceive> {
        let queue = self.receives.get_mut(&tag)?;
        let front = queue.pop_front();
        if queue.is_empty() {
            self.receives.remove(&tag);
        }
        front
    }

    fn take_send(&mut self, tag: u64) -> Option<S> {
        let oldest = *self.sends.range((tag, 0)..=(tag, u64::MAX)).next()?.0;
        self.sends.remove(&oldest)
    }

    fn go_on(&mut self, matches: &mut Vec<Match<S>>) {
        while let Some(posted) = self.early.remove(&self.next_receive) {
            self.next_receive += 1;
            let Some(receive) = posted else { continue };
            match self.take_send(receive.tag) {
                Some(send) => {
                    self.places -= receive.places.len();
                    matches.push(Match { send, receive });
                }
                None => {
                    self.tags.insert(receive.receive, receive.tag);
                    self.receives.entry(receive.tag).or_default().push_back(receive);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::CopyLeave;

    fn posted(receive: u64, tag: u64) -> PostedReceive {
        PostedReceive { receive, tag, places: Vec::new(), leave: CopyLeave::No }
    }

    fn post(matcher: &mut Matcher<u32>, receive: u64, tag: u64) -> Vec<(u32, u64)> {
        let mut matches = Vec::new();
        matcher.handle_posted(posted(receive, tag), &mut matches).unwrap();
        matches.into_iter().map(|m| (m.send, m.receive.receive)).collect()
    }

    #[test]
    fn the_oldest_send_of_a_tag_meets_its_oldest_receive() {
        let mut m = Matcher::default();
        assert_eq!(m.send(5, 50, None), None);
        assert_eq!(m.send(5, 51, None), None);
        assert_eq!(post(&mut m, 1, 6), []);
        assert_eq!(post(&mut m, 2, 5), [(50, 2)]);
        assert_eq!(m.send(6, 60, None).unwrap().receive.receive, 1);
        assert_eq!((m.waiting_sends(), m.waiting_receives()), (1, 0));
    }

    #[test]
    fn announcements_that_overtake_each_other_keep_the_order_of_posting() {
        let mut m = Matcher::default();
        assert_eq!(post(&mut m, 2, 5), []);
        assert_eq!(m.send(5, 50, None), None, "the first receive may have this tag too");
        assert_eq!(post(&mut m, 1, 5), [(50, 1)]);
        assert_eq!(m.send(5, 51, None).unwrap().receive.receive, 2);
    }

    #[test]
    fn what_is_withdrawn_or_cancelled_matches_nothing() {
        let mut m = Matcher::default();
        post(&mut m, 1, 5);
        let withdraw =
            |m: &mut Matcher<u32>, receive| m.handle_withdrawn(receive, &mut Vec::new()).unwrap();
        assert!(withdraw(&mut m, 1));
        assert!(!withdraw(&mut m, 1));
        assert!(withdraw(&mut m, 2), "before its announcement");
        assert_eq!(post(&mut m, 2, 5), []);
        assert_eq!(m.send(5, 50, None), None);
        assert!(m.cancel_send(5, &50));
        assert!(!m.cancel_send(5, &50));
        assert_eq!(post(&mut m, 3, 5), []);
        assert_eq!(m.send(5, 51, None).unwrap().receive.receive, 3);
    }

    #[test]
    fn a_send_waits_until_its_deadline() {
        let mut m = Matcher::default();
        for (tag, send, deadline) in [(5, 50, 30), (4, 40, 20), (5, 51, 20), (5, 52, 40)] {
            assert_eq!(m.send(tag, send, Some(Time(deadline))), None);
        }
        assert_eq!(m.send(5, 53, None), None);
        let mut late = Vec::new();
        assert_eq!(m.handle_timeout(Time(19), &mut late), Some(Time(20)));
        assert_eq!(m.handle_timeout(Time(20), &mut late), Some(Time(30)));
        assert_eq!(std::mem::take(&mut late), [40, 51]);
        assert_eq!(post(&mut m, 1, 5), [(50, 1)]);
        assert_eq!(m.handle_timeout(Time(35), &mut late), Some(Time(40)), "it has met its receive");
        assert!(m.cancel_send(5, &52));
        assert_eq!(m.handle_timeout(Time(99), &mut late), None);
        assert_eq!((late, m.take_sends(|_| true)), (Vec::new(), vec![53]));
    }

    #[test]
    fn an_announcement_that_comes_twice_counts_once() {
        let mut m = Matcher::default();
        post(&mut m, 1, 5);
        post(&mut m, 1, 5);
        assert_eq!(m.waiting_receives(), 1);
    }

    #[test]
    fn a_receive_that_is_withdrawn_and_never_announced_keeps_none_waiting() {
        let mut m = Matcher::default();
        assert_eq!(post(&mut m, 2, 5), []);
        assert_eq!(m.send(5, 50, None), None);
        let mut matches = Vec::new();
        assert_eq!(m.handle_withdrawn(1, &mut matches), Ok(true));
        assert_eq!(matches.remove(0).receive.receive, 2);
        assert_eq!((m.waiting_receives(), m.waiting_sends()), (0, 0));
    }

    #[test]
    fn a_peer_that_posts_receives_without_end_is_stopped() {
        let limits = MatcherLimits { receives: 10, places: 25 };
        let place = crate::wire::Place {
            key: crate::id::RegionKey { slot: 0, generation: 1, nonce: 0 },
            offset: 0,
            len: 1,
        };
        let with =
            |receive, places| PostedReceive { places: vec![place; places], ..posted(receive, 5) };
        let mut m: Matcher<u32> = Matcher::new(limits);
        let mut none = Vec::new();
        // Exactly the limit, in order or ahead, and withdrawn before they are announced.
        for receive in 1..=4 {
            m.handle_posted(with(receive, 6), &mut none).unwrap();
        }
        let text = m.handle_posted(with(5, 2), &mut none).unwrap_err().to_string();
        assert!(text.contains("places of posted receives is exceeded: 26, "), "{text}");
        for receive in 6..=8 {
            m.handle_posted(with(receive, 0), &mut none).unwrap();
        }
        for receive in 10..=12 {
            m.handle_withdrawn(receive, &mut none).unwrap();
        }
        for receive in [13, 1 << 40, u64::MAX] {
            let error = QuotaExceeded { quota: "posted receives", value: 11, limit: 10 };
            assert_eq!(m.handle_posted(with(receive, 0), &mut none), Err(error));
            assert_eq!(m.handle_withdrawn(receive, &mut none), Err(error));
        }
        assert_eq!((m.waiting_receives(), m.waiting_places()), (10, 24));
        // Repeated announcements cost nothing.
        for receive in [1, 6, 10] {
            m.handle_posted(with(receive, 1), &mut none).unwrap();
        }
        assert_eq!((m.waiting_receives(), m.waiting_places()), (10, 24));
        // The receive that blocks the others is accepted, and matched or withdrawn receives make room.
        m.handle_posted(with(5, 1), &mut none).unwrap();
        assert_eq!(m.send(5, 50, None).unwrap().receive.receive, 1);
        assert_eq!(m.handle_withdrawn(2, &mut none), Ok(true));
        assert_eq!(m.handle_withdrawn(2, &mut none), Ok(false));
        assert_eq!(m.waiting_places(), 13);
        assert_eq!(m.send(5, 51, None).unwrap().receive.receive, 3);
        assert_eq!(none, []);
    }
}
