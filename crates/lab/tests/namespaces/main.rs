//! Labs as the kernel really builds them.
//!
//! What needs a permission that is not there prints `SKIPPED`, and why.

mod common;
mod root;
mod rootless;
