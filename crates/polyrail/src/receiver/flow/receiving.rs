//! One system call: the rest of a payload into its place, to the ring or to scratch, and what fits of the
//! frames behind it. `parsing` makes sense of what came.

use std::io;

use polyrail_proto::wire::{Place, RefusalCode};
use polyrail_sys::{In, IoVecs};
use smallvec::SmallVec;

use super::RxFlow;
use super::current::{continue_crc, pin_all};
use crate::device::connection::Connection;
use crate::engine::pass::{Down, Pass};
use crate::memory::gate::Pin;
use crate::memory::registry::Finder;

impl RxFlow {
    /// One system call: the rest of the payload into its place, then what fits of the next frames.
    pub(super) fn receive_once(
        &mut self,
        connection: &mut Connection,
        pass: &mut Pass<'_>,
    ) -> Result<usize, Down> {
        let left = connection.reader.left_raw();
        let staged = self.current.at.filter(|_| left > 0 && self.current.land);
        let landing = left > 0
            && self.current.land
            && staged.is_none()
            && (self.is_landing || self.peer.rx().receiver.begin_landing(self.flow));
        self.is_landing = landing;
        let mut pins: SmallVec<[Pin<'_>; 8]> = SmallVec::new();
        let pinned = landing && pin_all(&self.current.targets, &mut pins);
        if landing && !pinned {
            let mut rx = self.peer.rx();
            rx.receiver.end_landing(self.flow);
            rx.receiver.bar(self.flow, RefusalCode::RegionDropped);
            (self.is_landing, self.current.land) = (false, false);
        }
        let mut into = IoVecs::<In>::new();
        let mut with_spare = true;
        let mut staged_from = 0;
        if let (Some(at), Some(ring)) = (staged, &self.arrivals.ring) {
            let payload = self.current.header.map_or(left, |header| header.payload_len);
            staged_from = at + u64::from(payload - left);
            let pushed = into.push_memory(ring.memory(), staged_from, left.into());
            pushed.map_err(|error| Down(error.to_string()))?;
        } else if pinned {
            let mut finder = Finder::default();
            for place in connection.reader.wanted() {
                let target = finder.find(&self.current.targets, &place);
                // Chunks with a place in a device's memory are staged.
                let Some(memory) = target.region.memory.host() else { continue };
                let pushed = into.push_memory(memory, target.offset(&place), place.len);
                pushed.map_err(|error| Down(error.to_string()))?;
            }
        } else if left > 0 {
            let take = u64::from(left).min(pass.scratch.len());
            with_spare = take == u64::from(left);
            let pushed = into.push_memory(pass.scratch, 0, take);
            pushed.map_err(|error| Down(error.to_string()))?;
        }
        let wants_crc =
            (pinned || staged.is_some()) && pass.engine.settings.verifies(&self.current.header);
        let wanted: SmallVec<[Place; 4]> = if wants_crc && pinned {
            connection.reader.wanted().collect()
        } else {
            SmallVec::new()
        };
        if with_spare {
            into.push_buffer(connection.reader.spare());
        }
        let room = into.bytes();
        let received = connection.wire.receive(&mut into);
        if wants_crc && let Ok(bytes) = received {
            self.current.crc = match &self.arrivals.ring {
                Some(ring) if staged.is_some() => {
                    let bytes = (bytes as u64).min(left.into());
                    let continued = ring.memory().crc32c(self.current.crc, staged_from, bytes);
                    continued.map_err(|error| Down(error.to_string()))?
                }
                _ => continue_crc(&self.current, &wanted, bytes)?,
            };
        }
        drop(pins);
        match received {
            Ok(0) => Err(Down("closed by the peer".into())),
            Ok(bytes) => {
                connection.reader.advance(bytes);
                connection.readable = bytes == room || connection.ended;
                if left > 0 && !pinned && staged.is_none() {
                    self.stats().discarded_bytes.add((bytes as u64).min(left.into()));
                }
                Ok(bytes)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                connection.readable = false;
                Ok(0)
            }
            Err(error) => Err(error.into()),
        }
    }
}
