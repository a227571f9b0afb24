//! The compiled half of the Python package `polyrail`: the engine's API as Python classes. The other half is in
//! `python/polyrail`: errors, asyncio support, and types for checkers.
//!
//! No Python runs on a thread of the engine. So engine threads never wait for the interpreter, and a thread that holds
//! the interpreter may wait for the engine.

mod arguments;
mod engine;
mod errors;
mod events;
mod foreign;
mod foreign_tensor;
mod group;
mod peer;
mod region;
mod request;
mod settings;
mod transfer;
mod waiting;

/// The compiled half of the package `polyrail`.
#[pyo3::pymodule]
mod _polyrail {
    #[pymodule_export]
    use crate::engine::Engine;
    #[pymodule_export]
    use crate::events::Events;
    #[pymodule_export]
    use crate::group::{Group, GroupEvent, Member};
    #[pymodule_export]
    use crate::peer::{Notification, Peer};
    #[pymodule_export]
    use crate::region::{Region, RemoteRegion, RemoteSlice, Slice};
    #[pymodule_export]
    use crate::transfer::{Outcome, Prepared, Transfer};
}
