//! Part of one end in measuring one size: its memory and its requests.

use std::thread;

use polyrail::{Engine, Peer, PreparedTransfer, Region, RemoteRegion, Request};
use polyrail_profiler::drive::{DriveError, Driver, Ran, Running};

use crate::cmd::bench::faults;
use crate::cmd::bench::memory::{Buffers, Needs, Store};
use crate::cmd::bench::options::{Op, Piece};
use crate::cmd::bench::talk::{End, Regions, SetUp, from_hex, to_hex};
use crate::fault::Fault;
use crate::together::{Begun, start_all};

/// Everything that a sample of a stream of transfers needs at this end.
pub(crate) struct Work<'a> {
    /// Drivers by job. The drivers of a job share its slots.
    jobs: Vec<Vec<Driver<'a>>>,
}

/// Started drivers of an end.
pub(crate) struct Started<'w> {
    jobs: Vec<Vec<Running<'w>>>,
}

/// Returns the memory that an end needs.
pub(crate) fn needs_of(set_up: &SetUp, end: End) -> Needs {
    let seed_of = |sender: End| set_up.seed.wrapping_add(u64::from(sender == End::Server));
    let other = match end {
        End::Client => End::Server,
        End::Server => End::Client,
    };
    Needs {
        source_seed: set_up.sends(end).then(|| seed_of(end)),
        dest_seed: set_up.receives(end).then(|| seed_of(other)),
    }
}

/// Describes this end's memory for the other end.
pub(crate) fn regions_of(buffers: &Buffers) -> Regions {
    let describe =
        |store: &Option<Store>| store.as_ref().map(|store| to_hex(&store.region().describe()));
    Regions { source: describe(&buffers.source), dest: describe(&buffers.dest) }
}

impl<'a> Work<'a> {
    /// Prepares the transfers of every slot. `theirs` are the regions of the other end.
    pub(crate) fn new(
        engine: &'a Engine,
        peer: &Peer,
        buffers: &Buffers,
        set_up: &SetUp,
        theirs: &Regions,
        end: End,
    ) -> Result<Self, Fault> {
        let maker = Maker { engine, peer, buffers, theirs };
        let posts = end == End::Client || set_up.bidir;
        let mut jobs = Vec::new();
        match set_up.op {
            Op::Write if posts => jobs.push(Job::Write),
            Op::Read if posts => jobs.push(Job::Read),
            Op::Write | Op::Read => {}
            Op::Send => {
                // Receives first, so that they are posted before the first message arrives.
                jobs.extend(set_up.receives(end).then_some(Job::Receive));
                jobs.extend(set_up.sends(end).then_some(Job::Send));
            }
        }
        let drivers = |job: &Job| -> Result<Vec<Driver<'a>>, Fault> {
            // A single poster posts the receives, in the order of slots.
            let posters = if *job == Job::Receive { 1 } else { set_up.posters };
            let driver = |poster: u64| {
                let slots = (poster..buffers.layout.slots).step_by(posters as usize);
                let prepared = slots.map(|slot| maker.prepare(*job, slot, None));
                let prepared: Result<Vec<PreparedTransfer>, Fault> = prepared.collect();
                Ok(Driver::new(engine, prepared?, share(set_up.depth, poster, posters)))
            };
            (0..posters).map(driver).collect()
        };
        let jobs: Result<_, Fault> = jobs.iter().map(drivers).collect();
        Ok(Self { jobs: jobs? })
    }

    /// Returns one of the requests that send, if this end posts any.
    pub(crate) fn example(&self) -> Option<&PreparedTransfer> {
        self.jobs.last()?.first().and_then(Driver::example)
    }

    /// Posts as many transfers as may be outstanding.
    pub(crate) fn start(&self, transfers: u64) -> Result<Started<'_>, Fault> {
        let jobs: Result<_, DriveError> =
            self.jobs.iter().map(|job| start(job, transfers)).collect();
        Ok(Started { jobs: jobs.map_err(|error: DriveError| Fault::from(error))? })
    }
}

fn start<'w>(drivers: &'w [Driver<'_>], transfers: u64) -> Result<Vec<Running<'w>>, DriveError> {
    let slots: Vec<u64> = drivers.iter().map(Driver::slots).collect();
    let shares = shares(transfers, &slots);
    drivers.iter().zip(shares).map(|(driver, share)| driver.start(share)).collect()
}

/// Returns the number of transfers of each poster, from its number of slots: those that fall to its slots when all
/// transfers go through all slots in order. The other end receives in that order, so each send finds a receive of its
/// slot.
fn shares(transfers: u64, slots: &[u64]) -> Vec<u64> {
    let (all, posters) = (slots.iter().sum::<u64>().max(1), slots.len() as u64);
    let (rounds, rest) = (transfers / all, transfers % all);
    (0..).zip(slots).map(|(poster, own)| rounds * own + share(rest, poster, posters)).collect()
}

/// Returns the share of one of several. If the total can't be divided evenly, the first ones get one more.
fn share(all: u64, index: u64, of: u64) -> u64 {
    (all + of - 1 - index) / of
}

impl Started<'_> {
    /// Runs all drivers to their end, each on a separate thread. Returns `None` at an end that has nothing to post.
    pub(crate) fn finish(self, stop: impl Fn(bool) -> bool + Sync) -> Result<Option<Ran>, Fault> {
        let stop = &stop;
        let mut jobs = self.jobs;
        // The first driver of the last job runs on this thread.
        let Some(own) = jobs.last_mut().map(|drivers| drivers.remove(0)) else { return Ok(None) };
        thread::scope(|scope| {
            let finish = |running: Running<'_>| running.finish(stop).map_err(Fault::from);
            let posters: Vec<usize> = jobs.iter().map(Vec::len).collect();
            let begin = |running| move || finish(running);
            let failed = |source| Fault::system("starting the threads of the posters", source);
            let begun = start_all(scope, jobs.into_iter().flatten().map(begin)).map_err(failed)?;
            let own = finish(own);
            let mut results = begun.into_iter().filter_map(Begun::join);
            let ended: Vec<Vec<_>> =
                posters.into_iter().map(|count| results.by_ref().take(count).collect()).collect();
            summed(own?, ended).map(Some)
        })
    }
}

/// Combines everything that ran at once. The last job sends, and its times are the ones to show; `ran` is one of its
/// drivers.
fn summed(mut ran: Ran, mut others: Vec<Vec<Result<Ran, Fault>>>) -> Result<Ran, Fault> {
    for beside in others.pop().unwrap_or_default() {
        ran = ran.beside(&beside?);
    }
    for other in others.into_iter().flatten() {
        ran = ran.together_with(&other?);
    }
    Ok(ran)
}

/// Operation to post for a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Job {
    Write,
    Read,
    Send,
    Receive,
}

pub(crate) struct Maker<'a, 'e> {
    pub(crate) engine: &'e Engine,
    pub(crate) peer: &'a Peer,
    pub(crate) buffers: &'a Buffers,
    pub(crate) theirs: &'a Regions,
}

impl Maker<'_, '_> {
    pub(crate) fn prepare(
        &self,
        job: Job,
        slot: u64,
        notification: Option<&[u8]>,
    ) -> Result<PreparedTransfer, Fault> {
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
                let pairs: Result<Vec<_>, Fault> = pieces.map(pair).collect();
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
                let pairs: Result<Vec<_>, Fault> = pieces.map(pair).collect();
                self.engine.prepare(Request::read(peer).segments(pairs?))?
            }
            Job::Send => {
                let slice = |piece: Piece| Ok(self.source()?.slice(piece.source, piece.len)?);
                let slices: Result<Vec<_>, Fault> = pieces.map(slice).collect();
                self.engine.prepare(Request::send(peer, slot).locals(slices?))?
            }
            Job::Receive => {
                let slice = |piece: Piece| Ok(self.dest()?.slice(piece.dest, piece.len)?);
                let slices: Result<Vec<_>, Fault> = pieces.map(slice).collect();
                self.engine.prepare(Request::receive(peer, slot).locals(slices?))?
            }
        })
    }

    fn source(&self) -> Result<&Region, Fault> {
        self.buffers.source.as_ref().map(Store::region).ok_or_else(|| missing("a source here"))
    }

    fn dest(&self) -> Result<&Region, Fault> {
        self.buffers.dest.as_ref().map(Store::region).ok_or_else(|| missing("a destination here"))
    }

    fn import(&self, description: &Option<String>) -> Result<RemoteRegion, Fault> {
        let bytes = description.as_deref().and_then(from_hex);
        Ok(self.engine.import(&bytes.ok_or_else(|| missing("a region at the other side"))?)?)
    }
}

/// Returns the error for ends that disagree about which of them sends.
fn missing(what: &str) -> Fault {
    faults::protocol("set_up", format!("it leaves out {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn posters_send_into_each_slot_as_often_as_the_other_end_receives_there() {
        for (all, posters) in [(5u64, 3u64), (1, 1), (7, 2), (8, 8), (64, 5)] {
            let slots: Vec<u64> = (0..posters).map(|poster| share(all, poster, posters)).collect();
            for transfers in 0..4 * all {
                let mut sent = vec![0; all as usize];
                for (poster, share) in (0..).zip(shares(transfers, &slots)) {
                    let own: Vec<u64> = (poster..all).step_by(posters as usize).collect();
                    (0..share as usize).for_each(|i| sent[own[i % own.len()] as usize] += 1);
                }
                let mut received = vec![0; all as usize];
                (0..transfers).for_each(|i| received[(i % all) as usize] += 1);
                assert_eq!(sent, received, "{transfers} transfers, {all} slots, {posters} posters");
            }
        }
    }
}
