//! Functions that hosts call. Each version with differences has its own function; they share the rest.
//!
//! Every function returns a code of NCCL, writes its results on every path, and catches all panics.

use std::ffi::{CString, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use parking_lot::Mutex;
use polyrail_gpu::cuda::Cuda;
use polyrail_nccl_abi::{
    CommConfig, DeviceHandle, LogLevel, Logger, NcclResult, NetAttributes, Opaque, PTR_CUDA,
    PTR_HOST, ProfilerCallback, subsystem,
};
use polyrail_sys::Memory;

use crate::connect::{Connecting, Handle, Listener};
use crate::error::CallError;
use crate::plugin::{self, Region, Thing, number, plugin, pointer};
use crate::props;
use crate::receive::ReceiveEnd;
use crate::send::SendEnd;

pub(crate) const NAME: *const c_char = c"Scatter".as_ptr();

static LOGGER: Mutex<Option<Logger>> = Mutex::new(None);

/// Runs a call, unless it is the one that must fail. Writes errors to the host's log.
fn guard(call: &'static str, run: impl FnOnce() -> Result<(), CallError>) -> c_int {
    let checked = || {
        let _driver = plugin::driver(call);
        // Before `init` no call has to fail.
        if let Ok(plugin) = plugin() {
            plugin.may(call)?;
        }
        run()
    };
    match catch_unwind(AssertUnwindSafe(checked)) {
        Ok(Ok(())) => NcclResult::Success as c_int,
        Ok(Err(error)) => {
            warn(&format!("{call}: {error}"));
            error.code()
        }
        Err(_) => {
            warn(&format!("{call}: a fault of the plugin"));
            NcclResult::InternalError as c_int
        }
    }
}

fn warn(text: &str) {
    let Some(logger) = *LOGGER.lock() else { return };
    let Ok(text) = CString::new(format!("NET/Scatter : {text}")) else { return };
    let (level, place) = (LogLevel::Warn as c_int, c"scatter".as_ptr());
    // SAFETY: a host's logger takes a printf format and matching arguments; all strings are terminated and live through
    // the call.
    unsafe { logger(level, subsystem::NET, place, 0, c"%s".as_ptr(), text.as_ptr()) };
}

/// Writes a result.
///
/// # Safety
/// `to` is null or writable.
unsafe fn put<T>(to: *mut T, value: T, what: &'static str) -> Result<(), CallError> {
    if to.is_null() {
        return Err(CallError::Null { what });
    }
    // SAFETY: not null, and the caller guarantees that it is writable.
    unsafe { to.write(value) };
    Ok(())
}

/// First element of a list.
///
/// # Safety
/// `list` is null or has an element.
unsafe fn first<T: Copy>(list: *const T, what: &'static str) -> Result<T, CallError> {
    // SAFETY: as the caller promises.
    unsafe { list.as_ref() }.copied().ok_or(CallError::Null { what })
}

pub(crate) extern "C" fn init(logger: Option<Logger>) -> c_int {
    *LOGGER.lock() = logger;
    let read = catch_unwind(plugin::init);
    guard("init", || read.unwrap_or(Err(CallError::Invalid("a fault of the plugin"))))
}

pub(crate) unsafe extern "C" fn init_context(
    context: *mut Opaque,
    _comm_id: u64,
    _config: *mut CommConfig,
    logger: Option<Logger>,
    _profiler: Option<ProfilerCallback>,
) -> c_int {
    // SAFETY: the host gives a place for the context. A context has no content; it is not null, though.
    let put = unsafe { put(context, NAME.cast_mut().cast(), "context") };
    match put {
        Ok(()) => init(logger),
        Err(error) => error.code(),
    }
}

pub(crate) extern "C" fn finalize(_context: Opaque) -> c_int {
    guard("finalize", || Ok(()))
}

pub(crate) extern "C" fn set_net_attr(_context: Opaque, _attributes: *mut NetAttributes) -> c_int {
    NcclResult::Success as c_int
}

pub(crate) unsafe extern "C" fn devices(count: *mut c_int) -> c_int {
    guard("devices", || {
        let devices = plugin()?.settings.devices.len();
        // SAFETY: the host gives a place for the count.
        unsafe { put(count, devices as c_int, "count") }
    })
}

macro_rules! properties {
    ($name:ident, $version:ident, $props:ty) => {
        pub(crate) unsafe extern "C" fn $name(device: c_int, props: *mut $props) -> c_int {
            guard("getProperties", || {
                let found = props::$version(device)?;
                // SAFETY: the host gives a place for the properties.
                unsafe { put(props, found, "props") }
            })
        }
    };
}

properties!(properties_v7, v7, polyrail_nccl_abi::PropsV7);
properties!(properties_v8, v8, polyrail_nccl_abi::PropsV8);
properties!(properties_v11, v11, polyrail_nccl_abi::PropsV11);

pub(crate) unsafe extern "C" fn listen(
    device: c_int,
    handle: *mut c_void,
    comm: *mut Opaque,
) -> c_int {
    guard("listen", || {
        // SAFETY: the host gives a place for the listener.
        unsafe { put(comm, std::ptr::null_mut(), "comm") }?;
        let plugin = plugin()?;
        let (listener, bytes) = Listener::new(&plugin, plugin.device(device)?)?;
        let number = plugin::add(Thing::Listener(listener));
        // SAFETY: the host gives 128 bytes for the handle, and a place for the listener.
        unsafe {
            put(handle.cast::<Handle>(), bytes, "handle")?;
            put(comm, pointer(number), "comm")
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
    _device_handle: *mut *mut DeviceHandle,
) -> c_int {
    guard("connect", || {
        // SAFETY: the host gives a place for the connection.
        unsafe { put(comm, std::ptr::null_mut(), "comm") }?;
        let handle = handle.cast::<Handle>();
        // SAFETY: the handle is null, or has 128 bytes.
        let mut bytes = unsafe { first(handle, "handle") }?;
        let connected = advance(device, &mut bytes);
        // SAFETY: as above; the host passes the same bytes again until the connection is established.
        unsafe { put(handle, bytes, "handle") }?;
        match connected? {
            // SAFETY: as above.
            Some(number) => unsafe { put(comm, pointer(number), "comm") },
            None => Ok(()),
        }
    })
}

/// One step of connecting.
fn advance(device: c_int, handle: &mut Handle) -> Result<Option<u64>, CallError> {
    let plugin = plugin()?;
    let device = plugin.device(device)?;
    let number = match Connecting::attempt(handle) {
        Some(number) => number,
        None => {
            let number = plugin::add(Thing::Connecting(Connecting::new(&plugin, device, handle)?));
            Connecting::note(handle, number);
            number
        }
    };
    if plugin.settings.never_connects {
        return Ok(None);
    }
    let what = "connection that is being made";
    let thing = plugin::find(what, number)?;
    let is_there = match &mut *thing.lock() {
        Thing::Connecting(connecting) => connecting.advance(),
        _ => Err(CallError::Unknown { what, number }),
    };
    if !matches!(is_there, Ok(false)) {
        drop(thing);
        Connecting::note(handle, 0);
        let taken = plugin::remove(what, number)?;
        is_there?;
        let Some(Thing::Connecting(connecting)) = Arc::into_inner(taken).map(Mutex::into_inner)
        else {
            return Err(CallError::Invalid("one thread at a time connects by a handle"));
        };
        let send = SendEnd::new(connecting.into_link(plugin))?;
        return Ok(Some(plugin::add(Thing::Send(send))));
    }
    Ok(None)
}

pub(crate) unsafe extern "C" fn connect_context(
    _context: Opaque,
    device: c_int,
    handle: *mut c_void,
    comm: *mut Opaque,
    device_handle: *mut *mut DeviceHandle,
) -> c_int {
    // SAFETY: as the caller gives it.
    unsafe { connect(device, handle, comm, device_handle) }
}

/// In mode `unpack` the host gives a place for the device handle, as NCCL does (`ncclNetGetDeviceHandle` in
/// `transport/net.cc`) and TCPX expects (`tcpxAccept_v5` in `net_tcpx.cc`).
pub(crate) unsafe extern "C" fn accept(
    listener: Opaque,
    comm: *mut Opaque,
    device_handle: *mut *mut DeviceHandle,
) -> c_int {
    guard("accept", || {
        // SAFETY: the host gives a place for the connection.
        unsafe { put(comm, std::ptr::null_mut(), "comm") }?;
        let number = number(listener, "listener")?;
        let accepted = match &mut *plugin::find("listener", number)?.lock() {
            Thing::Listener(listener) => listener.accept()?,
            _ => return Err(CallError::Unknown { what: "listener", number }),
        };
        let Some(link) = accepted else { return Ok(()) };
        plugin()?.allocate();
        let end = Box::new(ReceiveEnd::new(link, number)?);
        if let Some(filled) = end.handle()? {
            // SAFETY: the host gives a place that is null, or has the address of a device handle.
            unsafe { put(first(device_handle, "device handle")?, filled, "device handle") }?;
        }
        let number = plugin::add(Thing::Receive(end));
        // SAFETY: as above.
        unsafe { put(comm, pointer(number), "comm") }
    })
}

pub(crate) unsafe extern "C" fn reg_mr_v7(
    comm: Opaque,
    data: *mut c_void,
    size: c_int,
    kind: c_int,
    region: *mut Opaque,
) -> c_int {
    let Ok(size) = usize::try_from(size) else { return NcclResult::InvalidArgument as c_int };
    // SAFETY: as the caller gives it.
    unsafe { reg_mr(comm, data, size, kind, region) }
}

pub(crate) unsafe extern "C" fn reg_mr(
    _comm: Opaque,
    data: *mut c_void,
    size: usize,
    kind: c_int,
    region: *mut Opaque,
) -> c_int {
    guard("regMr", || {
        // SAFETY: the host gives a place for the registration.
        unsafe { put(region, std::ptr::null_mut(), "mhandle") }?;
        if data.is_null() {
            return Err(CallError::Null { what: "data" });
        }
        let registered = match kind {
            // SAFETY: the host keeps the memory until it deregisters it.
            PTR_HOST => Region::Host(unsafe { Memory::from_raw(data.cast(), size as u64) }),
            PTR_CUDA => {
                // SAFETY: as above.
                Region::Gpu(unsafe { Cuda::load()?.memory_at(data.addr() as u64, size as u64)? })
            }
            _ => return Err(CallError::Invalid("memory is of the host or of CUDA")),
        };
        let number = plugin::add(Thing::Region(registered));
        // SAFETY: as above.
        unsafe { put(region, pointer(number), "mhandle") }
    })
}

pub(crate) extern "C" fn dereg_mr(_comm: Opaque, region: Opaque) -> c_int {
    guard("deregMr", || {
        let number = number(region, "mhandle")?;
        plugin::region(number)?;
        plugin::remove("registered memory", number).map(drop)
    })
}

pub(crate) unsafe extern "C" fn isend(
    comm: Opaque,
    data: *mut c_void,
    size: c_int,
    _tag: c_int,
    region: Opaque,
    request: *mut Opaque,
) -> c_int {
    guard("isend", || {
        let size = usize::try_from(size).map_err(|_| CallError::Invalid("a size below 0"))?;
        // SAFETY: the host gives a place for the request.
        unsafe { send(comm, data, size, region, request) }
    })
}

pub(crate) unsafe extern "C" fn isend_v11(
    comm: Opaque,
    data: *mut c_void,
    size: usize,
    _tag: c_int,
    region: Opaque,
    _profiler: *mut c_void,
    request: *mut Opaque,
) -> c_int {
    // SAFETY: as the caller gives it.
    guard("isend", || unsafe { send(comm, data, size, region, request) })
}

/// # Safety
/// `request` is null or writable.
unsafe fn send(
    comm: Opaque,
    data: *mut c_void,
    size: usize,
    region: Opaque,
    request: *mut Opaque,
) -> Result<(), CallError> {
    // SAFETY: as the caller promises.
    unsafe { put(request, std::ptr::null_mut(), "request") }?;
    let region = plugin::region(number(region, "mhandle")?)?;
    let base = match &region {
        Region::Host(memory) => memory.address(0, 0).unwrap_or(0) as u64,
        Region::Gpu(memory) => memory.address(0, 0).unwrap_or(0),
    };
    let before = CallError::Invalid("a message lies before its registered memory");
    let offset = (data.addr() as u64).checked_sub(base).ok_or(before)?;
    let comm = number(comm, "comm")?;
    let posted = match &mut *plugin::find("connection", comm)?.lock() {
        Thing::Send(send) => send.post(&region, offset, size as u64)?,
        _ => return Err(CallError::Unknown { what: "connection to send on", number: comm }),
    };
    let posted = posted.map_or(std::ptr::null_mut(), |n| pointer(plugin::request(comm, n)));
    // SAFETY: as above.
    unsafe { put(request, posted, "request") }
}

pub(crate) unsafe extern "C" fn irecv(
    comm: Opaque,
    count: c_int,
    data: *mut *mut c_void,
    sizes: *mut c_int,
    _tags: *mut c_int,
    regions: *mut Opaque,
    request: *mut Opaque,
) -> c_int {
    guard("irecv", || {
        // SAFETY: the host gives lists of `count` elements, and a place for the request.
        unsafe {
            let size = first(sizes, "sizes")?;
            let size = usize::try_from(size).map_err(|_| CallError::Invalid("a size below 0"))?;
            receive(comm, count, data, size, regions, request)
        }
    })
}

pub(crate) unsafe extern "C" fn irecv_v11(
    comm: Opaque,
    count: c_int,
    data: *mut *mut c_void,
    sizes: *mut usize,
    _tags: *mut c_int,
    regions: *mut Opaque,
    _profilers: *mut *mut c_void,
    request: *mut Opaque,
) -> c_int {
    guard("irecv", || {
        // SAFETY: the host gives lists of `count` elements, and a place for the request.
        unsafe { receive(comm, count, data, first(sizes, "sizes")?, regions, request) }
    })
}

/// # Safety
/// The lists are null or have an element, and `request` is null or writable.
unsafe fn receive(
    comm: Opaque,
    count: c_int,
    data: *mut *mut c_void,
    size: usize,
    regions: *mut Opaque,
    request: *mut Opaque,
) -> Result<(), CallError> {
    // SAFETY: as the caller promises.
    let (data, region) = unsafe {
        put(request, std::ptr::null_mut(), "request")?;
        (first(data, "data")?, first(regions, "mhandles")?)
    };
    if count != 1 {
        return Err(CallError::Invalid("maxRecvs is 1"));
    }
    let buffer = match plugin::region(number(region, "mhandle")?)? {
        // SAFETY: the host keeps the buffer until the request is done.
        Region::Host(_) => Some(unsafe { Memory::from_raw(data.cast(), size as u64) }),
        Region::Gpu(_) => None,
    };
    let comm = number(comm, "comm")?;
    let posted = match &mut *plugin::find("connection", comm)?.lock() {
        Thing::Receive(end) => end.post(size as u64, buffer)?,
        _ => return Err(CallError::Unknown { what: "connection to receive on", number: comm }),
    };
    let posted = posted.map_or(std::ptr::null_mut(), |n| pointer(plugin::request(comm, n)));
    // SAFETY: as above.
    unsafe { put(request, posted, "request") }
}

/// As with TCPX, there is nothing to flush.
pub(crate) unsafe extern "C" fn iflush(
    _comm: Opaque,
    _count: c_int,
    _data: *mut *mut c_void,
    _sizes: *mut c_int,
    _regions: *mut Opaque,
    request: *mut Opaque,
) -> c_int {
    // SAFETY: the host gives a place for the request.
    guard("iflush", || unsafe { put(request, std::ptr::null_mut(), "request") })
}

pub(crate) unsafe extern "C" fn test(
    request: Opaque,
    done: *mut c_int,
    sizes: *mut c_int,
) -> c_int {
    guard("test", || {
        // SAFETY: the host gives a place for the result.
        unsafe { put(done, 0, "done") }?;
        let (comm, request) = plugin::parts(number(request, "request")?);
        let size = match &mut *plugin::find("connection", comm)?.lock() {
            Thing::Send(send) => send.test(request)?.then_some(None),
            Thing::Receive(receive) => receive.test(request)?.map(Some),
            _ => return Err(CallError::Unknown { what: "connection", number: comm }),
        };
        let Some(size) = size else { return Ok(()) };
        if let (Some(size), false) = (size, sizes.is_null()) {
            // SAFETY: not null, so a list with one place. NCCL cuts longer messages.
            unsafe { put(sizes, c_int::try_from(size).unwrap_or(c_int::MAX), "sizes") }?;
        }
        // SAFETY: as above.
        unsafe { put(done, 1, "done") }
    })
}

pub(crate) extern "C" fn irecv_consumed(comm: Opaque, count: c_int, request: Opaque) -> c_int {
    guard("irecvConsumed", || {
        let (from, request) = plugin::parts(number(request, "request")?);
        let comm = number(comm, "comm")?;
        if count != 1 || from != comm {
            return Err(CallError::Invalid("one request of this connection is consumed at a time"));
        }
        match &mut *plugin::find("connection", comm)?.lock() {
            Thing::Receive(receive) => receive.consumed(request),
            _ => Err(CallError::Unknown { what: "connection to receive on", number: comm }),
        }
    })
}

/// As with TCPX, a GPU needs only the device handle.
pub(crate) extern "C" fn get_device_mr(_: Opaque, _: Opaque, _: *mut Opaque) -> c_int {
    NcclResult::Success as c_int
}

macro_rules! close {
    ($name:ident, $call:literal, $variant:ident) => {
        pub(crate) extern "C" fn $name(comm: Opaque) -> c_int {
            guard($call, || {
                let number = number(comm, "comm")?;
                let what = "connection or listener";
                let thing = plugin::find(what, number)?;
                if !matches!(&*thing.lock(), Thing::$variant(_)) {
                    return Err(CallError::Unknown { what, number });
                }
                plugin::remove(what, number).map(drop)
            })
        }
    };
}

close!(close_send, "closeSend", Send);
close!(close_recv, "closeRecv", Receive);
close!(close_listen, "closeListen", Listener);
