//! Diagnostics of an engine: state dump, metrics and statistics.

pub(crate) mod dump;
pub(crate) mod metrics;
pub(crate) mod stats;
