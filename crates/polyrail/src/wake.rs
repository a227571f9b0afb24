//! How those who make work and those who do it find each other: who is asked, who is woken, who may
//! sleep, and for how long to look before that. Small pieces, which `tests/loom.rs` tries.

pub(crate) mod handover;
pub(crate) mod lanes;
pub(crate) mod outlook;
pub(crate) mod signal;
pub(crate) mod spin;
