//! Functions that NCCL calls. Each version with differences has its own function; they share the rest.
//!
//! Every function returns a code of NCCL, writes its results on every path, and catches all panics.

use std::ffi::{c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use polyrail_nccl_abi::{
    CommConfig, DeviceHandle, HANDLE_BYTES, Logger, NcclResult, NetAttributes, Opaque, PTR_HOST,
    ProfilerCallback,
};
use polyrail_sys::Memory;

use crate::end::End;
use crate::error::CallError;
use crate::hub::Any;
use crate::request::{Handle, Progress};
use crate::runtime::{self, HUB};
use crate::{log, net};

/// Name that NCCL shows in its log, and that `NCCL_NET` selects.
pub(crate) const NAME: *const c_char = c"Polyrail".as_ptr();

/// Runs a call, and writes errors to NCCL's log.
pub(crate) fn guard(call: impl FnOnce() -> Result<(), CallError>) -> c_int {
    if runtime::is_forked() {
        // Don't even log: a thread that does not exist in this child may hold the log's lock.
        return CallError::Forked.code() as c_int;
    }
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(())) => NcclResult::Success as c_int,
        Ok(Err(error)) => {
            if !matches!(error, CallError::Broken(_)) {
                log::warn(&error.to_string());
            }
            error.code() as c_int
        }
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("unknown");
            log::warn(&format!("a fault of the plugin: {text}"));
            NcclResult::InternalError as c_int
        }
    }
}

/// Writes a result.
///
/// # Safety
/// `to` is null or writable.
pub(crate) unsafe fn put<T>(to: *mut T, value: T, what: &'static str) -> Result<(), CallError> {
    if to.is_null() {
        return Err(CallError::Null { what });
    }
    // SAFETY: not null, and the caller guarantees that it is writable.
    unsafe { to.write(value) };
    Ok(())
}

/// Resolves a connection or listener pointer from NCCL.
///
/// # Safety
/// `comm` is null, or came from `listen`, `connect` or `accept` and is not closed.
unsafe fn any<'a>(comm: Opaque) -> Result<&'a Any, CallError> {
    // SAFETY: the pointer is one of the boxes that those functions made.
    unsafe { comm.cast::<Any>().as_ref() }.ok_or(CallError::Null { what: "comm" })
}

fn boxed(any: Any) -> Opaque {
    Box::into_raw(Box::new(any)).cast()
}

fn end(any: &Any) -> Result<&End, CallError> {
    match any {
        Any::Send(send) => Ok(&send.end),
        Any::Recv(recv) => Ok(&recv.end),
        Any::Listener(_) => Err(CallError::Null { what: "connection" }),
    }
}

pub(crate) extern "C" fn init(logger: Option<Logger>) -> c_int {
    guard(|| {
        log::set(logger);
        runtime::init()
    })
}

pub(crate) extern "C" fn init_with_profiler(
    logger: Option<Logger>,
    _profiler: Option<ProfilerCallback>,
) -> c_int {
    init(logger)
}

pub(crate) unsafe extern "C" fn init_context(
    context: *mut Opaque,
    _comm_id: u64,
    _config: *mut CommConfig,
    logger: Option<Logger>,
    _profiler: Option<ProfilerCallback>,
) -> c_int {
    guard(|| {
        log::set(logger);
        // Engines are shared by all communicators of a process, so a context has no content. It must not be null,
        // though.
        // SAFETY: NCCL gives a place for the context.
        unsafe { put(context, NAME.cast_mut().cast(), "context") }?;
        runtime::init()
    })
}

pub(crate) extern "C" fn finalize(_context: Opaque) -> c_int {
    guard(|| {
        runtime::finalize();
        Ok(())
    })
}

pub(crate) extern "C" fn set_net_attr(_context: Opaque, _attributes: *mut NetAttributes) -> c_int {
    NcclResult::Success as c_int
}

pub(crate) unsafe extern "C" fn devices(count: *mut c_int) -> c_int {
    guard(|| {
        let devices = runtime::device_count()?;
        // SAFETY: NCCL gives a place for the count. There are at most 64 rails.
        unsafe { put(count, devices as c_int, "count") }
    })
}

pub(crate) unsafe extern "C" fn listen(
    device: c_int,
    handle: *mut c_void,
    comm: *mut Opaque,
) -> c_int {
    guard(|| {
        // SAFETY: NCCL gives a place for the listener.
        unsafe { put(comm, std::ptr::null_mut(), "comm") }?;
        if handle.is_null() {
            return Err(CallError::Null { what: "handle" });
        }
        let (listener, bytes) = runtime::listen(device)?;
        // SAFETY: NCCL gives 128 bytes for the handle, and a place for the listener.
        unsafe {
            handle.cast::<[u8; HANDLE_BYTES]>().write_unaligned(bytes);
            put(comm, boxed(Any::Listener(listener)), "comm")
        }
    })
}

pub(crate) unsafe extern "C" fn listen_context(
    _context: Opaque,
    device: c_int,
    handle: *mut c_void,
    comm: *mut Opaque,
) -> c_int {
    // SAFETY: as the caller gives it.
    unsafe { listen(device, handle, comm) }
}

pub(crate) unsafe extern "C" fn connect(
    device: c_int,
    handle: *mut c_void,
    comm: *mut Opaque,
) -> c_int {
    guard(|| {
        // SAFETY: NCCL gives a place for the connection.
        unsafe { put(comm, std::ptr::null_mut(), "comm") }?;
        let handle = handle.cast::<[u8; HANDLE_BYTES]>();
        if handle.is_null() {
            return Err(CallError::Null { what: "handle" });
        }
        // SAFETY: the handle has 128 bytes.
        let mut bytes = unsafe { handle.read_unaligned() };
        let connected = runtime::connect(device, &mut bytes);
        // SAFETY: as above; NCCL passes the same bytes again until the connection is established.
        unsafe { handle.write_unaligned(bytes) };
        match connected? {
            // SAFETY: as above.
            Some(send) => unsafe { put(comm, boxed(Any::Send(send)), "comm") },
            None => Ok(()),
        }
    })
}

pub(crate) unsafe extern "C" fn connect_v7(
    device: c_int,
    handle: *mut c_void,
    comm: *mut Opaque,
    _device_handle: *mut *mut DeviceHandle,
) -> c_int {
    // SAFETY: as the caller gives it.
    unsafe { connect(device, handle, comm) }
}

pub(crate) unsafe extern "C" fn connect_v10(
    device: c_int,
    _config: *mut CommConfig,
    handle: *mut c_void,
    comm: *mut Opaque,
    _device_handle: *mut *mut DeviceHandle,
) -> c_int {
    // SAFETY: as the caller gives it.
    unsafe { connect(device, handle, comm) }
}

pub(crate) unsafe extern "C" fn connect_context(
    _context: Opaque,
    device: c_int,
    handle: *mut c_void,
    comm: *mut Opaque,
    _device_handle: *mut *mut DeviceHandle,
) -> c_int {
    // SAFETY: as the caller gives it.
    unsafe { connect(device, handle, comm) }
}

pub(crate) unsafe extern "C" fn accept(listener: Opaque, comm: *mut Opaque) -> c_int {
    guard(|| {
        // SAFETY: NCCL gives a place for the connection.
        unsafe { put(comm, std::ptr::null_mut(), "comm") }?;
        // SAFETY: NCCL gives a listener of this plugin.
        let Any::Listener(listener) = (unsafe { any(listener) })? else {
            return Err(CallError::Null { what: "listener" });
        };
        match net::accept(&HUB, listener)? {
            // SAFETY: as above.
            Some(recv) => unsafe { put(comm, boxed(Any::Recv(recv)), "comm") },
            None => Ok(()),
        }
    })
}

pub(crate) unsafe extern "C" fn accept_v7(
    listener: Opaque,
    comm: *mut Opaque,
    _device_handle: *mut *mut DeviceHandle,
) -> c_int {
    // SAFETY: as the caller gives it.
    unsafe { accept(listener, comm) }
}

pub(crate) unsafe extern "C" fn reg_mr(
    comm: Opaque,
    data: *mut c_void,
    size: usize,
    kind: c_int,
    handle: *mut Opaque,
) -> c_int {
    guard(|| {
        // SAFETY: NCCL gives a place for the handle.
        unsafe { put(handle, std::ptr::null_mut(), "memory handle") }?;
        if kind != PTR_HOST {
            return Err(CallError::MemoryKind(kind));
        }
        // SAFETY: NCCL gives a connection of this plugin.
        let end = end(unsafe { any(comm) }?)?;
        // SAFETY: NCCL keeps the memory until it is deregistered or the connection is closed, and
        // both end all use of it.
        let memory = unsafe { Memory::from_raw(data.cast(), size as u64) };
        let number = end.regions.add(&end.engine, memory, data as usize)?;
        // SAFETY: as above. A number, never followed as a pointer.
        unsafe { put(handle, std::ptr::without_provenance_mut(number), "memory handle") }
    })
}

pub(crate) unsafe extern "C" fn reg_mr_v6(
    comm: Opaque,
    data: *mut c_void,
    size: c_int,
    kind: c_int,
    handle: *mut Opaque,
) -> c_int {
    // A negative size becomes larger than any memory, and is refused.
    // SAFETY: as the caller gives it.
    unsafe { reg_mr(comm, data, size as usize, kind, handle) }
}

pub(crate) unsafe extern "C" fn dereg_mr(comm: Opaque, handle: Opaque) -> c_int {
    // SAFETY: NCCL gives a connection of this plugin.
    guard(|| end(unsafe { any(comm) }?)?.regions.remove(handle.addr()))
}

/// # Safety
/// As NCCL calls `isend`.
unsafe fn send(
    comm: Opaque,
    data: *mut c_void,
    size: usize,
    handle: Opaque,
    request: *mut Opaque,
) -> c_int {
    guard(|| {
        // The place holds garbage, or a mark that a receive may end early.
        // SAFETY: NCCL gives a place for the request.
        unsafe { put(request, std::ptr::null_mut(), "request") }?;
        // SAFETY: NCCL gives a connection of this plugin.
        let Any::Send(send) = (unsafe { any(comm) })? else {
            return Err(CallError::Null { what: "sending connection" });
        };
        match send.send(handle.addr(), data as usize, size)? {
            // SAFETY: as above.
            Some(taken) => unsafe { put(request, pointer(taken), "request") },
            None => Ok(()),
        }
    })
}

/// # Safety
/// As NCCL calls `irecv`; `size` points to the first of the sizes.
unsafe fn receive<S: Copy + TryInto<usize>>(
    comm: Opaque,
    count: c_int,
    data: *mut *mut c_void,
    sizes: *mut S,
    handles: *mut Opaque,
    request: *mut Opaque,
) -> c_int {
    guard(|| {
        // SAFETY: NCCL gives a place for the request.
        unsafe { put(request, std::ptr::null_mut(), "request") }?;
        if count != 1 {
            return Err(CallError::Parts(count));
        }
        if data.is_null() || sizes.is_null() || handles.is_null() {
            return Err(CallError::Null { what: "data, sizes or memory handles" });
        }
        // SAFETY: arrays of one element, as the count says.
        let (data, size, handle) = unsafe { (*data, *sizes, *handles) };
        let address = data as usize;
        let len = size.try_into().map_err(|_| CallError::OutsideMemory { address, len: 0 })?;
        // SAFETY: NCCL gives a connection of this plugin.
        let Any::Recv(recv) = (unsafe { any(comm) })? else {
            return Err(CallError::Null { what: "receiving connection" });
        };
        match recv.receive(handle.addr(), address, len)? {
            // SAFETY: as above.
            Some(taken) => unsafe { put(request, pointer(taken), "request") },
            None => Ok(()),
        }
    })
}

fn pointer(request: &Handle) -> Opaque {
    std::ptr::from_ref(request).cast_mut().cast()
}

pub(crate) unsafe extern "C" fn isend_v6(
    comm: Opaque,
    data: *mut c_void,
    size: c_int,
    _tag: c_int,
    handle: Opaque,
    request: *mut Opaque,
) -> c_int {
    // SAFETY: as the caller gives it; a negative size is refused as outside of the memory.
    unsafe { send(comm, data, size as usize, handle, request) }
}

pub(crate) unsafe extern "C" fn isend_v9(
    comm: Opaque,
    data: *mut c_void,
    size: usize,
    _tag: c_int,
    handle: Opaque,
    request: *mut Opaque,
) -> c_int {
    // SAFETY: as the caller gives it.
    unsafe { send(comm, data, size, handle, request) }
}

pub(crate) unsafe extern "C" fn isend_v10(
    comm: Opaque,
    data: *mut c_void,
    size: usize,
    _tag: c_int,
    handle: Opaque,
    _profiler: *mut c_void,
    request: *mut Opaque,
) -> c_int {
    // SAFETY: as the caller gives it.
    unsafe { send(comm, data, size, handle, request) }
}

pub(crate) unsafe extern "C" fn irecv_v6(
    comm: Opaque,
    count: c_int,
    data: *mut *mut c_void,
    sizes: *mut c_int,
    _tags: *mut c_int,
    handles: *mut Opaque,
    request: *mut Opaque,
) -> c_int {
    // SAFETY: as the caller gives it.
    unsafe { receive(comm, count, data, sizes, handles, request) }
}

pub(crate) unsafe extern "C" fn irecv_v9(
    comm: Opaque,
    count: c_int,
    data: *mut *mut c_void,
    sizes: *mut usize,
    _tags: *mut c_int,
    handles: *mut Opaque,
    request: *mut Opaque,
) -> c_int {
    // SAFETY: as the caller gives it.
    unsafe { receive(comm, count, data, sizes, handles, request) }
}

pub(crate) unsafe extern "C" fn irecv_v10(
    comm: Opaque,
    count: c_int,
    data: *mut *mut c_void,
    sizes: *mut usize,
    _tags: *mut c_int,
    handles: *mut Opaque,
    _profilers: *mut *mut c_void,
    request: *mut Opaque,
) -> c_int {
    // SAFETY: as the caller gives it.
    unsafe { receive(comm, count, data, sizes, handles, request) }
}

/// Completes at once: received data is already in place, so there is nothing to flush.
pub(crate) unsafe extern "C" fn iflush(
    _comm: Opaque,
    _count: c_int,
    _data: *mut *mut c_void,
    _sizes: *mut c_int,
    _handles: *mut Opaque,
    request: *mut Opaque,
) -> c_int {
    // SAFETY: NCCL gives a place for the request; null means done.
    guard(|| unsafe { put(request, std::ptr::null_mut(), "request") })
}

pub(crate) unsafe extern "C" fn test(
    request: Opaque,
    done: *mut c_int,
    sizes: *mut c_int,
) -> c_int {
    guard(|| {
        // SAFETY: NCCL gives a place for the answer.
        unsafe { put(done, 0, "done") }?;
        // SAFETY: a request that `isend` or `irecv` returned; it lives as long as its connection.
        let request = unsafe { request.cast::<Handle>().as_ref() };
        let request = request.ok_or(CallError::Null { what: "request" })?;
        match request.test() {
            Progress::Pending => Ok(()),
            Progress::Failed => Err(CallError::Broken("the connection is broken".to_owned())),
            Progress::Done { bytes } => {
                if !sizes.is_null() {
                    // SAFETY: not null, so NCCL requests the size of the one part.
                    unsafe { sizes.write(c_int::try_from(bytes).unwrap_or(c_int::MAX)) };
                }
                // SAFETY: as above.
                unsafe { put(done, 1, "done") }
            }
        }
    })
}

pub(crate) unsafe extern "C" fn close(comm: Opaque) -> c_int {
    guard(|| {
        if comm.is_null() {
            return Ok(());
        }
        // SAFETY: NCCL closes each connection or listener of this plugin once.
        let any = unsafe { Box::from_raw(comm.cast::<Any>()) };
        let key = match &*any {
            Any::Listener(listener) => {
                listener.close();
                listener.key
            }
            Any::Send(send) => {
                send.close();
                send.end.key
            }
            Any::Recv(recv) => {
                recv.close();
                recv.end.key
            }
        };
        drop(HUB.remove(key));
        if HUB.is_empty() {
            // Before version 11 NCCL never finalizes, and the program may end next.
            runtime::drain();
        }
        Ok(())
    })
}
