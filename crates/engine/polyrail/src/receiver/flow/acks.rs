//! Outgoing acknowledgements: sealed, and sent as far as the socket takes them.

use std::io;

use polyrail_proto::AckQueue;
use polyrail_proto::wire::ACK_BYTES;
use polyrail_secure::{MAX_SEALED_BYTES, Sealer};
use polyrail_sys::{IoVecs, Out};

use crate::device::wire::Wire;

/// Sends acknowledgements on a connection that carries nothing else this way.
#[derive(Default)]
pub(super) struct AckSender {
    /// Sealed bytes that are not yet sent.
    sealed: Vec<u8>,
}

impl AckSender {
    /// Returns the bytes that the socket has not taken.
    pub(super) fn unsent(&self) -> usize {
        self.sealed.len()
    }

    /// Sends the acknowledgements that may leave, as far as the socket takes them.
    pub(super) fn send(
        &mut self,
        acks: &mut AckQueue,
        sealer: &mut Sealer,
        wire: &Wire,
    ) -> io::Result<()> {
        loop {
            if self.sealed.is_empty() {
                acks.drain(|frames| seal(frames, sealer, &mut self.sealed));
            }
            if self.sealed.is_empty() {
                return Ok(());
            }
            let mut from = IoVecs::<Out>::new();
            from.push_bytes(&self.sealed);
            match wire.send(&mut from) {
                Ok(bytes) => drop(self.sealed.drain(..bytes)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }
}

/// Seals frames in few records, none of them too long.
pub(super) fn seal(frames: &[u8], sealer: &mut Sealer, out: &mut Vec<u8>) {
    const MOST: usize = MAX_SEALED_BYTES / ACK_BYTES * ACK_BYTES;
    for part in frames.chunks(MOST) {
        let begin = sealer.begin(out);
        out.extend_from_slice(part);
        sealer.seal(out, begin, 0);
    }
}
