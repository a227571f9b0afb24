//! Locked clocks, only where somebody asked for them, and back again whatever happens.
//!
//! A lock outlives the process that sets it. So before it is set a second process of this program is
//! there, which waits for the end of a pipe that this one holds, and takes the lock away then: also
//! when this one was killed.

use std::io::{self, Read};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;

use polyrail_gpu::Identity;
use polyrail_profiler::{device_names, lock_clocks, unlock_clocks};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

use super::error::CommandError;

/// Clocks are locked as long as this lives.
pub(super) struct Locked {
    guard: Child,
    /// Its end tells the guard to restore.
    pipe: Option<ChildStdin>,
}

impl Locked {
    /// Locks the processors' clocks of these devices.
    pub(super) fn lock(devices: &[Identity], mhz: u32) -> Result<Self, CommandError> {
        if devices.is_empty() {
            return Err(CommandError::usage("--lock-clocks", "has no GPU to lock"));
        }
        let names = device_names(devices);
        let system = |what| move |source| CommandError::System { what, source };
        let program = std::env::current_exe().map_err(system("finding this program"))?;
        let mut guard = Command::new(program);
        guard.args(["profile", "--restore-clocks", &names.join(",")]);
        guard.stdin(Stdio::piped()).stdout(Stdio::null());
        let mut guard = guard.spawn().map_err(system("starting who restores the clocks"))?;
        let locked = Self { pipe: guard.stdin.take(), guard };
        // If it is refused, the guard restores what there is to restore.
        lock_clocks(&names, mhz).map_err(|why| {
            CommandError::Lock(format!("can't lock the clocks at {mhz} MHz: {why}"))
        })?;
        Ok(locked)
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        drop(self.pipe.take());
        match self.guard.wait() {
            Ok(status) if status.success() => {}
            _ => eprintln!(
                "polyrail: warning: look whether the clocks are restored: nvidia-smi -rgc"
            ),
        }
    }
}

/// What the guard does: waits for the end of its input and restores the clocks.
pub(super) fn guard(names: &[String]) -> Result<(), CommandError> {
    // Ctrl-C is for all processes of a terminal; this one ends last.
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        flag::register(signal, Arc::default())
            .map_err(|source| CommandError::System { what: "catching signals", source })?;
    }
    // However reading ends, it is over.
    let _ = io::stdin().read_to_end(&mut Vec::new());
    unlock_clocks(names)
        .map_err(|why| CommandError::Lock(format!("can't restore the clocks: {why}")))
}
