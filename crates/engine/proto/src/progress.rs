//! Times that a progress thread stays with a flow, polls, and sleeps.

mod outlook;
mod polling;
mod visit;

pub use outlook::Outlook;
pub use polling::{Interruptions, POLL_NS, Pace, Pollers, Waits};
pub use visit::{Turns, Visit};
