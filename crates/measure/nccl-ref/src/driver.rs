//! CUDA driver functions that the baselines need, and the driver's own copy.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;

use libloading::Library;
use polyrail_gpu::cuda::Cuda;
use polyrail_gpu::{Device, DeviceMemory, GpuError};

use crate::error::{RefError, chain};

type Handle = *mut c_void;
type DeviceGet = unsafe extern "C" fn(*mut c_int, c_int) -> c_int;
type PrimaryRetain = unsafe extern "C" fn(*mut Handle, c_int) -> c_int;
type PrimaryRelease = unsafe extern "C" fn(c_int) -> c_int;
type SetCurrent = unsafe extern "C" fn(Handle) -> c_int;
type StreamCreate = unsafe extern "C" fn(*mut Handle, c_uint) -> c_int;
type OfStream = unsafe extern "C" fn(Handle) -> c_int;
type CopyPeer = unsafe extern "C" fn(u64, Handle, u64, Handle, usize, Handle) -> c_int;

/// `CU_STREAM_NON_BLOCKING`.
const NON_BLOCKING: c_uint = 1;

/// Functions of the CUDA driver. Opening a [`Context`] initialises the driver, and all other calls need a context.
pub(crate) struct Driver {
    device_get: DeviceGet,
    primary_retain: PrimaryRetain,
    primary_release: PrimaryRelease,
    set_current: SetCurrent,
    stream_create: StreamCreate,
    stream_destroy: OfStream,
    stream_wait: OfStream,
    copy_peer: CopyPeer,
    /// Keeps the code that the pointers point to loaded.
    _library: Library,
}

/// A device's primary context, retained, and current on the thread that opened it.
pub(crate) struct Context {
    driver: Arc<Driver>,
    ordinal: c_int,
    handle: Handle,
}

pub(crate) struct Stream {
    context: Context,
    pub(crate) handle: Handle,
}

/// The driver's own copy from one memory to another, with a wait for it, as any program can make it without a library.
/// Use it on the thread that made it.
pub struct DriverCopy {
    stream: Stream,
    /// Context of the destination.
    other: Context,
    from: DeviceMemory,
    to: DeviceMemory,
}

/// A range to copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Offset in the source, in bytes.
    pub from: u64,
    /// Offset in the destination, in bytes.
    pub to: u64,
    /// Length in bytes.
    pub len: u64,
}

impl DriverCopy {
    /// Prepares copies from one memory to another, with direct access where the devices support it.
    pub fn new(from: &DeviceMemory, to: &DeviceMemory) -> Result<Self, RefError> {
        let (source, dest) = (from.device(), to.device());
        // Without this, the driver would copy through the host.
        source.reaches(dest.as_ref())?;
        dest.reaches(source.as_ref())?;
        let driver = Driver::open()?;
        let other = Context::open(&driver, dest.as_ref())?;
        let stream = Stream::open(Context::open(&driver, source.as_ref())?)?;
        Ok(Self { stream, other, from: from.clone(), to: to.clone() })
    }

    /// Copies all ranges with one call each, and waits until they are in place.
    pub fn copy(&mut self, spans: &[Span]) -> Result<(), RefError> {
        let driver = Arc::clone(&self.stream.context.driver);
        let mut result = Ok(());
        for span in spans {
            let range = at(&self.to, span.to, span.len)
                .and_then(|to| Ok((to, at(&self.from, span.from, span.len)?)));
            let (source, dest) = (self.stream.context.handle, self.other.handle);
            result = range.and_then(|(to, from)| {
                let (len, stream) = (span.len as usize, self.stream.handle);
                // SAFETY: both ranges are in memories that this value keeps, the contexts and the
                // stream are open, and the wait below ends before any of them can go.
                let code = unsafe { (driver.copy_peer)(to, dest, from, source, len, stream) };
                checked("cuMemcpyPeerAsync", code)
            });
            if result.is_err() {
                break;
            }
        }
        self.stream.wait().and(result)
    }
}

impl Driver {
    pub(crate) fn open() -> Result<Arc<Self>, RefError> {
        // SAFETY: it is NVIDIA's driver by its name.
        unsafe { Self::open_as("libcuda.so.1") }
    }

    /// # Safety
    /// A library of this name must be NVIDIA's driver.
    unsafe fn open_as(name: &str) -> Result<Arc<Self>, RefError> {
        let missing = |error: libloading::Error| GpuError::NoDriver {
            reason: format!("{name} can't be used: {}", chain(&error)),
        };
        // SAFETY: any CUDA program runs the initialisers of NVIDIA's driver.
        let library = unsafe { Library::new(name) }.map_err(missing)?;
        // SAFETY: the types are those of `cuda.h` for symbols of these names, and the pointers are
        // kept no longer than the library.
        let driver = unsafe { Self::look_up(library) };
        Ok(Arc::new(driver.map_err(missing)?))
    }

    /// # Safety
    /// The library must be NVIDIA's driver.
    unsafe fn look_up(library: Library) -> Result<Self, libloading::Error> {
        // SAFETY: as the caller says.
        unsafe {
            Ok(Self {
                device_get: *library.get(b"cuDeviceGet\0")?,
                primary_retain: *library.get(b"cuDevicePrimaryCtxRetain\0")?,
                primary_release: *library.get(b"cuDevicePrimaryCtxRelease_v2\0")?,
                set_current: *library.get(b"cuCtxSetCurrent\0")?,
                stream_create: *library.get(b"cuStreamCreate\0")?,
                stream_destroy: *library.get(b"cuStreamDestroy_v2\0")?,
                stream_wait: *library.get(b"cuStreamSynchronize\0")?,
                copy_peer: *library.get(b"cuMemcpyPeerAsync\0")?,
                _library: library,
            })
        }
    }
}

impl Context {
    /// Retains the device's primary context and makes it the thread's current one.
    pub(crate) fn open(driver: &Arc<Driver>, device: &dyn Device) -> Result<Self, RefError> {
        let identity = device.identity();
        // The driver accepts only addresses and contexts of CUDA's own devices.
        if Cuda::load()?.device(identity.index)?.identity() != identity {
            let (device, what) = (identity.to_string(), "measuring a reference");
            return Err(GpuError::Unsupported { device, what }.into());
        }
        let index = c_int::try_from(identity.index).unwrap_or(c_int::MAX);
        let mut ordinal = 0;
        // SAFETY: the place is valid, and loading has initialised the driver.
        checked("cuDeviceGet", unsafe { (driver.device_get)(&raw mut ordinal, index) })?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the place is valid. It is released once, when this is dropped.
        let code = unsafe { (driver.primary_retain)(&raw mut handle, ordinal) };
        checked("cuDevicePrimaryCtxRetain", code)?;
        let context = Self { driver: Arc::clone(driver), ordinal, handle };
        context.make_current()?;
        Ok(context)
    }

    pub(crate) fn make_current(&self) -> Result<(), RefError> {
        // SAFETY: the context is retained.
        checked("cuCtxSetCurrent", unsafe { (self.driver.set_current)(self.handle) })
    }
}

impl Stream {
    /// A stream that other streams don't wait for.
    pub(crate) fn open(context: Context) -> Result<Self, RefError> {
        context.make_current()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the place is valid, and a context is current.
        let code = unsafe { (context.driver.stream_create)(&raw mut handle, NON_BLOCKING) };
        checked("cuStreamCreate", code)?;
        Ok(Self { context, handle })
    }

    /// Waits until all work in the stream is done.
    pub(crate) fn wait(&self) -> Result<(), RefError> {
        // SAFETY: the stream is open.
        checked("cuStreamSynchronize", unsafe { (self.context.driver.stream_wait)(self.handle) })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: opened once, and not used any more.
        let _ = unsafe { (self.context.driver.stream_destroy)(self.handle) };
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: retained once. Others that retained it keep it.
        let _ = unsafe { (self.driver.primary_release)(self.ordinal) };
    }
}

/// The device's address of a range, checked.
pub(crate) fn at(memory: &DeviceMemory, offset: u64, len: u64) -> Result<u64, RefError> {
    let size = memory.len();
    memory.address(offset, len).map_err(|_| RefError::OutOfRange { offset, len, size })
}

fn checked(call: &'static str, code: c_int) -> Result<(), RefError> {
    if code == 0 { Ok(()) } else { Err(RefError::Driver { call, code }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_driver_there_is_a_reason_and_help() {
        // SAFETY: there is no library of this name.
        let error = unsafe { Driver::open_as("libcuda-of-nobody.so.1") }.err().unwrap();
        let text = error.to_string();
        assert!(text.contains("no CUDA driver: libcuda-of-nobody.so.1 can't be used"), "{text}");
        assert!(error.help().is_some());
    }
}
