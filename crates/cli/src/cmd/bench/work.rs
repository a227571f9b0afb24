//! One side's part in measuring one size: its memory and what it posts.

use std::panic::resume_unwind;
use std::thread;

use polyrail::{Engine, Peer, PreparedTransfer, Region, RemoteRegion, Request};
use polyrail_profiler::drive::{DriveError, Driver, Ran, Running};

use super::buffers::{Buffers, Needs};
use super::control::{Regions, SetUp, from_hex, to_hex};
use super::error::BenchError;
use super::layout::Piece;
use super::memory::{Bank, Store};
use super::plan::Op;

/// Which end of the conversation this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// Asks and measures.
    Client,
    /// Answers.
    Server,
}

/// Everything that a sample of a stream of transfers needs at this end.
pub(super) struct Work<'a> {
    drivers: Vec<Driver<'a>>,
}

/// All drivers of an end, started.
pub(super) struct Started<'w> {
    running: Vec<Running<'w>>,
}

impl SetUp {
    /// Whether `end` sends data.
    pub(super) fn sends(&self, end: End) -> bool {
        let from_client = self.op != Op::Read;
        self.both_ways() || from_client == (end == End::Client)
    }

    /// Whether `end` receives data.
    pub(super) fn receives(&self, end: End) -> bool {
        self.both_ways() || !self.sends(end)
    }

    /// The memory that `end` needs.
    pub(super) fn buffers(
        &self,
        engine: &Engine,
        bank: &Bank,
        end: End,
    ) -> Result<Buffers, BenchError> {
        let seed_of = |sender: End| self.seed + u64::from(sender == End::Server);
        let other = match end {
            End::Client => End::Server,
            End::Server => End::Client,
        };
        let needs = Needs {
            source_seed: self.sends(end).then(|| seed_of(end)),
            dest_seed: self.receives(end).then(|| seed_of(other)),
        };
        Buffers::new(engine, bank, self.layout, needs)
    }

    fn both_ways(&self) -> bool {
        self.bidir || self.latency
    }
}

impl Regions {
    pub(super) fn of(buffers: &Buffers) -> Self {
        let describe =
            |store: &Option<Store>| store.as_ref().map(|store| to_hex(&store.region().describe()));
        Self { source: describe(&buffers.source), dest: describe(&buffers.dest) }
    }
}

impl<'a> Work<'a> {
    /// Prepares the transfers of every slot. `theirs` are the regions of the other end.
    pub(super) fn new(
        engine: &'a Engine,
        peer: &Peer,
        buffers: &Buffers,
        set_up: &SetUp,
        theirs: &Regions,
        end: End,
    ) -> Result<Self, BenchError> {
        let maker = Maker { engine, peer, buffers, theirs };
        let posts = end == End::Client || set_up.bidir;
        let mut jobs = Vec::new();
        match set_up.op {
            Op::Write if posts => jobs.push(Job::Write),
            Op::Read if posts => jobs.push(Job::Read),
            Op::Write | Op::Read => {}
            Op::Send => {
                // Receives first, so that they are posted before the first message comes.
                jobs.extend(set_up.receives(end).then_some(Job::Receive));
                jobs.extend(set_up.sends(end).then_some(Job::Send));
            }
        }
        let driver = |job: &Job| {
            let prepared = (0..buffers.layout.slots).map(|slot| maker.prepare(*job, slot, None));
            let prepared: Result<Vec<PreparedTransfer>, BenchError> = prepared.collect();
            Ok(Driver::new(engine, prepared?, set_up.depth))
        };
        let drivers: Result<_, BenchError> = jobs.iter().map(driver).collect();
        Ok(Self { drivers: drivers? })
    }

    /// One of the requests that send, if this end posts any.
    pub(super) fn example(&self) -> Option<&PreparedTransfer> {
        self.drivers.last().and_then(Driver::example)
    }

    /// Posts as many transfers as may be outstanding.
    pub(super) fn start(&self, transfers: u64) -> Result<Started<'_>, BenchError> {
        let running: Result<_, DriveError> =
            self.drivers.iter().map(|driver| driver.start(transfers)).collect();
        Ok(Started { running: running.map_err(|error: DriveError| BenchError::from(error))? })
    }
}

impl Started<'_> {
    /// Runs all drivers to their end, each on a thread of its own where there are two. `None` at an
    /// end that has nothing to post.
    pub(super) fn finish(
        mut self,
        stop: impl Fn() -> bool + Sync,
    ) -> Result<Option<Ran>, BenchError> {
        let stop = &stop;
        let Some(last) = self.running.pop() else { return Ok(None) };
        thread::scope(|scope| {
            let finish = |running: Running<'_>| running.finish(stop).map_err(BenchError::from);
            let others = self.running.into_iter().map(|other| scope.spawn(move || finish(other)));
            let others: Vec<_> = others.collect();
            // The last one sends, and its times are the ones to show.
            let mut ran = finish(last);
            for other in others {
                // A panic there is a panic here.
                let other = other.join().unwrap_or_else(|panic| resume_unwind(panic));
                ran = match (ran, other) {
                    (Ok(ran), Ok(other)) => Ok(ran.together_with(&other)),
                    (Err(error), _) | (_, Err(error)) => Err(error),
                };
            }
            ran.map(Some)
        })
    }
}

/// Something to post for a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Job {
    Write,
    Read,
    Send,
    Receive,
}

/// Prepares requests.
pub(super) struct Maker<'a, 'e> {
    pub(super) engine: &'e Engine,
    pub(super) peer: &'a Peer,
    pub(super) buffers: &'a Buffers,
    pub(super) theirs: &'a Regions,
}

impl Maker<'_, '_> {
    pub(super) fn prepare(
        &self,
        job: Job,
        slot: u64,
        notification: Option<&[u8]>,
    ) -> Result<PreparedTransfer, BenchError> {
        let pieces = self.buffers.layout.pieces(slot);
        let peer = self.peer;
        Ok(match job {
            Job::Write => {
                let (local, remote) = (self.source()?, self.import(&self.theirs.dest)?);
                let pair = |piece: Piece| {
                    Ok((
                        local.slice(piece.source, piece.len)?,
                        remote.slice(piece.dest, piece.len)?,
                    ))
                };
                let pairs: Result<Vec<_>, BenchError> = pieces.map(pair).collect();
                let write = Request::write(peer).segments(pairs?);
                self.engine.prepare(match notification {
                    Some(bytes) => write.notification(bytes.to_vec()),
                    None => write,
                })?
            }
            Job::Read => {
                let (local, remote) = (self.dest()?, self.import(&self.theirs.source)?);
                let pair = |piece: Piece| {
                    Ok((
                        local.slice(piece.dest, piece.len)?,
                        remote.slice(piece.source, piece.len)?,
                    ))
                };
                let pairs: Result<Vec<_>, BenchError> = pieces.map(pair).collect();
                self.engine.prepare(Request::read(peer).segments(pairs?))?
            }
            Job::Send => {
                let slice = |piece: Piece| Ok(self.source()?.slice(piece.source, piece.len)?);
                let slices: Result<Vec<_>, BenchError> = pieces.map(slice).collect();
                self.engine.prepare(Request::send(peer, slot).locals(slices?))?
            }
            Job::Receive => {
                let slice = |piece: Piece| Ok(self.dest()?.slice(piece.dest, piece.len)?);
                let slices: Result<Vec<_>, BenchError> = pieces.map(slice).collect();
                self.engine.prepare(Request::receive(peer, slot).locals(slices?))?
            }
        })
    }

    fn source(&self) -> Result<&Region, BenchError> {
        self.buffers.source.as_ref().map(Store::region).ok_or_else(|| missing("a source here"))
    }

    fn dest(&self) -> Result<&Region, BenchError> {
        self.buffers.dest.as_ref().map(Store::region).ok_or_else(|| missing("a destination here"))
    }

    fn import(&self, description: &Option<String>) -> Result<RemoteRegion, BenchError> {
        let bytes = description.as_deref().and_then(from_hex);
        Ok(self.engine.import(&bytes.ok_or_else(|| missing("a region at the other side"))?)?)
    }
}

/// The ends disagree about who sends.
fn missing(what: &str) -> BenchError {
    BenchError::Protocol { ask: "set_up", answer: format!("it leaves out {what}") }
}
