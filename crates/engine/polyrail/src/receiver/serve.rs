//! Handling of a peer's complete transfers: notifications, the data of reads and receives, and messages between
//! engines.

use std::sync::Arc;

use polyrail_proto::copying::Stop;
use polyrail_proto::message::{Half, Message, ReadPiece};
use polyrail_proto::peer::Delivered;
use polyrail_proto::wire::RefusalCode;
use polyrail_proto::{Failure, Plan, Segment, Time};

use crate::engine::carriage::Carriage;
use crate::engine::finish::{Finish, drain_tx};
use crate::engine::inbox::Notification;
use crate::engine::outgoing::{Cause, Made, Outgoing};
use crate::engine::pass::Pass;
use crate::engine::peer::{Delivery, Down, Locked, OpRef, PeerShared, RxSide, Segments};
use crate::engine::peer_handle::Peer;
use crate::memory::region_core::Touch;
use crate::memory::region_list::RegionList;
use crate::path::{carry, export, try_shared};

impl Pass<'_> {
    /// Delivers the transfers that one thread has taken. The lock comes back with the result, as more may have come. An
    /// error means that the peer breaks the rules: close the flow that brought the transfer.
    pub(crate) fn deliver<'p>(
        &mut self,
        peer: &'p Arc<PeerShared>,
        delivery: &mut Delivery,
    ) -> (Locked<'p, RxSide>, Result<(), Down>) {
        let mut result = Ok(());
        for arrival in delivery.arrivals.drain(..) {
            let delivered = arrival.read();
            self.for_caller |= !matches!(
                delivered,
                Delivered::Message(_) | Delivered::Unknown(_) | Delivered::Nothing
            );
            match delivered {
                Delivered::Notification(data) => {
                    let peer = Peer { shared: peer.clone() };
                    let left = match &self.engine.observer {
                        Some(observer) => {
                            let tell = || observer.notified(&peer, data);
                            self.engine.arrived.callbacks.call("observer", tell).flatten()
                        }
                        None => Some(data),
                    };
                    if let Some(data) = left {
                        self.engine.arrived.inbox.push(Notification { peer, data });
                    }
                }
                Delivered::Read { op: OpRef(op), bytes } => {
                    self.finishes.push(Finish::Done(op, bytes));
                    if peer.tx().handle_read_served() {
                        self.engine.announce(peer);
                    }
                }
                Delivered::Received { op: OpRef(op), bytes, is_copied } => {
                    if is_copied {
                        op.set_carriage(Carriage::Sender);
                    }
                    self.finishes.push(Finish::Done(op, bytes));
                }
                Delivered::Failed(OpRef(op), failure) => {
                    self.finishes.push(Finish::Awaited(op, failure));
                }
                // Also after an error: the message has landed, and is not sent again.
                Delivered::Message(message) => result = result.and(handle(self, peer, message)),
                Delivered::Unknown(error) => {
                    let log = &peer.account.quotas.logs.not_understood;
                    if let Some(others) = log.left_out(Time(self.now)) {
                        let name = peer.name();
                        tracing::warn!(target: "polyrail::peer", peer = name, %error, others,
                            "message not understood");
                    }
                }
                Delivered::Nothing => {}
            }
        }
        let mut rx = peer.rx();
        rx.end_delivery(delivery);
        (rx, result)
    }
}

fn handle(pass: &mut Pass<'_>, peer: &Arc<PeerShared>, message: Message) -> Result<(), Down> {
    match message.half() {
        Half::Inbound => peer.rx().handle_message(&message),
        Half::Outbound => return tell_outbound(pass, peer, message),
        Half::Driver => return handle_own(pass, peer, message),
    }
    Ok(())
}

/// Handles a message for the sending half, which may let sends go on.
fn tell_outbound(
    pass: &mut Pass<'_>,
    peer: &Arc<PeerShared>,
    message: Message,
) -> Result<(), Down> {
    let now = Time(pass.now);
    let mut tx = peer.tx();
    let handled = tx.handle_message(now, message, &mut pass.ends);
    drain_tx(&mut tx, pass);
    drop(tx);
    pass.engine.announce(peer);
    if let Some(job) = handled.map_err(|error| peer.breach(&error))? {
        job.stop(Stop::For(Failure::Refused(RefusalCode::NotExpected)));
        // No acknowledgement leaves while anything here still touches its memory.
        peer.rx().ending.push(job.ticket());
    }
    Ok(())
}

fn handle_own(pass: &mut Pass<'_>, peer: &Arc<PeerShared>, message: Message) -> Result<(), Down> {
    match message {
        Message::ReadRequest { read, pieces, shared } => {
            return serve_read(pass, peer, read, &pieces, shared);
        }
        Message::RegionWanted { key } => export::offer(pass, peer, key),
        Message::RegionOffered { key, offered } => {
            pass.engine.copying.imports.answer((peer.instance(), key), offered);
        }
        // No acknowledgement leaves while anything here still touches the region.
        Message::RegionEnded { key } => {
            let copies = pass.engine.copying.imports.end((peer.instance(), key));
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
            carry::accepted(peer, of, accepted);
        }
        Message::Bye => pass.engine.hear_bye(peer, None),
        _ => debug_assert!(false, "for a half of the peer: {message:?}"),
    }
    Ok(())
}

fn serve_read(
    pass: &mut Pass<'_>,
    peer: &Arc<PeerShared>,
    read: u64,
    pieces: &[ReadPiece],
    shared: bool,
) -> Result<(), Down> {
    if shared && let Some(why) = peer.beside.process.obstacle() {
        return Err(
            peer.breach(&format_args!("read {read} is asked for in shared memory, but {why}"))
        );
    }
    // A peer whose process is not proven gets the data over its rails.
    let shared = shared && peer.beside.process.is_proven(&pass.engine.copying.proofs);
    let data = read_data(pass, peer, shared, pieces);
    let served = peer.tx().serve_read(Time(pass.now), read, data);
    served.map_err(|error| peer.breach(&error))?;
    pass.engine.announce(peer);
    Ok(())
}

fn read_data(
    pass: &Pass<'_>,
    peer: &PeerShared,
    shared: bool,
    pieces: &[ReadPiece],
) -> Result<Outgoing, RefusalCode> {
    peer.account.quotas.of_messages.admit_read(pieces, pass.engine.config.chunk_bytes)?;
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
    let near = pass.engine.near.of_pairs(peer, &regions);
    let cause = Cause::PeersRead { shared };
    Ok(Outgoing::Made(Arc::new(Made { plan, regions, meta: Vec::new(), near, cause })))
}
