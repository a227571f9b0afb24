//! What the kernel says about network interfaces, asked without any other program.
//!
//! * [`Ethtool`]: queues, rings, coalescing and RSS, over generic netlink; [`driver_info`],
//!   [`driver_stats`] and [`set_rss_table`] over the older calls that have no successor, or a young
//!   one.
//! * [`Netdev`]: which queue is served by which NAPI, and which interrupt wakes it.
//! * [`require_right_to_change`]: whether this process may change interfaces.
//! * [`Events`]: links and settings that change.
//! * [`WriteWatch`]: which process writes to a file, such as an interrupt's affinity.
//!
//! Everything is synchronous, and one value is for one thread at a time unless it says otherwise.
//! Requests concern the network namespace that the socket was opened in.
#![deny(unsafe_code)]

mod error;
mod ethtool;
mod events;
mod examine;
mod generic;
mod ioctl;
mod netdev;
mod os;
mod right;
mod rss;
mod writers;

pub use error::NicError;
pub use ethtool::{Channels, Ethtool, Group, Limits, Rings, Rss, SETTINGS, Setting};
pub use events::{Event, Events};
pub use examine::examine;
pub use ioctl::{
    DriverInfo, Offloads, driver_info, driver_stats, ntuple_rules, offloads, rx_queues,
};
pub use netdev::{Napi, Netdev, Queue, QueueKind, QueueStats};
pub use right::require_right_to_change;
pub use rss::{BadRssTable, RssTable, rss_table, set_rss_table};
pub use writers::{WriteWatch, Written};
