//! The engine for C: `include/polyrail.h`, which cbindgen makes of this crate, and `libpolyrail.so`, which
//! the `Makefile` links.
//!
//! * A call never lets a panic out, and never keeps a pointer that it was given, except to memory that
//!   is registered.
//! * A handle is no address but a number that a table knows (`handles`), so that a handle which was
//!   closed, at whatever time and by whichever thread, is an error and nothing worse.
//! * What grows has its size in front (`call::Versioned`).
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
