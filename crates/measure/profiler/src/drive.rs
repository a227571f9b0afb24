//! Keeps a number of transfers outstanding until all are done, and times each.
//!
//! `polyrail bench` and the path `tcp` of a profile both drive transfers with this code and these constants, so both
//! measure the same thing.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use polyrail::{Engine, PostError, PreparedTransfer, Progress, Transfer, TransferError};
use polyrail_report::Histogram;
use polyrail_sys::threads::thread_cpu_time;

/// Memory that transfers of a size walk through: well above the size of caches.
pub const WORKING_SET_BYTES: u64 = 256 << 20;
/// Transfers outstanding at once, if they fit the working set.
pub const DEFAULT_DEPTH: u64 = 16;
const SLOTS_MAX: u64 = 4096;

/// Default number of transfers of a size that are outstanding at once.
pub fn default_depth(size: u64, most: u64) -> u64 {
    (WORKING_SET_BYTES / size.max(1)).clamp(1, DEFAULT_DEPTH.min(most).max(1))
}

/// Number of slots that transfers of a size use round-robin: as many as the working set holds, within bounds that keep
/// the preparation short, and at least one for each outstanding transfer.
pub fn slots(size: u64, depth: u64, most: u64) -> u64 {
    let most = SLOTS_MAX.min(most).max(1);
    (WORKING_SET_BYTES / size.max(1)).clamp(1, most).max(depth)
}

/// Reason why transfers ended early.
#[derive(Debug, thiserror::Error)]
pub enum DriveError {
    /// The engine refused a transfer.
    #[error("posting a transfer failed: {0}")]
    Post(#[from] PostError),
    #[error("transfer failed: {0}")]
    Transfer(#[from] TransferError),
    #[error("interrupted")]
    Interrupted,
    /// Nothing moved for a long time.
    #[error("nothing moved for {} s", waited.as_secs())]
    Stuck {
        waited: Duration,
        /// State of the engine.
        dump: String,
    },
}

/// Transfers that are prepared once, one for each slot, and posted round-robin.
pub struct Driver<'a> {
    engine: &'a Engine,
    prepared: Vec<PreparedTransfer>,
    depth: usize,
    /// Whether this thread moves the data.
    moves_data: bool,
    /// Whether there are enough CPUs to poll.
    polls: bool,
}

/// A driver at work. Replaces each transfer as soon as it ends: if it waited for the oldest one, a single late transfer
/// would empty all rails.
pub struct Running<'d> {
    driver: &'d Driver<'d>,
    started: Instant,
    total: u64,
    posted: u64,
    /// Outstanding transfers, the oldest first.
    outstanding: VecDeque<Transfer>,
    times: Histogram,
    waited: Duration,
}

/// Result of a driver.
#[derive(Clone, Debug)]
pub struct Ran {
    /// Time from the first post to the last completion.
    pub seconds: f64,
    /// Time from post to completion of each transfer, as the engine measures it.
    pub times: Histogram,
    /// CPU time of the thread that posted and waited.
    pub cpu: Duration,
    /// Time that the thread waited for transfers to end. It may poll meanwhile, which takes CPU time but is not work,
    /// unless callers move the data.
    pub waited: Duration,
}

impl Ran {
    /// Merges two drivers that did the same at once: the longer time, and the transfer times of both.
    pub fn beside(mut self, other: &Self) -> Self {
        self.times.merge(&other.times);
        self.together_with(other)
    }

    /// Merges two drivers that ran at once: the longer time of each kind, and this one's transfer times.
    pub fn together_with(mut self, other: &Self) -> Self {
        self.seconds = self.seconds.max(other.seconds);
        // Take the busier of the two threads.
        if other.waited < self.waited {
            (self.cpu, self.waited) = (other.cpu, other.waited);
        }
        self
    }
}

impl<'a> Driver<'a> {
    /// Creates a driver from the requests of all slots.
    pub fn new(engine: &'a Engine, prepared: Vec<PreparedTransfer>, depth: u64) -> Self {
        let moves_data = engine.config().progress == Progress::Caller;
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let polls = depth > 1 && !moves_data && cpus >= POLL_CPUS_MIN;
        Self { engine, prepared, depth: depth as usize, moves_data, polls }
    }

    /// Returns the first slot's request.
    pub fn example(&self) -> Option<&PreparedTransfer> {
        self.prepared.first()
    }

    /// Returns the number of slots.
    pub fn slots(&self) -> u64 {
        self.prepared.len() as u64
    }

    /// Posts as many transfers as may be outstanding.
    ///
    /// # Errors
    /// If the engine refuses a transfer.
    pub fn start(&self, transfers: u64) -> Result<Running<'_>, DriveError> {
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
    /// Posts and waits until all transfers are done.
    ///
    /// # Errors
    /// The error of a transfer; [`DriveError::Interrupted`] once `stop` returns true. `stop` is called repeatedly; its
    /// argument is true if nothing has happened for a while.
    pub fn finish(mut self, stop: impl Fn(bool) -> bool) -> Result<Ran, DriveError> {
        let cpu = thread_cpu_time();
        while !self.outstanding.is_empty() {
            let completed = match stop(false) {
                true => Err(DriveError::Interrupted),
                false => self.complete_some(&|| stop(true)),
            };
            if let Err(error) = completed {
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
            cpu: thread_cpu_time().saturating_sub(cpu),
            waited: self.waited,
        })
    }

    /// Posts the next transfer; `false` if the engine accepts no more until one ends.
    fn post(&mut self) -> Result<bool, DriveError> {
        // Both ends use the order of slots, so the send and the receive of a tag are outstanding together.
        let slot = self.posted % self.driver.slots();
        let prepared = &self.driver.prepared[slot as usize];
        match prepared.post() {
            Ok(transfer) => {
                self.outstanding.push_back(transfer);
                self.posted += 1;
                Ok(true)
            }
            // Other users may hold the whole pool. If none of ours is outstanding, retry until there is room.
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

    /// Removes the completed transfers; waits until there is one.
    fn complete_some(&mut self, stop: &impl Fn() -> bool) -> Result<(), DriveError> {
        let begin = Instant::now();
        let mut any = self.take_ended()?;
        while !any && self.driver.polls && begin.elapsed() < POLL {
            std::hint::spin_loop();
            any = self.take_ended()?;
        }
        if !any && let Some(oldest) = self.outstanding.front() {
            wait(self.driver.engine, oldest, stop)?;
            self.waited += begin.elapsed();
            self.take_ended()?;
        } else {
            self.waited += begin.elapsed();
        }
        Ok(())
    }

    /// Removes the completed transfers; returns whether there were any.
    fn take_ended(&mut self) -> Result<bool, DriveError> {
        let before = self.outstanding.len();
        while let Some(oldest) = self.outstanding.front()
            && let Some(took) = ended(oldest)?
        {
            self.times.record(took);
            self.outstanding.pop_front();
        }
        // If this thread moves the data, each test of a transfer is a round over all flows.
        if before == self.outstanding.len() && !self.driver.moves_data {
            let mut index = 0;
            while let Some(transfer) = self.outstanding.get(index) {
                match ended(transfer)? {
                    Some(took) => {
                        self.times.record(took);
                        self.outstanding.remove(index);
                    }
                    None => index += 1,
                }
            }
        }
        Ok(before > self.outstanding.len())
    }
}

/// Returns the duration of a transfer in nanoseconds, if it is over.
fn ended(transfer: &Transfer) -> Result<Option<u64>, DriveError> {
    let ended = transfer.try_wait().transpose()?;
    Ok(ended.map(|outcome| outcome.duration.as_nanos() as u64))
}

/// Waits until a transfer is over, as long as anything moves at all.
///
/// # Errors
/// As [`Running::finish`]; `stop` is called while nothing happens.
pub fn wait(
    engine: &Engine,
    transfer: &Transfer,
    stop: &impl Fn() -> bool,
) -> Result<polyrail::Outcome, DriveError> {
    let mut moved = None;
    let mut since = Instant::now();
    loop {
        if let Some(ended) = transfer.wait(SLICE) {
            return Ok(ended?);
        }
        if stop() {
            return Err(DriveError::Interrupted);
        }
        let now = Some(moved_bytes(engine));
        if now != moved {
            (moved, since) = (now, Instant::now());
        }
        // The engine's own deadlines end a transfer whose peer is gone. This one guards against bugs of the engine.
        if since.elapsed() > STUCK {
            return Err(DriveError::Stuck { waited: since.elapsed(), dump: engine.dump() });
        }
    }
}

/// Returns the payload that the engine has moved so far, in both directions; grows as long as anything moves.
pub fn moved_bytes(engine: &Engine) -> u64 {
    let stats = engine.stats();
    let rails = stats.peers.iter().flat_map(|peer| &peer.rails);
    rails.map(|rail| rail.tx_bytes + rail.rx_bytes).sum()
}

/// Polling time with several outstanding transfers and enough CPUs: all are tested this long before the thread sleeps
/// until the oldest is over.
const POLL: Duration = Duration::from_micros(100);
const POLL_CPUS_MIN: usize = 8;
/// Maximum delay until an interrupt is noticed.
const SLICE: Duration = Duration::from_millis(200);
const STUCK: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_transfers_walk_through_the_working_set_and_large_ones_go_one_at_a_time() {
        let of = |size| {
            let depth = default_depth(size, u64::MAX);
            (depth, slots(size, depth, u64::MAX))
        };
        assert_eq!(of(8), (16, 4096));
        assert_eq!(of(64 << 10), (16, 4096));
        assert_eq!(of(16 << 20), (16, 16));
        assert_eq!(of(64 << 20), (4, 4));
        assert_eq!(of(1 << 30), (1, 1));
        assert_eq!(
            (default_depth(8, 4), slots(8, 4, 2)),
            (4, 4),
            "one for each outstanding transfer"
        );
    }
}
