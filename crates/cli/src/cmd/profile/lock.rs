//! Locked clocks, only if the user asks for them: [`ClockLock`] with this program as its guard.

use std::io::{self, Read};
use std::process::Command;
use std::sync::Arc;

use polyrail_gpu::Identity;
use polyrail_profiler::{ClockLock, device_names, unlock_clocks};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

use crate::fault::Fault;
use crate::stdout::tell;

/// Clocks that are locked until this is dropped.
pub(super) struct Locked(ClockLock);

impl Locked {
    /// Locks the processors' clocks of these devices.
    pub(super) fn lock(devices: &[Identity], mhz: u32) -> Result<Self, Fault> {
        if devices.is_empty() {
            return Err(Fault::usage(
                "--lock-clocks",
                mhz.to_string(),
                "has no GPU to lock",
                "with a GPU among the endpoints",
            ));
        }
        let names = device_names(devices);
        let system = |source| Fault::system("finding this program", source);
        let mut guard = Command::new(std::env::current_exe().map_err(system)?);
        guard.args(["profile", "--restore-clocks", &names.join(",")]);
        Ok(Self(ClockLock::lock(guard, &names, mhz)?))
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        if let Err(why) = self.0.restore() {
            tell!(
                "polyrail: warning: {why}: look whether the clocks are restored: nvidia-smi -rgc"
            );
        }
    }
}

/// Runs the guard, which waits for the end of its input and restores the clocks.
pub(super) fn guard(names: &[String]) -> Result<(), Fault> {
    // Ctrl-C reaches all processes of a terminal, and this one must end last.
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        flag::register(signal, Arc::default())
            .map_err(|source| Fault::system("catching signals", source))?;
    }
    // A read error ends the wait, as the end of the input does.
    let _ = io::stdin().read_to_end(&mut Vec::new());
    unlock_clocks(names).map_err(|why| {
        Fault::environment(format!("can't restore the clocks: {why}"))
            .with_help("it takes root; without --lock-clocks nothing is changed")
    })
}
