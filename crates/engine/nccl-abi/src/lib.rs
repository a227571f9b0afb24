//! The interface between NCCL (and RCCL) and a net plugin, versions 5 to 12.
//!
//! The layouts match what `plugins/net/example/nccl/net*.h` of NCCL 2.18 to 2.30 compile to on 64-bit Linux; each has a
//! test. [`Library`] finds and loads a plugin the way NCCL does, and [`Net`] calls it.

#![warn(missing_docs)]

mod elf;
mod load;
mod net;
mod props;
mod tables;
mod types;

pub use elf::damage;
pub use load::{Library, LoadError, NCCL_RELEASES, Release, Table};
pub use net::{
    Call, Comm, Connector, Handle, HostMemory, Listener, LogSink, MAX_GROUP, Memory, MemoryKind,
    Net, NetError, Observer, Part, Properties, Receives, RecvComm, Region, Request, SendComm,
    Sends, Side, Sizes, log_to,
};
pub use props::{
    PropsHead, PropsTail, PropsV6, PropsV7, PropsV8, PropsV9, PropsV11, PropsV12, VDevices,
    VDevices12,
};
pub use tables::{NetV5, NetV6, NetV7, NetV8, NetV9, NetV10, NetV11, NetV12};
pub use types::{
    CommConfig, DEVICE_HOST, DEVICE_UNPACK, DeviceHandle, HANDLE_BYTES, LogLevel, Logger,
    MAX_MESSAGE_BYTES, MAX_REQUESTS, NcclResult, NetAttributes, Opaque, PTR_CUDA, PTR_DMA_BUF,
    PTR_HOST, ProfilerCallback, UNPACK_VERSION, subsystem,
};
