//! NCCL's and RCCL's network over Polyrail's rails.
//!
//! The library exports a table for each version of NCCL's net plugin interface (`ncclNetPlugin_v6` to `_v12`), all over
//! one core: one engine for each device and process, whose progress threads move the messages of all communicators.
//! NCCL's threads post messages and read words of memory; they also send a small message themselves if no progress
//! thread is at work.
//!
//! A connection of NCCL has one direction and an end in each process. Ends have numbers, and exchange notifications of
//! the engine about receives that are posted and messages that have arrived; see `wire.rs`. There is one engine-level
//! peer for each other process, whatever the number of communicators and channels, so the number of TCP connections
//! does not grow with them.

mod allocator;
mod batch;
mod device;
mod end;
mod entry;
mod error;
mod express;
mod hub;
mod log;
mod net;
mod place;
mod props;
mod recv;
mod regions;
mod request;
mod runtime;
mod send;
mod tables;
mod tuner;
mod wire;

#[cfg(test)]
#[path = "../../../../fuzz/src/nccl.rs"]
mod fuzzer;

pub use tables::*;
pub use tuner::*;
