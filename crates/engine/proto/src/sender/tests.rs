use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::id::{FlowIndex, RegionKey};
use crate::plan::Segment;
use crate::wire::{AckFrame, WireError};

const NOW: Time = Time(0);
const A: FlowIndex = FlowIndex(0);
const B: FlowIndex = FlowIndex(1);

impl Source for Arc<Plan> {
    fn plan(&self) -> &Plan {
        self
    }
    fn meta(&self) -> &[u8] {
        b""
    }
}

fn sender(channels: u32, window_chunks: u32) -> Sender<Arc<Plan>> {
    let mut sender = Sender::new(SenderConfig { window_chunks, channels, sockets: 1, rails: 1 });
    for flow in 0..channels {
        sender.handle_flow_up(NOW, FlowIndex(flow));
    }
    sender
}

/// Returns a transfer of `chunks` chunks of 100 KiB.
fn transfer(token: u64, chunks: u64) -> NewTransfer<Arc<Plan>> {
    let remote = RegionKey { slot: 0, generation: 1, nonce: 0 };
    let len = chunks * 100 * 1024;
    let segment = Segment { local_region: 0, local_offset: 0, remote, remote_offset: 0, len };
    let source = Arc::new(Plan::new([segment], 100 * 1024).unwrap());
    NewTransfer { op: WireOp::Write, flags: Flags::NONE, context: 0, source, token, deadline: None }
}

fn pull(sender: &mut Sender<Arc<Plan>>, flow: FlowIndex) -> Option<(u64, u32)> {
    let chunk = sender.pull(NOW, flow)?;
    sender.handle_written(flow);
    Some((chunk.token, chunk.header.chunk))
}

fn wakes(sender: &mut Sender<Arc<Plan>>, now: Time) -> Vec<FlowIndex> {
    sender.wakes(now).collect()
}

fn ack(sender: &mut Sender<Arc<Plan>>, flow: FlowIndex, sequence: u64) {
    sender.handle_ack(NOW, flow, AckFrame::Ack { sequence }).unwrap();
}

#[test]
fn a_transfer_is_done_when_every_flow_has_acknowledged_its_chunks() {
    let mut s = sender(2, 4);
    s.submit(NOW, transfer(7, 3));
    assert_eq!(pull(&mut s, A), Some((7, 0)));
    assert_eq!(pull(&mut s, B), Some((7, 1)));
    assert_eq!(pull(&mut s, A), Some((7, 2)));
    assert_eq!(pull(&mut s, A), None);
    ack(&mut s, A, 2);
    assert_eq!(s.poll_event(), None);
    ack(&mut s, B, 1);
    assert_eq!(s.poll_event(), Some(TxEvent::Done { token: 7 }));
    assert!(!s.is_busy());
}

#[test]
fn a_channel_takes_no_more_chunks_than_its_window() {
    let mut s = sender(1, 2);
    s.submit(NOW, transfer(1, 3));
    assert!(pull(&mut s, A).is_some() && pull(&mut s, A).is_some());
    assert_eq!(pull(&mut s, A), None);
    ack(&mut s, A, 1);
    assert_eq!(pull(&mut s, A), Some((1, 2)));
}

#[test]
fn a_small_transfer_overtakes_a_large_one_which_is_not_starved() {
    let mut s = sender(1, 1000);
    s.submit(NOW, transfer(1, 50));
    assert_eq!(pull(&mut s, A), Some((1, 0)));
    for token in 100..130 {
        let source = Arc::new(Plan::empty());
        s.submit(NOW, NewTransfer { source, ..transfer(token, 1) });
    }
    let tokens: Vec<u64> = (0..30).map(|_| pull(&mut s, A).unwrap().0).collect();
    let bulk = tokens.iter().filter(|token| **token == 1).count();
    assert!((3..=4).contains(&bulk), "{tokens:?}");
}

#[test]
fn what_a_dead_flow_had_in_flight_goes_out_on_another() {
    let mut s = sender(2, 8);
    s.submit(NOW, transfer(1, 3));
    for chunk in 0..3 {
        assert_eq!(pull(&mut s, A), Some((1, chunk)));
    }
    ack(&mut s, A, 1);
    assert_eq!(s.handle_flow_down(A), 2);
    assert_eq!(pull(&mut s, A), None, "a flow that is down takes nothing");
    assert_eq!((pull(&mut s, B), pull(&mut s, B)), (Some((1, 1)), Some((1, 2))));
    ack(&mut s, B, 2);
    assert_eq!(s.poll_event(), Some(TxEvent::Done { token: 1 }));
    s.handle_flow_up(NOW, A);
    s.submit(NOW, transfer(2, 1));
    assert_eq!(pull(&mut s, A), Some((2, 0)), "its window is empty again");
}

#[test]
fn a_cancelled_transfer_ends_only_when_its_last_frame_is_written() {
    let mut s = sender(1, 8);
    let id = s.submit(NOW, transfer(1, 3));
    assert_eq!(s.pull(NOW, A).unwrap().header.chunk, 0);
    s.end(id, Failure::Cancelled);
    assert_eq!(s.poll_event(), None, "a flow still reads its memory");
    s.handle_written(A);
    let failure = Failure::Cancelled;
    let expected = TxEvent::Failed { token: 1, transfer: id, failure, started: true };
    assert_eq!(s.poll_event(), Some(expected));
    assert_eq!(pull(&mut s, A), None);
    ack(&mut s, A, 1);
    assert_eq!(s.poll_event(), None, "an end is reported once");
}

#[test]
fn a_cancelled_transfer_that_was_complete_is_done() {
    let mut s = sender(1, 8);
    let id = s.submit(NOW, transfer(1, 1));
    s.pull(NOW, A).unwrap();
    s.end(id, Failure::Cancelled);
    ack(&mut s, A, 1);
    assert_eq!(s.poll_event(), None, "its last frame is still being written");
    s.handle_written(A);
    assert_eq!(s.poll_event(), Some(TxEvent::Done { token: 1 }));
    assert_eq!(s.poll_event(), None);
}

#[test]
fn a_refusal_for_good_fails_the_transfer_and_a_passing_one_is_tried_again() {
    let mut s = sender(1, 8);
    s.submit(NOW, transfer(1, 1));
    pull(&mut s, A);
    let code = RefusalCode::Checksum;
    s.handle_ack(NOW, A, AckFrame::Refusal { sequence: 1, code }).unwrap();
    assert_eq!(pull(&mut s, A), Some((1, 0)));
    let code = RefusalCode::StaleKey;
    s.handle_ack(NOW, A, AckFrame::Refusal { sequence: 2, code }).unwrap();
    let Some(TxEvent::Failed { failure, .. }) = s.poll_event() else { panic!("no failure") };
    assert_eq!(failure, Failure::Refused(code));
    assert!(failure.to_string().contains("stale"));
}

#[test]
fn a_peer_that_refuses_again_and_again_in_passing_ends_the_transfer() {
    for code in [RefusalCode::Checksum, RefusalCode::NoRing, RefusalCode::NoStaging] {
        let mut s = sender(1, 8);
        s.submit(NOW, transfer(1, 1));
        let refusals = (1..10_000u64).take_while(|sequence| {
            let is_pulled = pull(&mut s, A).is_some();
            if is_pulled {
                s.handle_ack(NOW, A, AckFrame::Refusal { sequence: *sequence, code }).unwrap();
            }
            is_pulled
        });
        assert_eq!(refusals.count(), 1005, "1000 and 4 for its chunk are passed over");
        let event = s.poll_event();
        let Some(TxEvent::Failed { failure, .. }) = event else { panic!("{event:?}") };
        assert_eq!(failure, Failure::Refused(code));
    }
}

#[test]
fn a_chunk_that_is_handed_back_goes_on_another_flow_and_leaves_no_trace_on_its_own() {
    let mut s = sender(2, 1);
    s.submit(NOW, transfer(1, 2));
    assert_eq!(s.pull(NOW, A).unwrap().header.chunk, 0);
    assert!(!s.has_room(A));
    s.hand_back(A);
    assert!(s.has_work() && s.has_room(A) && s.in_flight(A) == 0);
    assert_eq!(pull(&mut s, B), Some((1, 0)));
    assert_eq!(pull(&mut s, A), Some((1, 1)));
    let ahead = s.handle_ack(NOW, A, AckFrame::Ack { sequence: 2 });
    assert_eq!(ahead, Err(WireError::AckBeyondSent { got: 2, sent: 1 }), "it was never sent");
    ack(&mut s, A, 1);
    ack(&mut s, B, 1);
    assert_eq!(s.poll_event(), Some(TxEvent::Done { token: 1 }));
}

#[test]
fn a_chunk_that_is_handed_back_ends_with_its_transfer() {
    let mut s = sender(1, 8);
    let id = s.submit(NOW, transfer(1, 2));
    s.pull(NOW, A).unwrap();
    s.end(id, Failure::Cancelled);
    assert_eq!(s.poll_event(), None, "a frame of it is begun");
    s.hand_back(A);
    let event = s.poll_event();
    assert!(matches!(event, Some(TxEvent::Failed { token: 1, .. })), "{event:?}");
    assert!(!s.has_work() && !s.is_busy());
}

#[test]
fn an_acknowledgement_of_what_was_never_sent_is_a_violation() {
    let mut s = sender(1, 8);
    s.submit(NOW, transfer(1, 1));
    pull(&mut s, A);
    let error = s.handle_ack(NOW, A, AckFrame::Ack { sequence: 2 }).unwrap_err();
    assert_eq!(error, WireError::AckBeyondSent { got: 2, sent: 1 });
}

#[test]
fn a_deadline_ends_a_transfer_and_the_next_one_is_reported() {
    let mut s = sender(1, 8);
    for (token, deadline) in [(1, 10), (2, 20)] {
        s.submit(NOW, NewTransfer { deadline: Some(Time(deadline)), ..transfer(token, 1) });
    }
    assert_eq!(s.handle_timeout(Time(9)), Some(Time(10)));
    assert_eq!(s.handle_timeout(Time(10)), Some(Time(20)));
    let event = s.poll_event();
    assert!(
        matches!(event, Some(TxEvent::Failed { token: 1, failure: Failure::Deadline, .. })),
        "{event:?}"
    );
    assert_eq!(pull(&mut s, A), Some((2, 0)));
}

#[test]
fn the_floor_rises_with_the_oldest_transfer() {
    let mut s = sender(1, 8);
    for token in 1..=3 {
        s.submit(NOW, transfer(token, 1));
    }
    assert_eq!(s.pull(NOW, A).unwrap().header.floor, TransferId(1));
    s.handle_written(A);
    ack(&mut s, A, 1);
    assert_eq!(s.pull(NOW, A).unwrap().header.floor, TransferId(2));
}

#[test]
fn a_stall_is_silence_with_something_in_flight() {
    let mut s = sender(1, 8);
    let stall = Duration::from_nanos(100);
    assert!(!s.is_stalled(Time(1000), A, stall));
    s.submit(Time(1000), transfer(1, 1));
    s.pull(Time(1000), A).unwrap();
    assert!(!s.is_stalled(Time(1099), A, stall));
    assert!(s.is_stalled(Time(1100), A, stall));
    s.handle_progress(Time(1100), A);
    assert!(!s.is_stalled(Time(1150), A, stall));
    // The peer lives, and repeats its acknowledgement: it has a reason to take long.
    s.handle_ack(Time(1190), A, AckFrame::Ack { sequence: 0 }).unwrap();
    assert!(!s.is_stalled(Time(1289), A, stall));
    assert!(s.is_stalled(Time(1290), A, stall));
}

#[test]
fn a_time_in_which_nobody_looked_is_no_silence() {
    let mut s = sender(1, 8);
    let stall = Duration::from_nanos(100);
    s.submit(Time(1000), transfer(1, 1));
    s.pull(Time(1000), A).unwrap();
    s.handle_absence(Time(1050), Time(5000), A);
    assert!(!s.is_stalled(Time(5049), A, stall));
    assert!(s.is_stalled(Time(5050), A, stall), "50 before it, and 50 after");
    s.handle_progress(Time(6000), A);
    s.handle_absence(Time(5500), Time(6000), A);
    assert_eq!(s.flow_progress(A), Time(6000), "it began before the silence");
}

/// Returns a sender with two rails of one channel each: A takes 100 us for a chunk, and B a millisecond.
fn uneven() -> Sender<Arc<Plan>> {
    const US: u64 = 1000;
    let config = SenderConfig { window_chunks: 16, channels: 2, sockets: 1, rails: 2 };
    let mut s = Sender::new(config);
    [A, B].iter().for_each(|flow| s.handle_flow_up(NOW, *flow));
    s.submit(NOW, transfer(0, 110));
    let mut acknowledged = [0, 0];
    for at in 0..=100 {
        let now = Time(at * 100 * US);
        for (flow, chunks) in [(A, 1), (B, u64::from(at % 10 == 0))] {
            if at > 0 && chunks > 0 {
                acknowledged[flow.0 as usize] += 1;
                let sequence = acknowledged[flow.0 as usize];
                s.handle_ack(now, flow, AckFrame::Ack { sequence }).unwrap();
            }
            while s.in_flight(flow) < 2 && s.pull(now, flow).is_some() {
                s.handle_written(flow);
            }
        }
    }
    while s.in_flight(A) + s.in_flight(B) > 0 {
        for flow in [A, B] {
            let sequence = s.flows[flow.0 as usize].pulled;
            s.handle_ack(Time(10_100 * US), flow, AckFrame::Ack { sequence }).unwrap();
            while s.pull(Time(10_100 * US), flow).is_some() {
                s.handle_written(flow);
            }
        }
    }
    assert_eq!(s.poll_event(), Some(TxEvent::Done { token: 0 }));
    s
}

/// Just after the transfer of [`uneven`].
const LATER: Time = Time(10_100_000);

#[test]
fn a_slow_rail_leaves_a_chunk_to_one_that_lands_it_earlier_and_that_one_is_woken() {
    let mut s = uneven();
    s.submit(LATER, transfer(1, 1));
    assert!(s.pull(LATER, B).is_none() && s.is_denied(B));
    assert_eq!(wakes(&mut s, LATER), [A], "nobody else would know of it");
    assert!(s.pull(LATER, A).is_some());
    assert_eq!(wakes(&mut s, LATER), [], "nothing is left");
    assert!(!s.is_denied(B));
}

#[test]
fn a_slow_rail_takes_a_chunk_of_many_and_is_woken_for_it() {
    let mut s = uneven();
    s.submit(LATER, transfer(1, 1));
    assert!(s.pull(LATER, B).is_none());
    s.submit(LATER, transfer(2, 30));
    assert!(wakes(&mut s, LATER).contains(&B), "there is enough for it by now");
    assert!(s.pull(LATER, B).is_some());
    assert!(s.pull(LATER, B).is_some() || s.is_denied(B));
}

#[test]
fn a_slow_rail_takes_what_a_fast_one_that_went_down_or_rests_leaves() {
    for goes_down in [true, false] {
        let mut s = uneven();
        s.submit(LATER, transfer(1, 1));
        assert!(s.pull(LATER, B).is_none());
        match goes_down {
            true => assert_eq!(s.handle_flow_down(A), 0),
            false => s.rest(A),
        }
        assert_eq!(wakes(&mut s, LATER), [B], "the other one takes nothing");
        assert!(s.pull(LATER, B).is_some());
    }
}

#[test]
fn a_slow_rail_takes_over_from_a_fast_one_that_has_gone_silent() {
    let mut s = uneven();
    s.submit(LATER, transfer(1, 2));
    assert!(s.pull(LATER, A).is_some());
    s.handle_written(A);
    assert!(s.pull(LATER, B).is_none());
    let after = |ms: u64| Time(LATER.0 + ms * 1_000_000);
    assert_eq!(wakes(&mut s, after(1)), [], "it may still come");
    assert_eq!(wakes(&mut s, after(100)), [B]);
    assert!(s.pull(after(100), B).is_some());
}

#[test]
fn a_rail_that_acknowledges_nothing_leaves_what_comes_then_to_an_idle_one() {
    let config = SenderConfig { window_chunks: 64, channels: 2, sockets: 1, rails: 2 };
    let mut s = Sender::new(config);
    [A, B].iter().for_each(|flow| s.handle_flow_up(NOW, *flow));
    s.submit(NOW, transfer(1, 11));
    while pull(&mut s, A).is_some() {}
    assert_eq!(s.in_flight(A), 11, "it is not known to be slow");
    s.submit(NOW, transfer(2, 1));
    assert!(pull(&mut s, A).is_none() && s.is_denied(A));
    assert_eq!(wakes(&mut s, NOW), [B], "nobody else would know of it");
    assert_eq!(pull(&mut s, B), Some((2, 0)));
    s.submit(NOW, transfer(3, 1));
    assert_eq!(pull(&mut s, A), Some((3, 0)), "no rail is idle");
}

#[test]
fn a_rail_that_is_known_leaves_a_chunk_to_an_untried_one_if_it_has_enough_itself() {
    const MS: u64 = 1_000_000;
    let mut rails = rails::Rails::new(2);
    [0, 1].into_iter().for_each(|rail| rails.set_usable(rail, true));
    // A chunk took a millisecond on the first rail.
    let first = rails.take(NOW, 0, CHUNK);
    rails.landed(Time(MS), 0, first);
    rails.heard(Time(MS), 0);
    let may = |rails: &rails::Rails, rail, bytes: u32| {
        let next = rails::Next { bytes: bytes.into(), is_copied: false, near: 0 };
        rails.may_take(Time(MS), rail, next, u64::from(bytes))
    };
    assert!(may(&rails, 0, CHUNK), "nothing is on its way there");
    rails.take(Time(MS), 0, CHUNK);
    assert!(!may(&rails, 0, CHUNK) && may(&rails, 1, CHUNK));
    assert!(may(&rails, 0, 8 << 10), "the other rail would stay unknown");
    rails.take(Time(MS), 1, CHUNK);
    assert!(may(&rails, 0, CHUNK), "the other one is busy, and nobody knows for how long");
}

/// Returns a sender with two rails that are known to land a chunk of 100 KiB in 100 us, and in a multiple of that.
fn rails_of(times: u64) -> (rails::Rails, Time) {
    let mut known = rails::Rails::new(2);
    let mut now = 0;
    for (rail, took) in [(0, 100_000), (1, 100_000 * times)] {
        known.set_usable(rail, true);
        let mut load = known.take(Time(now), rail, CHUNK);
        for _ in 0..20 {
            let next = known.take(Time(now), rail, CHUNK);
            now += took;
            known.landed(Time(now), rail, std::mem::replace(&mut load, next));
            known.heard(Time(now), rail);
        }
        known.give_back(rail, load);
    }
    (known, Time(now))
}

const CHUNK: u32 = 100 << 10;

#[test]
fn a_rail_that_seems_somewhat_slower_takes_its_part_of_what_devices_copy() {
    for (times, of_host, of_device) in
        [(1, true, true), (3, false, true), (6, false, true), (12, false, false)]
    {
        let (mut known, now) = rails_of(times);
        known.take(now, 1, CHUNK);
        let may = |is_copied| {
            let next = rails::Next { bytes: CHUNK.into(), is_copied, near: 0 };
            known.may_take(now, 1, next, 2 * u64::from(CHUNK))
        };
        assert_eq!((may(false), may(true)), (of_host, of_device), "{times} times as slow");
    }
}
