//! Destination of plugin logs.

use std::ffi::{CStr, c_char, c_int, c_ulong};
use std::io::Write as _;
use std::panic::catch_unwind;
use std::sync::OnceLock;

use crate::{LogLevel, Logger};

/// Receives lines of plugins' logs: NCCL's level ([`LogLevel`]), bits of [`subsystem`](crate::subsystem), and the text.
/// Also called on threads of the plugin.
pub type LogSink = Box<dyn Fn(c_int, c_ulong, &str) + Send + Sync>;

static SINK: OnceLock<LogSink> = OnceLock::new();

type Finished = unsafe extern "C" fn(c_int, c_ulong, *const c_char);

unsafe extern "C" {
    fn polyrail_nccl_logger(to: Finished) -> Logger;
}

/// Sets this process's sink. Returns true for the first call; later ones are ignored. Without a sink, warnings go to
/// standard error, and all other lines are dropped.
pub fn log_to(sink: LogSink) -> bool {
    SINK.set(sink).is_ok()
}

/// Logger to pass to plugins.
pub(super) fn logger() -> Logger {
    // SAFETY: the call only stores the address, and a function lives as long as the process.
    unsafe { polyrail_nccl_logger(finished) }
}

/// # Safety
/// `text` is a terminated string.
unsafe extern "C" fn finished(level: c_int, subsystems: c_ulong, text: *const c_char) {
    // SAFETY: as the caller promises.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    let done = catch_unwind(|| match SINK.get() {
        Some(sink) => sink(level, subsystems, &text),
        // `eprintln` would panic if standard error is closed.
        None if level == LogLevel::Warn as c_int => {
            let _ = writeln!(std::io::stderr(), "{text}");
        }
        None => {}
    });
    // The hook has reported the panic. It must not unwind into the caller, which is C.
    drop(done);
}
