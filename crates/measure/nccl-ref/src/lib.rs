//! The baselines that Polyrail is measured against on GPUs, behind safe types.
//!
//! * [`Nccl`]: NVIDIA's library NCCL, opened at run time, and [`Comm`], two processes that send to
//!   each other with `ncclSend` and `ncclRecv`.
//! * [`World`]: the same between all devices of one process, on streams of the caller.
//! * [`DriverCopy`]: `cuMemcpyPeerAsync` and a wait for it, as a program without any library does.
//!
//! Only benchmarks use this crate; it moves no data for users.

mod driver;
mod error;
mod nccl;
mod world;

pub use driver::{DriverCopy, Span};
pub use error::RefError;
pub use nccl::{Comm, Nccl, UniqueId};
pub use world::{World, WorldEnd};
