//! The memory of one end: where it is, what is in it, and whether the right bytes arrived.

mod buffers;
mod store;

pub(crate) use self::buffers::{Buffers, Needs};
pub(crate) use self::store::{Bank, Store};
