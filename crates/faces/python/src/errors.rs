//! Errors of the engine as exceptions of `polyrail._errors`, which say the cause in attributes.

use polyrail::{EngineError, Explain, PeerError, PostError, RegionError, TransferError};
use polyrail_rendezvous::RendezvousError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyModule;

/// Attributes of an exception.
#[derive(Default)]
struct Cause {
    message: String,
    /// The name of the cause, for programs: `peer_lost`.
    reason: String,
    peer: Option<String>,
    /// Details of the cause, for people.
    why: Option<String>,
    help: Option<String>,
}

impl Cause {
    fn of(error: &impl Explain, variant: &str) -> Self {
        let (message, reason) = (error.to_string(), snake(variant));
        Self { message, reason, help: error.help(), ..Self::default() }
    }

    fn peer(self, peer: &str) -> Self {
        Self { peer: Some(peer.to_owned()), ..self }
    }

    fn why(self, why: impl Into<String>) -> Self {
        Self { why: Some(why.into()), ..self }
    }

    /// As an exception of this class.
    fn raise(self, class: &str) -> PyErr {
        Python::attach(|py| match self.build(py, class) {
            Ok(exception) => PyErr::from_value(exception),
            Err(error) => error,
        })
    }

    fn build<'py>(self, py: Python<'py>, class: &str) -> PyResult<Bound<'py, PyAny>> {
        static MODULE: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
        let import = || PyModule::import(py, "polyrail._errors").map(Bound::unbind);
        let class = MODULE.get_or_try_init(py, import)?.bind(py).getattr(class)?;
        class.call1((self.message, self.reason, self.peer, self.why, self.help))
    }
}

/// The engine can't start.
pub(crate) fn engine(error: EngineError) -> PyErr {
    Cause::of(&error, error.variant()).raise("EngineError")
}

/// A call needs an engine or a region that is open; as an exception of the class that the call's others are of.
pub(crate) fn closed(what: &str, help: &str, class: &str) -> PyErr {
    let (message, reason) = (format!("the {what} is closed"), "closed".to_owned());
    Cause { message, reason, help: Some(help.to_owned()), ..Cause::default() }.raise(class)
}

/// A peer can't be added.
pub(crate) fn peer(error: PeerError) -> PyErr {
    let cause = Cause::of(&error, error.variant());
    match &error {
        PeerError::Connect { why, .. } => cause.why(why.to_string()).raise("PeerError"),
        _ => cause.raise("PeerError"),
    }
}

/// A group can't be joined.
pub(crate) fn rendezvous(error: &RendezvousError) -> PyErr {
    let (message, reason) = (error.to_string(), snake(error.variant()));
    let cause = Cause { message, reason, help: error.help(), ..Cause::default() };
    cause.raise("RendezvousError")
}

/// Memory can't be registered, described or cut.
pub(crate) fn region(error: RegionError) -> PyErr {
    Cause::of(&error, error.variant()).raise("RegionError")
}

/// A transfer can't be posted.
pub(crate) fn post(error: PostError) -> PyErr {
    let cause = Cause::of(&error, error.variant());
    match &error {
        error if error.is_busy() => cause.raise("Busy"),
        PostError::PeerGone { peer, why } => {
            cause.peer(peer).why(why.to_string()).raise("PostError")
        }
        PostError::WrongPeer { peer, .. } | PostError::ForeignPeer { peer } => {
            cause.peer(peer).raise("PostError")
        }
        _ => cause.raise("PostError"),
    }
}

/// A transfer has failed.
pub(crate) fn transfer(error: &TransferError) -> PyErr {
    let cause = Cause::of(error, error.variant());
    match error {
        TransferError::PeerLost { peer, why } => {
            cause.peer(peer).why(why.to_string()).raise("PeerLost")
        }
        TransferError::Refused { peer, code } => {
            cause.peer(peer).why(snake(&format!("{code:?}"))).raise("Refused")
        }
        TransferError::Deadline { progress, .. } => {
            cause.peer(&progress.peer).why(progress.to_string()).raise("DeadlineExceeded")
        }
        TransferError::Cancelled => cause.raise("Cancelled"),
        TransferError::SendFailed { peer } => cause.peer(peer).raise("TransferError"),
        _ => cause.raise("TransferError"),
    }
}

/// The name of a variant, as Python writes names: `PeerLost` or `PeerLost { .. }` is `peer_lost`.
fn snake(variant: &str) -> String {
    let name = variant.split(|one: char| !one.is_ascii_alphanumeric()).next().unwrap_or_default();
    let mut snake = String::with_capacity(name.len() + 4);
    for one in name.chars() {
        if one.is_ascii_uppercase() && !snake.is_empty() {
            snake.push('_');
        }
        snake.push(one.to_ascii_lowercase());
    }
    snake
}
