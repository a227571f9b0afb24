//! NCCL between two processes: any number of sends and receives, and a wait for them.

use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use libloading::Library;
use polyrail_gpu::{Device, DeviceMemory};

use crate::driver::{Context, Driver, Span, Stream, at};
use crate::error::{RefError, chain};

pub(crate) type Handle = *mut c_void;
type GetVersion = unsafe extern "C" fn(*mut c_int) -> c_int;
type GetUniqueId = unsafe extern "C" fn(*mut UniqueId) -> c_int;
type InitRank = unsafe extern "C" fn(*mut Handle, c_int, UniqueId, c_int) -> c_int;
type OfComm = unsafe extern "C" fn(Handle) -> c_int;
type Send = unsafe extern "C" fn(*const c_void, usize, c_int, c_int, Handle, Handle) -> c_int;
type Recv = unsafe extern "C" fn(*mut c_void, usize, c_int, c_int, Handle, Handle) -> c_int;
type Group = unsafe extern "C" fn() -> c_int;
type ErrorText = unsafe extern "C" fn(c_int) -> *const c_char;

/// `ncclUint8`.
const UINT8: c_int = 1;
const RANKS: c_int = 2;
const LIBRARY: &str = "libnccl.so.2";

/// The NCCL library with the functions that are needed. NCCL reads its settings from the environment once per process.
pub struct Nccl {
    get_version: GetVersion,
    get_unique_id: GetUniqueId,
    init_rank: InitRank,
    destroy: OfComm,
    abort: OfComm,
    send: Send,
    recv: Recv,
    group_start: Group,
    group_end: Group,
    error_text: ErrorText,
    /// Keeps the code that the pointers point to loaded.
    _library: Library,
}

/// The identity of a communicator, shared by its processes (`ncclUniqueId`).
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct UniqueId(pub [u8; 128]);

/// One of two processes that send to each other. Belongs to the thread that made it.
pub struct Comm {
    nccl: Arc<Nccl>,
    stream: Stream,
    handle: Handle,
    peer: c_int,
    is_broken: bool,
}

impl Nccl {
    /// Opens the library at `path`, or the one that the loader finds.
    pub fn load(path: Option<&Path>) -> Result<Arc<Self>, RefError> {
        let name = path.map_or(OsStr::new(LIBRARY), Path::as_os_str);
        let missing = |error: libloading::Error| RefError::NoNccl {
            library: name.to_string_lossy().into_owned(),
            reason: chain(&error),
        };
        // SAFETY: the library is NCCL by its name, or by the user's choice.
        let library = unsafe { Library::new(name) }.map_err(missing)?;
        // SAFETY: as above; the types are those of `nccl.h`.
        let nccl = unsafe { Self::look_up(library) };
        Ok(Arc::new(nccl.map_err(missing)?))
    }

    /// Returns the version: major, minor and patch.
    pub fn version(&self) -> Result<(u32, u32, u32), RefError> {
        let mut version = 0;
        // SAFETY: the place is valid.
        self.checked("ncclGetVersion", unsafe { (self.get_version)(&raw mut version) })?;
        Ok(parts(version.unsigned_abs()))
    }

    /// Creates an identity that two processes join with. NCCL listens for them from now on.
    pub fn unique_id(&self) -> Result<UniqueId, RefError> {
        let mut id = UniqueId([0; 128]);
        // SAFETY: the place is valid.
        self.checked("ncclGetUniqueId", unsafe { (self.get_unique_id)(&raw mut id) })?;
        Ok(id)
    }

    /// Joins the other process, which has the other rank (0 or 1). Blocks until it has joined.
    pub fn join(
        self: &Arc<Self>,
        device: &dyn Device,
        id: UniqueId,
        rank: u8,
    ) -> Result<Comm, RefError> {
        let rank = c_int::from(rank.min(1));
        let stream = Stream::open(Context::open(&Driver::open()?, device)?)?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the place is valid, and the device's context is current on this thread.
        let code = unsafe { (self.init_rank)(&raw mut handle, RANKS, id, rank) };
        self.checked("ncclCommInitRank", code)?;
        Ok(Comm { nccl: Arc::clone(self), stream, handle, peer: 1 - rank, is_broken: false })
    }

    /// Makes calls as one group; NCCL starts them when the group ends.
    pub(crate) fn group(
        &self,
        calls: impl FnOnce(&Self) -> Result<(), RefError>,
    ) -> Result<(), RefError> {
        // SAFETY: takes nothing.
        self.checked("ncclGroupStart", unsafe { (self.group_start)() })?;
        let called = calls(self);
        // SAFETY: a group is open, and ends whatever was called.
        let ended = self.checked("ncclGroupEnd", unsafe { (self.group_end)() });
        called.and(ended)
    }

    /// Joins a communicator of this many ranks; the device's context must be current.
    pub(crate) fn enter(
        &self,
        comm: &mut Handle,
        ranks: usize,
        id: UniqueId,
        rank: usize,
    ) -> Result<(), RefError> {
        // SAFETY: the place is valid; the caller keeps it until the group that this is in has ended.
        let code = unsafe { (self.init_rank)(comm, ranks as c_int, id, rank as c_int) };
        self.checked("ncclCommInitRank", code)
    }

    /// # Safety
    /// Memory, communicator and stream must be valid until the stream has done it.
    pub(crate) unsafe fn send_to(
        &self,
        (comm, peer): (Handle, usize),
        from: u64,
        len: usize,
        stream: Handle,
    ) -> Result<(), RefError> {
        let from = from as *const c_void;
        // SAFETY: as the caller says.
        let code = unsafe { (self.send)(from, len, UINT8, peer as c_int, comm, stream) };
        self.checked("ncclSend", code)
    }

    /// # Safety
    /// As [`Self::send_to`].
    pub(crate) unsafe fn receive_from(
        &self,
        (comm, peer): (Handle, usize),
        to: u64,
        len: usize,
        stream: Handle,
    ) -> Result<(), RefError> {
        let to = to as *mut c_void;
        // SAFETY: as the caller says.
        let code = unsafe { (self.recv)(to, len, UINT8, peer as c_int, comm, stream) };
        self.checked("ncclRecv", code)
    }

    /// Leaves a communicator; with `at_once`, aborts the operations in flight.
    ///
    /// # Safety
    /// `comm` must be open, and must not be used afterwards.
    pub(crate) unsafe fn leave(&self, comm: Handle, at_once: bool) {
        let leave = if at_once { self.abort } else { self.destroy };
        // SAFETY: as the caller says.
        let _ = unsafe { leave(comm) };
    }

    /// # Safety
    /// The library must be NCCL.
    unsafe fn look_up(library: Library) -> Result<Self, libloading::Error> {
        // SAFETY: as the caller says; the pointers are kept no longer than the library.
        unsafe {
            Ok(Self {
                get_version: *library.get(b"ncclGetVersion\0")?,
                get_unique_id: *library.get(b"ncclGetUniqueId\0")?,
                init_rank: *library.get(b"ncclCommInitRank\0")?,
                destroy: *library.get(b"ncclCommDestroy\0")?,
                abort: *library.get(b"ncclCommAbort\0")?,
                send: *library.get(b"ncclSend\0")?,
                recv: *library.get(b"ncclRecv\0")?,
                group_start: *library.get(b"ncclGroupStart\0")?,
                group_end: *library.get(b"ncclGroupEnd\0")?,
                error_text: *library.get(b"ncclGetErrorString\0")?,
                _library: library,
            })
        }
    }

    fn checked(&self, call: &'static str, code: c_int) -> Result<(), RefError> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: takes any number.
        let text = unsafe { (self.error_text)(code) };
        let text = if text.is_null() {
            "unknown".into()
        } else {
            // SAFETY: it is a constant of the library, ended by 0.
            unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
        };
        Err(RefError::Nccl { call, code, text })
    }
}

impl Comm {
    /// Sends ranges of `source` and receives ranges of `dest`, one group per range, and waits until all are in place.
    /// The other process must make the matching call, with as many ranges of the same lengths. [`Span::from`] is an
    /// offset in the source, [`Span::to`] in the destination.
    pub fn exchange(
        &mut self,
        source: Option<&DeviceMemory>,
        dest: Option<&DeviceMemory>,
        spans: impl IntoIterator<Item = Span>,
    ) -> Result<(), RefError> {
        let result = self.enqueue(source, dest, spans);
        if result.is_err() {
            // A kernel whose counterpart is missing never ends, and the wait below would hang.
            self.give_up();
        }
        result.and(self.stream.wait())
    }

    fn enqueue(
        &self,
        source: Option<&DeviceMemory>,
        dest: Option<&DeviceMemory>,
        spans: impl IntoIterator<Item = Span>,
    ) -> Result<(), RefError> {
        let nccl = &self.nccl;
        for span in spans {
            let len = span.len as usize;
            let from = source.map(|memory| at(memory, span.from, span.len)).transpose()?;
            let to = dest.map(|memory| at(memory, span.to, span.len)).transpose()?;
            let (comm, peer, stream) = (self.handle, self.peer, self.stream.handle);
            // SAFETY: the ranges are in memories that the caller lends until the wait is over, and
            // communicator and stream are open.
            unsafe {
                nccl.checked("ncclGroupStart", (nccl.group_start)())?;
                if let Some(from) = from {
                    let code = (nccl.send)(from as *const c_void, len, UINT8, peer, comm, stream);
                    nccl.checked("ncclSend", code)?;
                }
                if let Some(to) = to {
                    let code = (nccl.recv)(to as *mut c_void, len, UINT8, peer, comm, stream);
                    nccl.checked("ncclRecv", code)?;
                }
                nccl.checked("ncclGroupEnd", (nccl.group_end)())?;
            }
        }
        Ok(())
    }

    fn give_up(&mut self) {
        if !self.is_broken {
            self.is_broken = true;
            // SAFETY: open until here, and never used again.
            let _ = unsafe { (self.nccl.abort)(self.handle) };
        }
    }
}

impl Drop for Comm {
    fn drop(&mut self) {
        if !self.is_broken {
            // SAFETY: open, with nothing under way, and never used again.
            let _ = unsafe { (self.nccl.destroy)(self.handle) };
        }
    }
}

impl fmt::Debug for Nccl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Nccl")
    }
}

impl fmt::Debug for UniqueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("UniqueId")
    }
}

/// Splits a version number. NCCL before 2.9 counts 1000 per major version, later versions 10000.
fn parts(version: u32) -> (u32, u32, u32) {
    let major = if version < 10_000 { 1_000 } else { 10_000 };
    (version / major, version % major / 100, version % 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_as_nccl_counts_them() {
        assert_eq!(parts(2_708), (2, 7, 8));
        assert_eq!(parts(22_809), (2, 28, 9));
        assert_eq!(size_of::<UniqueId>(), 128);
    }

    #[test]
    fn a_file_that_is_not_there_and_one_that_is_no_nccl_are_errors_with_the_reason() {
        let error = Nccl::load(Some(Path::new("/nonexistent/libnccl.so.2"))).err().unwrap();
        assert!(error.to_string().contains("/nonexistent/libnccl.so.2"), "{error}");
        assert!(error.help().unwrap().contains("libnccl.so.2"));
        let error = Nccl::load(Some(Path::new("libc.so.6"))).err().unwrap();
        assert!(error.to_string().contains("ncclGetVersion"), "{error}");
    }
}
