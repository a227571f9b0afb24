//! Output to NCCL's log and to the plugin's own file.

use std::ffi::{CString, c_char, c_ulong};
use std::fmt::{self, Write as _};
use std::io::{self, Write as _};
use std::sync::atomic::{AtomicUsize, Ordering};

use polyrail_config::{Config, Origin, Subsystems};
use polyrail_log::{Bounded, LogError, Settings, start_beside};
use polyrail_nccl_abi::{LogLevel, Logger, subsystem};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

use crate::error::CallError;

/// Address of NCCL's logger; 0 if there is none.
static LOGGER: AtomicUsize = AtomicUsize::new(0);

/// Subsystem of the plugin.
const OURS: &str = "polyrail::nccl";

/// Variable with the name of NCCL's own log file.
const NCCL_FILE: &str = "NCCL_DEBUG_FILE";

/// Sets the logger for the plugin's messages.
pub(crate) fn set(logger: Option<Logger>) {
    let Some(logger) = logger else { return };
    LOGGER.store(logger as usize, Ordering::Release);
}

/// Sends the engine's records to NCCL, and to `log_file` according to the settings `log_*`.
///
/// NCCL itself writes to the file of `NCCL_DEBUG_FILE`, so that one is not opened a second time.
pub(crate) fn start(config: &Config) -> Result<(), CallError> {
    let mut settings = Settings::of(config);
    if matches!(config.origin("log_file"), Some(Origin::Env { name }) if name == NCCL_FILE) {
        settings.file.clear();
    }
    // NCCL filters by NCCL_DEBUG.
    let to_nccl = Bounded::new(ToNccl, LevelFilter::INFO, Subsystems::ALL);
    match start_beside(&settings, to_nccl) {
        Ok(()) => Ok(()),
        // The job may continue: it has a log, though a different one.
        Err(error @ LogError::Taken { .. }) => {
            warn(&error.to_string());
            Ok(())
        }
        Err(error) => Err(CallError::Config(format!("{error}; {}", error.help()))),
    }
}

/// Logs a message that the user has to know.
pub(crate) fn warn(text: &str) {
    write(LogLevel::Warn, subsystem::NET, text);
    tracing::warn!(target: "polyrail::nccl", "{text}");
}

/// Logs a message that is useful at the start.
pub(crate) fn info(text: &str) {
    write(LogLevel::Info, subsystem::INIT | subsystem::NET, text);
    tracing::info!(target: "polyrail::nccl", "{text}");
}

fn write(level: LogLevel, flags: c_ulong, text: &str) {
    let address = LOGGER.load(Ordering::Acquire);
    if address == 0 {
        if level == LogLevel::Warn {
            // `eprintln` would panic if standard error is closed.
            let _ = writeln!(io::stderr(), "NET/Polyrail : {text}");
        }
        return;
    }
    // SAFETY: the address is only set from a `Logger`, above.
    let logger: Logger = unsafe { std::mem::transmute::<usize, Logger>(address) };
    let Ok(text) = CString::new(format!("NET/Polyrail : {}", text.replace('\0', " "))) else {
        return;
    };
    let place: *const c_char = c"polyrail".as_ptr();
    // SAFETY: NCCL's logger takes a printf format and matching arguments; all strings are terminated and live through
    // the call.
    unsafe { logger(level as i32, flags, place, 0, c"%s".as_ptr(), text.as_ptr()) };
}

/// Passes the engine's records to NCCL.
struct ToNccl;

impl<S: Subscriber> Layer<S> for ToNccl {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        // NCCL has these already, from `warn` and `info`.
        if event.metadata().target() == OURS {
            return;
        }
        let mut text = Text::default();
        event.record(&mut text);
        let level =
            if *event.metadata().level() <= Level::WARN { LogLevel::Warn } else { LogLevel::Info };
        write(level, subsystem::NET, &format!("{}{}", text.message, text.fields));
    }
}

#[derive(Default)]
struct Text {
    message: String,
    fields: String,
}

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a string can't fail.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, ", {name} {value:?}"),
        };
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        let _ = match field.name() {
            "message" => write!(self.message, "{value}"),
            name => write!(self.fields, ", {name} {value}"),
        };
    }
}
