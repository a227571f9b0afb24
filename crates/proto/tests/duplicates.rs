//! Two copies of one chunk under way at once, as may happen after a rail failed.

mod common;

use common::{A, B, begin, chunk, receiver};
use polyrail_proto::wire::{ChunkHeader, RefusalCode};
use polyrail_proto::{FlowIndex, Receiver, Settled, TransferId, Verdict};

/// All of the flow's chunk in one read, if it may land at all.
fn land(receiver: &mut Receiver, flow: FlowIndex) -> bool {
    receiver.begin_landing(flow) && receiver.end_landing(flow)
}

#[test]
fn no_copy_is_acknowledged_while_another_is_inside_a_system_call() {
    let mut r = receiver();
    begin(&mut r, A, chunk(1, 0, 1));
    assert!(r.begin_landing(A));
    // The sender would report the end of the transfer, and a newer write could land in the same
    // place before flow A comes back from its call and writes the old bytes over it.
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
