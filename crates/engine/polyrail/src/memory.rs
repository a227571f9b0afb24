//! Memory that transfers use: regions, who may use them, and the gate that keeps them while a
//! system call does.

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
