//! Reads and changes network interfaces through the kernel, without any other program.
//!
//! * [`Ethtool`]: queues, rings, coalescing and RSS, over generic netlink; [`driver_info`],
//!   [`driver_stats`] and [`set_rss_table`] over the older calls that have no successor, or a young
//!   one.
//! * [`Netdev`]: the NAPI that serves each queue, and the interrupt that wakes it.
//! * [`require_right_to_change`]: checks that this process may change interfaces.
//! * [`Events`]: changes of links and settings.
//! * [`WriteWatch`]: the processes that write to a file, such as an interrupt's affinity.
//!
//! Everything is synchronous, and only one thread at a time may use a value unless its docs say otherwise.
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
