//! When a flow stalls, rests, is lost, and is connected again: the driver reports facts, and does what
//! follows. When a peer is given up, [`crate::life`] says.

mod backoff;
mod reconnect;
mod rest;
mod stall;
mod suspects;
mod trials;

pub use backoff::Backoff;
pub use reconnect::{FlowLife, Reconnect, ReconnectSettings};
pub use rest::Rest;
pub use stall::{Patience, Silence, Stall, StallVerdict};
pub use suspects::Suspects;
pub use trials::{RETURN_MAX, Trials};
