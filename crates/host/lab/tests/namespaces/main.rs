//! Tests of labs built by the real kernel.
//!
//! A test that lacks a permission is skipped and reports the reason.

mod common;
mod networks;
mod root;
mod rootless;
mod switched;
