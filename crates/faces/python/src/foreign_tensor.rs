//! Tensors of other packages, by their attributes: nothing of them is imported or linked.

use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};

use crate::foreign::Foreign;

/// Devices of DLPack whose memory the CPU uses by its address: the CPU's, and what CUDA has pinned.
const DLPACK_HOST: [i32; 2] = [1, 3];
/// CUDA's memory; the driver refuses managed memory by itself, and says why.
const DLPACK_CUDA: [i32; 2] = [2, 13];

/// A `torch.Tensor`.
pub(crate) fn torch(tensor: &Bound<'_, PyAny>) -> PyResult<Foreign> {
    let device: String = tensor.getattr("device")?.getattr("type")?.extract()?;
    let is_on_device = match device.as_str() {
        "cpu" => false,
        "cuda" => true,
        _ => {
            let text = format!("the tensor is on {device:?}; allowed: cpu, cuda");
            return Err(PyTypeError::new_err(text));
        }
    };
    if !tensor.call_method0("is_contiguous")?.extract::<bool>()? {
        let (shape, strides): (Vec<i64>, Vec<i64>) =
            (tensor.getattr("shape")?.extract()?, tensor.call_method0("stride")?.extract()?);
        check_contiguous(&shape, Some(&strides), 1)?;
    }
    // PyTorch puts these off until the values are read, so they are not in memory.
    for (put_off, remedy) in [("is_conj", "resolve_conj"), ("is_neg", "resolve_neg")] {
        if tensor.hasattr(put_off)? && tensor.call_method0(put_off)?.extract::<bool>()? {
            let text = format!("the tensor's {put_off}() is true; register tensor.{remedy}()");
            return Err(PyBufferError::new_err(text));
        }
    }
    let count: u64 = tensor.call_method0("numel")?.extract()?;
    let size: u64 = tensor.call_method0("element_size")?.extract()?;
    // Another handle of the same storage: changes to the first one do not free the bytes.
    let kept = tensor.call_method0("detach")?.unbind();
    let address = tensor.call_method0("data_ptr")?.extract()?;
    Ok(Foreign { address, len: count * size, is_on_device, is_read_only: false, kept })
}

/// An object with `__cuda_array_interface__`: CuPy, Numba, JAX and others.
pub(crate) fn cuda_array(array: &Bound<'_, PyAny>) -> PyResult<Foreign> {
    let interface = array.getattr("__cuda_array_interface__")?;
    let interface = interface.cast::<PyDict>()?;
    let field = |name: &str| {
        interface.get_item(name)?.ok_or_else(|| {
            PyBufferError::new_err(format!("__cuda_array_interface__ has no {name:?}"))
        })
    };
    if interface.get_item("mask")?.is_some_and(|mask| !mask.is_none()) {
        return Err(PyBufferError::new_err("the array is masked; register its data and its mask"));
    }
    let (address, is_read_only): (u64, bool) = field("data")?.extract()?;
    let shape: Vec<i64> = field("shape")?.extract()?;
    let item = item_bytes(field("typestr")?.cast::<PyString>()?.to_str()?)?;
    let strides: Option<Vec<i64>> = match interface.get_item("strides")? {
        Some(strides) => strides.extract()?,
        None => None,
    };
    check_contiguous(&shape, strides.as_deref(), item as i64)?;
    let len = bytes(&shape, item)?;
    Ok(Foreign { address, len, is_on_device: true, is_read_only, kept: array.clone().unbind() })
}

/// The bytes of an item, from a type such as `<f4`.
fn item_bytes(typestr: &str) -> PyResult<u64> {
    let digits = typestr.get(2..).and_then(|digits| digits.parse().ok());
    digits.ok_or_else(|| {
        PyBufferError::new_err(format!("typestr is {typestr:?}; allowed: such as \"<f4\""))
    })
}

/// Whether the memory is a device's, by `DLDevice`.
pub(crate) fn dlpack_device([kind, index]: [i32; 2]) -> PyResult<bool> {
    if DLPACK_HOST.contains(&kind) || DLPACK_CUDA.contains(&kind) {
        return Ok(DLPACK_CUDA.contains(&kind));
    }
    let text = format!(
        "the tensor is on device {index} of DLPack's type {kind}; allowed: 1, 3 (host), 2 (CUDA)"
    );
    Err(PyTypeError::new_err(text))
}

/// All bytes of a shape.
pub(crate) fn bytes(shape: &[i64], item: u64) -> PyResult<u64> {
    let count = shape.iter().try_fold(item, |count, length| {
        u64::try_from(*length).ok().and_then(|length| count.checked_mul(length))
    });
    count.ok_or_else(|| PyBufferError::new_err(format!("shape {shape:?} has no size in bytes")))
}

/// Refuses elements that do not lie one after the other, with the last dimension the fastest (C) or the first one (Fortran):
/// either order is one block of bytes. `item` is what a stride of one element is.
pub(crate) fn check_contiguous(shape: &[i64], strides: Option<&[i64]>, item: i64) -> PyResult<()> {
    let Some(strides) = strides else { return Ok(()) };
    let places = || shape.iter().zip(strides);
    let is_contiguous = shape.contains(&0)
        || shape.len() == strides.len()
            && (is_dense(places().rev(), item) || is_dense(places(), item));
    match is_contiguous {
        true => Ok(()),
        false => Err(not_contiguous(&format!("{shape:?}"), &format!("{strides:?}"))),
    }
}

/// Whether elements lie one after the other, in dimensions from the fastest on.
fn is_dense<'d>(mut dimensions: impl Iterator<Item = (&'d i64, &'d i64)>, item: i64) -> bool {
    let mut expected = item;
    dimensions.all(|(length, stride)| {
        let fits = *length == 1 || *stride == expected;
        expected = expected.saturating_mul(*length);
        fits
    })
}

fn not_contiguous(shape: &str, strides: &str) -> PyErr {
    PyBufferError::new_err(format!(
        "the tensor is not contiguous: shape {shape}, strides {strides}; register tensor.contiguous(), which is a \
         copy, or each contiguous part by itself"
    ))
}
