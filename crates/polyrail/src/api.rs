//! What users hold: engines, peers, requests, transfers, errors, snapshots of counters.

pub(crate) mod admission;
pub(crate) mod builder;
pub(crate) mod connecting;
pub(crate) mod engine;
pub(crate) mod error;
pub(crate) mod observer;
pub(crate) mod prepared;
pub(crate) mod reason;
pub(crate) mod register;
pub(crate) mod request;
pub(crate) mod stats;
pub(crate) mod tasks;
pub(crate) mod transfer;
