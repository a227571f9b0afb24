//! One system call: the rest of a payload into its place, to the ring or to scratch, and what fits of the
//! frames behind it. `parsing` makes sense of what came.

use std::io;

use polyrail_proto::FlowIndex;
use polyrail_proto::wire::{Place, RefusalCode};
use polyrail_sys::{In, IoVecs};
use rustix::io::Errno;
use smallvec::SmallVec;

use super::RxFlow;
use super::current::{continue_crc, pin_all};
use super::landing::Landing;
use crate::device::connection::Connection;
use crate::engine::pass::Pass;
use crate::engine::peer::{Down, PeerShared};
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
            give_up_place(&self.peer, self.flow, &mut self.current.landing);
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
        let mut is_gone = is_in_place && is_no_memory(&received);
        if wants_crc && let Ok(bytes) = received {
            let continued = match &self.current.landing {
                Landing::Staged(to) => {
                    let bytes = (bytes as u64).min(left.into());
                    to.memory.crc32c(self.current.crc, to.at + filled, bytes)
                }
                _ => continue_crc(&self.current, &wanted, bytes),
            };
            match continued {
                Ok(crc) => self.current.crc = crc,
                // The file was cut off since.
                Err(_) if is_in_place => is_gone = true,
                Err(error) => return Err(Down(error.to_string())),
            }
        }
        drop(pins);
        if is_gone {
            give_up_place(&self.peer, self.flow, &mut self.current.landing);
        }
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
            // Nothing came: the kernel could not put it there. Now it goes elsewhere.
            Err(_) if is_gone => Ok(0),
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

/// The memory that a chunk is for can't take its bytes: its region has ended, it was unmapped, or its file was cut off.
/// The rest of the chunk is thrown away, and its transfer is refused. Others go on.
fn give_up_place(peer: &PeerShared, flow: FlowIndex, landing: &mut Landing) {
    let mut rx = peer.rx();
    rx.receiver.end_landing(flow);
    rx.receiver.bar(flow, RefusalCode::RegionDropped);
    *landing = Landing::Scratch;
}

/// Whether the kernel could not write where the bytes belong.
fn is_no_memory(received: &io::Result<usize>) -> bool {
    let fault = Some(Errno::FAULT.raw_os_error());
    received.as_ref().is_err_and(|error| error.raw_os_error() == fault)
}
