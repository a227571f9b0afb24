//! Netlink: how programs ask the kernel about networks, and change them.
//!
//! * [`Message`] builds a request; [`replies`] and [`attributes`] read an answer, and check
//!   every length in it.
//! * [`Socket`] holds conversations: [`Socket::request`] and [`Socket::dump`].
//! * [`Routes`] asks which way the kernel would send.
//! * [`Link`], [`LinkAddress`] and [`RoutedLinks`] are the interfaces, their addresses and the routes over them.
//!
//! All other messages have a meaning for the users of this crate only: `polyrail-nic` asks about settings of interfaces,
//! `polyrail-lab` makes some, and `polyrail-sample` asks about TCP connections.
//!
//! We wrote it by hand. `netlink-bindings` is generated from the kernel's own descriptions and knows
//! every message used here. But it would bring 113,000 lines and a library of 20 MB for thirty kinds
//! of messages, compiles for 8 seconds where this crate takes less than one, and has no
//! sockets.
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

/// For fuzzing: how many messages of any bytes could be verdicts, and the links, addresses and routes in them.
#[doc(hidden)]
pub fn examine(bytes: &[u8]) -> usize {
    let verdicts = replies(bytes).flatten().filter_map(|reply| wire::verdict(&reply)).count();
    verdicts + links::examine(bytes) + routes::examine(bytes)
}
