//! Two copies of one chunk in flight at once, as may happen after a rail failed; and acknowledgements that could
//! overtake a delivery.

mod common;

use common::{A, B, begin, chunk, receiver};
use polyrail_proto::wire::{ChunkHeader, Flags, RefusalCode, WireOp};
use polyrail_proto::{FlowIndex, Receiver, Settled, TransferId, Verdict};

/// Reads all of the flow's chunk in one read, if it may land at all.
fn land(receiver: &mut Receiver, flow: FlowIndex) -> bool {
    receiver.begin_landing(flow) && receiver.end_landing(flow)
}

#[test]
fn no_copy_is_acknowledged_while_another_is_inside_a_system_call() {
    let mut r = receiver();
    begin(&mut r, A, chunk(1, 0, 1));
    assert!(r.begin_landing(A));
    // Otherwise the sender would report the end of the transfer, and a newer write could land in the same place before
    // flow A returns from its call and writes the old bytes over it.
    begin(&mut r, B, chunk(1, 0, 1));
    land(&mut r, B);
    assert_eq!(r.handle_chunk_end(B, true), Settled::Refuse(RefusalCode::Busy));
    assert!(r.end_landing(A), "the first copy goes on");
    assert_eq!(r.handle_chunk_end(A, true), Settled::Ack);
    assert_eq!(r.poll_event().unwrap().bytes, 10);
    assert_eq!(begin(&mut r, B, chunk(1, 0, 1)), Verdict::Discard);
}

#[test]
fn a_corrupt_copy_cannot_spoil_an_intact_one() {
    let mut r = receiver();
    begin(&mut r, A, chunk(1, 0, 1));
    assert!(land(&mut r, A));
    begin(&mut r, B, chunk(1, 0, 1));
    assert!(land(&mut r, B));
    assert!(!land(&mut r, A), "what it brings could be corrupt, and nobody would look again");
    assert_eq!(r.handle_chunk_end(B, true), Settled::Ack);
    assert!(r.poll_event().is_some());
}

#[test]
fn a_copy_that_was_superseded_does_not_count_when_its_successor_dies() {
    let mut r = receiver();
    begin(&mut r, A, chunk(1, 0, 1));
    begin(&mut r, B, chunk(1, 0, 1));
    r.handle_flow_down(B);
    let settled = r.handle_chunk_end(A, true);
    assert!(matches!(settled, Settled::Refuse(code) if code.is_retryable()), "{settled:?}");
    assert_eq!(r.poll_event(), None);
    begin(&mut r, B, chunk(1, 0, 1));
    assert!(land(&mut r, B));
    assert_eq!(r.handle_chunk_end(B, true), Settled::Ack);
    assert!(r.poll_event().is_some());
}

#[test]
fn the_message_is_the_one_of_the_copy_that_landed() {
    let mut r = receiver();
    let with_message = ChunkHeader { meta_len: 4, ..chunk(1, 0, 1) };
    r.handle_chunk(A, &with_message, &[], b"good", || Ok(())).unwrap();
    r.handle_chunk(B, &with_message, &[], b"evil", || Ok(())).unwrap();
    let a = r.handle_chunk_end(A, true);
    let b = r.handle_chunk_end(B, false);
    assert!(matches!((a, b), (Settled::Refuse(_), Settled::Refuse(_))), "{a:?} {b:?}");
    r.handle_chunk(A, &with_message, &[], b"good", || Ok(())).unwrap();
    assert_eq!(r.handle_chunk_end(A, true), Settled::Ack);
    assert_eq!(r.poll_event().unwrap().meta, b"good");
}

#[test]
fn a_receiver_is_not_quiet_while_a_retired_transfer_is_inside_a_system_call() {
    let mut r = receiver();
    begin(&mut r, A, chunk(1, 0, 2));
    assert!(r.begin_landing(A));
    assert!(r.is_quiet(), "what lands by right disturbs nobody");
    assert!(!r.retire(TransferId(1)));
    assert!(!r.is_quiet(), "an acknowledgement now, on any flow, might confirm the cancel");
    assert!(!r.end_landing(A));
    assert!(r.is_quiet() && r.retire(TransferId(1)));
}

#[test]
fn a_driver_can_bar_the_places_of_a_chunk_that_is_landing() {
    let mut r = receiver();
    begin(&mut r, A, chunk(1, 0, 2));
    assert!(r.begin_landing(A));
    assert!(!r.bar(A, RefusalCode::RegionDropped), "a read is under way");
    assert!(!r.end_landing(A));
    assert!(r.bar(A, RefusalCode::RegionDropped));
    assert!(!r.begin_landing(A));
    assert_eq!(r.handle_chunk_end(A, true), Settled::Refuse(RefusalCode::RegionDropped));
    begin(&mut r, B, chunk(1, 1, 2));
    assert!(r.bar(B, RefusalCode::RegionDropped), "not inside a call: true at once");
    assert!(!r.begin_landing(B));
    assert_eq!(r.handle_chunk_end(B, true), Settled::Refuse(RefusalCode::RegionDropped));
}

/// Completes transfer 1 by flow A: a message, or a notification.
fn complete(r: &mut Receiver) {
    let header = ChunkHeader { op: WireOp::Control, ..chunk(1, 0, 1) };
    assert_eq!(begin(r, A, header), Verdict::Land);
    assert_eq!(r.handle_chunk_end(A, true), Settled::Ack);
    assert!(r.poll_event().unwrap().is_delivered());
}

#[test]
fn a_copy_is_acknowledged_once_the_first_one_is_delivered() {
    let mut r = receiver();
    complete(&mut r);
    let delivery = r.begin_delivery(None);
    assert!(r.is_quiet(), "a delivery disturbs nobody");
    let copy = ChunkHeader { op: WireOp::Control, ..chunk(1, 0, 1) };
    assert_eq!(begin(&mut r, B, copy), Verdict::Discard);
    assert!(!r.is_quiet(), "if it is a cancel, it was not carried out yet");
    r.end_delivery(delivery);
    assert!(r.is_quiet());
}

#[test]
fn a_cancel_is_confirmed_once_its_transfer_is_delivered() {
    let mut r = receiver();
    complete(&mut r);
    let delivery = r.begin_delivery(None);
    assert!(!r.retire(TransferId(1)) && !r.is_quiet(), "its notification would come after its end");
    // Another thread delivers something else meanwhile.
    begin(&mut r, B, ChunkHeader { op: WireOp::Control, ..chunk(2, 0, 1) });
    r.handle_chunk_end(B, true);
    let other = r.begin_delivery(None);
    assert_ne!(delivery, other);
    r.end_delivery(other);
    assert!(!r.is_quiet());
    r.end_delivery(delivery);
    assert!(r.is_quiet() && r.retire(TransferId(1)));
}

#[test]
fn a_delivery_goes_on_with_what_the_same_thread_takes_later() {
    let mut r = receiver();
    complete(&mut r);
    let delivery = r.begin_delivery(None);
    begin(&mut r, A, ChunkHeader { flags: Flags::NOTIFY, ..chunk(2, 0, 1) });
    r.handle_chunk_end(A, true);
    assert!(!r.retire(TransferId(2)), "no thread has taken it yet");
    assert_eq!(r.begin_delivery(Some(delivery)), delivery);
    assert!(!r.is_quiet());
    r.end_delivery(delivery);
    assert!(r.is_quiet());
}

#[test]
fn what_a_device_completes_is_acknowledged_once_it_is_delivered() {
    let mut r = receiver();
    begin(&mut r, A, ChunkHeader { flags: Flags::NOTIFY, ..chunk(1, 0, 1) });
    let landing = r.detach(A).unwrap();
    assert_eq!(r.handle_landed(landing, Ok(())), Settled::Ack);
    assert!(!r.is_quiet(), "any thread may take it before that of its flow");
    let delivery = r.begin_delivery(None);
    r.end_delivery(delivery);
    assert!(r.is_quiet());
}

#[test]
fn a_write_without_a_notification_is_over_when_it_has_landed() {
    let mut r = receiver();
    begin(&mut r, A, chunk(1, 0, 1));
    r.handle_chunk_end(A, true);
    assert_eq!(begin(&mut r, B, chunk(1, 0, 1)), Verdict::Discard);
    assert!(r.retire(TransferId(1)) && r.is_quiet());
}
