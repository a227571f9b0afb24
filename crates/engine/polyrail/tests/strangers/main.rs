//! Clients of the listening port: which of them may join, and what liars, idlers and men in the middle can't do.

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
