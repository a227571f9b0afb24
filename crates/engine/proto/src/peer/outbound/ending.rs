//! From ends of transfers to ends of operations: what each transfer was for says what follows.

use super::{Operation, Outbound, Purpose};
use crate::id::{Time, TransferId};
use crate::message::{Message, PostedReceive};
use crate::peer::Awaited;
use crate::sender::{Failure, TxEvent};
use crate::wire::{Place, RefusalCode};

/// What became of an operation, or what the driver is to do. It acts on these when no lock is held.
#[derive(Debug)]
pub enum End<O: Operation> {
    /// The operation, or a part of a read, is complete at the peer.
    Done {
        /// The operation.
        op: O,
        /// Payload bytes.
        bytes: u64,
    },
    /// It failed, and nothing of it lands or is read any more.
    Failed {
        /// The operation.
        op: O,
        /// Why.
        failure: Failure,
    },
    /// A send is longer than the receive that it met.
    TooLong {
        /// The send.
        op: O,
        /// Its bytes.
        len: u64,
        /// Bytes that the receive has room for.
        capacity: u64,
    },
    /// The peer does not hear of a read or receive. It fails if
    /// [`Inbound::forget`](super::super::Inbound::forget) returns it.
    Unannounced {
        /// The operation.
        op: O,
        /// Its number.
        awaited: Awaited,
        /// Why.
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
    /// A message of the driver was taken, or the peer is gone.
    Own(O::Own),
}

impl<O: Operation> Outbound<O> {
    /// The next thing that became of an operation. To be called until it returns `None` after each call of this half, or
    /// of its [`Self::sender`], that takes `&mut self` and the lock for more than a look.
    pub fn poll_end(&mut self, now: Time) -> Option<End<O>> {
        if let Some(end) = self.ends.pop_front() {
            return Some(end);
        }
        while let Some(event) = self.sender.poll_event() {
            let end = match event {
                TxEvent::Done { token } => self.take(token).and_then(done),
                TxEvent::Failed { token, transfer, failure, started } => {
                    // A transfer that was cancelled before its peer was lost fails for that reason, once
                    // the flow is gone on which one of its frames had begun.
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

    /// `may_tell`: the peer may hold a part of the transfer, and can be told to retire it.
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
            // A notification must not arrive when the operation is over.
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
            // The peer is gone, so nothing lands any more either.
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

/// What the reader is told; nothing if it cancelled the read itself, or can't be told.
fn read_failure(failure: Failure) -> Option<RefusalCode> {
    match failure {
        Failure::Refused(RefusalCode::NotExpected) | Failure::Cancelled | Failure::PeerLost => None,
        Failure::Refused(code) => Some(code),
        Failure::RegionDropped => Some(RefusalCode::RegionDropped),
        Failure::Device => Some(RefusalCode::Device),
        Failure::Deadline => Some(RefusalCode::Busy),
    }
}
