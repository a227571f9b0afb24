//! Move memory between processes and machines over many TCP rails at once.
//!
//! An [`Engine`] is what one process runs. It finds a [`Peer`] by metadata or address, registers
//! memory as [`Region`]s, and moves bytes between them: one-sided [`Engine::write`] and
//! [`Engine::read`], two-sided [`Engine::send`] and [`Engine::receive`] by tag, and notifications.
//! Each transfer is cut into chunks that every rail pulls as fast as it can carry them.
#![forbid(unsafe_code)]

mod api;
mod control;
mod device;
mod diag;
mod engine;
mod memory;
mod proxy;
mod receiver;
mod sender;
mod sync;

pub use api::admission::{Admission, Incoming};
pub use api::builder::EngineBuilder;
pub use api::connecting::Connecting;
pub use api::engine::{Engine, Peer, RailInfo, rails};
pub use api::error::{EngineError, Explain, PeerError, PostError, RegionError, TransferError};
pub use api::observer::{Observer, OnEnd, Watch};
pub use api::prepared::PreparedTransfer;
pub use api::reason::{ConnectReason, Flows, LostReason, Progress, Refusal};
pub use api::register::{Registrable, WithAccess};
pub use api::request::Request;
pub use api::stats::{FlowSnapshot, PeerStats, ProxyStats, RailStats, Stats};
pub use api::tasks::{Accept, Events, NextNotification};
pub use api::transfer::Transfer;
pub use device::direct::{PathKind, TransferPath};
pub use engine::inbox::Notification;
pub use engine::op::Outcome;
pub use memory::region::{
    Access, Mailbox, OpenMailbox, Region, RegionSlice, RemoteRegion, RemoteSlice,
};
pub use polyrail_config::Config;
pub use polyrail_gpu::cuda::Cuda;
pub use polyrail_gpu::{DeviceMemory, GpuError};
pub use polyrail_proto::InstanceId;
pub use polyrail_proto::hello::RefusedCode;
pub use polyrail_proto::wire::RefusalCode;
pub use polyrail_sys::Memory;

/// What requests do: the operations in the type of a [`Request`].
pub mod operation {
    pub use crate::api::request::{OneSided, Operation, Read, Receive, Send, TwoSided, Write};
}

/// Makes the program in the README a test.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
