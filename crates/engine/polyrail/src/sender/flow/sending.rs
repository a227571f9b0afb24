//! Writes of queued frames: one system call over the batch and the payload that stays in its regions, then the
//! accounting of the bytes sent. `frame` queues the frames.

use std::io;

use polyrail_proto::{Source, TransferId};
use polyrail_sys::threads::monotonic_ns;
use polyrail_sys::{IoVecs, MAX_IO_PIECES, Out};
use rustix::io::Errno;
use smallvec::SmallVec;

use super::TxFlow;
use super::frame::{Body, staged_at};
use crate::device::wire::Wire;
use crate::engine::outgoing::Outgoing;
use crate::engine::pass::Pass;
use crate::memory::gate::Pin;

/// Sent bytes of the batch that are kept until all is sent.
const BATCH_KEPT_BYTES: usize = 64 << 10;

pub(super) enum SendError {
    Full,
    RegionDropped(TransferId),
    /// Memory of this transfer can't be read. The text gives the reason.
    Missing(Outgoing, TransferId, String),
    System(io::Error),
}

impl TxFlow {
    /// Makes one system call over all that is queued.
    pub(super) fn send_once(&mut self, wire: &Wire) -> Result<usize, SendError> {
        let mut from = IoVecs::<Out>::new();
        let mut pins: SmallVec<[Pin<'_>; 8]> = SmallVec::new();
        let mut pinned = None;
        // End of the part of the batch that is in the list.
        let mut listed = self.batch_sent;
        let mut end = self.batch_sent;
        let mut whole = true;
        'frames: for frame in &self.frames {
            end += frame.batched;
            if frame.outside == 0 {
                continue;
            }
            if listed < end {
                if from.is_full() {
                    whole = false;
                    break;
                }
                from.push_bytes(&self.batch[listed..end]);
                listed = end;
            }
            let mut skip = u64::from(frame.payload - frame.outside);
            if let Some((ring, at)) = staged_at(frame.body, &self.staging.ring, &self.shared) {
                if from.is_full() {
                    whole = false;
                    break;
                }
                from.push_memory(ring.memory(), at + skip, frame.outside.into())
                    .map_err(|error| SendError::System(io::Error::other(error)))?;
                continue;
            }
            for piece in frame.source.plan().pieces(frame.chunk) {
                if skip >= piece.len {
                    skip -= piece.len;
                    continue;
                }
                if from.is_full() {
                    whole = false;
                    break 'frames;
                }
                let region = frame.source.region(piece.local_region);
                if pinned != Some(std::ptr::from_ref(region)) {
                    let dropped = SendError::RegionDropped(frame.transfer);
                    pins.push(region.gate.pin().ok_or(dropped)?);
                    pinned = Some(std::ptr::from_ref(region));
                }
                // Payload in a device's memory is sent from the ring.
                let Some(memory) = region.memory.host() else { continue };
                from.push_memory(memory, piece.local_offset + skip, piece.len - skip)
                    .map_err(|error| SendError::System(io::Error::other(error)))?;
                skip = 0;
            }
        }
        if whole && listed < self.batch.len() && !from.is_full() {
            from.push_bytes(&self.batch[listed..]);
        }
        let sent = wire.send(&mut from);
        drop(pins);
        match sent {
            Ok(bytes) => {
                self.sent(bytes);
                Ok(bytes)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(SendError::Full),
            // A second try would fail the same way, on every flow.
            Err(error) if error.raw_os_error() == Some(Errno::FAULT.raw_os_error()) => {
                Err(self.missing().unwrap_or(SendError::System(error)))
            }
            Err(error) => Err(SendError::System(error)),
        }
    }

    /// Returns an error for the first frame whose memory the kernel can't read.
    fn missing(&self) -> Option<SendError> {
        self.frames.iter().filter(|frame| frame.outside > 0).find_map(|frame| {
            let at = frame.source.plan().pieces(frame.chunk).find_map(|piece| {
                let region = frame.source.region(piece.local_region);
                let (_pin, memory) = (region.gate.pin()?, region.memory.host()?);
                memory.missing_in(piece.local_offset, piece.len).ok()?
            })?;
            let why =
                format!("memory at {at:#x} can't be read: it was unmapped, or its file cut off");
            Some(SendError::Missing(frame.source.clone(), frame.transfer, why))
        })
    }

    fn sent(&mut self, bytes: usize) {
        let mut rest = bytes;
        let (mut chunks, mut payload_bytes, mut shared_bytes) = (0u32, 0, 0);
        let mut carried_bytes = 0;
        while let Some(frame) = self.frames.front_mut() {
            let batched = rest.min(frame.batched);
            frame.batched -= batched;
            self.batch_sent += batched;
            rest -= batched;
            let outside = rest.min(frame.outside as usize);
            frame.outside -= outside as u32;
            rest -= outside;
            if frame.batched > 0 || frame.outside > 0 {
                break;
            }
            chunks += 1;
            match (frame.body, &mut self.staging.ring) {
                (Body::Shared(_), _) => shared_bytes += u64::from(frame.payload),
                (Body::Ring(_), Some(ring)) => {
                    ring.release();
                    payload_bytes += u64::from(frame.payload);
                }
                (Body::Carried, _) => {
                    carried_bytes += u64::from(frame.payload);
                    payload_bytes += u64::from(frame.payload);
                }
                _ => payload_bytes += u64::from(frame.payload),
            }
            self.frames.pop_front();
            if let Some(chunk) = self.traced.iter_mut().find(|chunk| chunk.written_ns == 0) {
                chunk.written_ns = monotonic_ns();
            }
        }
        self.batch_sent += rest;
        if self.batch_sent == self.batch.len() {
            self.batch.clear();
            self.batch_sent = 0;
        } else if self.batch_sent > BATCH_KEPT_BYTES.max(self.batch.len() / 2) {
            // Frames come as fast as they go, so the batch never becomes empty.
            self.batch.drain(..self.batch_sent);
            self.batch_sent = 0;
        }
        let stats = &self.peer.links.flows[self.flow.0 as usize].stats;
        stats.tx_bytes.add(payload_bytes);
        stats.tx_chunks.add(chunks.into());
        if carried_bytes > 0 {
            stats.carried_bytes.add(carried_bytes);
        }
        if shared_bytes > 0 {
            self.peer.account.tally.shared_bytes.add(shared_bytes);
        }
        self.unreported += chunks;
    }

    pub(super) fn note_socket_full(&mut self, pass: &Pass<'_>) {
        if self.socket_full_since.is_none() {
            self.socket_full_since = Some(pass.now);
            self.peer.links.flows[self.flow.0 as usize].stats.socket_full.add(1);
        }
    }

    pub(super) fn note_writable(&mut self, pass: &Pass<'_>) {
        if let Some(since) = self.socket_full_since.take() {
            let stats = &self.peer.links.flows[self.flow.0 as usize].stats;
            stats.socket_full_ns.add(pass.now.saturating_sub(since));
        }
    }
}

// A chunk's pieces, its head, and the next frame's head always fit into one call.
const _: () = assert!(MAX_IO_PIECES >= polyrail_proto::MAX_CHUNK_PIECES + 2);
