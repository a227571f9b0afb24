//! State that upper layers attach to a region that they lent, to act when the region ends.

use std::any::Any;
use std::sync::{Arc, OnceLock};

/// State attached to a region, an `R`, that is notified when the region ends.
pub(crate) trait Keepsake<R>: Any + Send + Sync {
    /// Called by every thread that ends the region, when no new use of the region can begin. Returns when no borrower
    /// uses the region either.
    fn region_ends(&self, region: &Arc<R>);
}

/// The state attached to a region: a single value, whose type is decided on first use.
pub(crate) struct Kept<R>(OnceLock<Box<dyn Keepsake<R>>>);

/// Attached to a region that ended before it had any other state.
struct Nothing;

impl<R: 'static> Keepsake<R> for Nothing {
    fn region_ends(&self, _region: &Arc<R>) {}
}

impl<R> Default for Kept<R> {
    fn default() -> Self {
        Self(OnceLock::new())
    }
}

impl<R: 'static> Kept<R> {
    /// Returns the attached state, and attaches it if there is none; `None` if the region has ended before.
    pub(crate) fn keep<T: Keepsake<R> + Default>(&self) -> Option<&T> {
        let kept: &dyn Any = &**self.0.get_or_init(|| Box::new(T::default()));
        kept.downcast_ref()
    }

    /// Returns the state attached so far.
    pub(crate) fn kept<T: Keepsake<R>>(&self) -> Option<&T> {
        let kept: &dyn Any = &**self.0.get()?;
        kept.downcast_ref()
    }

    /// Ends the region: from now on nothing new is attached.
    pub(crate) fn end(&self, region: &Arc<R>) {
        self.0.get_or_init(|| Box::new(Nothing)).region_ends(region);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[derive(Default)]
    struct Counts(AtomicU32);

    impl Keepsake<()> for Counts {
        fn region_ends(&self, _region: &Arc<()>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn what_is_kept_hears_of_the_end_and_after_that_nothing_is_kept() {
        let region = Arc::new(());
        let (kept, empty) = (Kept::<()>::default(), Kept::<()>::default());
        assert!(kept.kept::<Counts>().is_none(), "nobody has kept anything");
        let count = || kept.keep::<Counts>().unwrap().0.load(Ordering::Relaxed);
        assert_eq!(count(), 0);
        assert!(kept.kept::<Counts>().is_some());
        kept.end(&region);
        kept.end(&region);
        assert_eq!(count(), 2, "each who ends it waits");
        empty.end(&region);
        assert!(empty.keep::<Counts>().is_none(), "it is too late");
    }
}
