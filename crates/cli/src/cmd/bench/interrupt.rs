//! Ctrl-C and its like: the first one ends the run in order, the second one at once.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use polyrail_report::exit;
use signal_hook::flag;

use crate::cmd::bench::error::BenchError;
use crate::progress::Beside;
use crate::signals;

/// Whether somebody asked the run to end. Clones share one answer.
#[derive(Clone, Default)]
pub(crate) struct Interrupt {
    raised: Arc<AtomicBool>,
    /// By a signal, so that the next one ends the process.
    signalled: Arc<AtomicBool>,
    waiting: Arc<Waiting>,
}

/// For the other end, once it is raised.
#[derive(Default)]
struct Waiting {
    since: OnceLock<Instant>,
    beside: OnceLock<Beside>,
}

impl Interrupt {
    /// Catches what ends a command from here on.
    pub(crate) fn install() -> Result<Self, BenchError> {
        let interrupt = Self::default();
        for signal in signals::ending() {
            let Self { raised, signalled, .. } = &interrupt;
            let failed = |source| BenchError::system("catching signals", source);
            // The order matters: a signal that finds the flag already raised ends the process.
            let code = i32::from(exit::INTERRUPTED);
            flag::register_conditional_shutdown(signal, code, Arc::clone(signalled))
                .and_then(|_| flag::register(signal, Arc::clone(signalled)))
                .and_then(|_| flag::register(signal, Arc::clone(raised)))
                .map_err(failed)?;
        }
        Ok(interrupt)
    }

    /// The end of standard input raises it, too: a process that holds the other end asks so, once and for all, even by
    /// its own end. A signal to all processes of a run may come behind that, and is the first one yet.
    pub(crate) fn raise_when_stdin_ends(&self) -> Result<(), BenchError> {
        let interrupt = self.clone();
        let wait = move || {
            // Nothing is ever written to it.
            let _ = io::copy(&mut io::stdin(), &mut io::sink());
            interrupt.raise();
        };
        let failed = |source| BenchError::system("starting a thread for standard input", source);
        thread::Builder::new().spawn(wait).map(drop).map_err(failed)
    }

    /// Takes what ends a command without an effect: a terminal, `timeout` and the like send it to all processes of a run,
    /// and the one that started this one decides when it ends.
    pub(crate) fn ignore_signals() -> Result<(), BenchError> {
        // Nobody looks at what they raise.
        signals::caught().map(drop).map_err(|source| BenchError::system("catching signals", source))
    }

    /// Asks for the end from within this process.
    pub(crate) fn raise(&self) {
        self.raised.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_raised(&self) -> bool {
        self.raised.load(Ordering::Relaxed)
    }

    /// Tells there what it waits for, once it waits; otherwise nobody is told.
    pub(crate) fn tell_beside(&self, beside: Beside) {
        // Once for each run.
        let _ = self.waiting.beside.set(beside);
    }

    /// For who has waited for the other end for a while, and so learns that it is raised: says so the first time, and
    /// ends the wait when all waits since then have taken long enough.
    pub(crate) fn check_wait(&self) -> Result<(), BenchError> {
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
        if self.has_waited() { Err(BenchError::Interrupted) } else { Ok(()) }
    }

    /// Whether the other end gets no more time.
    pub(crate) fn has_waited(&self) -> bool {
        self.waiting.since.get().is_some_and(|since| since.elapsed() >= PATIENCE)
    }

    /// How often to look whether it is raised, where nothing tells.
    pub(crate) const LOOK: Duration = Duration::from_millis(200);

    /// How long a process may take that ends because of it.
    pub(crate) const CHILD_PATIENCE: Duration = Duration::from_secs(1);

    /// An error once it is raised.
    pub(crate) fn check(&self) -> Result<(), BenchError> {
        if self.is_raised() { Err(BenchError::Interrupted) } else { Ok(()) }
    }
}

/// How long an interrupted run waits for the other end in all.
const PATIENCE: Duration = Duration::from_secs(2);
