//! Samples the activity of CPUs, interrupts, NICs, flows and threads, second by second.
//!
//! A [`Sampler`] reads counters; two [`Snapshot`]s make a [`Sample`]. [`run`] writes one line of JSON per interval, and
//! [`Attached`] does so in its own thread. [`Hot`] finds the limiting CPU of a sample and its work.
//!
//! Sampling runs alongside the work that it measures, so it must cost little: it keeps files open, writes only counters
//! that moved, and reports its own cost in each line. Sampling changes nothing on the machine.
#![forbid(unsafe_code)]

mod counters;
pub mod diag;
mod error;
mod examine;
mod flows;
mod hot;
pub mod record;
mod reread;
mod run;
mod sampler;
mod snapshot;
mod threads;
mod vectors;

pub use error::SampleError;
#[doc(hidden)]
pub use examine::examine;
pub use hot::{Hot, Work};
pub use record::{Record, SCHEMA_VERSION, Sample};
pub use run::{Attached, run};
pub use sampler::{Options, QueueCounts, ReadQueues, Sampler};
pub use snapshot::Snapshot;
