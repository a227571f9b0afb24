//! A word of memory that another process may change at any moment.

use std::fmt;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use crate::memory::{Memory, OutOfRange};

const WORD_BYTES: u64 = size_of::<AtomicU64>() as u64;

/// A word in a [`Memory`], which it keeps. The word may hold anything: other processes that have the memory open write
/// what they like.
pub struct SharedWord {
    word: NonNull<AtomicU64>,
    _memory: Memory,
}

// SAFETY: the word is inside a `Memory`, which may be used from any thread, and is only reached by
// atomic operations through this type.
unsafe impl Send for SharedWord {}
// SAFETY: as above.
unsafe impl Sync for SharedWord {}

impl SharedWord {
    /// The word at `offset`.
    ///
    /// # Errors
    /// The range is not inside the memory, or the memory is a file's.
    ///
    /// # Panics
    /// If the address is not a multiple of 8.
    pub fn new(memory: &Memory, offset: u64) -> Result<Self, OutOfRange> {
        let word = memory.direct(offset, WORD_BYTES)?.cast::<AtomicU64>();
        assert!(word.is_aligned(), "a word stands at a multiple of its size");
        let word = NonNull::new(word).unwrap_or(NonNull::dangling());
        Ok(Self { word, _memory: memory.clone() })
    }
}

impl Deref for SharedWord {
    type Target = AtomicU64;

    fn deref(&self) -> &AtomicU64 {
        // SAFETY: the word is inside of the memory that `self` keeps, aligned, and any bytes are a
        // value of it. An atomic may change while there is a reference to it.
        unsafe { self.word.as_ref() }
    }
}

impl fmt::Debug for SharedWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedWord({:p})", self.word)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;
    use crate::{ProvenProcess, SharedMemory};

    #[test]
    fn two_who_have_the_memory_open_have_the_same_word() {
        let mine = SharedMemory::create(64, 1).unwrap();
        let own = ProvenProcess::assumed(std::process::id());
        let opened = SharedMemory::open(&own, mine.descriptor(), 64, mine.token()).unwrap();
        let (one, two) =
            (SharedWord::new(mine.memory(), 56).unwrap(), SharedWord::new(&opened, 56).unwrap());
        one.store(7, Ordering::Release);
        assert_eq!(two.swap(8, Ordering::AcqRel), 7);
        drop((mine, opened));
        assert_eq!(one.load(Ordering::Acquire), 8, "it keeps its memory");
    }

    #[test]
    fn no_word_reaches_outside() {
        let memory = Memory::anonymous(64).unwrap();
        let error = SharedWord::new(&memory, 64).unwrap_err();
        assert_eq!(error, OutOfRange { offset: 64, len: 8, size: 64 });
        assert!(SharedWord::new(&memory, u64::MAX - 3).is_err());
    }
}
