//! State about another worker: its engine, the window there that this worker may write to, and the window here that it
//! has given.
//!
//! After an error that leaves open whether bytes still arrive, the window is not used again: its owner ends the
//! registration, which keeps late bytes out, and gives another one.

use std::time::Duration;

use polyrail::{Peer, PeerError, Region, RemoteRegion};

use super::Worker;
use crate::bytes::{SLOT_BYTES, Slot, memory};
use crate::talk::{Letter, Oracle, Word};

/// Slots of a window: operations that a worker has in flight to one peer's memory.
const WINDOW_SLOTS: u32 = 2;

pub(super) struct Link {
    pub(super) index: usize,
    pub(super) generation: u32,
    metadata: Vec<u8>,
    pub(super) peer: Peer,
    pub(super) target: Option<Target>,
    pub(super) window: Option<Window>,
    /// The other worker waits for a window for which there was no memory.
    is_owed: bool,
    /// A message in flight to it.
    pub(super) sending: Option<u64>,
}

/// Memory that this worker writes to and reads from.
pub(super) struct Target {
    pub(super) epoch: u64,
    pub(super) window: RemoteRegion,
    pub(super) exposed: RemoteRegion,
    pub(super) exposed_seed: u64,
    pub(super) free: Vec<u32>,
}

/// Memory that the other worker writes to.
pub(super) struct Window {
    pub(super) epoch: u64,
    pub(super) region: Region,
}

impl Link {
    /// True in the initial state: no operations in flight, and all flows up.
    pub(super) fn is_quiet(&self) -> bool {
        let idle = |target: &Target| target.free.len() == WINDOW_SLOTS as usize;
        self.target.as_ref().is_some_and(idle)
            && self.window.is_some()
            && self.sending.is_none()
            && self.peer.lost().is_none()
            && self.peer.flows().are_all_up()
    }

    pub(super) fn window_of(&self, epoch: u64) -> Option<&Window> {
        self.window.as_ref().filter(|window| window.epoch == epoch)
    }

    pub(super) fn target_of(&mut self, epoch: u64) -> Option<&mut Target> {
        self.target.as_mut().filter(|target| target.epoch == epoch)
    }
}

impl Window {
    pub(super) fn slot(&self, slot: u32) -> Slot {
        Slot { region: self.region.clone(), offset: u64::from(slot) * SLOT_BYTES }
    }
}

impl Worker {
    /// Adds a worker that runs now.
    pub(super) fn meet(&mut self, index: usize, generation: u32, metadata: Vec<u8>) {
        if let Some(old) = self.links.remove(&index) {
            self.inbound.forget(index);
            // A peer that the user removes is forgotten at once, others when their silence is noticed.
            if generation.is_multiple_of(2) {
                self.engine.remove_peer(&old.peer);
            }
        }
        match self.engine.add_peer(&metadata) {
            Ok(peer) => {
                let link = Link {
                    index,
                    generation,
                    metadata,
                    peer,
                    target: None,
                    window: None,
                    is_owed: false,
                    sending: None,
                };
                self.links.insert(index, link);
                self.send(index, Letter::WantWindow);
            }
            Err(error) => self.cannot_add(index, &error),
        }
    }

    /// Adds lost peers again, and gives windows that were owed.
    pub(super) fn tend_links(&mut self) {
        let lost = |link: &&Link| link.peer.lost().is_some();
        let lost: Vec<usize> = self.links.values().filter(lost).map(|link| link.index).collect();
        for index in lost {
            let Some(link) = self.links.get_mut(&index) else { continue };
            match self.engine.add_peer(&link.metadata) {
                Ok(peer) => {
                    link.peer = peer;
                    self.tally.rejoins += 1;
                    self.renew(index);
                }
                Err(error) => self.cannot_add(index, &error),
            }
        }
        let owed: Vec<usize> =
            self.links.values().filter(|link| link.is_owed).map(|link| link.index).collect();
        for index in owed {
            self.give_window(index);
        }
    }

    /// Requests another window, because bytes may still arrive in the present one.
    pub(super) fn renew(&mut self, index: usize) {
        if let Some(link) = self.links.get_mut(&index)
            && link.target.take().is_some()
        {
            self.send(index, Letter::WantWindow);
        }
    }

    /// Gives another worker a new window: the one before ends.
    pub(super) fn give_window(&mut self, index: usize) {
        let Some(link) = self.links.get_mut(&index) else { return };
        if let Some(old) = link.window.take() {
            old.region.end();
        }
        self.inbound.close_window(index);
        let bytes = u64::from(WINDOW_SLOTS) * SLOT_BYTES;
        let register = |memory| self.engine.register(memory).ok();
        let Some(region) = memory(bytes).and_then(register) else {
            link.is_owed = true;
            self.tally.refused_registrations += 1;
            return;
        };
        for slot in 0..u64::from(WINDOW_SLOTS) {
            let slot = Slot { region: region.clone(), offset: slot * SLOT_BYTES };
            // No other code has the region yet, so it can't have ended.
            slot.clear_all().expect("a fresh region takes bytes");
        }
        link.is_owed = false;
        self.next_id += 1;
        let epoch = self.next_id;
        let letter = Letter::Window {
            epoch,
            window: region.describe(),
            exposed: self.exposed.describe(),
            exposed_seed: self.exposed_seed,
        };
        link.window = Some(Window { epoch, region });
        self.send(index, letter);
    }

    /// Ends all windows while others write to them.
    pub(super) fn withdraw_all(&mut self) {
        let all: Vec<usize> = self.links.keys().copied().collect();
        all.into_iter().for_each(|index| self.give_window(index));
    }

    pub(super) fn read_letter(&mut self, from: usize, letter: Letter) {
        match letter {
            Letter::WantWindow => self.give_window(from),
            Letter::Window { epoch, window, exposed, exposed_seed } => {
                let regions = self.engine.import(&window).and_then(|window| {
                    self.engine.import(&exposed).map(|exposed| (window, exposed))
                });
                match (regions, self.links.get_mut(&from)) {
                    (Ok((window, exposed)), Some(link)) => {
                        let free = (0..WINDOW_SLOTS).collect();
                        link.target = Some(Target { epoch, window, exposed, exposed_seed, free });
                    }
                    (Err(error), _) => self.violation(Oracle::Unexplained, &error.to_string()),
                    (_, None) => {}
                }
            }
            Letter::Free { epoch, slot } => {
                let link = self.links.get_mut(&from);
                if let Some(target) = link.and_then(|link| link.target_of(epoch)) {
                    target.free.push(slot);
                }
            }
            Letter::Received { id } => {
                if let Some(link) = self.links.get_mut(&from)
                    && link.sending == Some(id)
                {
                    link.sending = None;
                }
            }
            Letter::Written(mark) => self.written(from, mark),
            Letter::GivenUp(mark) => self.given_up(from, mark),
            Letter::Expect { mark, deadline_ms } => {
                self.expect(from, mark, Duration::from_millis(deadline_ms));
            }
            Letter::Expecting { id } => self.post_send(id),
            Letter::Sent { mark, well } => self.sent(from, mark, well),
        }
    }

    pub(super) fn send(&self, to: usize, letter: Letter) {
        if let Some(link) = self.links.get(&to) {
            self.say(&Word::Letter { to, generation: link.generation, letter });
        }
    }

    fn cannot_add(&mut self, index: usize, error: &PeerError) {
        self.violation(Oracle::Unexplained, &format!("can't add worker {index}: {error}"));
    }
}
