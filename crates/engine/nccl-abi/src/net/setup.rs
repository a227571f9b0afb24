//! Establishing connections.

use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::Arc;

use super::Handle;
use super::comm::{Comm, Receives, RecvComm, SendComm, Sends};
use super::error::NetError;
use super::raw::Raw;
use crate::{DeviceHandle, HANDLE_BYTES, Opaque};

/// Waits for connections. Dropping it closes the listener; its connections stay.
pub struct Listener {
    raw: Arc<Raw>,
    comm: Opaque,
    handle: Handle,
    /// Place for the plugin's description of how receives finish on a GPU, if the device supports that.
    on_gpu: Option<Box<DeviceHandle>>,
}

// SAFETY: plugins accept calls for a listener from any thread, one at a time, and all methods take `&mut self`.
unsafe impl Send for Listener {}

impl Listener {
    pub(super) fn open(raw: &Arc<Raw>, device: c_int) -> Result<Self, NetError> {
        let on_gpu = raw.properties(device)?.is_unpack().then(|| Box::new(DeviceHandle::unpack()));
        let mut handle = [0; HANDLE_BYTES];
        let comm = raw.listen(device, &mut handle)?;
        if comm.is_null() {
            let answer = "success, and no listener".to_owned();
            return Err(NetError::Answer { function: "listen", answer });
        }
        Ok(Self { raw: raw.clone(), comm, handle, on_gpu })
    }

    /// Handle by which others connect.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Polls for a connection. Returns `None` while there is none.
    ///
    /// # Errors
    /// If the plugin refuses.
    pub fn accept(&mut self) -> Result<Option<RecvComm>, NetError> {
        let on_gpu = self.on_gpu.as_deref_mut().map_or(null_mut(), |place| &raw mut *place);
        // SAFETY: the listener is open. The place is in a box, which moves to the connection.
        let comm = unsafe { self.raw.accept(self.comm, on_gpu) }?;
        if comm.is_null() {
            return Ok(None);
        }
        // The next connection of this listener gets a new place.
        let another = self.on_gpu.as_ref().map(|_| Box::new(DeviceHandle::unpack()));
        let on_gpu = std::mem::replace(&mut self.on_gpu, another);
        Ok(Some(Comm::new(&self.raw, comm, Receives { on_gpu })))
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // SAFETY: open until here, and never used again.
        let done = unsafe { self.raw.close_listen(self.comm) };
        // An error of the plugin can't be handled here.
        drop(done);
    }
}

/// Connects to a listener.
pub struct Connector {
    raw: Arc<Raw>,
    device: c_int,
    /// Boxed because plugins keep their state in the handle, so it must not move.
    handle: Option<Box<Handle>>,
    is_begun: bool,
}

impl Connector {
    pub(super) fn new(raw: &Arc<Raw>, device: c_int, handle: Handle) -> Self {
        Self { raw: raw.clone(), device, handle: Some(Box::new(handle)), is_begun: false }
    }

    /// Polls the connection. Returns `None` while it is not established.
    ///
    /// # Errors
    /// If the plugin refuses, or the connection was already returned.
    pub fn poll(&mut self) -> Result<Option<SendComm>, NetError> {
        let Some(handle) = &mut self.handle else {
            return Err(NetError::Misuse("the connector has given its connection".to_owned()));
        };
        self.is_begun = true;
        // SAFETY: the handle is in a box, which is dropped when the connection is established, and otherwise leaked.
        let comm = unsafe { self.raw.connect(self.device, handle.as_mut_ptr().cast()) }?;
        if comm.is_null() {
            return Ok(None);
        }
        self.handle = None;
        Ok(Some(Comm::new(&self.raw, comm, Sends)))
    }
}

impl Drop for Connector {
    fn drop(&mut self) {
        // The interface has no way to cancel: a thread of the plugin may still use the handle.
        if let (true, Some(handle)) = (self.is_begun, self.handle.take()) {
            Box::leak(handle);
        }
    }
}
