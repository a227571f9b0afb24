//! Hosts net plugins of NCCL, so that they carry payload.
//!
//! * [`Host`]: a plugin that this process has loaded, with its [`HostedDevice`]s.
//! * [`Lane`]: one way of a connection of it. It takes messages in order, and each has a
//!   [`Ticket`](polyrail_gpu::Ticket) that says when its bytes are in place, or have left.
//!
//! The interface of these plugins can only be polled: a lane moves on when [`Lane::poll`] is called. What may take
//! long is done on threads of the host's own: one listens, one connects, one closes.

#![warn(missing_docs)]

mod bytes;
mod calls;
mod closing;
mod error;
mod gatherer;
mod host;
mod lane;
mod loading;
mod setup;
mod signals;
mod tcpx;
mod threads;
mod unpack;
mod way;

pub use bytes::{Bytes, Holder};
pub use calls::{Stuck, is_inside, stuck};
pub use error::{DEVICES_MAX, HostError};
pub use host::{Host, HostedDevice, refusal};
pub use lane::{Check, Lane, Piece};
pub use loading::limit_exit;
pub use tcpx::{CpusOf, Wishes};
pub use threads::PluginThread;
