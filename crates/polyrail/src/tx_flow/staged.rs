//! Chunks in a device's memory: copied to the flow's ring while others are on the wire.

use polyrail_proto::{Chunk, Failure, Source};

use super::{Body, Down, TxFlow};
use crate::finish::drain_tx;
use crate::op::Outgoing;
use crate::proxy::Pass;
use crate::staging::{CopyError, Direction, Ring, Tickets, all_done};

/// A chunk that is pulled and has no frame yet.
pub(super) struct Staged {
    pub(super) chunk: Chunk<Outgoing>,
    pub(super) body: Body,
    pub(super) tickets: Tickets,
}

impl TxFlow {
    /// Has a chunk copied to the ring, where there is room for it.
    pub(super) fn stage(
        &mut self,
        chunk: Chunk<Outgoing>,
        pass: &mut Pass<'_>,
    ) -> Result<(), Down> {
        let len = u64::from(chunk.header.payload_len);
        match self.copy_to_ring(&chunk, len, pass) {
            Ok((at, tickets)) => {
                self.staged.push_back(Staged { chunk, body: Body::Ring(at), tickets });
                Ok(())
            }
            Err(error) => Err(self.fail(&chunk, error, pass)),
        }
    }

    fn copy_to_ring(
        &mut self,
        chunk: &Chunk<Outgoing>,
        len: u64,
        pass: &mut Pass<'_>,
    ) -> Result<(u64, Tickets), CopyError> {
        let (source, number) = (&chunk.source, chunk.header.chunk);
        let parts = || {
            let pieces = source.plan().pieces(number);
            pieces.map(|piece| (source.region(piece.local_region), piece.local_offset, piece.len))
        };
        let ring = match &mut self.ring {
            Some(ring) => ring,
            none => {
                let settings = &pass.engine.settings;
                let least = settings.gpu_chunk_bytes.max(len);
                let device = parts().find_map(|(region, ..)| region.memory.device());
                let device = device.ok_or(CopyError::RegionDropped)?;
                let wanted = settings.staging_bytes;
                none.insert(Ring::new(&**device, wanted, least, &pass.engine.staging)?)
            }
        };
        // `pull` looked for room before.
        let no_room = || CopyError::Device("no room in the staging ring".into());
        let at = ring.take(len).ok_or_else(no_room)?;
        let tickets = pass.copiers.copy(Direction::Out, parts(), ring.memory(), at)?;
        Ok((at, tickets))
    }

    /// Makes frames of the chunks that are copied.
    pub(super) fn send_staged(&mut self, pass: &mut Pass<'_>) -> Result<(), Down> {
        while let Some(first) = self.staged.front() {
            match all_done(&first.tickets) {
                Ok(false) => break,
                Ok(true) => {
                    let Some(Staged { chunk, body, .. }) = self.staged.pop_front() else { break };
                    self.queue(chunk, body, pass)?;
                }
                Err(error) => {
                    let Some(Staged { chunk, .. }) = self.staged.pop_front() else { break };
                    pass.copiers.renew();
                    return Err(self.fail(&chunk, error.into(), pass));
                }
            }
        }
        Ok(())
    }

    /// A chunk was promised to the peer and can't be read any more: its transfer ends, and the flow
    /// with it.
    fn fail(&self, chunk: &Chunk<Outgoing>, error: CopyError, pass: &mut Pass<'_>) -> Down {
        let (failure, why) = match error {
            CopyError::RegionDropped => (Failure::RegionDropped, "a region was dropped".into()),
            CopyError::Device(why) => (Failure::Device, why),
        };
        chunk.source.note_device_error(why.clone());
        let mut tx = self.peer.tx();
        tx.sender.end(chunk.header.transfer, failure);
        drain_tx(&mut tx, pass);
        Down(why)
    }
}

pub(super) fn is_on_device(chunk: &Chunk<Outgoing>) -> bool {
    let mut pieces = chunk.source.plan().pieces(chunk.header.chunk);
    pieces.any(|piece| chunk.source.region(piece.local_region).memory.device().is_some())
}

pub(super) fn copy_staged(ring: &Ring, from: u64, len: u32, out: &mut Vec<u8>) -> bool {
    let at = out.len();
    out.resize(at + len as usize, 0);
    let copied = ring.memory().read_at(from, &mut out[at..]).is_ok();
    if !copied {
        out.truncate(at);
    }
    copied
}
