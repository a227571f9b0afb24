//! Numbers and structures of the interface that the tables of all versions share.

use std::ffi::{c_char, c_int, c_ulong, c_void};

/// Bytes of a listener's handle, which NCCL carries to the connecting side.
pub const HANDLE_BYTES: usize = 128;
/// Maximum number of outstanding requests of NCCL on a connection.
pub const MAX_REQUESTS: usize = 32;
/// Largest message that NCCL requests through interfaces of version 9 and later.
pub const MAX_MESSAGE_BYTES: usize = 1 << 40;
/// Host memory; the only kind that Polyrail's own plugin takes.
pub const PTR_HOST: c_int = 1;
/// GPU memory by its address.
pub const PTR_CUDA: c_int = 2;
/// GPU memory by a DMA-BUF.
pub const PTR_DMA_BUF: c_int = 4;
/// Device whose data is in place when a receive completes.
pub const DEVICE_HOST: c_int = 0;
/// Device that scatters data over a GPU buffer, and tells the GPU where the parts belong.
pub const DEVICE_UNPACK: c_int = 1;
/// Version of [`DEVICE_UNPACK`] that NCCL knows.
pub const UNPACK_VERSION: c_int = 7;

/// Result of every function of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum NcclResult {
    /// The call succeeded, or the operation is in progress.
    Success = 0,
    /// A call of the operating system failed.
    SystemError = 2,
    /// A fault of the plugin.
    InternalError = 3,
    /// An argument is out of range.
    InvalidArgument = 4,
    /// The call does not fit the earlier calls.
    InvalidUsage = 5,
    /// The other side failed.
    RemoteError = 6,
}

/// Level of a line in NCCL's log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum LogLevel {
    /// Shown unless the user has turned off all output.
    Warn = 2,
    /// Shown with `NCCL_DEBUG=INFO`.
    Info = 3,
    /// Shown with `NCCL_DEBUG=TRACE`, by libraries built with it.
    Trace = 5,
}

/// Bits of NCCL's logger for the subject of a line.
pub mod subsystem {
    use std::ffi::c_ulong;

    /// Start-up.
    pub const INIT: c_ulong = 1;
    /// The network.
    pub const NET: c_ulong = 0x10;
}

/// NCCL's logger: level, subsystem, file or function, line, format, arguments.
pub type Logger = unsafe extern "C" fn(c_int, c_ulong, *const c_char, c_int, *const c_char, ...);

/// NCCL's profiler; not used here.
pub type ProfilerCallback =
    unsafe extern "C" fn(*mut *mut c_void, c_int, *mut c_void, i64, *mut c_void) -> c_int;

/// An opaque pointer that callers pass back to the plugin.
pub type Opaque = *mut c_void;

/// Configuration of a communicator, since version 10.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CommConfig {
    /// Traffic class, −1 if not given.
    pub traffic_class: c_int,
}

/// Announced use of a communicator, since version 11. Unknown fields are −1.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct NetAttributes {
    /// Sending: most and least peers at a time, most and least flows to each.
    pub send: [i32; 4],
    /// Receiving, likewise.
    pub receive: [i32; 4],
    /// Bits of operations.
    pub op: u32,
    /// Bits of algorithms.
    pub algo: u32,
    /// Bits of protocols.
    pub proto: u32,
}

/// Handle for plugins whose receives are finished on the GPU, since version 7.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct DeviceHandle {
    /// Device type.
    pub net_device_type: c_int,
    /// Version of the device type.
    pub net_device_version: c_int,
    /// Memory that the GPU reads.
    pub handle: Opaque,
    /// Size of that memory in bytes.
    pub size: usize,
    /// True if NCCL's proxy thread has to make progress.
    pub needs_proxy_progress: c_int,
}

impl DeviceHandle {
    /// Initial value that NCCL passes to `accept` of a device of the kind "unpack".
    pub(crate) fn unpack() -> Self {
        Self {
            net_device_type: DEVICE_UNPACK,
            net_device_version: UNPACK_VERSION,
            handle: std::ptr::null_mut(),
            size: 0,
            needs_proxy_progress: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_structures_have_the_sizes_that_nccl_compiles() {
        assert_eq!(size_of::<CommConfig>(), 4);
        assert_eq!(size_of::<NetAttributes>(), 44);
        assert_eq!(size_of::<DeviceHandle>(), 32);
    }
}
