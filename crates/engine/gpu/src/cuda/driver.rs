//! The functions of NVIDIA's driver library that this crate calls, looked up at run time.
//!
//! Polyrail has its own table instead of a binding crate: of the driver's hundreds of functions it calls some fifty; a
//! machine without the library, or with one that lacks a symbol, must get an error value and not a panic; and a binding
//! to all of CUDA weighs more in the build than the rest of this crate. The names are the versioned symbols that the
//! library exports (`cuMemAlloc_v2` for `cuMemAlloc` of `cuda.h`), so that no version has to be negotiated.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use libloading::Library;

use crate::error::GpuError;

/// The oldest usable version, as the driver counts: CUDA 11.7, the first that writes to memory in stream order by
/// [`Driver::stream_write`].
pub(super) const OLDEST: c_int = 11_070;

pub(super) const NOT_READY: c_int = 600;
pub(super) const PEER_ACCESS_ALREADY_ENABLED: c_int = 704;
pub(super) const NOT_SUPPORTED: c_int = 801;

/// A device's number in the driver.
pub(super) type Ordinal = c_int;
/// An address on any device or the host: with unified addressing there is one space for all.
pub(super) type Address = u64;

/// Handles of the driver. Any thread may use them.
macro_rules! handles {
    ($($name:ident)*) => {$(
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(transparent)]
        pub(super) struct $name(pub(super) *mut c_void);

        impl $name {
            pub(super) const NONE: Self = Self(std::ptr::null_mut());
        }

        // SAFETY: the driver's handles are names, not memory of ours; it locks by itself.
        unsafe impl Send for $name {}
        // SAFETY: as above.
        unsafe impl Sync for $name {}
    )*};
}

handles! { ContextHandle StreamHandle EventHandle ModuleHandle FunctionHandle }

/// A memory handle for another process.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct IpcHandle(pub(super) [u8; 64]);

/// `CUmemLocation`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(super) struct Location {
    pub(super) kind: c_int,
    pub(super) id: c_int,
}

/// `CUmemAccessDesc`.
#[repr(C)]
pub(super) struct Access {
    pub(super) location: Location,
    pub(super) flags: c_int,
}

/// `CUmemAllocationProp`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Properties {
    pub(super) kind: c_int,
    pub(super) handle_types: c_int,
    pub(super) location: Location,
    pub(super) windows: *mut c_void,
    pub(super) flags: [u8; 8],
}

/// `CUmemcpyAttributes`.
#[repr(C)]
pub(super) struct CopyAttributes {
    pub(super) source_order: c_int,
    pub(super) source: Location,
    pub(super) target: Location,
    pub(super) flags: c_uint,
}

/// A call that the driver refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Refused {
    pub(super) call: &'static str,
    pub(super) code: c_int,
}

/// Declares the table: fields of function pointers, their look-up, and methods that check results.
macro_rules! table {
    (
        needed { $($need:ident = $symbol:literal ($($arg:ident: $kind:ty),*);)* }
        wanted { $($want:ident = $name:literal ($($given:ident: $type:ty),*);)* }
    ) => {
        /// The library with its functions. No method changes more than the driver's own function
        /// of that name does; see CUDA's documentation for what they take.
        pub(super) struct Driver {
            $($need: unsafe extern "C" fn($($kind),*) -> c_int,)*
            $($want: Option<unsafe extern "C" fn($($type),*) -> c_int>,)*
            /// Keeps the code that the pointers point to.
            _library: Library,
        }

        #[expect(clippy::too_many_arguments, reason = "the driver's functions have so many")]
        impl Driver {
            fn look_up(library: Library) -> Result<Self, libloading::Error> {
                // SAFETY: the types are those of `cuda.h` for symbols of these names, and the
                // pointers are kept no longer than the library.
                unsafe {
                    Ok(Self {
                        $($need: *library.get(concat!($symbol, "\0").as_bytes())?,)*
                        $($want: library.get(concat!($name, "\0").as_bytes()).ok().map(|f| *f),)*
                        _library: library,
                    })
                }
            }

            $(
                /// # Safety
                /// As the driver's function of that name asks.
                #[inline]
                pub(super) unsafe fn $need(&self, $($arg: $kind),*) -> Result<(), Refused> {
                    // SAFETY: the caller keeps the function's contract.
                    checked($symbol, unsafe { (self.$need)($($arg),*) })
                }
            )*
            $(
                /// # Safety
                /// As the driver's function of that name asks.
                pub(super) unsafe fn $want(&self, $($given: $type),*) -> Result<(), Refused> {
                    let Some(function) = self.$want else {
                        return Err(Refused { call: $name, code: NOT_SUPPORTED });
                    };
                    // SAFETY: the caller keeps the function's contract.
                    checked($name, unsafe { function($($given),*) })
                }
            )*
        }
    };
}

table! {
    needed {
        init = "cuInit" (flags: c_uint);
        driver_version = "cuDriverGetVersion" (version: *mut c_int);
        error_name = "cuGetErrorName" (code: c_int, text: *mut *const c_char);
        error_text = "cuGetErrorString" (code: c_int, text: *mut *const c_char);

        device_count = "cuDeviceGetCount" (count: *mut c_int);
        device_get = "cuDeviceGet" (device: *mut Ordinal, index: c_int);
        device_name = "cuDeviceGetName" (name: *mut c_char, len: c_int, device: Ordinal);
        device_uuid = "cuDeviceGetUuid_v2" (uuid: *mut [u8; 16], device: Ordinal);
        device_memory = "cuDeviceTotalMem_v2" (bytes: *mut usize, device: Ordinal);
        device_pci = "cuDeviceGetPCIBusId" (name: *mut c_char, len: c_int, device: Ordinal);
        device_reaches = "cuDeviceCanAccessPeer" (can: *mut c_int, device: Ordinal, peer: Ordinal);

        primary_retain = "cuDevicePrimaryCtxRetain" (context: *mut ContextHandle, device: Ordinal);
        primary_release = "cuDevicePrimaryCtxRelease_v2" (device: Ordinal);
        primary_state = "cuDevicePrimaryCtxGetState"
            (device: Ordinal, flags: *mut c_uint, active: *mut c_int);
        context_push = "cuCtxPushCurrent_v2" (context: ContextHandle);
        context_pop = "cuCtxPopCurrent_v2" (context: *mut ContextHandle);
        context_current = "cuCtxGetCurrent" (context: *mut ContextHandle);
        context_reach = "cuCtxEnablePeerAccess" (peer: ContextHandle, flags: c_uint);

        alloc = "cuMemAlloc_v2" (at: *mut Address, bytes: usize);
        free = "cuMemFree_v2" (at: Address);
        host_alloc = "cuMemHostAlloc" (at: *mut *mut c_void, bytes: usize, flags: c_uint);
        host_free = "cuMemFreeHost" (at: *mut c_void);
        host_pin = "cuMemHostRegister_v2" (at: *mut c_void, bytes: usize, flags: c_uint);
        host_unpin = "cuMemHostUnregister" (at: *mut c_void);
        pointer_attributes = "cuPointerGetAttributes"
            (count: c_uint, which: *const c_int, values: *mut *mut c_void, at: Address);
        address_range = "cuMemGetAddressRange_v2"
            (base: *mut Address, bytes: *mut usize, at: Address);

        stream_create = "cuStreamCreate" (stream: *mut StreamHandle, flags: c_uint);
        stream_destroy = "cuStreamDestroy_v2" (stream: StreamHandle);
        stream_query = "cuStreamQuery" (stream: StreamHandle);
        stream_wait = "cuStreamSynchronize" (stream: StreamHandle);
        event_create = "cuEventCreate" (event: *mut EventHandle, flags: c_uint);
        event_destroy = "cuEventDestroy_v2" (event: EventHandle);
        event_record = "cuEventRecord" (event: EventHandle, stream: StreamHandle);
        event_query = "cuEventQuery" (event: EventHandle);
        copy = "cuMemcpyAsync" (to: Address, from: Address, bytes: usize, stream: StreamHandle);

        module_load = "cuModuleLoadDataEx" (
            module: *mut ModuleHandle, image: *const c_void, options: c_uint,
            which: *const c_int, values: *const *mut c_void
        );
        module_unload = "cuModuleUnload" (module: ModuleHandle);
        module_function = "cuModuleGetFunction"
            (function: *mut FunctionHandle, module: ModuleHandle, name: *const c_char);
        launch = "cuLaunchKernel" (
            function: FunctionHandle, blocks_x: c_uint, blocks_y: c_uint, blocks_z: c_uint,
            threads_x: c_uint, threads_y: c_uint, threads_z: c_uint, shared_bytes: c_uint,
            stream: StreamHandle, parameters: *mut *mut c_void, extra: *mut *mut c_void
        );

        ipc_get = "cuIpcGetMemHandle" (handle: *mut IpcHandle, at: Address);
        ipc_open = "cuIpcOpenMemHandle_v2" (at: *mut Address, handle: IpcHandle, flags: c_uint);
        ipc_close = "cuIpcCloseMemHandle" (at: Address);
    }
    wanted {
        event_elapsed = "cuEventElapsedTime" (ms: *mut f32, from: EventHandle, to: EventHandle);
        set = "cuMemsetD8Async" (at: Address, value: u8, bytes: usize, stream: StreamHandle);
        stream_write = "cuStreamWriteValue32_v2"
            (stream: StreamHandle, at: Address, value: u32, flags: c_uint);
        copy_batch_12 = "cuMemcpyBatchAsync" (
            to: *mut Address, from: *mut Address, bytes: *mut usize, count: usize,
            attributes: *mut CopyAttributes, of: *mut usize, kinds: usize, failed: *mut usize,
            stream: StreamHandle
        );
        copy_batch_13 = "cuMemcpyBatchAsync_v2" (
            to: *mut Address, from: *mut Address, bytes: *mut usize, count: usize,
            attributes: *mut CopyAttributes, of: *mut usize, kinds: usize, stream: StreamHandle
        );
        vmm_create = "cuMemCreate"
            (handle: *mut u64, bytes: usize, properties: *const Properties, flags: u64);
        vmm_release = "cuMemRelease" (handle: u64);
        vmm_retain = "cuMemRetainAllocationHandle" (handle: *mut u64, at: *mut c_void);
        vmm_reserve = "cuMemAddressReserve"
            (at: *mut Address, bytes: usize, alignment: usize, wish: Address, flags: u64);
        vmm_unreserve = "cuMemAddressFree" (at: Address, bytes: usize);
        vmm_map = "cuMemMap" (at: Address, bytes: usize, offset: usize, handle: u64, flags: u64);
        vmm_unmap = "cuMemUnmap" (at: Address, bytes: usize);
        vmm_access = "cuMemSetAccess"
            (at: Address, bytes: usize, access: *const Access, count: usize);
        vmm_granularity = "cuMemGetAllocationGranularity"
            (bytes: *mut usize, properties: *const Properties, which: c_int);
        vmm_properties = "cuMemGetAllocationPropertiesFromHandle"
            (properties: *mut Properties, handle: u64);
        vmm_export = "cuMemExportToShareableHandle"
            (fd: *mut c_void, handle: u64, kind: c_int, flags: u64);
        vmm_import = "cuMemImportFromShareableHandle"
            (handle: *mut u64, fd: *mut c_void, kind: c_int);
    }
}

impl Driver {
    /// Opens the library and starts the driver, which makes no context on any device.
    pub(super) fn open() -> Result<Self, GpuError> {
        let missing = |reason: String| GpuError::NoDriver { reason };
        // SAFETY: the library is NVIDIA's by its name, whose initialisers any CUDA program runs.
        let library = unsafe { Library::new("libcuda.so.1") }
            .map_err(|error| missing(format!("libcuda.so.1 can't be opened: {}", chain(&error))))?;
        let driver = Self::look_up(library)
            .map_err(|error| missing(format!("libcuda.so.1 is too old: {}", chain(&error))))?;
        let started = |refused: Refused| missing(driver.explain(refused).to_string());
        let mut version = 0;
        // SAFETY: `version` is a valid place for the result.
        unsafe { driver.driver_version(&raw mut version) }.map_err(started)?;
        if version < OLDEST {
            let [have, need] = [version, OLDEST].map(|v| format!("{}.{}", v / 1000, v % 1000 / 10));
            return Err(missing(format!("it is for CUDA {have}, and {need} is the oldest usable")));
        }
        // SAFETY: takes no pointers; may be called any number of times.
        unsafe { driver.init(0) }.map_err(started)?;
        Ok(driver)
    }

    /// Returns the error with the driver's own text.
    pub(super) fn explain(&self, refused: Refused) -> GpuError {
        let text = |found: Result<(), Refused>, text: *const c_char| {
            let found = found.is_ok() && !text.is_null();
            // SAFETY: on success the text is a constant of the library, ended by 0.
            found.then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
        };
        let (mut place, code) = (std::ptr::null(), refused.code);
        // SAFETY: the place is valid.
        let name = text(unsafe { self.error_name(code, &raw mut place) }, place);
        // SAFETY: as above.
        let words = text(unsafe { self.error_text(code, &raw mut place) }, place);
        let name = name.unwrap_or_else(|| format!("error {code}"));
        let text = words.unwrap_or_else(|| "unknown to this driver".into());
        GpuError::Driver { call: refused.call, name, text }
    }
}

fn checked(call: &'static str, code: c_int) -> Result<(), Refused> {
    if code == 0 { Ok(()) } else { Err(Refused { call, code }) }
}

/// Formats the error with its causes: the name of a missing symbol is in the cause.
fn chain(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {}", chain(source)),
        None => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_are_as_large_as_the_drivers() {
        // From `cuda.h` for 64-bit Linux.
        assert_eq!(size_of::<IpcHandle>(), 64);
        assert_eq!(size_of::<Properties>(), 32);
        assert_eq!(size_of::<Access>(), 12);
        assert_eq!(size_of::<CopyAttributes>(), 24);
    }

    #[test]
    fn a_library_that_is_no_driver_is_an_error_with_the_symbol() {
        // SAFETY: the C library is loaded already.
        let library = unsafe { Library::new("libc.so.6") }.unwrap();
        let Err(error) = Driver::look_up(library) else { panic!("libc has no cuInit") };
        assert!(chain(&error).contains("cuInit"), "{}", chain(&error));
    }
}
