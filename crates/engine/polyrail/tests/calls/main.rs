//! Calls of programs, without disturbances.

#[path = "../common/mod.rs"]
mod common;

mod bindings;
mod callbacks;
mod ends;
mod life;
mod looks;
mod loopback;
mod mistakes;
mod posting;
mod region_ends;
mod rendezvous;
mod tasks;
mod told;
