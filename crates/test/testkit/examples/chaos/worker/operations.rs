//! Posts operations.

use std::time::{Duration, Instant};

use polyrail::{
    Outcome, Peer, PostError, Region, RegionSlice, RemoteSlice, Request, Transfer, TransferError,
};
use polyrail_testkit::Rng;

use super::ends::post_error;
use super::{Event, Worker};
use crate::bytes::{Layout, SLOT_BYTES, Shape, Slot, memory};
use crate::talk::{Letter, Mark, Oracle};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Write,
    Read,
    Send,
    Receive,
}

/// A posted operation.
pub(super) struct Running {
    pub(super) kind: Kind,
    /// The other worker, and its generation at that time.
    pub(super) with: (usize, u32),
    pub(super) peer: Peer,
    pub(super) is_posted: bool,
    /// `None` if not posted yet, or dropped.
    pub(super) transfer: Option<Transfer>,
    pub(super) mark: Mark,
    pub(super) bytes: u64,
    pub(super) layout: Layout,
    pub(super) memory: Slot,
    pub(super) owner: Owner,
    /// Time of posting, in time awake and by the clock.
    pub(super) posted: (Duration, Instant),
    pub(super) deadline: Duration,
    /// Time at which to cancel it, and whether that has happened.
    pub(super) cancel: Option<Duration>,
    pub(super) is_cancelled: bool,
    /// Time at which to end the registration of its memory, and whether that has happened.
    pub(super) end_region: Option<Duration>,
    pub(super) has_no_region: bool,
    pub(super) is_reported: bool,
}

/// Kind of the memory at this end.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Owner {
    /// One of the slots for any operation.
    Arena,
    /// A region for this operation alone.
    Itself,
}

impl Kind {
    pub(super) fn name(self, mark: &Mark) -> &'static str {
        match self {
            Self::Write if mark.is_empty => "notification",
            Self::Write if mark.notify => "write with notification",
            Self::Write => "write",
            Self::Read => "read",
            Self::Send => "send",
            Self::Receive => "receive",
        }
    }
}

impl Running {
    /// True if this worker has begun it.
    pub(super) fn is_own(&self) -> bool {
        self.kind != Kind::Receive
    }

    fn slices(&self) -> Vec<RegionSlice> {
        let slice =
            |&(at, len): &(u64, u64)| self.memory.region.slice(self.memory.offset + at, len);
        // A layout fits into a slot, and a slot into its region. Ended registrations can be sliced as well.
        self.layout.pieces.iter().map(|piece| slice(piece).expect("a slot holds it")).collect()
    }

    pub(super) fn describe(&self) -> String {
        let (kind, pieces) = (self.kind.name(&self.mark), self.layout.pieces.len());
        format!(
            "{kind} {} of {} bytes in {pieces} pieces with worker {}.{}, deadline {:?}",
            self.mark.id, self.bytes, self.with.0, self.with.1, self.deadline
        )
    }
}

impl Worker {
    /// Begins an operation with a random worker.
    pub(super) fn post_any(&mut self, now: Duration) {
        let present = |link: &&super::Link| link.peer.lost().is_none();
        let present: Vec<usize> =
            self.links.values().filter(present).map(|link| link.index).collect();
        if present.is_empty() {
            return;
        }
        let index = present[self.rng.index(present.len())];
        let kind = match self.rng.below(10) {
            0..5 => Kind::Write,
            5..8 => Kind::Read,
            _ => Kind::Send,
        };
        let seed = self.rng.bits();
        self.next_id += 1;
        let Some(link) = self.links.get_mut(&index) else { return };
        let mut mark =
            Mark { id: self.next_id, epoch: 0, slot: 0, seed, notify: false, is_empty: false };
        let mut target = Vec::new();
        match (kind, &mut link.target) {
            (Kind::Send, _) if link.sending.is_none() => link.sending = Some(mark.id),
            (Kind::Write, Some(to)) => {
                let Some(slot) = to.free.pop() else { return };
                (mark.epoch, mark.slot) = (to.epoch, slot);
                mark.notify = self.rng.per_mille(500);
                mark.is_empty = mark.notify && self.rng.per_mille(150);
                let base = u64::from(slot) * SLOT_BYTES;
                target.extend(Shape::of(&mark).there.pieces.iter().map(|&(at, len)| {
                    to.window.slice(base + at, len).expect("a window has its slots")
                }));
            }
            (Kind::Read, Some(from)) => {
                // The text of a read is that of the region at its places, so its seed is the region's.
                mark.epoch = from.exposed_seed;
                target.extend(Shape::of(&mark).there.pieces.iter().map(|&(at, len)| {
                    from.exposed.slice(at, len).expect("a region of a slot holds a layout")
                }));
            }
            _ => return,
        }
        let (with, peer) = ((index, link.generation), link.peer.clone());
        let Some((memory, owner)) = self.memory() else {
            return self.forget_start(kind, &mark, index);
        };
        let shape = Shape::of(&mark);
        if matches!(kind, Kind::Write | Kind::Send) {
            let bytes = self.text.expected(seed, &shape.here, shape.bytes);
            // The slot is used by this operation only.
            memory.write(&bytes).expect("a registered slot takes bytes");
        }
        let rng = &mut self.rng;
        let mut soon = |per_mille| {
            rng.per_mille(per_mille).then(|| now + Duration::from_millis(rng.between(0, 30)))
        };
        let cancel = soon(80);
        let end_region = soon(300).filter(|_| owner == Owner::Itself);
        let deadline_ms = match self.rng.per_mille(100) {
            true => self.rng.between(20, 1000),
            false => self.rng.between(2000, 6000),
        };
        let running = Running {
            kind,
            with,
            peer,
            is_posted: false,
            transfer: None,
            mark,
            bytes: shape.bytes,
            layout: shape.here,
            memory,
            owner,
            posted: (now, Instant::now()),
            deadline: Duration::from_millis(deadline_ms),
            cancel,
            is_cancelled: false,
            end_region,
            has_no_region: false,
            is_reported: false,
        };
        let id = mark.id;
        self.running.insert(id, running);
        if kind == Kind::Send {
            self.send(index, Letter::Expect { mark, deadline_ms });
            // One half of the sends comes before the receive, the other half after it.
            if seed.is_multiple_of(2) {
                self.post_send(id);
            }
        } else {
            self.post(id, &target);
        }
    }

    /// Posts the receive for an announced message.
    pub(super) fn expect(&mut self, from: usize, mark: Mark, deadline: Duration) {
        let Some(link) = self.links.get(&from) else { return };
        let (with, peer) = ((from, link.generation), link.peer.clone());
        let rng = &mut Rng::new(!mark.seed);
        let bytes = Shape::of(&mark).bytes;
        let room = match rng.below(20) {
            0 => (bytes / 2).max(1),
            1..4 => bytes + rng.below(5000),
            _ => bytes,
        };
        let Some((memory, owner)) = self.memory() else {
            return self.received(from, mark.id, false);
        };
        let now = self.clock.now();
        self.next_id += 1;
        let id = self.next_id;
        let cancel = rng.per_mille(40).then(|| now + Duration::from_millis(rng.below(30)));
        let running = Running {
            kind: Kind::Receive,
            with,
            peer,
            is_posted: false,
            transfer: None,
            mark,
            bytes,
            layout: Layout::room(rng, room),
            memory,
            owner,
            posted: (now, Instant::now()),
            deadline,
            cancel,
            is_cancelled: false,
            end_region: None,
            has_no_region: false,
            is_reported: false,
        };
        self.running.insert(id, running);
        self.post(id, &[]);
        self.send(from, Letter::Expecting { id: mark.id });
    }

    /// Posts a send that waits for its receive, unless it is already posted.
    pub(super) fn post_send(&mut self, id: u64) {
        let waits = |running: &Running| running.kind == Kind::Send && !running.is_posted;
        if self.running.get(&id).is_some_and(waits) {
            self.post(id, &[]);
        }
    }

    fn post(&mut self, id: u64, target: &[RemoteSlice]) {
        let sender = self.sender.clone();
        let tell = move |result: &Result<Outcome, TransferError>| {
            // The loop may have ended.
            let _ = sender.send(Event::Ended { id, result: result.clone() });
        };
        let now = self.clock.now();
        if let Some(running) = self.running.get_mut(&id) {
            running.posted = (now, Instant::now());
        }
        let Some(running) = self.running.get(&id) else { return };
        let (peer, deadline, tag) = (&running.peer, running.deadline, running.mark.id);
        let locals = running.slices();
        let pairs = locals.clone().into_iter().zip(target.iter().copied());
        let posted = match running.kind {
            Kind::Write => {
                let mut request = Request::write(peer).segments(pairs).timeout(deadline);
                if running.mark.notify {
                    request = request.notification(self.notification(&running.mark));
                }
                self.engine.post(request.on_end(tell))
            }
            Kind::Read => {
                let request = Request::read(peer).segments(pairs).timeout(deadline);
                self.engine.post(request.on_end(tell))
            }
            Kind::Send => {
                let request = Request::send(peer, tag).locals(locals).timeout(deadline);
                self.engine.post(request.on_end(tell))
            }
            Kind::Receive => {
                let request = Request::receive(peer, tag).locals(locals).timeout(deadline);
                self.engine.post(request.on_end(tell))
            }
        };
        let kind = running.kind.name(&running.mark).to_owned();
        match posted {
            Ok(transfer) => {
                if let Some(running) = self.running.get_mut(&id) {
                    (running.transfer, running.is_posted) = (Some(transfer), true);
                }
                self.tally.kinds.entry(kind).or_default().posted += 1;
            }
            Err(error) => {
                let count = self.tally.kinds.entry(kind).or_default();
                *count.failed.entry(format!("not posted: {}", post_error(&error))).or_default() +=
                    1;
                if !matches!(error, PostError::Busy { .. } | PostError::PeerGone { .. }) {
                    self.violation(Oracle::Unexplained, &format!("a post was refused: {error}"));
                }
                if let Some(running) = self.running.remove(&id) {
                    self.settle(running, false, false);
                }
            }
        }
    }

    /// Takes memory for this end of an operation.
    fn memory(&mut self) -> Option<(Slot, Owner)> {
        if self.rng.per_mille(150) {
            let region: Option<Region> =
                memory(SLOT_BYTES).and_then(|memory| self.engine.register(memory).ok());
            self.tally.refused_registrations += u64::from(region.is_none());
            let slot = Slot { region: region?, offset: 0 };
            // Fresh memory is zero; gaps are compared with the content of slots.
            slot.clear_all().ok()?;
            return Some((slot, Owner::Itself));
        }
        Some((self.free.pop()?, Owner::Arena))
    }

    pub(super) fn give_back(&mut self, memory: Slot, layout: &Layout, owner: Owner) {
        // Regions of single operations are dropped here.
        if owner == Owner::Arena && memory.clear(layout).is_ok() {
            self.free.push(memory);
        }
    }

    /// Undoes the start of an operation for which there is no memory.
    fn forget_start(&mut self, kind: Kind, mark: &Mark, index: usize) {
        let Some(link) = self.links.get_mut(&index) else { return };
        match kind {
            Kind::Send => link.sending = None,
            _ => {
                if let Some(target) = link.target_of(mark.epoch) {
                    target.free.push(mark.slot);
                }
            }
        }
    }
}
