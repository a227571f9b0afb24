//! Finishing operations: what the sides of a peer report reaches the operations when no lock is held.

use std::sync::Arc;

use polyrail_proto::error::TransferError;
use polyrail_proto::peer::{AwaitedFailure, End};
use polyrail_proto::{Failure, Time};
use polyrail_sys::threads::monotonic_ns;

use crate::engine::peer::{OpHandle, OpRef, TxSide};
use crate::engine::state::EngineShared;

/// An end of an operation, handled in the peer's engine once no lock is held.
pub(crate) enum Finish {
    /// An end that the sending side reports.
    End(End<OpRef>),
    /// A read or receive has landed, or a part of it.
    Done(OpHandle, u64),
    Failed(OpHandle, Failure),
    /// The peer ended a read or receive.
    Awaited(OpHandle, AwaitedFailure),
    /// The peer of a send is asked whether it opens memory of this process.
    AskToShare(OpHandle),
}

/// Ends of operations that were found under a lock, kept until none is held.
pub(crate) struct Ends<'a> {
    /// Engine of the operations.
    pub(crate) engine: &'a Arc<EngineShared>,
    /// Time at which the collection began.
    pub(crate) now: u64,
    /// Ends to handle when no lock is held.
    pub(crate) finishes: Vec<Finish>,
}

impl EngineShared {
    /// An empty collection of ends that starts now.
    pub(crate) fn ends(self: &Arc<Self>) -> Ends<'_> {
        Ends { engine: self, now: monotonic_ns(), finishes: Vec::new() }
    }
}

impl Ends<'_> {
    /// Reports the ends to the operations. The caller must hold no lock. Returns whether there were any.
    pub(crate) fn tell(&mut self) -> bool {
        let any = !self.finishes.is_empty();
        let engine = self.engine;
        self.finishes.drain(..).for_each(|finish| finish.run(engine));
        any
    }
}

impl Finish {
    fn run(self, engine: &Arc<EngineShared>) {
        match self {
            Self::End(end) => run(end, engine),
            Self::Done(op, bytes) => op.part_done(bytes),
            Self::Failed(op, failure) => op.fail_for(failure),
            Self::Awaited(op, failure) => {
                let prepared = &op.prepared;
                op.fail(failure.error(prepared.peer_name(), prepared.has_ended_regions()));
            }
            Self::AskToShare(op) => engine.message_paths.ask_to_share(engine, &op.prepared.peer),
        }
    }
}

fn run(end: End<OpRef>, engine: &Arc<EngineShared>) {
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
        End::Copy { op: OpRef(op), receive } => engine.copy_message(&op, receive),
        End::AskForPlaces { op: OpRef(op), places } => engine.ask_for_places(&op, &places),
        End::Own(release) => release.latch.set(),
    }
}

/// Takes the ends of operations, to handle them when no lock is held.
pub(crate) fn drain_tx(tx: &mut TxSide, ends: &mut Ends<'_>) {
    let now = Time(ends.now);
    ends.finishes.extend(std::iter::from_fn(|| tx.poll_end(now)).map(Finish::End));
}
