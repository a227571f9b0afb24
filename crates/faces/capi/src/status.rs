//! Status codes of calls, and the text of a thread's last failure.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};

use polyrail::{EngineError, Explain, GpuError, PeerError, PostError, RegionError, TransferError};
use polyrail_config::ConfigError;

/// What calls return as an `int`: 0; a positive number where nothing is wrong, but nothing was done
/// either; a negative one for an error, which has changed nothing. Numbers keep their meaning in all
/// versions, and later ones may have more.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Done.
    PolyrailOk = 0,
    /// Not yet: ask again, or wait longer.
    PolyrailPending = 1,
    /// As many operations are outstanding as the setting `ops_pool` allows: post again when one is over.
    PolyrailBusy = 2,
    /// An argument is not one that is allowed; the text names it, its value and what is allowed.
    PolyrailErrArgument = -1,
    /// What is passed as a handle is none, is one of another kind, or was closed.
    PolyrailErrHandle = -2,
    /// A setting has a name or a value that is not allowed.
    PolyrailErrConfig = -3,
    /// The system refused something, or a file can't be used.
    PolyrailErrSystem = -4,
    /// Bytes are not what they should be: metadata of an engine, an invitation, a key of a region.
    PolyrailErrFormat = -5,
    /// Nobody could be connected to.
    PolyrailErrConnect = -6,
    /// A range is not inside a region.
    PolyrailErrRange = -7,
    /// A GPU, or its driver, is missing or did not do what was asked.
    PolyrailErrDevice = -8,
    /// A region or a peer belongs to another engine than the one that is asked.
    PolyrailErrForeign = -9,
    /// Something has reached its limit.
    PolyrailErrLimit = -10,
    /// The peer is gone, or the engine of the transfer was closed.
    PolyrailErrPeerLost = -11,
    /// A region of the request was closed.
    PolyrailErrRegionClosed = -12,
    /// The transfer was cancelled here.
    PolyrailErrCancelled = -13,
    /// The deadline of the transfer has passed.
    PolyrailErrDeadline = -14,
    /// The peer refused: a region is closed there, or may not be used like this. Or a group has refused this engine.
    PolyrailErrRefused = -15,
    /// A message is longer than the receive that it met.
    PolyrailErrTooLong = -16,
    /// The engine is closed.
    PolyrailErrClosed = -17,
    /// The handle belongs to the process that this one was forked from.
    PolyrailErrForked = -18,
    /// A fault of the library; it goes on, and the call may have done a part of its work.
    PolyrailErrPanic = -19,
    /// Something else, of which the text tells.
    PolyrailErrOther = -20,
}

/// Reason why a call failed.
#[derive(Debug)]
pub(crate) struct Failure {
    status: Status,
    text: String,
    help: String,
}

thread_local! {
    /// Text of this thread's last failure, and its fix.
    static LAST: RefCell<(CString, CString)> = RefCell::default();
}

/// What a status means, as a text that is always there. A number that is no status has a text, too.
#[unsafe(no_mangle)]
pub extern "C" fn polyrail_strerror(status: c_int) -> *const c_char {
    text_of(status).as_ptr()
}

/// The text of the last call of this thread that returned an error: it names what was wrong, its value
/// and what is allowed. Empty if none did. It stays until the next error of this thread, or its end.
#[unsafe(no_mangle)]
pub extern "C" fn polyrail_last_error() -> *const c_char {
    last(|(text, _)| text.as_ptr())
}

/// What to do about that error, where its text does not say; else empty. It stays as long as the text.
#[unsafe(no_mangle)]
pub extern "C" fn polyrail_last_help() -> *const c_char {
    last(|(_, help)| help.as_ptr())
}

/// The version of the library, as in "0.1.0".
#[unsafe(no_mangle)]
pub extern "C" fn polyrail_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// The number of the interface: POLYRAIL_ABI_VERSION of the header that the library was built with. A
/// program that was built with the same number, or a smaller one, runs with this library.
#[unsafe(no_mangle)]
pub extern "C" fn polyrail_abi_version() -> u32 {
    POLYRAIL_ABI_VERSION
}

/// Counts the versions of this header that have something more.
pub const POLYRAIL_ABI_VERSION: u32 = 2;

fn last(text: impl FnOnce(&(CString, CString)) -> *const c_char) -> *const c_char {
    // At the end of a thread its texts are gone.
    LAST.try_with(|last| text(&last.borrow())).unwrap_or(c"".as_ptr())
}

fn text_of(status: c_int) -> &'static CStr {
    match status {
        0 => c"done",
        1 => c"not yet",
        2 => c"the ops pool is full",
        -1 => c"an argument is not allowed",
        -2 => c"not an open handle of this kind",
        -3 => c"a setting is wrong",
        -4 => c"the system refused",
        -5 => c"the bytes are not what they should be",
        -6 => c"can't connect",
        -7 => c"outside of a region",
        -8 => c"a device failed or is missing",
        -9 => c"it belongs to another engine",
        -10 => c"a limit is reached",
        -11 => c"the peer is gone",
        -12 => c"a local region was closed",
        -13 => c"cancelled",
        -14 => c"the deadline has passed",
        -15 => c"the peer refused",
        -16 => c"the message is longer than its receive",
        -17 => c"the engine is closed",
        -18 => c"it belongs to the process that this one was forked from",
        -19 => c"a fault of the library",
        -20 => c"an error",
        _ => c"not a status of this library",
    }
}

impl Failure {
    pub(crate) fn new(status: Status, text: String) -> Self {
        Self { status, text, help: String::new() }
    }

    fn explained(status: Status, error: &impl Explain) -> Self {
        let help = error.help().unwrap_or_default();
        Self { status, text: error.to_string(), help }
    }

    pub(crate) fn helped_by(self, help: Option<String>) -> Self {
        Self { help: help.unwrap_or_default(), ..self }
    }

    /// Puts the place of the fault in front of the text.
    pub(crate) fn within(self, place: &str) -> Self {
        Self { text: format!("{place}: {}", self.text), ..self }
    }

    /// Stores the texts for the thread.
    pub(crate) fn leave(self) -> Status {
        // Names of peers may contain zero bytes.
        let c_text = |text: String| CString::new(text.replace('\0', "\\0")).unwrap_or_default();
        let texts = (c_text(self.text), c_text(self.help));
        // At the end of a thread the texts are not needed any more.
        let _ = LAST.try_with(|last| *last.borrow_mut() = texts);
        self.status
    }
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        Self::explained(Status::PolyrailErrConfig, &error)
    }
}

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Self {
        let status = match &error {
            EngineError::Listen { .. }
            | EngineError::Metrics { .. }
            | EngineError::System { .. } => Status::PolyrailErrSystem,
            EngineError::Forked => Status::PolyrailErrForked,
            _ => Status::PolyrailErrConfig,
        };
        Self::explained(status, &error)
    }
}

impl From<PeerError> for Failure {
    fn from(error: PeerError) -> Self {
        let status = match &error {
            PeerError::Metadata(_) | PeerError::NotMetadata { .. } => Status::PolyrailErrFormat,
            PeerError::Myself => Status::PolyrailErrArgument,
            PeerError::Connect { .. } | PeerError::NoRailPair { .. } => Status::PolyrailErrConnect,
            PeerError::File { .. } => Status::PolyrailErrSystem,
            PeerError::Ended { .. } => Status::PolyrailErrPeerLost,
            PeerError::FlowLimit { .. } => Status::PolyrailErrLimit,
            PeerError::Closed => Status::PolyrailErrClosed,
            PeerError::Forked => Status::PolyrailErrForked,
            _ => Status::PolyrailErrOther,
        };
        Self::explained(status, &error)
    }
}

impl From<RegionError> for Failure {
    fn from(error: RegionError) -> Self {
        let status = match &error {
            RegionError::OutOfBounds { .. } => Status::PolyrailErrRange,
            RegionError::NotThere { .. } | RegionError::Protected { .. } => {
                Status::PolyrailErrArgument
            }
            RegionError::Ended => Status::PolyrailErrRegionClosed,
            RegionError::Description { .. } => Status::PolyrailErrFormat,
            RegionError::TooMany { .. } => Status::PolyrailErrLimit,
            RegionError::Randomness => Status::PolyrailErrSystem,
            RegionError::Device(_) => Status::PolyrailErrDevice,
            RegionError::Closed => Status::PolyrailErrClosed,
            RegionError::Forked => Status::PolyrailErrForked,
            _ => Status::PolyrailErrOther,
        };
        Self::explained(status, &error)
    }
}

impl From<GpuError> for Failure {
    fn from(error: GpuError) -> Self {
        Self::explained(Status::PolyrailErrDevice, &error)
    }
}

impl From<PostError> for Failure {
    fn from(error: PostError) -> Self {
        let status = match &error {
            PostError::Busy { .. } => Status::PolyrailBusy,
            PostError::Lengths { .. } | PostError::NoNotification { .. } => {
                Status::PolyrailErrArgument
            }
            PostError::WrongPeer { .. }
            | PostError::ForeignRegion { .. }
            | PostError::ForeignPeer { .. } => Status::PolyrailErrForeign,
            PostError::NotificationTooLong { .. }
            | PostError::TooManySegments { .. }
            | PostError::Plan(_) => Status::PolyrailErrLimit,
            PostError::RegionDropped => Status::PolyrailErrRegionClosed,
            PostError::PeerGone { .. } => Status::PolyrailErrPeerLost,
            PostError::Closed => Status::PolyrailErrClosed,
            PostError::Forked => Status::PolyrailErrForked,
            _ => Status::PolyrailErrOther,
        };
        Self::explained(status, &error)
    }
}

impl From<TransferError> for Failure {
    fn from(error: TransferError) -> Self {
        let status = match &error {
            TransferError::Deadline { .. } => Status::PolyrailErrDeadline,
            TransferError::Cancelled => Status::PolyrailErrCancelled,
            TransferError::Refused { .. } => Status::PolyrailErrRefused,
            TransferError::PeerLost { .. } | TransferError::SendFailed { .. } => {
                Status::PolyrailErrPeerLost
            }
            TransferError::RegionDropped => Status::PolyrailErrRegionClosed,
            TransferError::Device { .. } => Status::PolyrailErrDevice,
            TransferError::TooLong { .. } => Status::PolyrailErrTooLong,
            TransferError::Forked => Status::PolyrailErrForked,
            _ => Status::PolyrailErrOther,
        };
        Self::explained(status, &error)
    }
}
