//! Tells NCCL how many channels a collective is worth.
//!
//! Large collectives want many channels, which `NCCL_MIN_NCHANNELS` gives; middling ones are over
//! sooner with few, because each channel costs messages of its own. NCCL finds these tables in the
//! network plugin's library by itself. The thresholds are measured: see `docs/nccl.md`.

use std::ffi::{c_char, c_int, c_void};

use polyrail_nccl_abi::{Logger, NcclResult, Opaque};

/// Sizes for which NCCL would take too many channels; for smaller ones it takes one or two by
/// itself.
const FEW_FROM: usize = (16 << 10) + 1;
const FEW_TO: usize = 64 << 10;
const FEW: c_int = 2;
/// All-reduces of so much for each rank go by the protocol Simple. NCCL takes LL for them, which
/// doubles the bytes and sends them in messages of 64 KiB, where a network tells 400 Gbit/s. (32 KiB
/// for each took 158 us by Simple and 110 by LL.)
const SIMPLE_FROM: usize = 48 << 10;
const SIMPLE_TO: usize = 2 << 20;
/// From so much for each rank on they have more channels.
const MORE_FROM: usize = (512 << 10) + 1;
const MORE: c_int = 4;
/// Numbers of NCCL's: `tuner.h` of 2.22 to 2.30.
const ALL_REDUCE: c_int = 4;
const RING: c_int = 1;
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

/// A table, of a version with these functions.
#[repr(C)]
pub struct Tuner<I, G> {
    name: *const c_char,
    init: I,
    get: G,
    end: extern "C" fn(Opaque) -> c_int,
}

// SAFETY: only ever read; the name lives as long as the library.
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
    _nodes: usize,
    _logger: Option<Logger>,
    context: *mut Opaque,
) -> c_int {
    // SAFETY: NCCL gives a place for the context, which holds nothing.
    unsafe { keep(ranks, context) }
}

unsafe extern "C" fn init_v5(
    context: *mut Opaque,
    _comm: u64,
    ranks: usize,
    _nodes: usize,
    _logger: Option<Logger>,
    _domains: *mut c_void,
    _constants: *mut c_void,
) -> c_int {
    // SAFETY: as above.
    unsafe { keep(ranks, context) }
}

/// The context is the number of ranks: never null, which NCCL may take for a failure.
///
/// # Safety
/// `context` is null or may be written.
unsafe fn keep(ranks: usize, context: *mut Opaque) -> c_int {
    if !context.is_null() {
        // SAFETY: the caller says so.
        unsafe { context.write(std::ptr::without_provenance_mut(ranks.max(1))) };
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
    // SAFETY: NCCL gives a place for the number, which means nothing if it is left alone, and a table
    // of that shape.
    unsafe { choose(context.addr(), collective, bytes, &table, channels) }
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
    // SAFETY: as above.
    unsafe { choose(context.addr(), collective, bytes, &table, channels) }
}

/// What NCCL thinks that each algorithm with each protocol costs, in us; less than nothing where it
/// can't be had. Rows of an array, whatever the type in the header says (`getAlgoInfo` of NCCL's
/// `enqueue.cc` passes a `float[][]`, and its example reads one).
struct Costs {
    first: *mut f32,
    algorithms: c_int,
    protocols: c_int,
}

impl Costs {
    /// The place of the protocol Simple on a ring, if it can be had.
    ///
    /// # Safety
    /// The table is null or has that many rows and columns.
    unsafe fn ring_simple(&self) -> Option<*mut f32> {
        if self.first.is_null() || self.algorithms <= RING || self.protocols <= SIMPLE {
            return None;
        }
        // SAFETY: within the table, by the line above.
        let place = unsafe { self.first.offset((RING * self.protocols + SIMPLE) as isize) };
        // SAFETY: as above.
        (unsafe { place.read() } >= 0.0).then_some(place)
    }
}

/// # Safety
/// `channels` is null or may be written, and the table has the shape it tells.
unsafe fn choose(
    ranks: usize,
    collective: c_int,
    bytes: usize,
    costs: &Costs,
    channels: *mut c_int,
) -> c_int {
    let mut number = channels_for(bytes);
    if let Some(of_simple) = simple_channels_for(ranks, collective, bytes) {
        // SAFETY: the caller says so.
        if let Some(place) = unsafe { costs.ring_simple() } {
            // SAFETY: it was read just now.
            unsafe { place.write(0.0) };
            number = Some(of_simple);
        }
    }
    if let Some(number) = number
        && !channels.is_null()
    {
        // SAFETY: not null, and the caller says that it may be written.
        unsafe { channels.write(number) };
    }
    NcclResult::Success as c_int
}

/// How many channels a collective of this size should have; `None` for NCCL's own choice.
fn channels_for(bytes: usize) -> Option<c_int> {
    (FEW_FROM..=FEW_TO).contains(&bytes).then_some(FEW)
}

/// The same for those that should go by the protocol Simple; `None` for others.
fn simple_channels_for(ranks: usize, collective: c_int, bytes: usize) -> Option<c_int> {
    let each = bytes / ranks.max(1);
    let goes = collective == ALL_REDUCE && (SIMPLE_FROM..=SIMPLE_TO).contains(&each);
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
        assert_eq!(all_reduce(4, 256 << 10), Some(2));
        assert_eq!(simple_channels_for(2, ALL_REDUCE + 1, 1 << 20), None);
    }

    /// As NCCL calls it: the costs afterwards, and the channels.
    fn asked(bytes: usize, mut costs: [[f32; 3]; 7]) -> ([[f32; 3]; 7], c_int) {
        let (mut context, mut channels) = (std::ptr::null_mut(), -1);
        let (none, table) = (std::ptr::null_mut(), costs.as_mut_ptr().cast());
        // SAFETY: all places are there.
        unsafe {
            init_v5(&raw mut context, 0, 2, 1, None, none, none);
            assert!(!context.is_null());
            get_v4(context, ALL_REDUCE, bytes, 1, table, 7, 3, 0, &raw mut channels);
        }
        (costs, channels)
    }

    #[test]
    fn only_what_can_be_had_is_made_cheap() {
        let costs = [[5.0; 3]; 7];
        let (after, channels) = asked(1 << 20, costs);
        let mut wanted = costs;
        wanted[1][2] = 0.0;
        assert_eq!((after, channels), (wanted, 2));
        assert_eq!(asked(256 << 20, costs), (costs, -1));
        let mut barred = costs;
        barred[1][2] = -1.0;
        assert_eq!(asked(1 << 20, barred), (barred, -1));
    }

    #[test]
    fn a_table_is_a_name_and_three_functions() {
        assert_eq!(size_of::<Tuner<InitV3, GetV4>>(), 4 * 8);
    }
}
