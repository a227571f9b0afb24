//! Netlink: the kernel's interface to query and change networks.
//!
//! * [`Message`] builds a request; [`replies`] and [`attributes`] read an answer, and check
//!   every length in it.
//! * [`Socket`] sends requests: [`Socket::request`] and [`Socket::dump`].
//! * [`Routes`] queries the route that the kernel would choose.
//! * [`Link`], [`LinkAddress`] and [`RoutedLinks`] are the interfaces, their addresses and the routes over them.
//!
//! All other messages have a meaning for users of this crate only: `polyrail-nic` queries settings of interfaces,
//! `polyrail-lab` creates some, and `polyrail-sample` queries TCP connections.
//!
//! The code is written by hand. `netlink-bindings` is generated from the kernel's own descriptions and knows every
//! message used here. But it would add 113,000 lines and a library of 20 MB for thirty kinds of messages, takes 8
//! seconds to compile instead of less than one, and has no sockets.
#![deny(unsafe_code)]
#![warn(missing_docs)]

mod links;
mod routes;
mod socket;
mod wire;

pub use links::{Below, Link, LinkAddress, RoutedLinks};
pub use routes::{LinkState, Route, Routes};
pub use socket::{Error, Protocol, Socket, open, refusal};
pub use wire::{
    BadMessage, Message, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE, Reply, any_uint, attributes,
    find, find_u32, replies, text, u16_at, u32_at, u64_at,
};

/// For fuzzing: counts the messages in any bytes that could be verdicts, and their links, addresses and routes.
#[doc(hidden)]
pub fn examine(bytes: &[u8]) -> usize {
    let verdicts = replies(bytes).flatten().filter_map(|reply| wire::verdict(&reply)).count();
    verdicts + links::examine(bytes) + routes::examine(bytes)
}
