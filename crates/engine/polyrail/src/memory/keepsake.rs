//! What upper layers keep with a region that they lent to somebody, to be told of its end.

use std::any::Any;
use std::sync::{Arc, OnceLock};

/// Kept with a region, an `R`, and told when that ends.
pub(crate) trait Keepsake<R>: Any + Send + Sync {
    /// Every thread that ends the region calls this, when nothing begins to use the region any
    /// more. It returns when no borrower uses the region either.
    fn region_ends(&self, region: &Arc<R>);
}

/// What is kept with a region: one thing, which is decided when it is needed first.
pub(crate) struct Kept<R>(OnceLock<Box<dyn Keepsake<R>>>);

/// The region has ended before anything was kept with it.
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
    /// What is kept, new if there was nothing; `None` if the region has ended before.
    pub(crate) fn keep<T: Keepsake<R> + Default>(&self) -> Option<&T> {
        let kept: &dyn Any = &**self.0.get_or_init(|| Box::new(T::default()));
        kept.downcast_ref()
    }

    /// What is kept by now.
    pub(crate) fn kept<T: Keepsake<R>>(&self) -> Option<&T> {
        let kept: &dyn Any = &**self.0.get()?;
        kept.downcast_ref()
    }

    /// The region ends: from now on nothing new is kept.
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
