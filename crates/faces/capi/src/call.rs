//! Checks shared by all calls: arguments from C are checked before they are read, and panics don't reach C.

use std::any::Any;
use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::Duration;

use crate::status::{Failure, Status};
use crate::transfers::POLYRAIL_FOREVER;

/// A structure that begins with its size, so that later versions may have more fields.
///
/// # Safety
/// The type is `repr(C)`, its first field is `size: usize`, and every field is valid with any bits.
pub(crate) unsafe trait Versioned: Copy {
    /// Name in C.
    const NAME: &'static str;
}

/// Place of a result.
pub(crate) struct Out<T>(*mut T);

/// Runs a call. A failure leaves its text for this thread, and so does a panic, which is caught.
pub(crate) fn call(run: impl FnOnce() -> Result<Status, Failure>) -> c_int {
    let status = match catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(status)) => status,
        Ok(Err(failure)) => failure.leave(),
        Err(panic) => {
            let failure = Failure::new(Status::PolyrailErrPanic, panic_text(&*panic));
            // Dropping the payload might panic as well.
            std::mem::forget(panic);
            failure.leave()
        }
    };
    status as c_int
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    format!("a fault of the library: {}", text.unwrap_or("it panicked"))
}

pub(crate) fn wrong(text: String) -> Failure {
    Failure::new(Status::PolyrailErrArgument, text)
}

fn is_null(field: &str, allowed: &str) -> Failure {
    wrong(format!("{field} is NULL, allowed is {allowed}"))
}

/// Bytes that C passes for the time of the call.
///
/// # Safety
/// `data` is null, or readable for `length` bytes, which don't change while the result is used.
pub(crate) unsafe fn bytes<'a>(
    field: &str,
    data: *const c_void,
    length: usize,
) -> Result<&'a [u8], Failure> {
    // SAFETY: as the caller promises; a byte may have any bits.
    unsafe { list(field, data.cast(), length) }
}

/// A list that C passes for the time of the call.
///
/// # Safety
/// As for [`bytes`], with `length` elements, and `T` is valid with any bits.
pub(crate) unsafe fn list<'a, T>(
    field: &str,
    data: *const T,
    length: usize,
) -> Result<&'a [T], Failure> {
    if length == 0 {
        return Ok(&[]);
    }
    check_list(field, data, length)?;
    // SAFETY: `data` is not null, is aligned, fits into an address space, and the caller promises the rest.
    Ok(unsafe { std::slice::from_raw_parts(data, length) })
}

/// Room that C passes for the time of the call.
///
/// # Safety
/// `data` is null, or writable for `length` elements, which have no other users while the result is used, and `T` is
/// valid with any bits.
pub(crate) unsafe fn room<'a, T>(
    field: &str,
    data: *mut T,
    length: usize,
) -> Result<&'a mut [T], Failure> {
    if length == 0 {
        return Ok(&mut []);
    }
    check_list(field, data, length)?;
    // SAFETY: `data` is not null, is aligned, fits into an address space, and the caller promises the rest.
    Ok(unsafe { std::slice::from_raw_parts_mut(data, length) })
}

fn check_list<T>(field: &str, data: *const T, length: usize) -> Result<(), Failure> {
    if data.is_null() {
        return Err(is_null(field, &format!("a pointer to {length} of them")));
    }
    let limit = isize::MAX as usize / size_of::<T>();
    if length > limit {
        return Err(wrong(format!("{field} has {length} elements, allowed is 0 to {limit}")));
    }
    if !data.is_aligned() {
        let align = align_of::<T>();
        return Err(wrong(format!("{field} is {data:?}, allowed are multiples of {align}")));
    }
    Ok(())
}

/// A string that ends with a zero byte.
///
/// # Safety
/// `text` is null, or readable up to its zero byte, and does not change while the result is used.
pub(crate) unsafe fn text<'a>(field: &str, text: *const c_char) -> Result<&'a str, Failure> {
    // SAFETY: as the caller promises.
    let found = unsafe { c_text(field, text)? };
    found.to_str().map_err(|_| wrong(format!("{field} is {found:?}, allowed is UTF-8")))
}

/// A file name.
///
/// # Safety
/// As for [`text`].
pub(crate) unsafe fn path<'a>(field: &str, path: *const c_char) -> Result<&'a Path, Failure> {
    // SAFETY: as the caller promises.
    Ok(Path::new(OsStr::from_bytes(unsafe { c_text(field, path)? }.to_bytes())))
}

unsafe fn c_text<'a>(field: &str, text: *const c_char) -> Result<&'a CStr, Failure> {
    if text.is_null() {
        return Err(is_null(field, "a text"));
    }
    // SAFETY: `text` is not null, and the caller promises the rest.
    Ok(unsafe { CStr::from_ptr(text) })
}

/// Copies a structure that C passes.
///
/// # Safety
/// `pointer` is null, or to a structure that is readable for as many bytes as its `size` says.
pub(crate) unsafe fn versioned<T: Versioned>(field: &str, pointer: *const T) -> Result<T, Failure> {
    // SAFETY: as the caller promises.
    unsafe { check_size(field, pointer)? };
    // SAFETY: `pointer` is readable for the size just checked, and any bits make a `T`.
    Ok(unsafe { pointer.read() })
}

unsafe fn check_size<T: Versioned>(field: &str, pointer: *const T) -> Result<(), Failure> {
    if pointer.is_null() {
        return Err(is_null(field, &format!("a pointer to a {}", T::NAME)));
    }
    if !pointer.is_aligned() {
        let align = align_of::<T>();
        return Err(wrong(format!("{field} is {pointer:?}, allowed are multiples of {align}")));
    }
    // SAFETY: `pointer` is not null and aligned, and every such structure begins with its size.
    let got = unsafe { pointer.cast::<usize>().read() };
    let known = size_of::<T>();
    if got != known {
        return Err(wrong(format!(
            "{field}: the field size is {got}, allowed is {known}, which is sizeof({}) in the header \
             of version {} of this library",
            T::NAME,
            env!("CARGO_PKG_VERSION")
        )));
    }
    Ok(())
}

/// Converts a time in nanoseconds.
pub(crate) fn duration(nanoseconds: u64) -> Duration {
    match nanoseconds {
        POLYRAIL_FOREVER => Duration::MAX,
        nanoseconds => Duration::from_nanos(nanoseconds),
    }
}

/// Selects one of several numbers. The error lists their names.
pub(crate) fn choice<T: Copy>(
    field: &str,
    got: u32,
    known: &[(u32, &str, T)],
) -> Result<T, Failure> {
    if let Some((_, _, chosen)) = known.iter().find(|(number, _, _)| *number == got) {
        return Ok(*chosen);
    }
    let names: Vec<String> =
        known.iter().map(|(number, name, _)| format!("{name} ({number})")).collect();
    Err(wrong(format!("{field} is {got}, allowed is {}", names.join(" or "))))
}

/// Refuses undefined bits, to which a later version may give a meaning.
pub(crate) fn flags(field: &str, got: u32, known: u32) -> Result<u32, Failure> {
    match got & !known {
        0 => Ok(got),
        _ => Err(wrong(format!("{field} is {got:#x}, allowed are bits of {known:#x}"))),
    }
}

impl<T> Out<T> {
    /// # Safety
    /// `pointer` is null, or writable for a `T` until the result is used.
    pub(crate) unsafe fn new(field: &str, pointer: *mut T) -> Result<Self, Failure> {
        // SAFETY: as the caller promises.
        unsafe { Self::optional(field, pointer)? }
            .ok_or_else(|| is_null(field, "where a result goes"))
    }

    /// Like [`Self::new`], if C may omit the result.
    ///
    /// # Safety
    /// As for [`Self::new`].
    pub(crate) unsafe fn optional(field: &str, pointer: *mut T) -> Result<Option<Self>, Failure> {
        if !pointer.is_aligned() {
            let align = align_of::<T>();
            return Err(wrong(format!("{field} is {pointer:?}, allowed are multiples of {align}")));
        }
        Ok((!pointer.is_null()).then_some(Self(pointer)))
    }

    pub(crate) fn set(self, value: T) {
        // SAFETY: the maker promised that the place is writable; it is neither null nor unaligned.
        unsafe { self.0.write(value) };
    }
}

impl<T: Versioned> Out<T> {
    /// Place of a structure whose size C has filled in.
    ///
    /// # Safety
    /// As for [`versioned`], and writable.
    pub(crate) unsafe fn versioned(field: &str, pointer: *mut T) -> Result<Self, Failure> {
        // SAFETY: as the caller promises.
        unsafe { check_size(field, pointer)? };
        Ok(Self(pointer))
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use super::*;
    use crate::status::polyrail_last_error;

    fn last_error() -> String {
        // SAFETY: the library's strings end with a zero byte, and stay until the next failure.
        unsafe { CStr::from_ptr(polyrail_last_error()) }.to_str().unwrap().to_owned()
    }

    #[test]
    fn a_panic_is_a_status_and_leaves_its_text() {
        let panics: fn() -> Result<Status, Failure> = || panic!("segment {} of 2", 3);
        assert_eq!(call(panics), Status::PolyrailErrPanic as c_int);
        assert_eq!(last_error(), "a fault of the library: segment 3 of 2");
        assert_eq!(call(|| Ok(Status::PolyrailPending)), 1);
        assert_eq!(last_error(), "a fault of the library: segment 3 of 2", "it stays");
        assert_eq!(std::thread::spawn(last_error).join().unwrap(), "", "another thread has none");
    }

    #[test]
    fn a_text_with_zero_bytes_is_shown_whole() {
        call(|| Err(wrong("peer a\0b".to_owned())));
        assert_eq!(last_error(), "peer a\\0b");
    }

    #[test]
    fn the_longest_time_is_no_time_in_nanoseconds() {
        assert_eq!(duration(POLYRAIL_FOREVER), Duration::MAX);
        assert_eq!(duration(POLYRAIL_FOREVER - 1), Duration::from_nanos(u64::MAX - 1));
    }
}
