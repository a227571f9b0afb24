//! Tells NCCL how many channels a collective is worth.
//!
//! Large collectives want many channels, which `NCCL_MIN_NCHANNELS` gives; middling ones are over
//! sooner with few, because each channel costs messages of its own. NCCL finds these tables in the
//! network plugin's library by itself. The thresholds are measured: see `docs/nccl.md`.

use std::ffi::{c_char, c_int, c_void};

use polyrail_nccl_abi::{Logger, NcclResult, Opaque};

/// Sizes for which NCCL would take too many channels; for smaller ones it takes one or two by
/// itself. (1 MiB takes four times as long with two.)
const FEW_FROM: usize = (16 << 10) + 1;
const FEW_TO: usize = 64 << 10;
const FEW: c_int = 2;
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
    _ranks: usize,
    _nodes: usize,
    _logger: Option<Logger>,
    context: *mut Opaque,
) -> c_int {
    // SAFETY: NCCL gives a place for the context, which holds nothing.
    unsafe { keep(context) }
}

unsafe extern "C" fn init_v5(
    context: *mut Opaque,
    _comm: u64,
    _ranks: usize,
    _nodes: usize,
    _logger: Option<Logger>,
    _domains: *mut c_void,
    _constants: *mut c_void,
) -> c_int {
    // SAFETY: as above.
    unsafe { keep(context) }
}

/// # Safety
/// `context` is null or may be written.
unsafe fn keep(context: *mut Opaque) -> c_int {
    if !context.is_null() {
        // SAFETY: the caller says so. Not null, because NCCL may take that for a failure.
        unsafe { context.write(NAME.cast_mut().cast()) };
    }
    NcclResult::Success as c_int
}

unsafe extern "C" fn get_v3(
    _context: Opaque,
    _collective: c_int,
    bytes: usize,
    _ops: c_int,
    _costs: *mut *mut f32,
    _algorithms: c_int,
    _protocols: c_int,
    channels: *mut c_int,
) -> c_int {
    // SAFETY: NCCL gives a place for the number, which means nothing if it is left alone.
    unsafe { choose(bytes, channels) }
}

unsafe extern "C" fn get_v4(
    _context: Opaque,
    _collective: c_int,
    bytes: usize,
    _ops: c_int,
    _costs: *mut *mut f32,
    _algorithms: c_int,
    _protocols: c_int,
    _registered: c_int,
    channels: *mut c_int,
) -> c_int {
    // SAFETY: as above.
    unsafe { choose(bytes, channels) }
}

/// # Safety
/// `channels` is null or may be written.
unsafe fn choose(bytes: usize, channels: *mut c_int) -> c_int {
    if let Some(number) = channels_for(bytes)
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
    fn a_table_is_a_name_and_three_functions() {
        assert_eq!(size_of::<Tuner<InitV3, GetV4>>(), 4 * 8);
    }
}
