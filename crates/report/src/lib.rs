//! What Polyrail prints and writes: records, units, exit codes.
#![forbid(unsafe_code)]

pub mod exit;
