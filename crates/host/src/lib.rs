//! What a machine tells about itself, read from a file tree that need not be its own.
//!
//! Every reader takes a [`Sysroot`]: `/` for the machine that the program runs on, or a folder with
//! a copy of another machine's `/proc` and `/sys`. Nothing here writes, and what is unknown stays
//! unknown.
#![forbid(unsafe_code)]

mod counters;
mod cpuset;
mod interrupts;
mod pci;
mod sysroot;

pub use counters::{
    CountersError, CpuTicks, NetDev, NetDevCounters, Softirqs, Softnet, SoftnetCpu, Stat,
};
pub use cpuset::{CpuSet, CpuSetError, CpuSetFault, LAST_CPU};
pub use interrupts::{Interrupts, InterruptsError, Irq, NamedRow};
pub use pci::{BadPciAddress, PciAddress};
pub use sysroot::{ReadError, Sysroot};
