//! Spans of transfers for OpenTelemetry.
//!
//! A program that posts a transfer makes a [`TransferSpan`] for it, and the transfer's end ends the span. The span's
//! context travels in the transfer's notification, in the format of W3C Trace Context, so a span of the other end
//! ([`Joined`]) is its child, in the same trace. The program's own tracer makes both spans, so its exporter sends them.
//!
//! The engine does not depend on this crate, which uses its public callbacks. A program that does not use the crate has
//! no OpenTelemetry in it.
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use opentelemetry::{Context, global};
//! use polyrail::{Config, Engine, Request};
//! use polyrail_otel::{Joined, Spans};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // Keep one trace of a hundred.
//! let spans = Spans::new(global::tracer("polyrail"), 0.01)?;
//! // An end that receives: its spans join those of whoever writes, and its notifications are as before.
//! let engine = Engine::builder().observer(Arc::new(Joined::new(&spans))).build()?;
//! # let peer = engine.add_peer(&[])?;
//! # let (here, there) = (engine.register(vec![0; 8])?, engine.import(&[])?);
//! // An end that writes.
//! let span = spans.transfer(&Context::current(), "write", &peer);
//! let write = Request::write(&peer).segment(here.all(), there.all());
//! let write = write.notification(span.carry(b"done")).on_end(move |result| span.end(result));
//! engine.post(write)?.join()?;
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

mod carry;
mod joined;
mod spans;

pub use joined::{Joined, Received};
pub use spans::{SampleRatioError, Spans, TransferSpan};
