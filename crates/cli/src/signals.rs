//! Which signals end a command in order.

use std::ffi::c_int;
use std::fs;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use polyrail_report::exit;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::flag;

/// Ctrl-C, SIGTERM, and the end of the terminal, unless it is to have no effect, as `nohup` has it.
pub(crate) fn ending() -> Vec<c_int> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mut signals = vec![SIGINT, SIGTERM];
    // Where nobody tells, the kernel goes on to decide.
    if ignores(&status, SIGHUP) == Some(false) {
        signals.push(SIGHUP);
    }
    signals
}

/// What each of them raises from now on, in place of ending the process.
pub(crate) fn caught() -> io::Result<Arc<AtomicBool>> {
    let raised = Arc::default();
    for signal in ending() {
        flag::register(signal, Arc::clone(&raised))?;
    }
    Ok(raised)
}

/// From now on each of them ends the process at once, for a command that has nothing to put in order.
pub(crate) fn end_at_once() -> io::Result<()> {
    for signal in ending() {
        let always = Arc::new(AtomicBool::new(true));
        flag::register_conditional_shutdown(signal, i32::from(exit::INTERRUPTED), always)?;
    }
    Ok(())
}

/// From now on a file that would become larger than this user's limit allows (`ulimit -f`) is one that can't be written,
/// in place of ending the process without a word.
pub(crate) fn outlive_large_files() -> io::Result<()> {
    flag::register(SIGXFSZ, Arc::default()).map(drop)
}

/// Whether a process with this `/proc/PID/status` ignores the signal.
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
