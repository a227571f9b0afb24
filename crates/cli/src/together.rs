//! Threads that begin together or not at all.

use std::io;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread::{Builder, Scope, ScopedJoinHandle};

use parking_lot::RwLock;

/// Thread that runs one of the jobs.
pub(crate) struct Begun<'s, T>(ScopedJoinHandle<'s, Option<T>>);

/// Starts a thread for each job. The jobs begin when all threads have been started.
///
/// # Errors
/// The system's error if it can't start all threads. None of the jobs begins then.
pub(crate) fn start_all<'s, J, T>(
    scope: &'s Scope<'s, '_>,
    jobs: impl IntoIterator<Item = J>,
) -> io::Result<Vec<Begun<'s, T>>>
where
    J: FnOnce() -> T + Send + 's,
    T: Send + 's,
{
    let gate = Arc::new(RwLock::new(false));
    let mut is_open = gate.write();
    let start = |job: J| {
        let gate = Arc::clone(&gate);
        let run = move || {
            let is_open = *gate.read();
            is_open.then(job)
        };
        Builder::new().spawn_scoped(scope, run).map(Begun)
    };
    let begun = jobs.into_iter().map(start).collect::<io::Result<Vec<_>>>()?;
    *is_open = true;
    Ok(begun)
}

impl<T> Begun<'_, T> {
    /// Waits for the end of the job. A panic of the job is resumed in the caller.
    pub(crate) fn join(self) -> Option<T> {
        self.0.join().unwrap_or_else(|panic| resume_unwind(panic))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::{env, fs, thread};

    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    use super::*;

    /// Runs the calling test in a separate process. Returns `true` there.
    pub(crate) fn is_alone(test: &str) -> bool {
        const ALONE: &str = "POLYRAIL_TEST_IS_ALONE";
        if env::var_os(ALONE).is_some() {
            return true;
        }
        let mut command = std::process::Command::new(env::current_exe().unwrap());
        command.args([test, "--exact", "--test-threads=1"]).env(ALONE, "1");
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{output:?}");
        false
    }

    /// Runs `work` without enough address space for the stack of another thread.
    pub(crate) fn without_more_threads<T>(work: impl FnOnce() -> T) -> T {
        let statm = fs::read_to_string("/proc/self/statm").unwrap();
        let pages: u64 = statm.split(' ').next().unwrap().parse().unwrap();
        let before = getrlimit(Resource::As);
        let bytes = pages * rustix::param::page_size() as u64 + (1 << 20);
        setrlimit(Resource::As, Rlimit { current: Some(bytes), ..before }).unwrap();
        let done = work();
        setrlimit(Resource::As, before).unwrap();
        done
    }

    #[test]
    fn no_job_begins_if_not_all_threads_can_be_started() {
        let alone = is_alone("together::tests::no_job_begins_if_not_all_threads_can_be_started");
        let ran = AtomicUsize::new(0);
        let start = || {
            thread::scope(|scope| {
                let job = |_| || ran.fetch_add(1, Ordering::Relaxed);
                without_more_threads(|| start_all(scope, (0..3).map(job)).map(drop))
            })
        };
        let refused = alone.then(|| start().unwrap_err().kind());
        assert_eq!(refused, alone.then_some(io::ErrorKind::WouldBlock));
        assert_eq!(ran.into_inner(), 0);
    }

    #[test]
    fn no_job_begins_before_the_last_thread_is_there() {
        let mut made = 0;
        let jobs = (0..8).map(|number| {
            made += 1;
            move || number
        });
        let done: Vec<i32> = thread::scope(|scope| {
            let begun = start_all(scope, jobs).unwrap();
            begun.into_iter().filter_map(Begun::join).collect()
        });
        assert_eq!((done, made), ((0..8).collect(), 8));
    }
}
