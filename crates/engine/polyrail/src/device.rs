//! Memory of devices: staging for rails, copies from end to end, and memory shared between processes of a host. Copies
//! that CPUs make between processes of one host, and connections within one host through shared memory. Connections
//! that carry payload in addition to a flow's own.

pub(crate) mod conduit;
pub(crate) mod connection;
pub(crate) mod host_copy;
pub(crate) mod host_proof;
pub(crate) mod imports;
pub(crate) mod peer_copy;
pub(crate) mod shared_memory;
pub(crate) mod staging;
pub(crate) mod wire;
