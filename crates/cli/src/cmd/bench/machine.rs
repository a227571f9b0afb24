//! What the machine can copy: the measure for whether memory limits.

use std::thread;
use std::time::Instant;

use memmap2::{Advice, MmapMut};

use super::error::BenchError;
use super::layout::WORKING_SET_BYTES;

/// How fast memory is copied, with a working set as large as the bench's.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct CopyRate {
    /// One thread, in GB/s (10^9 bytes).
    pub(super) one_thread_gb_per_s: f64,
    /// As many threads as CPUs are allowed, together, in GB/s (10^9 bytes).
    pub(super) all_threads_gb_per_s: f64,
    pub(super) threads: usize,
}

/// Copies for about a second.
pub(super) fn copy_rate() -> Result<CopyRate, BenchError> {
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let failed = |source| BenchError::system("mapping memory", source);
    let one = best_of_three(1).map_err(failed)?;
    let all = if threads == 1 { one } else { best_of_three(threads).map_err(failed)? };
    Ok(CopyRate { one_thread_gb_per_s: one, all_threads_gb_per_s: all.max(one), threads })
}

/// The machine may be doing something else at times; what it can do is what it did best.
fn best_of_three(threads: usize) -> std::io::Result<f64> {
    let part = WORKING_SET_BYTES as usize / threads;
    let mut parts = Vec::new();
    for index in 0..threads {
        // Written once, so that every page is there and its own.
        let (mut from, mut to) = (MmapMut::map_anon(part)?, MmapMut::map_anon(part)?);
        for map in [&mut from, &mut to] {
            // A hint: without huge pages all works.
            let _ = map.advise(Advice::HugePage);
            map.fill(index as u8 + 1);
        }
        parts.push((from, to));
    }
    let mut best = 0.0f64;
    for _ in 0..3 {
        let started = Instant::now();
        thread::scope(|scope| {
            for (from, to) in &mut parts {
                scope.spawn(|| to.copy_from_slice(from));
            }
        });
        let rate = (part * threads) as f64 / 1e9 / started.elapsed().as_secs_f64();
        best = best.max(rate);
    }
    Ok(best)
}
