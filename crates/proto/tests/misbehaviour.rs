//! Peers that break the rules, and users who do odd things: bounded memory, no hang, no early end.

use std::sync::Arc;

use polyrail_proto::hello::{RefusedCode, Reply};
use polyrail_proto::wire::{AckFrame, ChunkHeader, Flags, Op, RefusalCode, WireError};
use polyrail_proto::{
    Failure, FlowIndex, NewTransfer, Plan, Receiver, ReceiverLimits, RegionKey, Segment, Sender,
    SenderConfig, Settled, Source, Time, TransferId, TxEvent, Verdict,
};

const NOW: Time = Time(0);
const A: FlowIndex = FlowIndex(0);

#[derive(Clone)]
struct Memory(Arc<Plan>);

impl Source for Memory {
    fn plan(&self) -> &Plan {
        &self.0
    }
    fn meta(&self) -> &[u8] {
        b""
    }
}

fn sender() -> Sender<Memory> {
    let mut sender =
        Sender::new(SenderConfig { window_chunks: 8, channels: 1, sockets: 1, rails: 1 });
    sender.handle_flow_up(NOW, A);
    sender
}

fn transfer(token: u64, chunks: u64) -> NewTransfer<Memory> {
    let remote = RegionKey { slot: 0, generation: 1, nonce: 0 };
    let len = chunks * 4096;
    let segment = Segment { local_region: 0, local_offset: 0, remote, remote_offset: 0, len };
    let source = Memory(Arc::new(Plan::new([segment], 4096).unwrap()));
    NewTransfer { op: Op::Write, flags: Flags::NONE, context: 0, source, token, deadline: None }
}

fn ack(sender: &mut Sender<Memory>, sequence: u64) {
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

fn header(transfer: u64, chunk: u32, chunk_count: u32) -> ChunkHeader {
    ChunkHeader {
        op: Op::Write,
        flags: Flags::NONE,
        meta_len: 0,
        payload_len: 0,
        pieces: 0,
        transfer: TransferId(transfer),
        chunk,
        chunk_count,
        floor: TransferId(1),
        context: 0,
        checksum: 0,
        place: 0,
    }
}

#[test]
fn a_peer_that_never_raises_its_floor_is_not_remembered_without_bound() {
    let mut r = Receiver::new(ReceiverLimits { flows: 4, transfers: 8, chunks: 100, window: 8 });
    // Every second number, so that what is done can't be kept as one range.
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
    assert_eq!(verdicts[99], Verdict::Refuse(RefusalCode::Busy));
    let raised = ChunkHeader { floor: TransferId(16), ..header(199, 0, 1) };
    assert_eq!(r.handle_chunk(A, &raised, &[], b"", || Ok(())).unwrap(), Verdict::Land);
}

#[test]
fn a_peer_with_many_gaps_can_go_on_with_its_oldest_transfers() {
    let mut r = Receiver::new(ReceiverLimits { flows: 4, transfers: 4, chunks: 100, window: 8 });
    let mut offer = |id| {
        let verdict = r.handle_chunk(A, &header(id, 0, 1), &[], b"", || Ok(())).unwrap();
        r.handle_chunk_end(A, true);
        verdict
    };
    for id in [3, 5, 7, 9] {
        assert_eq!(offer(id), Verdict::Land);
    }
    assert_eq!(offer(11), Verdict::Refuse(RefusalCode::Busy));
    for id in [1, 2, 4, 6, 8, 11, 10] {
        assert_eq!(offer(id), Verdict::Land, "{id}");
    }
}

#[test]
fn a_peer_that_cancels_what_never_was_is_not_remembered_without_bound() {
    let mut r = Receiver::new(ReceiverLimits { flows: 4, transfers: 4, chunks: 100, window: 8 });
    for id in 0..1000 {
        assert!(r.retire(TransferId(1000 + 2 * id)));
    }
    let late =
        |r: &mut Receiver, id| r.handle_chunk(A, &header(id, 0, 1), &[], b"", || Ok(())).unwrap();
    let over = Verdict::Refuse(RefusalCode::TransferOver);
    assert_eq!(late(&mut r, 1000), over, "the first are remembered");
    assert_eq!(late(&mut r, 2998), Verdict::Refuse(RefusalCode::Busy), "the last are not");
}

#[test]
fn a_transfer_cannot_change_its_purpose_between_chunks() {
    let mut r = Receiver::new(ReceiverLimits::default());
    let data = |chunk| ChunkHeader { op: Op::SendData, context: 5, ..header(1, chunk, 3) };
    r.handle_chunk(A, &data(0), &[], b"", || Ok(())).unwrap();
    r.handle_chunk_end(A, true);
    for changed in [
        ChunkHeader { op: Op::Write, ..data(1) },
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
