//! Ctrl-C and its like: while nothing has begun the first one ends the command at once, later in order; the second
//! one always ends it at once.

use std::io::{self, IsTerminal, Read};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use polyrail_report::exit;
use signal_hook::flag;
use signal_hook::low_level::{self, pipe};

use super::error::CommandError;
use crate::signals;
use crate::stdout::{complain, tell};

/// What signals do from its making on.
pub(super) struct Caught {
    raised: Arc<AtomicBool>,
    in_order: Arc<AtomicBool>,
}

impl Caught {
    pub(super) fn new() -> Result<Self, CommandError> {
        let caught = Self { raised: Arc::default(), in_order: Arc::default() };
        caught
            .install()
            .map_err(|source| CommandError::System { what: "catching signals", source })?;
        Ok(caught)
    }

    fn install(&self) -> io::Result<()> {
        let code = i32::from(exit::INTERRUPTED);
        let (mut told, tells) = UnixStream::pair()?;
        for signal in signals::ending() {
            // The order matters: a signal that finds the flag already raised ends the process.
            flag::register_conditional_shutdown(signal, code, Arc::clone(&self.raised))?;
            flag::register(signal, Arc::clone(&self.raised))?;
            pipe::register(signal, tells.try_clone()?)?;
        }
        let in_order = Arc::clone(&self.in_order);
        // A handler may not write messages, and the main thread may be filling memory for a minute.
        thread::Builder::new().name("interrupt".into()).spawn(move || {
            if told.read_exact(&mut [0]).is_ok() && !in_order.load(Ordering::Relaxed) {
                if io::stderr().is_terminal() {
                    // A bar may stand in the line.
                    tell!("");
                }
                complain(&CommandError::Interrupted.to_string(), None);
                // Libraries must not take down what the main thread still uses.
                low_level::exit(code);
            }
        })?;
        Ok(())
    }

    /// From now on something is there that the first signal must leave in order.
    pub(super) fn end_in_order(&self) {
        self.in_order.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_interrupted(&self) -> bool {
        self.raised.load(Ordering::Relaxed)
    }
}
