//! Keys that the reader of the screen presses.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::read;
use rustix::process::getpgrp;
use rustix::stdio::stdin;
use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetpgrp, tcsetattr,
};
use signal_hook::consts::{SIGQUIT, SIGTSTP, SIGTTIN};
use signal_hook::{flag, low_level};

/// A terminal that passes keys on at once and does not show them, until this is dropped. Ctrl-C stays a signal.
pub(super) struct Keys {
    before: Termios,
    passing: Termios,
    /// Raised by Ctrl-Z.
    pauses: Arc<AtomicBool>,
}

impl Keys {
    /// Returns `None` if no keys come: standard input is not a terminal, or this process runs in the background. Ctrl-\
    /// raises `stopped`: by default it would end the process with the terminal as it is.
    pub(super) fn begin(stopped: &Arc<AtomicBool>) -> Option<Self> {
        if !is_in_front() {
            return None;
        }
        let before = tcgetattr(stdin()).ok()?;
        let mut passing = before.clone();
        passing.local_modes -= UNWANTED;
        passing.special_codes[SpecialCodeIndex::VMIN] = 0;
        passing.special_codes[SpecialCodeIndex::VTIME] = 0;
        let pauses = Arc::default();
        flag::register(SIGQUIT, Arc::clone(stopped)).ok()?;
        flag::register(SIGTSTP, Arc::clone(&pauses)).ok()?;
        tcsetattr(stdin(), OptionalActions::Now, &passing).ok()?;
        Some(Self { before, passing, pauses })
    }

    /// Whether `q` was pressed since the last call. Doesn't wait, except that Ctrl-Z stops the process here, until it is
    /// continued.
    pub(super) fn is_q_pressed(&self) -> bool {
        if self.pauses.swap(false, Ordering::Relaxed) {
            self.give_back();
            // Stops the process as Ctrl-Z does without a handler, unless no shell could continue it.
            let _ = low_level::raise(SIGTTIN);
        }
        // In the background the kernel would stop a process that reads.
        if !is_in_front() {
            return false;
        }
        // A shell that had the terminal meanwhile has set its modes.
        if tcgetattr(stdin()).is_ok_and(|now| now.local_modes.intersects(UNWANTED)) {
            let _ = tcsetattr(stdin(), OptionalActions::Now, &self.passing);
        }
        let mut keys = [0; 64];
        read(stdin(), &mut keys).is_ok_and(|count| keys[..count].contains(&b'q'))
    }

    fn give_back(&self) {
        if is_in_front() {
            // A terminal that is gone needs no modes.
            let _ = tcsetattr(stdin(), OptionalActions::Now, &self.before);
        }
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        self.give_back();
    }
}

/// Modes in which keys wait for the end of the line, and are shown.
const UNWANTED: LocalModes = LocalModes::ICANON.union(LocalModes::ECHO);

/// Whether standard input is the terminal of this process, and its keys are for this process.
fn is_in_front() -> bool {
    tcgetpgrp(stdin()).is_ok_and(|group| group == getpgrp())
}
