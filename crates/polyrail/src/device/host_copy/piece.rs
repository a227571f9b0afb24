//! Pieces of the parts of a copy, and how CPUs copy them.

use std::fmt::Display;
use std::io;
use std::sync::Arc;

use polyrail_gpu::Device;
use polyrail_proto::Failure;
use polyrail_sys::{Direction, ForeignCopy, ForeignMemory, Memory};

use crate::device::peer_copy::CopyPart;
use crate::memory::region_memory::RegionMemory;

/// What is copied between two looks whether it is still wanted: some 30 us. So 1 MiB is work for four threads.
pub(super) const PIECE_BYTES: u64 = 256 << 10;
/// Parts of a piece.
pub(super) const PIECE_PARTS: usize = 256;

/// How far the copies of parts are.
#[derive(Clone, Copy, Default)]
pub(super) struct Cursor {
    pub(super) part: usize,
    offset: u64,
}

/// What is copied of a part: so many bytes from an offset on.
#[derive(Clone, Copy)]
pub(super) struct Piece<'a> {
    pub(super) part: &'a CopyPart,
    pub(super) offset: u64,
    pub(super) len: u64,
}

/// Why a job was not copied to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// It is not wanted any more.
    For(Failure),
    /// A region has ended. At which end, the rails find out.
    RegionEnded,
    /// It can't be copied so: the rails may still take it.
    Impossible(String),
    /// This device failed, here: the rails may still take it.
    Device(String),
}

impl Stop {
    pub(super) fn device(error: impl Display) -> Self {
        Self::Device(error.to_string())
    }
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        if is_stale(&error) { Self::RegionEnded } else { Self::Impossible(error.to_string()) }
    }
}

/// Whether the peer has ended the region, or given this process up, which did not hear of it yet.
fn is_stale(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::StaleNetworkFileHandle
}

/// Where the piece ends that begins there, and its bytes.
pub(super) fn after(parts: &[CopyPart], from: Cursor) -> (Cursor, u64) {
    let (mut at, mut bytes) = (from, 0);
    while at.part < parts.len() && at.part - from.part < PIECE_PARTS && bytes < PIECE_BYTES {
        let left = parts[at.part].len - at.offset;
        let take = left.min(PIECE_BYTES - bytes);
        bytes += take;
        at = match take == left {
            true => Cursor { part: at.part + 1, offset: 0 },
            false => Cursor { part: at.part, offset: at.offset + take },
        };
    }
    (at, bytes)
}

/// The device whose memory is at this process's end of all parts, if it is a device's.
pub(super) fn device_of(parts: &[CopyPart]) -> Option<&Arc<dyn Device>> {
    let part = parts.first()?;
    part.from.memory.device().or_else(|| part.to.memory.device())
}

/// So many bytes of the parts.
pub(super) fn pieces(
    parts: &[CopyPart],
    from: Cursor,
    bytes: u64,
) -> impl Iterator<Item = Piece<'_>> {
    let (mut offset, mut left) = (from.offset, bytes);
    parts[from.part..].iter().map_while(move |part| {
        let len = left.min(part.len - offset);
        let piece = (left > 0).then_some(Piece { part, offset, len });
        (offset, left) = (0, left - len);
        piece
    })
}

/// Copies so many bytes of the parts. On an error some of them are copied.
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
