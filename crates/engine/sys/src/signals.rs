//! Signals that end a process instead of returning an error.

use std::mem::MaybeUninit;
use std::ptr::null_mut;

/// Signals to a writing thread: for writing beyond the file size limit (`ulimit -f`), and to a pipe without a reader.
const OF_WRITERS: [libc::c_int; 2] = [libc::SIGXFSZ, libc::SIGPIPE];

/// Runs `write` such that exceeding `RLIMIT_FSIZE` fails with `EFBIG` and a pipe without a reader with `EPIPE`.
/// Otherwise the kernel ends the process by SIGXFSZ or SIGPIPE, unless the program handles them.
///
/// The program's signal handlers stay unchanged: this thread blocks both signals, and discards those that its own calls
/// have raised. It takes four system calls, so it is for logs and files, not for payload; [`crate::send`] raises no
/// signal.
pub fn without_write_signals<T>(write: impl FnOnce() -> T) -> T {
    let _blocked = Blocked::new();
    write()
}

/// Blocks both signals in this thread until dropped.
struct Blocked {
    /// Previous signal mask of this thread.
    before: libc::sigset_t,
    /// Signals that were not pending before, so `write` has raised them.
    raised: libc::sigset_t,
}

impl Blocked {
    fn new() -> Self {
        let mut pending = empty();
        // SAFETY: a set of signals of this thread's stack, which the call fills.
        unsafe { libc::sigpending(&raw mut pending) };
        let (mut all, mut raised) = (empty(), empty());
        for signal in OF_WRITERS {
            // SAFETY: initialised sets of this thread's stack, and a signal that exists.
            unsafe {
                libc::sigaddset(&raw mut all, signal);
                if libc::sigismember(&raw const pending, signal) == 0 {
                    libc::sigaddset(&raw mut raised, signal);
                }
            }
        }
        let mut before = empty();
        // SAFETY: initialised sets of this thread's stack. Only this thread's mask changes.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, &raw mut before) };
        Self { before, raised }
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: initialised values of this thread's stack; the call takes a pending signal of the set, if there is one.
        let take = || unsafe { libc::sigtimedwait(&self.raised, null_mut(), &raw const at_once) };
        while take() > 0 {}
        // SAFETY: the mask that the thread had before.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.before, null_mut()) };
    }
}

fn empty() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: the call initialises the set.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        set.assume_init()
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, Write};
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    use rustix::process::{Resource, Rlimit, setrlimit};

    use super::*;
    use crate::SharedMemory;

    /// A name and a function that writes and returns its error.
    type Place = (&'static str, fn() -> String);

    /// Functions that write, for a process whose files may have 4 KiB.
    const PLACES: [Place; 3] = [
        ("file", || {
            let path = std::env::temp_dir().join(format!("polyrail-limit-{}", std::process::id()));
            let mut file = std::fs::File::create_new(&path).unwrap();
            std::fs::remove_file(path).unwrap();
            without_write_signals(|| file.write_all(&[1; 8192])).unwrap_err().to_string()
        }),
        ("pipe", || {
            let (reader, mut writer) = io::pipe().unwrap();
            drop(reader);
            without_write_signals(|| writer.write_all(b"x")).unwrap_err().to_string()
        }),
        ("shared memory", || SharedMemory::create(1 << 20, 7).map(drop).unwrap_err().to_string()),
    ];
    const EXPECTED: [&str; 3] = [
        "File too large",
        "Broken pipe",
        "a file may have 4096 bytes here (RLIMIT_FSIZE), shared memory of 1052672 needs more",
    ];

    const PLACE: &str = "POLYRAIL_TEST_PLACE";

    /// Body of the test below, run in a child process that has the limit and the system's default actions.
    #[test]
    fn in_a_limited_process() {
        let Ok(place) = std::env::var(PLACE) else {
            // Without the limit, nothing is refused.
            assert!(SharedMemory::create(1 << 20, 7).is_ok());
            return;
        };
        let place: usize = place.parse().unwrap();
        let few = Rlimit { current: Some(4096), maximum: Some(4096) };
        setrlimit(Resource::Fsize, few).unwrap();
        for signal in OF_WRITERS {
            // SAFETY: this process runs this test alone, and wants the system's default actions.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
        let why = PLACES[place].1();
        assert!(why.contains(EXPECTED[place]), "{why}");
        // No signal is left pending that would end the process later.
        let mut pending = empty();
        // SAFETY: a set of this thread's stack.
        unsafe { libc::sigpending(&raw mut pending) };
        for signal in OF_WRITERS {
            // SAFETY: an initialised set.
            assert_eq!(unsafe { libc::sigismember(&raw const pending, signal) }, 0);
        }
    }

    #[test]
    fn a_write_beyond_a_limit_or_to_nobody_is_an_error_and_no_signal() {
        for (number, (place, _)) in PLACES.iter().enumerate() {
            let mut child = Command::new(std::env::current_exe().unwrap());
            let test = "signals::tests::in_a_limited_process";
            child.args(["--exact", test, "--nocapture"]).env(PLACE, number.to_string());
            let ended = child.output().unwrap();
            let text = String::from_utf8_lossy(&ended.stderr);
            assert_eq!(ended.status.signal(), None, "{place}: {text}");
            assert!(ended.status.success(), "{place}: {text}");
        }
    }

    #[test]
    fn signals_that_others_sent_before_stay() {
        std::thread::spawn(|| {
            let _before = Blocked::new();
            // SAFETY: a signal to this thread, which has blocked it.
            unsafe { libc::pthread_kill(libc::pthread_self(), libc::SIGPIPE) };
            without_write_signals(|| ());
            let mut pending = empty();
            // SAFETY: sets of this thread's stack.
            unsafe { libc::sigpending(&raw mut pending) };
            // SAFETY: an initialised set.
            assert_eq!(unsafe { libc::sigismember(&raw const pending, libc::SIGPIPE) }, 1);
        })
        .join()
        .unwrap();
    }
}
