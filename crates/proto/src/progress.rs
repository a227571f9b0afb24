//! How long a progress thread stays with a flow, polls, and sleeps.

mod polling;

pub use polling::{Interruptions, POLL_NS, Pace, Pollers, Waits};
