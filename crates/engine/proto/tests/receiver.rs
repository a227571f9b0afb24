//! A receiver's answers to chunks that arrive in any order, twice, or too late.

mod common;

use common::{A, B, begin, chunk, receiver};
use polyrail_proto::wire::{ChunkHeader, Flags, RefusalCode, WireOp};
use polyrail_proto::{FlowIndex, Receiver, ReceiverLimits, Settled, TransferId, Verdict};

#[test]
fn a_transfer_completes_when_its_last_chunk_lands_on_any_flow() {
    let mut r = receiver();
    assert_eq!(begin(&mut r, A, chunk(1, 1, 2)), Verdict::Land);
    assert_eq!(r.handle_chunk_end(A, true), Settled::Ack);
    assert_eq!(r.poll_event(), None);
    let first = ChunkHeader { meta_len: 2, flags: Flags::NOTIFY, ..chunk(1, 0, 2) };
    assert_eq!(r.handle_chunk(B, &first, &[], b"hi", || Ok(())).unwrap(), Verdict::Land);
    assert_eq!(r.handle_chunk_end(B, true), Settled::Ack);
    let landed = r.poll_event().unwrap();
    assert_eq!(
        (landed.meta.as_slice(), landed.bytes, landed.flags),
        (&b"hi"[..], 20, Flags::NOTIFY)
    );
    assert_eq!(r.active_count(), 0);
}

#[test]
fn a_late_copy_of_a_landed_chunk_is_discarded() {
    let mut r = receiver();
    for expected in [Verdict::Land, Verdict::Discard] {
        assert_eq!(begin(&mut r, A, chunk(1, 0, 2)), expected);
        r.handle_chunk_end(A, true);
    }
    begin(&mut r, A, chunk(1, 1, 2));
    r.handle_chunk_end(A, true);
    assert!(r.poll_event().is_some());
    assert_eq!(begin(&mut r, B, chunk(1, 1, 2)), Verdict::Discard);
    r.handle_chunk_end(B, true);
    assert_eq!(r.poll_event(), None, "completed once");
}

#[test]
fn a_second_copy_is_sent_away_while_the_first_is_inside_a_system_call() {
    let mut r = receiver();
    begin(&mut r, A, chunk(1, 0, 1));
    assert!(r.begin_landing(A));
    assert_eq!(begin(&mut r, B, chunk(1, 0, 1)), Verdict::Refuse(RefusalCode::Busy));
    assert!(!r.begin_landing(B));
    assert_eq!(r.handle_chunk_end(B, true), Settled::Refuse(RefusalCode::Busy));
    assert!(r.end_landing(A));
    assert_eq!(begin(&mut r, B, chunk(1, 0, 1)), Verdict::Land, "it takes over");
    assert!(!r.begin_landing(A));
    assert_eq!(r.handle_chunk_end(B, true), Settled::Ack);
    assert!(r.poll_event().is_some());
}

#[test]
fn a_stalled_flow_lands_nothing_after_the_other_copy_is_through() {
    let mut r = receiver();
    begin(&mut r, A, chunk(1, 0, 1));
    assert!(r.begin_landing(A) && r.end_landing(A));
    begin(&mut r, B, chunk(1, 0, 1));
    r.handle_chunk_end(B, true);
    assert!(r.poll_event().is_some());
    assert!(!r.begin_landing(A));
}

#[test]
fn a_retired_transfer_lands_nothing_and_says_when_that_is_true() {
    let mut r = receiver();
    begin(&mut r, A, chunk(1, 0, 2));
    assert!(r.begin_landing(A));
    assert!(!r.retire(TransferId(1)), "a read is under way");
    assert!(!r.end_landing(A));
    assert!(r.retire(TransferId(1)));
    assert_eq!(r.handle_chunk_end(A, true), Settled::Refuse(RefusalCode::TransferOver));
    assert_eq!(begin(&mut r, B, chunk(1, 1, 2)), Verdict::Refuse(RefusalCode::TransferOver));
    assert_eq!((r.poll_event(), r.active_count()), (None, 0));
}

#[test]
fn the_floor_retires_what_the_sender_gave_up() {
    let mut r = receiver();
    begin(&mut r, A, chunk(1, 0, 2));
    r.handle_chunk_end(A, true);
    let newer = ChunkHeader { floor: TransferId(2), ..chunk(2, 0, 1) };
    assert_eq!(begin(&mut r, B, newer), Verdict::Land);
    assert_eq!(begin(&mut r, A, chunk(1, 1, 2)), Verdict::Refuse(RefusalCode::TransferOver));
    assert_eq!(r.active_count(), 1);
}

#[test]
fn a_refusal_and_a_bad_checksum_land_nothing() {
    let mut r = receiver();
    let refused =
        r.handle_chunk(A, &chunk(1, 0, 1), &[], b"", || Err(RefusalCode::StaleKey)).unwrap();
    assert_eq!(refused, Verdict::Refuse(RefusalCode::StaleKey));
    assert!(!r.begin_landing(A));
    assert_eq!(r.handle_chunk_end(A, true), Settled::Refuse(RefusalCode::StaleKey));
    begin(&mut r, A, chunk(2, 0, 1));
    assert_eq!(r.handle_chunk_end(A, false), Settled::Refuse(RefusalCode::Checksum));
    assert_eq!(r.poll_event(), None);
    begin(&mut r, A, chunk(2, 0, 1));
    assert_eq!(r.handle_chunk_end(A, true), Settled::Ack);
    assert_eq!(r.poll_event().unwrap().transfer, TransferId(2));
}

#[test]
fn a_peer_cannot_make_a_receiver_remember_without_bound() {
    let mut r = receiver();
    assert_eq!(begin(&mut r, A, chunk(1, 0, 101)), Verdict::Refuse(RefusalCode::TransferQuota));
    for id in 1..=8 {
        assert_eq!(begin(&mut r, A, chunk(id, 0, 2)), Verdict::Land);
        r.handle_chunk_end(A, true);
    }
    assert_eq!(begin(&mut r, A, chunk(9, 0, 2)), Verdict::Refuse(RefusalCode::TransferQuota));
    assert!(r.handle_chunk(FlowIndex(4), &chunk(1, 1, 2), &[], b"", || Ok(())).is_err());
    assert!(
        r.handle_chunk(A, &chunk(1, 1, 3), &[], b"", || Ok(())).is_err(),
        "chunk count changed"
    );
}

#[test]
fn a_flow_that_dies_in_mid_chunk_leaves_the_chunk_missing() {
    let mut r = receiver();
    begin(&mut r, A, chunk(1, 0, 1));
    assert!(r.begin_landing(A));
    r.handle_flow_down(A);
    assert_eq!(r.poll_event(), None);
    begin(&mut r, B, chunk(1, 0, 1));
    r.handle_chunk_end(B, true);
    assert!(r.poll_event().is_some());
}

#[test]
fn what_the_driver_expels_lands_no_more_and_is_refused() {
    let mut r = receiver();
    let data = |n| ChunkHeader { op: WireOp::SendData, context: 9, ..chunk(1, n, 2) };
    begin(&mut r, A, data(0));
    assert!(r.begin_landing(A));
    assert!(!r.expel(WireOp::SendData, 9), "a read is under way");
    assert!(!r.end_landing(A));
    assert!(r.expel(WireOp::SendData, 9));
    assert_eq!(r.handle_chunk_end(A, true), Settled::Refuse(RefusalCode::NotExpected));
    let gate = || Err(RefusalCode::NotExpected);
    let verdict = r.handle_chunk(B, &data(1), &[], b"", gate).unwrap();
    assert_eq!(verdict, Verdict::Refuse(RefusalCode::NotExpected));
    assert_eq!((r.poll_event(), r.active_count()), (None, 0));
}

#[test]
fn a_device_copies_a_chunk_into_place_while_its_flow_brings_the_next() {
    let mut r = receiver();
    begin(&mut r, A, chunk(1, 0, 2));
    let first = r.detach(A).unwrap();
    begin(&mut r, A, chunk(1, 1, 2));
    let second = r.detach(A).unwrap();
    assert_eq!(r.handle_landed(second, Ok(())), Settled::Ack);
    assert_eq!(r.poll_event(), None, "one is not in place yet");
    // The first copy's rail failed meanwhile: a second copy must wait for the first, and the first counts.
    r.handle_flow_down(A);
    assert_eq!(begin(&mut r, B, chunk(1, 0, 2)), Verdict::Refuse(RefusalCode::Busy));
    r.handle_chunk_end(B, true);
    assert_eq!(r.handle_landed(first, Ok(())), Settled::Ack);
    assert_eq!(r.poll_event().map(|landed| landed.bytes), Some(20));
    assert_ne!(r.handle_landed(first, Ok(())), Settled::Ack, "known no more");
}

#[test]
fn a_cancel_is_true_only_when_the_device_is_done() {
    let mut r = receiver();
    begin(&mut r, A, chunk(1, 0, 1));
    let landing = r.detach(A).unwrap();
    assert!(!r.retire(TransferId(1)) && !r.is_quiet());
    assert_eq!(r.handle_landed(landing, Ok(())), Settled::Refuse(RefusalCode::TransferOver));
    assert!(r.retire(TransferId(1)) && r.is_quiet());
    assert_eq!(r.poll_event(), None, "it was cancelled");
    // A transfer that is cancelled before its copy is never copied.
    begin(&mut r, A, chunk(2, 0, 1));
    r.retire(TransferId(2));
    assert_eq!(r.detach(A), None);
    assert_eq!(r.handle_chunk_end(A, true), Settled::Refuse(RefusalCode::TransferOver));
}

#[test]
fn a_copy_that_fails_is_refused() {
    let mut r = receiver();
    begin(&mut r, A, chunk(1, 0, 1));
    let landing = r.detach(A).unwrap();
    let code = RefusalCode::Device;
    assert_eq!(r.handle_landed(landing, Err(code)), Settled::Refuse(code));
    assert_eq!(r.poll_event(), None);
    assert!(!code.is_retryable());
}

#[test]
fn a_receiver_remembers_as_many_chunks_as_may_have_landed_unacknowledged() {
    let mut r = Receiver::new(ReceiverLimits::default());
    r.handle_flow_up(A, 4);
    for number in 0..20 {
        assert_eq!(begin(&mut r, A, chunk(1, number, 30)), Verdict::Land);
        assert_eq!(r.handle_chunk_end(A, true), Settled::Ack);
    }
    assert_eq!(r.held().proofs, 4);
    // A device takes long for the first chunk of a window. The last one of the next is still known when all of that has
    // landed, and so are those between.
    assert_eq!(begin(&mut r, A, chunk(1, 20, 30)), Verdict::Land);
    let copied = r.detach(A).unwrap();
    for number in 21..24 {
        assert_eq!(begin(&mut r, A, chunk(1, number, 30)), Verdict::Land);
        assert_eq!(r.handle_chunk_end(A, true), Settled::Ack);
    }
    assert_eq!(r.handle_landed(copied, Ok(())), Settled::Ack);
    assert_eq!(begin(&mut r, A, chunk(1, 24, 30)), Verdict::Land);
    assert_eq!(r.handle_chunk_end(A, true), Settled::Ack);
    r.handle_flow_down(A);
    for number in 21..25 {
        assert_eq!(begin(&mut r, B, chunk(1, number, 30)), Verdict::Discard);
    }
}

#[test]
fn a_chunk_that_a_device_lands_after_its_connection_was_replaced_is_known() {
    for is_up_again in [true, false] {
        let mut r = Receiver::new(ReceiverLimits::default());
        r.handle_flow_up(A, 4);
        assert_eq!(begin(&mut r, A, chunk(1, 0, 30)), Verdict::Land);
        let copied = r.detach(A).unwrap();
        r.handle_flow_down(A);
        if is_up_again {
            r.handle_flow_up(A, 4);
        }
        assert_eq!(r.handle_landed(copied, Ok(())), Settled::Ack);
        if !is_up_again {
            r.handle_flow_up(A, 4);
        }
        for number in 1..6 {
            assert_eq!(begin(&mut r, A, chunk(1, number, 30)), Verdict::Land);
            assert_eq!(r.handle_chunk_end(A, true), Settled::Ack);
        }
        assert_eq!(begin(&mut r, B, chunk(1, 0, 30)), Verdict::Discard);
    }
}
