//! Wake-ups between the threads that make work and the progress threads that do it.
//!
//! # Contract
//!
//! A [`Wake`] belongs to a peer: it knows the progress threads that send to that peer. A [`Doorbell`](doorbell::Doorbell)
//! belongs to a progress thread, which sleeps nowhere else. Work lies elsewhere: in the peer's queue of posted
//! operations, or in its sender core, under that core's lock.
//!
//! 1. A **poster** puts work where progress threads look for it, then calls [`Wake::announce`].
//! 2. A **progress thread** calls `Doorbell::begin`, looks for what is announced to it ([`Wake::claim`]), and works.
//!    When it finds nothing left anywhere it calls [`Wake::done`], and looks once more. When nothing moves, it calls
//!    `Doorbell::sleep`.
//!
//! Then each piece of work is seen by a thread that is awake, or wakes one. No thread waits for a lock for that, and a
//! thread that is awake costs its posters no system call.
//!
//! | call | by | meaning |
//! |---|---|---|
//! | [`Wake::announce`] | posters | there is work, enough for `n` threads: they are rung |
//! | [`Wake::offer`] | a post | the same, but the poster may do it itself and [`Offer::keep`](announce::Offer::keep) it; else they are rung |
//! | [`Wake::announce_to`] | a progress thread | the sender core wants the flows of that thread to pull |
//! | [`Wake::share`] | a progress thread | there is more than this one can send: one more is rung |
//! | [`Wake::claim`] | a progress thread | whether work is announced to it |
//! | [`Wake::resume`] | a progress thread | it can do more itself: room came, or its second look found work |
//! | [`Wake::done`] | a progress thread | nothing is left, for any of them |
//! | `Doorbell::ring` | posters of commands | the thread has something to look at |
//! | `Doorbell::rouse` | the watchdog, callers that drive | ends a sleep, and announces nothing |
//! | `Doorbell::begin`, `Doorbell::sleep` | the progress thread (`proxy::drive`) | looks from now on; sleeps, unless rung since |
//! | `Handover::leave`, `Handover::take` | callers that drive (`progress = caller`) | work for the holder of the proxy's lock |
//! | `Sleeper::sit` | a caller that is about to sleep | it sleeps for all that drive; then it looks once more, with the proxy's lock |
//! | `Debts::note_sleep` | a caller that sits, with the proxy's lock | the outlook that it sleeps for |
//! | `Debts::must_rouse` | callers that drive, with the proxy's lock | whether they owe a wake-up to the one that sits |
//!
//! Where callers drive, several threads look for events, and each event comes to one of them. So a thread that sleeps
//! sits ([`Sleeper`](sleeper::Sleeper)), then looks once more with the proxy's lock. A driver notes what it owes
//! ([`Debts`](sleeper::Debts)), and asks for the seat with the same lock. No thread announces the end of a device's
//! copy. So a thread that sleeps notes the outlook that its limit was made for, and a driver with an earlier outlook
//! rouses it.
//!
//! Few threads are rung for little work, so that small messages stay on one flow, where the peer looks first. Those that
//! find more than they can send share it.
//!
//! Posters that make new work call `EngineShared::announce` or `EngineShared::post`, which also have flows connected
//! and deadlines watched. Where callers drive, these ring no thread, because the next call does the work.
//!
//! # Memory ordering
//!
//! Two words decide, and every change of them is a read-modify-write with acquire and release, so that the changes of a
//! word have one order and each sees what came before it:
//!
//! * **The bits of a `Wake`.** `announce` sets them after the work is put in place, `done` clears them before the second
//!   look. If the bits were cleared after they were set, the second look sees the work. Else they stay set.
//! * **The state of a `Doorbell`.** `ring` follows the bits, `begin` precedes the look at them, `sleep` follows it. A ring
//!   before `sleep` keeps the thread awake, one after it finds the thread asleep and wakes it. The looks after a `begin`
//!   see what the rings that it answers announced. A `begin` that misses a ring leaves it to `sleep`.
//!
//! A bit that was set before means that another poster has rung, or is about to and may have lost its CPU. So the thread
//! is rung again, unless the earlier ring is still unanswered (`Doorbell::ring_for`, one load). Where a load may be
//! older than the change of the bits before it, a ring can be left out that way. Then the thread knows of the bit, so it
//! has either looked once more after its `done`, or lacks room, and looks again when room comes.
//!
//! Reads of sockets and devices are not announced: [`Outlook`](polyrail_proto::progress::Outlook) lists what a thread
//! waits for, and what wakes it.
//!
//! # Proof
//!
//! `tests/loom.rs` compiles the files of this folder with loom's atomics and a poller that loom knows, and tries every
//! order of posters, devices and progress threads: a forgotten wake-up is a deadlock there. With the feature
//! `check-wakes`, which the tests of this crate switch on, an engine counts what a thread moves after a sleep that
//! nothing ended but the clock, unless a poster is between its work and its announcement ([`Wake::posting`]). In every
//! build the watchdog (`engine::audit`) looks every 50 ms, announces what was left alone, and counts it in `rescues`.

/// Work for the progress threads that send to a peer.
mod announce;
/// State of a progress thread's sleep, and its wake-up.
pub(crate) mod doorbell;
/// Work that is left to the holder of a lock.
pub(crate) mod handover;
/// The thread that sleeps on a poller while others drive.
pub(crate) mod sleeper;
/// Positions of both ends of a stream through shared memory, and which of them sleeps.
pub(crate) mod stream_words;

pub(crate) use announce::{ALL, CHECKS, Wake};
