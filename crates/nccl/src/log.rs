//! Into NCCL's log.

use std::ffi::{CString, c_char, c_ulong};
use std::fmt::{self, Write as _};
use std::io::{self, Write as _};
use std::sync::atomic::{AtomicUsize, Ordering};

use polyrail_nccl_abi::{LogLevel, Logger, subsystem};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber, span};

/// NCCL's logger as an address; 0 while there is none.
static LOGGER: AtomicUsize = AtomicUsize::new(0);

/// From now on our messages and the engine's records go to this logger.
pub(crate) fn set(logger: Option<Logger>) {
    let Some(logger) = logger else { return };
    LOGGER.store(logger as usize, Ordering::Release);
    // Only the first call of a process can succeed, and one is enough.
    let _ = tracing::subscriber::set_global_default(ToNccl);
}

/// Something that the user has to know.
pub(crate) fn warn(text: &str) {
    write(LogLevel::Warn, subsystem::NET, text);
}

/// Something that is good to know at the start.
pub(crate) fn info(text: &str) {
    write(LogLevel::Info, subsystem::INIT | subsystem::NET, text);
}

fn write(level: LogLevel, flags: c_ulong, text: &str) {
    let address = LOGGER.load(Ordering::Acquire);
    if address == 0 {
        if level == LogLevel::Warn {
            // Don't use `eprintln`, which panics if nobody reads.
            let _ = writeln!(io::stderr(), "NET/Polyrail : {text}");
        }
        return;
    }
    // SAFETY: the address is only ever set from a `Logger`, above.
    let logger: Logger = unsafe { std::mem::transmute::<usize, Logger>(address) };
    let Ok(text) = CString::new(format!("NET/Polyrail : {}", text.replace('\0', " "))) else {
        return;
    };
    let place: *const c_char = c"polyrail".as_ptr();
    // SAFETY: NCCL's logger takes a printf format and what it asks for; all strings are terminated
    // and live through the call.
    unsafe { logger(level as i32, flags, place, 0, c"%s".as_ptr(), text.as_ptr()) };
}

/// Hands the engine's records to NCCL.
struct ToNccl;

impl Subscriber for ToNccl {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::INFO
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = Text::default();
        event.record(&mut text);
        let level =
            if *event.metadata().level() <= Level::WARN { LogLevel::Warn } else { LogLevel::Info };
        write(level, subsystem::NET, &format!("{}{}", text.message, text.fields));
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
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
