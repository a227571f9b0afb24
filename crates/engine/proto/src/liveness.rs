//! When a flow stalls, rests, is lost, and is connected again: the driver reports facts, and does what
//! follows. When a peer is given up, [`crate::life`] says.

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
