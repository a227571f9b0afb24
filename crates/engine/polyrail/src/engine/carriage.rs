//! How the payload of an operation gets to the other end, where it is not the rails that carry it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use polyrail_proto::message::PostedReceive;

use crate::device::host_copy::job::HostJob;
use crate::memory::tickets::Tickets;

/// What carries the payload of an operation instead of the rails. Set once, before anybody looks for it.
pub(crate) enum Carriage {
    /// Devices copy it from end to end, until these are done.
    Devices(Tickets),
    /// CPUs copy it from end to end.
    Cpus(CpuCopies),
    /// The caller has copied it from end to end.
    Caller,
    /// A receive: its sender has copied the message there.
    Sender,
    /// A send: its receive is in a device's memory, and takes the payload from memory that both ends have
    /// open. The rails carry the rest.
    Shared,
}

/// What CPUs copy. The rails take it if they can't.
pub(crate) struct CpuCopies {
    pub(crate) job: Arc<HostJob>,
    /// If it is a send: the receive into which it is copied.
    pub(crate) receive: Option<PostedReceive>,
    /// The rails have taken it.
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
