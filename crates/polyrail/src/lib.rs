//! Move memory between processes and machines over many TCP rails at once.
//!
//! An [`Engine`] is what one process runs. It finds a [`Peer`] by metadata or address, registers
//! memory as [`Region`]s, and moves bytes between them: one-sided [`Engine::write`] and
//! [`Engine::read`], two-sided [`Engine::send`] and [`Engine::recv`] by tag, and notifications.
//! Each transfer is cut into chunks that every rail pulls as fast as it can carry them.
#![forbid(unsafe_code)]

mod absence;
mod audit;
mod budget;
mod build;
mod callback;
mod control;
mod direct;
mod dump;
mod engine;
mod error;
mod finish;
mod handover;
mod handshake;
mod inbox;
mod known;
mod landing;
mod lanes;
mod observer;
mod op;
mod peer;
mod pin;
mod placement;
mod proxy;
mod rails;
mod region;
mod region_memory;
mod request;
mod rx_flow;
mod serve;
mod settings;
mod share;
mod shared;
mod shared_ring;
mod sharing;
mod signal;
mod spin;
mod staging;
mod stats;
mod suspects;
mod sync;
mod trace;
mod transfer;
mod tx_flow;

pub use direct::{PathKind, TransferPath};
pub use engine::{Connecting, Engine, EngineBuilder, Peer, PreparedTransfer, RailInfo, rails};
pub use error::{EngineError, PeerError, PostError, RegionError, TransferError};
pub use inbox::Notification;
pub use observer::{Observer, OnEnd, Watch};
pub use op::Outcome;
pub use polyrail_config::Config;
pub use polyrail_gpu::cuda::Cuda;
pub use polyrail_gpu::{DeviceMemory, GpuError};
pub use polyrail_proto::wire::RefusalCode;
pub use polyrail_sys::Memory;
pub use region::{Access, Mailbox, OpenMailbox, Region, RegionSlice, RemoteRegion, RemoteSlice};
pub use request::Request;
pub use stats::{FlowSnapshot, PeerStats, ProxyStats, RailStats, Stats};
pub use transfer::{Status, Transfer};

/// Makes the program in the README a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
