//! Device memory and asynchronous copies, behind safe types.
//!
//! * [`Device`]: what has memory of its own that the CPU can't reach; [`DeviceMemory`]: a range of it.
//! * [`Queue`]: copies that a device makes in order, while the CPU does something else; a [`Ticket`]
//!   says when they are done, at the cost of a load.
//! * [`Fragment`]: a piece of a message in a bounce buffer, which queues bring where it belongs.
//!
//! The rest of Polyrail knows devices only by these. [`cuda`] has NVIDIA's. With the feature `fake`
//! there is one that needs no GPU and whose copies finish late, or fail, as a test wants.

#![warn(missing_docs)]

pub mod cuda;
mod device;
mod error;
mod export;
#[cfg(feature = "fake")]
pub mod fake;
mod gather;
mod queue;
mod raw_queue;

pub use device::{Device, DeviceMemory, Identity, PciAddress};
pub use error::GpuError;
pub use export::Export;
pub use gather::{Fragment, GatherError, gather};
pub use queue::{CopyPlace, Queue, Ticket};
pub use raw_queue::{Completion, RawCopy, RawQueue};
