//! Defaults derived from the machine and the rails: busy CPUs, channels, progress threads, and chunk sizes.

/// Towards the end of a transfer over several rails, a chunk is 1/`TAPER` of the bytes left per rail, so that all rails
/// end together, ...
const TAPER: u64 = 4;
/// ... but no smaller than 1/`TAPERED_LEAST` of the largest chunk, or than a page, since each chunk has a fixed cost.
const TAPERED_LEAST: u64 = 4;
/// Number of rails beyond which shares get no smaller.
const MAX_SHARES: u64 = 16;
const PAGE_BYTES: u64 = 4096;

/// Returns the number of available CPUs that one direction may keep busy.
///
/// The other direction needs as many, and the code that uses the bytes has the rest. Checked or sealed payload
/// (`is_protected`) costs more CPU per byte, so its share is larger.
pub fn busy_cpus(cpus: usize, is_protected: bool) -> usize {
    let eighths = if is_protected { 4 } else { 3 };
    (cpus * eighths / 8).max(1)
}

/// Returns the channels of each rail, where their number is not set.
///
/// One TCP connection carries as much as one core copies, which is less than a fast NIC does. So the count is enough to
/// keep the busy CPUs busy, 4 at most. It is at least 2 for one rail: a single channel would leave the second of two
/// progress threads idle.
pub fn channels_per_rail(rails: usize, busy_cpus: usize) -> u32 {
    busy_cpus.max(2).div_ceil(rails.max(1)).clamp(1, 4) as u32
}

/// Returns the number of channels to a peer over `pairs` rail pairs. `setting`: the configured number, or 0.
pub fn channels(setting: u32, pairs: usize, per_rail: u32) -> u32 {
    match setting {
        // A peer has at most 64 rails, each with 4 channels.
        0 => pairs as u32 * per_rail,
        channels => channels,
    }
}

/// Returns the maximum number of incoming connections in the handshake at once: a 32nd of the limit of flows, at most
/// an eighth of the file descriptors that the process may have, and at least 4.
pub fn handshakes(flow_limit: u32, descriptors: u64) -> u32 {
    let share = u32::try_from(descriptors / 8).unwrap_or(u32::MAX);
    (flow_limit / 32).min(share).max(4)
}

/// Returns the number of progress threads of a direction, where it is not set.
///
/// There is one for each rail and for each channel to a peer, but no more than can run at once next to the threads of
/// the other direction and of the application. `channels`: the configured number, or 0.
pub fn progress_threads(rails: usize, channels: u32, per_rail: u32, busy_cpus: usize) -> u32 {
    let wanted = match channels {
        0 => rails * per_rail as usize,
        channels => rails.max(channels as usize),
    };
    wanted.clamp(1, busy_cpus.max(2)) as u32
}

/// Returns the size in bytes of the next chunk of a transfer over `rails` rails with `left` bytes not cut yet. `most`:
/// the largest chunk.
pub fn chunk_bytes(most: u64, rails: usize, left: u64) -> u64 {
    if rails < 2 {
        return most;
    }
    let least = (most / TAPERED_LEAST).next_multiple_of(PAGE_BYTES).clamp(1, most);
    let share = left / (TAPER * rails as u64).min(MAX_SHARES);
    share.next_multiple_of(PAGE_BYTES).clamp(least, most)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1 << 10;

    #[test]
    fn handshakes_are_a_share_of_flows_and_of_descriptors() {
        assert_eq!(handshakes(4096, 1024), 128);
        assert_eq!(handshakes(65536, 1024), 128);
        assert_eq!(handshakes(65536, u64::MAX), 2048);
        assert_eq!(handshakes(8, 8), 4);
    }

    #[test]
    fn channels_and_threads_follow_from_cpus_and_rails_as_in_this_table() {
        // CPUs, protected, rails; busy CPUs, channels of each rail, progress threads of a direction.
        let table = [
            (1, false, 1, 1, 2, 2),
            (2, false, 1, 1, 2, 2),
            (2, false, 4, 1, 1, 2),
            (4, true, 1, 2, 2, 2),
            (8, false, 1, 3, 3, 3),
            (8, true, 1, 4, 4, 4),
            (16, false, 1, 6, 4, 4),
            // Six CPUs would leave two idle with four flows.
            (16, false, 4, 6, 2, 6),
            (32, false, 4, 12, 3, 12),
            (64, false, 4, 24, 4, 16),
            (16, false, 8, 6, 1, 6),
            (192, true, 8, 96, 4, 32),
        ];
        for row @ (cpus, is_protected, rails, busy, per_rail, threads) in table {
            let found_busy = busy_cpus(cpus, is_protected);
            let found = channels_per_rail(rails, found_busy);
            let found_threads = progress_threads(rails, 0, found, found_busy);
            assert_eq!((found_busy, found, found_threads), (busy, per_rail, threads), "{row:?}");
            assert_eq!(channels(0, rails, found), rails as u32 * per_rail, "{row:?}");
        }
    }

    #[test]
    fn channels_that_are_set_decide() {
        assert_eq!((channels(3, 4, 2), channels(1, 4, 2)), (3, 1));
        // Each rail has a thread if there are enough CPUs.
        assert_eq!([1, 3, 9].map(|set| progress_threads(2, set, 4, 6)), [2, 3, 6]);
        assert_eq!(progress_threads(8, 1, 4, 1), 2);
    }

    #[test]
    fn chunks_shrink_towards_the_end_of_a_transfer_as_in_this_table() {
        // Largest chunk, rails, bytes left; the next chunk.
        let table = [
            (512 * KIB, 1, 0, 512 * KIB),
            (512 * KIB, 1, 1 << 30, 512 * KIB),
            (512 * KIB, 2, 4 << 20, 512 * KIB),
            (512 * KIB, 2, 2 << 20, 256 * KIB),
            (512 * KIB, 2, 1 << 20, 128 * KIB),
            (512 * KIB, 2, 1, 128 * KIB),
            (512 * KIB, 4, 8 << 20, 512 * KIB),
            (512 * KIB, 4, 4 << 20, 256 * KIB),
            // Shares of more rails are no smaller.
            (512 * KIB, 64, 4 << 20, 256 * KIB),
            (8 * KIB, 2, 1, 4 * KIB),
            (1, 2, 1 << 20, 1),
        ];
        for row @ (most, rails, left, bytes) in table {
            assert_eq!(chunk_bytes(most, rails, left), bytes, "{row:?}");
        }
    }
}
