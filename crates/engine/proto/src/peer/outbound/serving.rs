//! Reads of the peer, from the request to the end of their data.

use thiserror::Error;

use super::{Operation, Outbound, Purpose};
use crate::id::Time;
use crate::message::Message;
use crate::peer::quotas::parts_of;
use crate::quota::QuotaExceeded;
use crate::sender::{Failure, Source};
use crate::wire::{Flags, RefusalCode, WireOp};

/// A protocol violation that only a dishonest peer commits: close the flow that brought the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ReadBreach {
    /// The number belongs to a read that is not over.
    #[error("read {read} is asked for while it is being served")]
    IsServed {
        /// Peer's number of the read.
        read: u64,
    },
    /// The peer sends questions without taking answers.
    #[error(transparent)]
    Answers(QuotaExceeded),
}

impl<O: Operation> Outbound<O> {
    /// Sends the data that the peer has requested, or the reason why it can't be.
    pub fn serve_read(
        &mut self,
        now: Time,
        read: u64,
        data: Result<O::Source, RefusalCode>,
    ) -> Result<(), ReadBreach> {
        if self.serving.contains_key(&read) {
            return Err(ReadBreach::IsServed { read });
        }
        match data {
            Ok(source) => {
                let parts = parts_of(source.plan());
                self.quotas.read_begins(parts);
                let what = (WireOp::ReadData, Flags::NONE, read);
                let purpose = Purpose::ReadData { read, parts };
                let transfer = self.submit(now, what, source, purpose, None);
                self.serving.insert(read, transfer);
            }
            Err(code) => {
                self.quotas.check_one_more_answer().map_err(ReadBreach::Answers)?;
                self.answer(now, &Message::ReadFailed { read, code });
            }
        }
        Ok(())
    }

    /// Records that the data of a local read arrived, so the peer serves one read less. Returns whether chunks that it
    /// had no room for may be sent now.
    pub fn handle_read_served(&mut self) -> bool {
        self.sender.peer_may_have_room()
    }

    /// Records the bytes of the peer that have landed in all. A peer that serves its maximum of reads, and brings their
    /// data, makes progress on the reads that wait for that.
    pub fn note_landed(&mut self, now: Time, bytes: u64) {
        if self.sender.held_back() == Some(RefusalCode::ReadQuota)
            && std::mem::replace(&mut self.landed, bytes) != bytes
        {
            self.sender.handle_peer_at_work(now);
        }
    }

    /// Ends a read that the reader has already dropped: data that still arrives there is refused. This only saves the
    /// wire.
    pub(super) fn end_read(&mut self, read: u64) {
        if let Some(transfer) = self.serving.get(&read) {
            self.sender.end(*transfer, Failure::Cancelled);
        }
    }
}
