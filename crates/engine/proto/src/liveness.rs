//! Stalls, rests, losses and reconnections of flows. The driver reports facts, and carries out the results.
//! [`crate::life`] decides when a peer is given up.

mod absences;
mod backoff;
mod looked;
mod looks;
mod reconnect;
mod rest;
mod retry;
mod second_tries;
mod stall;
mod suspects;
mod trials;
mod ways;

pub use absences::Absences;
pub use backoff::Backoff;
pub use looked::LookedSilence;
pub use looks::Looks;
pub use reconnect::{FlowLife, Reconnect, ReconnectSettings};
pub use rest::Rest;
pub use retry::Retry;
pub use second_tries::{First, SecondTries};
pub use stall::{Patience, Silence, Stall, StallVerdict};
pub use suspects::Suspects;
pub use trials::{RETURN_MAX, RailPair, Trials};
pub use ways::{STAGGER, Way, Ways};
