//! What [`crate::wake`] and [`crate::memory::gate`] are made of. `tests/loom.rs` compiles them with loom's versions
//! instead, and tries every order in which threads can meet.

pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
pub(crate) use std::thread::yield_now;

pub(crate) use polyrail_sys::{PollEvent, Poller};
