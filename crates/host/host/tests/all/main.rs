//! Facts read from machines, and the conclusions from them.

mod bindings;
mod corpus;
mod nvml;
mod snapshot;
mod topology;
