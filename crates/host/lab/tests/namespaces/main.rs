//! Labs as the kernel really builds them.
//!
//! What needs a permission that is not there skips a test, which says why.

mod common;
mod networks;
mod root;
mod rootless;
mod switched;
