//! Acknowledgements and other answers of the peer: read here, and handed to the sender core.

use std::io;

use polyrail_config::shortened;
use polyrail_proto::progress::Visit;
use polyrail_proto::wire::{AckFrame, MAX_WORDS_BYTES};
use polyrail_proto::{FrameReader, ReaderEvent, Time};
use polyrail_sys::threads::monotonic_ns;
use polyrail_sys::{In, IoVecs};
use smallvec::SmallVec;

use super::TxFlow;
use crate::device::connection::Connection;
use crate::engine::finish::drain_tx;
use crate::engine::pass::Pass;
use crate::engine::peer::Down;
use crate::wake::ALL;

/// Bytes of acknowledgements that one visit reads before other flows get their turn.
const VISIT_BYTES: usize = 256 << 10;

impl TxFlow {
    /// Reads acknowledgements on a connection that brings nothing else. Returns whether any came.
    pub(crate) fn read(
        &mut self,
        connection: &mut Connection,
        pass: &mut Pass<'_>,
    ) -> Result<bool, Down> {
        let mut has_read = false;
        let mut visit = Visit::new(VISIT_BYTES, monotonic_ns());
        while connection.readable {
            let mut into = IoVecs::<In>::new();
            into.push_buffer(connection.reader.spare());
            let room = into.bytes();
            let bytes = match connection.wire.receive(&mut into) {
                Ok(0) => return Err(Down("closed by the peer".into())),
                Ok(bytes) => bytes,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
                Err(error) => return Err(error.into()),
            };
            connection.readable = bytes == room || (bytes > 0 && connection.ended);
            if bytes > 0 {
                has_read = true;
                connection.reader.advance(bytes);
                let acks = read_acks(&mut connection.reader)?;
                self.take_acks(acks, pass)?;
                if visit.is_over_after(bytes, monotonic_ns()) {
                    break;
                }
            }
        }
        Ok(has_read)
    }

    /// Handles acknowledgements that the peer sent.
    pub(crate) fn take_acks(
        &mut self,
        acks: impl IntoIterator<Item = AckFrame, IntoIter: ExactSizeIterator>,
        pass: &mut Pass<'_>,
    ) -> Result<(), Down> {
        let acks = acks.into_iter();
        if acks.len() == 0 {
            return Ok(());
        }
        let peer = self.peer.clone();
        let mut says_bye = false;
        let was_answered = self.is_answered();
        let mut tx = peer.tx();
        for ack in acks {
            says_bye |= ack == AckFrame::Bye;
            if let AckFrame::Words(words) = ack {
                self.words.extend_from_slice(words.as_bytes());
                if self.words.len() > MAX_WORDS_BYTES {
                    return Err(Down(format!("a reason of more than {MAX_WORDS_BYTES} bytes")));
                }
            }
            let before = tx.sender.in_flight(self.flow);
            tx.sender
                .handle_ack(Time(pass.now), self.flow, ack)
                .map_err(|error| Down(error.to_string()))?;
            self.heard(ack, pass.now);
            if self.staging.is_resting(Time(pass.now)) {
                tx.sender.rest(self.flow);
            }
            let acknowledged = before - tx.sender.in_flight(self.flow);
            if acknowledged > 0 {
                tx.patience.handle_acknowledged();
            }
            if let Some(trace) = &pass.engine.trace {
                for chunk in self.traced.drain(..acknowledged.min(self.traced.len())) {
                    trace.chunk_sent(&peer, self.flow, chunk, pass.now);
                }
            }
        }
        drain_tx(&mut tx, pass);
        if tx.sender.has_work() {
            self.has_room_again();
            if self.staging.is_resting(Time(pass.now)) {
                peer.wake.announce(ALL);
            }
            peer.announce_wanted(&mut tx, pass.now);
        }
        drop(tx);
        if self.is_answered() && !was_answered {
            peer.layout.pairs.forget_problem(peer.layout.pair_index(self.flow));
        }
        if says_bye {
            pass.engine.hear_bye(&peer, self.reason());
        }
        Ok(())
    }
}

/// Limit of the characters kept of a peer's reason.
const SHOWN_OF_REASON: usize = 400;

impl TxFlow {
    /// Returns the peer's reason for giving this engine up, if it sent one. The text is the peer's own.
    fn reason(&mut self) -> Option<String> {
        let words = std::mem::take(&mut self.words);
        let says = shortened(&String::from_utf8_lossy(&words), SHOWN_OF_REASON);
        (!words.is_empty()).then_some(says)
    }
}

/// Parses the acknowledgements that have arrived whole.
fn read_acks(reader: &mut FrameReader) -> Result<SmallVec<[AckFrame; 8]>, Down> {
    let mut acks = SmallVec::new();
    loop {
        match reader.next().map_err(|error| Down(error.to_string()))? {
            ReaderEvent::Ack(ack) => acks.push(ack),
            ReaderEvent::Need(_) => return Ok(acks),
            _ => return Err(Down("data where only acknowledgements may come".into())),
        }
    }
}
