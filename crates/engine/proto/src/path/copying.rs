//! Decides which requests are worth a copy, and which thread copies: the one that posts a transfer, or the engine's
//! copy threads.
//!
//! A posting thread that copies short transfers itself finishes each before it could have woken another thread. But
//! then it copies one after another, and with many outstanding one CPU does all the work. So a thread that keeps
//! posting without checking its last transfer hands transfers on, where there are spare CPUs.

use std::time::Duration;

use super::reason::PathObstacle;

/// Maximum bytes that a posting thread copies itself: waking another thread takes longer.
const INLINE_BYTES: u64 = 64 << 10;
/// Maximum bytes of a message that the progress thread that finds its receive copies itself, as it would have done for
/// the rails.
const INLINE_MESSAGE_BYTES: u64 = 256 << 10;
/// Maximum parts of such transfers.
const INLINE_PARTS: usize = 64;
/// Number of CPUs from which on some are spare for a thread that posts one short transfer after another.
const SPARE_CPUS: usize = 8;
/// Number of outstanding transfers from which on a posting thread hands on the next short one.
const OUTSTANDING: u32 = 2;
/// Minimum bytes to hand on: less is copied before another thread could have been notified.
const LEAST_HANDED_ON_BYTES: u64 = 16 << 10;
/// Maximum copy threads: more don't copy faster, as memory has a limited number of channels.
const THREADS_MAX: usize = 8;
/// Time that an idle thread polls for work before it sleeps. Waking it would cost the posting thread a system call for
/// each transfer.
const LOOKS_FOR: Duration = Duration::from_micros(20);

/// Minimum bytes of a copy between processes: the rails carry less as fast, since a system call for a copy takes as
/// long as one for a message, and messages are batched.
const LEAST_BYTES: u64 = 4 << 10;
/// Minimum average bytes of a piece: the kernel takes longer to find many small pieces than a message takes.
const LEAST_PIECE_BYTES: u64 = 512;
/// Minimum bytes of a message: a shorter one is faster over the rails, as its receive has to be announced either way.
const LEAST_MESSAGE_BYTES: u64 = 128 << 10;
/// Minimum bytes that go through memory that both processes have open where no single copy is possible.
const LEAST_SHARED_BYTES: u64 = 64 << 10;
/// Minimum bytes that a send leaves in memory that its peer has open. On 16 CPUs, with 16 outstanding, messages of 1
/// MiB moved this way were 1.5 times as fast as over the rails, and those of 64 KiB half as fast.
const LEAST_LEFT_BYTES: u64 = 1 << 20;
/// Maximum bytes that go by a stage: with many outstanding, more is moved faster through shared memory, as all progress
/// threads of both ends copy there.
const MOST_STAGED_BYTES: u64 = 256 << 10;
/// Maximum pieces that go by a stage: the kernel takes longer to find more.
const MOST_STAGED_PIECES: usize = 256;

/// Facts that the choice depends on.
#[derive(Clone, Copy)]
pub struct Facts {
    /// CPUs of the machine.
    pub cpus: usize,
    /// Bytes of the transfer.
    pub bytes: u64,
    /// Parts of the transfer.
    pub parts: usize,
    /// Transfers that the posting thread has posted since it last saw its newest one complete.
    pub outstanding: u32,
}

/// Thread that copies a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copyist {
    /// The posting thread.
    Poster,
    /// The engine's copy threads.
    Threads,
}

/// Returns whether this many bytes in this many pieces are worth a separate copy.
#[inline]
pub fn is_worth_a_copy(bytes: u64, pieces: usize) -> bool {
    bytes >= LEAST_BYTES && bytes / (pieces as u64).max(1) >= LEAST_PIECE_BYTES
}

/// Returns the same for a message, or for a receive with this much room.
#[inline]
pub fn is_message_worth_a_copy(bytes: u64, pieces: usize) -> bool {
    bytes >= LEAST_MESSAGE_BYTES && is_worth_a_copy(bytes, pieces)
}

/// Checks whether this many bytes are worth two copies, through memory that both processes have open, if a single one
/// is not possible.
#[inline]
pub fn may_be_shared(bytes: u64) -> Result<(), PathObstacle> {
    if bytes < LEAST_SHARED_BYTES { Err(PathObstacle::Short) } else { Ok(()) }
}

/// Returns whether the payload of a send of this many bytes is worth leaving in memory that its peer has open.
#[inline]
pub fn is_worth_leaving(bytes: u64) -> bool {
    bytes >= LEAST_LEFT_BYTES
}

/// Checks whether this many bytes in this many pieces may go by a stage: the device copies them to or from pinned
/// memory, and CPUs between there and the other process.
#[inline]
pub fn may_be_staged(bytes: u64, pieces: usize) -> Result<(), PathObstacle> {
    if bytes > MOST_STAGED_BYTES {
        return Err(PathObstacle::Long);
    }
    if pieces > MOST_STAGED_PIECES {
        return Err(PathObstacle::ManyPieces);
    }
    Ok(())
}

/// Returns which thread copies a write or a read.
#[inline]
pub fn copyist(facts: Facts) -> Copyist {
    let Facts { cpus, bytes, parts, outstanding } = facts;
    let is_short = bytes <= INLINE_BYTES && parts <= INLINE_PARTS;
    let is_handed_on =
        cpus >= SPARE_CPUS && outstanding >= OUTSTANDING && bytes >= LEAST_HANDED_ON_BYTES;
    if is_short && !is_handed_on { Copyist::Poster } else { Copyist::Threads }
}

/// Returns which thread copies a message: the progress thread that found its receive counts as the posting thread.
#[inline]
pub fn copyist_of_message(bytes: u64, parts: usize) -> Copyist {
    let is_short = bytes <= INLINE_MESSAGE_BYTES && parts <= INLINE_PARTS;
    if is_short { Copyist::Poster } else { Copyist::Threads }
}

/// Returns how many threads copy on a machine with this many CPUs. Threads that wait for a transfer help them.
#[inline]
pub fn copy_threads(cpus: usize) -> usize {
    (cpus / 2).clamp(1, THREADS_MAX)
}

/// Returns how long an idle thread polls for work on such a machine.
#[inline]
pub fn looks_for(cpus: usize) -> Duration {
    if cpus >= SPARE_CPUS { LOOKS_FOR } else { Duration::ZERO }
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
        let threads: Vec<usize> = [1, 2, 4, 8, 16, 64].into_iter().map(copy_threads).collect();
        assert_eq!(threads, [1, 1, 2, 4, 8, 8]);
        assert!(looks_for(2).is_zero() && !looks_for(16).is_zero());
    }
}
