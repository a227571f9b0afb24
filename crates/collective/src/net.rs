//! Calls a net plugin as NCCL does, whatever the version of its table.

use std::ffi::{c_char, c_int, c_ulong, c_void};
use std::ptr::null_mut;

use polyrail_nccl_abi::{
    CommConfig, HANDLE_BYTES, Library, Logger, NcclResult, NetV12, Opaque, PTR_HOST,
    ProfilerCallback, Table,
};

unsafe extern "C" {
    /// The baseline of the plugin's harness.
    static socket_like_v12: NetV12;

    fn collective_log(
        level: c_int,
        subsystems: c_ulong,
        file: *const c_char,
        line: c_int,
        format: *const c_char,
        ...
    );
}

/// Why a call into a plugin did not do what it is for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NetError {
    /// The table has no such function.
    #[error("the plugin has no function {function} in version {version}")]
    Missing {
        /// NCCL's name of it.
        function: &'static str,
        /// Of the table.
        version: u32,
    },
    /// What it returned is an error.
    #[error("{function} of the plugin gave {code} ({})", meaning(*.code))]
    Failed {
        /// NCCL's name of it.
        function: &'static str,
        /// An `ncclResult_t`.
        code: c_int,
    },
}

/// What NCCL calls the results.
fn meaning(code: c_int) -> &'static str {
    match code {
        1 => "a CUDA error",
        2 => "a system error",
        3 => "an internal error",
        4 => "an invalid argument",
        5 => "an invalid usage",
        6 => "a remote error",
        _ => "an unknown result",
    }
}

/// A plugin that was initialized.
pub struct Net {
    table: Table,
    context: Opaque,
}

// SAFETY: plugins take calls from several threads; the context is theirs alone.
unsafe impl Send for Net {}
// SAFETY: as above.
unsafe impl Sync for Net {}

/// A handle by which another rank connects.
pub type Handle = [u8; HANDLE_BYTES];

/// Calls a function that all versions have with the same arguments.
macro_rules! same {
    ($net:expr, $field:ident, $name:literal, $($argument:expr),*) => {{
        let net: &Net = $net;
        match net.table {
            Table::V6(table) => net.check($name, table.$field.map(|call| call($($argument),*))),
            Table::V7(table) => net.check($name, table.$field.map(|call| call($($argument),*))),
            Table::V8(table) => net.check($name, table.$field.map(|call| call($($argument),*))),
            Table::V9(table) => net.check($name, table.$field.map(|call| call($($argument),*))),
            Table::V10(table) => net.check($name, table.$field.map(|call| call($($argument),*))),
            Table::V11(table) => net.check($name, table.$field.map(|call| call($($argument),*))),
            Table::V12(table) => net.check($name, table.$field.map(|call| call($($argument),*))),
        }
    }};
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

impl Net {
    /// Initializes the newest table of a plugin.
    ///
    /// # Errors
    /// If the plugin refuses.
    pub fn open(library: &Library) -> Result<Self, NetError> {
        let newest = library.versions().iter().rev().find_map(|version| library.table(*version));
        let missing = NetError::Missing { function: "ncclNetPlugin", version: 12 };
        Self::init(newest.ok_or(missing)?)
    }

    /// Initializes what works like NCCL's own socket transport. `SOCKET_LIKE_THREADS`,
    /// `SOCKET_LIKE_SOCKETS` and `SOCKET_LIKE_ADDRESSES` set it up.
    ///
    /// # Errors
    /// If it refuses.
    pub fn baseline() -> Result<Self, NetError> {
        // SAFETY: a constant table.
        Self::init(Table::V12(unsafe { &socket_like_v12 }))
    }

    /// The plugin's own name.
    pub fn name(&self) -> String {
        self.table.name()
    }

    /// The version of the interface.
    pub fn version(&self) -> u32 {
        self.table.version()
    }

    fn init(table: Table) -> Result<Self, NetError> {
        let mut net = Self { table, context: null_mut() };
        let log: Option<Logger> = Some(collective_log);
        let profiler: Option<ProfilerCallback> = Some(no_profiler);
        let mut config = CommConfig { traffic_class: -1 };
        let (context, config) = (&mut net.context, &mut config);
        // SAFETY: called as NCCL does, with places that live through the call.
        let code = unsafe {
            match table {
                Table::V6(table) => table.init.map(|init| init(log)),
                Table::V7(table) => table.init.map(|init| init(log)),
                Table::V8(table) => table.init.map(|init| init(log)),
                Table::V9(table) => table.init.map(|init| init(log)),
                Table::V10(table) => table.init.map(|init| init(log, profiler)),
                Table::V11(table) => table.init.map(|init| init(context, 1, config, log, profiler)),
                Table::V12(table) => table.init.map(|init| init(context, 1, config, log, profiler)),
            }
        };
        net.check("init", code)?;
        Ok(net)
    }

    /// How many devices it has.
    ///
    /// # Errors
    /// If the plugin refuses.
    pub fn devices(&self) -> Result<usize, NetError> {
        let mut count: c_int = 0;
        // SAFETY: the place lives through the call.
        unsafe { same!(self, devices, "devices", &mut count) }?;
        Ok(usize::try_from(count).unwrap_or(0))
    }

    pub(crate) fn listen(&self, device: c_int) -> Result<(Handle, Opaque), NetError> {
        let (mut handle, mut comm) = ([0; HANDLE_BYTES], null_mut());
        let (place, to) = (handle.as_mut_ptr().cast::<c_void>(), &mut comm);
        // SAFETY: the places live through the call.
        let code = unsafe {
            match self.table {
                Table::V6(table) => table.listen.map(|listen| listen(device, place, to)),
                Table::V7(table) => table.listen.map(|listen| listen(device, place, to)),
                Table::V8(table) => table.listen.map(|listen| listen(device, place, to)),
                Table::V9(table) => table.listen.map(|listen| listen(device, place, to)),
                Table::V10(table) => table.listen.map(|listen| listen(device, place, to)),
                Table::V11(t) => t.listen.map(|listen| listen(self.context, device, place, to)),
                Table::V12(t) => t.listen.map(|listen| listen(self.context, device, place, to)),
            }
        };
        self.check("listen", code)?;
        Ok((handle, comm))
    }

    /// A step towards a connection; `None` while it is not there. Each step takes the same handle at the
    /// same place.
    pub(crate) fn connect(
        &self,
        device: c_int,
        handle: &mut Handle,
    ) -> Result<Option<Opaque>, NetError> {
        let (mut comm, mut on_gpu) = (null_mut(), null_mut());
        let mut config = CommConfig { traffic_class: -1 };
        let handle = handle.as_mut_ptr().cast::<c_void>();
        let (to, gpu, context) = (&mut comm, &mut on_gpu, self.context);
        // SAFETY: the places live through the call.
        let code = unsafe {
            match self.table {
                Table::V6(t) => t.connect.map(|connect| connect(device, handle, to)),
                Table::V7(t) => t.connect.map(|connect| connect(device, handle, to, gpu)),
                Table::V8(t) => t.connect.map(|connect| connect(device, handle, to, gpu)),
                Table::V9(t) => t.connect.map(|connect| connect(device, handle, to, gpu)),
                Table::V10(t) => {
                    t.connect.map(|connect| connect(device, &mut config, handle, to, gpu))
                }
                Table::V11(t) => t.connect.map(|connect| connect(context, device, handle, to, gpu)),
                Table::V12(t) => t.connect.map(|connect| connect(context, device, handle, to, gpu)),
            }
        };
        self.check("connect", code)?;
        Ok(Some(comm).filter(|comm| !comm.is_null()))
    }

    /// A step towards a connection of a listener; `None` while it is not there.
    pub(crate) fn accept(&self, listener: Opaque) -> Result<Option<Opaque>, NetError> {
        let (mut comm, mut on_gpu) = (null_mut(), null_mut());
        let (to, gpu) = (&mut comm, &mut on_gpu);
        // SAFETY: the listener is open, and the places live through the call.
        let code = unsafe {
            match self.table {
                Table::V6(table) => table.accept.map(|accept| accept(listener, to)),
                Table::V7(table) => table.accept.map(|accept| accept(listener, to, gpu)),
                Table::V8(table) => table.accept.map(|accept| accept(listener, to, gpu)),
                Table::V9(table) => table.accept.map(|accept| accept(listener, to, gpu)),
                Table::V10(table) => table.accept.map(|accept| accept(listener, to, gpu)),
                Table::V11(table) => table.accept.map(|accept| accept(listener, to, gpu)),
                Table::V12(table) => table.accept.map(|accept| accept(listener, to, gpu)),
            }
        };
        self.check("accept", code)?;
        Ok(Some(comm).filter(|comm| !comm.is_null()))
    }

    /// # Safety
    /// The connection is open, and the memory stays until it was deregistered.
    pub(crate) unsafe fn register(
        &self,
        comm: Opaque,
        data: *mut c_void,
        bytes: usize,
    ) -> Result<Opaque, NetError> {
        let (mut region, narrow) = (null_mut(), c_int::try_from(bytes).unwrap_or(c_int::MAX));
        let to = &mut region;
        // SAFETY: as the caller promises; the place lives through the call.
        let code = unsafe {
            match self.table {
                Table::V6(t) => t.reg_mr.map(|reg_mr| reg_mr(comm, data, narrow, PTR_HOST, to)),
                Table::V7(t) => t.reg_mr.map(|reg_mr| reg_mr(comm, data, narrow, PTR_HOST, to)),
                Table::V8(t) => t.reg_mr.map(|reg_mr| reg_mr(comm, data, bytes, PTR_HOST, to)),
                Table::V9(t) => t.reg_mr.map(|reg_mr| reg_mr(comm, data, bytes, PTR_HOST, to)),
                Table::V10(t) => t.reg_mr.map(|reg_mr| reg_mr(comm, data, bytes, PTR_HOST, to)),
                Table::V11(t) => t.reg_mr.map(|reg_mr| reg_mr(comm, data, bytes, PTR_HOST, to)),
                Table::V12(t) => t.reg_mr.map(|reg_mr| reg_mr(comm, data, bytes, PTR_HOST, to)),
            }
        };
        self.check("regMr", code)?;
        Ok(region)
    }

    /// # Safety
    /// The connection is open, and the region is one of it that no request uses.
    pub(crate) unsafe fn deregister(&self, comm: Opaque, region: Opaque) -> Result<(), NetError> {
        // SAFETY: as the caller promises.
        unsafe { same!(self, dereg_mr, "deregMr", comm, region) }
    }

    /// Posts a message; `None` if the plugin has no room for it yet.
    ///
    /// # Safety
    /// The connection is open, the memory is of the region, and stays as it is until the request is
    /// done or the connection is closed.
    pub(crate) unsafe fn send(
        &self,
        comm: Opaque,
        data: *mut c_void,
        bytes: usize,
        region: Opaque,
    ) -> Result<Option<Opaque>, NetError> {
        let (mut request, narrow, tag) = (null_mut(), bytes as c_int, 0);
        let (to, none) = (&mut request, null_mut());
        // SAFETY: as the caller promises. Messages are short, so that their length fits.
        let code = unsafe {
            match self.table {
                Table::V6(t) => t.isend.map(|isend| isend(comm, data, narrow, tag, region, to)),
                Table::V7(t) => t.isend.map(|isend| isend(comm, data, narrow, tag, region, to)),
                Table::V8(t) => t.isend.map(|isend| isend(comm, data, narrow, tag, region, to)),
                Table::V9(t) => t.isend.map(|isend| isend(comm, data, bytes, tag, region, to)),
                Table::V10(t) => {
                    t.isend.map(|isend| isend(comm, data, bytes, tag, region, none, to))
                }
                Table::V11(t) => {
                    t.isend.map(|isend| isend(comm, data, bytes, tag, region, none, to))
                }
                Table::V12(t) => {
                    t.isend.map(|isend| isend(comm, data, bytes, tag, region, none, to))
                }
            }
        };
        self.check("isend", code)?;
        Ok(Some(request).filter(|request| !request.is_null()))
    }

    /// Posts memory for a message; `None` if the plugin has no room for it yet.
    ///
    /// # Safety
    /// The connection is open, the memory is of the region, and nobody else uses it until the request is
    /// done or the connection is closed.
    pub(crate) unsafe fn receive(
        &self,
        comm: Opaque,
        data: *mut c_void,
        bytes: usize,
        region: Opaque,
    ) -> Result<Option<Opaque>, NetError> {
        let (mut data, mut bytes, mut narrow, mut tag) = (data, bytes, bytes as c_int, 0);
        let (mut region, mut none, mut request) = (region, null_mut(), null_mut());
        let (at, size, small, tag) = (&mut data, &mut bytes, &mut narrow, &mut tag);
        let (region, none, to) = (&mut region, &mut none, &mut request);
        // SAFETY: as the caller promises; the lists of one live through the call.
        let code = unsafe {
            match self.table {
                Table::V6(t) => t.irecv.map(|irecv| irecv(comm, 1, at, small, tag, region, to)),
                Table::V7(t) => t.irecv.map(|irecv| irecv(comm, 1, at, small, tag, region, to)),
                Table::V8(t) => t.irecv.map(|irecv| irecv(comm, 1, at, small, tag, region, to)),
                Table::V9(t) => t.irecv.map(|irecv| irecv(comm, 1, at, size, tag, region, to)),
                Table::V10(t) => {
                    t.irecv.map(|irecv| irecv(comm, 1, at, size, tag, region, none, to))
                }
                Table::V11(t) => {
                    t.irecv.map(|irecv| irecv(comm, 1, at, size, tag, region, none, to))
                }
                Table::V12(t) => {
                    t.irecv.map(|irecv| irecv(comm, 1, at, size, tag, region, none, to))
                }
            }
        };
        self.check("irecv", code)?;
        Ok(Some(request).filter(|request| !request.is_null()))
    }

    /// The length of the message if the request is done.
    ///
    /// # Safety
    /// The request is one of an open connection that was not done yet.
    pub(crate) unsafe fn test(&self, request: Opaque) -> Result<Option<c_int>, NetError> {
        let (mut done, mut bytes): (c_int, c_int) = (0, 0);
        // SAFETY: as the caller promises; the places live through the call.
        unsafe { same!(self, test, "test", request, &mut done, &mut bytes) }?;
        Ok((done != 0).then_some(bytes))
    }

    /// # Safety
    /// It is open, and never used again.
    pub(crate) unsafe fn close_send(&self, comm: Opaque) -> Result<(), NetError> {
        // SAFETY: as the caller promises.
        unsafe { same!(self, close_send, "closeSend", comm) }
    }

    /// # Safety
    /// It is open, and never used again.
    pub(crate) unsafe fn close_receive(&self, comm: Opaque) -> Result<(), NetError> {
        // SAFETY: as the caller promises.
        unsafe { same!(self, close_recv, "closeRecv", comm) }
    }

    /// # Safety
    /// It is open, and never used again.
    pub(crate) unsafe fn close_listener(&self, comm: Opaque) -> Result<(), NetError> {
        // SAFETY: as the caller promises.
        unsafe { same!(self, close_listen, "closeListen", comm) }
    }

    /// `code` is `None` where the table lacks the function.
    fn check(&self, function: &'static str, code: Option<c_int>) -> Result<(), NetError> {
        match code {
            None => Err(NetError::Missing { function, version: self.version() }),
            Some(0) => Ok(()),
            Some(code) => Err(NetError::Failed { function, code }),
        }
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        // SAFETY: the context that init gave; whoever drops this has closed all connections.
        let _ = unsafe {
            match self.table {
                Table::V11(table) => table.finalize.map(|finalize| finalize(self.context)),
                Table::V12(table) => table.finalize.map(|finalize| finalize(self.context)),
                _ => None,
            }
        };
    }
}
