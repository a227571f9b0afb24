//! A net plugin of NCCL for tests of plugin hosts where no NIC writes into GPU memory. Users have no use for it.
//!
//! The plugin sends over plain TCP. In mode `plain` a message lands in the receiver's buffer. In mode `unpack` it lands
//! as with GPUDirect-TCPX: in fragments, at random places of a bounce buffer, with a queue of metadata that gives the
//! place of each fragment. Then it also has TCPX's rules: requests are tested in order only, and a receive is over when
//! the host reports it as consumed.
//!
//! The environment configures it when `init` is called; [`Settings::parse`] lists all variables. Faults that tests need
//! are variables, too.
//!
//! The facts about device handles and metadata are from `src/include/nccl_device/net_device.h` and
//! `src/device/network/unpack/unpack_defs.h` of NCCL 2.30, and from `src/net_tcpx.cc`, `src/sock/tcpx.h` and
//! `src/devcomm/nccl/unpack1.cu` of GPUDirect-TCPX (July 2024).

mod bounce;
mod connect;
mod entry;
mod error;
mod helper;
mod link;
mod metadata;
mod plugin;
mod pool;
mod props;
mod receive;
mod send;
mod settings;
mod stage;
mod tables;

pub use plugin::set_variables;
pub use settings::{BadMetadata, Mode, SettingError, Settings};
pub use tables::{ncclNetPlugin_v7, ncclNetPlugin_v8, ncclNetPlugin_v11};
