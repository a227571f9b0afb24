//! Bytes that the library returns.

use std::ffi::c_int;

use crate::call::{Out, call};
use crate::status::Status;

/// Bytes that the library has allocated; free them with polyrail_bytes_free(). Behind them is a zero byte,
/// which `length` does not count, so that a text can be printed as it is. This structure never grows.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Bytes {
    /// The bytes, never NULL unless they were freed.
    pub data: *mut u8,
    /// How many there are.
    pub length: usize,
}

impl Bytes {
    pub(crate) fn new(bytes: impl Into<Vec<u8>>) -> Self {
        let mut bytes = bytes.into();
        let length = bytes.len();
        bytes.push(0);
        Self { data: Box::into_raw(bytes.into_boxed_slice()).cast(), length }
    }
}

/// Frees bytes and sets the structure to NULL and 0, so that freeing it again does nothing.
///
/// Nobody else may use the structure meanwhile. A copy of it must not be freed as well.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_bytes_free(bytes: *mut Bytes) -> c_int {
    call(|| {
        // SAFETY: the caller passes a structure that was filled in here, or NULL.
        let Some(out) = (unsafe { Out::optional("bytes", bytes)? }) else {
            return Ok(Status::PolyrailOk);
        };
        // SAFETY: as above.
        let Bytes { data, length } = unsafe { bytes.read() };
        out.set(Bytes { data: std::ptr::null_mut(), length: 0 });
        if !data.is_null() {
            let whole = std::ptr::slice_from_raw_parts_mut(data, length + 1);
            // SAFETY: `Bytes::new` made it from a box of that length, and the place was cleared above.
            drop(unsafe { Box::from_raw(whole) });
        }
        Ok(Status::PolyrailOk)
    })
}
