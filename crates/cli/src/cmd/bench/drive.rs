//! Keeps a number of transfers outstanding until all are done, and times each.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use polyrail::{Engine, PreparedTransfer, Transfer, TransferError};
use polyrail_config::Progress;
use polyrail_report::Histogram;
use polyrail_sys::threads::thread_cpu_time;

use super::error::BenchError;
use super::observe::moved_bytes;

/// Transfers that are prepared once, one for each slot, and posted round and round.
pub(super) struct Driver<'a> {
    engine: &'a Engine,
    prepared: Vec<PreparedTransfer>,
    depth: usize,
}

/// A driver in the middle of its work.
pub(super) struct Running<'d> {
    driver: &'d Driver<'d>,
    started: Instant,
    total: u64,
    posted: u64,
    outstanding: VecDeque<Transfer>,
    times: Histogram,
    waited: Duration,
}

/// What a driver did.
#[derive(Clone, Debug)]
pub(super) struct Ran {
    /// From the first post to the last completion.
    pub(super) seconds: f64,
    /// From post to completion of each transfer, as the engine measures it.
    pub(super) times: Histogram,
    /// What the thread that posted and waited did.
    pub(super) poster: Poster,
}

/// The thread that posts.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Poster {
    /// Its CPU time.
    pub(super) cpu: Duration,
    /// How long it waited for transfers to end. It may look all the time meanwhile, which is CPU time,
    /// but no work; `None` where its waiting moves the data.
    pub(super) waited: Option<Duration>,
}

impl Ran {
    /// Two that ran at once: the longer time of each, and the times of this one's transfers.
    pub(super) fn together_with(mut self, other: &Self) -> Self {
        self.seconds = self.seconds.max(other.seconds);
        // Whichever had less time to spare.
        let spare = |ran: &Self| ran.poster.waited;
        if spare(other) < spare(&self) {
            self.poster = other.poster;
        }
        self
    }
}

impl<'a> Driver<'a> {
    pub(super) fn new(engine: &'a Engine, prepared: Vec<PreparedTransfer>, depth: u64) -> Self {
        Self { engine, prepared, depth: depth as usize }
    }

    /// The first slot's request.
    pub(super) fn example(&self) -> Option<&PreparedTransfer> {
        self.prepared.first()
    }

    /// Posts as many transfers as may be outstanding.
    pub(super) fn start(&self, transfers: u64) -> Result<Running<'_>, BenchError> {
        let mut running = Running {
            driver: self,
            started: Instant::now(),
            total: transfers,
            posted: 0,
            outstanding: VecDeque::with_capacity(self.depth),
            times: Histogram::default(),
            waited: Duration::ZERO,
        };
        while running.posted < transfers && running.outstanding.len() < self.depth {
            if !running.post()? {
                break;
            }
        }
        Ok(running)
    }
}

impl Running<'_> {
    /// Posts and waits until all are done.
    ///
    /// # Errors
    /// Whatever a transfer fails with; [`BenchError::Interrupted`] once `stop` says so, which is
    /// asked while nothing happens.
    pub(super) fn finish(mut self, stop: impl Fn() -> bool) -> Result<Ran, BenchError> {
        let cpu = thread_cpu_time();
        while let Some(oldest) = self.outstanding.pop_front() {
            if let Err(error) = self.complete(&oldest, &stop) {
                oldest.cancel();
                self.outstanding.iter().for_each(Transfer::cancel);
                return Err(error);
            }
            while self.posted < self.total && self.outstanding.len() < self.driver.depth {
                if !self.post()? {
                    break;
                }
            }
        }
        Ok(Ran {
            seconds: self.started.elapsed().as_secs_f64(),
            times: self.times,
            poster: Poster {
                cpu: thread_cpu_time().saturating_sub(cpu),
                waited: (!moves_data(self.driver.engine)).then_some(self.waited),
            },
        })
    }

    /// Posts the next transfer; `false` when the engine takes no more until one is over.
    fn post(&mut self) -> Result<bool, BenchError> {
        let slots = self.driver.prepared.len() as u64;
        let prepared = &self.driver.prepared[(self.posted % slots) as usize];
        match prepared.post() {
            Ok(transfer) => {
                self.outstanding.push_back(transfer);
                self.posted += 1;
                Ok(true)
            }
            // Others may hold the rest of the pool; with none of ours out, try until it is free.
            Err(error) if error.is_busy() => {
                if self.outstanding.is_empty() {
                    std::thread::yield_now();
                    return self.post();
                }
                Ok(false)
            }
            Err(error) => Err(error.into()),
        }
    }

    fn complete(
        &mut self,
        transfer: &Transfer,
        stop: &impl Fn() -> bool,
    ) -> Result<(), BenchError> {
        let begin = Instant::now();
        let outcome = wait(self.driver.engine, transfer, stop)?;
        self.waited += begin.elapsed();
        self.times.record(outcome.duration.as_nanos() as u64);
        Ok(())
    }
}

/// Whether the engine has no threads of its own: whoever waits moves the data.
pub(super) fn moves_data(engine: &Engine) -> bool {
    engine.config().progress == Progress::Caller
}

/// Waits until a transfer is over, as long as anything moves at all.
pub(super) fn wait(
    engine: &Engine,
    transfer: &Transfer,
    stop: &impl Fn() -> bool,
) -> Result<polyrail::Outcome, BenchError> {
    let mut moved = None;
    let mut since = Instant::now();
    loop {
        match transfer.wait(SLICE) {
            Ok(outcome) => return Ok(outcome),
            Err(TransferError::TimedOut { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        if stop() {
            return Err(BenchError::Interrupted);
        }
        let now = Some(moved_bytes(engine));
        if now != moved {
            (moved, since) = (now, Instant::now());
        }
        // The engine's deadlines end a transfer whose peer is gone. This one is for its bugs.
        if since.elapsed() > STUCK {
            return Err(BenchError::Stuck { waited: since.elapsed(), dump: engine.dump() });
        }
    }
}

/// How soon an interrupt is noticed.
const SLICE: Duration = Duration::from_millis(200);
const STUCK: Duration = Duration::from_secs(60);
