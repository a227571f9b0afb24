//! The sending end of a connection.
//!
//! Message k is for receive k. A small one leaves at once: it is sent inline (on the caller lane if there is one) or
//! mailed, and the other end puts it in place. A large one is written into the place that the other end has cleared for
//! receive k, mostly before the message exists. The first of message and clearance waits for the other; no thread
//! waits.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::{Mutex, MutexGuard};
use polyrail::{Engine, OnEnd, Outcome, Peer, PostError, RemoteRegion, TransferError};

use crate::batch::Batches;
use crate::end::{End, slot};
use crate::error::CallError;
use crate::express::{Express, Way};
use crate::regions::Stretch;
use crate::request::{Handle, Owner, SLOTS, try_lock};
use crate::wire::{Body, ExpressCard, MAILED_BYTES, REGION_BYTES, TOLD_BYTES, WINDOW, mail_offset};

pub(crate) struct SendEnd {
    pub(crate) end: End,
    me: Weak<Self>,
    mailbox: OnceLock<RemoteRegion>,
    express: Option<Arc<Express>>,
    batches: Arc<Batches>,
    /// Lane for small messages once the other end accepts them.
    way: OnceLock<Way>,
    /// True if a small message waits for receives to be posted.
    is_held: AtomicBool,
    state: Mutex<State>,
}

struct State {
    /// Number of the next message.
    next: u64,
    /// Number of receives that the other end has posted, as far as this end knows.
    posted: u64,
    slots: [Slot; SLOTS],
    /// Messages that the engine had no room for.
    stalled: Vec<u64>,
    /// Number of receives that the other end posted before it closed.
    closed: Option<u64>,
}

/// State of a slot. At most one of the messages that share it is pending at a time.
struct Slot {
    clearance: Option<Clearance>,
    waiting: Option<Waiting>,
}

/// Place where a message may land.
#[derive(Clone, Copy)]
pub(crate) struct Clearance {
    pub(crate) seq: u64,
    pub(crate) offset: u64,
    pub(crate) capacity: u64,
    pub(crate) region: [u8; REGION_BYTES],
}

/// A message that has not left.
struct Waiting {
    seq: u64,
    from: Stretch,
}

impl SendEnd {
    pub(crate) fn new(
        engine: Engine,
        peer: Peer,
        key: u64,
        express: Option<Arc<Express>>,
        batches: Arc<Batches>,
    ) -> Arc<Self> {
        Arc::new_cyclic(|me: &Weak<Self>| Self {
            end: End::new(engine, peer, key, me.clone()),
            me: me.clone(),
            mailbox: OnceLock::new(),
            express,
            batches,
            way: OnceLock::new(),
            is_held: AtomicBool::new(false),
            state: Mutex::new(State {
                next: 0,
                posted: 0,
                slots: [const { Slot { clearance: None, waiting: None } }; SLOTS],
                stalled: Vec::new(),
                closed: None,
            }),
        })
    }

    /// Handles the welcome of the other end.
    pub(crate) fn welcomed(
        &self,
        key: u64,
        mailbox: &[u8; REGION_BYTES],
        express: Option<ExpressCard<'_>>,
    ) {
        if let (Some(here), Some(there)) = (&self.express, express) {
            let process = &self.end.peer;
            if let Some(express) = here.meet(process, there) {
                self.way.get_or_init(|| Way::to(here, express, process.instance()));
            }
        }
        match self.end.engine.import(mailbox) {
            // A second welcome has no effect.
            Ok(region) => drop(self.mailbox.set(region)),
            Err(error) => drop(self.end.fail(&error.to_string())),
        }
        self.end.set_remote(key);
    }

    /// Takes a message. `None` means "not now": every request is in use, or another thread holds a lock that this
    /// thread must not wait for.
    pub(crate) fn send(
        &self,
        handle: usize,
        address: usize,
        len: usize,
    ) -> Result<Option<&Handle>, CallError> {
        self.end.check()?;
        let Some(from) = self.end.regions.find(handle, address, len)? else { return Ok(None) };
        let Some(mut state) = try_lock(&self.state) else { return Ok(None) };
        let seq = state.next;
        let request = self.end.request(seq);
        if !request.is_free() {
            return Ok(None);
        }
        if let Some(posted) = state.closed.filter(|posted| seq >= *posted) {
            drop(state);
            return Err(self.end.fail(&closed_text(posted)));
        }
        state.next += 1;
        request.begin();
        state.slots[slot(seq)].waiting = Some(Waiting { seq, from });
        let ready = state.release(seq);
        if ready.is_none() && len <= MAILED_BYTES {
            self.is_held.store(true, Ordering::Relaxed);
        }
        drop(state);
        self.post(ready);
        Ok(Some(request))
    }

    /// Handles a clearance: the other end can take a message.
    pub(crate) fn cleared(&self, clearance: Clearance) {
        let seq = clearance.seq;
        let mut state = self.state();
        if seq >= state.next + SLOTS as u64 {
            drop(state);
            self.end.fail("the other side cleared a receive far ahead");
            return;
        }
        // A small message leaves without waiting for this.
        let place = &state.slots[slot(seq)];
        if seq >= state.next || place.waiting.as_ref().is_some_and(|waiting| waiting.seq == seq) {
            state.slots[slot(seq)].clearance = Some(clearance);
        }
        let ready = state.release(seq);
        drop(state);
        self.post(ready);
        self.posted(seq + 1);
    }

    /// Handles the number of receives that the other end has posted.
    pub(crate) fn posted(&self, count: u64) {
        let mut state = self.state();
        let before = state.posted;
        state.posted = before.max(count);
        // Small messages that the window now admits.
        let first = before.saturating_add(WINDOW);
        let end = state.next.min(count.saturating_add(WINDOW));
        let ready: Vec<_> = (first..end).map(|seq| state.release(seq)).collect();
        let window_end = state.posted.saturating_add(WINDOW);
        self.is_held.store(state.next > window_end, Ordering::Relaxed);
        drop(state);
        ready.into_iter().for_each(|ready| self.post(ready));
    }

    /// True if a peer is the other end's engine for small messages. It sends nothing before it knows that the welcome,
    /// which contains its number, has arrived.
    pub(crate) fn is_told_by(&self, peer: &Peer) -> bool {
        self.way.get().is_some_and(|way| way.leads_to(peer))
    }

    /// Handles the close of the other end: it takes no message beyond its posted receives.
    pub(crate) fn closed(&self, posted: u64) {
        let mut state = self.state();
        state.closed = Some(posted);
        let is_lost = |slot: &Slot| slot.waiting.as_ref().is_some_and(|w| w.seq >= posted);
        let lost = state.slots.iter().any(is_lost);
        drop(state);
        if lost {
            self.end.fail(&closed_text(posted));
        }
    }

    pub(crate) fn close(&self) {
        let sent = self.state().next;
        self.end.close(sent);
    }

    /// Passes a message to the engine. Hold no lock: the message may end before this returns.
    fn post(&self, ready: Option<(Waiting, Option<Clearance>)>) {
        let Some((waiting, clearance)) = ready else { return };
        let len = waiting.from.len;
        let by_way = |way| Some((way, Way::take(way, len)?));
        let posted = match (&clearance, self.way.get().and_then(by_way)) {
            (Some(clearance), _) => self.place(&waiting, clearance),
            (None, Some(express)) => self.tell(&waiting, Some(express)),
            (None, None) if len <= TOLD_BYTES as u64 => self.tell(&waiting, None),
            (None, None) => self.mail(&waiting),
        };
        match posted {
            Ok(()) => {}
            Err(error) if error.is_busy() => {
                let seq = waiting.seq;
                let mut state = self.state();
                state.slots[slot(seq)] = Slot { clearance, waiting: Some(waiting) };
                state.stalled.push(seq);
                drop(state);
                self.end.request(seq).stall();
            }
            Err(error) => drop(self.end.fail(&error.to_string())),
        }
    }

    fn tell(&self, waiting: &Waiting, express: Option<(&Way, &Peer)>) -> Result<(), PostError> {
        let Waiting { seq, from } = waiting;
        let mut message = self.end.encode(Body::Told { seq: *seq, bytes: &[] });
        let head = message.len();
        message.resize(head + from.len as usize, 0);
        if let Err(error) = from.region.read_at(from.offset, &mut message[head..]) {
            self.end.fail(&error.to_string());
            return Ok(());
        }
        // Only a connection that is being dropped has no strong count left.
        match (express, self.me.upgrade()) {
            (Some((way, peer)), Some(me)) => way.tell(peer, message, me)?,
            _ => self.end.tell(message)?,
        }
        // The engine has its own copy.
        self.end.request(*seq).finish(from.len);
        Ok(())
    }

    fn mail(&self, waiting: &Waiting) -> Result<(), PostError> {
        // The mailbox is known since the welcome.
        let Some(mailbox) = self.mailbox.get() else { return Ok(()) };
        self.write(waiting, mailbox, mail_offset(waiting.seq))
    }

    fn place(&self, waiting: &Waiting, clearance: &Clearance) -> Result<(), PostError> {
        let (seq, len, capacity) = (waiting.seq, waiting.from.len, clearance.capacity);
        if len > capacity {
            let told = self.end.tell(self.end.encode(Body::TooLong { seq, len }));
            self.end.fail(&format!("a message of {len} bytes for a receive of {capacity}"));
            return told;
        }
        match self.end.engine.import(&clearance.region) {
            Ok(region) => self.write(waiting, &region, clearance.offset),
            Err(error) => {
                self.end.fail(&error.to_string());
                Ok(())
            }
        }
    }

    fn write(&self, waiting: &Waiting, to: &RemoteRegion, offset: u64) -> Result<(), PostError> {
        let Waiting { seq, from } = waiting;
        let (seq, len) = (*seq, from.len);
        let (from, to) = match (from.slice(), to.slice(offset, len)) {
            (Ok(from), Ok(to)) => (from, to),
            (Err(error), _) | (_, Err(error)) => {
                self.end.fail(&error.to_string());
                return Ok(());
            }
        };
        // Only a connection that is being dropped has no strong count left.
        let Some(me) = self.me.upgrade() else { return Ok(()) };
        self.end.write(from, to, self.end.encode(Body::Landed { seq, len }), me, seq)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

impl Owner for SendEnd {
    fn retry(&self) {
        let mut state = self.state();
        let stalled = std::mem::take(&mut state.stalled);
        let ready: Vec<_> = stalled.into_iter().map(|seq| state.release(seq)).collect();
        drop(state);
        ready.into_iter().for_each(|ready| self.post(ready));
    }

    /// Sockets that no progress thread reads bring a sender only the number of posted receives. Flushes the batches
    /// here, too: NCCL may test only sends for a while.
    fn look(&self, request: &Handle) {
        self.batches.flush();
        if self.is_held.load(Ordering::Relaxed)
            && let Some(way) = self.way.get()
        {
            way.express().look(request);
        }
    }
}

impl OnEnd for SendEnd {
    fn ended(&self, token: u64, result: &Result<Outcome, TransferError>) {
        let by_express = Way::is_token(token);
        if let Some(way) = self.way.get().filter(|_| by_express) {
            way.ended(token);
        }
        match result {
            // The message counted as sent when it left.
            Ok(_) if by_express => {}
            Ok(outcome) => self.end.request(token).finish(outcome.bytes),
            Err(error) => drop(self.end.fail(&error.to_string())),
        }
    }
}

impl State {
    /// Returns message `seq` if it waits and may go, with the place it needs if it is large.
    fn release(&mut self, seq: u64) -> Option<(Waiting, Option<Clearance>)> {
        let place = &mut self.slots[slot(seq)];
        let waiting = place.waiting.as_ref().filter(|waiting| waiting.seq == seq)?;
        let clearance = place.clearance.filter(|clearance| clearance.seq == seq);
        if waiting.from.len <= MAILED_BYTES as u64 {
            if seq >= self.posted.saturating_add(WINDOW) {
                return None;
            }
            place.clearance = None;
            return place.waiting.take().map(|waiting| (waiting, None));
        }
        let clearance = clearance?;
        place.clearance = None;
        place.waiting.take().map(|waiting| (waiting, Some(clearance)))
    }
}

fn closed_text(posted: u64) -> String {
    format!("the receiving side closed after {posted} receives")
}
