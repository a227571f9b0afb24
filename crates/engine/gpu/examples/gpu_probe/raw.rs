//! The driver's own calls, without Polyrail: the baseline.

use std::ffi::{c_char, c_int, c_uint, c_void};

use libloading::Library;
use polyrail_gpu::Device;
use polyrail_gpu::cuda::CudaDevice;

use super::ground::Outcome;

/// A kernel that fails, to test how that affects copies under way.
const TRAP: &std::ffi::CStr = c".version 6.0
.target sm_70
.address_size 64
.visible .entry fail() { trap; ret; }
";

type Handle = *mut c_void;

type CopyPeer = unsafe extern "C" fn(u64, Handle, u64, Handle, usize) -> c_int;
type CopyPeerAsync = unsafe extern "C" fn(u64, Handle, u64, Handle, usize, Handle) -> c_int;
type Synchronize = unsafe extern "C" fn(Handle) -> c_int;

/// A stream on one device, and calls to copy on it.
pub(crate) struct Raw {
    copy_peer: CopyPeer,
    copy_peer_async: CopyPeerAsync,
    synchronize: Synchronize,
    library: Library,
    contexts: [Handle; 2],
    devices: [c_int; 2],
    stream: Handle,
}

macro_rules! call {
    ($raw:expr, $symbol:literal ($($kind:ty),*), $($value:expr),*) => {{
        // SAFETY: the type is that of `cuda.h`, and the arguments are what it asks for.
        let code = unsafe {
            let function = $raw.get::<unsafe extern "C" fn($($kind),*) -> c_int>($symbol)?;
            function($($value),*)
        };
        match code {
            0 => Ok(()),
            code => Err(format!("{}: error {code}", String::from_utf8_lossy($symbol))),
        }
    }};
}

impl Raw {
    pub(crate) fn new(device: &CudaDevice, peer: &CudaDevice) -> Outcome<Self> {
        // SAFETY: the library is loaded already.
        let library = unsafe { Library::new("libcuda.so.1")? };
        let mut contexts = [std::ptr::null_mut(); 2];
        let mut devices = [0; 2];
        let indexes = [device, peer].map(|device| device.identity().index as c_int);
        for ((context, device), index) in contexts.iter_mut().zip(&mut devices).zip(indexes) {
            call!(library, b"cuDeviceGet"(*mut c_int, c_int), device, index)?;
            let retain = (context as *mut Handle, *device);
            call!(library, b"cuDevicePrimaryCtxRetain"(*mut Handle, c_int), retain.0, retain.1)?;
        }
        let mut stream = std::ptr::null_mut();
        call!(library, b"cuCtxSetCurrent"(Handle), contexts[0])?;
        call!(library, b"cuStreamCreate"(*mut Handle, c_uint), &raw mut stream, 1)?;
        // SAFETY: the types are those of `cuda.h`, and the library is kept as long.
        let (copy_peer, copy_peer_async, synchronize) = unsafe {
            (
                *library.get(b"cuMemcpyPeer")?,
                *library.get(b"cuMemcpyPeerAsync")?,
                *library.get(b"cuStreamSynchronize")?,
            )
        };
        Ok(Self { copy_peer, copy_peer_async, synchronize, library, contexts, devices, stream })
    }

    /// Makes a context current on this thread: 0 is the device's, 1 the peer's.
    pub(crate) fn make_current(&self, which: usize) -> Outcome<usize> {
        call!(self.library, b"cuCtxSetCurrent"(Handle), self.contexts[which])?;
        Ok(self.contexts[which] as usize)
    }

    /// `cuMemcpyPeerAsync` to the peer and `cuStreamSynchronize`.
    pub(crate) fn copy(&self, to: u64, from: u64, len: u64) -> Outcome<()> {
        let [here, there] = self.contexts;
        // SAFETY: the contexts and the stream are open, and the caller has memory there.
        let codes = unsafe {
            let begun = (self.copy_peer_async)(to, there, from, here, len as usize, self.stream);
            [begun, (self.synchronize)(self.stream)]
        };
        if codes == [0, 0] { Ok(()) } else { Err(format!("a plain copy: {codes:?}").into()) }
    }

    /// `cuMemcpyPeer` to the peer, which may return before the copy ends, and `cuStreamSynchronize` of the default
    /// stream, on which it runs.
    pub(crate) fn copy_plainly(&self, to: u64, from: u64, len: u64) -> Outcome<()> {
        let [here, there] = self.contexts;
        // SAFETY: as above.
        let codes = unsafe {
            let begun = (self.copy_peer)(to, there, from, here, len as usize);
            [begun, (self.synchronize)(std::ptr::null_mut())]
        };
        if codes == [0, 0] { Ok(()) } else { Err(format!("a plain copy: {codes:?}").into()) }
    }

    /// `cuMemAlloc`, on the device.
    pub(crate) fn allocate(&self, bytes: usize) -> Outcome<u64> {
        let mut at = 0;
        call!(self.library, b"cuMemAlloc_v2"(*mut u64, usize), &raw mut at, bytes)?;
        Ok(at)
    }

    /// `cuMemAllocManaged`, a few bytes.
    pub(crate) fn allocate_managed(&self) -> Outcome<u64> {
        let mut at = 0;
        call!(self.library, b"cuMemAllocManaged"(*mut u64, usize, c_uint), &raw mut at, 4096, 1)?;
        Ok(at)
    }

    pub(crate) fn free(&self, at: u64) -> Outcome<()> {
        Ok(call!(self.library, b"cuMemFree_v2"(u64), at)?)
    }

    /// Launches a kernel that fails, so that this process loses the device.
    pub(crate) fn trap(&self) -> Outcome<()> {
        let (mut module, mut function) = (std::ptr::null_mut(), std::ptr::null_mut());
        let image = TRAP.as_ptr().cast::<c_void>();
        let name = c"fail".as_ptr();
        let none: *mut Handle = std::ptr::null_mut();
        let library = &self.library;
        call!(library, b"cuModuleLoadData"(*mut Handle, *const c_void), &raw mut module, image)?;
        let place = &raw mut function;
        call!(
            library,
            b"cuModuleGetFunction"(*mut Handle, Handle, *const c_char),
            place,
            module,
            name
        )?;
        call!(
            library,
            b"cuLaunchKernel"(
                Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle,
                *mut Handle, *mut Handle
            ),
            function, 1, 1, 1, 1, 1, 1, 0, self.stream, none, none
        )?;
        Ok(())
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        let undo = || -> Outcome<()> {
            call!(self.library, b"cuStreamDestroy_v2"(Handle), self.stream)?;
            call!(self.library, b"cuCtxSetCurrent"(Handle), std::ptr::null_mut())?;
            for device in self.devices {
                call!(self.library, b"cuDevicePrimaryCtxRelease_v2"(c_int), device)?;
            }
            Ok(())
        };
        // After a trap the driver refuses everything.
        let _ = undo();
    }
}
