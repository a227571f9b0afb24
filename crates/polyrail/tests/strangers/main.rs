//! Whoever comes to the listening port: who may join, and what those may not do who lie, ask for too
//! much or stand in between.

#[path = "../common/mod.rs"]
mod common;

mod admission;
mod hostile;
mod impostors;
mod liars;
mod proof;
mod quotas;
mod sealed;
mod stallers;
