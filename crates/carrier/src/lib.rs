//! Hosts net plugins of NCCL, so that they carry payload.
//!
//! * [`Host`]: a plugin that this process has loaded, with its [`HostedDevice`]s.
//! * [`Lane`]: one way of a connection of it. It takes messages in order, and each has a
//!   [`Ticket`](polyrail_gpu::Ticket) that says when its bytes are in place, or have left.
//!
//! The interface of these plugins can only be polled: a lane moves on when [`Lane::poll`] is called, or when
//! somebody looks at one of its tickets. What may take long (listening, connecting, closing) is done on a
//! thread of the host's own.

mod bytes;
mod host;
mod lane;
mod setup;
mod signals;
mod unpack;

pub use bytes::Bytes;
pub use host::{Host, HostError, HostedDevice};
pub use lane::{Check, Lane, Piece};
