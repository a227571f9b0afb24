//! Functions of all versions, with uniform arguments.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, PoisonError};

use super::error::NetError;
use super::log::logger;
use super::properties::Properties;
use crate::{
    CommConfig, DeviceHandle, HANDLE_BYTES, MAX_REQUESTS, NcclResult, Opaque, ProfilerCallback,
    PropsV6, PropsV7, PropsV8, PropsV9, PropsV11, PropsV12, Table,
};

/// Callback before each call of a plugin function, and after it has returned.
pub type Observer = Arc<dyn Fn(Call) + Send + Sync>;

/// Event of an [`Observer`]. The names are NCCL's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// The function is about to be called, on this thread.
    Begins(&'static str),
    /// The function has returned this `ncclResult_t`. `None` if the table has no such function.
    Ends(&'static str, Option<c_int>),
}

/// Maximum number of messages in a grouped receive.
pub const MAX_GROUP: usize = 8;

/// Initial value of a length, for plugins that write none.
pub(super) const UNTOLD: c_int = c_int::MIN;

/// A table with its context.
pub(super) struct Raw {
    pub(super) table: Table,
    context: Opaque,
    observer: Option<Observer>,
}

// SAFETY: plugins accept calls from several threads; only the plugin uses the context.
unsafe impl Send for Raw {}
// SAFETY: as above.
unsafe impl Sync for Raw {}

/// Calls the function, with the arguments that follow each bracket of versions.
macro_rules! call {
    ($raw:expr, $name:literal, $field:ident, $([$($version:ident)+] $arguments:tt),+ $(,)?) => {{
        let raw: &Raw = $raw;
        raw.observe(Call::Begins($name));
        #[allow(unreachable_patterns, reason = "only some functions are missing in some versions")]
        let code = match raw.table {
            $($(Table::$version(table) => table.$field.map(|function| function $arguments),)+)+
            _ => None,
        };
        raw.observe(Call::Ends($name, code));
        match code {
            None => Err(NetError::Missing { function: $name, version: raw.table.version() }),
            Some(0) => Ok(()),
            Some(code) => Err(NetError::Failed { function: $name, code }),
        }
    }};
}

/// True if the table has the function.
macro_rules! has {
    ($raw:expr, $field:ident, $($version:ident)+) => {
        match $raw.table {
            $(Table::$version(table) => table.$field.is_some(),)+
            _ => false,
        }
    };
}

unsafe extern "C" fn no_profiler(
    _: *mut *mut c_void,
    _: c_int,
    _: *mut c_void,
    _: i64,
    _: *mut c_void,
) -> c_int {
    NcclResult::Success as c_int
}

/// Initialized tables before version 11, as NCCL initializes these once per process.
static INITIALIZED: Mutex<Vec<usize>> = Mutex::new(Vec::new());

impl Raw {
    /// Initializes the table.
    pub(super) fn init(table: Table, observer: Option<Observer>) -> Result<Self, NetError> {
        let mut raw = Self { table, context: null_mut(), observer };
        let mut initialized = INITIALIZED.lock().unwrap_or_else(PoisonError::into_inner);
        let is_once = raw.table.version() < 11;
        if is_once && initialized.contains(&table.address()) {
            return Ok(raw);
        }
        let mut context = null_mut();
        let log = Some(logger());
        let profiler: Option<ProfilerCallback> = Some(no_profiler);
        let mut config = CommConfig { traffic_class: -1 };
        // SAFETY: called like NCCL does, with places that live through the call.
        unsafe {
            call!(
                &raw, "init", init,
                [V5 V6 V7 V8 V9](log),
                [V10](log, profiler),
                [V11 V12](&mut context, 1, &mut config, log, profiler),
            )
        }?;
        raw.context = context;
        if is_once {
            initialized.push(table.address());
        }
        Ok(raw)
    }

    /// Number of concurrent requests on a connection that plugins of this version support. Up to version 6 NCCL
    /// promised to have no more than 8. GPUDirect-TCPX has 16 in version 7, and fails with one more.
    pub(super) fn max_requests(&self) -> usize {
        match self.table.version() {
            ..=6 => 8,
            7 => 16,
            _ => MAX_REQUESTS,
        }
    }

    fn observe(&self, call: Call) {
        if let Some(observer) = &self.observer {
            observer(call);
        }
    }

    pub(super) fn devices(&self) -> Result<c_int, NetError> {
        let mut count = 0;
        // SAFETY: the place lives through the call.
        unsafe {
            call!(self, "devices", devices, [V5 V6 V7 V8 V9 V10 V11 V12](&mut count))?;
        }
        Ok(count)
    }

    pub(super) fn properties(&self, device: c_int) -> Result<Properties, NetError> {
        macro_rules! ask {
            ($props:ident, $($version:ident)+) => {{
                let mut props = std::mem::MaybeUninit::<$props>::zeroed();
                // SAFETY: the place lives through the call; zeroes are valid for every field.
                let props = unsafe {
                    call!(self, "getProperties", get_properties, [$($version)+](device, props.as_mut_ptr()))?;
                    props.assume_init()
                };
                Ok(Properties::from(&props))
            }};
        }
        match self.table {
            Table::V5(_) | Table::V6(_) => ask!(PropsV6, V5 V6),
            Table::V7(_) => ask!(PropsV7, V7),
            Table::V8(_) => ask!(PropsV8, V8),
            Table::V9(_) | Table::V10(_) => ask!(PropsV9, V9 V10),
            Table::V11(_) => ask!(PropsV11, V11),
            Table::V12(_) => ask!(PropsV12, V12),
        }
    }

    pub(super) fn listen(
        &self,
        device: c_int,
        handle: &mut [u8; HANDLE_BYTES],
    ) -> Result<Opaque, NetError> {
        let mut comm = null_mut();
        let place = handle.as_mut_ptr().cast::<c_void>();
        // SAFETY: the places live through the call.
        unsafe {
            call!(
                self, "listen", listen,
                [V5 V6 V7 V8 V9 V10](device, place, &mut comm),
                [V11 V12](self.context, device, place, &mut comm),
            )?;
        }
        Ok(comm)
    }

    /// Polls a connection being made. Returns null while it is not established.
    ///
    /// # Safety
    /// The handle stays at its address until the connection is established.
    pub(super) unsafe fn connect(
        &self,
        device: c_int,
        handle: *mut c_void,
    ) -> Result<Opaque, NetError> {
        let (mut comm, mut on_gpu) = (null_mut(), null_mut());
        let mut config = CommConfig { traffic_class: -1 };
        // SAFETY: the places live through the call, and the handle as the caller promises.
        unsafe {
            call!(
                self, "connect", connect,
                [V5 V6](device, handle, &mut comm),
                [V7 V8 V9](device, handle, &mut comm, &mut on_gpu),
                [V10](device, &mut config, handle, &mut comm, &mut on_gpu),
                [V11 V12](self.context, device, handle, &mut comm, &mut on_gpu),
            )?;
        }
        Ok(comm)
    }

    /// Polls a listener for a connection. Returns null while there is none.
    ///
    /// # Safety
    /// The listener is open. `on_gpu` is null or a place that lives as long as the connection.
    pub(super) unsafe fn accept(
        &self,
        listener: Opaque,
        mut on_gpu: *mut DeviceHandle,
    ) -> Result<Opaque, NetError> {
        let mut comm = null_mut();
        // SAFETY: as the caller promises; the places live through the call.
        unsafe {
            call!(
                self, "accept", accept,
                [V5 V6](listener, &mut comm),
                [V7 V8 V9 V10 V11 V12](listener, &mut comm, &mut on_gpu),
            )?;
        }
        Ok(comm)
    }

    /// # Safety
    /// The connection is open, and the memory stays valid until it is deregistered or the connection is closed.
    pub(super) unsafe fn reg_mr(
        &self,
        comm: Opaque,
        data: *mut c_void,
        bytes: usize,
        kind: c_int,
    ) -> Result<Opaque, NetError> {
        let mut region = null_mut();
        let short = c_int::try_from(bytes);
        if short.is_err() && self.table.version() < 8 {
            let version = self.table.version();
            let text = format!("{bytes} bytes are too long to register by version {version}");
            return Err(NetError::Misuse(text));
        }
        let short = short.unwrap_or(c_int::MAX);
        // SAFETY: as the caller promises; the place lives through the call.
        unsafe {
            call!(
                self, "regMr", reg_mr,
                [V5 V6 V7](comm, data, short, kind, &mut region),
                [V8 V9 V10 V11 V12](comm, data, bytes, kind, &mut region),
            )?;
        }
        Ok(region)
    }

    /// # Safety
    /// As [`reg_mr`](Self::reg_mr), and the descriptor is a DMA-BUF with this memory.
    pub(super) unsafe fn reg_mr_dma_buf(
        &self,
        comm: Opaque,
        (data, bytes, kind): (*mut c_void, usize, c_int),
        offset: u64,
        descriptor: c_int,
    ) -> Result<Opaque, NetError> {
        let mut region = null_mut();
        // SAFETY: as the caller promises; the place lives through the call.
        unsafe {
            call!(
                self, "regMrDmaBuf", reg_mr_dma_buf,
                [V6 V7 V8 V9 V10 V11 V12](comm, data, bytes, kind, offset, descriptor, &mut region),
            )?;
        }
        Ok(region)
    }

    pub(super) fn has_dma_buf(&self) -> bool {
        has!(self, reg_mr_dma_buf, V6 V7 V8 V9 V10 V11 V12)
    }

    /// # Safety
    /// The connection is open, and the region belongs to it and is used by no request.
    pub(super) unsafe fn dereg_mr(&self, comm: Opaque, region: Opaque) -> Result<(), NetError> {
        // SAFETY: as the caller promises.
        unsafe { call!(self, "deregMr", dereg_mr, [V5 V6 V7 V8 V9 V10 V11 V12](comm, region)) }
    }

    /// # Safety
    /// The connection is open, and the region belongs to it; the table has the function.
    pub(super) unsafe fn device_mr(
        &self,
        comm: Opaque,
        region: Opaque,
    ) -> Result<Opaque, NetError> {
        let mut on_gpu = null_mut();
        // SAFETY: as the caller promises; the place lives through the call.
        unsafe {
            call!(self, "getDeviceMr", get_device_mr, [V7 V8 V9 V10 V11 V12](comm, region, &mut on_gpu))?;
        }
        Ok(on_gpu)
    }

    /// Posts a message. Returns null if the plugin has no room for it yet.
    ///
    /// # Safety
    /// The connection is open, the memory belongs to the region, and stays valid until the request completes or the
    /// connection is closed.
    pub(super) unsafe fn isend(
        &self,
        comm: Opaque,
        data: *mut c_void,
        bytes: c_int,
        tag: c_int,
        region: Opaque,
    ) -> Result<Opaque, NetError> {
        let (mut request, none, long) = (null_mut(), null_mut(), bytes as usize);
        // SAFETY: as the caller promises; the place lives through the call.
        unsafe {
            call!(
                self, "isend", isend,
                [V5 V6 V7 V8](comm, data, bytes, tag, region, &mut request),
                [V9](comm, data, long, tag, region, &mut request),
                [V10 V11 V12](comm, data, long, tag, region, none, &mut request),
            )?;
        }
        Ok(request)
    }

    /// Posts memory for messages. Returns null if the plugin has no room for it yet.
    ///
    /// # Safety
    /// As [`isend`](Self::isend), for each part.
    pub(super) unsafe fn irecv(&self, comm: Opaque, parts: &mut Parts) -> Result<Opaque, NetError> {
        let mut request = null_mut();
        let (mut long, mut none) =
            (parts.bytes.map(|bytes| bytes as usize), [null_mut(); MAX_GROUP]);
        let Parts { count, data, bytes, tags, regions } = parts;
        let (count, to) = (*count, &mut request);
        let (data, bytes, tags) = (data.as_mut_ptr(), bytes.as_mut_ptr(), tags.as_mut_ptr());
        let (regions, long, none) = (regions.as_mut_ptr(), long.as_mut_ptr(), none.as_mut_ptr());
        // SAFETY: as the caller promises; the lists live through the call.
        unsafe {
            call!(
                self, "irecv", irecv,
                [V5 V6 V7 V8](comm, count, data, bytes, tags, regions, to),
                [V9](comm, count, data, long, tags, regions, to),
                [V10 V11 V12](comm, count, data, long, tags, regions, none, to),
            )?;
        }
        Ok(request)
    }

    /// Makes received data visible to the GPU. Returns null if nothing has to be done.
    ///
    /// # Safety
    /// As [`irecv`](Self::irecv).
    pub(super) unsafe fn iflush(
        &self,
        comm: Opaque,
        parts: &mut Parts,
    ) -> Result<Opaque, NetError> {
        let mut request = null_mut();
        let Parts { count, data, bytes, regions, .. } = parts;
        let (data, bytes, regions) = (data.as_mut_ptr(), bytes.as_mut_ptr(), regions.as_mut_ptr());
        // SAFETY: as the caller promises; the lists live through the call.
        unsafe {
            call!(
                self, "iflush", iflush,
                [V5 V6 V7 V8 V9 V10 V11 V12](comm, *count, data, bytes, regions, &mut request),
            )?;
        }
        Ok(request)
    }

    /// Returns the lengths of the messages if the request has completed. [`UNTOLD`] marks lengths that the plugin did
    /// not write.
    ///
    /// # Safety
    /// The request belongs to an open connection and has not completed.
    pub(super) unsafe fn test(
        &self,
        request: Opaque,
    ) -> Result<Option<[c_int; MAX_GROUP]>, NetError> {
        let (mut is_done, mut bytes) = (0, [UNTOLD; MAX_GROUP]);
        let to = bytes.as_mut_ptr();
        // SAFETY: as the caller promises; the places live through the call.
        unsafe {
            call!(self, "test", test, [V5 V6 V7 V8 V9 V10 V11 V12](request, &mut is_done, to))?;
        }
        Ok((is_done != 0).then_some(bytes))
    }

    pub(super) fn has_consumed(&self) -> bool {
        has!(self, irecv_consumed, V7 V8 V9 V10 V11 V12)
    }

    /// # Safety
    /// The request is a completed receive of `count` messages on this open connection; it is not used after this.
    pub(super) unsafe fn irecv_consumed(
        &self,
        comm: Opaque,
        count: c_int,
        request: Opaque,
    ) -> Result<(), NetError> {
        // SAFETY: as the caller promises.
        unsafe {
            call!(self, "irecvConsumed", irecv_consumed, [V7 V8 V9 V10 V11 V12](comm, count, request))
        }
    }

    /// # Safety
    /// The connection is open, and never used again.
    pub(super) unsafe fn close_send(&self, comm: Opaque) -> Result<(), NetError> {
        // SAFETY: as the caller promises.
        unsafe { call!(self, "closeSend", close_send, [V5 V6 V7 V8 V9 V10 V11 V12](comm)) }
    }

    /// # Safety
    /// The connection is open, and never used again.
    pub(super) unsafe fn close_recv(&self, comm: Opaque) -> Result<(), NetError> {
        // SAFETY: as the caller promises.
        unsafe { call!(self, "closeRecv", close_recv, [V5 V6 V7 V8 V9 V10 V11 V12](comm)) }
    }

    /// # Safety
    /// The listener is open, and never used again.
    pub(super) unsafe fn close_listen(&self, comm: Opaque) -> Result<(), NetError> {
        // SAFETY: as the caller promises.
        unsafe { call!(self, "closeListen", close_listen, [V5 V6 V7 V8 V9 V10 V11 V12](comm)) }
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        if self.context.is_null() || !has!(self, finalize, V11 V12) {
            return;
        }
        // SAFETY: the context that init returned; all connections are closed, because each keeps this value.
        let done = unsafe { call!(self, "finalize", finalize, [V11 V12](self.context)) };
        // An error of the plugin can't be handled here.
        drop(done);
    }
}

/// Messages of a grouped receive, as lists.
pub(super) struct Parts {
    pub(super) count: c_int,
    pub(super) data: [*mut c_void; MAX_GROUP],
    pub(super) bytes: [c_int; MAX_GROUP],
    pub(super) tags: [c_int; MAX_GROUP],
    pub(super) regions: [Opaque; MAX_GROUP],
}
