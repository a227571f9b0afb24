//! An attacker on one flow of a peer, who sends arbitrary frames. Bytes of the peer that did not land must never count
//! as landed; at worst they are refused.

mod common;

use common::{chunk, receiver};
use polyrail_proto::wire::{ChunkHeader, Place, RefusalCode, WireError, WireOp};
use polyrail_proto::{FlowIndex, Receiver, RegionKey, Settled, TransferId, Verdict};

const HONEST: FlowIndex = FlowIndex(0);
const OTHER: FlowIndex = FlowIndex(1);
const FORGER: FlowIndex = FlowIndex(3);
const OVER: Settled = Settled::Refuse(RefusalCode::TransferOver);

/// The honest peer's region; `offset` is where a chunk goes in it.
fn at(offset: u64) -> Place {
    Place { key: RegionKey { slot: 1, generation: 1, nonce: 77 }, offset, len: 10 }
}

fn frame(
    r: &mut Receiver,
    flow: FlowIndex,
    header: ChunkHeader,
    place: Option<Place>,
    meta: &[u8],
) -> Settled {
    r.handle_chunk(flow, &header, place.as_slice(), meta, || Ok(())).unwrap();
    if r.begin_landing(flow) {
        r.end_landing(flow);
    }
    r.handle_chunk_end(flow, true)
}

/// Returns a write of the peer: one chunk, to its place.
fn write(r: &mut Receiver, flow: FlowIndex, transfer: u64) -> Settled {
    frame(r, flow, chunk(transfer, 0, 1), Some(at(transfer * 10)), b"")
}

/// Returns a message without payload, which needs no key.
fn message(transfer: u64, op: WireOp, meta: &[u8]) -> ChunkHeader {
    let meta_len = meta.len() as u32;
    ChunkHeader { op, meta_len, payload_len: 0, pieces: 0, ..chunk(transfer, 0, 1) }
}

#[test]
fn a_floor_beyond_what_landed_is_a_breach_and_changes_nothing() {
    let mut r = receiver();
    assert_eq!(write(&mut r, HONEST, 1), Settled::Ack);
    for floor in [3, 1 << 60, u64::MAX] {
        let forged =
            ChunkHeader { floor: TransferId(floor), ..message(floor, WireOp::Write, b"x") };
        let error = r.handle_chunk(FORGER, &forged, &[], b"x", || Ok(())).unwrap_err();
        assert!(
            matches!(error, WireError::Field { field: "floor", got, .. } if got == floor),
            "{error}"
        );
        r.handle_flow_down(FORGER);
    }
    assert!(r.poll_event().is_some_and(|landed| landed.transfer == TransferId(1)));
    assert_eq!(write(&mut r, HONEST, 2), Settled::Ack);
    assert!(r.poll_event().is_some_and(|landed| landed.transfer == TransferId(2)));
}

#[test]
fn a_floor_that_was_raised_by_two_forged_frames_has_the_rest_refused() {
    let mut r = receiver();
    frame(&mut r, FORGER, message(1000, WireOp::Write, b"x"), None, b"x");
    let raised = ChunkHeader { floor: TransferId(1001), ..message(1001, WireOp::Write, b"x") };
    frame(&mut r, FORGER, raised, None, b"x");
    while r.poll_event().is_some() {}
    assert_eq!(write(&mut r, HONEST, 1), OVER);
    assert_eq!(r.poll_event(), None);
}

#[test]
fn a_message_that_took_the_number_of_a_transfer_has_that_refused() {
    let mut r = receiver();
    let data = |at| chunk(5, at, 2);
    assert_eq!(frame(&mut r, FORGER, message(5, WireOp::Write, b"x"), None, b"x"), Settled::Ack);
    assert_eq!(write(&mut r, HONEST, 5), OVER);
    assert_eq!(frame(&mut r, HONEST, data(0), Some(at(0)), b""), OVER);
    // Nor may it stand for another message, nor for one to another place.
    assert_eq!(frame(&mut r, HONEST, message(5, WireOp::Write, b"y"), None, b"y"), OVER);
    assert_eq!(frame(&mut r, HONEST, message(5, WireOp::Control, b"x"), None, b"x"), OVER);
    assert_eq!(write(&mut r, FORGER, 6), Settled::Ack);
    assert_eq!(frame(&mut r, HONEST, chunk(6, 0, 1), Some(at(0)), b""), OVER);
    // A chunk that matches in everything is a copy.
    assert_eq!(frame(&mut r, HONEST, message(5, WireOp::Write, b"x"), None, b"x"), Settled::Ack);
    assert_eq!(write(&mut r, HONEST, 6), Settled::Ack);
}

#[test]
fn a_chunk_that_landed_elsewhere_does_not_stand_for_the_real_one() {
    let mut r = receiver();
    let part = |at| chunk(1, at, 2);
    assert_eq!(frame(&mut r, FORGER, part(1), Some(at(500)), b""), Settled::Ack);
    assert_eq!(frame(&mut r, HONEST, part(0), Some(at(0)), b""), Settled::Ack);
    assert_eq!(frame(&mut r, HONEST, part(1), Some(at(10)), b""), OVER);
}

#[test]
fn a_cancel_by_another_loses_nothing_silently() {
    let mut r = receiver();
    // Before any of it arrives.
    r.retire(TransferId(1));
    assert_eq!(write(&mut r, HONEST, 1), OVER);
    // While its last chunk is being read.
    assert_eq!(frame(&mut r, HONEST, chunk(2, 0, 2), Some(at(0)), b""), Settled::Ack);
    let last = chunk(2, 1, 2);
    r.handle_chunk(HONEST, &last, &[at(10)], b"", || Ok(())).unwrap();
    assert!(r.begin_landing(HONEST));
    r.retire(TransferId(2));
    r.end_landing(HONEST);
    assert_eq!(r.handle_chunk_end(HONEST, true), OVER);
    assert_eq!(r.poll_event(), None);
}

#[test]
fn what_landed_is_acknowledged_again_after_its_flow_died_however_often() {
    let mut r = receiver();
    // As many as may be in flight. The transfers are over here, but not for their sender.
    for transfer in 1..=4 {
        assert_eq!(write(&mut r, HONEST, transfer), Settled::Ack);
    }
    for flow in [OTHER, HONEST, OTHER] {
        r.handle_flow_down(if flow == OTHER { HONEST } else { OTHER });
        for transfer in 1..=4 {
            let again =
                r.handle_chunk(flow, &chunk(transfer, 0, 1), &[at(transfer * 10)], b"", || Ok(()));
            assert_eq!(again.unwrap(), Verdict::Discard);
            assert_eq!(r.handle_chunk_end(flow, true), Settled::Ack);
        }
    }
    assert_eq!(std::iter::from_fn(|| r.poll_event()).count(), 4, "each landed once");
}

#[test]
fn what_the_sender_must_have_heard_of_is_forgotten() {
    let mut r = receiver();
    for transfer in 1..=5 {
        write(&mut r, HONEST, transfer);
    }
    // The window is 4: the first is acknowledged, or the fifth could not have been sent.
    assert_eq!(write(&mut r, OTHER, 1), OVER);
    assert_eq!(write(&mut r, OTHER, 2), Settled::Ack);
    // A sender never sends transfers below its low-water mark again.
    let raised = ChunkHeader { floor: TransferId(4), ..chunk(6, 0, 1) };
    assert_eq!(frame(&mut r, HONEST, raised, Some(at(0)), b""), Settled::Ack);
    r.handle_flow_down(HONEST);
    r.handle_flow_down(OTHER);
    assert_eq!(write(&mut r, FORGER, 3), OVER);
    assert_eq!(write(&mut r, FORGER, 5), Settled::Ack);
}
