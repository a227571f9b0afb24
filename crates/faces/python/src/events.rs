//! The descriptor that loops such as asyncio's watch.

use std::os::fd::{AsRawFd, RawFd};

use pyo3::prelude::*;

/// A descriptor that is readable once something has happened to an engine. Clear it first, and look
/// then at all that you wait for. asyncio needs no such thing: await transfers and notifications.
#[pyclass(frozen, module = "polyrail")]
pub(crate) struct Events {
    pub(crate) events: polyrail::Events,
}

#[pymethods]
impl Events {
    /// The descriptor, for `select`, `poll` and loops.
    fn fileno(&self) -> RawFd {
        self.events.as_raw_fd()
    }

    /// From now on it is not readable, until something else happens.
    fn clear(&self) {
        self.events.clear();
    }
}
