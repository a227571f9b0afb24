//! See the crate's description.
#![forbid(unsafe_code)]
