//! Locked clocks, and back again whatever happens.
//!
//! A lock outlives the process that sets it. So before it is set a second process is there, the guard,
//! which waits for the end of a pipe that this one holds, and takes the lock away then: also when this
//! one was killed.

use std::process::{Child, ChildStdin, Command, Stdio};

use crate::error::ProfilerError;
use crate::thermal::lock_clocks;

/// Clocks are locked as long as this lives.
#[derive(Debug)]
pub struct ClockLock {
    guard: Child,
    /// Its end tells the guard to restore.
    pipe: Option<ChildStdin>,
}

impl ClockLock {
    /// Starts `guard`, which must read its standard input to the end and then call
    /// [`unlock_clocks`](crate::unlock_clocks), and locks the processors' clocks of these devices.
    ///
    /// # Errors
    /// A guard that does not start; then nothing is locked. No NVML, no permission, a device that can't;
    /// then the guard restores what there is to restore.
    pub fn lock(mut guard: Command, names: &[String], mhz: u32) -> Result<Self, ProfilerError> {
        let machine = |what: String| ProfilerError::Machine {
            what,
            help: "it takes root; without --lock-clocks nothing is changed".into(),
        };
        let guard = guard.stdin(Stdio::piped()).stdout(Stdio::null()).spawn();
        let mut guard = guard
            .map_err(|error| machine(format!("can't start who restores the clocks: {error}")))?;
        let mut locked = Self { pipe: guard.stdin.take(), guard };
        match lock_clocks(names, mhz) {
            Ok(()) => Ok(locked),
            Err(why) => {
                // What it says of a lock that was never set is of no use.
                let _ = locked.restore();
                Err(machine(format!("can't lock the clocks at {mhz} MHz: {why}")))
            }
        }
    }

    /// Restores them, and waits until that is done.
    ///
    /// # Errors
    /// A guard that did not restore them.
    pub fn restore(&mut self) -> Result<(), String> {
        drop(self.pipe.take());
        match self.guard.wait() {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(format!("who restores the clocks ended with {status}")),
            Err(error) => Err(format!("who restores the clocks is lost: {error}")),
        }
    }
}

impl Drop for ClockLock {
    fn drop(&mut self) {
        let _ = self.restore();
    }
}
