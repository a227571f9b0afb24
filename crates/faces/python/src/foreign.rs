//! Memory that Python programs own: by the buffer protocol, tensors by pointer, DLPack.

use std::ffi::{CStr, c_void};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use polyrail::{Cuda, DeviceMemory, Memory};
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyBufferError, PyTypeError, PyValueError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyMemoryView};

use crate::errors;
use crate::foreign_tensor;

/// Bytes that belong to another object.
pub(crate) struct Foreign {
    pub(crate) address: u64,
    pub(crate) len: u64,
    pub(crate) is_on_device: bool,
    pub(crate) is_read_only: bool,
    /// Keeps the bytes where they are.
    pub(crate) kept: Py<PyAny>,
}

/// Object that keeps the bytes of a region. The region ends before it is released; and if it is dropped with its last
/// user on a thread of the engine, PyO3 releases the object when the interpreter is called next.
pub(crate) struct Keeper(Mutex<Option<Py<PyAny>>>);

/// Memory of either kind, to be registered.
pub(crate) enum Place {
    Host(Memory),
    Device(DeviceMemory),
}

impl Keeper {
    /// Lets go of the bytes.
    pub(crate) fn release(&self) {
        // Taken out first: what frees the object may run any Python.
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(kept);
    }

    /// Returns whether `release` was called.
    pub(crate) fn is_released(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }

    /// Shows the kept object to the collector of cycles. Every thread that takes the lock has the interpreter, like the
    /// collector, so this never waits.
    pub(crate) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        visit.call(&*kept)
    }
}

impl Foreign {
    /// The bytes of a buffer or a tensor, if they lie one after the other.
    pub(crate) fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        if object.hasattr("data_ptr")? && object.hasattr("element_size")? {
            return foreign_tensor::torch(object);
        }
        if object.hasattr("__cuda_array_interface__")? {
            return foreign_tensor::cuda_array(object);
        }
        match PyMemoryView::from(object) {
            Ok(view) => buffer(&view),
            Err(_) if object.hasattr("__dlpack__")? => dlpack(object),
            Err(error) if error.is_instance_of::<PyTypeError>(object.py()) => {
                let text = format!(
                    "{} holds no memory that can be registered; allowed: what has the buffer protocol (bytearray, \
                     mmap, numpy), a torch.Tensor, __cuda_array_interface__ or __dlpack__, or a list of such",
                    object.get_type().name()?
                );
                Err(PyTypeError::new_err(text))
            }
            Err(error) => Err(error),
        }
    }

    /// The memory, which `Keeper` keeps until the region lets go of it.
    pub(crate) fn into_memory(self) -> PyResult<(Place, Arc<Keeper>)> {
        let keeper = Arc::new(Keeper(Mutex::new(Some(self.kept))));
        if self.is_on_device {
            // SAFETY: `keeper` holds the object that owns the memory, and lets go of it when the
            // region has ended, which is when the engine does not touch it any more.
            let memory = unsafe { cuda()?.memory_at(self.address, self.len) };
            let memory = memory.map_err(|error| errors::region(error.into()))?;
            let device = memory.device().clone();
            // SAFETY: as above; the driver said just now that the memory is of that device and size.
            let memory =
                unsafe { DeviceMemory::owned(device, self.address, self.len, keeper.clone()) };
            return Ok((Place::Device(memory), keeper));
        }
        let base = NonNull::new(self.address as *mut u8).unwrap_or(NonNull::dangling());
        // SAFETY: `keeper` holds the object that owns the memory, and lets go of it when the region
        // has ended, which is when the engine does not touch it any more. No Rust reference to it is
        // ever made here. Memory that may only be read is registered only so that peers can't write
        // it (`Region::register`), and is refused where the engine itself would (`request`).
        let memory = unsafe { Memory::owned(base, self.len, keeper.clone()) };
        Ok((Place::Host(memory), keeper))
    }
}

/// The view itself is kept: as long as it lives its exporter neither moves nor frees the bytes.
fn buffer(view: &Bound<'_, PyMemoryView>) -> PyResult<Foreign> {
    if view.getattr("format")?.extract::<String>()?.contains('O') {
        let text = "the buffer holds references to Python's objects, which mean nothing elsewhere; allowed: numbers, bytes";
        return Err(PyTypeError::new_err(text));
    }
    // A single element has no shape, and PyO3 wants one: its bytes have.
    let view = match view.getattr("ndim")?.extract::<usize>()? {
        0 => &view.call_method1("cast", ("B",))?.cast_into()?,
        _ => view,
    };
    let buffer = PyUntypedBuffer::get(view)?;
    // Either order is one block of bytes.
    if !buffer.is_c_contiguous() && !buffer.is_fortran_contiguous() {
        let text = format!(
            "the buffer is not contiguous: shape {:?}, strides {:?} bytes; register a contiguous copy \
             (numpy.ascontiguousarray), or each contiguous part by itself",
            buffer.shape(),
            buffer.strides()
        );
        return Err(PyBufferError::new_err(text));
    }
    Ok(Foreign {
        address: buffer.buf_ptr() as u64,
        len: buffer.len_bytes() as u64,
        is_on_device: false,
        is_read_only: buffer.readonly(),
        kept: view.clone().into_any().unbind(),
    })
}

/// `DLTensor` of `dlpack.h`.
#[repr(C)]
struct Tensor {
    data: *mut c_void,
    device: [i32; 2],
    dimensions: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *const i64,
    strides: *const i64,
    byte_offset: u64,
}

/// The head of `DLManagedTensorVersioned`.
#[repr(C)]
struct Versioned {
    major: u32,
    minor: u32,
    manager: *mut c_void,
    deleter: *mut c_void,
    flags: u64,
    tensor: Tensor,
}

const UNVERSIONED_NAME: &CStr = c"dltensor";
const VERSIONED_NAME: &CStr = c"dltensor_versioned";
const READ_ONLY: u64 = 1;

/// The capsule itself is kept, and not taken over: it gives the tensor back when it goes.
fn dlpack(object: &Bound<'_, PyAny>) -> PyResult<Foreign> {
    let py = object.py();
    let asked = pyo3::types::PyDict::new(py);
    asked.set_item("max_version", (1, 0))?;
    let exported = match object.call_method("__dlpack__", (), Some(&asked)) {
        // An older producer, which knows no versions.
        Err(error) if error.is_instance_of::<PyTypeError>(py) => object.call_method0("__dlpack__"),
        other => other,
    }?;
    let capsule = exported.cast::<PyCapsule>()?;
    let is_versioned = capsule.is_valid_checked(Some(VERSIONED_NAME));
    let name = if is_versioned { VERSIONED_NAME } else { UNVERSIONED_NAME };
    let pointer = capsule.pointer_checked(Some(name))?;
    let (tensor, flags) = if is_versioned {
        // SAFETY: a capsule of this name points to a `DLManagedTensorVersioned`, which lives as long as the capsule is
        // not taken over. Its head is the same in every version.
        let head = unsafe { pointer.cast::<Versioned>().as_ref() };
        if head.major != 1 {
            let text = format!("__dlpack__ is of version {}; allowed: 1", head.major);
            return Err(PyBufferError::new_err(text));
        }
        (&head.tensor, head.flags)
    } else {
        // SAFETY: a capsule of this name points to a `DLManagedTensor`, which begins with the tensor and lives as long
        // as the capsule is not taken over.
        (unsafe { pointer.cast::<Tensor>().as_ref() }, 0)
    };
    let Ok(dimensions) = usize::try_from(tensor.dimensions) else {
        return Err(PyBufferError::new_err(format!(
            "__dlpack__ has {} dimensions",
            tensor.dimensions
        )));
    };
    let numbers = |at: *const i64| match at.is_null() || dimensions == 0 {
        true => None,
        // SAFETY: DLPack says that shape and strides have a number for each dimension.
        false => Some(unsafe { std::slice::from_raw_parts(at, dimensions) }.to_vec()),
    };
    let shape = numbers(tensor.shape).unwrap_or_default();
    foreign_tensor::check_contiguous(&shape, numbers(tensor.strides).as_deref(), 1)?;
    let bits = u64::from(tensor.bits) * u64::from(tensor.lanes);
    let is_on_device = foreign_tensor::dlpack_device(tensor.device)?;
    let len = foreign_tensor::bytes(&shape, bits.div_ceil(8))?;
    let address = (tensor.data as u64).wrapping_add(tensor.byte_offset);
    let is_read_only = flags & READ_ONLY != 0;
    Ok(Foreign { address, len, is_on_device, is_read_only, kept: exported.unbind() })
}

/// The driver, opened once.
fn cuda() -> PyResult<&'static Arc<Cuda>> {
    static CUDA: OnceLock<Arc<Cuda>> = OnceLock::new();
    if let Some(cuda) = CUDA.get() {
        return Ok(cuda);
    }
    let loaded = Cuda::load().map_err(|error| errors::region(error.into()))?;
    Ok(CUDA.get_or_init(|| loaded))
}

/// Memory by its address, as `Engine.register_address` has it.
pub(crate) fn address(
    address: u64,
    len: u64,
    is_on_device: bool,
    kept: Py<PyAny>,
) -> PyResult<Foreign> {
    if address.checked_add(len).is_none() || address == 0 && len > 0 {
        let text = format!(
            "address {address:#x} with {len} bytes; allowed: an address other than 0, and bytes that end below 2**64"
        );
        return Err(PyValueError::new_err(text));
    }
    Ok(Foreign { address, len, is_on_device, is_read_only: false, kept })
}
