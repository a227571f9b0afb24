//! Memory of one end: its place, its contents, and the verification of what arrived.

mod buffers;
mod store;

pub(crate) use self::buffers::{Buffers, Needs};
pub(crate) use self::store::{Bank, Store};
