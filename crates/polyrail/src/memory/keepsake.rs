//! What upper layers keep with a region that they lent to somebody, to be told of its end.

use std::any::Any;
use std::sync::{Arc, OnceLock};

use crate::memory::region::RegionCore;

/// Kept with a region, and told when that ends.
pub(crate) trait Keepsake: Any + Send + Sync {
    /// Every thread that ends the region calls this, when nothing begins to use the region any
    /// more. It returns when no borrower uses the region either.
    fn region_ends(&self, region: &Arc<RegionCore>);
}

/// What is kept with a region: one thing, which is decided when it is needed first.
#[derive(Default)]
pub(crate) struct Kept(OnceLock<Box<dyn Keepsake>>);

/// The region has ended before anything was kept with it.
struct Nothing;

impl Keepsake for Nothing {
    fn region_ends(&self, _region: &Arc<RegionCore>) {}
}

impl Kept {
    /// What is kept, new if there was nothing; `None` if the region has ended before.
    pub(crate) fn keep<T: Keepsake + Default>(&self) -> Option<&T> {
        let kept: &dyn Any = &**self.0.get_or_init(|| Box::new(T::default()));
        kept.downcast_ref()
    }

    /// What is kept by now.
    pub(crate) fn kept<T: Keepsake>(&self) -> Option<&T> {
        let kept: &dyn Any = &**self.0.get()?;
        kept.downcast_ref()
    }

    /// The region ends: from now on nothing new is kept.
    pub(crate) fn end(&self, region: &Arc<RegionCore>) {
        self.0.get_or_init(|| Box::new(Nothing)).region_ends(region);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use polyrail_proto::{InstanceId, RegionKey};
    use polyrail_sys::Memory;

    use super::*;
    use crate::memory::access::Access;

    #[derive(Default)]
    struct Counts(AtomicU32);

    impl Keepsake for Counts {
        fn region_ends(&self, _region: &Arc<RegionCore>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn what_is_kept_hears_of_the_end_and_after_that_nothing_is_kept() {
        let key = RegionKey { slot: 1, generation: 1, nonce: 1 };
        let region = || {
            let memory = Memory::from(vec![0]).into();
            Arc::new(RegionCore::new(InstanceId(1), key, memory, Access::ALL))
        };
        let (kept, empty) = (region(), region());
        assert!(kept.kept.kept::<Counts>().is_none(), "nobody has kept anything");
        let count = || kept.kept.keep::<Counts>().unwrap().0.load(Ordering::Relaxed);
        assert_eq!(count(), 0);
        assert!(kept.kept.kept::<Counts>().is_some());
        kept.kept.end(&kept);
        kept.kept.end(&kept);
        assert_eq!(count(), 2, "each who ends it waits");
        empty.kept.end(&empty);
        assert!(empty.kept.keep::<Counts>().is_none(), "it is too late");
    }
}
