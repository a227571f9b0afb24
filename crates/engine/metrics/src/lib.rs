//! The metrics of Polyrail for Prometheus.
//!
//! [`families`] lists every metric. An engine is a [`Source`] of metrics. [`serve`] serves those of all engines of a
//! process, and an [`Exporter`] those of all processes of a host. With [`serve_local`] they answer to [`ask_local`] in
//! processes of the same user. This crate does not depend on engines, so that they can use it.
//!
//! Everything has a limit. A server has one thread, which only reads the engines' counters, so a stuck scraper delays
//! no transfer. It has a few connections, and one more replaces the one that needs its place least.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod ask;
mod examine;
mod exporter;
mod exposition;
pub mod families;
mod figures;
mod http;
mod local;
mod process;
mod samples;
mod server;
mod sockets;

#[doc(hidden)]
pub use examine::examine;
pub use exporter::{Exporter, ExporterError};
pub use figures::Figure;
pub use local::{Answer, Answers, NoAnswer, THREAD as LOCAL_THREAD, ask_folder, ask_local};
pub use process::{Registration, ServeError, serve, serve_local, set_rank};
pub use samples::{Samples, Source};
