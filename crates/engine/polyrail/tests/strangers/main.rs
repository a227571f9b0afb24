//! Whoever comes to the listening port: who may join, and what those may not do who lie, hang about or
//! stand in between.

#[path = "../common/mod.rs"]
mod common;

mod admission;
mod attacks;
mod hoarders;
mod hostile;
mod impostors;
mod leaving;
mod liars;
mod proof;
mod sealed;
mod settings;
mod stallers;
mod unheard;
