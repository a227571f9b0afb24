//! Samples at a steady pace and writes lines.

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use polyrail_host::Sysroot;

use crate::error::SampleError;
use crate::record::{End, Record};
use crate::sampler::{SHORTEST_INTERVAL, Sampler, thread_cpu, unix_ms};

/// A sampler in its own thread. Dropping it without [`Attached::stop`] ends the thread within an
/// interval, and its file has no last line.
#[derive(Debug)]
pub struct Attached {
    stop: Sender<()>,
    thread: Option<JoinHandle<Result<End, SampleError>>>,
}

/// Writes records to `out`: the start record at once, then a sample per interval until `pause` returns `false`, a last
/// sample if the rest took 100 ms or more, and the end record. Errors call the output `name`.
///
/// `pause` is called with the time until the next sample; it waits that long and returns `true`, or returns `false`
/// earlier to stop.
///
/// # Errors
/// [`SampleError::Write`]. A closed pipe, as after `head`, ends sampling without an error.
pub fn run(
    sampler: &mut Sampler,
    out: &mut dyn Write,
    name: &str,
    mut pause: impl FnMut(Duration) -> bool,
) -> Result<End, SampleError> {
    let interval = sampler.interval();
    let started = Instant::now();
    let cpu_before = thread_cpu();
    let mut end = End::default();
    let mut written = (|| -> io::Result<()> {
        line(out, &Record::Start(sampler.start().clone()))?;
        let mut last = sampler.snapshot();
        let mut due = started + interval;
        loop {
            let goes_on = pause(due.saturating_duration_since(Instant::now()));
            if !goes_on && last.at.elapsed() < SHORTEST_INTERVAL {
                return Ok(());
            }
            let next = sampler.snapshot();
            line(out, &Record::Sample(Box::new(sampler.between(&last, &next))))?;
            end.samples += 1;
            if !goes_on {
                return Ok(());
            }
            last = next;
            due += interval;
            // After a suspension of the machine, skip the missed samples.
            while due < Instant::now() {
                due += interval;
                end.skipped += 1;
            }
        }
    })();
    end.ended_unix_ms = unix_ms();
    let cpu = thread_cpu().saturating_sub(cpu_before);
    end.cpu_us = cpu.as_micros() as u64;
    let share = cpu.as_secs_f64() / started.elapsed().as_secs_f64().max(1e-9);
    end.cpu_percent = (share * 1e4).round() / 1e2;
    end.peak_rss_bytes = peak_rss_bytes();
    if written.is_ok() {
        written = line(out, &Record::End(end.clone()));
    }
    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(end),
        Err(source) => Err(SampleError::Write { path: name.into(), source }),
        Ok(()) => Ok(end),
    }
}

impl Attached {
    /// Starts the thread, which writes to `out`; errors call the output `name`.
    ///
    /// # Errors
    /// [`SampleError::Thread`].
    pub fn start(
        mut sampler: Sampler,
        mut out: impl Write + Send + 'static,
        name: impl Into<PathBuf>,
    ) -> Result<Self, SampleError> {
        let (stop, stopped) = channel();
        let name = Arc::new(name.into());
        let thread = thread::Builder::new().name("pr-sample".into()).spawn(move || {
            let pause = |time| goes_on(&stopped, time);
            run(&mut sampler, &mut out, &name.display().to_string(), pause)
        });
        let thread = thread.map_err(|source| SampleError::Thread { source })?;
        Ok(Self { stop, thread: Some(thread) })
    }

    /// Ends the thread and waits for its last line.
    ///
    /// # Errors
    /// The error that ended the thread earlier.
    pub fn stop(mut self) -> Result<End, SampleError> {
        // If the thread failed, it has ended already, and returns its error.
        let _ = self.stop.send(());
        let Some(thread) = self.thread.take() else { return Ok(End::default()) };
        match thread.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

fn goes_on(stopped: &Receiver<()>, time: Duration) -> bool {
    stopped.recv_timeout(time) == Err(RecvTimeoutError::Timeout)
}

fn line(out: &mut dyn Write, record: &Record) -> io::Result<()> {
    let mut text = serde_json::to_vec(record)?;
    text.push(b'\n');
    // Write in one piece, so that a program that follows the file sees whole lines.
    out.write_all(&text)?;
    out.flush()
}

fn peak_rss_bytes() -> Option<u64> {
    let status = Sysroot::live().read("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::sampler::Options;

    /// A shared buffer that replaces a file.
    #[derive(Clone, Default)]
    struct Shared(Arc<Mutex<Vec<u8>>>);

    impl Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn sampler() -> Sampler {
        let interval = Duration::from_millis(100);
        let options = Options { interval, pids: vec![std::process::id()], ..Options::default() };
        Sampler::open(&Sysroot::live(), options).unwrap()
    }

    #[test]
    fn lines_are_a_start_samples_and_an_end_and_read_back() {
        let out = Shared::default();
        let attached = Attached::start(sampler(), out.clone(), "memory").unwrap();
        let lines = || out.0.lock().unwrap().iter().filter(|byte| **byte == b'\n').count();
        let deadline = Instant::now() + Duration::from_secs(20);
        while lines() < 4 && Instant::now() < deadline {
            // Poll: the writer does not announce new lines.
            thread::sleep(Duration::from_millis(20));
        }
        let end = attached.stop().unwrap();
        let text = String::from_utf8(out.0.lock().unwrap().clone()).unwrap();
        let records: Vec<Record> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert!(matches!(records.first(), Some(Record::Start(start)) if start.interval_ms == 100));
        assert_eq!(records.last(), Some(&Record::End(end.clone())));
        let count = records.iter().filter(|record| matches!(record, Record::Sample(_))).count();
        assert_eq!(count as u64, end.samples);
        assert!(count >= 3, "{end:?}");
        assert!(end.peak_rss_bytes.is_some() && end.cpu_us > 0, "{end:?}");
    }

    #[test]
    fn what_ends_within_an_interval_is_sampled_unless_it_was_too_short() {
        let samples_after = |time: Duration| {
            let interval = Duration::from_secs(3600);
            let mut sampler =
                Sampler::open(&Sysroot::live(), Options { interval, ..Options::default() });
            let mut out = Vec::new();
            let end = run(sampler.as_mut().unwrap(), &mut out, "memory", |_| {
                // The sleep stands for the sampled work.
                thread::sleep(time);
                false
            });
            let of_lines = out.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
            let records = of_lines.map(|line| serde_json::from_slice(line).unwrap());
            let samples = records.filter_map(|record| match record {
                Record::Sample(sample) => Some(sample.seconds),
                _ => None,
            });
            (end.unwrap().samples, samples.collect::<Vec<f64>>())
        };
        assert!(matches!(&samples_after(Duration::from_millis(150)), (1, one) if one[0] >= 0.15));
        // On a loaded machine even this may take 100 ms.
        let quick = (0..20).map(|_| samples_after(Duration::ZERO));
        assert!(quick.into_iter().any(|(samples, all)| samples == 0 && all.is_empty()));
    }

    #[test]
    fn a_full_disk_is_an_error_with_the_files_name_and_a_closed_pipe_is_none() {
        struct Failing(io::ErrorKind);
        impl Write for Failing {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(self.0.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let full = Attached::start(sampler(), Failing(io::ErrorKind::StorageFull), "s.jsonl");
        let message = full.unwrap().stop().unwrap_err().to_string();
        assert!(message.starts_with("can't write to s.jsonl"), "{message}");
        let closed = Attached::start(sampler(), Failing(io::ErrorKind::BrokenPipe), "-").unwrap();
        assert!(closed.stop().is_ok());
    }
}
