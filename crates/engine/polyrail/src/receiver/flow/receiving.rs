//! One system call: the rest of a payload into its place, to the ring or to scratch, and what fits of the
//! frames behind it. `parsing` makes sense of what came.

use std::io;

use polyrail_proto::wire::{Place, RefusalCode};
use polyrail_sys::{In, IoVecs};
use smallvec::SmallVec;

use super::RxFlow;
use super::current::{continue_crc, pin_all};
use super::landing::Landing;
use crate::device::connection::Connection;
use crate::engine::pass::Pass;
use crate::engine::peer::Down;
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
        if left > 0 {
            self.open_place();
        }
        let mut pins: SmallVec<[Pin<'_>; 8]> = SmallVec::new();
        if matches!(self.current.landing, Landing::InPlace { is_open: true })
            && !pin_all(&self.current.targets, &mut pins)
        {
            let mut rx = self.peer.rx();
            rx.receiver.end_landing(self.flow);
            rx.receiver.bar(self.flow, RefusalCode::RegionDropped);
            self.current.landing = Landing::Scratch;
        }
        let mut into = IoVecs::<In>::new();
        let mut with_spare = true;
        let filled = u64::from(self.current.payload_len().saturating_sub(left));
        let mut discarded = 0;
        match &self.current.landing {
            _ if left == 0 => {}
            Landing::Staged(to) => {
                let pushed = into.push_memory(&to.memory, to.at + filled, left.into());
                pushed.map_err(|error| Down(error.to_string()))?;
            }
            Landing::InPlace { .. } => {
                let mut finder = Finder::default();
                for place in connection.reader.wanted() {
                    let target = finder.find(&self.current.targets, &place);
                    // Chunks with a place in a device's memory are staged.
                    let Some(memory) = target.region.memory.host() else { continue };
                    let pushed = into.push_memory(memory, target.offset(&place), place.len);
                    pushed.map_err(|error| Down(error.to_string()))?;
                }
            }
            Landing::Scratch | Landing::Shared(_) | Landing::Carried(_) | Landing::Waits(_) => {
                discarded = left;
                let take = u64::from(left).min(pass.scratch.len());
                with_spare = take == u64::from(left);
                let pushed = into.push_memory(pass.scratch, 0, take);
                pushed.map_err(|error| Down(error.to_string()))?;
            }
        }
        let wants_crc = left > discarded && self.current.is_checked();
        let is_in_place = matches!(self.current.landing, Landing::InPlace { .. });
        let wanted: SmallVec<[Place; 4]> = if wants_crc && is_in_place {
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
            self.current.crc = match &self.current.landing {
                Landing::Staged(to) => {
                    let bytes = (bytes as u64).min(left.into());
                    let continued = to.memory.crc32c(self.current.crc, to.at + filled, bytes);
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
                if discarded > 0 {
                    self.stats().discarded_bytes.add((bytes as u64).min(discarded.into()));
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
    /// Has the next bytes of a chunk go into place, if they may.
    fn open_place(&mut self) {
        if let Landing::InPlace { is_open: is_open @ false } = &mut self.current.landing {
            *is_open = self.peer.rx().receiver.begin_landing(self.flow);
            if !*is_open {
                self.current.landing = Landing::Scratch;
            }
        }
    }
}
