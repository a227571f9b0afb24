//! Collective operations between ranks whose memory is on hosts, over any net plugin of NCCL.
//!
//! A [`Net`](polyrail_nccl_abi::Net) is a plugin, called as NCCL calls it, or the built-in [`baseline`], which works
//! like NCCL's own socket transport. A [`Rank`] connects to other ranks over it, runs an [`Operation`] on its own
//! memory, and compares every element of the result.
//!
//! The algorithms are NCCL's: rings, a chain for broadcast, and pairs for alltoall. One thread per rank posts, tests
//! and adds; NCCL adds on the GPU.

mod baseline;
mod element;
mod error;
mod plan;
mod rank;

pub use baseline::baseline;
pub use element::Element;
pub use error::RankError;
pub use plan::{Operation, Shape};
pub use rank::{Rank, Spec, route};
