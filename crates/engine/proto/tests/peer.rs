//! Two peers, joined by one flow in each direction: their sides handle operations, which end in various ways.

#[path = "common/operation.rs"]
mod operation;

use std::sync::Arc;

use operation::{KEY, Op, Request, plan};
use polyrail_proto::message::{CopyLeave, Half, Message, PostedReceive};
use polyrail_proto::peer::{
    Delivered, Delivery, Inbound, NewReceive, Operation, Outbound, Quotas, ReadBreach,
    ReadQuestion, SendPath,
};
use polyrail_proto::wire::{AckFrame, Place, RefusalCode};
use polyrail_proto::{
    Failure, FlowIndex, ReceiverLimits, SenderConfig, Settled, Source, Time, Verdict,
};

const FLOW: FlowIndex = FlowIndex(0);
const NOW: Time = Time(1000);
const CONFIG: SenderConfig = SenderConfig { window_chunks: 8, channels: 1, sockets: 1, rails: 1 };

/// One of two peers, and everything reported to it.
struct Side {
    outbound: Outbound<Op>,
    inbound: Inbound<Op>,
    quotas: Arc<Quotas>,
    sequence: u64,
    /// Answer to each read of the peer.
    serves: Result<(), RefusalCode>,
    /// Path of its sends.
    path: SendPath,
    log: Vec<String>,
}

impl Side {
    fn new() -> Self {
        let quotas = Arc::new(Quotas::new(8));
        let mut outbound = Outbound::new(CONFIG, quotas.clone());
        outbound.sender.handle_flow_up(NOW, FLOW);
        Self {
            outbound,
            inbound: Inbound::new(ReceiverLimits::default(), quotas.clone()),
            quotas,
            sequence: 0,
            serves: Ok(()),
            path: SendPath::Rails,
            log: Vec::new(),
        }
    }

    fn read(&mut self, op: &Op) {
        let question = ReadQuestion::new(op.plan().segments(), |_| KEY);
        let news = self.inbound.begin_read(op.clone(), question, false);
        self.outbound.announce(NOW, news);
    }

    fn receive(&mut self, op: &Op, leave: CopyLeave) {
        let new = NewReceive::new(op.clone(), 5, leave, |_| KEY);
        let news = self.inbound.begin_receive(new);
        self.outbound.announce(NOW, news);
    }

    fn send(&mut self, op: &Op) {
        self.outbound.send(NOW, op.clone(), 5, &mut self.path);
        self.drain();
    }

    /// Ends a read or receive for the user.
    fn end(&mut self, op: &Op) {
        for leaving in self.inbound.end(|other| other == op) {
            assert!(self.inbound.has_left(&leaving));
            self.outbound.let_go(NOW, leaving, Failure::Cancelled, false);
        }
        self.drain();
    }

    fn drain(&mut self) {
        while let Some(end) = self.outbound.poll_end(NOW) {
            use polyrail_proto::peer::End::{
                AskForPlaces, Copy, Done, Failed, Own, TooLong, Unannounced,
            };
            self.log.push(match end {
                Done { op, bytes } => format!("{} done, {bytes} bytes", op.0.id),
                Failed { op, failure } => format!("{} failed: {failure}", op.0.id),
                TooLong { op, len, capacity } => format!("{}: {len} over {capacity}", op.0.id),
                Unannounced { awaited, failure, .. } => match self.inbound.forget(awaited) {
                    Some(op) => format!("{} failed: {failure}", op.0.id),
                    None => continue,
                },
                Copy { op, receive } => format!("copy {} into {}", op.0.id, receive.receive),
                AskForPlaces { op, .. } => format!("ask for places of {}", op.0.id),
                Own(own) => format!("own {own}"),
            });
        }
    }

    fn deliver(&mut self) {
        let mut delivery = Delivery::default();
        self.inbound.take(&mut delivery);
        if delivery.is_empty() {
            return self.drain();
        }
        for arrival in delivery.arrivals.drain(..) {
            match arrival.read() {
                Delivered::Message(message) => self.hear(message),
                Delivered::Notification(data) => self.log.push(format!("notified {data:?}")),
                Delivered::Read { op, bytes } => self.log.push(format!("{} read {bytes}", op.0.id)),
                Delivered::Received { op, bytes, is_copied } => {
                    self.log.push(format!("{} received {bytes}, copied {is_copied}", op.0.id));
                }
                Delivered::Failed(op, why) => self.log.push(format!("{}: {why:?}", op.0.id)),
                Delivered::Unknown(error) => self.log.push(error.to_string()),
                Delivered::Nothing => {}
            }
        }
        self.inbound.end_delivery(&mut delivery);
        // A message may have ended a read or receive.
        self.deliver();
    }

    fn hear(&mut self, message: Message) {
        match message.half() {
            Half::Inbound => self.inbound.handle_message(&message),
            Half::Outbound => {
                let copy = self.outbound.handle_message(NOW, message, &mut self.path).unwrap();
                self.log.extend(copy.map(|copy| format!("stop {copy}")));
            }
            Half::Driver => match message {
                Message::ReadRequest { read, pieces, .. } => {
                    let bytes = pieces.iter().map(|piece| piece.from.len).sum();
                    let data = self.serves.map(|()| Request(Arc::new((plan(bytes), Vec::new()))));
                    self.outbound.serve_read(NOW, read, data).unwrap();
                }
                other => self.log.push(format!("{other:?}")),
            },
        }
    }

    fn log(&mut self) -> Vec<String> {
        std::mem::take(&mut self.log)
    }
}

/// Lands the next chunk at the other side, which has not delivered it yet. Returns the answer that is due; `None` if
/// there was no chunk left.
fn land_one(from: &mut Side, to: &mut Side) -> Option<Settled> {
    let chunk = from.outbound.sender.pull(NOW, FLOW)?;
    from.outbound.sender.handle_written(FLOW);
    let header = chunk.header;
    let places: Vec<Place> = chunk
        .source
        .plan()
        .pieces(header.chunk)
        .map(|piece| Place { key: piece.remote, offset: piece.remote_offset, len: piece.len })
        .collect();
    let meta = if header.meta_len > 0 { chunk.source.meta() } else { &[] };
    let verdict = to.inbound.handle_chunk(FLOW, &header, &places, meta, |_| Ok(())).unwrap();
    if verdict == Verdict::Land {
        assert!(to.inbound.receiver.begin_landing(FLOW));
        to.inbound.receiver.end_landing(FLOW);
    }
    Some(to.inbound.receiver.handle_chunk_end(FLOW, true))
}

/// Lands the next chunk at the other side, and acknowledges it after delivery. Returns whether there was one.
fn carry_one(from: &mut Side, to: &mut Side) -> bool {
    let Some(settled) = land_one(from, to) else { return false };
    to.deliver();
    acknowledge(from, to, settled);
    true
}

fn acknowledge(from: &mut Side, to: &Side, settled: Settled) {
    from.sequence += 1;
    let sequence = from.sequence;
    let ack = match settled {
        Settled::Ack => AckFrame::Ack { sequence },
        Settled::Refuse(code) => AckFrame::Refusal { sequence, code },
    };
    assert!(to.inbound.receiver.is_quiet());
    from.outbound.sender.handle_ack(NOW, FLOW, ack).unwrap();
    from.drain();
}

/// Moves chunks until neither side has any left.
fn carry_all(a: &mut Side, b: &mut Side) {
    while carry_one(a, b) || carry_one(b, a) {}
    for side in [a, b] {
        assert!(!side.outbound.sender.is_busy());
        assert_eq!((side.outbound.untold(), side.quotas.text()), (0, None));
    }
}

#[test]
fn a_read_is_served_or_fails_with_the_reason_of_its_peer() {
    let (mut a, mut b) = (Side::new(), Side::new());
    a.read(&Op::new(1, 250));
    carry_all(&mut a, &mut b);
    assert_eq!(a.log(), ["1 read 250"]);
    b.serves = Err(RefusalCode::StaleKey);
    a.read(&Op::new(2, 250));
    carry_all(&mut a, &mut b);
    assert_eq!(a.log(), ["2: Refused(StaleKey)"]);
    assert!(!a.inbound.is_waiting() && b.log().is_empty());
}

#[test]
fn a_read_that_its_user_ends_takes_up_nothing_at_its_peer() {
    let (mut a, mut b) = (Side::new(), Side::new());
    let read = Op::new(1, 250);
    a.read(&read);
    assert!(carry_one(&mut a, &mut b) && carry_one(&mut b, &mut a));
    assert_eq!(b.quotas.text().unwrap(), "reads served 1, receives posted 0, answers not taken 0");
    a.end(&read);
    assert_eq!(a.log(), ["1 failed: cancelled"]);
    carry_all(&mut a, &mut b);
    assert!(a.log().is_empty() && b.log().is_empty());
}

#[test]
fn a_peer_that_asks_for_a_read_twice_breaks_the_rules() {
    let mut b = Side::new();
    let data = || Ok(Request(Arc::new((plan(10), Vec::new()))));
    b.outbound.serve_read(NOW, 3, data()).unwrap();
    assert_eq!(b.outbound.serve_read(NOW, 3, data()), Err(ReadBreach::IsServed { read: 3 }));
    let refuse = |read| b.outbound.serve_read(NOW, read, Err(RefusalCode::ReadQuota)).err();
    let text = (4..4096).find_map(refuse).unwrap().to_string();
    assert!(text.contains("answers not taken is exceeded: 2049, "), "{text}");
}

#[test]
fn a_send_fills_its_receive_whichever_comes_first() {
    let (mut a, mut b) = (Side::new(), Side::new());
    a.send(&Op::new(1, 150));
    b.receive(&Op::new(2, 200), CopyLeave::No);
    carry_all(&mut a, &mut b);
    assert_eq!(
        (a.log(), b.log()),
        (vec!["1 done, 150 bytes".into()], vec!["2 received 150, copied false".into()])
    );
    b.receive(&Op::new(3, 100), CopyLeave::No);
    while carry_one(&mut b, &mut a) {}
    a.send(&Op::new(4, 150));
    carry_all(&mut a, &mut b);
    assert_eq!(
        (a.log(), b.log()),
        (vec!["4: 150 over 100".into()], vec!["3: TooLong { len: 150, capacity: 100 }".into()])
    );
}

#[test]
fn a_withdrawn_receive_leaves_the_send_to_the_next_one() {
    let (mut a, mut b) = (Side::new(), Side::new());
    let first = Op::new(1, 100);
    b.receive(&first, CopyLeave::No);
    while carry_one(&mut b, &mut a) {}
    b.end(&first);
    b.receive(&Op::new(2, 100), CopyLeave::No);
    while carry_one(&mut b, &mut a) {}
    a.send(&Op::new(3, 100));
    carry_all(&mut a, &mut b);
    assert_eq!(b.log(), ["1 failed: cancelled", "2 received 100, copied false"]);
}

#[test]
fn a_receive_that_a_peer_copies_into_is_over_when_the_peer_has_stopped() {
    let (mut a, mut b) = (Side::new(), Side::new());
    a.path = SendPath::Copy;
    let (send, receive) = (Op::new(1, 100), Op::new(2, 100));
    a.send(&send);
    b.receive(&receive, CopyLeave::Yes);
    while carry_one(&mut b, &mut a) {}
    assert_eq!(a.log(), ["copy 1 into 1"]);
    assert!(a.outbound.begin_copy(&send, 1, "the copy"));
    b.end(&receive);
    assert!(b.log().is_empty(), "the peer may still be copying");
    while carry_one(&mut b, &mut a) {}
    assert_eq!(
        (a.log(), b.log()),
        (vec!["stop the copy".into()], vec!["2 failed: cancelled".into()])
    );
    assert!(!a.outbound.handle_copied(NOW, &send, 1) && !a.outbound.begin_copy(&send, 1, "late"));
    // A receive that is not withdrawn gets the number of bytes in place, or the bytes over the rails.
    for number in 2..=3 {
        let (send, receive) = (Op::new(3, 100), Op::new(4, 120));
        b.receive(&receive, CopyLeave::Yes);
        while carry_one(&mut b, &mut a) {}
        a.send(&send);
        let is_copied = number == 2;
        match is_copied {
            true => assert!(a.outbound.handle_copied(NOW, &send, number)),
            false => {
                let (key, leave) = (KEY, CopyLeave::Yes);
                let places = vec![Place { key, offset: 0, len: 120 }];
                let posted = PostedReceive { receive: number, tag: 5, places, leave };
                let host = &mut SendPath::Rails;
                assert!(a.outbound.copy_over_rails(NOW, &send, &posted, host));
            }
        }
        carry_all(&mut a, &mut b);
        assert_eq!(a.log(), [format!("copy 3 into {number}"), "3 done, 100 bytes".into()]);
        assert_eq!(b.log(), [format!("4 received 100, copied {is_copied}")]);
    }
}

#[test]
fn a_write_that_has_begun_fails_when_the_peer_has_confirmed_that_nothing_of_it_lands() {
    let (mut a, mut b) = (Side::new(), Side::new());
    let write = Op::new(1, 250);
    a.outbound.write(NOW, write.clone(), Request(Arc::new((plan(250), b"hi".to_vec()))), true);
    assert!(carry_one(&mut a, &mut b));
    a.outbound.cancel(&write, None, Failure::Cancelled);
    a.drain();
    assert!(a.log().is_empty());
    carry_all(&mut a, &mut b);
    assert_eq!((a.log(), b.log()), (vec!["1 failed: cancelled".into()], Vec::new()));
    // An operation of which nothing was sent is over at once.
    let write = Op::new(2, 250);
    a.outbound.write(NOW, write.clone(), Request(Arc::new((plan(250), Vec::new()))), false);
    a.outbound.cancel(&write, None, Failure::Cancelled);
    a.drain();
    assert_eq!(a.log(), ["2 failed: cancelled"]);
}

#[test]
fn what_waits_ends_with_its_deadline_and_with_its_peer() {
    let mut a = Side::new();
    a.send(&Op::with_deadline(1, 10, Some(Time(2000))));
    a.send(&Op::with_deadline(2, 10, Some(Time(3000))));
    a.send(&Op::new(3, 10));
    assert_eq!(a.outbound.handle_timeout(Time(2500)), Some(Time(3000)));
    a.drain();
    assert_eq!(a.log(), ["1 failed: the deadline passed"]);
    a.outbound.tell_own(NOW, &Message::Bye, 9);
    let read = Op::new(4, 10);
    a.read(&read);
    a.outbound.lose();
    a.drain();
    let gone = "failed: the peer is gone";
    let ends = [format!("2 {gone}"), format!("3 {gone}"), "own 9".to_owned(), format!("4 {gone}")];
    assert_eq!(a.log(), ends);
    assert!(!a.outbound.is_waiting() && !a.outbound.sender.is_busy());
    a.end(&read);
    assert!(a.log().is_empty() && !a.inbound.is_waiting(), "it has ended once");
    // An operation that began while the peer left can't be announced any longer.
    let question = ReadQuestion::new(read.plan().segments(), |_| KEY);
    a.inbound.begin_read(read.clone(), question, false);
    a.end(&read);
    assert_eq!(a.log(), ["4 failed: cancelled"]);
    assert!(!a.outbound.sender.is_busy());
}

#[test]
fn reads_and_receives_end_with_their_deadline_unless_they_are_complete() {
    let (mut a, mut b) = (Side::new(), Side::new());
    a.read(&Op::with_deadline(1, 10, Some(Time(2000))));
    while carry_one(&mut a, &mut b) {}
    let settled = land_one(&mut b, &mut a).unwrap();
    let ends = [None, Some(Time(2000)), Some(Time(3000))];
    for (op, end) in (2..).zip(ends) {
        a.read(&Op::with_deadline(op, 10, end));
    }
    for (op, end) in (5..).zip(ends) {
        a.receive(&Op::with_deadline(op, 10, end), CopyLeave::No);
    }
    for (now, late, next) in [(1999, vec![], 2000), (2000, vec![3, 6], 3000)] {
        let (leaving, due) = a.inbound.handle_timeout(Time(now));
        let ops: Vec<u32> = leaving.iter().map(|it| it.op.0.id).collect();
        assert_eq!((ops, due), (late, Some(Time(next))));
        for it in leaving {
            assert!(a.inbound.has_left(&it));
            a.outbound.let_go(NOW, it, Failure::Deadline, false);
        }
    }
    a.deliver();
    acknowledge(&mut b, &a, settled);
    let late = |op| format!("{op} failed: the deadline passed");
    assert_eq!(a.log(), ["1 read 10".to_owned(), late(3), late(6)]);
    while carry_one(&mut a, &mut b) {}
    assert_eq!(b.outbound.waiting_receives(), 2, "the peer knows that one is withdrawn");
    // An operation that ends otherwise no longer has a deadline.
    while carry_one(&mut b, &mut a) {}
    assert_eq!(a.log(), ["2 read 10", "4 read 10"]);
    let (leaving, due) = a.inbound.handle_timeout(Time(9000));
    assert_eq!((leaving.len(), due), (1, None));
    assert_eq!(leaving[0].op.0.id, 7);
    assert_eq!(a.inbound.receives().map(|(_, it)| it.op.0.id).collect::<Vec<_>>(), [5]);
}
