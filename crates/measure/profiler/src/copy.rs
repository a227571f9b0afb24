//! The path `host_memory`: a plain copy inside the process, the baseline for every other path of a host.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, Instant};

use polyrail_profile::{End, Verify};
use polyrail_sys::Memory;

use crate::carrier::{Cargo, Carrier, Measured, per_second, stream_of};
use crate::error::ProfilerError;
use crate::{pattern, reference_ns};

/// Bytes of a stream of small transfers.
pub(crate) const STREAM_BYTES: u64 = 64 << 20;
/// Time limit of a waiting sink.
const PATIENCE: Duration = Duration::from_secs(60);

/// Copies between host endpoints.
pub(crate) struct Copier {
    /// Source of each rank and the seed of its pattern.
    sources: HashMap<u32, (Memory, u64)>,
    sinks: HashMap<u32, Vec<u8>>,
    /// Whether there is only one CPU, so that no thread may poll.
    is_alone: bool,
}

impl Copier {
    pub(crate) fn new(sources: HashMap<u32, (Memory, u64)>) -> Self {
        let sinks =
            sources.iter().map(|(rank, (memory, _))| (*rank, vec![0; memory.len() as usize]));
        let is_alone = std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() == 1);
        Self { sinks: sinks.collect(), sources, is_alone }
    }

    fn ends(&mut self, src: u32, dst: u32, bytes: u64) -> Result<Ends<'_>, ProfilerError> {
        let wrong =
            || ProfilerError::Choice { what: format!("no host memory of rank {src} or {dst}") };
        let (source, seed) = self.sources.get(&src).ok_or_else(wrong)?;
        let sink = self.sinks.get_mut(&dst).ok_or_else(wrong)?;
        let sink = sink.get_mut(..bytes as usize).ok_or_else(wrong)?;
        Ok((source, *seed, sink))
    }
}

type Ends<'a> = (&'a Memory, u64, &'a mut [u8]);

fn copy(source: &Memory, sink: &mut [u8]) -> Result<(), ProfilerError> {
    let outside = |error| ProfilerError::engine("copying host memory")(&error);
    source.read_at(0, sink).map_err(outside)
}

/// Times of a copy: at the source its start and end, at the sink when it was ready and when it saw the end. The sink is
/// a second thread that polls a word written after the copy.
struct OneWay {
    source_ns: [i64; 2],
    sink_ns: [i64; 2],
}

/// Times a one-way copy. Repeats it a few times if both threads were on one CPU before it began: the time would then
/// include a context switch.
fn one_way(source: &Memory, sink: &mut [u8], is_alone: bool) -> Result<OneWay, ProfilerError> {
    const TIMES: u32 = 4;
    const APART_NS: i64 = 200_000;
    for _ in 1..TIMES {
        if let Some(ends) = try_one_way(source, sink, is_alone, APART_NS)? {
            return Ok(ends);
        }
    }
    let ends = try_one_way(source, sink, is_alone, i64::MAX)?;
    ends.ok_or(ProfilerError::Engine { what: "the sink's thread", reason: "never ran".into() })
}

/// Returns `None` if the sink's thread was ready more than `apart_ns` before this one saw it.
fn try_one_way(
    source: &Memory,
    sink: &mut [u8],
    is_alone: bool,
    apart_ns: i64,
) -> Result<Option<OneWay>, ProfilerError> {
    let (ready_ns, is_there) = (AtomicI64::new(0), AtomicBool::new(false));
    // Neither thread sleeps: the kernel may place a woken thread on the waker's CPU, and the two must run on different
    // CPUs.
    let until = |is: &dyn Fn() -> bool| {
        let begin = Instant::now();
        while !is() && begin.elapsed() < PATIENCE {
            if is_alone { std::thread::yield_now() } else { std::hint::spin_loop() }
        }
    };
    std::thread::scope(|scope| {
        let wait = || {
            ready_ns.store(reference_ns(), Ordering::Release);
            until(&|| is_there.load(Ordering::Acquire));
            reference_ns()
        };
        let told = std::thread::Builder::new().spawn_scoped(scope, wait);
        let told = told.map_err(|error| ProfilerError::thread(&error))?;
        until(&|| ready_ns.load(Ordering::Acquire) != 0);
        let ready_ns = ready_ns.load(Ordering::Acquire);
        let begin_ns = reference_ns();
        let is_apart = is_alone || begin_ns - ready_ns <= apart_ns;
        let copied = if is_apart { copy(source, sink) } else { Ok(()) };
        is_there.store(true, Ordering::Release);
        let end_ns = reference_ns();
        let lost = |_| ProfilerError::Engine {
            what: "the sink's thread",
            reason: "it ended by itself".into(),
        };
        let told_ns = told.join().map_err(lost)?;
        copied?;
        let ends = OneWay { source_ns: [begin_ns, end_ns], sink_ns: [ready_ns, told_ns] };
        Ok(is_apart.then_some(ends))
    })
}

/// Measures how long two threads take to meet for a transfer on this machine now: the mean of several tries.
pub(crate) fn meeting_s() -> f64 {
    const MEETINGS: u32 = 64;
    const LONG_ENOUGH: Duration = Duration::from_millis(500);
    let is_alone = std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() == 1);
    let (source, mut sink) = (Memory::from(vec![1; 8]), [0; 8]);
    let (begin, mut met) = (Instant::now(), 0);
    while met < MEETINGS && begin.elapsed() < LONG_ENOUGH {
        // Ignore failures here: a machine that can't start a thread reports that when it measures.
        let _ = one_way(&source, &mut sink, is_alone);
        met += 1;
    }
    begin.elapsed().as_secs_f64() / f64::from(met)
}

impl Carrier for Copier {
    fn warm(&mut self, cargo: Cargo) -> Result<(), ProfilerError> {
        let Cargo { src, dst, bytes } = cargo;
        let (source, _, sink) = self.ends(src, dst, bytes)?;
        copy(source, sink)
    }

    fn measure(&mut self, cargo: Cargo, verify: bool) -> Result<Measured, ProfilerError> {
        let Cargo { src, dst, bytes } = cargo;
        let is_alone = self.is_alone;
        let (source, seed, sink) = self.ends(src, dst, bytes)?;
        let mut right = true;
        if verify {
            sink.fill(0);
        }
        let posted_ns = reference_ns();
        copy(source, sink)?;
        let end_ns = reference_ns();
        if verify {
            right &= pattern::is_pattern(sink, seed);
            sink.fill(0);
        }
        let ends = one_way(source, sink, is_alone)?;
        if verify {
            right &= pattern::is_pattern(sink, seed);
            sink.fill(0);
        }
        let (count, _) = stream_of(bytes, STREAM_BYTES);
        let begin_ns = reference_ns();
        for _ in 0..count {
            copy(source, sink)?;
        }
        let stream_ns = reference_ns() - begin_ns;
        if verify {
            right &= pattern::is_pattern(sink, seed);
        }
        let end = |[start_ns, end_ns]: [i64; 2]| End {
            clock: Some(0),
            start_ns: Some(start_ns),
            end_ns: Some(end_ns),
            ..End::default()
        };
        Ok(Measured {
            posted_ns,
            t_oneway_ns: Some((ends.sink_ns[1] - ends.source_ns[0]) as f64),
            t_host_ns: Some((end_ns - posted_ns) as f64),
            bandwidth_bytes_per_s: per_second(bytes * count, stream_ns),
            source: end(ends.source_ns),
            sink: end(ends.sink_ns),
            verify: verdict(verify, right),
            ..Measured::default()
        })
    }

    fn begin_load(&mut self, _: &[(u32, u32)], _: Duration) -> Result<(), ProfilerError> {
        Err(ProfilerError::Choice {
            what: "the path host has no background load: its copies are the caller's own".into(),
        })
    }

    fn end_load(&mut self) -> Result<(), ProfilerError> {
        Ok(())
    }
}

/// Returns the verification result of a sample.
pub(crate) fn verdict(verify: bool, right: bool) -> Verify {
    match (verify, right) {
        (false, _) => Verify::Off,
        (true, true) => Verify::Ok,
        (true, false) => Verify::Failed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sink_is_ready_before_and_told_after_and_threads_on_one_cpu_are_tried_again() {
        let source = Memory::from(vec![7; 64]);
        let mut sink = vec![0; 64];
        let ends = one_way(&source, &mut sink, false).unwrap();
        assert_eq!(sink, [7; 64]);
        let ([begin_ns, end_ns], [ready_ns, told_ns]) = (ends.source_ns, ends.sink_ns);
        assert!(ready_ns <= begin_ns && begin_ns <= end_ns && begin_ns < told_ns);
        sink.fill(0);
        let refused = try_one_way(&source, &mut sink, false, -1).unwrap();
        assert!(refused.is_none() && sink == [0; 64], "nothing is copied then");
        assert!(try_one_way(&source, &mut sink, true, -1).unwrap().is_some());
    }
}
