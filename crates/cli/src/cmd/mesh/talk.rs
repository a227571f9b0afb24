//! Messages between workers: notifications, in JSON with a version, or in a few bytes where they are timed.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use polyrail::{Engine, Notification, Peer};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::counters::{Machine, RailCount};
use super::faults;
use super::plan::Grid;
use crate::fault::Fault;

/// Version of the messages, raised when one changes.
pub(crate) const VERSION: u32 = 1;

/// A message with its version and sender. These fields never change.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Envelope {
    pub(crate) mesh: u32,
    /// Number of the worker that sends it.
    pub(crate) from: usize,
    pub(crate) said: Value,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Said {
    Order(Order),
    Answer(Answer),
    /// Key to the memory of a pair's receiver, for its sender.
    Region {
        pair: u32,
        key: Vec<u8>,
    },
}

/// Orders of the first worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Order {
    SetUp(SetUp),
    /// Fill the memory of these pairs again, and poison the destination.
    Prepare {
        pairs: Vec<u32>,
        seed: u64,
    },
    /// Send for this many milliseconds.
    Go {
        pairs: Vec<u32>,
        ms: u64,
        measured: bool,
    },
    /// Compare what has arrived.
    Verify {
        pairs: Vec<u32>,
    },
    Bye,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SetUp {
    pub(crate) grid: Grid,
    pub(crate) size: u64,
    pub(crate) depth: u64,
    /// Whether to use memory of GPUs, one per endpoint, instead of the host's.
    pub(crate) on_gpus: bool,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Answer {
    Hello(Box<About>),
    Ready,
    Done(Box<Done>),
    Verified { bytes: u64 },
    Failed(Fault),
}

/// Description of a worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct About {
    /// Build of the program: two builds of a version may measure in different ways.
    #[serde(default)]
    pub(crate) build: String,
    pub(crate) host: polyrail_report::Host,
    pub(crate) rails: Vec<String>,
    pub(crate) pid: u32,
}

/// Counts of a worker in a step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Done {
    pub(crate) seconds: f64,
    pub(crate) sent: Vec<Side>,
    pub(crate) got: Vec<Side>,
    pub(crate) rails: Vec<RailCount>,
    pub(crate) cpu_seconds: f64,
    /// Counts of the machine, from the first worker of a node.
    pub(crate) machine: Option<Machine>,
}

/// One side of a pair in a step, from the notification of its beginning to the end of the last transfer.
///
/// Field names are short, since a notification holds 64 KiB, and must hold all pairs of a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Side {
    #[serde(rename = "p")]
    pub(crate) pair: u32,
    #[serde(rename = "s")]
    pub(crate) seconds: f64,
    #[serde(rename = "n")]
    pub(crate) transfers: u64,
    /// Total time of all transfers, on the sending side.
    #[serde(rename = "u")]
    pub(crate) under_way_s: f64,
}

/// Kinds of notifications beside the payload: one byte, followed by the pair and a count.
const BEGIN: u8 = 1;
const PIECE: u8 = 2;
const END: u8 = 3;

/// Notification to a pair's receiver that its sender begins.
pub(crate) fn begin(pair: u32) -> Vec<u8> {
    mark(BEGIN, pair, 0)
}

pub(crate) fn piece(pair: u32) -> Vec<u8> {
    mark(PIECE, pair, 0)
}

pub(crate) fn end(pair: u32, transfers: u64) -> Vec<u8> {
    mark(END, pair, transfers)
}

fn mark(what: u8, pair: u32, count: u64) -> Vec<u8> {
    [&[what][..], &pair.to_le_bytes(), &count.to_le_bytes()].concat()
}

/// Arrivals of a pair since its sender began.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    pub(crate) begun: Instant,
    pub(crate) last: Instant,
    pub(crate) transfers: u64,
    /// Number of transfers, once the sender has announced it.
    pub(crate) announced: Option<u64>,
}

/// Received messages that were not read yet.
#[derive(Default)]
pub(crate) struct Heard {
    pub(crate) orders: VecDeque<Order>,
    pub(crate) answers: VecDeque<(usize, Answer)>,
    pub(crate) regions: BTreeMap<u32, Vec<u8>>,
    pub(crate) arrivals: BTreeMap<u32, Arrival>,
    /// Error for a process that speaks another version.
    pub(crate) stranger: Option<Fault>,
}

/// Sorts the messages of other workers. One thread takes them from the engine, so that they are timed on arrival.
pub(crate) struct Inbox {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    heard: Mutex<Heard>,
    changed: Condvar,
    is_over: AtomicBool,
}

impl Inbox {
    pub(crate) fn start(engine: &Engine, here: String, workers: usize) -> Result<Self, Fault> {
        let shared = Arc::new(Shared {
            heard: Mutex::default(),
            changed: Condvar::new(),
            is_over: AtomicBool::new(false),
        });
        let (theirs, engine) = (Arc::clone(&shared), engine.clone());
        let listen = move || {
            while !theirs.is_over.load(Ordering::Relaxed) {
                if let Some(notification) = engine.wait_notification(LOOK) {
                    theirs.sort(notification, &here, workers);
                }
            }
        };
        let failed = |source| Fault::system("starting a thread for notifications", source);
        let thread = thread::Builder::new().spawn(listen).map_err(failed)?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Returns what `look` finds. Waits for it until `until`.
    pub(crate) fn wait<T>(
        &self,
        until: Instant,
        mut look: impl FnMut(&mut Heard) -> Option<T>,
    ) -> Option<T> {
        let mut heard = self.shared.heard.lock();
        loop {
            if let Some(found) = look(&mut heard) {
                return Some(found);
            }
            if self.shared.changed.wait_until(&mut heard, until).timed_out() {
                return look(&mut heard);
            }
        }
    }

    /// Changes the received messages: adds one of this worker to itself, or clears some.
    pub(crate) fn change(&self, change: impl FnOnce(&mut Heard)) {
        change(&mut self.shared.heard.lock());
        self.shared.changed.notify_all();
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // If the thread panicked, the panic was printed.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn sort(&self, notification: Notification, here: &str, workers: usize) {
        let now = Instant::now();
        let Notification { peer, data, .. } = notification;
        let mut heard = self.heard.lock();
        match data.first() {
            Some(b'{') => match read(&data, &peer, here, workers) {
                Ok((_, Said::Order(order))) => heard.orders.push_back(order),
                Ok((from, Said::Answer(answer))) => heard.answers.push_back((from, answer)),
                Ok((_, Said::Region { pair, key })) => drop(heard.regions.insert(pair, key)),
                Err(error) => heard.stranger = Some(error),
            },
            _ => heard.mark(&data, now),
        }
        drop(heard);
        self.changed.notify_all();
    }
}

impl Heard {
    /// Counts a notification. Notifications have no order, so any of them may be the first.
    fn mark(&mut self, data: &[u8], now: Instant) {
        let number = |at: usize| Some(u32::from_le_bytes(*data.get(at..)?.first_chunk()?));
        let count = || Some(u64::from_le_bytes(*data.get(5..)?.first_chunk()?));
        let (Some(what), Some(pair), Some(count)) = (data.first(), number(1), count()) else {
            return;
        };
        let fresh = Arrival { begun: now, last: now, transfers: 0, announced: None };
        let arrival = self.arrivals.entry(pair).or_insert(fresh);
        match *what {
            PIECE => {
                arrival.transfers += 1;
                arrival.last = now;
            }
            END => arrival.announced = Some(count),
            _ => {}
        }
    }
}

impl Arrival {
    pub(crate) fn is_whole(&self) -> bool {
        self.announced.is_some_and(|announced| self.transfers >= announced)
    }
}

/// Bytes of a message.
pub(crate) fn write(from: usize, said: &Said) -> Vec<u8> {
    let said = serde_json::to_value(said).unwrap_or_default();
    serde_json::to_vec(&Envelope { mesh: VERSION, from, said }).unwrap_or_default()
}

fn read(data: &[u8], peer: &Peer, here: &str, workers: usize) -> Result<(usize, Said), Fault> {
    let stranger = |theirs: &str| faults::version(peer.name(), theirs, here, VERSION);
    let envelope: Envelope = serde_json::from_slice(data).map_err(|_| stranger("unknown"))?;
    if envelope.mesh != VERSION || envelope.from >= workers {
        return Err(stranger(&envelope.mesh.to_string()));
    }
    match serde_json::from_value(envelope.said) {
        Ok(said) => Ok((envelope.from, said)),
        Err(error) => Err(faults::protocol(peer.name(), "a word", &error.to_string())),
    }
}

/// Interval between checks for the end.
const LOOK: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_is_whole_once_all_that_was_announced_is_there_in_whatever_order() {
        let mut heard = Heard::default();
        let now = Instant::now();
        heard.mark(&end(7, 2), now);
        heard.mark(&begin(7), now);
        heard.mark(&piece(7), now);
        assert!(!heard.arrivals[&7].is_whole());
        heard.mark(&piece(7), now + LOOK);
        assert!(heard.arrivals[&7].is_whole());
        assert_eq!(heard.arrivals[&7].last - heard.arrivals[&7].begun, LOOK);
        for cut in 0..13 {
            heard.mark(&piece(9)[..cut], now);
        }
        assert!(!heard.arrivals.contains_key(&9), "what is cut off is nothing");
    }

    #[test]
    fn a_message_is_read_as_it_was_written() {
        let bytes = write(3, &Said::Order(Order::Prepare { pairs: vec![1, 2], seed: 9 }));
        assert_eq!(bytes.first(), Some(&b'{'));
        let envelope: Envelope = serde_json::from_slice(&bytes).unwrap();
        assert_eq!((envelope.mesh, envelope.from), (VERSION, 3));
        let said = serde_json::from_value(envelope.said).unwrap();
        assert!(matches!(said, Said::Order(Order::Prepare { seed: 9, .. })));
    }
}
