//! How operations finish: from what the halves of a peer say to the operations, when no lock is held.

use polyrail_proto::error::TransferError;
use polyrail_proto::peer::{AwaitedFailure, End};
use polyrail_proto::{Failure, Time};

use crate::engine::op::{Op, OpHandle, OpRef};
use crate::engine::pass::Ends;
use crate::engine::peer::TxSide;

/// What happens to an operation once no lock is held.
pub(crate) enum Finish {
    /// What the sending half says.
    End(End<OpRef>),
    /// A read or receive, or a part of it, is in place.
    Done(OpHandle, u64),
    Failed(OpHandle, Failure),
    /// The peer ended a read or receive.
    Awaited(OpHandle, AwaitedFailure),
    /// The peer of a send is asked whether it opens memory of this process.
    AskToShare(OpHandle),
}

impl Finish {
    pub(crate) fn run(self) {
        match self {
            Self::End(end) => run(end),
            Self::Done(op, bytes) => op.part_done(bytes),
            Self::Failed(op, failure) => op.fail_for(failure),
            Self::Awaited(op, failure) => op.fail(error_of(&op, failure)),
            Self::AskToShare(op) => {
                let peer = &op.prepared.peer;
                if let Some(engine) = peer.ending.engine() {
                    engine.message_paths.ask_to_share(&engine, peer);
                }
            }
        }
    }
}

fn run(end: End<OpRef>) {
    match end {
        End::Done { op: OpRef(op), bytes } => op.part_done(bytes),
        End::Failed { op: OpRef(op), failure } => op.fail_for(failure),
        End::TooLong { op: OpRef(op), len, capacity } => {
            op.fail(TransferError::TooLong { len, capacity });
        }
        End::Unannounced { op: OpRef(op), awaited, failure } => {
            let failed = op.prepared.peer.rx().forget(awaited);
            if let Some(OpRef(op)) = failed {
                op.fail_for(failure);
            }
        }
        End::Copy { op: OpRef(op), receive } => match op.prepared.peer.ending.engine() {
            Some(engine) => engine.copy_message(&op, receive),
            None => op.fail_for(Failure::PeerLost),
        },
        End::AskForPlaces { op: OpRef(op), places } => {
            if let Some(engine) = op.prepared.peer.ending.engine() {
                engine.ask_for_places(&op, &places);
            }
        }
        End::Own(release) => release.latch.set(),
    }
}

fn error_of(op: &Op, failure: AwaitedFailure) -> TransferError {
    match failure {
        AwaitedFailure::Refused(code) => {
            TransferError::Refused { peer: op.prepared.peer_name(), code }
        }
        AwaitedFailure::TooLong { len, capacity } => TransferError::TooLong { len, capacity },
        // Whoever ends a region hears the same, whether or not its sender was told first.
        AwaitedFailure::SendFailed if op.prepared.has_ended_regions() => {
            TransferError::RegionDropped
        }
        AwaitedFailure::SendFailed => TransferError::SendFailed { peer: op.prepared.peer_name() },
    }
}

/// Takes what became of operations, to act on it when no lock is held.
pub(crate) fn drain_tx(tx: &mut TxSide, ends: &mut Ends<'_>) {
    let now = Time(ends.now);
    ends.finishes.extend(std::iter::from_fn(|| tx.poll_end(now)).map(Finish::End));
}
