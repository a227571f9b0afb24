//! Programs that get callbacks instead of polling: observers, ends, mailboxes, and objects that they own.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::common::*;
use polyrail::{
    Engine, Mailbox, Observer, OnEnd, Outcome, Peer, RefusalCode, Region, RegionSlice, Request,
    TransferError,
};

/// Records its callbacks.
#[derive(Default)]
struct Diary {
    lines: Mutex<Vec<String>>,
}

impl Diary {
    fn add(&self, line: String) {
        self.lines.lock().unwrap().push(line);
    }

    fn has(&self, text: &str) -> bool {
        self.lines.lock().unwrap().iter().any(|line| line.contains(text))
    }

    fn wait_for(&self, text: &str) {
        let start = Instant::now();
        while !self.has(text) {
            assert!(start.elapsed() < LONG, "no {text:?} in {:?}", self.lines.lock().unwrap());
            std::thread::yield_now();
        }
    }
}

impl Observer for Diary {
    fn notified(&self, _peer: &Peer, data: Vec<u8>) -> Option<Vec<u8>> {
        self.add(format!("notified {}", String::from_utf8_lossy(&data)));
        None
    }

    fn lost(&self, _peer: &Peer, why: &polyrail::LostReason) {
        self.add(format!("lost {why}"));
    }
}

impl OnEnd for Diary {
    fn ended(&self, token: u64, result: &Result<Outcome, TransferError>) {
        match result {
            Ok(outcome) => self.add(format!("{token} moved {}", outcome.bytes)),
            Err(error) => self.add(format!("{token} failed: {error}")),
        }
    }
}

/// Makes an engine that reports to a diary, and one that does not; each adds the other.
fn observed(diary: &Arc<Diary>) -> (Engine, Engine, Peer) {
    let builder = builder().config(config(&[])).observer(diary.clone());
    let (a, b) = (engine(&[]), builder.build().unwrap());
    let to_b = a.add_peer(&b.metadata()).unwrap();
    (a, b, to_b)
}

#[test]
fn an_observer_gets_notifications_and_the_inbox_none() {
    let diary = Arc::new(Diary::default());
    let (a, b, to_b) = observed(&diary);
    a.notify(&to_b, b"hello").unwrap().detach();
    diary.wait_for("notified hello");
    assert!(b.take_notifications().is_empty());
    drop(a);
    diary.wait_for("lost it closed");
}

/// Observes only ends.
#[derive(Default)]
struct Mourner(Diary);

impl Observer for Mourner {
    fn lost(&self, peer: &Peer, why: &polyrail::LostReason) {
        self.0.lost(peer, why);
    }
}

/// Takes notifications that are meant for it, and observes no ends.
struct Taker;

impl Observer for Taker {
    fn notified(&self, _peer: &Peer, data: Vec<u8>) -> Option<Vec<u8>> {
        Some(data).filter(|data| data != b"for the observer")
    }
}

#[test]
fn what_an_observer_does_not_take_goes_to_the_inbox() {
    let mourner = Arc::new(Mourner::default());
    let a = engine(&[]);
    let b = builder().config(config(&[])).observer(mourner.clone()).build().unwrap();
    let c = builder().config(config(&[])).observer(Arc::new(Taker)).build().unwrap();
    for (other, lines) in [(&b, 2), (&c, 1)] {
        let peer = a.add_peer(&other.metadata()).unwrap();
        for text in ["for the observer", "for whoever asks"] {
            a.notify(&peer, text.as_bytes()).unwrap().ended().unwrap();
        }
        let taken: Vec<_> = (0..lines).map(|_| other.wait_notification(LONG).unwrap()).collect();
        assert!(taken.iter().any(|one| one.data == b"for whoever asks"), "{taken:?}");
        assert!(other.take_notifications().is_empty());
        assert_eq!(other.stats().callback_panics, 0);
    }
    drop(a);
    mourner.0.wait_for("lost it closed");
}

#[test]
fn the_end_of_each_post_is_told_once_with_its_token() {
    let diary = Arc::new(Diary::default());
    let p = pair(&[]);
    let (source, target) = (filled(&p.a, 1 << 20, 1), zeroed(&p.b, 1 << 20));
    let request = Request::write(&p.to_b).segment(source.all(), remote(&p.a, &target).all());
    let prepared = p.a.prepare(request.tell(diary.clone(), 7)).unwrap();
    for _ in 0..3 {
        prepared.post().unwrap().detach();
    }
    assert!(p.a.drain(LONG).is_some(), "detached ones are waited for");
    assert_eq!(*diary.lines.lock().unwrap(), vec!["7 moved 1048576"; 3]);
    let into = zeroed(&p.a, 8);
    let never = Request::receive(&p.to_b, 1).local(into.all()).tell(diary.clone(), 8);
    drop(p.a.post(never).unwrap());
    diary.wait_for("8 failed: ");
}

/// A callback that takes long.
#[derive(Default)]
struct Slow(AtomicBool);

impl OnEnd for Slow {
    fn ended(&self, _token: u64, _result: &Result<Outcome, TransferError>) {
        // Long enough that a caller which does not wait for it is done first.
        std::thread::sleep(Duration::from_millis(50));
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn whoever_waits_for_all_transfers_waits_until_their_end_has_been_told() {
    let slow = Arc::new(Slow::default());
    let p = pair(&[]);
    let request = Request::write(&p.to_b).notification(b"hello".to_vec()).tell(slow.clone(), 1);
    p.a.post(request).unwrap().ended().unwrap();
    assert!(p.a.drain(LONG).is_some() && slow.0.load(Ordering::SeqCst));
}

#[test]
fn connecting_needs_no_waiting_and_a_watched_peer_that_leaves_is_missed() {
    let diary = Arc::new(Diary::default());
    let (a, b) = (engine(&[]), engine(&[]));
    let config = config(&[("peer_timeout_ms", "500")]);
    let builder = builder().config(config).observer(diary.clone());
    let c = builder.build().unwrap();
    let connecting = c.connect(b.addresses()[0]);
    let start = Instant::now();
    let peer = loop {
        match connecting.try_wait() {
            Some(peer) => break peer.unwrap(),
            None => assert!(start.elapsed() < LONG),
        }
    };
    assert_eq!(peer.instance(), b.instance());
    assert_eq!(c.peer(b.instance()), Some(peer.clone()));
    assert_eq!(c.peer(a.instance()), None);
    let watch = c.watch(&peer);
    c.notify(&peer, b"so that there is a flow").unwrap().ended().unwrap();
    // b never had a reason to connect back, so it says goodbye on the connection that came to it.
    drop(b);
    diary.wait_for("lost it closed");
    drop(watch);
}

/// Every kilobyte of its offsets is a message; odd ones are refused.
struct EvenOnly {
    memory: Region,
}

impl Mailbox for EvenOnly {
    fn place(&self, offset: u64, len: u64) -> Option<RegionSlice> {
        let (message, within) = (offset >> 10, offset & 1023);
        if message % 2 == 1 {
            return None;
        }
        // The last message goes first.
        self.memory.slice((2 - message) * 512 + within, len).ok()
    }
}

#[test]
fn a_mailbox_says_where_bytes_belong_and_can_refuse_them() {
    for mode in [&[][..], &[("chunk_bytes", "4KiB"), ("payload", "crc32c")]] {
        let p = pair(mode);
        let memory = zeroed(&p.b, 3 * 1024);
        let open = p.b.open(Arc::new(EvenOnly { memory: memory.clone() })).unwrap();
        let there = p.a.import(&open.describe()).unwrap();
        let source = filled(&p.a, 2048, 5);
        for (message, from) in [(0, 0), (2, 1024)] {
            let to = there.slice(message << 10, 1024).unwrap();
            let write = p.a.write(&p.to_b, &source.slice(from, 1024).unwrap(), &to).unwrap();
            assert_eq!(write.ended().unwrap().bytes, 1024);
        }
        let expected = [&pattern(2048, 5)[1024..], &pattern(2048, 5)[..1024]].concat();
        assert_eq!(bytes(&memory)[..2048], expected);

        let odd = there.slice(1 << 10, 8).unwrap();
        let error = p.a.write(&p.to_b, &source.slice(0, 8).unwrap(), &odd).unwrap().ended();
        let code = |error| match error {
            Err(TransferError::Refused { code, .. }) => Some(code),
            _ => None,
        };
        assert_eq!(code(error), Some(RefusalCode::NotExpected));
        let into = zeroed(&p.a, 8);
        let read = p.a.read(&p.to_b, &into.all(), &there.slice(0, 8).unwrap()).unwrap().ended();
        assert_eq!(code(read), Some(RefusalCode::AccessDenied), "it is for writing");
        drop(open);
        let closed = there.slice(0, 8).unwrap();
        let late = p.a.write(&p.to_b, &source.slice(0, 8).unwrap(), &closed).unwrap().ended();
        assert_eq!(code(late), Some(RefusalCode::RegionDropped));
    }
}
