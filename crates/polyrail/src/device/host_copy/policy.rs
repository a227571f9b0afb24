//! Who copies: the thread that posts a transfer, or the threads that the engine has for that.
//!
//! A posting thread that copies short transfers itself is done with each before it could have woken another thread.
//! But then it copies one after another, and with many outstanding one CPU does all the work. So a thread that goes
//! on posting without looking at what it posted last hands the transfers on, where there are CPUs to spare.

use std::cell::Cell;
use std::time::Duration;

/// What a posting thread copies itself: waking another thread takes longer.
const INLINE_BYTES: u64 = 64 << 10;
/// What the proxy that finds a message's receive copies itself, as it would have done for the rails.
const INLINE_MESSAGE_BYTES: u64 = 256 << 10;
/// Parts of such transfers.
const INLINE_PARTS: usize = 64;
/// CPUs from which on some are to spare for a thread that posts one short transfer after another.
const SPARE_CPUS: usize = 8;
/// What a posting thread has outstanding when it hands on the next short transfer.
const OUTSTANDING: u32 = 2;
/// The least that is handed on: less is copied before another thread could have been told.
const LEAST_HANDED_ON_BYTES: u64 = 16 << 10;
/// More threads don't copy faster, as memory has only so many channels.
const THREADS_MAX: usize = 8;
/// How long a thread without work looks for more before it sleeps. To wake it would cost the posting thread a system
/// call for each transfer.
const LOOKS_FOR: Duration = Duration::from_micros(20);

/// What the choice depends on.
#[derive(Clone, Copy)]
pub(super) struct Facts {
    pub(super) cpus: usize,
    pub(super) bytes: u64,
    pub(super) parts: usize,
    /// Transfers that the posting thread has posted since it last saw the end of its newest one.
    pub(super) outstanding: u32,
}

/// Who copies a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Copyist {
    Poster,
    Threads,
}

/// Who copies a write or a read.
pub(super) fn copyist(facts: Facts) -> Copyist {
    let Facts { cpus, bytes, parts, outstanding } = facts;
    let is_short = bytes <= INLINE_BYTES && parts <= INLINE_PARTS;
    let is_handed_on =
        cpus >= SPARE_CPUS && outstanding >= OUTSTANDING && bytes >= LEAST_HANDED_ON_BYTES;
    if is_short && !is_handed_on { Copyist::Poster } else { Copyist::Threads }
}

/// Who copies a message: the proxy that found its receive is its poster.
pub(super) fn copyist_of_message(bytes: u64, parts: usize) -> Copyist {
    let is_short = bytes <= INLINE_MESSAGE_BYTES && parts <= INLINE_PARTS;
    if is_short { Copyist::Poster } else { Copyist::Threads }
}

/// How many threads copy on a machine with so many CPUs. Threads that wait for a transfer help them.
pub(super) fn threads(cpus: usize) -> usize {
    (cpus / 2).clamp(1, THREADS_MAX)
}

/// How long a thread without work looks for more on such a machine.
pub(super) fn looks_for(cpus: usize) -> Duration {
    if cpus >= SPARE_CPUS { LOOKS_FOR } else { Duration::ZERO }
}

thread_local! {
    static POSTS: Cell<Posts> = const { Cell::new(Posts { newest: 0, outstanding: 0 }) };
}

/// What a thread has posted for CPUs to copy.
#[derive(Clone, Copy)]
struct Posts {
    /// The address of the newest operation.
    newest: usize,
    outstanding: u32,
}

/// This thread posts an operation. Returns how many it has outstanding besides.
pub(crate) fn note_post<T>(op: &T) -> u32 {
    let Posts { outstanding, .. } = POSTS.get();
    let newest = std::ptr::from_ref(op).addr();
    POSTS.set(Posts { newest, outstanding: outstanding.saturating_add(1) });
    outstanding
}

/// This thread sees that an operation is over. If it is the newest, the thread waits for what it posts.
pub(crate) fn note_end<T>(op: &T) {
    let Posts { newest, .. } = POSTS.get();
    if newest == std::ptr::from_ref(op).addr() {
        POSTS.set(Posts { newest, outstanding: 0 });
    }
}

#[cfg(test)]
mod tests {
    use super::Copyist::{Poster, Threads};
    use super::*;

    const FEW: Facts = Facts { cpus: 16, bytes: 64 << 10, parts: 1, outstanding: 0 };
    const MANY: Facts = Facts { outstanding: 15, ..FEW };

    #[test]
    fn a_thread_copies_what_is_short_unless_it_has_more_outstanding_and_cpus_are_to_spare() {
        for (facts, who) in [
            (FEW, Poster),
            (Facts { outstanding: OUTSTANDING - 1, ..FEW }, Poster),
            (Facts { outstanding: OUTSTANDING, ..FEW }, Threads),
            (MANY, Threads),
            (Facts { cpus: SPARE_CPUS, ..MANY }, Threads),
            (Facts { cpus: SPARE_CPUS - 1, ..MANY }, Poster),
            (Facts { bytes: LEAST_HANDED_ON_BYTES, ..MANY }, Threads),
            (Facts { bytes: LEAST_HANDED_ON_BYTES - 1, ..MANY }, Poster),
            (Facts { bytes: INLINE_BYTES + 1, ..FEW }, Threads),
            (Facts { parts: INLINE_PARTS + 1, ..FEW }, Threads),
        ] {
            let Facts { cpus, bytes, parts, outstanding } = facts;
            assert_eq!(copyist(facts), who, "{cpus} {bytes} {parts} {outstanding}");
        }
    }

    #[test]
    fn threads_grow_with_cpus_up_to_what_memory_feeds() {
        let threads: Vec<usize> = [1, 2, 4, 8, 16, 64].into_iter().map(threads).collect();
        assert_eq!(threads, [1, 1, 2, 4, 8, 8]);
        assert!(looks_for(2).is_zero() && !looks_for(16).is_zero());
    }

    #[test]
    fn a_thread_that_waits_for_each_transfer_has_none_outstanding() {
        let [first, second, third] = [1, 2, 3];
        assert_eq!(note_post(&first), 0);
        note_end(&first);
        assert_eq!(note_post(&first), 0);
        assert_eq!(note_post(&second), 1);
        note_end(&first);
        assert_eq!(note_post(&third), 2, "the oldest of several");
        note_end(&second);
        note_end(&third);
        assert_eq!(note_post(&first), 0, "all of them");
        // Another thread's posts are its own.
        std::thread::scope(|scope| {
            scope.spawn(|| assert_eq!(note_post(&first), 0));
        });
    }
}
