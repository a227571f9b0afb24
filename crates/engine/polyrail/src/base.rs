//! Foundation of every layer: errors, calls of the user's code, ways to wait. Nothing here depends on an engine.

pub(crate) mod callback;
pub(crate) mod certificate_files;
pub(crate) mod driving;
pub(crate) mod error;
pub(crate) mod host_identity;
pub(crate) mod latch;
pub(crate) mod pause;
pub(crate) mod pooled;
pub(crate) mod secret_file;
pub(crate) mod small_map;
