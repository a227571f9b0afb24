//! One peer that takes all it can get: it meets its quotas, and others go on. Alone in their process, since lines of
//! the process's whole log are counted.

mod common;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::{Duration, Instant};

use common::stranger::{Stranger, card, frame, hello, key_of, write_header};
use common::*;
use polyrail::{Access, Engine, Memory, RefusalCode, Registrable, Request, TransferError};
use polyrail_proto::TransferId;
use polyrail_proto::hello::{FlowHello, Hello, RefusedCode, Reply};
use polyrail_proto::message::{CopyLeave, Message, PostedReceive, ReadPiece};
use polyrail_proto::wire::{ACK_BYTES, AckFrame, ChunkHeader, Flags, Place, WireOp};
use socket2::SockRef;

/// A listener here never answers: without a listener, a peer that hangs up is forgotten at once.
fn nowhere() -> SocketAddr {
    static LISTENER: LazyLock<TcpListener> =
        LazyLock::new(|| TcpListener::bind("127.0.0.1:0").unwrap());
    LISTENER.local_addr().unwrap()
}

/// Makes a peer of the engine with its own flow, whose own port never answers.
fn greedy(engine: &Engine) -> Stranger {
    Stranger::welcome_at(engine, hello(engine, card(&[nowhere()])))
}

/// Makes a frame without payload.
fn said(transfer: u64, op: WireOp, flags: Flags, meta: &[u8]) -> Vec<u8> {
    let transfer = TransferId(transfer);
    let meta_len = meta.len() as u32;
    let header = ChunkHeader { op, flags, meta_len, transfer, ..write_header(0, 0) };
    frame(header, &[], meta, &[])
}

fn message(transfer: u64, message: &Message) -> Vec<u8> {
    said(transfer, WireOp::Control, Flags::NONE, &message.encode())
}

/// Sends these frames, and returns the refusals; frames that are merely acknowledged are not among them.
fn refusals(peer: &mut Stranger, frames: impl Iterator<Item = Vec<u8>>) -> Vec<(u64, RefusalCode)> {
    let mut refused = Vec::new();
    let mut count = 0;
    let mut heard = 0;
    for frame in frames {
        peer.say(&frame);
        count += 1;
        // Like an honest peer, which waits while its window is full.
        while heard + 16 < count {
            heard = hear(peer, &mut refused);
        }
    }
    while heard < count {
        heard = hear(peer, &mut refused);
    }
    refused
}

fn hear(peer: &mut Stranger, refused: &mut Vec<(u64, RefusalCode)>) -> u64 {
    match peer.ack() {
        AckFrame::Ack { sequence } => sequence,
        AckFrame::Bye | AckFrame::Words(_) => panic!("it leaves"),
        AckFrame::Refusal { sequence, code } => {
            refused.push((sequence, code));
            sequence
        }
    }
}

/// Checks that bytes arrive at `b`, both ways, with a message and a read.
fn others_go_on(p: &Pair) {
    let len = 300_000;
    let (source, target) = (filled(&p.a, len, 5), zeroed(&p.b, len));
    let there = remote(&p.a, &target);
    p.a.write(&p.to_b, &source.all(), &there.all()).unwrap().ended().unwrap();
    assert!(bytes(&target) == pattern(len, 5));
    let back = zeroed(&p.a, len);
    p.a.read(&p.to_b, &back.all(), &there.all()).unwrap().ended().unwrap();
    assert!(bytes(&back) == pattern(len, 5));
    let into = zeroed(&p.b, len);
    let receive = p.b.receive(&p.to_a, 3, &into.all()).unwrap();
    p.a.send(&p.to_b, 3, &source.all()).unwrap().ended().unwrap();
    assert_eq!(receive.ended().unwrap().bytes, len as u64);
}

fn quota_refusals(engine: &Engine) -> u64 {
    let peers = engine.stats().peers;
    peers.iter().filter(|peer| peer.name == "stranger").map(|peer| peer.quota_refusals).sum()
}

#[test]
fn one_that_posts_receives_without_end_is_refused_the_rest() {
    let p = pair(&[]);
    let mut other = greedy(&p.b);
    let key = key_of(&zeroed(&p.b, 64));
    let places = vec![Place { key, offset: 0, len: 1 }; 1024];
    let posts = (1..=400).map(|receive| {
        let (places, leave) = (places.clone(), CopyLeave::No);
        let posted = PostedReceive { receive, tag: receive, places, leave };
        message(receive, &Message::ReceivePosted(posted))
    });
    let refused = refusals(&mut other, posts);
    assert!(refused.iter().all(|(_, code)| *code == RefusalCode::ReceiveQuota), "{refused:?}");
    // 2^18 places, and the rest of the read that brought the last of them.
    assert!((100..=144).contains(&refused.len()), "{} of 400", refused.len());
    assert_eq!(quota_refusals(&p.b), refused.len() as u64);
    let dump = p.b.dump();
    let taken = format!("{} receives posted", 400 - refused.len());
    assert!(dump.contains(&taken), "{dump}");
    assert!(dump.contains(&format!("refused {} times", refused.len())), "{dump}");
    others_go_on(&p);
}

#[test]
fn one_that_posts_receives_in_spite_of_refusals_loses_its_flow() {
    let p = pair(&[]);
    let mut other = greedy(&p.b);
    // Numbers that it never reaches.
    let withdrawals = (0..200_000).map(|n| {
        let receive = 1000 + 2 * n;
        message(1 + n, &Message::ReceiveWithdrawn { receive })
    });
    std::thread::scope(|scope| {
        let mut reader = other.stream.try_clone().unwrap();
        scope.spawn(move || {
            let mut buffer = [0; 1 << 16];
            while reader.read(&mut buffer).is_ok_and(|bytes| bytes > 0) {}
        });
        // Until the engine cuts it off.
        other.say_all(withdrawals);
    });
    let dump = p.b.dump();
    let why = "quota of posted receives is exceeded: 131073, allowed is at most 131072";
    assert!(dump.contains(why), "{dump}");
    others_go_on(&p);
}

#[test]
fn an_honest_receive_too_many_fails_with_the_name_of_the_quota_and_later_ones_go_on() {
    let p = pair(&[]);
    let len = 1024 * 16;
    let region = p.a.register(Memory::from(vec![0; len]).with_access(Access::LOCAL)).unwrap();
    // 1024 places that are not adjacent.
    let slices = || (0..1024).map(|n| region.slice(n * 16, 8).unwrap());
    let receives: Vec<_> = (0..400)
        .map(|tag| p.a.post(Request::receive(&p.to_b, tag).locals(slices())).unwrap())
        .collect();
    let mut last = receives.last().unwrap().wait(LONG);
    let Some(Err(TransferError::Refused { code, peer })) = last.take() else { panic!("{last:?}") };
    assert_eq!((code, peer), (RefusalCode::ReceiveQuota, p.to_b.name().to_owned()));
    let error = receives.last().unwrap().ended().unwrap_err().to_string();
    assert!(error.contains("quota of posted receives"), "{error}");
    // The accepted receives are matched, and so are those posted after the refused ones.
    let source = filled(&p.b, 8 * 1024, 7);
    let waiting = || {
        let waits = |tag: &usize| receives[*tag].wait(Duration::ZERO).is_none();
        (0..receives.len()).filter(waits).collect::<Vec<_>>()
    };
    wait_for("each to be taken or refused", || {
        p.b.dump().contains(&format!("receives posted {},", waiting().len()))
    });
    let waiting = waiting();
    assert!((200..=320).contains(&waiting.len()), "{} of 400", waiting.len());
    for tag in waiting.into_iter().take(100) {
        p.b.send(&p.to_a, tag as u64, &source.all()).unwrap().ended().unwrap();
        assert_eq!(receives[tag].ended().unwrap().bytes, 8 * 1024);
    }
    let again = p.a.post(Request::receive(&p.to_b, 1000).locals(slices())).unwrap();
    p.b.send(&p.to_a, 1000, &source.all()).unwrap().ended().unwrap();
    assert_eq!(again.ended().unwrap().bytes, 8 * 1024);
}

#[test]
fn one_that_reads_and_takes_no_data_is_told_to_wait() {
    let p = pair(&[("peer_timeout_ms", "600000")]);
    let region = filled(&p.b, 4096, 9);
    let from = Place { key: key_of(&region), offset: 0, len: 64 };
    let asks = |read, from| {
        let pieces = vec![ReadPiece { from, to_key: from.key, to_offset: 0 }];
        message(read, &Message::ReadRequest { read, pieces, shared: false })
    };
    let mut other = greedy(&p.b);
    let refused = refusals(&mut other, (1..=5000).map(|read| asks(read, from)));
    let code = RefusalCode::ReadQuota;
    assert!(refused.iter().all(|(_, refusal)| *refusal == code), "{refused:?}");
    assert!((800..=904).contains(&refused.len()), "{}", refused.len());
    let dump = p.b.dump();
    assert!(dump.contains(&format!("reads served {}", 5000 - refused.len())), "{dump}");
    // Failed reads are answered, and those answers are bounded, too.
    let mut wrong = greedy(&p.b);
    let outside = Place { offset: 5000, ..from };
    let refused = refusals(&mut wrong, (1..=5000).map(|read| asks(read, outside)));
    assert!((3900..=3976).contains(&refused.len()), "{}", refused.len());
    others_go_on(&p);
}

#[test]
fn an_honest_reader_that_asks_for_more_than_is_served_at_once_gets_it_all() {
    let a = builder().config(config(&[("ops_pool", "16384")])).build().unwrap();
    let b = engine(&[]);
    let to_b = a.add_peer(&b.metadata()).unwrap();
    b.add_peer(&a.metadata()).unwrap();
    let (source, into) = (filled(&b, 1 << 20, 3), zeroed(&a, 1 << 20));
    let there = remote(&a, &source);
    let reads: Vec<_> = (0..10_000)
        .map(|n| {
            let at = n % 256 * 4096;
            let slice = into.slice(at, 4096).unwrap();
            a.read(&to_b, &slice, &there.slice(at, 4096).unwrap()).unwrap()
        })
        .collect();
    reads.iter().for_each(finished);
    assert!(bytes(&into) == pattern(1 << 20, 3));
    assert_eq!((a.stats().rescues, b.stats().rescues), (0, 0));
}

#[test]
fn reads_of_much_memory_by_few_bytes_are_bounded_by_what_they_cost() {
    let p = pair(&[("peer_timeout_ms", "600000"), ("chunk_bytes", "4KiB")]);
    let region = zeroed(&p.b, 16 << 20);
    let from = Place { key: key_of(&region), offset: 0, len: 16 << 20 };
    let pieces = vec![ReadPiece { from, to_key: from.key, to_offset: 0 }; 400];
    let ask = |read| Message::ReadRequest { read, pieces: pieces.clone(), shared: false };
    let mut other = greedy(&p.b);
    // Each is cut into 1.6 million chunks.
    let refused = refusals(&mut other, (1..=6).map(|read| message(read, &ask(read))));
    assert!(refused.len() >= 3, "{refused:?}");
    let dump = p.b.dump();
    assert!(dump.contains("reads served 1,") || dump.contains("reads served 2,"), "{dump}");
    others_go_on(&p);
}

#[test]
fn a_read_that_is_asked_for_twice_ends_the_flow() {
    let engine = one_rail(&[]);
    let region = filled(&engine, 4096, 9);
    let from = Place { key: key_of(&region), offset: 0, len: 64 };
    let pieces = vec![ReadPiece { from, to_key: from.key, to_offset: 0 }];
    let ask = Message::ReadRequest { read: 7, pieces, shared: false };
    let mut other = greedy(&engine);
    other.say(&message(1, &ask));
    assert_eq!(other.ack(), AckFrame::Ack { sequence: 1 });
    other.say(&message(2, &ask));
    other.last_words();
    let dump = engine.dump();
    assert!(dump.contains("read 7 is asked for while it is being served"), "{dump}");
}

#[test]
fn long_notifications_that_nobody_takes_hold_back_their_sender_alone() {
    let p = pair(&[("notification_queue", "64")]);
    let mut other = greedy(&p.b);
    let long = vec![1; 60 << 10];
    let sender = std::thread::spawn(move || {
        other.say_all((1..=200).map(|number| said(number, WireOp::Write, Flags::NOTIFY, &long)));
        other
    });
    let waiting = || p.b.stats().notifications_waiting;
    // Half of 1 MiB, and the content of one buffer.
    wait_for("its share to be full", || waiting() >= 9);
    others_go_on(&p);
    p.a.notify(&p.to_b, b"short").unwrap().ended().unwrap();
    assert!(waiting() <= 16, "{}", waiting());
    let mut taken = 0;
    while taken < 201 {
        assert!(waiting() <= 16, "{}", waiting());
        taken += usize::from(p.b.wait_notification(LONG).is_some());
    }
    let mut other = sender.join().unwrap();
    while other.ack() != (AckFrame::Ack { sequence: 200 }) {}
}

#[test]
fn one_that_does_not_read_what_it_is_refused_loses_its_flow() {
    let p = pair(&[]);
    let mut other = greedy(&p.b);
    let place = Place { key: key_of(&zeroed(&p.b, 64)), offset: 1 << 40, len: 1 };
    // The acknowledgements fit into no buffer on the way.
    SockRef::from(&other.stream).set_recv_buffer_size(4096).unwrap();
    let all = (1..=400_000).map(|number| {
        let header = ChunkHeader { transfer: TransferId(number), ..write_header(1, 1) };
        frame(header, &[place], &[], &[1])
    });
    // Until the engine cuts it off.
    other.say_all(all);
    other.last_words();
    let dump = p.b.dump();
    assert!(dump.contains("quota of bytes of acknowledgements not taken is exceeded"), "{dump}");
    others_go_on(&p);
}

/// Sends a hello, and returns the engine's answer.
fn answer(engine: &Engine, hello: FlowHello) -> (Stranger, Reply) {
    let mut stranger = Stranger::greeting(engine, &Hello::Flow(hello));
    let reply = stranger.reply();
    (stranger, reply)
}

#[test]
fn one_that_takes_every_connection_leaves_some_to_others() {
    let b = engine(&[("flow_limit", "16")]);
    let own = card(&[nowhere()]);
    let flow = |flow, flows| FlowHello { flow, flows, ..hello(&b, own.clone()) };
    let mut taken: Vec<_> = (0..14).map(|n| Stranger::welcome_at(&b, flow(n, 16))).collect();
    for n in 14..16 {
        let (_, reply) = answer(&b, flow(n, 16));
        let Reply::Refused { code: RefusedCode::Limit, reason } = reply else {
            panic!("{reply:?}")
        };
        assert!(
            reason.contains("14 connections of this peer and 14 of all peers are here; flow_limit"),
            "{reason}"
        );
    }
    assert_eq!(quota_refusals(&b), 2);
    // Another engine is accepted.
    let a = engine(&[("rails", "127.0.0.1"), ("channels", "1")]);
    let to_b = a.add_peer(&b.metadata()).unwrap();
    a.notify(&to_b, b"hello").unwrap().ended().unwrap();
    // Connections that end make room, except for the eighth that is reserved for others.
    taken.truncate(12);
    wait_for("a place", || matches!(answer(&b, flow(15, 16)).1, Reply::Accepted(_)));
}

#[test]
fn peers_that_come_and_go_under_new_names_are_known_within_a_bound() {
    let engine = one_rail(&[("flow_limit", "16"), ("peer_timeout_ms", "600000")]);
    for _ in 0..16 {
        drop(greedy(&engine));
    }
    // At first there are too many connections, until their ends are noticed.
    wait_for("them to be known", || {
        let (_, reply) = answer(&engine, hello(&engine, card(&[nowhere()])));
        let Reply::Refused { code: RefusedCode::Limit, reason } = reply else {
            panic!("{reply:?}")
        };
        reason.contains("16 peers are known by their hello alone, allowed are at most 16")
    });
    assert_eq!(engine.peers().len(), 16);
    // A peer that the user adds is accepted.
    let a = one_rail(&[]);
    engine.add_peer(&a.metadata()).unwrap();
    let to_engine = a.add_peer(&engine.metadata()).unwrap();
    a.notify(&to_engine, b"hello").unwrap().ended().unwrap();
}

#[test]
fn an_epoch_that_no_peer_can_have_reached_is_refused_by_name() {
    let engine = one_rail(&[]);
    let own = card(&[nowhere()]);
    for epoch in [u64::MAX, u64::from(u32::MAX), 5 << 48 | 1 << 30] {
        let (_, reply) = answer(&engine, FlowHello { epoch, ..hello(&engine, own.clone()) });
        let Reply::Refused { code: RefusedCode::Malformed, reason } = reply else {
            panic!("{reply:?}")
        };
        let attempts = epoch & ((1 << 31) - 1);
        let text = format!("field epoch counts {attempts} attempts, allowed is 0 to ");
        assert!(reason.contains(&text), "{reason}");
    }
    assert!(engine.peers().is_empty());
    Stranger::welcome_at(&engine, FlowHello { epoch: 5 << 48 | 9, ..hello(&engine, own) });
}

#[test]
fn an_epoch_that_is_too_high_keeps_no_rail_down_for_long() {
    let engine = one_rail(&[("peer_timeout_ms", "500")]);
    let region = zeroed(&engine, 64);
    let place = Place { key: key_of(&region), offset: 0, len: 64 };
    let own = card(&[nowhere()]);
    let flow = |epoch| FlowHello { epoch, ..hello(&engine, own.clone()) };
    let mut ahead = Stranger::welcome_at(&engine, flow(60_000));
    let since = Instant::now();
    let landed = || {
        let mut behind = Stranger::welcome_at(&engine, flow(7));
        behind.say(&frame(write_header(64, 1), &[place], &[], &[1; 64]));
        behind.stream.read_exact(&mut [0; ACK_BYTES]).is_ok()
    };
    assert!(!landed() || since.elapsed() >= Duration::from_millis(500), "it may be an older one");
    wait_for("it to be taken", landed);
    assert_eq!(bytes(&region), [1; 64]);
    ahead.last_words();
}

/// Captured log.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn one_that_talks_nonsense_does_not_fill_the_log() {
    let log = Log::default();
    let writer = log.clone();
    tracing_subscriber::fmt().with_writer(move || writer.clone()).with_ansi(false).init();
    let p = pair(&[]);
    let mut other = greedy(&p.b);
    let since = Instant::now();
    let nonsense = (1..=3000).map(|number| said(number, WireOp::Control, Flags::NONE, &[99]));
    assert_eq!(refusals(&mut other, nonsense), []);
    let seconds = since.elapsed().as_secs() as usize;
    let text = String::from_utf8_lossy(&log.0.lock().unwrap()).into_owned();
    let lines = text.matches("message not understood").count();
    assert!((1..=2 + seconds).contains(&lines), "{lines} lines in {seconds} s");
    others_go_on(&p);
}
