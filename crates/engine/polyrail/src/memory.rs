//! Memory that transfers use: regions, the access that peers have, and the gate that keeps a region while a system call
//! uses it.

pub(crate) mod access;
pub(crate) mod gate;
pub(crate) mod keepsake;
pub(crate) mod lanes;
pub(crate) mod region;
pub(crate) mod region_core;
pub(crate) mod region_list;
pub(crate) mod region_memory;
pub(crate) mod registry;
pub(crate) mod remote_region;
pub(crate) mod tickets;
