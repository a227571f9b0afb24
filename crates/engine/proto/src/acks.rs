//! Acknowledgements on the receiving side of a flow: when one is due ([`AckPolicy`]), which may be sent ([`AckQueue`]),
//! and how long they wait where callers drive the flows ([`AckHold`]).
//!
//! The driver reports chunks as they end, checks at the end of each burst whether an acknowledgement is due, and sends
//! the frames that the queue hands out.

mod hold;
mod policy;
mod queue;

pub use hold::AckHold;
pub use policy::{AckPolicy, Burst};
pub use queue::AckQueue;
