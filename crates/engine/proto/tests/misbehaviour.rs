//! Peers that violate the protocol, and users who do odd things: bounded memory, no hang, no early end.

mod common;

use std::sync::Arc;

use common::{A, Payload};
use polyrail_proto::hello::{RefusedCode, Reply};
use polyrail_proto::wire::{AckFrame, ChunkHeader, Flags, RefusalCode, WireError, WireOp};
use polyrail_proto::{
    Failure, FlowIndex, NewTransfer, Plan, Receiver, ReceiverLimits, RegionKey, Segment, Sender,
    SenderConfig, Settled, Time, TransferId, TxEvent, Verdict,
};

const NOW: Time = Time(0);
fn sender() -> Sender<Payload> {
    let mut sender =
        Sender::new(SenderConfig { window_chunks: 8, channels: 1, sockets: 1, rails: 1 });
    sender.handle_flow_up(NOW, A);
    sender
}

fn transfer(token: u64, chunks: u64) -> NewTransfer<Payload> {
    let remote = RegionKey { slot: 0, generation: 1, nonce: 0 };
    let len = chunks * 4096;
    let segment = Segment { local_region: 0, local_offset: 0, remote, remote_offset: 0, len };
    let source = Payload(Arc::new(Plan::new([segment], 4096).unwrap()));
    NewTransfer { op: WireOp::Write, flags: Flags::NONE, context: 0, source, token, deadline: None }
}

fn ack(sender: &mut Sender<Payload>, sequence: u64) {
    sender.handle_ack(NOW, A, AckFrame::Ack { sequence }).unwrap();
}

#[test]
fn a_transfer_is_not_over_while_its_last_frame_is_still_being_written() {
    let mut s = sender();
    s.submit(NOW, transfer(1, 1));
    s.pull(NOW, A).unwrap();
    ack(&mut s, 1);
    assert_eq!(s.poll_event(), None, "the driver still reads its memory");
    s.handle_written(A);
    assert_eq!(s.poll_event(), Some(TxEvent::Done { token: 1 }));
}

#[test]
fn frames_acknowledged_before_they_are_written_do_not_confuse_the_count() {
    let mut s = sender();
    for (token, chunks) in [(1, 2), (2, 1)] {
        s.submit(NOW, transfer(token, chunks));
        for _ in 0..chunks {
            assert_eq!(s.pull(NOW, A).unwrap().token, token);
        }
    }
    ack(&mut s, 2);
    s.handle_written(A);
    s.handle_written(A);
    assert_eq!(s.poll_event(), Some(TxEvent::Done { token: 1 }));
    let id = TransferId(2);
    s.end(id, Failure::Cancelled);
    assert_eq!(s.poll_event(), None, "the third frame is not written yet");
    s.handle_written(A);
    assert!(matches!(s.poll_event(), Some(TxEvent::Failed { token: 2, .. })));
    assert!(!s.is_busy());
}

#[test]
fn a_flow_that_dies_after_an_early_acknowledgement_leaves_nothing_behind() {
    let mut s = sender();
    s.submit(NOW, transfer(1, 1));
    s.pull(NOW, A).unwrap();
    ack(&mut s, 1);
    s.handle_flow_down(A);
    assert_eq!(s.poll_event(), Some(TxEvent::Done { token: 1 }));
    assert_eq!((s.is_busy(), s.channel_in_flight(A)), (false, 0));
}

#[test]
fn work_that_was_cancelled_before_it_was_pulled_is_no_work() {
    let mut s = Sender::new(SenderConfig { window_chunks: 8, channels: 1, sockets: 1, rails: 1 });
    let ids: Vec<_> =
        (0..100).map(|token| s.submit(NOW, transfer(token, 1 + 29 * (token % 2)))).collect();
    for id in ids.into_iter().rev() {
        assert!(s.has_work());
        s.end(id, Failure::Cancelled);
    }
    assert!(!s.has_work(), "nothing is left to pull");
    s.submit(NOW, transfer(200, 1));
    s.handle_flow_up(NOW, A);
    assert_eq!(s.pull(NOW, A).unwrap().token, 200);
    assert!(!s.has_work());
}

#[test]
fn what_the_peer_has_room_for_does_not_wait_behind_what_it_has_not() {
    let mut s = Sender::new(SenderConfig { window_chunks: 4, channels: 1, sockets: 1, rails: 1 });
    s.handle_flow_up(NOW, A);
    s.submit(NOW, transfer(1, 50));
    s.pull(NOW, A).unwrap();
    s.handle_written(A);
    ack(&mut s, 1);
    // The peer takes one transfer at a time: this one must wait for the end of the first.
    s.submit(NOW, transfer(2, 1));
    let mut done = Vec::new();
    for sequence in 2..10_000 {
        let Some(chunk) = s.pull(NOW, A) else { break };
        s.handle_written(A);
        let code = RefusalCode::Busy;
        let room = chunk.token == 1 || done.contains(&1);
        let refusal = AckFrame::Refusal { sequence, code };
        let ack = if room { AckFrame::Ack { sequence } } else { refusal };
        s.handle_ack(NOW, A, ack).unwrap();
        while let Some(event) = s.poll_event() {
            let TxEvent::Done { token } = event else { panic!("{event:?}") };
            done.push(token);
        }
    }
    assert_eq!(done, [1, 2]);
}

/// Returns the header of a chunk without payload.
fn header(transfer: u64, chunk: u32, chunk_count: u32) -> ChunkHeader {
    ChunkHeader { payload_len: 0, pieces: 0, ..common::chunk(transfer, chunk, chunk_count) }
}

#[test]
fn a_peer_that_never_raises_its_floor_is_not_remembered_without_bound() {
    let mut r = Receiver::new(ReceiverLimits {
        flows: 4,
        transfers: 8,
        chunks: 100,
        window: 8,
        ..ReceiverLimits::default()
    });
    // Every second number, so that finished transfers can't be stored as one range.
    let verdicts: Vec<_> = (0..100)
        .map(|i| {
            let verdict = r.handle_chunk(A, &header(1 + 2 * i, 0, 1), &[], b"", || Ok(())).unwrap();
            let settled = r.handle_chunk_end(A, true);
            assert_eq!(settled == Settled::Ack, verdict == Verdict::Land);
            verdict
        })
        .collect();
    let landed = verdicts.iter().filter(|v| **v == Verdict::Land).count();
    assert_eq!(landed, 8);
    assert_eq!(verdicts[99], Verdict::Refuse(RefusalCode::TransferQuota));
    let raised = ChunkHeader { floor: TransferId(16), ..header(199, 0, 1) };
    assert_eq!(r.handle_chunk(A, &raised, &[], b"", || Ok(())).unwrap(), Verdict::Land);
}

#[test]
fn a_peer_with_many_gaps_can_go_on_with_its_oldest_transfers() {
    let mut r = Receiver::new(ReceiverLimits {
        flows: 4,
        transfers: 4,
        chunks: 100,
        window: 8,
        ..ReceiverLimits::default()
    });
    let mut offer = |id| {
        let verdict = r.handle_chunk(A, &header(id, 0, 1), &[], b"", || Ok(())).unwrap();
        r.handle_chunk_end(A, true);
        verdict
    };
    for id in [3, 5, 7, 9] {
        assert_eq!(offer(id), Verdict::Land);
    }
    assert_eq!(offer(11), Verdict::Refuse(RefusalCode::TransferQuota));
    for id in [1, 2, 4, 6, 8, 11, 10] {
        assert_eq!(offer(id), Verdict::Land, "{id}");
    }
}

#[test]
fn a_peer_that_cancels_what_never_was_is_not_remembered_without_bound() {
    let mut r = Receiver::new(ReceiverLimits {
        flows: 4,
        transfers: 4,
        chunks: 100,
        window: 8,
        ..ReceiverLimits::default()
    });
    for id in 0..1000 {
        assert!(r.retire(TransferId(1000 + 2 * id)));
    }
    let late =
        |r: &mut Receiver, id| r.handle_chunk(A, &header(id, 0, 1), &[], b"", || Ok(())).unwrap();
    let over = Verdict::Refuse(RefusalCode::TransferOver);
    assert_eq!(late(&mut r, 1000), over, "the first are remembered");
    assert_eq!(late(&mut r, 2998), Verdict::Refuse(RefusalCode::TransferQuota), "the last are not");
}

#[test]
fn a_transfer_cannot_change_its_purpose_between_chunks() {
    let mut r = Receiver::new(ReceiverLimits::default());
    let data = |chunk| ChunkHeader { op: WireOp::SendData, context: 5, ..header(1, chunk, 3) };
    r.handle_chunk(A, &data(0), &[], b"", || Ok(())).unwrap();
    r.handle_chunk_end(A, true);
    for changed in [
        ChunkHeader { op: WireOp::Write, ..data(1) },
        ChunkHeader { context: 6, ..data(1) },
        ChunkHeader { chunk_count: 2, ..data(1) },
    ] {
        let error = r.handle_chunk(A, &changed, &[], b"", || Ok(())).unwrap_err();
        assert!(matches!(error, WireError::Field { .. }), "{error}");
    }
    assert_eq!(r.handle_chunk(A, &data(1), &[], b"", || Ok(())).unwrap(), Verdict::Land);
}

#[test]
fn a_reason_with_line_breaks_still_reaches_the_peer() {
    let (code, reason) = (RefusedCode::Limit, "full:\n\t8 of 8 \u{85}".to_owned());
    let reply = Reply::decode(&Reply::Refused { code, reason }.encode()).unwrap();
    assert_eq!(reply, Reply::Refused { code, reason: "full:  8 of 8  ".to_owned() });
}

#[test]
fn reserved_bytes_must_be_zero() {
    let mut bytes = Vec::new();
    header(1, 0, 1).encode(std::iter::empty(), b"", &mut bytes);
    for at in [14, 15, 52, 53, 54, 55] {
        let mut bytes = bytes.clone();
        bytes[at] = 1;
        let error = ChunkHeader::decode(bytes.as_slice().try_into().unwrap()).unwrap_err();
        assert!(matches!(error, WireError::Field { field: "zero" | "place", .. }), "{error}");
    }
    let ack = AckFrame::Ack { sequence: 1 }.encode();
    for at in 1..8 {
        let mut bytes = ack;
        bytes[at] = 1;
        assert!(AckFrame::decode(&bytes).is_err(), "byte {at}");
    }
}

#[test]
fn a_peer_that_leaves_transfers_with_messages_unfinished_is_not_remembered_without_bound() {
    let meta_bytes = 200 << 10;
    let mut r = Receiver::new(ReceiverLimits { meta_bytes, ..ReceiverLimits::default() });
    let long = vec![7; 64 << 10];
    let offer = |r: &mut Receiver, id, chunk, meta: &[u8]| {
        let header = ChunkHeader { meta_len: meta.len() as u32, ..header(id, chunk, 2) };
        let verdict = r.handle_chunk(A, &header, &[], meta, || Ok(())).unwrap();
        r.handle_chunk_end(A, true);
        verdict
    };
    let verdicts: Vec<_> = (1..=100).map(|id| offer(&mut r, id, 0, &long)).collect();
    let landed = verdicts.iter().filter(|verdict| **verdict == Verdict::Land).count();
    assert_eq!((landed, r.held().meta_bytes), (3, 3 * long.len()));
    assert_eq!(verdicts[99], Verdict::Refuse(RefusalCode::MessageQuota));
    assert_eq!(r.quota_refusals(), 97);
    // Chunks without a message are taken, and active transfers continue and free room.
    assert_eq!(offer(&mut r, 101, 0, b""), Verdict::Land);
    assert_eq!(offer(&mut r, 2, 1, b""), Verdict::Land);
    assert_eq!(r.poll_event().unwrap().meta, long);
    assert_eq!(offer(&mut r, 50, 0, &long), Verdict::Land);
    // A cancel frees room, too.
    assert_eq!(offer(&mut r, 51, 0, &long), Verdict::Refuse(RefusalCode::MessageQuota));
    r.retire(TransferId(1));
    assert_eq!(offer(&mut r, 51, 0, &long), Verdict::Land);
    assert_eq!(r.held().meta_bytes, 3 * long.len());
}

#[test]
fn a_reader_that_is_told_to_wait_is_as_patient_as_the_peer_is_busy_for_it() {
    let mut s = sender();
    s.submit(NOW, transfer(1, 1));
    s.pull(NOW, A).unwrap();
    s.handle_written(A);
    let later = NOW.after(std::time::Duration::from_secs(9));
    let refusal = AckFrame::Refusal { sequence: 1, code: RefusalCode::ReadQuota };
    s.handle_ack(later, A, refusal).unwrap();
    assert_eq!(s.held_back(), Some(RefusalCode::ReadQuota));
    assert_eq!(s.silence(later), std::time::Duration::from_secs(9), "a refusal is no progress");
    s.handle_peer_at_work(later);
    assert_eq!(s.silence(later), std::time::Duration::ZERO);
    // A read that ends frees room, whatever time it is.
    let mut sequence = 1;
    for _ in 0..5 {
        if s.pull(later, A).is_some() {
            sequence += 1;
            s.handle_written(A);
            let refusal = AckFrame::Refusal { sequence, code: RefusalCode::ReadQuota };
            s.handle_ack(later, A, refusal).unwrap();
        }
    }
    assert!(s.pull(later, A).is_none() && s.rest_until().is_some());
    assert!(s.peer_may_have_room() && s.pull(later, A).is_some());
    assert!(!s.peer_may_have_room(), "nothing rests");
}

#[test]
fn a_message_is_taken_whatever_its_length_if_none_else_is_held() {
    let limits = ReceiverLimits { meta_bytes: 10, ..ReceiverLimits::default() };
    let mut r = Receiver::new(limits);
    let header = |id| ChunkHeader { meta_len: 20, ..header(id, 0, 2) };
    assert_eq!(r.handle_chunk(A, &header(1), &[], &[1; 20], || Ok(())).unwrap(), Verdict::Land);
    // Again, by another flow.
    r.handle_flow_down(A);
    assert_eq!(r.handle_chunk(A, &header(1), &[], &[1; 20], || Ok(())).unwrap(), Verdict::Land);
    let other = r.handle_chunk(FlowIndex(1), &header(2), &[], &[1; 20], || Ok(())).unwrap();
    assert_eq!(other, Verdict::Refuse(RefusalCode::MessageQuota));
}

#[test]
fn chunks_that_may_come_again_are_remembered_within_a_bound_on_all_flows_together() {
    let (flows, window, proofs) = (100, 64, 1000);
    let limits = ReceiverLimits { flows, window, proofs, ..ReceiverLimits::default() };
    let mut r = Receiver::new(limits);
    let mut id = 0;
    let mut newest = Vec::new();
    for flow in (0..flows).map(FlowIndex) {
        for _ in 0..window {
            id += 1;
            r.handle_chunk(flow, &header(id, 0, 1), &[], b"", || Ok(())).unwrap();
            assert_eq!(r.handle_chunk_end(flow, true), Settled::Ack);
            assert!(r.held().proofs <= proofs, "{:?}", r.held());
        }
        newest.push(id);
    }
    assert!(r.held().proofs > proofs / 2, "{:?}", r.held());
    // The last ones that landed on each flow are among them.
    for id in newest {
        let again = r.handle_chunk(A, &header(id, 0, 1), &[], b"", || Ok(())).unwrap();
        assert_eq!(again, Verdict::Discard, "{id}");
        r.handle_chunk_end(A, true);
    }
}

#[test]
fn a_peer_that_takes_all_but_one_transfer_is_not_sent_that_one_again_and_again() {
    let mut s = sender();
    s.submit(NOW, transfer(1, 1));
    let (mut refused, mut taken) = (0, 0);
    for sequence in 1..2000 {
        s.submit(NOW, transfer(2, 1));
        let chunk = s.pull(NOW, A).unwrap();
        s.handle_written(A);
        let code = RefusalCode::TransferQuota;
        let ack = match chunk.token {
            1 => AckFrame::Refusal { sequence, code },
            _ => AckFrame::Ack { sequence },
        };
        refused += u32::from(chunk.token == 1);
        taken += u32::from(chunk.token == 2);
        s.handle_ack(NOW, A, ack).unwrap();
    }
    assert!(refused < 60, "{refused} in vain beside {taken}");
    assert_eq!(s.held_back(), Some(RefusalCode::TransferQuota));
    // An honest peer takes it in the end; nothing else is left then, and no time has passed.
    let mut sequence = 1999;
    while let Some(chunk) = s.pull(NOW, A) {
        sequence += 1;
        s.handle_written(A);
        s.handle_ack(NOW, A, AckFrame::Ack { sequence }).unwrap();
        taken += u32::from(chunk.token == 2);
    }
    assert_eq!((taken, s.is_busy(), s.held_back()), (1999, false, None));
}
