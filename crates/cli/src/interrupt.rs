//! Ctrl-C and other signals that end a command.

use std::io::{self, IsTerminal, Read};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use polyrail_report::exit;
use signal_hook::flag;
use signal_hook::low_level::{self, pipe};

use crate::fault::Fault;
use crate::progress::Beside;
use crate::signals;
use crate::stdout::{complain, tell};

/// Signal that ends the process at once. Earlier ones end the run in order.
#[derive(Clone, Copy)]
pub(crate) enum AtOnce {
    Second,
    /// The second signal, or the first one, with this message, if it comes before [`Interrupt::end_in_order`] is
    /// called.
    FirstWhileNothingIsDone(&'static str),
    /// No signal: the run must undo its changes first, which takes moments.
    Never,
}

/// A request to end the run. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct Interrupt {
    raised: Arc<AtomicBool>,
    /// A signal raised the request, so the next one ends the process.
    signalled: Arc<AtomicBool>,
    /// The run has state that must be cleaned up after the first signal.
    in_order: Arc<AtomicBool>,
    waiting: Arc<Waiting>,
}

/// Wait for the other end, after the request.
#[derive(Default)]
struct Waiting {
    since: OnceLock<Instant>,
    beside: OnceLock<Beside>,
}

impl Interrupt {
    /// Starts to catch the signals that end a command.
    pub(crate) fn install(at_once: AtOnce) -> Result<Self, Fault> {
        let interrupt = Self::default();
        interrupt.catch(at_once).map_err(|error| Fault::system(CATCHING, error))?;
        Ok(interrupt)
    }

    fn catch(&self, at_once: AtOnce) -> io::Result<()> {
        let Self { raised, signalled, .. } = self;
        for signal in signals::ending() {
            // The order matters: a signal that finds the flag already raised ends the process.
            if !matches!(at_once, AtOnce::Never) {
                flag::register_conditional_shutdown(signal, CODE, Arc::clone(signalled))?;
            }
            flag::register(signal, Arc::clone(signalled))?;
            flag::register(signal, Arc::clone(raised))?;
        }
        match at_once {
            AtOnce::FirstWhileNothingIsDone(message) => self.end_at_first(message),
            AtOnce::Second | AtOnce::Never => Ok(()),
        }
    }

    /// Ends the process at the first signal, unless [`Self::end_in_order`] was called before.
    fn end_at_first(&self, message: &'static str) -> io::Result<()> {
        let (mut told, tells) = UnixStream::pair()?;
        for signal in signals::ending() {
            pipe::register(signal, tells.try_clone()?)?;
        }
        let in_order = Arc::clone(&self.in_order);
        // A thread prints and exits: a signal handler may not print, and the main thread may be busy for a minute.
        let end = move || {
            if told.read_exact(&mut [0]).is_ok() && !in_order.load(Ordering::Relaxed) {
                if io::stderr().is_terminal() {
                    // Leave the line of a progress bar.
                    tell!("");
                }
                complain(message, None);
                // Skip exit handlers of libraries: the main thread still uses their state.
                low_level::exit(CODE);
            }
        };
        thread::Builder::new().name("interrupt".into()).spawn(end).map(drop)
    }

    /// Lets the first signal end the run in order from now on.
    pub(crate) fn end_in_order(&self) {
        self.in_order.store(true, Ordering::Relaxed);
    }

    /// Raises the request when standard input ends. The process that holds the other end of the pipe requests the end
    /// by closing it or by exiting. A later signal to all processes of a run still counts as the first one.
    pub(crate) fn raise_when_stdin_ends(&self) -> Result<(), Fault> {
        let interrupt = self.clone();
        let wait = move || {
            // The pipe never carries data.
            let _ = io::copy(&mut io::stdin(), &mut io::sink());
            interrupt.raise();
        };
        let failed = |error| Fault::system("starting a thread for standard input", error);
        thread::Builder::new().spawn(wait).map(drop).map_err(failed)
    }

    /// Ignores the signals that end a command. A terminal or `timeout` sends them to all processes of a run, and the
    /// process that started this one decides when this one ends.
    pub(crate) fn ignore_signals() -> Result<(), Fault> {
        // The flag is never read.
        signals::caught().map(drop).map_err(|error| Fault::system(CATCHING, error))
    }

    /// Requests the end from within this process.
    pub(crate) fn raise(&self) {
        self.raised.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_raised(&self) -> bool {
        self.raised.load(Ordering::Relaxed)
    }

    /// Prints the reason for the wait through `beside`. Without this call the wait prints nothing.
    pub(crate) fn tell_beside(&self, beside: Beside) {
        // Each run calls this once, so the cell is empty.
        let _ = self.waiting.beside.set(beside);
    }

    /// Checks a wait for the other end; waiting callers call this repeatedly. After an interrupt the first call prints
    /// that the run waits, and calls more than [`PATIENCE`] later end the wait.
    pub(crate) fn check_wait(&self) -> Result<(), Fault> {
        if !self.is_raised() {
            return Ok(());
        }
        self.waiting.since.get_or_init(|| {
            if let Some(beside) = self.waiting.beside.get() {
                let text =
                    "waits for the other end, some seconds at most; Ctrl-C again ends at once";
                beside.say(|what| format!("{what}: interrupted, {text}"));
            }
            Instant::now()
        });
        if self.has_waited() { Err(Fault::interrupted()) } else { Ok(()) }
    }

    /// Returns whether the other end gets no more time.
    pub(crate) fn has_waited(&self) -> bool {
        self.waiting.since.get().is_some_and(|since| since.elapsed() >= PATIENCE)
    }

    /// Interval between checks of the request, where no event announces it.
    pub(crate) const LOOK: Duration = Duration::from_millis(200);

    /// Time that a child process gets to end after an interrupt.
    pub(crate) const CHILD_PATIENCE: Duration = Duration::from_secs(1);

    /// Returns an error after an interrupt.
    pub(crate) fn check(&self) -> Result<(), Fault> {
        if self.is_raised() { Err(Fault::interrupted()) } else { Ok(()) }
    }
}

/// Exit code after a signal that ends the process at once.
const CODE: i32 = exit::INTERRUPTED as i32;
const CATCHING: &str = "catching signals";
/// Maximum total time that an interrupted run waits for the other end.
const PATIENCE: Duration = Duration::from_secs(2);
