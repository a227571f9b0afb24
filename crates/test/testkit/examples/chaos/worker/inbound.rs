//! Verifies the effects of others' operations on this worker's memory.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use polyrail::InstanceId;

use super::Worker;
use crate::bytes::Shape;
use crate::talk::{Letter, Mark, Oracle};

/// Time for which a slot is watched after its operation has failed: late bytes would arrive meanwhile.
pub(super) const WATCH_TIME: Duration = Duration::from_millis(500);
const MARK_BYTES: usize = 29;
const NOTIFICATION_BYTES_MAX: u64 = 1500;

/// A worker and its number of an operation.
type Key = (usize, u64);

#[derive(Default)]
pub(super) struct Inbound {
    /// Recent notifications, to detect duplicates.
    notified: Recent,
    given_up: Recent,
    watched: Vec<Watched>,
    /// Results of sends that ended before their receive.
    sent: BTreeMap<Key, bool>,
    /// Results of receives that ended before their send.
    received: BTreeMap<Key, bool>,
}

/// A slot where no bytes may land any more.
struct Watched {
    from: usize,
    mark: Mark,
    checksum: u32,
    since: Duration,
}

/// Most recent operations of each worker.
#[derive(Default)]
struct Recent(BTreeSet<Key>);

impl Recent {
    const EACH_MAX: usize = 256;

    /// Adds an operation. Returns true if it is new.
    fn insert(&mut self, key: Key) -> bool {
        let is_new = self.0.insert(key);
        let mut all = self.0.range((key.0, 0)..(key.0 + 1, 0)).copied();
        if let Some(oldest) = all.next()
            && all.count() >= Self::EACH_MAX
        {
            self.0.remove(&oldest);
        }
        is_new
    }
}

impl Inbound {
    pub(super) fn is_quiet(&self) -> bool {
        self.watched.is_empty()
    }

    /// Forgets a window that has ended, whose bytes can't be checked any more.
    pub(super) fn close_window(&mut self, from: usize) {
        self.watched.retain(|watched| watched.from != from);
    }

    /// Forgets a worker that has ended; its successor counts from the start.
    pub(super) fn forget(&mut self, from: usize) {
        self.close_window(from);
        self.notified.0.retain(|key| key.0 != from);
        self.given_up.0.retain(|key| key.0 != from);
        self.sent.retain(|key, _| key.0 != from);
        self.received.retain(|key, _| key.0 != from);
    }
}

impl Worker {
    pub(super) fn notified(&mut self, from: InstanceId, data: &[u8]) {
        let mut links = self.links.values();
        // A notification of an earlier run, which is not expected any more.
        let Some(link) = links.find(|link| link.peer.instance() == from) else { return };
        let from = link.index;
        let mark = decode(data).filter(|mark| self.notification(mark) == data);
        let Some(mark) = mark else {
            return self
                .violation(Oracle::Wrong, &format!("a notification from {from} is garbled"));
        };
        let key = (from, mark.id);
        if !self.inbound.notified.insert(key) {
            self.violation(Oracle::Wrong, &format!("notification {key:?} came twice"));
        }
        if self.inbound.given_up.0.contains(&key) {
            let what = format!("notification {key:?} came after its write was given up");
            self.violation(Oracle::Wrong, &what);
        }
        self.verify(from, &mark, "at its notification");
    }

    /// Handles a write that was reported done at the other end: its bytes are here, and its notification came before.
    pub(super) fn written(&mut self, from: usize, mark: Mark) {
        if !self.verify(from, &mark, "after it was reported done") {
            return;
        }
        self.tally.verified += 1;
        let key = (from, mark.id);
        if mark.notify && !self.inbound.notified.0.contains(&key) {
            let what = format!("write {key:?} was reported done before its notification came");
            self.violation(Oracle::Lost, &what);
        }
        self.free_slot(from, &mark);
    }

    pub(super) fn given_up(&mut self, from: usize, mark: Mark) {
        let key = (from, mark.id);
        self.inbound.given_up.insert(key);
        self.tally.early_notifications += u64::from(self.inbound.notified.0.contains(&key));
        let Some(window) = self.links.get(&from).and_then(|link| link.window_of(mark.epoch)) else {
            return;
        };
        let layout = Shape::of(&mark).there;
        // The window stays registered while it is in the link.
        if let Ok(checksum) = window.slot(mark.slot).checksum(&layout) {
            let since = self.clock.now();
            self.inbound.watched.push(Watched { from, mark, checksum, since });
        }
    }

    pub(super) fn look_at_inbound(&mut self, now: Duration) {
        let over = |watched: &mut Watched| now >= watched.since + WATCH_TIME;
        let over: Vec<Watched> = self.inbound.watched.extract_if(.., over).collect();
        for Watched { from, mark, checksum, .. } in over {
            let Some(window) = self.links.get(&from).and_then(|link| link.window_of(mark.epoch))
            else {
                continue;
            };
            self.tally.watched += 1;
            if window.slot(mark.slot).checksum(&Shape::of(&mark).there) != Ok(checksum) {
                let what = format!("bytes of {mark:?} from {from} landed after its end");
                self.violation(Oracle::Wrong, &what);
            }
            self.free_slot(from, &mark);
        }
    }

    /// Handles the end of a message's send.
    pub(super) fn sent(&mut self, from: usize, mark: Mark, well: bool) {
        let key = (from, mark.id);
        match self.inbound.received.remove(&key) {
            Some(received) => self.compare_ends(key, well, received),
            None => drop(self.inbound.sent.insert(key, well)),
        }
    }

    /// Handles the end of a message's receive, or a receive that could not be posted.
    pub(super) fn received(&mut self, from: usize, id: u64, well: bool) {
        let key = (from, id);
        match self.inbound.sent.remove(&key) {
            Some(sent) => self.compare_ends(key, sent, well),
            None => drop(self.inbound.received.insert(key, well)),
        }
        self.send(from, Letter::Received { id });
    }

    fn compare_ends(&mut self, key: Key, sent: bool, received: bool) {
        if sent && !received {
            let what = format!("send {key:?} was reported done, and its receive failed");
            self.violation(Oracle::Lost, &what);
        }
    }

    /// Compares the bytes of a write. Returns false if its window has ended.
    fn verify(&mut self, from: usize, mark: &Mark, when: &str) -> bool {
        let Some(window) = self.links.get(&from).and_then(|link| link.window_of(mark.epoch)) else {
            return false;
        };
        let shape = Shape::of(mark);
        let expected = self.text.expected(mark.seed, &shape.there, shape.bytes);
        if let Ok(Some(wrong)) = window.slot(mark.slot).compare(&expected) {
            let pieces = shape.there.pieces.len();
            let what = format!(
                "write {mark:?} of {} bytes in {pieces} pieces from {from}, {when}: {wrong}",
                shape.bytes
            );
            self.violation(Oracle::Wrong, &what);
        }
        true
    }

    fn free_slot(&mut self, from: usize, mark: &Mark) {
        let (epoch, slot) = (mark.epoch, mark.slot);
        if let Some(window) = self.links.get(&from).and_then(|link| link.window_of(epoch))
            && window.slot(slot).clear(&Shape::of(mark).there).is_ok()
        {
            self.send(from, Letter::Free { epoch, slot });
        }
    }

    /// Notification of a write: its mark, and some text.
    pub(super) fn notification(&self, mark: &Mark) -> Vec<u8> {
        let length = mark.seed % NOTIFICATION_BYTES_MAX;
        let mut data = vec![0; MARK_BYTES + length as usize];
        data[..8].copy_from_slice(&mark.id.to_le_bytes());
        data[8..16].copy_from_slice(&mark.epoch.to_le_bytes());
        data[16..20].copy_from_slice(&mark.slot.to_le_bytes());
        data[20..28].copy_from_slice(&mark.seed.to_le_bytes());
        data[28] = u8::from(mark.is_empty);
        self.text.copy(!mark.seed, 0, &mut data[MARK_BYTES..]);
        data
    }
}

fn decode(data: &[u8]) -> Option<Mark> {
    let long = |at: usize| Some(u64::from_le_bytes(data.get(at..at + 8)?.try_into().ok()?));
    let slot = u32::from_le_bytes(data.get(16..20)?.try_into().ok()?);
    let (id, epoch, seed) = (long(0)?, long(8)?, long(20)?);
    Some(Mark { id, epoch, slot, seed, notify: true, is_empty: *data.get(28)? == 1 })
}
