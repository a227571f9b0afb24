//! Turns ends of transfers into ends of operations, by the purpose of each transfer.

use super::{Operation, Outbound, Purpose};
use crate::id::{Time, TransferId};
use crate::message::{Message, PostedReceive};
use crate::peer::Awaited;
use crate::sender::{Failure, TxEvent};
use crate::wire::{Place, RefusalCode};

/// Result of an operation, or an action for the driver, which it carries out while it holds no lock.
#[derive(Debug)]
pub enum End<O: Operation> {
    /// The operation, or a part of a read, is complete at the peer.
    Done {
        /// The operation.
        op: O,
        /// Payload bytes.
        bytes: u64,
    },
    /// The operation failed, and its memory is neither written nor read any longer.
    Failed {
        /// The operation.
        op: O,
        /// Reason of the failure.
        failure: Failure,
    },
    /// A send is longer than the receive that it met.
    TooLong {
        /// The send.
        op: O,
        /// Length of the send in bytes.
        len: u64,
        /// Capacity of the receive in bytes.
        capacity: u64,
    },
    /// The peer does not learn of a read or receive. It fails if [`Inbound::forget`](super::super::Inbound::forget)
    /// returns it.
    Unannounced {
        /// The operation.
        op: O,
        /// Number of the read or receive.
        awaited: Awaited,
        /// Reason of the failure.
        failure: Failure,
    },
    /// The driver is to copy a send into this receive: [`Outbound::begin_copy`] comes next.
    Copy {
        /// The send.
        op: O,
        /// The receive that it met.
        receive: PostedReceive,
    },
    /// The driver should find out how to copy to these places, for the sake of later sends.
    AskForPlaces {
        /// The send, which takes the rails.
        op: O,
        /// The places of its receive.
        places: Vec<Place>,
    },
    /// The peer has taken a message of the driver, or is gone.
    Own(O::Own),
}

impl<O: Operation> Outbound<O> {
    /// Returns the next result of an operation. Call it until it returns `None` after each call of this side, or of its
    /// [`Self::sender`], that takes `&mut self` and keeps the lock to change something.
    pub fn poll_end(&mut self, now: Time) -> Option<End<O>> {
        if let Some(end) = self.ends.pop_front() {
            return Some(end);
        }
        while let Some(event) = self.sender.poll_event() {
            let end = match event {
                TxEvent::Done { token } => self.take(token).and_then(done),
                TxEvent::Failed { token, transfer, failure, started } => {
                    // A transfer that was cancelled before its peer was lost fails with that reason once its flow is
                    // gone, if a frame had begun there.
                    let may_tell = started && failure != Failure::PeerLost && !self.is_lost;
                    let purpose = self.take(token);
                    purpose.and_then(|it| self.failed(now, it, transfer, failure, may_tell))
                }
            };
            if end.is_some() {
                return end;
            }
        }
        None
    }

    fn take(&mut self, token: u64) -> Option<Purpose<O>> {
        let purpose = self.transfers.try_remove(token as usize)?;
        match purpose {
            Purpose::ReadData { read, parts } => {
                self.quotas.read_ends(parts);
                self.serving.remove(&read);
            }
            Purpose::Answer => self.quotas.answer_taken(),
            _ => {}
        }
        Some(purpose)
    }

    /// Handles a failed transfer. `may_tell`: the peer may hold a part of the transfer, and this end can ask it to retire
    /// that part.
    fn failed(
        &mut self,
        now: Time,
        purpose: Purpose<O>,
        transfer: TransferId,
        failure: Failure,
        may_tell: bool,
    ) -> Option<End<O>> {
        let cancel = Message::Cancel { transfer };
        let is_lost = failure == Failure::PeerLost;
        match purpose {
            // A notification must not arrive after the operation is over.
            Purpose::Write(op) | Purpose::Notify(op) => {
                if may_tell {
                    self.tell_as(now, &cancel, Purpose::Cancel(op, failure));
                    return None;
                }
                Some(End::Failed { op, failure })
            }
            Purpose::Send(op, receive) => {
                let end = if may_tell {
                    self.tell_as(now, &cancel, Purpose::Cancel(op, failure));
                    None
                } else {
                    Some(End::Failed { op, failure })
                };
                if !is_lost {
                    self.tell(now, &Message::SendFailed { receive });
                }
                end
            }
            Purpose::ReadData { read, .. } => {
                if may_tell {
                    self.answer(now, &cancel);
                }
                if let Some(code) = read_failure(failure) {
                    self.answer(now, &Message::ReadFailed { read, code });
                }
                None
            }
            Purpose::Tell | Purpose::Answer => {
                self.untold += u64::from(!is_lost);
                None
            }
            Purpose::Announce(op, awaited) => {
                // The next receives must not wait for it there.
                if let Awaited::Receive(receive) = awaited
                    && !is_lost
                {
                    self.tell(now, &Message::ReceiveWithdrawn { receive });
                }
                Some(End::Unannounced { op, awaited, failure })
            }
            // The peer is gone, so nothing lands any longer either.
            Purpose::Cancel(op, why) => {
                self.untold += u64::from(!is_lost);
                Some(End::Failed { op, failure: why })
            }
            Purpose::Own(own) => Some(End::Own(own)),
        }
    }
}

fn done<O: Operation>(purpose: Purpose<O>) -> Option<End<O>> {
    match purpose {
        Purpose::Write(op) | Purpose::Notify(op) | Purpose::Send(op, _) => {
            let bytes = op.plan().bytes();
            Some(End::Done { op, bytes })
        }
        Purpose::Cancel(op, failure) => Some(End::Failed { op, failure }),
        Purpose::Own(own) => Some(End::Own(own)),
        Purpose::ReadData { .. } | Purpose::Tell | Purpose::Answer | Purpose::Announce(..) => None,
    }
}

/// Returns the failure to report to the reader; `None` if the reader cancelled the read itself, or is gone.
fn read_failure(failure: Failure) -> Option<RefusalCode> {
    match failure {
        Failure::Refused(RefusalCode::NotExpected) | Failure::Cancelled | Failure::PeerLost => None,
        Failure::Refused(code) => Some(code),
        Failure::RegionDropped => Some(RefusalCode::RegionDropped),
        Failure::Device => Some(RefusalCode::Device),
        Failure::Deadline => Some(RefusalCode::Busy),
    }
}
