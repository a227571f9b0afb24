//! Tagged send and receive, matched at the sender.
//!
//! The receiver announces each posted receive; the sender pairs the oldest send of a tag with the
//! oldest receive of that tag and then writes straight into the receive's memory. So a message
//! needs no buffer at the receiver and lands once, and a receive posted early costs the send no
//! round trip. A send waits until its receive is posted: there are no unexpected messages.

use std::collections::{BTreeMap, HashMap, VecDeque};

use crate::message::PostedReceive;

/// Pairs sends with the receives that the peer has posted. `S` is the driver's handle on a send.
#[derive(Debug)]
pub struct Matcher<S> {
    next_receive: u64,
    /// Announcements that came before their predecessors, on a faster rail.
    early: BTreeMap<u64, PostedReceive>,
    receives: HashMap<u64, VecDeque<PostedReceive>>,
    sends: HashMap<u64, VecDeque<S>>,
    /// Receives withdrawn before their announcement came.
    withdrawn: Vec<u64>,
}

/// A send and the receive that it fills.
#[derive(Debug, PartialEq, Eq)]
pub struct Match<S> {
    /// The driver's handle.
    pub send: S,
    /// The receive.
    pub receive: PostedReceive,
}

impl<S> Default for Matcher<S> {
    fn default() -> Self {
        Self {
            next_receive: 1,
            early: BTreeMap::new(),
            receives: HashMap::new(),
            sends: HashMap::new(),
            withdrawn: Vec::new(),
        }
    }
}

impl<S: PartialEq> Matcher<S> {
    /// The user sends with `tag`. If no receive waits for it, the send waits.
    pub fn send(&mut self, tag: u64, send: S) -> Option<Match<S>> {
        match take_front(&mut self.receives, tag) {
            Some(receive) => Some(Match { send, receive }),
            None => {
                self.sends.entry(tag).or_default().push_back(send);
                None
            }
        }
    }

    /// The peer posted a receive. Appends what it and its successors match to `matches`.
    pub fn handle_posted(&mut self, posted: PostedReceive, matches: &mut Vec<Match<S>>) {
        if posted.receive < self.next_receive {
            return;
        }
        self.early.insert(posted.receive, posted);
        while let Some(receive) = self.early.remove(&self.next_receive) {
            self.next_receive += 1;
            if let Some(index) = self.withdrawn.iter().position(|w| *w == receive.receive) {
                self.withdrawn.swap_remove(index);
                continue;
            }
            match take_front(&mut self.sends, receive.tag) {
                Some(send) => matches.push(Match { send, receive }),
                None => self.receives.entry(receive.tag).or_default().push_back(receive),
            }
        }
    }

    /// The peer withdrew a receive. Says whether it was still waiting for a send.
    pub fn handle_withdrawn(&mut self, receive: u64) -> bool {
        if receive >= self.next_receive {
            self.withdrawn.push(receive);
            return true;
        }
        let waiting =
            self.receives.iter().find(|(_, queue)| queue.iter().any(|r| r.receive == receive));
        let Some(tag) = waiting.map(|(tag, _)| *tag) else { return false };
        remove(&mut self.receives, tag, |r| r.receive == receive)
    }

    /// The user cancelled a send. Says whether it was still waiting for a receive.
    pub fn cancel_send(&mut self, tag: u64, send: &S) -> bool {
        remove(&mut self.sends, tag, |waiting| waiting == send)
    }

    /// Takes every waiting send: the peer is gone.
    pub fn drain_sends(&mut self) -> Vec<S> {
        self.sends.drain().flat_map(|(_, queue)| queue).collect()
    }

    /// Every send that waits for a receive, with its tag.
    pub fn sends(&self) -> impl Iterator<Item = (u64, &S)> {
        self.sends.iter().flat_map(|(tag, queue)| queue.iter().map(|send| (*tag, send)))
    }

    /// Receives that wait for a send.
    pub fn waiting_receives(&self) -> usize {
        self.receives.values().map(VecDeque::len).sum::<usize>() + self.early.len()
    }

    /// Sends that wait for a receive.
    pub fn waiting_sends(&self) -> usize {
        self.sends.values().map(VecDeque::len).sum()
    }
}

// A tag's queue is removed with its last entry: tags may be used once and never again.
fn take_front<T>(queues: &mut HashMap<u64, VecDeque<T>>, tag: u64) -> Option<T> {
    let queue = queues.get_mut(&tag)?;
    let front = queue.pop_front();
    if queue.is_empty() {
        queues.remove(&tag);
    }
    front
}

fn remove<T>(
    queues: &mut HashMap<u64, VecDeque<T>>,
    tag: u64,
    wanted: impl FnMut(&T) -> bool,
) -> bool {
    let Some(queue) = queues.get_mut(&tag) else { return false };
    let Some(index) = queue.iter().position(wanted) else { return false };
    queue.remove(index);
    if queue.is_empty() {
        queues.remove(&tag);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn posted(receive: u64, tag: u64) -> PostedReceive {
        PostedReceive { receive, tag, places: Vec::new() }
    }

    fn post(matcher: &mut Matcher<u32>, receive: u64, tag: u64) -> Vec<(u32, u64)> {
        let mut matches = Vec::new();
        matcher.handle_posted(posted(receive, tag), &mut matches);
        matches.into_iter().map(|m| (m.send, m.receive.receive)).collect()
    }

    #[test]
    fn the_oldest_send_of_a_tag_meets_its_oldest_receive() {
        let mut m = Matcher::default();
        assert_eq!(m.send(5, 50), None);
        assert_eq!(m.send(5, 51), None);
        assert_eq!(post(&mut m, 1, 6), []);
        assert_eq!(post(&mut m, 2, 5), [(50, 2)]);
        assert_eq!(m.send(6, 60).unwrap().receive.receive, 1);
        assert_eq!((m.waiting_sends(), m.waiting_receives()), (1, 0));
    }

    #[test]
    fn announcements_that_overtake_each_other_keep_the_order_of_posting() {
        let mut m = Matcher::default();
        assert_eq!(post(&mut m, 2, 5), []);
        assert_eq!(m.send(5, 50), None, "the first receive may have this tag too");
        assert_eq!(post(&mut m, 1, 5), [(50, 1)]);
        assert_eq!(m.send(5, 51).unwrap().receive.receive, 2);
    }

    #[test]
    fn what_is_withdrawn_or_cancelled_matches_nothing() {
        let mut m = Matcher::default();
        post(&mut m, 1, 5);
        assert!(m.handle_withdrawn(1));
        assert!(!m.handle_withdrawn(1));
        assert!(m.handle_withdrawn(2), "before its announcement");
        assert_eq!(post(&mut m, 2, 5), []);
        assert_eq!(m.send(5, 50), None);
        assert!(m.cancel_send(5, &50));
        assert!(!m.cancel_send(5, &50));
        assert_eq!(post(&mut m, 3, 5), []);
        assert_eq!(m.send(5, 51).unwrap().receive.receive, 3);
    }

    #[test]
    fn an_announcement_that_comes_twice_counts_once() {
        let mut m = Matcher::default();
        post(&mut m, 1, 5);
        post(&mut m, 1, 5);
        assert_eq!(m.waiting_receives(), 1);
    }
}
