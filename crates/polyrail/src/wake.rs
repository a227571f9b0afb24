//! How threads that make work and proxies that do it find each other. Small pieces, which
//! `tests/loom.rs` tries in every order.

/// Work that is left to whoever holds a lock.
pub(crate) mod handover;
/// Whether a proxy may sleep, and who tells it of what.
pub(crate) mod outlook;
/// Whether a proxy sleeps, and must be woken.
pub(crate) mod signal;
/// How long it pays to poll before a sleep.
pub(crate) mod spin;
/// How far both ends of a stream through shared memory are, and which of them sleeps.
pub(crate) mod stream_words;
/// Which proxies are asked to send to a peer.
pub(crate) mod tx_proxies;
