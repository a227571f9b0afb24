//! A minimal host of the plugin for tests: it calls the table of version 8 as NCCL does.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nccl_net_scatter::{ncclNetPlugin_v8 as TABLE, set_variables};
use polyrail_nccl_abi::{DeviceHandle, Opaque, PTR_HOST, PropsV8};

/// Maximum time for any event.
pub(crate) const LIMIT: Duration = Duration::from_secs(20);

/// The plugin has one set of settings per process.
static ALONE: Mutex<()> = Mutex::new(());

/// Name of the function that failed, and its code.
pub(crate) type Refused = (&'static str, c_int);

/// The plugin with the given variables, for one test at a time.
pub(crate) struct Host {
    _alone: MutexGuard<'static, ()>,
}

/// Both ends of a connection.
pub(crate) struct Pair {
    pub(crate) listener: Opaque,
    pub(crate) sender: Opaque,
    pub(crate) receiver: Opaque,
    pub(crate) handle: DeviceHandle,
}

/// Memory registered with one end.
pub(crate) struct Buffer {
    pub(crate) bytes: Box<[u8]>,
    comm: Opaque,
    region: Opaque,
}

fn check(function: &'static str, code: c_int) -> Result<(), Refused> {
    if code == 0 { Ok(()) } else { Err((function, code)) }
}

/// Repeats a call until it returns a value, for at most [`LIMIT`].
pub(crate) fn until<T>(
    what: &str,
    mut call: impl FnMut() -> Result<Option<T>, Refused>,
) -> Result<T, Refused> {
    let begin = Instant::now();
    loop {
        if let Some(value) = call()? {
            return Ok(value);
        }
        assert!(begin.elapsed() < LIMIT, "{what} takes too long");
        std::thread::yield_now();
    }
}

impl Host {
    pub(crate) fn new(variables: &[(&str, &str)]) -> Result<Self, Refused> {
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        set_variables(variables);
        // SAFETY: called as NCCL does, without a logger.
        check("init", unsafe { TABLE.init.unwrap()(None) })?;
        Ok(Self { _alone: alone })
    }

    pub(crate) fn devices(&self) -> Result<c_int, Refused> {
        let mut count = -1;
        // SAFETY: the place is valid.
        check("devices", unsafe { TABLE.devices.unwrap()(&mut count) })?;
        Ok(count)
    }

    pub(crate) fn properties(&self, device: c_int) -> Result<PropsV8, Refused> {
        let mut props = std::mem::MaybeUninit::<PropsV8>::zeroed();
        // SAFETY: the place is valid, and zeroes are valid for every field.
        unsafe {
            check("getProperties", TABLE.get_properties.unwrap()(device, props.as_mut_ptr()))?;
            Ok(props.assume_init())
        }
    }

    pub(crate) fn listen(&self, device: c_int) -> Result<(Opaque, [u8; 128]), Refused> {
        let (mut handle, mut listener) = ([0; 128], null_mut());
        let place = handle.as_mut_ptr().cast::<c_void>();
        // SAFETY: the places are valid.
        check("listen", unsafe { TABLE.listen.unwrap()(device, place, &mut listener) })?;
        Ok((listener, handle))
    }

    /// Calls `connect`.
    pub(crate) fn connect(
        &self,
        device: c_int,
        handle: &mut [u8; 128],
    ) -> Result<Option<Opaque>, Refused> {
        let (mut comm, place) = (null_mut(), handle.as_mut_ptr().cast::<c_void>());
        // SAFETY: the places are valid.
        let code = unsafe { TABLE.connect.unwrap()(device, place, &mut comm, null_mut()) };
        check("connect", code)?;
        Ok(Some(comm).filter(|comm| !comm.is_null()))
    }

    /// Calls `accept`.
    pub(crate) fn accept(
        &self,
        listener: Opaque,
        handle: &mut DeviceHandle,
    ) -> Result<Option<Opaque>, Refused> {
        let (mut comm, mut handle) = (null_mut(), std::ptr::from_mut(handle));
        // SAFETY: the places are valid.
        check("accept", unsafe { TABLE.accept.unwrap()(listener, &mut comm, &mut handle) })?;
        Ok(Some(comm).filter(|comm| !comm.is_null()))
    }

    pub(crate) fn pair(&self, device: c_int) -> Result<Pair, Refused> {
        let (listener, mut bytes) = self.listen(device)?;
        let mut handle = no_handle();
        let (mut sender, mut receiver) = (None, None);
        until("connecting", || {
            if sender.is_none() {
                sender = self.connect(device, &mut bytes)?;
            }
            if receiver.is_none() {
                receiver = self.accept(listener, &mut handle)?;
            }
            Ok(sender.zip(receiver))
        })
        .map(|(sender, receiver)| Pair { listener, sender, receiver, handle })
    }

    pub(crate) fn buffer(&self, comm: Opaque, bytes: Vec<u8>) -> Result<Buffer, Refused> {
        let mut bytes = bytes.into_boxed_slice();
        let (at, size, mut region) = (bytes.as_mut_ptr().cast::<c_void>(), bytes.len(), null_mut());
        // SAFETY: the buffer deregisters it before it frees the memory.
        let code = unsafe { TABLE.reg_mr.unwrap()(comm, at, size, PTR_HOST, &mut region) };
        check("regMr", code)?;
        Ok(Buffer { bytes, comm, region })
    }

    /// Calls `isend`.
    pub(crate) fn isend(
        &self,
        comm: Opaque,
        buffer: &Buffer,
        offset: usize,
        size: usize,
    ) -> Result<Option<Opaque>, Refused> {
        let (mut request, at) = (null_mut(), buffer.bytes[offset..].as_ptr().cast_mut().cast());
        let (size, region) = (size as c_int, buffer.region);
        // SAFETY: the tests keep the buffer until the connection is closed.
        let code = unsafe { TABLE.isend.unwrap()(comm, at, size, 0, region, &mut request) };
        check("isend", code)?;
        Ok(Some(request).filter(|request| !request.is_null()))
    }

    /// Calls `irecv`.
    pub(crate) fn irecv(
        &self,
        comm: Opaque,
        buffer: &mut Buffer,
        offset: usize,
        size: usize,
    ) -> Result<Option<Opaque>, Refused> {
        let mut at = buffer.bytes[offset..].as_mut_ptr().cast::<c_void>();
        let (mut size, mut tag, mut region) = (size as c_int, 0, buffer.region);
        let (mut request, irecv) = (null_mut(), TABLE.irecv.unwrap());
        // SAFETY: as for `isend`; the lists have one element.
        let code =
            unsafe { irecv(comm, 1, &mut at, &mut size, &mut tag, &mut region, &mut request) };
        check("irecv", code)?;
        Ok(Some(request).filter(|request| !request.is_null()))
    }

    /// Calls `test`. Returns the size if the request is done.
    pub(crate) fn test(&self, request: Opaque) -> Result<Option<usize>, Refused> {
        let (mut done, mut size) = (0, 0);
        // SAFETY: the places are valid, and requests are numbers to the plugin.
        check("test", unsafe { TABLE.test.unwrap()(request, &mut done, &mut size) })?;
        Ok((done != 0).then_some(size as usize))
    }

    pub(crate) fn consumed(&self, comm: Opaque, request: Opaque) -> Result<(), Refused> {
        // SAFETY: both are numbers to the plugin.
        check("irecvConsumed", unsafe { TABLE.irecv_consumed.unwrap()(comm, 1, request) })
    }

    /// Closes both ends, so that buffers are no longer used.
    pub(crate) fn close(&self, pair: Pair) -> Result<(), Refused> {
        // SAFETY: the ends have no other users; they are numbers to the plugin.
        unsafe {
            check("closeSend", TABLE.close_send.unwrap()(pair.sender))?;
            check("closeRecv", TABLE.close_recv.unwrap()(pair.receiver))?;
            check("closeListen", TABLE.close_listen.unwrap()(pair.listener))
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: the memory is registered. The call may fail if a test has requested that.
        let _ = unsafe { TABLE.dereg_mr.unwrap()(self.comm, self.region) };
    }
}

/// A place for a device handle.
pub(crate) fn no_handle() -> DeviceHandle {
    DeviceHandle {
        net_device_type: -1,
        net_device_version: -1,
        handle: null_mut(),
        size: 0,
        needs_proxy_progress: -1,
    }
}

pub(crate) fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut bytes = vec![0; len];
    rng.fill(&mut bytes);
    bytes
}
