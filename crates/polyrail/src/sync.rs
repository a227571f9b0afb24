//! What [`crate::wake::tx_proxies`], [`crate::memory::gate`] and [`crate::wake::signal`] are made of. `tests/loom.rs` compiles
//! them with loom's versions instead, and tries every order in which threads can meet.

pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
pub(crate) use std::thread::yield_now;
