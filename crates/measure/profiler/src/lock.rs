//! Locks clocks, and always unlocks them.
//!
//! A lock outlives the process that sets it. So this process first starts a second one, the guard. The guard waits for
//! the end of a pipe that this process holds, and then removes the lock, even if this process was killed.

use std::process::{Child, ChildStdin, Command, Stdio};

use crate::error::ProfilerError;
use crate::thermal::lock_clocks;

/// Keeps clocks locked until dropped.
#[derive(Debug)]
pub struct ClockLock {
    guard: Child,
    /// Pipe to the guard; closing it makes the guard restore the clocks.
    pipe: Option<ChildStdin>,
}

impl ClockLock {
    /// Starts `guard`, which must read its standard input to the end and then call
    /// [`unlock_clocks`](crate::unlock_clocks), and locks the processor clocks of these devices.
    ///
    /// # Errors
    /// If the guard does not start; then nothing is locked. If NVML or a permission is missing, or a device does not
    /// support locking; then the guard restores the clocks.
    pub fn lock(mut guard: Command, names: &[String], mhz: u32) -> Result<Self, ProfilerError> {
        let machine = |what: String| ProfilerError::Machine {
            what,
            help: "it takes root; without --lock-clocks nothing is changed".into(),
        };
        let guard = guard.stdin(Stdio::piped()).stdout(Stdio::null()).spawn();
        let mut guard = guard.map_err(|error| {
            machine(format!("can't start the process that restores clocks: {error}"))
        })?;
        let mut locked = Self { pipe: guard.stdin.take(), guard };
        match lock_clocks(names, mhz) {
            Ok(()) => Ok(locked),
            Err(why) => {
                // Ignore its complaint about a lock that was never set.
                let _ = locked.restore();
                Err(machine(format!("can't lock the clocks at {mhz} MHz: {why}")))
            }
        }
    }

    /// Restores the clocks, and waits until that is done.
    ///
    /// # Errors
    /// If the guard did not restore them.
    pub fn restore(&mut self) -> Result<(), String> {
        drop(self.pipe.take());
        match self.guard.wait() {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(format!("the process that restores the clocks ended with {status}")),
            Err(error) => Err(format!("the process that restores the clocks is lost: {error}")),
        }
    }
}

impl Drop for ClockLock {
    fn drop(&mut self) {
        let _ = self.restore();
    }
}
