//! What happens when a transfer of a peer is complete here: notifications, the data of reads and
//! receives, and messages between engines.

use std::sync::Arc;

use polyrail_proto::matching::Match;
use polyrail_proto::message::{Message, ReadPiece, copied_bytes};
use polyrail_proto::wire::{Flags, RefusalCode, WireOp};
use polyrail_proto::{Failure, Landed, Plan, QuotaExceeded, Segment, Time};

use crate::base::error::TransferError;
use crate::device::host_copy::Stop;
use crate::engine::carriage::Carriage;
use crate::engine::finish::{Finish, drain_tx};
use crate::engine::inbox::Notification;
use crate::engine::op::OpHandle;
use crate::engine::outgoing::{Made, Purpose};
use crate::engine::pass::{Down, Pass};
use crate::engine::peer::{Arrived, Delivery, Locked, OpRef, PeerShared, RxSide, TxSide};
use crate::engine::peer_handle::Peer;
use crate::engine::prepared::Segments;
use crate::memory::region::Touch;
use crate::memory::region_list::RegionList;
use crate::path::{carry, export, try_shared};

impl Pass<'_> {
    /// Delivers what one thread has taken. The lock comes back with the result, as more may have come. An error means that
    /// the peer breaks the rules: close the flow that brought it.
    pub(crate) fn deliver<'p>(
        &mut self,
        peer: &'p Arc<PeerShared>,
        delivery: &mut Delivery,
    ) -> (Locked<'p, RxSide>, Result<(), Down>) {
        let mut result = Ok(());
        for arrived in delivery.arrived.drain(..) {
            // All of it: it has landed, and is not sent again.
            result = result.and(self.arrived(peer, arrived));
        }
        let mut rx = peer.rx();
        delivery.end(&mut rx);
        (rx, result)
    }

    fn arrived(&mut self, peer: &Arc<PeerShared>, arrived: Arrived) -> Result<(), Down> {
        match arrived {
            Arrived::Whole(landed, op) => take(self, peer, landed, op),
            Arrived::Failed(op, error) => {
                self.for_caller = true;
                self.finishes.push(Finish::Error(op, error));
                Ok(())
            }
        }
    }
}

/// `op`: the read or receive that waited for it.
fn take(
    pass: &mut Pass<'_>,
    peer: &Arc<PeerShared>,
    landed: Landed,
    op: Option<OpHandle>,
) -> Result<(), Down> {
    pass.for_caller |= match landed.op {
        WireOp::Write => landed.flags.contains(Flags::NOTIFY),
        WireOp::ReadData | WireOp::SendData => true,
        WireOp::Control => false,
    };
    match landed.op {
        WireOp::Write => {
            if landed.flags.contains(Flags::NOTIFY) {
                let peer = Peer { shared: peer.clone() };
                let left = match &pass.engine.observer {
                    Some(observer) => {
                        let tell = || observer.notified(&peer, landed.meta);
                        pass.engine.callbacks.call("observer", tell).flatten()
                    }
                    None => Some(landed.meta),
                };
                if let Some(data) = left {
                    pass.engine.inbox.push(Notification { peer, data });
                }
            }
        }
        WireOp::ReadData => {
            if let Some(op) = op {
                pass.finishes.push(Finish::Done(op, landed.bytes));
                // It serves one read less.
                if peer.tx().sender.peer_may_have_room() {
                    pass.engine.send_soon(peer);
                }
            }
        }
        WireOp::SendData => {
            // Whether it says so rightly was looked at before it landed.
            let copied = copied_bytes(&landed.meta).unwrap_or_default();
            if let (Some(op), Some(_)) = (&op, copied) {
                op.set_carriage(Carriage::Sender);
            }
            let bytes = copied.unwrap_or(landed.bytes);
            pass.finishes.extend(op.map(|op| Finish::Done(op, bytes)));
        }
        WireOp::Control => match Message::decode(&landed.meta) {
            Ok(message) => return handle(pass, peer, message),
            Err(error) => {
                if let Some(others) = peer.quotas.logs.not_understood.left_out() {
                    let name = peer.name();
                    tracing::warn!(target: "polyrail::peer", peer = name, %error, others,
                        "message not understood");
                }
            }
        },
    }
    Ok(())
}

fn handle(pass: &mut Pass<'_>, peer: &Arc<PeerShared>, message: Message) -> Result<(), Down> {
    match message {
        // No acknowledgement leaves before nothing of the transfer lands any more.
        Message::Cancel { transfer } => drop(peer.rx().receiver.retire(transfer)),
        Message::ReadRequest { read, pieces, shared } => {
            return serve_read(pass, peer, read, &pieces, shared);
        }
        Message::ReadFailed { read, code } => {
            let error = TransferError::Refused { peer: peer.name().to_owned(), code };
            let take = |rx: &mut RxSide| Some((rx.reads.remove(&read)?.op, error));
            fail(peer, (WireOp::ReadData, read), take);
        }
        Message::ReadCancelled { read } => cancel_read(pass, peer, read),
        Message::ReceivePosted(posted) => {
            return receives(pass, peer, |tx, matches| tx.matcher.handle_posted(posted, matches));
        }
        Message::ReceiveWithdrawn { receive } => {
            // If a send has it already, its data is refused and the send fails with that.
            let mut copying = None;
            let handled = receives(pass, peer, |tx, matches| {
                copying = tx.copying.remove(&receive).flatten();
                tx.matcher.handle_withdrawn(receive, matches).map(drop)
            });
            if let Some(job) = copying {
                job.stop(Stop::For(Failure::Refused(RefusalCode::NotExpected)));
                // No acknowledgement leaves before nothing here touches its memory any more.
                peer.rx().ending.push(job.ticket());
            }
            return handled;
        }
        Message::SendTooLong { receive, len } => {
            fail(peer, (WireOp::SendData, receive), |rx| {
                let waiting = rx.receives.remove(&receive)?;
                Some((waiting.op, TransferError::TooLong { len, capacity: waiting.capacity }))
            });
        }
        Message::SendFailed { receive } => {
            let take = |rx: &mut RxSide| {
                let op = rx.receives.remove(&receive)?.op;
                // Whoever ends a region hears the same, whether or not its sender was told first.
                let error = match op.prepared.has_ended_regions() {
                    true => TransferError::RegionDropped,
                    false => TransferError::SendFailed { peer: peer.name().to_owned() },
                };
                Some((op, error))
            };
            fail(peer, (WireOp::SendData, receive), take);
        }
        Message::RegionWanted { key } => export::offer(pass, peer, key),
        Message::RegionOffered { key, offered } => {
            pass.engine.imports.answer(peer.instance(), key, offered);
        }
        // No acknowledgement leaves before nothing here touches the region any more.
        Message::RegionEnded { key } => {
            let copies = pass.engine.imports.end(peer.instance(), key);
            peer.rx().ending.extend(copies);
        }
        Message::MemoryShown { place } => try_shared::shown(pass, peer, place),
        Message::MemorySeen { seen } => try_shared::seen(pass.engine, peer, seen),
        Message::CarrierWanted { of, rail, plugin } => {
            carry::wanted(pass, peer, of, (rail, &plugin))
        }
        Message::CarrierOffered { of, offered } => {
            carry::offered(pass.engine, peer, of, offered);
        }
        Message::CarrierAccepted { of, accepted } => {
            carry::accepted(pass.engine, peer, of, accepted);
        }
        Message::Bye => pass.engine.hear_bye(peer, None),
    }
    Ok(())
}

/// The peer has ended a read or receive. The caller delivers that next if nothing is landing for it, which is mostly so. Else
/// the thread that lands it finds that it has failed.
fn fail(
    peer: &PeerShared,
    which: (WireOp, u64),
    take: impl FnOnce(&mut RxSide) -> Option<(OpHandle, TransferError)>,
) {
    let mut rx = peer.rx();
    if let Some((op, error)) = take(&mut rx) {
        rx.fail(which, op, error);
    }
}

/// The peer says something of its receives, which may let sends go on.
fn receives(
    pass: &mut Pass<'_>,
    peer: &Arc<PeerShared>,
    handle: impl FnOnce(&mut TxSide, &mut Vec<Match<OpRef>>) -> Result<(), QuotaExceeded>,
) -> Result<(), Down> {
    let mut matches = Vec::new();
    let mut tx = peer.tx();
    let handled = handle(&mut tx, &mut matches);
    for matched in matches {
        tx.submit_matched(Time(pass.now), matched, pass);
    }
    tx.quotas.note_receives(&tx.matcher);
    drop(tx);
    pass.engine.send_soon(peer);
    handled.map_err(|error| peer.breach(&error))
}

fn serve_read(
    pass: &mut Pass<'_>,
    peer: &Arc<PeerShared>,
    read: u64,
    pieces: &[ReadPiece],
    shared: bool,
) -> Result<(), Down> {
    if shared && let Some(why) = peer.process.obstacle() {
        return Err(
            peer.breach(&format_args!("read {read} is asked for in shared memory, but {why}"))
        );
    }
    // A peer whose process is not known has its rails.
    let shared = shared && peer.process.prove(&pass.engine.proofs).is_ok();
    let now = Time(pass.now);
    let made = read_data(pass, peer, (read, shared), pieces);
    let mut tx = peer.tx();
    if tx.serving.contains_key(&read) {
        return Err(peer.breach(&format_args!("read {read} is asked for while it is being served")));
    }
    match made {
        Ok(made) => tx.submit_read_data(now, read, made),
        Err(code) if peer.quotas.has_answers_left() => {
            tx.answer(now, &Message::ReadFailed { read, code });
        }
        Err(_) => return Err(peer.breach(&peer.quotas.too_many_answers())),
    }
    drop(tx);
    pass.engine.send_soon(peer);
    Ok(())
}

fn read_data(
    pass: &Pass<'_>,
    peer: &PeerShared,
    (read, shared): (u64, bool),
    pieces: &[ReadPiece],
) -> Result<Made, RefusalCode> {
    let bytes = pieces.iter().fold(0u64, |sum, piece| sum.saturating_add(piece.from.len));
    // Before memory is taken for a plan of it.
    let parts = pieces.len() as u64 + bytes / pass.engine.config.chunk_bytes;
    if !peer.quotas.may_serve(usize::try_from(parts).unwrap_or(usize::MAX)) {
        return Err(RefusalCode::ReadQuota);
    }
    let mut regions = RegionList::default();
    let mut found = Vec::new();
    let mut segments = Segments::with_capacity(pieces.len());
    for piece in pieces {
        found.clear();
        let touch = Touch::Read(peer.instance());
        pass.engine.registry.admit_all(&[piece.from], touch, &mut found)?;
        let Some(target) = found.first() else { continue };
        segments.push(Segment {
            local_region: regions.number_of(&target.region),
            local_offset: target.offset(&piece.from),
            remote: piece.to_key,
            remote_offset: piece.to_offset,
            len: piece.from.len,
        });
    }
    let regions = regions.into_regions();
    let chunk_bytes = pass.engine.settings.chunk_bytes_of(&regions);
    let plan = Plan::for_rails(segments, chunk_bytes, peer.layout.rails())
        .map_err(|_| RefusalCode::OutOfBounds)?;
    let purpose = Purpose::ReadData { read, shared };
    let near = pass.engine.near.of_pairs(peer, &regions);
    Ok(Made { plan, regions, meta: Vec::new(), near, purpose })
}

/// The reader has let go already: what still arrives there is refused. This only saves the wire.
fn cancel_read(pass: &mut Pass<'_>, peer: &Arc<PeerShared>, read: u64) {
    let mut tx = peer.tx();
    tx.end_read_data(read);
    drain_tx(&mut tx, pass);
    drop(tx);
    pass.engine.send_soon(peer);
}
