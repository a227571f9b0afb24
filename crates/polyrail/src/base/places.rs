//! Places of which there are so many.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How many are taken. Clones are the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct Places(Arc<AtomicUsize>);

/// One that is taken; it is free again when this is dropped.
#[derive(Debug)]
pub(crate) struct Place(Arc<AtomicUsize>);

impl Places {
    /// One more, if no more than `most` are taken then.
    pub(crate) fn take(&self, most: usize) -> Option<Place> {
        let more = |taken: usize| (taken < most).then_some(taken + 1);
        let taken = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        taken.is_ok().then(|| Place(self.0.clone()))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
