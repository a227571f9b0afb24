//! A small part of rtnetlink: enough for links, addresses and token buckets.
//!
//! Written by hand because the crates that carry the whole of it take longer to
//! compile than everything else here, and none knows `tbf`.

mod codec;
mod route;

pub(crate) use codec::{Netlink, open_socket};
pub(crate) use route::{Link, PeerLink};
