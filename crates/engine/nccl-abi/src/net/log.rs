//! Where the log of plugins goes.

use std::ffi::{CStr, c_char, c_int, c_ulong};
use std::io::Write as _;
use std::panic::catch_unwind;
use std::sync::OnceLock;

use crate::{LogLevel, Logger};

/// Takes lines of plugins' logs: how NCCL ranks it ([`LogLevel`]), bits of [`subsystem`](crate::subsystem),
/// the text. Called on threads of the plugin, too.
pub type LogSink = Box<dyn Fn(c_int, c_ulong, &str) + Send + Sync>;

static SINK: OnceLock<LogSink> = OnceLock::new();

type Finished = unsafe extern "C" fn(c_int, c_ulong, *const c_char);

unsafe extern "C" {
    fn polyrail_nccl_logger(to: Finished) -> Logger;
}

/// Gives this process's sink, and returns whether it was the first one: later ones are ignored. Without
/// one, warnings go to standard error, and everything else is left out.
pub fn log_to(sink: LogSink) -> bool {
    SINK.set(sink).is_ok()
}

/// The logger to give to plugins.
pub(super) fn logger() -> Logger {
    // SAFETY: it only keeps the address, and a function lives as long as the process.
    unsafe { polyrail_nccl_logger(finished) }
}

/// # Safety
/// The text is a terminated string.
unsafe extern "C" fn finished(level: c_int, subsystems: c_ulong, text: *const c_char) {
    // SAFETY: as the caller promises.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    let done = catch_unwind(|| match SINK.get() {
        Some(sink) => sink(level, subsystems, &text),
        // Don't use `eprintln`, which panics if nobody reads.
        None if level == LogLevel::Warn as c_int => {
            let _ = writeln!(std::io::stderr(), "{text}");
        }
        None => {}
    });
    // A panic was told by the hook, and goes no further: the caller is C.
    drop(done);
}
