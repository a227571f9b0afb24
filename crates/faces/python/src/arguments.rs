//! Checks of arguments for which PyO3's own errors would not list the allowed values.

use pyo3::exceptions::{PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyMemoryView};

/// Copies the bytes of any object with the buffer protocol.
pub(crate) fn bytes(field: &str, given: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
    if let Ok(bytes) = given.cast::<PyBytes>() {
        return Ok(bytes.as_bytes().to_vec());
    }
    match PyMemoryView::from(given) {
        Ok(view) => Ok(view.call_method0("tobytes")?.cast::<PyBytes>()?.as_bytes().to_vec()),
        Err(error) if error.is_instance_of::<PyTypeError>(given.py()) => {
            let allowed = "a bytes-like object (bytes, bytearray, memoryview), or text.encode()";
            Err(wrong_type(field, given, allowed))
        }
        Err(error) => Err(error),
    }
}

/// Reads the tag of a message.
pub(crate) fn tag(given: &Bound<'_, PyAny>) -> PyResult<u64> {
    number("tag", given)
}

/// Reads the address of memory.
pub(crate) fn address(given: &Bound<'_, PyAny>) -> PyResult<u64> {
    number("address", given)
}

/// Reads the length of memory.
pub(crate) fn nbytes(given: &Bound<'_, PyAny>) -> PyResult<u64> {
    number("nbytes", given)
}

fn number(field: &str, given: &Bound<'_, PyAny>) -> PyResult<u64> {
    given.extract().map_err(|error: PyErr| {
        match error.is_instance_of::<PyOverflowError>(given.py()) {
            true => PyValueError::new_err(format!("{field} is {given}; allowed: 0 to 2**64 - 1")),
            false => wrong_type(field, given, "an integer"),
        }
    })
}

/// Error for an argument, or one item of it, of the wrong type.
pub(crate) fn wrong_type(field: &str, given: &Bound<'_, PyAny>, allowed: &str) -> PyErr {
    match given.get_type().name() {
        Ok(name) => PyTypeError::new_err(format!("{field} has a {name}; allowed: {allowed}")),
        Err(error) => error,
    }
}
