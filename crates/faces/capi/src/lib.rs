//! The engine for C: `include/polyrail.h`, which cbindgen generates from this crate, and `libpolyrail.so`, which the
//! `Makefile` links.
//!
//! * A call catches all panics, and keeps no pointer from its arguments, except to registered memory.
//! * A handle is not an address but a number in a table (`handles`). Using a closed handle, at any time and from any
//!   thread, is an error and nothing worse.
//! * Structures that may grow begin with their size (`call::Versioned`).
//!
//! `docs/c.md` shows how to build, link and use it.
#![deny(unsafe_op_in_unsafe_fn)]
#![expect(
    clippy::missing_safety_doc,
    reason = "the head of the header says it once for all: a pointer is valid for what is said of it"
)]

mod call;
mod handles;

pub mod bytes;
pub mod engine;
pub mod events;
pub mod groups;
pub mod incoming;
pub mod peers;
pub mod regions;
pub mod requests;
pub mod status;
pub mod transfers;
