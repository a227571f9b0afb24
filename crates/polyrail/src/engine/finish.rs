//! How transfers finish: from the sender core's events back to operations.

use polyrail_proto::message::{Message, PostedReceive};
use polyrail_proto::wire::{Place, RefusalCode};
use polyrail_proto::{Failure, Time, TransferId, TxEvent};

use crate::base::error::TransferError;
use crate::engine::op::OpHandle;
use crate::engine::outgoing::{Outgoing, Purpose};
use crate::engine::pass::Ends;
use crate::engine::peer::TxSide;

/// What happens to an operation once no lock is held.
pub(crate) enum Finish {
    Done(OpHandle, u64),
    Failed(OpHandle, Failure),
    Error(OpHandle, TransferError),
    /// A send is to be copied into this receive.
    Copy(OpHandle, PostedReceive),
    /// What a receive has there is wanted, to copy later messages into it.
    AskForPlaces(OpHandle, Vec<Place>),
    /// The peer of a send is asked whether it opens memory of this process.
    AskToShare(OpHandle),
    /// The peer does not want to know of the receive of this number.
    Unannounced(OpHandle, u64, Failure),
}

impl Finish {
    pub(crate) fn run(self) {
        match self {
            Self::Done(op, bytes) => op.part_done(bytes),
            Self::Failed(op, failure) => op.fail_for(failure),
            Self::Error(op, error) => op.fail(error),
            Self::Copy(op, receive) => match op.prepared.peer.ending.engine() {
                Some(engine) => engine.copy_message(&op, receive),
                None => op.fail_for(Failure::PeerLost),
            },
            Self::AskForPlaces(op, places) => {
                if let Some(engine) = op.prepared.peer.ending.engine() {
                    engine.ask_for_places(&op, &places);
                }
            }
            Self::AskToShare(op) => {
                let peer = &op.prepared.peer;
                if let Some(engine) = peer.ending.engine() {
                    engine.message_paths.ask_to_share(&engine, peer);
                }
            }
            Self::Unannounced(op, receive, failure) => {
                let forgotten = op.prepared.peer.rx().receives.remove(&receive);
                drop(forgotten);
                op.fail_for(failure);
            }
        }
    }
}

impl TxSide {
    fn take_outgoing(&mut self, token: u64) -> Option<Outgoing> {
        let outgoing = self.outgoing.try_remove(token as usize)?;
        if let Outgoing::Made(made) = &outgoing {
            match made.purpose {
                Purpose::ReadData { read, .. } => {
                    self.quotas.read_ends(&made.plan);
                    self.serving.remove(&read);
                }
                Purpose::Answer => self.quotas.answer_taken(),
                _ => {}
            }
        }
        Some(outgoing)
    }
}

/// Turns what became of transfers into what becomes of operations.
pub(crate) fn drain_tx(tx: &mut TxSide, ends: &mut Ends<'_>) {
    while let Some(event) = tx.sender.poll_event() {
        match event {
            TxEvent::Done { token } => {
                let Some(outgoing) = tx.take_outgoing(token) else { continue };
                done(&outgoing, ends);
            }
            TxEvent::Failed { token, transfer, failure, started } => {
                let Some(outgoing) = tx.take_outgoing(token) else { continue };
                // A transfer that was cancelled before its peer was lost fails for that reason, once
                // the flow is gone on which one of its frames had begun.
                let reachable = failure != Failure::PeerLost && !tx.has_ended;
                failed(tx, &outgoing, transfer, failure, started && reachable, ends);
            }
        }
    }
}

fn done(outgoing: &Outgoing, ends: &mut Ends<'_>) {
    let finish = match outgoing {
        Outgoing::Write(op) => Finish::Done(op.clone(), op.prepared.plan.bytes()),
        Outgoing::Made(made) => match &made.purpose {
            Purpose::Tell
            | Purpose::Answer
            | Purpose::TellFor(_)
            | Purpose::Announce(..)
            | Purpose::ReadData { .. } => return,
            Purpose::Cancel(op, failure) => Finish::Failed(op.clone(), *failure),
            Purpose::SendData(op, _) => Finish::Done(op.clone(), op.prepared.plan.bytes()),
            Purpose::Release(latch, _) => return latch.set(),
            Purpose::Notify(op) => Finish::Done(op.clone(), op.prepared.plan.bytes()),
        },
    };
    ends.finishes.push(finish);
}

/// `tell`: the peer may hold a part of the transfer, and can be told to retire it.
fn failed(
    tx: &mut TxSide,
    outgoing: &Outgoing,
    transfer: TransferId,
    failure: Failure,
    tell: bool,
    ends: &mut Ends<'_>,
) {
    let now = Time(ends.now);
    let cancel = Message::Cancel { transfer };
    match outgoing {
        Outgoing::Write(op) if tell => {
            tx.tell(now, &cancel, Purpose::Cancel(op.clone(), failure));
        }
        Outgoing::Write(op) => ends.finishes.push(Finish::Failed(op.clone(), failure)),
        Outgoing::Made(made) => match &made.purpose {
            Purpose::Tell | Purpose::Answer => {}
            // It must not arrive when the operation is over.
            Purpose::Notify(op) if tell => {
                tx.tell(now, &cancel, Purpose::Cancel(op.clone(), failure));
            }
            // It is gone, and can't touch anything.
            Purpose::Release(latch, _) => latch.set(),
            Purpose::TellFor(op) | Purpose::Notify(op) => {
                ends.finishes.push(Finish::Failed(op.clone(), failure));
            }
            // The next ones must not wait for it there.
            Purpose::Announce(op, receive) => {
                if failure != Failure::PeerLost {
                    let message = Message::ReceiveWithdrawn { receive: *receive };
                    tx.tell(now, &message, Purpose::Tell);
                }
                ends.finishes.push(Finish::Unannounced(op.clone(), *receive, failure));
            }
            // The peer is gone, so nothing lands any more either.
            Purpose::Cancel(op, why) => ends.finishes.push(Finish::Failed(op.clone(), *why)),
            Purpose::ReadData { read, .. } => {
                if tell {
                    tx.answer(now, &cancel);
                }
                if let Some(code) = read_failure(failure) {
                    tx.answer(now, &Message::ReadFailed { read: *read, code });
                }
            }
            Purpose::SendData(op, receive) => {
                if tell {
                    tx.tell(now, &cancel, Purpose::Cancel(op.clone(), failure));
                } else {
                    ends.finishes.push(Finish::Failed(op.clone(), failure));
                }
                if failure != Failure::PeerLost {
                    tx.tell(now, &Message::SendFailed { receive: *receive }, Purpose::Tell);
                }
            }
        },
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
