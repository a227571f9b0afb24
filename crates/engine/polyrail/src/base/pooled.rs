//! Shared values whose memory is reused, since many are made each second.

use std::ops::Deref;
use std::sync::Arc;

use crossbeam_queue::ArrayQueue;

/// A handle on a shared value, like [`Arc`]. Dropping the last handle drops the value, and returns its memory to the
/// pool.
///
/// Two last handles that are dropped at the same time may each see the other. Then the memory is freed.
pub(crate) struct Pooled<T: InPool>(Option<Arc<Option<T>>>);

/// A pool of unused memory for such values.
pub(crate) struct Spares<T>(ArrayQueue<Arc<Option<T>>>);

/// A value that knows its pool.
pub(crate) trait InPool: Sized {
    fn spares(&self) -> &Spares<Self>;
}

impl<T> Spares<T> {
    /// Makes a pool that keeps memory for at most `most` values.
    pub(crate) fn new(most: usize) -> Self {
        Self(ArrayQueue::new(most.max(1)))
    }
}

impl<T: InPool> Pooled<T> {
    pub(crate) fn new(value: T) -> Self {
        let spare = value.spares().0.pop();
        let mut memory = spare.unwrap_or_default();
        match Arc::get_mut(&mut memory) {
            Some(place) => {
                *place = Some(value);
                Self(Some(memory))
            }
            // Spares have one owner.
            None => Self(Some(Arc::new(Some(value)))),
        }
    }

    /// Whether both are handles on the same value.
    pub(crate) fn is(&self, other: &Self) -> bool {
        std::ptr::eq::<T>(&**self, &**other)
    }
}

impl<T: InPool> Clone for Pooled<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T: InPool> Deref for Pooled<T> {
    type Target = T;

    fn deref(&self) -> &T {
        match self.0.as_deref() {
            Some(Some(value)) => value,
            _ => unreachable!("a handle has a value until it is dropped"),
        }
    }
}

impl<T: InPool> Drop for Pooled<T> {
    fn drop(&mut self) {
        let Some(mut memory) = self.0.take() else { return };
        if Arc::strong_count(&memory) > 1 {
            return;
        }
        if let Some(value) = Arc::get_mut(&mut memory).and_then(Option::take) {
            // A full pool refuses it, which frees it.
            let _ = value.spares().0.push(memory);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Number(u32, Arc<Spares<Self>>);

    impl InPool for Number {
        fn spares(&self) -> &Spares<Self> {
            &self.1
        }
    }

    #[test]
    fn memory_is_used_again_once_the_last_handle_is_dropped() {
        let spares = Arc::new(Spares::new(2));
        let new = |number| Pooled::new(Number(number, spares.clone()));
        let address = |handle: &Pooled<Number>| &raw const **handle;
        let (one, two) = (new(1), new(2));
        let (of_one, of_two) = (address(&one), address(&two));
        let again = one.clone();
        assert!(again.is(&one) && !again.is(&two) && again.0.is_some());
        drop(one);
        assert!(spares.0.is_empty(), "a handle is left");
        drop(again);
        let three = new(3);
        assert_eq!((address(&three), three.deref().0), (of_one, 3));
        drop(two);
        assert_eq!(address(&new(4)), of_two);
    }

    #[test]
    fn a_pool_keeps_no_more_than_it_may_and_no_value() {
        let spares = Arc::new(Spares::new(2));
        let many: Vec<_> =
            (0..10).map(|number| Pooled::new(Number(number, spares.clone()))).collect();
        assert_eq!(Arc::strong_count(&spares), 11);
        drop(many);
        assert_eq!((spares.0.len(), Arc::strong_count(&spares)), (2, 1));
    }
}
