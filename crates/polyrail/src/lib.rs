//! Move memory between processes and machines over many TCP rails at once.
//!
//! An [`Engine`] is what one process runs. It finds a [`Peer`] by metadata or address, registers
//! memory as [`Region`]s, and moves bytes between them: one-sided [`Engine::write`] and
//! [`Engine::read`], two-sided [`Engine::send`] and [`Engine::receive`] by tag, and notifications.
//! Each transfer is cut into chunks that every rail pulls as fast as it can carry them.
#![forbid(unsafe_code)]

// Folders use those below them, and never one above: `crates/testkit/tests/modules` refuses a circle.
//
//     api        what users hold
//     control    starts the engine; the control thread
//     diag       what an engine tells about itself
//     proxy      drives flows
//     sender     the sending end of a flow
//     receiver   the receiving end of a flow
//     path       finds ways that are better than the rails
//     engine     its state, peers and operations; handles of proxies and the control thread
//     device     staging, peer copies, shared memory
//     memory     regions
//     wake       who is asked, who is woken, who may sleep
//     base       errors, calls of the user's code, ways to wait
mod api;
mod base;
mod control;
mod device;
mod diag;
mod engine;
mod memory;
mod path;
mod proxy;
mod receiver;
mod sender;
mod sync;
mod wake;

pub use api::builder::EngineBuilder;
pub use api::connecting::Connecting;
pub use api::engine::{Engine, RailInfo, rails};
pub use api::prepared::PreparedTransfer;
pub use api::register::{Registrable, WithAccess};
pub use api::request::Request;
pub use api::tasks::{Accept, Events, NextNotification};
pub use api::transfer::Transfer;
pub use base::error::{EngineError, Explain, PeerError, PostError, RegionError, TransferError};
pub use base::reason::{ConnectReason, Flows, LostReason, Refusal, TransferProgress};
pub use diag::stats::{FlowSnapshot, PeerStats, ProxyStats, RailStats, Stats};
pub use engine::admission::{Admission, Incoming};
pub use engine::inbox::Notification;
pub use engine::observer::{Observer, OnEnd, Watch};
pub use engine::op::Outcome;
pub use engine::path::{PathKind, TransferPath};
pub use engine::peer_handle::Peer;
pub use memory::region::{Access, Region, RegionSlice, RemoteRegion, RemoteSlice};
pub use memory::registry::{Mailbox, OpenMailbox};
pub use polyrail_config::{Config, Progress};
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
#[doc = include_str!("../README.md")]
struct Readme;
