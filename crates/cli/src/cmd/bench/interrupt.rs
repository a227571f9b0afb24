//! Ctrl-C and its like: the first one ends the run in order, the second one at once.

use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use polyrail_report::exit;
use signal_hook::consts::SIGINT;
use signal_hook::flag;

use crate::cmd::bench::error::BenchError;
use crate::signals;

/// Whether somebody asked the run to end. Clones share one answer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Interrupt {
    raised: Arc<AtomicBool>,
}

impl Interrupt {
    /// Catches what ends a command from here on.
    pub(crate) fn install() -> Result<Self, BenchError> {
        let interrupt = Self::default();
        for signal in signals::ending() {
            let raised = &interrupt.raised;
            let failed = |source| BenchError::system("catching signals", source);
            // The order matters: a signal that finds the flag already raised ends the process.
            flag::register_conditional_shutdown(
                signal,
                i32::from(exit::INTERRUPTED),
                Arc::clone(raised),
            )
            .and_then(|_| flag::register(signal, Arc::clone(raised)))
            .map_err(failed)?;
        }
        Ok(interrupt)
    }

    /// The end of standard input raises it, too: a process that holds the other end asks so, once and for all, even by
    /// its own end. A signal beside it would be the second one.
    pub(crate) fn raise_when_stdin_ends(&self) {
        let raised = Arc::clone(&self.raised);
        thread::spawn(move || {
            // Nothing is ever written to it.
            let _ = io::stdin().read_to_end(&mut Vec::new());
            raised.store(true, Ordering::Relaxed);
        });
    }

    /// Takes Ctrl-C without an effect: the process that started this one decides when it ends.
    pub(crate) fn ignore_ctrl_c() -> Result<(), BenchError> {
        flag::register(SIGINT, Arc::default())
            .map(drop)
            .map_err(|source| BenchError::system("catching signals", source))
    }

    pub(crate) fn is_raised(&self) -> bool {
        self.raised.load(Ordering::Relaxed)
    }

    /// An error once it is raised.
    pub(crate) fn check(&self) -> Result<(), BenchError> {
        if self.is_raised() { Err(BenchError::Interrupted) } else { Ok(()) }
    }
}
