//! Values that each process has separately, including forked copies.

use std::sync::OnceLock;

use crate::process::Original;

/// A value of this process. A forked copy creates its own: threads of the original, which the copy does not have, may
/// have held locks in the value during the fork, and these locks would never be released in the copy.
pub struct PerProcess<T: 'static> {
    of_original: OnceLock<Box<Value<T>>>,
}

struct Value<T: 'static> {
    original: Original,
    value: T,
    of_copy: OnceLock<Box<Self>>,
}

impl<T: Default> Default for Value<T> {
    fn default() -> Self {
        Self { original: Original::default(), value: T::default(), of_copy: OnceLock::new() }
    }
}

impl<T: Default> PerProcess<T> {
    /// Creates an empty cell.
    pub const fn new() -> Self {
        Self { of_original: OnceLock::new() }
    }

    /// Returns the value of this process. In a copy, the original's value is never dropped.
    pub fn get(&'static self) -> &'static T {
        let mut place = &self.of_original;
        loop {
            let found = place.get_or_init(Box::default);
            if !found.original.is_copy() {
                return &found.value;
            }
            place = &found.of_copy;
        }
    }
}

impl<T: Default> Default for PerProcess<T> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    static OWN: PerProcess<Mutex<u32>> = PerProcess::new();

    #[test]
    fn a_forked_copy_has_a_value_of_its_own_whoever_holds_that_of_the_original() {
        let mut held = OWN.get().lock().unwrap();
        *held = 7;
        // SAFETY: the copy allocates, which the C library allows there, and ends without unwinding.
        match unsafe { libc::fork() } {
            0 => {
                let found = OWN.get().try_lock().map_or(1, |own| i32::from(*own != 0));
                // SAFETY: the call ends this process, which needs no cleanup.
                unsafe { libc::_exit(found) };
            }
            copy => {
                let mut status = -1;
                // SAFETY: a word that is valid during the call.
                assert_eq!(unsafe { libc::waitpid(copy, &raw mut status, 0) }, copy);
                assert_eq!(status, 0, "the copy found the lock held, or the value of the original");
            }
        }
        drop(held);
        assert_eq!(*OWN.get().lock().unwrap(), 7);
    }
}
