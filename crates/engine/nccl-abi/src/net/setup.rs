//! How a connection comes to be.

use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::Arc;

use super::Handle;
use super::comm::{Comm, Receives, RecvComm, SendComm, Sends};
use super::error::NetError;
use super::raw::Raw;
use crate::{DeviceHandle, HANDLE_BYTES, Opaque};

/// Waits for one connection. Dropping it closes it; connections of it stay.
pub struct Listener {
    raw: Arc<Raw>,
    comm: Opaque,
    handle: Handle,
    /// Where the plugin describes what finishes receives on a GPU, if the device has that.
    on_gpu: Option<Box<DeviceHandle>>,
}

// SAFETY: plugins take calls of a listener from any thread, one at a time, and all take `&mut self`.
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

    /// What others connect by.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// A step towards the connection; `None` while it is not there.
    ///
    /// # Errors
    /// If the plugin refuses.
    pub fn accept(&mut self) -> Result<Option<RecvComm>, NetError> {
        let on_gpu = self.on_gpu.as_deref_mut().map_or(null_mut(), |place| &raw mut *place);
        // SAFETY: the listener is open. The place is in a box, which goes to the connection.
        let comm = unsafe { self.raw.accept(self.comm, on_gpu) }?;
        if comm.is_null() {
            return Ok(None);
        }
        // Another connection of this listener gets a place of its own.
        let another = self.on_gpu.as_ref().map(|_| Box::new(DeviceHandle::unpack()));
        let on_gpu = std::mem::replace(&mut self.on_gpu, another);
        Ok(Some(Comm::new(&self.raw, comm, Receives { on_gpu })))
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // SAFETY: open until here, and never used again.
        let done = unsafe { self.raw.close_listen(self.comm) };
        // Nothing can be done about a plugin that refuses this.
        drop(done);
    }
}

/// Connects to a listener.
pub struct Connector {
    raw: Arc<Raw>,
    device: c_int,
    /// Plugins keep their state in it, so it stays where it is.
    handle: Option<Box<Handle>>,
    is_begun: bool,
}

impl Connector {
    pub(super) fn new(raw: &Arc<Raw>, device: c_int, handle: Handle) -> Self {
        Self { raw: raw.clone(), device, handle: Some(Box::new(handle)), is_begun: false }
    }

    /// A step towards the connection; `None` while it is not there.
    ///
    /// # Errors
    /// If the plugin refuses, or the connection was given already.
    pub fn poll(&mut self) -> Result<Option<SendComm>, NetError> {
        let Some(handle) = &mut self.handle else {
            return Err(NetError::Misuse("the connector has given its connection".to_owned()));
        };
        self.is_begun = true;
        // SAFETY: the handle is in a box, which is dropped once the connection is there, and else leaked.
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
        // The interface has no way to give up: a thread of the plugin may use the handle still.
        if let (true, Some(handle)) = (self.is_begun, self.handle.take()) {
            Box::leak(handle);
        }
    }
}
