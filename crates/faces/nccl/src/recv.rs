//! The receiving end of a connection: clears places for large messages, places mailed ones, and keeps small ones that
//! arrive before their receive.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, MutexGuard};
use polyrail::{
    Engine, Mailbox, Memory, OnEnd, OpenMailbox, Outcome, Peer, PostError, Region, RegionSlice,
    Request, TransferError,
};
use polyrail_nccl_abi::MAX_REQUESTS;

use crate::batch::Batch;
use crate::end::{End, slot};
use crate::error::CallError;
use crate::express::Way;
use crate::regions::Stretch;
use crate::request::{Handle, Owner, SLOTS, try_lock};
use crate::wire::{Body, ExpressCard, MAILED_BYTES, REGION_BYTES, WINDOW, mail_place};

pub(crate) struct RecvEnd {
    pub(crate) end: End,
    me: Weak<Self>,
    mailbox: Mutex<Option<OpenMailbox>>,
    /// Lane to the sender's caller-driven engine, from which small messages may come besides the peer.
    way: Option<Way>,
    /// True if the sender has its welcome, so it knows the caller-driven engine.
    is_known: AtomicBool,
    /// Batch that combines its messages with those of others to the same process.
    batch: Arc<Batch>,
    state: Mutex<State>,
}

struct State {
    /// Number of the next receive.
    next: u64,
    /// Number of receives that the other end knows of.
    told: u64,
    slots: [Slot; SLOTS],
    /// Unexpected buffers for reuse: memory for mailed messages that arrive before their receive.
    spare: Vec<Region>,
    /// Scratch memory for copying such messages into their receive's place.
    copied: Vec<u8>,
    /// Number of messages that the other end sent before it closed.
    closed: Option<u64>,
}

/// State of a slot. At most one of the receives that share it is pending at a time.
enum Slot {
    Empty,
    /// A receive that waits for its message.
    Posted {
        seq: u64,
        into: Stretch,
    },
    /// A message that waits for its receive.
    Early {
        seq: u64,
        bytes: Vec<u8>,
    },
    /// A mailed message that came before its receive and lands in an unexpected buffer. A known length means that it
    /// has landed. Otherwise it moves to the receive's place once it has landed, if a receive is posted by then.
    Aside {
        seq: u64,
        aside: Region,
        len: Option<u64>,
        into: Option<Stretch>,
    },
}

/// A message that came before its receive.
enum Here {
    Nothing,
    Bytes(Vec<u8>),
    Aside(Region, u64),
}

/// Token of the welcome.
const WELCOME: u64 = 0;

/// Announcement of a receive to the other end.
enum Told {
    /// The message may land there.
    Clear { seq: u64, into: Stretch },
    /// This many receives are posted. The sender needs this soon, but not at once.
    Posted { count: u64 },
    /// The same count again, if the other end has not received it yet.
    Hurry { count: u64 },
}

// A pending receive and a message ahead of it never share a slot.
const _: () = assert!(MAX_REQUESTS as u64 + WINDOW <= SLOTS as u64);

impl RecvEnd {
    pub(crate) fn new(
        engine: Engine,
        peer: Peer,
        key: u64,
        way: Option<Way>,
        batch: Arc<Batch>,
    ) -> Arc<Self> {
        Arc::new_cyclic(|me: &Weak<Self>| Self {
            end: End::new(engine, peer, key, me.clone()),
            me: me.clone(),
            mailbox: Mutex::default(),
            way,
            is_known: AtomicBool::new(false),
            batch,
            state: Mutex::new(State {
                next: 0,
                told: 0,
                slots: [const { Slot::Empty }; SLOTS],
                spare: Vec::new(),
                copied: Vec::new(),
                closed: None,
            }),
        })
    }

    /// Opens the mailbox and describes it.
    pub(crate) fn open(&self) -> Result<[u8; REGION_BYTES], CallError> {
        let failed = |text: String| CallError::Engine(text);
        let me = self.me.upgrade().ok_or_else(|| failed("closed".to_owned()))?;
        let open = self.end.engine.open(me).map_err(|error| failed(error.to_string()))?;
        let description = open.describe().first_chunk().copied();
        *self.mailbox.lock() = Some(open);
        description.ok_or_else(|| failed("the engine describes in other words".to_owned()))
    }

    /// Sends the welcome to the sender.
    pub(crate) fn welcome(&self, message: Vec<u8>) -> Result<(), PostError> {
        let request = Request::write(&self.end.peer).notification(message);
        let request = match self.me.upgrade() {
            Some(me) => request.tell(me, WELCOME),
            None => request,
        };
        self.end.engine.prepare(request)?.post()?.detach();
        Ok(())
    }

    /// Closes the mailbox. The mailbox keeps this end alive, so every end must close it.
    pub(crate) fn shut(&self) {
        let open = self.mailbox.lock().take();
        drop(open);
    }

    /// Takes a receive. `None` means "not now": every request is in use, or another thread holds a lock that this
    /// thread must not wait for.
    pub(crate) fn receive(
        &self,
        handle: usize,
        address: usize,
        len: usize,
    ) -> Result<Option<&Handle>, CallError> {
        self.end.check()?;
        let Some(into) = self.end.regions.find(handle, address, len)? else { return Ok(None) };
        let Some(mut state) = try_lock(&self.state) else { return Ok(None) };
        let seq = state.next;
        // The oldest possible request must be over: NCCL tests in order.
        let request = self.end.request(seq);
        let oldest = seq.checked_sub(MAX_REQUESTS as u64).map(|oldest| self.end.request(oldest));
        if !request.is_free() || oldest.is_some_and(|oldest| !oldest.is_free()) {
            return Ok(None);
        }
        if let Some(sent) = state.closed.filter(|sent| seq >= *sent) {
            drop(state);
            return Err(self.end.fail(&closed_text(sent)));
        }
        state.next += 1;
        request.begin();
        let place = &mut state.slots[slot(seq)];
        let (told, here) = match std::mem::replace(place, Slot::Empty) {
            Slot::Early { seq: early, bytes } if early == seq => {
                (state.tell_soon(seq, &into, true), Here::Bytes(bytes))
            }
            Slot::Aside { seq: early, aside, len: Some(len), .. } if early == seq => {
                (state.tell_soon(seq, &into, true), Here::Aside(aside, len))
            }
            Slot::Aside { seq: early, aside, len: None, .. } if early == seq => {
                *place = Slot::Aside { seq, aside, len: None, into: Some(into.clone()) };
                (state.tell_soon(seq, &into, true), Here::Nothing)
            }
            _ => {
                *place = Slot::Posted { seq, into: into.clone() };
                (state.tell_soon(seq, &into, false), Here::Nothing)
            }
        };
        drop(state);
        match here {
            Here::Nothing => {}
            Here::Bytes(bytes) => self.take(seq, &into, &bytes),
            Here::Aside(aside, len) => self.take_aside(seq, &into, aside, len),
        }
        self.tell(told);
        Ok(Some(request))
    }

    /// Card that the sender needs to use the caller lane, if it should.
    pub(crate) fn express_card(&self) -> Option<ExpressCard<'_>> {
        self.way.as_ref().map(|way| way.express().card())
    }

    /// True if a peer is the sender's engine for small messages.
    pub(crate) fn takes_express_from(&self, peer: &Peer) -> bool {
        self.way.as_ref().is_some_and(|way| way.leads_to(peer))
    }

    #[cfg(test)]
    pub(crate) fn has_left_something(&self) -> bool {
        self.way.as_ref().is_some_and(Way::has_waiting)
    }

    /// Handles the arrival of a small message.
    pub(crate) fn told(&self, seq: u64, bytes: &[u8]) {
        let mut state = self.state();
        let next = state.next;
        let place = &mut state.slots[slot(seq)];
        match std::mem::replace(place, Slot::Empty) {
            Slot::Posted { seq: posted, into } if posted == seq => {
                drop(state);
                self.take(seq, &into, bytes);
            }
            Slot::Empty if seq >= next && seq < next + WINDOW => {
                *place = Slot::Early { seq, bytes: bytes.to_vec() };
            }
            old => {
                *place = old;
                drop(state);
                self.end.fail(&format!("message {seq} came, which nobody can send"));
            }
        }
    }

    /// Handles a message that is in place.
    pub(crate) fn landed(&self, seq: u64, len: u64) {
        let mut state = self.state();
        let place = &mut state.slots[slot(seq)];
        match std::mem::replace(place, Slot::Empty) {
            Slot::Posted { seq: posted, into } if posted == seq && len <= into.len => {
                drop(state);
                self.end.request(seq).finish(len);
            }
            Slot::Aside { seq: early, aside, len: None, into } if early == seq => match into {
                Some(into) => {
                    drop(state);
                    self.take_aside(seq, &into, aside, len);
                }
                None => *place = Slot::Aside { seq, aside, len: Some(len), into: None },
            },
            old => {
                *place = old;
                drop(state);
                self.end.fail(&format!("message {seq} landed, which nobody can send"));
            }
        }
    }

    /// Fails the connection because the other end has a message that is longer than its place.
    pub(crate) fn too_long(&self, seq: u64, len: u64) {
        self.end.fail(&format!("message {seq} has {len} bytes, more than its receive takes"));
    }

    /// Handles the close of the other end: messages it has not sent will never come.
    pub(crate) fn closed(&self, sent: u64) {
        let mut state = self.state();
        state.closed = Some(sent);
        let is_lost = |slot: &Slot| match slot {
            Slot::Posted { seq, .. } | Slot::Aside { seq, into: Some(_), .. } => *seq >= sent,
            Slot::Empty | Slot::Early { .. } | Slot::Aside { into: None, .. } => false,
        };
        let lost = state.slots.iter().any(is_lost);
        drop(state);
        if lost {
            self.end.fail(&closed_text(sent));
        }
    }

    /// Handles the loss of the peer. If it closed its end before and everything it sent has arrived, NCCL can still
    /// take it.
    pub(crate) fn lost(&self, why: &str) {
        let state = self.state();
        let is_here = |seq: u64| match &state.slots[slot(seq)] {
            Slot::Early { seq: early, .. } | Slot::Aside { seq: early, len: Some(_), .. } => {
                *early == seq
            }
            Slot::Empty | Slot::Posted { .. } | Slot::Aside { len: None, .. } => false,
        };
        let awaits =
            |slot: &Slot| matches!(slot, Slot::Posted { .. } | Slot::Aside { len: None, .. });
        let complete = state.closed.is_some_and(|sent| (state.next..sent).all(is_here))
            && !state.slots.iter().any(awaits);
        drop(state);
        if !complete {
            self.end.fail(why);
        }
    }

    pub(crate) fn close(&self) {
        let mut state = self.state();
        let taken = state.next;
        // Later messages find neither a receive nor a mailbox.
        let slots = std::mem::replace(&mut state.slots, [const { Slot::Empty }; SLOTS]);
        let spare = std::mem::take(&mut state.spare);
        drop(state);
        self.shut();
        // Dropping them waits for system calls that are writing to them.
        drop((slots, spare));
        self.end.close(taken);
    }

    /// Announces a receive to the other end. No lock is held: the answer may arrive before this returns.
    fn tell(&self, what: Option<Told>) {
        let told = match what {
            None => return,
            Some(Told::Clear { seq, into }) => {
                let region = into.region.describe();
                let Some(region) = region.first_chunk::<REGION_BYTES>() else {
                    self.end.fail("the engine describes regions in other words");
                    return;
                };
                let (offset, capacity) = (into.offset, into.len);
                self.batch.push(&self.end.message(Body::Clear { seq, offset, capacity, region }))
            }
            Some(Told::Posted { count }) => {
                let message = self.end.message(Body::Posted { count });
                // Travels with the next message and needs no extra system call.
                let way = self.way.as_ref().filter(|_| self.is_known.load(Ordering::Relaxed));
                let is_left = way.is_some_and(|way| way.leave(&message));
                if is_left { Ok(()) } else { self.batch.push(&message) }
            }
            Some(Told::Hurry { count }) => match &self.way {
                Some(way) if way.has_waiting() && !self.flush(way) => {
                    self.batch.push(&self.end.message(Body::Posted { count }))
                }
                _ => Ok(()),
            },
        };
        self.conclude(told);
    }

    /// Sends queued announcements that no message has carried. Returns whether it did.
    fn flush(&self, way: &Way) -> bool {
        let Some(me) = self.me.upgrade() else { return false };
        way.take(0).is_some_and(|peer| way.flush(peer, me).is_ok())
    }

    /// Repeats the announcements after the caller lane was lost, and the last messages with it.
    pub(crate) fn say_again(&self) {
        let count = self.state().told;
        if let Some(way) = &self.way {
            way.forget();
        }
        if count > 0 {
            self.conclude(self.batch.push(&self.end.message(Body::Posted { count })));
        }
    }

    fn conclude(&self, told: Result<(), PostError>) {
        // NCCL can still take messages that the peer sent before it left; `lost` decides whether these are all.
        if let Err(error) = told {
            self.end.fail(&error.to_string());
        }
    }

    /// Copies a small message to its receive's place.
    fn take(&self, seq: u64, into: &Stretch, bytes: &[u8]) {
        if bytes.len() as u64 > into.len {
            return self.too_long(seq, bytes.len() as u64);
        }
        match into.region.write_at(into.offset, bytes) {
            Ok(()) => self.end.request(seq).finish(bytes.len() as u64),
            Err(error) => drop(self.end.fail(&error.to_string())),
        }
    }

    /// Copies a message from its unexpected buffer to its receive's place.
    fn take_aside(&self, seq: u64, into: &Stretch, aside: Region, len: u64) {
        let mut bytes = std::mem::take(&mut self.state().copied);
        bytes.resize(len.min(MAILED_BYTES as u64) as usize, 0);
        match aside.read_at(0, &mut bytes) {
            Ok(()) => self.take(seq, into, &bytes),
            Err(error) => drop(self.end.fail(&error.to_string())),
        }
        let mut state = self.state();
        state.spare.push(aside);
        state.copied = bytes;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

impl Mailbox for RecvEnd {
    fn place(&self, offset: u64, len: u64) -> Option<RegionSlice> {
        let (seq, offset) = mail_place(offset);
        if offset + len > MAILED_BYTES as u64 {
            return None;
        }
        let mut state = self.state();
        let State { next, slots, spare, .. } = &mut *state;
        let place = &mut slots[slot(seq)];
        match place {
            Slot::Posted { seq: posted, into } if *posted == seq => {
                if offset + len <= into.len {
                    return into.region.slice(into.offset + offset, len).ok();
                }
                drop(state);
                self.too_long(seq, offset + len);
                None
            }
            Slot::Aside { seq: early, aside, len: None, .. } if *early == seq => {
                aside.slice(offset, len).ok()
            }
            Slot::Empty if seq >= *next && seq < *next + WINDOW => {
                let aside = match spare.pop() {
                    Some(aside) => aside,
                    None => Region::private(Memory::anonymous(MAILED_BYTES as u64).ok()?),
                };
                let slice = aside.slice(offset, len).ok();
                *place = Slot::Aside { seq, aside, len: None, into: None };
                slice
            }
            _ => None,
        }
    }
}

impl Owner for RecvEnd {
    fn look(&self, request: &Handle) {
        self.conclude(self.batch.flush());
        if let Some(way) = &self.way {
            way.express().look(request);
        }
    }
}

impl OnEnd for RecvEnd {
    /// If the lane is lost, `say_again` repeats the announcements, whichever message carried them.
    fn ended(&self, token: u64, result: &Result<Outcome, TransferError>) {
        match &self.way {
            _ if token == WELCOME => self.is_known.store(result.is_ok(), Ordering::Relaxed),
            Some(way) => way.ended(token),
            None => {}
        }
    }
}

impl State {
    /// Announcement due for receive `seq`, if any. `is_here` is true if its message has already arrived.
    fn tell_soon(&mut self, seq: u64, into: &Stretch, is_here: bool) -> Option<Told> {
        // A message that can be mailed needs a window instead of a place.
        let clears = into.len > MAILED_BYTES as u64 && !is_here;
        let since = seq + 1 - self.told;
        if !clears && since < WINDOW / 2 {
            return (since >= WINDOW / 4).then_some(Told::Hurry { count: self.told });
        }
        self.told = seq + 1;
        if clears {
            Some(Told::Clear { seq, into: into.clone() })
        } else {
            Some(Told::Posted { count: seq + 1 })
        }
    }
}

fn closed_text(sent: u64) -> String {
    format!("the sending side closed after {sent} messages")
}
