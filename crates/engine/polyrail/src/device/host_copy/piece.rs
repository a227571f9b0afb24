//! Copies of pieces by CPUs.

use std::io;
use std::sync::Arc;

use polyrail_gpu::Device;
use polyrail_proto::copying::{Cursor, Piece, pieces};
use polyrail_sys::{Direction, ForeignCopy, ForeignMemory, Memory};

use crate::device::peer_copy::CopyPart;
use crate::memory::region_memory::RegionMemory;

/// Returns the device that holds this process's end of all parts, if a device does.
pub(super) fn device_of(parts: &[CopyPart]) -> Option<&Arc<dyn Device>> {
    let part = parts.first()?;
    part.from.memory.device().or_else(|| part.to.memory.device())
}

/// Copies `bytes` bytes of the parts. On an error some of them are copied.
pub(super) fn copy(parts: &[CopyPart], from: Cursor, bytes: u64) -> io::Result<()> {
    let mut batch = Batch::default();
    for Piece { part, offset, len } in pieces(parts, from, bytes) {
        let (from_offset, to_offset) = (part.from_offset + offset, part.to_offset + offset);
        match (&*part.from.memory, &*part.to.memory) {
            (RegionMemory::Host(from), RegionMemory::Host(to)) => {
                from.copy_to(from_offset, (to, to_offset), len).map_err(io::Error::other)?;
            }
            (RegionMemory::Host(here), RegionMemory::Foreign(there)) => {
                let places = ((here, from_offset), (there, to_offset));
                batch.push(Direction::ToOther, places, len)?;
            }
            (RegionMemory::Foreign(there), RegionMemory::Host(here)) => {
                let places = ((here, to_offset), (there, from_offset));
                batch.push(Direction::FromOther, places, len)?;
            }
            _ => return Err(io::Error::other("CPUs can't reach that memory")),
        }
    }
    batch.run()
}

/// Pieces that wait for a system call.
#[derive(Default)]
pub(super) struct Batch<'a>(Option<(Direction, ForeignCopy<'a>)>);

impl<'a> Batch<'a> {
    pub(super) fn push(
        &mut self,
        direction: Direction,
        (here, there): ((&'a Memory, u64), (&'a ForeignMemory, u64)),
        len: u64,
    ) -> io::Result<()> {
        let takes = |(known, copy): &(Direction, ForeignCopy<'a>)| {
            *known == direction && copy.takes(there.0)
        };
        if !self.0.as_ref().is_some_and(takes) {
            self.run()?;
            self.0 = Some((direction, ForeignCopy::new(direction, there.0)));
        }
        let Some((_, copy)) = &mut self.0 else { return Ok(()) };
        copy.push(here, there.1, len).map_err(io::Error::other)
    }

    pub(super) fn run(&mut self) -> io::Result<()> {
        self.0.take().map_or(Ok(()), |(_, copy)| copy.run())
    }
}
