//! Device memory and asynchronous copies, behind safe types.
//!
//! * [`Device`]: has its own memory, which the CPU can't reach; [`DeviceMemory`]: a range of it.
//! * [`Queue`]: copies that a device makes in order, while the CPU does something else; a [`Ticket`] reports when they
//!   are done, at the cost of a load.
//! * [`Fragment`]: a piece of a message in a bounce buffer, which queues copy to its place.
//!
//! The rest of Polyrail uses devices only through these types. [`cuda`] has NVIDIA's. The feature `fake` adds a device
//! that needs no GPU and whose copies finish late, or fail, as a test wants.

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
