//! What is worth a copy, and who copies: the thread that posts a transfer, or the threads that the engine has for that.
//!
//! A posting thread that copies short transfers itself is done with each before it could have woken another thread.
//! But then it copies one after another, and with many outstanding one CPU does all the work. So a thread that goes
//! on posting without looking at what it posted last hands the transfers on, where there are CPUs to spare.

use std::time::Duration;

use super::reason::PathObstacle;

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

/// Between processes, what the rails carry as fast: a system call for a copy takes as long as one
/// for a message, and messages gather.
const LEAST_BYTES: u64 = 4 << 10;
/// Many small pieces take the kernel longer to find than a message takes.
const LEAST_PIECE_BYTES: u64 = 512;
/// Of a message: a shorter one is through sooner over the rails, as its receive has to be announced either way.
const LEAST_MESSAGE_BYTES: u64 = 128 << 10;
/// The least that goes through memory that both processes have open where no single copy is possible.
const LEAST_SHARED_BYTES: u64 = 64 << 10;
/// The least that a send leaves in memory that its peer has open: on 16 CPUs messages of 1 MiB moved 1.5 times
/// as fast so as over the rails, and those of 64 KiB half as fast, with 16 outstanding.
const LEAST_LEFT_BYTES: u64 = 1 << 20;
/// The most that goes by a stage: more is moved faster through shared memory where many are outstanding, as all
/// proxies of both ends copy there.
const MOST_STAGED_BYTES: u64 = 256 << 10;
/// More of them the kernel takes longer to find.
const MOST_STAGED_PIECES: usize = 256;

/// What the choice depends on.
#[derive(Clone, Copy)]
pub struct Facts {
    /// CPUs of the machine.
    pub cpus: usize,
    /// Bytes of the transfer.
    pub bytes: u64,
    /// Parts of the transfer.
    pub parts: usize,
    /// Transfers that the posting thread has posted since it last saw the end of its newest one.
    pub outstanding: u32,
}

/// Who copies a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copyist {
    /// The thread that posts it.
    Poster,
    /// Threads that the engine has for that.
    Threads,
}

/// Whether so many bytes in so many pieces are worth a copy of their own.
#[inline]
pub fn is_worth_a_copy(bytes: u64, pieces: usize) -> bool {
    bytes >= LEAST_BYTES && bytes / (pieces as u64).max(1) >= LEAST_PIECE_BYTES
}

/// The same of a message, or of a receive with so much room.
#[inline]
pub fn is_message_worth_a_copy(bytes: u64, pieces: usize) -> bool {
    bytes >= LEAST_MESSAGE_BYTES && is_worth_a_copy(bytes, pieces)
}

/// Whether so many bytes are worth two copies, by way of memory that both processes have open, if a single
/// one is not possible.
#[inline]
pub fn may_be_shared(bytes: u64) -> Result<(), PathObstacle> {
    if bytes < LEAST_SHARED_BYTES { Err(PathObstacle::Short) } else { Ok(()) }
}

/// Whether the payload of a send of so many bytes is worth leaving in memory that its peer has open.
#[inline]
pub fn is_worth_leaving(bytes: u64) -> bool {
    bytes >= LEAST_LEFT_BYTES
}

/// Whether so many bytes in so many pieces may go by a stage: the device copies them to or from pinned memory, and
/// CPUs between there and the other process.
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

/// Who copies a write or a read.
#[inline]
pub fn copyist(facts: Facts) -> Copyist {
    let Facts { cpus, bytes, parts, outstanding } = facts;
    let is_short = bytes <= INLINE_BYTES && parts <= INLINE_PARTS;
    let is_handed_on =
        cpus >= SPARE_CPUS && outstanding >= OUTSTANDING && bytes >= LEAST_HANDED_ON_BYTES;
    if is_short && !is_handed_on { Copyist::Poster } else { Copyist::Threads }
}

/// Who copies a message: the proxy that found its receive is its poster.
#[inline]
pub fn copyist_of_message(bytes: u64, parts: usize) -> Copyist {
    let is_short = bytes <= INLINE_MESSAGE_BYTES && parts <= INLINE_PARTS;
    if is_short { Copyist::Poster } else { Copyist::Threads }
}

/// How many threads copy on a machine with so many CPUs. Threads that wait for a transfer help them.
#[inline]
pub fn copy_threads(cpus: usize) -> usize {
    (cpus / 2).clamp(1, THREADS_MAX)
}

/// How long a thread without work looks for more on such a machine.
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
