//! Transfers between host memories of one host, which CPUs copy once: with a plain copy inside this process, through
//! the kernel to and from another process. Also short ones between a device's memory here and another process's host
//! memory: see [`stages`].
//!
//! A few threads copy, piece by piece, from one job after another, and threads that wait for a transfer help them.
//! Before each piece they check whether the job is still wanted: so a cancel, a deadline, the end of a region and the
//! end of a peer take effect within the time that one piece takes. The poster may copy a short job itself: see
//! [`copyist`].

pub(crate) mod job;
pub(crate) mod piece;
pub(crate) mod posts;
pub(crate) mod stages;

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use polyrail_proto::budget::StagingBudget;
use polyrail_proto::copying::{Cursor, PIECE_BYTES, Stop};
use polyrail_proto::path::{Copyist, Facts, copy_threads, copyist, copyist_of_message, looks_for};
use polyrail_proto::{Failure, InstanceId};

use self::job::{HostJob, Order};
use self::piece::{copy, device_of};
use self::stages::Stages;
use crate::device::peer_copy::{Pinned, pin_all};

/// The threads of an engine that copy, and their queue.
pub(crate) struct HostCopier {
    queue: Arc<Queue>,
    cpus: usize,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

struct Queue {
    state: Mutex<State>,
    /// Number of jobs in the state, for threads that look for some.
    queued: AtomicUsize,
    changed: Condvar,
    /// Time for which a thread without work looks for jobs before it sleeps.
    looks_for: Duration,
    stages: Stages,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Arc<HostJob>>,
    /// Threads without work that look for some, and those that sleep.
    looking: usize,
    asleep: usize,
    is_over: bool,
}

/// Outcome of beginning an order.
pub(crate) enum Begun {
    /// Copied.
    Done,
    /// Other threads copy it.
    UnderWay(Arc<HostJob>),
    /// A region has ended.
    RegionDropped,
    /// Can't be copied; nothing touches its memory any more.
    Impossible(String),
}

impl HostCopier {
    /// Makes the copier of an engine on a machine with `cpus` CPUs, whose pinned memory counts against the budget.
    pub(crate) fn new(cpus: usize, budget: &Arc<StagingBudget>) -> Self {
        let queue = Arc::new(Queue {
            state: Mutex::default(),
            queued: AtomicUsize::new(0),
            changed: Condvar::new(),
            looks_for: looks_for(cpus),
            stages: Stages::new(budget),
        });
        Self { queue, cpus, threads: Mutex::default() }
    }

    /// Returns the stages for copies between devices here and other processes.
    pub(crate) fn stages(&self) -> &Stages {
        &self.queue.stages
    }

    /// Copies the order at once, or queues it for the threads. `outstanding`: see [`posts::note_post`].
    pub(crate) fn begin(&self, order: Order<'_>, outstanding: u32) -> Begun {
        let Order { parts, bytes, .. } = order;
        let facts = Facts { cpus: self.cpus, bytes, parts: parts.len(), outstanding };
        let mut pinned = Pinned::new();
        if pin_all(parts, &mut pinned).is_err() {
            return Begun::RegionDropped;
        }
        // The poster waits for no device.
        if copyist(facts) == Copyist::Poster && device_of(parts).is_none() {
            return match copy(parts, Cursor::default(), bytes).map_err(Stop::from) {
                Ok(()) => Begun::Done,
                Err(Stop::Impossible(why)) => Begun::Impossible(why),
                Err(_) => Begun::RegionDropped,
            };
        }
        let job = HostJob::new(order);
        self.have_copied(&job, &pinned);
        Begun::UnderWay(job)
    }

    /// Runs a job that other threads can already see, and may have stopped; a short one is copied at once.
    pub(crate) fn run(&self, job: &Arc<HostJob>) {
        let mut pinned = Pinned::new();
        if pin_all(&job.parts, &mut pinned).is_err() {
            return job.stop(Stop::RegionEnded);
        }
        match copyist_of_message(job.bytes, job.parts.len()) {
            Copyist::Poster => while job.copy_a_piece(&self.queue.stages) {},
            Copyist::Threads => self.have_copied(job, &pinned),
        }
    }

    /// Queues a job for the threads. From now on, the end of one of its regions waits for the job.
    fn have_copied(&self, job: &Arc<HostJob>, pinned: &Pinned<'_>) {
        let ticket = job.ticket();
        for (region, _pin) in pinned {
            region.copies.note(&ticket);
        }
        if let Err(error) = self.enter(job) {
            job.stop(Stop::Impossible(format!("no thread: {error}")));
        }
    }

    /// Copies the next piece. Returns whether there was one. `may_wait`: the caller may wait for long, so the piece may
    /// be one that a device has to copy, which takes an unknown time.
    pub(crate) fn help(&self, may_wait: bool) -> bool {
        self.queue.copy_a_piece(may_wait)
    }

    /// Stops the copies for a peer. They end soon.
    pub(crate) fn stop_all_of(&self, peer: InstanceId, failure: Failure) {
        let jobs: Vec<_> = self.queue.state.lock().jobs.iter().cloned().collect();
        for job in jobs.iter().filter(|job| job.peer == peer) {
            job.stop(Stop::For(failure));
        }
    }

    /// Ends the threads, and stops all jobs that are left.
    pub(crate) fn end(&self) {
        let mut state = self.queue.state.lock();
        state.is_over = true;
        let jobs = std::mem::take(&mut state.jobs);
        self.queue.note_jobs(&state);
        drop(state);
        self.queue.changed.notify_all();
        jobs.iter().for_each(|job| job.stop(Stop::For(Failure::Cancelled)));
        for thread in std::mem::take(&mut *self.threads.lock()) {
            if thread.join().is_err() {
                tracing::error!(target: "polyrail::share", "a thread that copies panicked");
            }
        }
    }

    /// Puts a job behind the others, and wakes or starts as many threads as it keeps busy.
    fn enter(&self, job: &Arc<HostJob>) -> io::Result<()> {
        let pieces = usize::try_from(job.bytes.div_ceil(PIECE_BYTES)).unwrap_or(usize::MAX);
        let mut state = self.queue.state.lock();
        if state.is_over {
            return Err(io::Error::other("the engine has ended"));
        }
        // Threads that are looking for jobs take the jobs that already wait first.
        let finders = state.looking.saturating_sub(state.jobs.len());
        state.jobs.push_back(job.clone());
        self.queue.note_jobs(&state);
        let (wanted, asleep) = (pieces.saturating_sub(finders), state.asleep);
        drop(state);
        for _ in 0..wanted.min(asleep) {
            self.queue.changed.notify_one();
        }
        if wanted <= asleep {
            return Ok(());
        }
        let (mut threads, limit) = (self.threads.lock(), copy_threads(self.cpus));
        for number in threads.len()..limit.min(threads.len() + wanted - asleep) {
            let queue = self.queue.clone();
            let thread = std::thread::Builder::new().name(format!("pr-copy{number}"));
            match thread.spawn(move || queue.work()) {
                Ok(thread) => threads.push(thread),
                // The threads that exist do it.
                Err(_) if !threads.is_empty() => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl Queue {
    /// Main loop of a thread.
    fn work(&self) {
        loop {
            if self.copy_a_piece(true) {
                continue;
            }
            self.look_for_jobs();
            let mut state = self.state.lock();
            if state.is_over {
                return;
            }
            if state.jobs.is_empty() {
                state.asleep += 1;
                self.changed.wait(&mut state);
                state.asleep -= 1;
            }
        }
    }

    /// Returns once there are jobs, or after a while.
    fn look_for_jobs(&self) {
        if self.looks_for.is_zero() {
            return;
        }
        self.state.lock().looking += 1;
        let since = Instant::now();
        while self.queued.load(Ordering::Relaxed) == 0 && since.elapsed() < self.looks_for {
            std::hint::spin_loop();
        }
        self.state.lock().looking -= 1;
    }

    /// Updates the count. To be called with the lock held.
    fn note_jobs(&self, state: &State) {
        self.queued.store(state.jobs.len(), Ordering::Relaxed);
    }

    fn copy_a_piece(&self, with_devices: bool) -> bool {
        loop {
            let mut state = self.state.lock();
            let suits = |job: &Arc<HostJob>| with_devices || device_of(&job.parts).is_none();
            let next = state.jobs.iter().position(suits);
            let Some(job) = next.and_then(|at| state.jobs.remove(at)) else { return false };
            // With the lock held, so that no thread finds the queue empty while a job has pieces left.
            let claimed = job.claim();
            if claimed.is_some() && !job.is_all_claimed() {
                state.jobs.push_back(job.clone());
            }
            self.note_jobs(&state);
            drop(state);
            if let Some((at, bytes)) = claimed {
                job.copy(at, bytes, &self.stages);
                return true;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use polyrail_proto::RegionKey;
    use polyrail_sys::Memory;

    use super::*;
    use crate::device::peer_copy::CopyPart;
    use crate::memory::access::Access;
    use crate::memory::region_core::RegionCore;
    use crate::memory::region_memory::RegionMemory;

    const BYTES: u64 = 64 << 10;

    fn region(byte: u8) -> Arc<RegionCore> {
        let memory = RegionMemory::Host(Memory::from(vec![byte; BYTES as usize]));
        let key = RegionKey { slot: 0, generation: 1, nonce: u64::from(byte) };
        Arc::new(RegionCore::new(InstanceId(1), key, memory, Access::ALL))
    }

    fn parts(byte: u8) -> Arc<[CopyPart]> {
        let (from, to) = (region(byte), region(0));
        Arc::new([CopyPart { from, from_offset: 0, to, to_offset: 0, len: BYTES }])
    }

    fn is_copied(parts: &[CopyPart], byte: u8) -> bool {
        let mut bytes = vec![0; BYTES as usize];
        parts[0].to.memory.host().unwrap().read_at(0, &mut bytes).unwrap();
        bytes.iter().all(|it| *it == byte)
    }

    fn order(parts: &Arc<[CopyPart]>) -> Order<'_> {
        Order { parts, bytes: BYTES, peer: InstanceId(2), deadline: None }
    }

    #[test]
    fn short_copies_are_handed_on_while_their_poster_has_others_outstanding() {
        let copier = HostCopier::new(16, &StagingBudget::new(0));
        let own = parts(200);
        assert!(matches!(copier.begin(order(&own), 0), Begun::Done) && is_copied(&own, 200));
        let handed_on = (1..100).map(|byte| {
            let parts = parts(byte);
            let Begun::UnderWay(job) = copier.begin(order(&parts), 15) else {
                panic!("its poster copied it")
            };
            (parts, job, byte)
        });
        let until = Instant::now() + Duration::from_secs(20);
        for (parts, job, byte) in handed_on.collect::<Vec<_>>() {
            while job.ended().is_none() {
                assert!(Instant::now() < until, "no thread copies it");
                std::thread::yield_now();
            }
            assert_eq!(job.ended(), Some(Ok(())));
            assert!(is_copied(&parts, byte));
        }
        copier.end();
    }
}
