//! Hosts NCCL net plugins as carriers of payload.
//!
//! * [`Host`]: a plugin loaded by this process, with its [`HostedDevice`]s.
//! * [`Lane`]: one direction of a plugin connection. It carries messages in order. Each has a
//!   [`Ticket`](polyrail_gpu::Ticket) that is done when its bytes are in place, or have left.
//!
//! The plugin interface can only be polled: a lane makes progress when [`Lane::poll`] is called. Slow calls run on
//! threads of the host, one each for listening, accepting, connecting and closing.

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
