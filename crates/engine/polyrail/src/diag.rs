//! What an engine tells about itself when somebody looks into it.

pub(crate) mod dump;
pub(crate) mod metrics;
pub(crate) mod stats;
