//! Signals that end a command in order.

use std::ffi::c_int;
use std::fs;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use polyrail_report::exit;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::flag;

/// Returns SIGINT (Ctrl-C), SIGTERM, and SIGHUP (the end of the terminal) unless it is ignored, as under `nohup`.
pub(crate) fn ending() -> Vec<c_int> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mut signals = vec![SIGINT, SIGTERM];
    // If the process's status is unknown, SIGHUP keeps the disposition that the kernel has for it.
    if ignores(&status, SIGHUP) == Some(false) {
        signals.push(SIGHUP);
    }
    signals
}

/// Returns a flag that each of these signals raises from now on, instead of ending the process.
pub(crate) fn caught() -> io::Result<Arc<AtomicBool>> {
    let raised = Arc::default();
    for signal in ending() {
        flag::register(signal, Arc::clone(&raised))?;
    }
    Ok(raised)
}

/// Makes each of these signals end the process at once from now on, for a command that has nothing to clean up.
pub(crate) fn end_at_once() -> io::Result<()> {
    for signal in ending() {
        let always = Arc::new(AtomicBool::new(true));
        flag::register_conditional_shutdown(signal, i32::from(exit::INTERRUPTED), always)?;
    }
    Ok(())
}

/// Makes a write fail that would exceed this user's limit for the size of a file (`ulimit -f`), instead of letting the
/// signal end the process silently.
pub(crate) fn outlive_large_files() -> io::Result<()> {
    flag::register(SIGXFSZ, Arc::default()).map(drop)
}

/// Returns whether a process with this `/proc/PID/status` ignores the signal, or `None` if the text has no such mask.
fn ignores(status: &str, signal: c_int) -> Option<bool> {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"))?;
    let mask = u64::from_str_radix(mask.trim(), 16).ok()?;
    Some(mask >> (signal - 1) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mask_of_ignored_signals_is_read() {
        let status = "Name:\tx\nSigBlk:\t0000000000000001\nSigIgn:\t0000000000001001\n";
        assert_eq!(ignores(status, SIGHUP), Some(true));
        assert_eq!(ignores(status, SIGINT), Some(false));
        assert_eq!(ignores("Name:\tx\n", SIGHUP), None);
    }
}
