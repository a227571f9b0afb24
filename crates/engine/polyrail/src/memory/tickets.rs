//! Completion of copies by devices.

use polyrail_gpu::{GpuError, Ticket};
use smallvec::SmallVec;

use crate::base::pause::wait_patiently;

/// Tickets of a chunk's copies: one for each device that has a part of it; empty if none has.
pub(crate) type Tickets = SmallVec<[Ticket; 1]>;

/// Whether a chunk is copied; an error if a part of it never will be. Then no part is being copied.
pub(crate) fn all_done(tickets: &Tickets) -> Result<bool, GpuError> {
    let mut all = true;
    for ticket in tickets {
        match ticket.is_done() {
            Ok(done) => all &= done,
            Err(error) => {
                wait_all(tickets);
                return Err(error);
            }
        }
    }
    Ok(all)
}

/// Waits until each is done or failed.
pub(crate) fn wait_all<'a>(tickets: impl IntoIterator<Item = &'a Ticket>) {
    for ticket in tickets {
        wait_patiently(|| !matches!(ticket.is_done(), Ok(false)));
    }
}
