//! Ways other than the rails by which the payload of an operation reaches the other end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use polyrail_proto::message::PostedReceive;

use crate::device::host_copy::job::HostJob;
use crate::memory::tickets::Tickets;

/// Carrier of an operation's payload other than the rails. Set once, before any thread reads it.
pub(crate) enum Carriage {
    /// Devices copy it end to end, until these tickets are done.
    Devices(Tickets),
    /// CPUs copy it end to end.
    Cpus(CpuCopies),
    /// The caller has copied it end to end.
    Caller,
    /// For a receive: its sender has copied the message into place.
    Sender,
    /// For a send: its receive is in a device's memory and takes the payload from memory that both ends have open. The
    /// rails carry the rest.
    Shared,
}

/// A copy by CPUs. The rails take the payload if it fails.
pub(crate) struct CpuCopies {
    pub(crate) job: Arc<HostJob>,
    /// For a send: the receive into which it is copied.
    pub(crate) receive: Option<PostedReceive>,
    /// Set once the rails have taken the payload.
    is_given_up: AtomicBool,
}

impl CpuCopies {
    pub(crate) fn new(job: Arc<HostJob>, receive: Option<PostedReceive>) -> Self {
        Self { job, receive, is_given_up: AtomicBool::new(false) }
    }

    pub(crate) fn give_up(&self) {
        self.is_given_up.store(true, Ordering::Release);
    }

    pub(crate) fn is_given_up(&self) -> bool {
        self.is_given_up.load(Ordering::Acquire)
    }
}
