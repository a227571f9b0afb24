//! A flow as its proxy owns it: a connection with the halves that it carries.

use std::sync::Arc;

use crate::device::connection::Connection;
use crate::device::shared_memory::stream::SharedStream;
use crate::engine::pass::Pass;
use crate::engine::peer::{Down, PeerShared};
use crate::receiver::flow::RxFlow;
use crate::sender::flow::TxFlow;

/// A connection, with at least one half. Both carry data where one thread drives both directions
/// anyway, so that small messages and their answers need one TCP connection, whose acknowledgements
/// then travel with data.
pub(super) struct Flow {
    pub(super) peer: Arc<PeerShared>,
    pub(super) connection: Connection,
    /// Sends data to the peer.
    pub(super) tx: Option<Box<TxFlow>>,
    /// Receives data of the peer.
    pub(super) rx: Option<Box<RxFlow>>,
}

/// What became of acknowledgements that were to leave.
pub(super) enum Flushed {
    /// They are with the socket, or leave once it has room.
    All,
    /// Some wait for a device, or for another thread in a system call.
    Withheld,
    /// The stream stands in the middle of a frame: they leave when that is out, or with it.
    Later,
}

impl Flow {
    pub(super) fn is_of(&self, peer: &Arc<PeerShared>) -> bool {
        Arc::ptr_eq(&self.peer, peer)
    }

    /// The memory that its bytes go through, if they do.
    pub(super) fn stream(&self) -> Option<&SharedStream> {
        self.connection.wire.stream()
    }

    /// Whether it leaves bytes alone that are there.
    pub(super) fn is_held_back(&self) -> bool {
        self.rx.as_ref().is_some_and(|rx| rx.is_held_back())
    }

    /// Whether acknowledgements wait to be sent.
    pub(super) fn owes_acks(&self) -> bool {
        self.rx.as_ref().is_some_and(|rx| rx.owes_acks())
    }

    /// Whether the peer has been told of all that came.
    pub(super) fn is_settled(&self) -> bool {
        let Some(rx) = &self.rx else { return true };
        rx.is_settled() && !self.tx.as_ref().is_some_and(|tx| tx.is_unfinished())
    }

    /// Whether the peer has not acknowledged all that it was sent, or is about to be.
    pub(super) fn is_in_flight(&self) -> bool {
        self.tx.as_ref().is_some_and(|tx| tx.is_in_flight())
    }

    /// Reads what has come: data, and acknowledgements of what was sent. Says whether there was any.
    pub(super) fn read(&mut self, pass: &mut Pass<'_>) -> Result<bool, Down> {
        let Self { connection, tx, rx, .. } = self;
        match (tx, rx) {
            (Some(tx), None) => tx.read(connection, pass),
            (tx, Some(rx)) => {
                let read = rx.read(connection, pass);
                // Also those in front of the end of the connection.
                let taken = tx.as_mut().map_or(Ok(()), |tx| tx.take_acks(rx.take_acks(), pass));
                read.and_then(|any| taken.map(|()| any))
            }
            (None, None) => Ok(false),
        }
    }

    /// Concludes the chunks that devices have copied into place. Says whether there were any.
    pub(super) fn collect(&mut self, pass: &mut Pass<'_>) -> Result<bool, Down> {
        let Self { connection, tx, rx, .. } = self;
        let Some(rx) = rx else { return Ok(false) };
        let any = rx.collect(connection, pass)?;
        if let Some(tx) = tx {
            // They may have waited behind a chunk for which there was no room.
            tx.take_acks(rx.take_acks(), pass)?;
        }
        Ok(any)
    }

    /// Sends the acknowledgements that may leave, behind data if there is a half that sends it.
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

    /// Frees rings that nothing is in: peers without any wait for the memory.
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
