//! CPUs and threads: affinity and CPU time.

use std::io;
use std::time::Duration;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

/// CPUs that the calling thread may use.
pub fn allowed_cpus() -> io::Result<Vec<u32>> {
    let set = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).map(|cpu| cpu as u32).collect())
}

/// Binds the calling thread to `cpus`. Other threads stay unchanged.
pub fn bind_current(cpus: &[u32]) -> io::Result<()> {
    let mut set = CpuSet::new();
    for cpu in cpus {
        if *cpu as usize >= CpuSet::MAX_CPU {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "CPU number is too large"));
        }
        set.set(*cpu as usize);
    }
    Ok(sched_setaffinity(None, &set)?)
}

/// Sets the calling thread's timer slack to a microsecond, so that short sleeps end on time; the system's default is
/// 50.
pub fn sleep_precisely() -> io::Result<()> {
    Ok(rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1000))?)
}

/// CPU that the calling thread runs on now.
pub fn current_cpu() -> u32 {
    rustix::thread::sched_getcpu() as u32
}

/// CPU time of the calling thread, user and system.
pub fn thread_cpu_time() -> Duration {
    clock(ClockId::ThreadCPUTime)
}

/// CPU time of the process, user and system, in seconds.
pub fn process_cpu_seconds() -> f64 {
    clock(ClockId::ProcessCPUTime).as_secs_f64()
}

/// Nanoseconds of the machine's monotonic clock, which is the same for all its processes.
pub fn monotonic_ns() -> u64 {
    // Both parts are non-negative on the monotonic clock; 2^64 ns are five centuries.
    clock(ClockId::Monotonic).as_nanos() as u64
}

fn clock(id: ClockId) -> Duration {
    let time = clock_gettime(id);
    Duration::new(time.tv_sec.try_into().unwrap_or(0), time.tv_nsec.try_into().unwrap_or(0))
}

/// Sleeping on a word in memory: its owner stores, then wakes.
pub mod futex {
    use std::sync::atomic::AtomicU32;
    use std::time::Duration;

    use rustix::thread::futex::{self, Flags, Timespec};

    /// Sleeps while the word is `expected`, at most `limit`. May return early without a reason.
    pub fn wait(word: &AtomicU32, expected: u32, limit: Duration) {
        let limit = Timespec {
            tv_sec: limit.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: limit.subsec_nanos().into(),
        };
        // After any end of the sleep (a wake-up, a change, the limit, a signal), the caller checks the word again.
        let _ = futex::wait(word, Flags::PRIVATE, expected, Some(&limit));
    }

    /// Wakes every thread that sleeps on the word.
    pub fn wake_all(word: &AtomicU32) {
        let _ = futex::wake(word, Flags::PRIVATE, i32::MAX as u32);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Instant;

    use super::*;

    #[test]
    fn binding_a_thread_leaves_the_others_alone() {
        let before = allowed_cpus().unwrap();
        let first = before[0];
        std::thread::spawn(move || {
            bind_current(&[first]).unwrap();
            assert_eq!(allowed_cpus().unwrap(), [first]);
        })
        .join()
        .unwrap();
        assert_eq!(allowed_cpus().unwrap(), before);
        assert!(bind_current(&[u32::MAX]).is_err());
    }

    #[test]
    fn a_sleeper_is_woken_and_a_limit_ends_a_sleep() {
        let word = AtomicU32::new(0);
        let start = Instant::now();
        futex::wait(&word, 0, Duration::from_millis(20));
        futex::wait(&word, 1, Duration::from_secs(60));
        assert!(start.elapsed() < Duration::from_secs(30), "the value differed");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                word.store(1, Ordering::Release);
                futex::wake_all(&word);
            });
            while word.load(Ordering::Acquire) == 0 {
                futex::wait(&word, 0, Duration::from_secs(60));
            }
        });
    }

    #[test]
    fn work_costs_cpu_time() {
        // The process clock may lag the thread clock by a scheduler tick.
        let (thread, process) = (thread_cpu_time(), process_cpu_seconds());
        let mut sum = 0u64;
        while thread_cpu_time() - thread < Duration::from_millis(40) {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        assert!(process_cpu_seconds() - process >= 0.02);
    }
}
