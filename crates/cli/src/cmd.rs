//! One module per subcommand; each has `Args` (syntax only) and `run`.

pub(crate) mod analyze;
pub(crate) mod bench;
pub(crate) mod bindings;
pub(crate) mod changes;
pub(crate) mod collective;
pub(crate) mod completions;
pub(crate) mod config;
pub(crate) mod doctor;
pub(crate) mod experiment;
pub(crate) mod exporter;
pub(crate) mod irq;
pub(crate) mod lab;
pub(crate) mod man;
pub(crate) mod mesh;
pub(crate) mod nccl;
pub(crate) mod nic;
pub(crate) mod nixl;
pub(crate) mod peers;
pub(crate) mod profile;
pub(crate) mod sample;
pub(crate) mod secret;
pub(crate) mod sweep;
pub(crate) mod top;
pub(crate) mod topo;
pub(crate) mod tune;
