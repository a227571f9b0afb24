//! How operations and messages begin: from posted operation to sender core.

use std::sync::Arc;

use polyrail_proto::matching::Match;
use polyrail_proto::message::{
    CopyLeave, MAX_MESSAGE_PIECES, Message, PostedReceive, ReadPiece, copied_message,
};
use polyrail_proto::wire::{Flags, Place, RefusalCode, WireOp};
use polyrail_proto::{Failure, NewTransfer, Plan, Segment, Time, TransferId};

use crate::base::error::TransferError;
use crate::engine::carriage::Carriage;
use crate::engine::finish::Finish;
use crate::engine::message_copying;
use crate::engine::op::OpHandle;
use crate::engine::outgoing::{Made, Outgoing, Purpose};
use crate::engine::pass::Ends;
use crate::engine::path_kind::PathKind;
use crate::engine::peer::{self, OpRef, PeerShared, TxSide};
use crate::engine::prepared::{OpKind, Segments};
use crate::engine::state::EngineShared;
use crate::memory::region::RegionCore;

impl TxSide {
    /// An operation leaves the pool.
    pub(crate) fn submit_op(&mut self, now: Time, op: OpHandle, ends: &mut Ends<'_>) {
        if !op.may_begin() {
            return;
        }
        match op.prepared.kind {
            OpKind::Write => {
                let flags = if op.notifies() { Flags::NOTIFY } else { Flags::NONE };
                let deadline = op.deadline;
                let source = Outgoing::Write(op.clone());
                let id = self.submit(now, WireOp::Write, flags, 0, source, deadline);
                op.set_transfer(id);
            }
            // Its end found no send of it here, and comes no more.
            OpKind::Send { .. } if op.prepared.has_ended_regions() => {
                ends.finishes.push(Finish::Failed(op, Failure::RegionDropped));
            }
            OpKind::Send { tag } => {
                if let Some(matched) = self.matcher.send(tag, OpRef(op)) {
                    self.quotas.note_receives(&self.matcher);
                    self.submit_matched(now, matched, ends);
                }
            }
            // These begin with the caller: what they need first is on the receiving half.
            OpKind::Read | OpKind::Receive { .. } => {}
        }
    }

    /// A send met its receive.
    pub(crate) fn submit_matched(&mut self, now: Time, matched: Match<OpRef>, ends: &mut Ends<'_>) {
        let Match { send: OpRef(op), receive } = matched;
        if op.is_over() {
            self.tell(now, &Message::SendFailed { receive: receive.receive }, Purpose::Tell);
            return;
        }
        let len = op.prepared.plan.bytes();
        let capacity: u64 = receive.places.iter().map(|place| place.len).sum();
        if len > capacity {
            let message = Message::SendTooLong { receive: receive.receive, len };
            self.tell(now, &message, Purpose::Tell);
            ends.finishes.push(Finish::Error(op, TransferError::TooLong { len, capacity }));
            return;
        }
        if message_copying::is_wanted(&op, &receive, ends.settings) {
            match receive.leave {
                CopyLeave::No | CopyLeave::Share => {}
                CopyLeave::Ask => {
                    let places = receive.places.clone();
                    ends.finishes.push(Finish::AskForPlaces(op.clone(), places));
                }
                CopyLeave::Yes => {
                    self.copying.insert(receive.receive, None);
                    return ends.finishes.push(Finish::Copy(op, receive));
                }
            }
        }
        if message_copying::is_shared(&op, &receive, ends.settings) {
            match op.prepared.peer.sharing.works() {
                true => op.set_carriage(Carriage::Shared),
                // For the sake of later ones.
                false => ends.finishes.push(Finish::AskToShare(op.clone())),
            }
        }
        self.submit_data(now, op, &receive, ends);
    }

    /// The rails carry a send to its receive.
    pub(super) fn submit_data(
        &mut self,
        now: Time,
        op: OpHandle,
        receive: &PostedReceive,
        ends: &mut Ends<'_>,
    ) {
        let segments = zip_places(op.prepared.plan.segments(), &receive.places);
        let chunk_bytes = ends.settings.chunk_bytes_of(&op.prepared.regions);
        let Ok(plan) = Plan::for_rails(segments, chunk_bytes, op.prepared.peer.layout.rails())
        else {
            // Both halves were cut before; together they have too many pieces.
            let receive = receive.receive;
            self.tell(now, &Message::SendFailed { receive }, Purpose::Tell);
            ends.finishes.push(Finish::Failed(op, Failure::Refused(RefusalCode::Busy)));
            return;
        };
        let made = Made {
            plan,
            regions: op.prepared.regions.clone(),
            meta: Vec::new(),
            near: op.prepared.near,
            purpose: Purpose::SendData(op.clone(), receive.receive),
        };
        let source = Outgoing::Made(Arc::new(made));
        let (context, deadline) = (receive.receive, op.deadline);
        let id = self.submit(now, WireOp::SendData, Flags::NONE, context, source, deadline);
        op.set_transfer(id);
    }

    /// The bytes of a send are in place: tells its receive.
    pub(super) fn submit_copied(&mut self, now: Time, op: &OpHandle, receive: u64) {
        let meta = copied_message(op.prepared.plan.bytes());
        let source = Outgoing::without_payload(meta, Purpose::SendData(op.clone(), receive));
        let id = self.submit(now, WireOp::SendData, Flags::NONE, receive, source, op.deadline);
        op.set_transfer(id);
    }

    /// Sends a message to the peer's engine.
    pub(crate) fn tell(&mut self, now: Time, message: &Message, purpose: Purpose) {
        let source = Outgoing::without_payload(message.encode(), purpose);
        self.submit(now, WireOp::Control, Flags::NONE, 0, source, None);
    }

    /// Answers a question of the peer.
    pub(crate) fn answer(&mut self, now: Time, message: &Message) {
        self.quotas.answered();
        self.tell(now, message, Purpose::Answer);
    }

    /// Sends the notification of a write whose bytes are in place.
    pub(crate) fn submit_notification(&mut self, now: Time, op: &OpHandle) {
        let meta = op.notification().unwrap_or_default().to_vec();
        let source = Outgoing::without_payload(meta, Purpose::Notify(op.clone()));
        let id = self.submit(now, WireOp::Write, Flags::NOTIFY, 0, source, op.deadline);
        op.set_transfer(id);
    }

    /// Asks the peer for a sign of life: it acknowledges a write of nothing.
    pub(crate) fn ask(&mut self, now: Time) {
        let source = Outgoing::without_payload(Vec::new(), Purpose::Tell);
        self.submit(now, WireOp::Write, Flags::NONE, 0, source, None);
    }

    /// Sends the data that the peer asked for.
    pub(crate) fn submit_read_data(&mut self, now: Time, read: u64, made: Made) {
        self.quotas.read_begins(&made.plan);
        let source = Outgoing::Made(Arc::new(made));
        let id = self.submit(now, WireOp::ReadData, Flags::NONE, read, source, None);
        self.serving.insert(read, id);
    }

    /// The reader no longer wants its data.
    pub(crate) fn end_read_data(&mut self, read: u64) {
        if let Some(id) = self.serving.get(&read) {
            self.sender.end(*id, Failure::Cancelled);
        }
    }

    fn submit(
        &mut self,
        now: Time,
        op: WireOp,
        flags: Flags,
        context: u64,
        source: Outgoing,
        deadline: Option<Time>,
    ) -> TransferId {
        let token = self.outgoing.insert(source.clone()) as u64;
        self.sender.submit(now, NewTransfer { op, flags, context, source, token, deadline })
    }
}

/// Starts a receive: from now on a message may land in it, and the peer is told so.
///
/// Receives count in the order of this call.
pub(crate) fn begin_receive(
    engine: &EngineShared,
    peer: &Arc<PeerShared>,
    op: &OpHandle,
    tag: u64,
) {
    let places = places_of(op.prepared.plan.segments(), &op.prepared.regions);
    let leave = engine.message_paths.leave(engine, peer, &op.prepared);
    let posted = {
        let mut rx = peer.rx();
        // Under the lock: whoever ends a region looks for its receives afterwards.
        if op.prepared.has_ended_regions() {
            drop(rx);
            return op.fail_for(Failure::RegionDropped);
        }
        let receive = rx.next_receive;
        rx.next_receive += 1;
        let capacity = op.prepared.plan.bytes();
        let (op, places_here) = (op.clone(), places.clone());
        let waiting = peer::WaitingReceive { op, places: places_here, capacity, leave, job: None };
        rx.receives.insert(receive, waiting);
        PostedReceive { receive, tag, places, leave }
    };
    let purpose = Purpose::Announce(op.clone(), posted.receive);
    peer.tx().tell(op.posted, &Message::ReceivePosted(posted), purpose);
}

/// Starts a read: asks the peer for the data, in as many messages as it takes.
pub(crate) fn begin_read(peer: &PeerShared, op: &OpHandle) {
    let prepared = &op.prepared;
    let parts: Vec<&[Segment]> = prepared.plan.segments().chunks(MAX_MESSAGE_PIECES).collect();
    if parts.is_empty() {
        return op.part_done(0);
    }
    // At most MAX_CHUNKS segments, which fits.
    op.set_parts(parts.len() as u32);
    for segments in parts {
        let read = {
            let mut rx = peer.rx();
            let read = rx.next_read;
            rx.next_read += 1;
            let places = places_of(segments, &prepared.regions);
            rx.reads.insert(read, peer::ReadPart { op: op.clone(), places });
            read
        };
        let pieces = segments
            .iter()
            .map(|segment| ReadPiece {
                from: Place {
                    key: segment.remote,
                    offset: segment.remote_offset,
                    len: segment.len,
                },
                to_key: prepared.regions[segment.local_region as usize].key,
                to_offset: segment.local_offset,
            })
            .collect();
        let shared = prepared.path.kind == PathKind::Shared;
        let message = Message::ReadRequest { read, pieces, shared };
        peer.tx().tell(op.posted, &message, Purpose::TellFor(op.clone()));
    }
}

/// Where the local parts of segments are.
fn places_of(segments: &[Segment], regions: &[Arc<RegionCore>]) -> Vec<Place> {
    segments
        .iter()
        .map(|segment| Place {
            key: regions[segment.local_region as usize].key,
            offset: segment.local_offset,
            len: segment.len,
        })
        .collect()
}

/// Local segments and remote places, cut where either ends. Places may have room left over.
pub(super) fn zip_places(locals: &[Segment], places: &[Place]) -> Segments {
    let mut segments = Segments::with_capacity(locals.len() + places.len());
    let mut places = places.iter();
    let mut place = places.next().copied();
    for local in locals {
        let mut done = 0;
        while done < local.len {
            let Some(at) = place else { return segments };
            let take = (local.len - done).min(at.len);
            segments.push(Segment {
                local_region: local.local_region,
                local_offset: local.local_offset + done,
                remote: at.key,
                remote_offset: at.offset,
                len: take,
            });
            done += take;
            place = if take == at.len {
                places.next().copied()
            } else {
                Some(Place { offset: at.offset + take, len: at.len - take, ..at })
            };
        }
    }
    segments
}

#[cfg(test)]
mod tests {
    use polyrail_proto::RegionKey;

    use super::*;

    #[test]
    fn local_segments_fill_the_places_of_a_receive_in_order() {
        let key = |slot| RegionKey { slot, generation: 1, nonce: 5 };
        let local = |local_offset, len| Segment {
            local_region: 0,
            local_offset,
            remote: key(0),
            remote_offset: 0,
            len,
        };
        let places = [
            Place { key: key(1), offset: 100, len: 4 },
            Place { key: key(2), offset: 200, len: 90 },
        ];
        let zipped = zip_places(&[local(0, 6), local(50, 3)], &places);
        let flat: Vec<_> = zipped
            .iter()
            .map(|s| (s.local_offset, s.remote.slot, s.remote_offset, s.len))
            .collect();
        assert_eq!(flat, [(0, 1, 100, 4), (4, 2, 200, 2), (50, 2, 202, 3)]);
    }
}
