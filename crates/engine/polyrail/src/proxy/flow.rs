//! A flow as its proxy owns it: a connection with the sides that it carries.

use std::sync::Arc;

use crate::device::connection::Connection;
use crate::device::shared_memory::stream::SharedStream;
use crate::engine::pass::Pass;
use crate::engine::peer::{Down, PeerShared};
use crate::receiver::flow::RxFlow;
use crate::sender::flow::TxFlow;

/// A connection, with at least one side. It has both where one thread drives both directions anyway, so that small
/// messages and their answers need one TCP connection, whose acknowledgements then travel with data.
pub(super) struct Flow {
    pub(super) peer: Arc<PeerShared>,
    pub(super) connection: Connection,
    /// The side that sends data to the peer.
    pub(super) tx: Option<Box<TxFlow>>,
    /// The side that receives data of the peer.
    pub(super) rx: Option<Box<RxFlow>>,
}

/// Result of flushing acknowledgements.
pub(super) enum Flushed {
    /// The socket has them, or they leave once it has room.
    All,
    /// Some wait for a device, or for another thread in a system call.
    Withheld,
    /// The stream is in the middle of a frame. They leave after that frame, or with it.
    Later,
}

impl Flow {
    pub(super) fn is_of(&self, peer: &Arc<PeerShared>) -> bool {
        Arc::ptr_eq(&self.peer, peer)
    }

    /// The memory that its bytes go through, if any.
    pub(super) fn stream(&self) -> Option<&SharedStream> {
        self.connection.wire.stream()
    }

    /// Whether the flow leaves bytes unread that have come.
    pub(super) fn is_held_back(&self) -> bool {
        self.rx.as_ref().is_some_and(|rx| rx.is_held_back())
    }

    pub(super) fn owes_acks(&self) -> bool {
        self.rx.as_ref().is_some_and(|rx| rx.owes_acks())
    }

    /// Whether all that came has been acknowledged to the peer.
    pub(super) fn is_settled(&self) -> bool {
        let Some(rx) = &self.rx else { return true };
        rx.is_settled() && !self.tx.as_ref().is_some_and(|tx| tx.is_unfinished())
    }

    /// Whether data is unacknowledged that was sent, or is about to be.
    pub(super) fn is_in_flight(&self) -> bool {
        self.tx.as_ref().is_some_and(|tx| tx.is_in_flight())
    }

    /// Reads what has come: data, and acknowledgements of what was sent. Returns whether there was any.
    pub(super) fn read(&mut self, pass: &mut Pass<'_>) -> Result<bool, Down> {
        let Self { connection, tx, rx, .. } = self;
        match (tx, rx) {
            (Some(tx), None) => tx.read(connection, pass),
            (tx, Some(rx)) => {
                let read = rx.read(connection, pass);
                // Also those before the end of the connection.
                let taken = tx.as_mut().map_or(Ok(()), |tx| tx.take_acks(rx.take_acks(), pass));
                read.and_then(|any| taken.map(|()| any))
            }
            (None, None) => Ok(false),
        }
    }

    /// Completes the chunks that devices have copied into place. Returns whether there were any.
    pub(super) fn collect(&mut self, pass: &mut Pass<'_>) -> Result<bool, Down> {
        let Self { connection, tx, rx, .. } = self;
        let Some(rx) = rx else { return Ok(false) };
        let any = rx.collect(connection, pass)?;
        if let Some(tx) = tx {
            // The acknowledgements may have waited behind a chunk that found no room.
            tx.take_acks(rx.take_acks(), pass)?;
        }
        Ok(any)
    }

    /// Sends the acknowledgements that may leave, behind data if there is a sending side.
    pub(super) fn flush_acks(&mut self, pass: &mut Pass<'_>) -> Result<Flushed, Down> {
        let Self { connection, tx, rx, .. } = self;
        let Some(rx) = rx else { return Ok(Flushed::All) };
        if let Some(tx) = tx {
            if !tx.take_along(rx, &mut connection.sealer) {
                return Ok(Flushed::Later);
            }
            tx.write(connection, pass, None)?;
        } else {
            rx.flush_acks(connection)?;
        }
        Ok(if rx.withholds_acks() { Flushed::Withheld } else { Flushed::All })
    }

    /// Frees empty rings: peers without any wait for the memory.
    pub(super) fn give_back(&mut self) {
        if let Some(tx) = &mut self.tx {
            tx.give_back();
        }
        if let Some(rx) = &mut self.rx {
            rx.give_back();
        }
    }

    /// See [`RxFlow::holds_memory_in_vain`].
    pub(super) fn holds_memory_in_vain(&mut self, pass: &Pass<'_>) -> bool {
        let reader = &self.connection.reader;
        self.rx.as_mut().is_some_and(|rx| rx.holds_memory_in_vain(reader, pass))
    }
}
