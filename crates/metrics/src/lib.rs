//! The metrics of Polyrail for Prometheus.
//!
//! [`families`] has every metric. An engine is a [`Source`] of figures; [`serve`] serves those of all
//! engines of a process, and an [`Exporter`] those of all processes of a host. This crate knows
//! nothing of engines, so that they can use it.
//!
//! Everything has a bound. A server has one thread, which only reads what engines tell, so a scraper that
//! is stuck delays no transfer. It has a few connections, and one more takes the place of the one that
//! needs its place least.
#![forbid(unsafe_code)]

mod ask;
mod examine;
mod exporter;
mod exposition;
pub mod families;
mod http;
mod process;
mod samples;
mod server;
mod sockets;

#[doc(hidden)]
pub use examine::examine;
pub use exporter::{Exporter, ExporterError};
pub use process::{Registration, ServeError, serve, set_rank};
pub use samples::{Samples, Source};
