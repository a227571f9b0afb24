//! What users hold: engines, peers, requests, transfers, errors, snapshots of counters.

pub(crate) mod engine;
pub(crate) mod error;
pub(crate) mod observer;
pub(crate) mod register;
pub(crate) mod request;
pub(crate) mod stats;
pub(crate) mod transfer;
