//! Netlink: how programs ask the kernel about networks, and change them.
//!
//! * [`Message`] builds a request; [`replies`] and [`attributes`] read an answer, and check
//!   every length in it.
//! * [`Socket`] holds conversations: [`Socket::request`] and [`Socket::dump`].
//!
//! This crate does not know what a message means; its users do: `polyrail-nic` asks about interfaces,
//! `polyrail-lab` makes some, and `polyrail-sample` asks about TCP connections.
//!
//! We wrote it by hand. `netlink-bindings` is generated from the kernel's own descriptions and knows
//! every message used here. But it would bring 113,000 lines and a library of 20 MB for thirty kinds
//! of messages, compiles for 8 seconds where this crate takes less than one, and has no
//! sockets.
#![deny(unsafe_code)]

mod socket;
mod wire;

pub use socket::{Error, Protocol, Socket, open, refusal};
#[doc(hidden)]
pub use wire::examine;
pub use wire::{
    BadMessage, Message, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE, Reply, any_uint, attributes,
    find, find_u32, replies, text, u16_at, u32_at, u64_at,
};
