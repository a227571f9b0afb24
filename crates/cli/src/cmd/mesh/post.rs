//! Keeps as many transfers under way as the depth, for each pair of an endpoint, until the time is over.
//!
//! Each endpoint has one thread. The engine reports ended transfers to it, so that a slow pair holds up no other pair.

use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use polyrail::{
    Engine, OnEnd, Outcome, Peer, PreparedTransfer, RemoteRegion, Request, TransferError,
};

use super::faults;
use super::talk::{Side, begin, end, piece};
use crate::cmd::bench::{Buffers, Layout, Store};
use crate::fault::Fault;

/// The sending side of a pair.
pub(crate) struct Source {
    pub(crate) pair: u32,
    pub(crate) name: String,
    pub(crate) peer: Peer,
    pub(crate) buffers: Buffers,
    /// A transfer for each slot, with a notification to the receiver. The silent ones have none.
    measured: Vec<PreparedTransfer>,
    silent: Vec<PreparedTransfer>,
    told: Arc<Told>,
}

type End = (u64, Result<Outcome, TransferError>);

/// Passes ended transfers of a pair on to the thread that sends now.
#[derive(Default)]
struct Told {
    to: Mutex<Option<Sender<End>>>,
}

impl OnEnd for Told {
    fn ended(&self, token: u64, result: &Result<Outcome, TransferError>) {
        // The receiving end is gone only if the run has failed.
        if let Some(to) = &*self.to.lock() {
            let _ = to.send((token, result.clone()));
        }
    }
}

impl Source {
    pub(crate) fn new(
        engine: &Engine,
        (pair, name): (u32, String),
        peer: Peer,
        buffers: Buffers,
        remote: &RemoteRegion,
    ) -> Result<Self, Fault> {
        let told = Arc::new(Told::default());
        let prepare = |slot: u64, with_word: bool| {
            let request = request(&peer, &buffers, remote, slot)?;
            let request = if with_word { request.notification(piece(pair)) } else { request };
            // Transfers of a pair differ only in their slot.
            let request = request.tell(Arc::clone(&told) as Arc<dyn OnEnd>, token(pair, slot));
            engine.prepare(request).map_err(|source| faults::post(&name, &source))
        };
        let slots = 0..buffers.layout.slots;
        let measured = slots.clone().map(|slot| prepare(slot, true)).collect::<Result<_, _>>()?;
        let silent = slots.map(|slot| prepare(slot, false)).collect::<Result<_, _>>()?;
        Ok(Self { pair, name, peer, buffers, measured, silent, told })
    }
}

fn request(
    peer: &Peer,
    buffers: &Buffers,
    remote: &RemoteRegion,
    slot: u64,
) -> Result<Request<polyrail::operation::Write>, Fault> {
    let mut request = Request::write(peer);
    let places = |store| buffers.layout.pieces(slot).map(move |place| (store, place));
    for (store, place) in buffers.source.iter().flat_map(places) {
        let local = Store::region(store).slice(place.source, place.len)?;
        request = request.segment(local, remote.slice(place.dest, place.len)?);
    }
    Ok(request)
}

/// Layout of transfers of this size in the memory of a pair.
pub(crate) fn layout(size: u64, depth: u64) -> Layout {
    Layout { size, segments: 1, slots: depth }
}

fn token(pair: u32, slot: u64) -> u64 {
    u64::from(pair) << 32 | slot
}

/// A pair with its transfers under way.
struct Running<'s> {
    source: &'s Source,
    begun: Instant,
    outstanding: u64,
    side: Side,
}

/// Sends to the receivers of these pairs until `time` is over and everything has arrived.
///
/// # Errors
/// The first failure of a pair. Nothing more is posted after it.
pub(crate) fn send(
    engine: &Engine,
    sources: &[&Source],
    time: Duration,
    measured: bool,
    is_over: &dyn Fn() -> bool,
) -> Result<Vec<Side>, Fault> {
    let (to, ends) = channel();
    let mut running = Vec::new();
    for source in sources {
        // Drops late reports of an earlier step.
        *source.told.to.lock() = Some(to.clone());
        if measured {
            say(engine, source, &begin(source.pair))?;
        }
        let side = Side { pair: source.pair, ..Side::default() };
        running.push(Running { source, begun: Instant::now(), outstanding: 0, side });
    }
    drop(to);
    let deadline = Instant::now() + time;
    for pair in &mut running {
        for slot in 0..pair.source.buffers.layout.slots {
            pair.post(slot, measured)?;
        }
    }
    while running.iter().any(|pair| pair.outstanding > 0) {
        let (token, result) = match ends.recv_timeout(LOOK) {
            Ok(end) => end,
            Err(_) if is_over() => return Err(Fault::interrupted()),
            Err(_) => continue,
        };
        let number = (token >> 32) as u32;
        let Some(pair) = running.iter_mut().find(|pair| pair.side.pair == number) else { continue };
        pair.outstanding -= 1;
        let outcome = result.map_err(|source| failed(&pair.source.name, &source))?;
        pair.side.transfers += 1;
        pair.side.under_way_s += outcome.duration.as_secs_f64();
        if Instant::now() < deadline {
            pair.post(token & u64::from(u32::MAX), measured)?;
        } else if pair.outstanding == 0 {
            pair.side.seconds = pair.begun.elapsed().as_secs_f64();
            if measured {
                say(engine, pair.source, &end(number, pair.side.transfers))?;
            }
        }
    }
    Ok(running.into_iter().map(|pair| pair.side).collect())
}

impl Running<'_> {
    fn post(&mut self, slot: u64, measured: bool) -> Result<(), Fault> {
        let transfers = if measured { &self.source.measured } else { &self.source.silent };
        let posted = transfers[slot as usize].post();
        posted.map_err(|source| faults::post(&self.source.name, &source))?.detach();
        self.outstanding += 1;
        Ok(())
    }
}

fn failed(pair: &str, source: &TransferError) -> Fault {
    let text = format!("a transfer of {pair} failed: {source}");
    Fault::explained(text, source)
}

/// Sends a notification to the receiver, whose counts show that it arrived.
fn say(engine: &Engine, source: &Source, bytes: &[u8]) -> Result<(), Fault> {
    let posted = engine.notify(&source.peer, bytes);
    posted.map_err(|error| faults::post(&source.name, &error))?.detach();
    Ok(())
}

/// Interval between checks for the end of the run.
const LOOK: Duration = Duration::from_millis(100);
