//! Tuner tables: channels and protocol that suit collectives over the network.
//!
//! Large collectives need many channels, which `NCCL_MIN_NCHANNELS` sets. Medium ones end sooner with few, because each
//! channel costs its own messages, and some with another protocol than NCCL's choice. NCCL finds these tables in the
//! network plugin's library and calls them for every communicator. They leave communicators unchanged that also use
//! NVLink or shared memory. `docs/nccl.md` has the measurements behind the thresholds.

use std::ffi::{c_char, c_int, c_void};

use polyrail_nccl_abi::{Logger, NcclResult, Opaque};

/// Sizes for which NCCL would use too many channels. For smaller ones it uses one or two itself.
const FEW_FROM: usize = (16 << 10) + 1;
const FEW_TO: usize = 64 << 10;
const FEW: c_int = 2;
/// All-reduces from this size per rank on use the protocol Simple. NCCL would choose LL on a network that reports 400
/// Gbit/s; LL doubles the bytes and sends them in messages of 64 KiB. (32 KiB for each took 158 us by Simple and 110 by
/// LL.)
const SIMPLE_FROM: usize = 48 << 10;
const SIMPLE_TO: usize = 2 << 20;
/// Measured up to this number of ranks; a ring's latency grows with its ranks.
const SIMPLE_RANKS: usize = 4;
/// From this size per rank on, all-reduces get more channels.
const MORE_FROM: usize = (512 << 10) + 1;
const MORE: c_int = 4;
/// NCCL's constants: `tuner.h` of 2.22 to 2.30.
const ALL_REDUCE: c_int = 4;
const RING: c_int = 1;
const LL: usize = 0;
const SIMPLE: c_int = 2;
const NAME: *const c_char = c"Polyrail".as_ptr();

type GetV3 = unsafe extern "C" fn(
    Opaque,
    c_int,
    usize,
    c_int,
    *mut *mut f32,
    c_int,
    c_int,
    *mut c_int,
) -> c_int;
type GetV4 = unsafe extern "C" fn(
    Opaque,
    c_int,
    usize,
    c_int,
    *mut *mut f32,
    c_int,
    c_int,
    c_int,
    *mut c_int,
) -> c_int;
type InitV3 = unsafe extern "C" fn(usize, usize, Option<Logger>, *mut Opaque) -> c_int;
type InitV5 = unsafe extern "C" fn(
    *mut Opaque,
    u64,
    usize,
    usize,
    Option<Logger>,
    *mut c_void,
    *mut c_void,
) -> c_int;

/// A table of a version with these functions.
#[repr(C)]
pub struct Tuner<I, G> {
    name: *const c_char,
    init: I,
    get: G,
    end: extern "C" fn(Opaque) -> c_int,
}

// SAFETY: only read; the name lives as long as the library.
unsafe impl<I, G> Sync for Tuner<I, G> {}

/// For NCCL 2.22 and 2.23.
#[unsafe(no_mangle)]
pub static ncclTunerPlugin_v3: Tuner<InitV3, GetV3> =
    Tuner { name: NAME, init: init_v3, get: get_v3, end };

/// For NCCL 2.24 to 2.27.
#[unsafe(no_mangle)]
pub static ncclTunerPlugin_v4: Tuner<InitV3, GetV4> =
    Tuner { name: NAME, init: init_v3, get: get_v4, end };

/// Since NCCL 2.28.
#[unsafe(no_mangle)]
pub static ncclTunerPlugin_v5: Tuner<InitV5, GetV4> =
    Tuner { name: NAME, init: init_v5, get: get_v4, end };

unsafe extern "C" fn init_v3(
    ranks: usize,
    nodes: usize,
    _logger: Option<Logger>,
    context: *mut Opaque,
) -> c_int {
    // SAFETY: NCCL gives a place for the context, which holds nothing.
    unsafe { keep(ranks_on_network(ranks, nodes, without_local_ways()), context) }
}

unsafe extern "C" fn init_v5(
    context: *mut Opaque,
    _comm: u64,
    ranks: usize,
    nodes: usize,
    _logger: Option<Logger>,
    _domains: *mut c_void,
    _constants: *mut c_void,
) -> c_int {
    // SAFETY: as above.
    unsafe { keep(ranks_on_network(ranks, nodes, without_local_ways()), context) }
}

/// Number of ranks of a communicator that uses only the network; 0 for any other.
fn ranks_on_network(ranks: usize, nodes: usize, without_local_ways: bool) -> usize {
    if ranks == nodes || without_local_ways { ranks } else { 0 }
}

/// True if the environment makes NCCL use the network between GPUs of one node, too.
fn without_local_ways() -> bool {
    let is_set = |name: &str| std::env::var(name).is_ok_and(|value| value.trim() == "1");
    is_set("NCCL_P2P_DISABLE") && is_set("NCCL_SHM_DISABLE")
}

/// Stores the number of ranks plus one as the context, as NCCL may treat null as a failure.
///
/// # Safety
/// `context` is null or writable.
unsafe fn keep(ranks: usize, context: *mut Opaque) -> c_int {
    if !context.is_null() {
        // SAFETY: as the caller promises.
        unsafe { context.write(std::ptr::without_provenance_mut(ranks + 1)) };
    }
    NcclResult::Success as c_int
}

unsafe extern "C" fn get_v3(
    context: Opaque,
    collective: c_int,
    bytes: usize,
    _ops: c_int,
    costs: *mut *mut f32,
    algorithms: c_int,
    protocols: c_int,
    channels: *mut c_int,
) -> c_int {
    let table = Costs { first: costs.cast(), algorithms, protocols };
    let ranks = context.addr().saturating_sub(1);
    // SAFETY: NCCL gives a place for the number, which may stay unchanged, and a table of that shape.
    unsafe { choose(ranks, collective, bytes, &table, channels) }
}

unsafe extern "C" fn get_v4(
    context: Opaque,
    collective: c_int,
    bytes: usize,
    _ops: c_int,
    costs: *mut *mut f32,
    algorithms: c_int,
    protocols: c_int,
    _registered: c_int,
    channels: *mut c_int,
) -> c_int {
    let table = Costs { first: costs.cast(), algorithms, protocols };
    let ranks = context.addr().saturating_sub(1);
    // SAFETY: as above.
    unsafe { choose(ranks, collective, bytes, &table, channels) }
}

/// NCCL's estimated cost of each algorithm with each protocol, in us; negative if not available. Rows of an array,
/// despite the type in the header (`getAlgoInfo` of NCCL's `enqueue.cc` passes a `float[][]`, and its example reads
/// one).
struct Costs {
    first: *mut f32,
    algorithms: c_int,
    protocols: c_int,
}

impl Costs {
    /// Entry of the protocol Simple on a ring, if it is available and NCCL would choose LL.
    ///
    /// # Safety
    /// The table is null or has that many rows and columns.
    unsafe fn ring_simple_instead_of_ll(&self) -> Option<*mut f32> {
        if self.first.is_null() || self.algorithms <= RING || self.protocols <= SIMPLE {
            return None;
        }
        let columns = self.protocols as usize;
        // SAFETY: as the caller promises, and both are positive.
        let all =
            unsafe { std::slice::from_raw_parts(self.first, self.algorithms as usize * columns) };
        let open = all.iter().enumerate().filter(|(_, cost)| **cost >= 0.0);
        let (cheapest, _) = open.min_by(|one, other| one.1.total_cmp(other.1))?;
        let place = RING as usize * columns + SIMPLE as usize;
        let is_wanted = cheapest % columns == LL && all[place] >= 0.0;
        // SAFETY: within the table.
        is_wanted.then(|| unsafe { self.first.add(place) })
    }
}

/// # Safety
/// `channels` is null or writable, and the table has the stated shape.
unsafe fn choose(
    ranks: usize,
    collective: c_int,
    bytes: usize,
    costs: &Costs,
    channels: *mut c_int,
) -> c_int {
    if ranks == 0 {
        return NcclResult::Success as c_int;
    }
    let mut number = channels_for(bytes);
    if let Some(of_simple) = simple_channels_for(ranks, collective, bytes) {
        // SAFETY: as the caller promises.
        if let Some(place) = unsafe { costs.ring_simple_instead_of_ll() } {
            // SAFETY: the same place was read above.
            unsafe { place.write(0.0) };
            number = Some(of_simple);
        }
    }
    if let Some(number) = number
        && !channels.is_null()
    {
        // SAFETY: not null, and the caller promises that it is writable.
        unsafe { channels.write(number) };
    }
    NcclResult::Success as c_int
}

/// Number of channels for a collective of this size. `None` for NCCL's own choice.
fn channels_for(bytes: usize) -> Option<c_int> {
    (FEW_FROM..=FEW_TO).contains(&bytes).then_some(FEW)
}

/// Number of channels for collectives that should use the protocol Simple. `None` for others.
fn simple_channels_for(ranks: usize, collective: c_int, bytes: usize) -> Option<c_int> {
    let each = bytes / ranks.max(1);
    let is_measured = collective == ALL_REDUCE && ranks <= SIMPLE_RANKS;
    let goes = is_measured && (SIMPLE_FROM..=SIMPLE_TO).contains(&each);
    goes.then_some(if each >= MORE_FROM { MORE } else { FEW })
}

extern "C" fn end(_context: Opaque) -> c_int {
    NcclResult::Success as c_int
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_middling_collectives_are_limited() {
        assert_eq!(channels_for(16 << 10), None);
        assert_eq!(channels_for(64 << 10), Some(2));
        assert_eq!(channels_for((64 << 10) + 1), None);
    }

    #[test]
    fn all_reduces_of_some_size_go_by_simple() {
        let all_reduce = |ranks, bytes| simple_channels_for(ranks, ALL_REDUCE, bytes);
        assert_eq!(all_reduce(2, 64 << 10), None);
        assert_eq!(all_reduce(2, 96 << 10), Some(2));
        assert_eq!(all_reduce(2, 1 << 20), Some(2));
        assert_eq!(all_reduce(2, 2 << 20), Some(4));
        assert_eq!(all_reduce(2, 4 << 20), Some(4));
        assert_eq!(all_reduce(2, 8 << 20), None);
        assert_eq!(all_reduce(4, 128 << 10), None);
        assert_eq!(all_reduce(8, 1 << 20), None, "not measured");
        assert_eq!(all_reduce(4, 256 << 10), Some(2));
        assert_eq!(simple_channels_for(2, ALL_REDUCE + 1, 1 << 20), None);
    }

    type Table = [[f32; 3]; 7];

    /// Calls the table as NCCL does, with this many ranks and nodes. Returns the costs afterwards, and the channels.
    fn asked(bytes: usize, (ranks, nodes): (usize, usize), mut costs: Table) -> (Table, c_int) {
        let (mut context, mut channels) = (std::ptr::null_mut(), -1);
        let (none, table) = (std::ptr::null_mut(), costs.as_mut_ptr().cast());
        // SAFETY: all places are valid.
        unsafe {
            init_v5(&raw mut context, 0, ranks, nodes, None, none, none);
            assert!(!context.is_null());
            get_v4(context, ALL_REDUCE, bytes, 1, table, 7, 3, 0, &raw mut channels);
        }
        (costs, channels)
    }

    #[test]
    fn only_where_nccl_takes_ll_over_the_network_is_simple_made_cheap() {
        let mut costs = [[5.0; 3]; 7];
        costs[0][0] = 4.0;
        let (after, channels) = asked(1 << 20, (2, 2), costs);
        let mut wanted = costs;
        wanted[1][2] = 0.0;
        assert_eq!((after, channels), (wanted, 2));
        assert_eq!(asked(256 << 20, (2, 2), costs), (costs, -1));
        let mut barred = costs;
        barred[1][2] = -1.0;
        assert_eq!(asked(1 << 20, (2, 2), barred), (barred, -1));
        let mut other = costs;
        other[4][2] = 3.0;
        assert_eq!(asked(1 << 20, (2, 2), other), (other, -1), "NVLS is cheaper");
    }

    #[test]
    fn communicators_within_a_node_are_left_alone() {
        let mut costs = [[5.0; 3]; 7];
        costs[1][0] = 4.0;
        for bytes in [64 << 10, 1 << 20] {
            assert_eq!(asked(bytes, (8, 1), costs), (costs, -1));
            assert_eq!(asked(bytes, (4, 2), costs), (costs, -1));
        }
        assert_eq!(asked(64 << 10, (8, 8), costs), (costs, 2));
        assert_eq!(ranks_on_network(2, 1, true), 2, "loopback, with P2P and shared memory off");
    }

    #[test]
    fn a_table_is_a_name_and_three_functions() {
        assert_eq!(size_of::<Tuner<InitV3, GetV4>>(), 4 * 8);
    }
}
