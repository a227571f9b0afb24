//! What the kernel says about network interfaces, asked without any other program.
//!
//! * [`Ethtool`]: queues, rings, coalescing and RSS, over generic netlink; [`driver_info`] and
//!   [`driver_stats`] over the older calls that have no successor.
//! * [`Netdev`]: which queue is served by which NAPI, and which interrupt wakes it.
//! * [`Routes`]: by which interface a packet would leave.
//! * [`Events`]: links and settings that change.
//! * [`WriteWatch`]: which process writes to a file, such as an interrupt's affinity.
//!
//! Everything is synchronous, and one value is for one thread at a time unless it says otherwise.
//! Requests concern the network namespace that the socket was opened in.
//!
//! The codec is written by hand, as the laboratory's is: the crate that is generated from the kernel's
//! own descriptions compiles in five seconds, but brings 37,000 lines for the dozen messages here.
#![deny(unsafe_code)]

mod error;
mod ethtool;
mod events;
mod generic;
mod ioctl;
mod netdev;
mod os;
mod route;
mod socket;
mod wire;
mod writers;

pub use error::NicError;
pub use ethtool::{Channels, Ethtool, Group, Limits, Rings, Rss, SETTINGS, Setting};
pub use events::{Event, Events};
pub use ioctl::{DriverInfo, driver_info, driver_stats, ntuple_rules};
pub use netdev::{Napi, Netdev, Queue, QueueKind, QueueStats};
pub use route::{Route, RouteQuery, Routes};
pub use wire::examine;
pub use writers::{WriteWatch, Written};
