//! A multi-rail cluster on one machine: two network namespaces, `a` and `b`, joined by links that
//! are as slow, or as dead, as an experiment needs. [`LabSpec::nodes`] makes more namespaces,
//! around a switch: one more namespace, with a bridge per rail and a shaped port per node.
//!
//! Each rail is a pair of virtual Ethernet interfaces named `rail0`, `rail1`, … on both sides, with a token bucket at
//! each end, its own IPv4 and IPv6 subnet, and so its own routes. [`Network`] lists the alternatives to one subnet per
//! rail. The crate talks netlink and runs no other program, except for a [`Firewall`].
//!
//! ```no_run
//! use polyrail_lab::{Lab, LabSpec, Side};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let spec = LabSpec::new("demo", LabSpec::parse_rails("4gbit,2x1gbit")?);
//! let lab = Lab::up(&spec)?.guard();
//! let status = lab.command(Side::A, "ping").args(["-c1", "10.77.0.2"]).status()?;
//! lab.set_link(0, false)?;
//! # assert!(status.success());
//! # Ok(())
//! # }
//! ```

mod error;
mod firewall;
mod holder;
mod lab;
mod life;
mod named;
mod namespaces;
mod netlink;
mod network;
mod node;
mod os;
mod privilege;
mod processes;
mod rate;
mod registry;
mod spec;
mod wiring;

pub use error::{Blame, LabError};
pub use firewall::Firewall;
pub use lab::{Lab, LabGuard, LabInfo, LabState};
pub use netlink::{QueueCounts, queue_counts, token_buckets};
pub use network::Network;
pub use node::Node;
pub use privilege::{Privilege, availability};
pub use rate::Rate;
pub use spec::{LabSpec, RailEnd, RailInfo, Side};
