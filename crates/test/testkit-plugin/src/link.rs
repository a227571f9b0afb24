//! A connection's socket, and its device.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use polyrail_sys::{In, IoVecs, Out, receive, send};
use socket2::Socket;

use crate::error::CallError;
use crate::helper::Helper;
use crate::plugin::Plugin;

pub(crate) struct Link {
    pub(crate) plugin: Arc<Plugin>,
    pub(crate) device: usize,
    socket: Socket,
    _helper: Option<Helper>,
    broken: Option<CallError>,
}

impl Link {
    pub(crate) fn new(plugin: Arc<Plugin>, device: usize, socket: Socket) -> Self {
        let helper = plugin.settings.thread_cpu.map(Helper::start);
        Self { plugin, device, socket, _helper: helper, broken: None }
    }

    /// Returns the error that ended the connection, if there is one.
    pub(crate) fn check(&mut self) -> Result<(), CallError> {
        match &self.broken {
            Some(error) => Err(error.clone()),
            None => self.left().map(drop),
        }
    }

    /// Bytes that the device still moves. Fails if the device has failed.
    pub(crate) fn left(&mut self) -> Result<u64, CallError> {
        let Some((device, bytes)) = self.plugin.settings.fail_after else { return Ok(u64::MAX) };
        if device != self.device {
            return Ok(u64::MAX);
        }
        match bytes.checked_sub(self.plugin.devices[device].moved.load(Ordering::Relaxed)) {
            Some(left) if left > 0 => Ok(left),
            _ => Err(self.fail(CallError::DeviceFailed { device, bytes })),
        }
    }

    /// True if the device moves nothing more, without an error.
    fn is_silent(&self) -> bool {
        self.plugin.settings.silent_after.is_some_and(|(device, bytes)| {
            device == self.device
                && self.plugin.devices[device].moved.load(Ordering::Relaxed) >= bytes
        })
    }

    /// Sends as much as the kernel takes now, and returns the number of bytes.
    pub(crate) fn send(&mut self, from: &mut IoVecs<'_, Out>) -> Result<usize, CallError> {
        if self.is_silent() {
            return Ok(0);
        }
        let sent = send(self.socket.as_fd(), from);
        self.count(sent)
    }

    /// Receives the available bytes, and returns their number.
    pub(crate) fn receive(&mut self, into: &mut IoVecs<'_, In>) -> Result<usize, CallError> {
        if self.is_silent() {
            return Ok(0);
        }
        match receive(self.socket.as_fd(), into) {
            Ok(0) => Err(self.fail(CallError::Gone { why: "it closed the connection".into() })),
            received => self.count(received),
        }
    }

    /// Ends the connection, for both sides.
    pub(crate) fn fail(&mut self, error: CallError) -> CallError {
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
        self.broken.get_or_insert(error).clone()
    }

    fn count(&mut self, moved: io::Result<usize>) -> Result<usize, CallError> {
        match moved {
            Ok(bytes) => {
                self.plugin.devices[self.device].moved.fetch_add(bytes as u64, Ordering::Relaxed);
                Ok(bytes)
            }
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                ) =>
            {
                Ok(0)
            }
            Err(error) => Err(self.fail(CallError::Gone { why: error.to_string() })),
        }
    }
}
