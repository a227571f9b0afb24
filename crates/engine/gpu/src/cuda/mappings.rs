//! Open allocations of other processes.

use std::collections::HashMap;

use parking_lot::Mutex;

use super::driver::Address;

/// Other processes' allocations that are open in a device's context, by handle.
#[derive(Default)]
pub(super) struct Mappings(pub(super) Mutex<HashMap<[u8; 64], Opened>>);

#[derive(Clone, Copy)]
pub(super) struct Opened {
    pub(super) base: Address,
    pub(super) size: u64,
    /// The last user closes the allocation.
    pub(super) users: usize,
}

impl Mappings {
    /// Returns start and size of the open allocation that contains an address.
    pub(super) fn find(&self, at: Address) -> Option<(Address, u64)> {
        let all = self.0.lock();
        let is_in = |opened: &&Opened| at >= opened.base && at - opened.base < opened.size;
        all.values().find(is_in).map(|opened| (opened.base, opened.size))
    }
}
