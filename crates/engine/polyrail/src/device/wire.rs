//! Transport of a flow's bytes: a socket, or memory that both ends have open with a socket for wake-ups.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use polyrail_sys::{In, IoVecs, Out, receive, send, tcp};
use socket2::Socket;

use crate::device::shared_memory::stream::{Moved, SharedStream};

/// Reads of wake-ups in one look at the socket: they are few, unless a peer sends them needlessly.
const LOOKS_MAX: usize = 16;

/// A connection, as a flow uses it. Never blocks.
#[derive(Clone)]
pub(crate) struct Wire {
    socket: Arc<Socket>,
    stream: Option<Arc<SharedStream>>,
}

impl Wire {
    pub(crate) fn new(socket: Arc<Socket>, stream: Option<Arc<SharedStream>>) -> Self {
        Self { socket, stream }
    }

    pub(crate) fn socket(&self) -> &Arc<Socket> {
        &self.socket
    }

    pub(crate) fn stream(&self) -> Option<&SharedStream> {
        self.stream.as_deref()
    }

    /// See [`send`].
    pub(crate) fn send(&self, from: &mut IoVecs<'_, Out>) -> io::Result<usize> {
        match &self.stream {
            None => send(self.socket.as_fd(), from),
            Some(stream) => stream.send(from).map(|moved| self.moved(moved)),
        }
    }

    /// See [`receive`].
    pub(crate) fn receive(&self, into: &mut IoVecs<'_, In>) -> io::Result<usize> {
        let Some(stream) = &self.stream else { return receive(self.socket.as_fd(), into) };
        match stream.receive(into) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && stream.must_look() => {
                self.look(stream, into)
            }
            received => received.map(|moved| self.moved(moved)),
        }
    }

    /// Returns how many bytes the other end, or its kernel, has taken.
    pub(crate) fn taken_bytes(&self) -> u64 {
        match &self.stream {
            None => tcp::info(&*self.socket).map_or(0, |info| info.acked_bytes),
            Some(stream) => stream.read_by_other(),
        }
    }

    /// Returns the likely cause of a standstill, if the kernel knows one.
    pub(crate) fn hindrance(&self) -> Option<String> {
        match self.stream {
            None => tcp::info(&*self.socket).ok()?.hindrance(),
            Some(_) => None,
        }
    }

    /// Whether unread bytes of the other end have arrived.
    pub(crate) fn has_unread(&self) -> bool {
        match &self.stream {
            None => matches!(tcp::has_unread(&*self.socket), Ok(true)),
            Some(stream) => stream.has_come(),
        }
    }

    /// Abandons the shared memory: unacknowledged bytes in it are sent again elsewhere, and must not arrive later.
    pub(crate) fn abandon_stream(&self) {
        if let Some(stream) = &self.stream {
            stream.abandon();
        }
    }

    /// Reads wake-ups from the socket, and its end or error.
    fn look(&self, stream: &SharedStream, into: &mut IoVecs<'_, In>) -> io::Result<usize> {
        for _ in 0..LOOKS_MAX {
            let mut wake_ups = [0; 64];
            let mut place = IoVecs::<In>::new();
            place.push_buffer(&mut wake_ups);
            let end = match receive(self.socket.as_fd(), &mut place) {
                Ok(0) => Ok(0),
                Ok(_) => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(error),
                Err(error) => Err(error),
            };
            // All that the other end wrote before it closed is in the ring by now.
            return match stream.receive(into) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => end,
                received => {
                    stream.note_event();
                    received.map(|moved| self.moved(moved))
                }
            };
        }
        stream.note_event();
        Err(io::ErrorKind::WouldBlock.into())
    }

    fn moved(&self, moved: Moved) -> usize {
        if moved.wakes {
            let mut wake_up = IoVecs::<Out>::new();
            wake_up.push_bytes(&[0]);
            // The socket is full only if the other end has thousands of unread wake-ups. If the connection is gone, the
            // next read returns the error.
            let _ = send(self.socket.as_fd(), &mut wake_up);
        }
        moved.bytes
    }
}
