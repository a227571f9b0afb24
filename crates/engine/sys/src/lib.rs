//! All unsafe operating-system calls of Polyrail, behind safe types. Linux only.
//!
//! * [`Memory`]: bytes that the kernel and peers write behind Rust's back, accessed by copies and vectored I/O, never
//!   by reference.
//! * [`SharedMemory`]: such bytes that two processes have open; [`SharedWord`]: a word of them.
//! * [`ForeignMemory`], [`ForeignCopy`]: memory of another process, which the kernel copies; [`GuardPage`]: ends that
//!   access for good.
//! * [`Badge`], [`ProvenProcess`]: identification of processes by the kernel, required for access to another process's
//!   memory and descriptors; [`peer_credentials`]: the process at the other end of a Unix connection.
//! * [`first_denied`]: which memory of this process may be read and written.
//! * [`PerProcess`]: values that a forked copy of the process creates again.
//! * [`IoVecs`], [`send`], [`receive`]: one system call over many pieces of memory.
//! * [`crc32c`]: checksum of data in several pieces.
//! * [`without_write_signals`]: a write that fails instead of ending the process.
//! * [`Poller`]: epoll with a wake-up; [`EventFd`]: that wake-up for others.
//! * [`files`]: safe opening of files that another user may have made.
//! * [`tcp`], [`interfaces`], [`threads`]: sockets, links and CPUs.

#![warn(missing_docs)]

mod badge;
mod checksum;
mod event_fd;
pub mod files;
mod foreign_copy;
mod foreign_memory;
mod guard_page;
pub mod interfaces;
mod io;
mod mappings;
mod memory;
mod per_process;
mod poller;
pub mod process;
mod shared_memory;
mod shared_word;
mod signals;
pub mod tcp;
pub mod threads;

pub use badge::{Badge, ProvenProcess, Unproven, peer_credentials};
pub use checksum::crc32c;
pub use event_fd::EventFd;
pub use foreign_copy::{Direction, ForeignCopy};
pub use foreign_memory::{ForeignMemory, Guard, may_copy_between_processes};
pub use guard_page::GuardPage;
pub use io::{In, IoVecs, MAX_IO_PIECES, Out, receive, send};
pub use mappings::{Denied, Protection, first_denied};
pub use memory::{Memory, OutOfRange};
pub use per_process::PerProcess;
pub use poller::{PollEvent, Poller};
pub use shared_memory::SharedMemory;
pub use shared_word::SharedWord;
pub use signals::without_write_signals;
