//! Facts about a machine, read from its own file tree or from a copy.
//!
//! Every reader takes a [`Sysroot`]: `/` for the machine that the program runs on, or a folder with a copy of another
//! machine's `/proc` and `/sys`. The readers don't write, and unknown facts stay unknown.
#![forbid(unsafe_code)]

pub mod bindings;
mod counters;
mod cpuset;
#[cfg(feature = "fixtures")]
pub mod fixtures;
mod interrupts;
pub mod nvml;
mod pci;
mod ports;
mod programs;
pub mod snapshot;
mod sysroot;
mod topology;
mod values;

pub use counters::{
    CountersError, CpuTicks, NetDev, NetDevCounters, Softirqs, Softnet, SoftnetCpu, Stat,
};
pub use cpuset::{CpuSet, CpuSetError, CpuSetFault, LAST_CPU};
pub use interrupts::{Interrupts, InterruptsError, Irq, NamedRow};
pub use pci::{BadPciAddress, PciAddress};
pub use ports::Ports;
pub use programs::system_program;
pub use sysroot::{ReadError, Sysroot};
pub use topology::{
    Cache, CacheKind, Choice, Cpu, Cpus, Distance, Followed, Gpu, GpuDetails, GpuPath, Nic,
    NicDetails, Node, NvLinkPeer, NvmlSystem, PciBridge, PciFunction, PciLink, Rival, Topology,
    Vector,
};
pub use values::Values;
