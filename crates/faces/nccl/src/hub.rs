//! All ends of a process by number, and delivery of messages to them.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard, RwLock};
use polyrail::{Engine, Observer, Peer};

use crate::batch::Batches;
use crate::express::Express;
use crate::log;
use crate::recv::RecvEnd;
use crate::send::{Clearance, SendEnd};
use crate::wire::{Body, Message, parts};

/// Observer that an engine notifies of messages and lost peers.
#[derive(Default)]
pub(crate) struct Hub {
    ends: RwLock<Table>,
    /// Engines for answers. Each refers to the hub, so shutdown removes them.
    engines: Mutex<Vec<Engine>>,
    pub(crate) batches: Arc<Batches>,
}

#[derive(Default)]
struct Table {
    slots: Vec<Slot>,
    free: Vec<usize>,
}

struct Slot {
    /// Distinguishes an end from earlier ones in the same slot.
    generation: u32,
    any: Option<Any>,
}

/// Object with a number.
#[derive(Clone)]
pub(crate) enum Any {
    Listener(Arc<Listener>),
    Send(Arc<SendEnd>),
    Recv(Arc<RecvEnd>),
}

/// Maximum connections of one process that wait to be accepted by a listener. NCCL requests one. Further ones are
/// refused.
pub(crate) const MOST_WAITING: usize = 128;

/// Waits for connections.
pub(crate) struct Listener {
    /// Number of this listener.
    pub(crate) key: u64,
    nonce: u64,
    pub(crate) engine: Engine,
    pub(crate) express: Option<Arc<Express>>,
    arrived: Mutex<VecDeque<Arrival>>,
}

/// A sending end that waits to be accepted.
pub(crate) struct Arrival {
    pub(crate) peer: Peer,
    /// Number of the sending end in its process.
    pub(crate) from: u64,
    /// Number of its engine for small messages, if it has one.
    pub(crate) express: Option<polyrail::InstanceId>,
}

impl Hub {
    /// Creates an end that knows its number.
    pub(crate) fn insert<T>(&self, make: impl FnOnce(u64) -> (Any, T)) -> (u64, T) {
        let mut table = self.ends.write();
        let index = table.free.pop().unwrap_or_else(|| {
            table.slots.push(Slot { generation: 0, any: None });
            table.slots.len() - 1
        });
        let slot = &mut table.slots[index];
        slot.generation += 1;
        let key = u64::from(slot.generation) << 32 | index as u64;
        let (any, made) = make(key);
        slot.any = Some(any);
        (key, made)
    }

    pub(crate) fn find(&self, key: u64) -> Option<Any> {
        let table = self.ends.read();
        let slot = table.slots.get(key as u32 as usize)?;
        if slot.generation == (key >> 32) as u32 { slot.any.clone() } else { None }
    }

    pub(crate) fn remove(&self, key: u64) -> Option<Any> {
        let mut table = self.ends.write();
        let index = key as u32 as usize;
        let slot = table.slots.get_mut(index)?;
        if slot.generation != (key >> 32) as u32 {
            return None;
        }
        let any = slot.any.take()?;
        table.free.push(index);
        // Dropping the object may end an engine, so the caller drops it without the lock.
        Some(any)
    }

    pub(crate) fn is_empty(&self) -> bool {
        let table = self.ends.read();
        table.slots.iter().all(|slot| slot.any.is_none())
    }

    pub(crate) fn attach(&self, engine: &Engine) {
        self.engines().push(engine.clone());
    }

    pub(crate) fn detach(&self, engine: &Engine) {
        self.engines().retain(|other| other.instance() != engine.instance());
    }

    fn engines(&self) -> MutexGuard<'_, Vec<Engine>> {
        self.engines.lock()
    }

    /// Refuses a connection to a closed listener.
    fn refuse(&self, peer: &Peer, from: u64) {
        let knows = |engine: &&Engine| engine.peer(peer.instance()).as_ref() == Some(peer);
        let engine = self.engines().iter().find(knows).cloned();
        if let Some(engine) = engine {
            refuse(&engine, peer, from);
        }
    }

    fn all(&self) -> Vec<Any> {
        let table = self.ends.read();
        table.slots.iter().filter_map(|slot| slot.any.clone()).collect()
    }

    fn deliver(&self, peer: &Peer, message: Message<'_>) {
        match (self.find(message.to), message.body) {
            (Some(Any::Listener(listener)), Body::Hello { nonce, from, express })
                if nonce == listener.nonce =>
            {
                let cards = listener.express.as_ref().zip(express);
                let express = cards.and_then(|(here, there)| here.meet(peer, there));
                listener.push(Arrival { peer: peer.clone(), from, express });
            }
            (Some(Any::Send(send)), body) if send.end.peer == *peer => match body {
                Body::Welcome { from, mailbox, express } => send.welcomed(from, mailbox, express),
                Body::Refused => {
                    send.end.fail("nobody listens there any more");
                }
                Body::Clear { seq, offset, capacity, region } => {
                    send.cleared(Clearance { seq, offset, capacity, region: *region });
                }
                Body::Posted { count } => send.posted(count),
                Body::Closed { count } => send.closed(count),
                _ => {}
            },
            (Some(Any::Recv(recv)), body) if recv.end.peer == *peer => match body {
                Body::Told { seq, bytes } => recv.told(seq, bytes),
                Body::Landed { seq, len } => recv.landed(seq, len),
                Body::TooLong { seq, len } => recv.too_long(seq, len),
                Body::Closed { count } => recv.closed(count),
                _ => {}
            },
            (Some(Any::Recv(recv)), Body::Told { seq, bytes }) if recv.takes_express_from(peer) => {
                recv.told(seq, bytes);
            }
            (Some(Any::Send(send)), Body::Posted { count }) if send.is_told_by(peer) => {
                send.posted(count);
            }
            (None, Body::Hello { from, .. }) => self.refuse(peer, from),
            (_, Body::Many { parts }) => self.deliver_many(peer, parts),
            // For a closed end, or one that the peer does not know.
            _ => {}
        }
    }

    fn deliver_many(&self, peer: &Peer, bytes: &[u8]) {
        for part in parts(bytes) {
            match part {
                // Senders don't nest batches.
                Ok(Message { body: Body::Many { .. }, .. }) => {}
                Ok(message) => self.deliver(peer, message),
                Err(error) => log::warn(&format!("from {}: {error}", peer.name())),
            }
        }
    }
}

impl Observer for Hub {
    fn notified(&self, peer: &Peer, data: Vec<u8>) -> Option<Vec<u8>> {
        match Message::decode(&data) {
            Ok(message) => self.deliver(peer, message),
            Err(error) => log::warn(&format!("from {}: {error}", peer.name())),
        }
        None
    }

    /// A lost caller lane ends no connection: its messages that have not arrived fail on their own, and later ones use
    /// the progress threads.
    fn lost(&self, peer: &Peer, why: &polyrail::LostReason) {
        let why = format!("peer {} is lost: {why}", peer.name());
        for any in self.all() {
            match any {
                Any::Send(send) if send.end.peer == *peer => drop(send.end.fail(&why)),
                Any::Recv(recv) if recv.end.peer == *peer => recv.lost(&why),
                Any::Recv(recv) if recv.takes_express_from(peer) => recv.say_again(),
                _ => {}
            }
        }
    }
}

/// Tells a sending end that it will not be accepted.
fn refuse(engine: &Engine, peer: &Peer, from: u64) {
    let message = Message { to: from, body: Body::Refused }.encode();
    // If this fails, the peer is going away.
    let _ = engine.notify(peer, &message).map(polyrail::Transfer::detach);
}

impl Listener {
    pub(crate) fn new(engine: Engine, express: Option<Arc<Express>>, key: u64, nonce: u64) -> Self {
        Self { key, nonce, engine, express, arrived: Mutex::default() }
    }

    pub(crate) fn pop(&self) -> Option<Arrival> {
        self.queue().pop_front()
    }

    /// Refuses all waiting arrivals.
    pub(crate) fn close(&self) {
        while let Some(arrival) = self.pop() {
            refuse(&self.engine, &arrival.peer, arrival.from);
        }
    }

    /// Puts an arrival back that could not be answered now.
    pub(crate) fn put_back(&self, arrival: Arrival) {
        self.queue().push_front(arrival);
    }

    /// Adds an arrival, unless it is already there.
    fn push(&self, arrival: Arrival) {
        let mut queue = self.queue();
        if queue.len() >= MOST_WAITING {
            queue.retain(|waiting| waiting.peer.lost().is_none());
        }
        let of_peer = || queue.iter().filter(|waiting| waiting.peer == arrival.peer);
        if of_peer().any(|waiting| waiting.from == arrival.from) {
            return;
        }
        if of_peer().count() < MOST_WAITING {
            return queue.push_back(arrival);
        }
        drop(queue);
        refuse(&self.engine, &arrival.peer, arrival.from);
    }

    fn queue(&self) -> MutexGuard<'_, VecDeque<Arrival>> {
        self.arrived.lock()
    }
}
