//! Callbacks of the user that panic, post, cancel and remove peers: none of that stops a thread of the engine, or
//! blocks it.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use crate::common::*;
use polyrail::{
    Engine, LostReason, Mailbox, Observer, OnEnd, Outcome, Peer, PostError, RefusalCode, Region,
    RegionError, RegionSlice, RemoteRegion, Request, TransferError,
};

/// Calls a closure at each end.
struct Told<F>(F);

impl<F: Fn(u64) + Send + Sync> OnEnd for Told<F> {
    fn ended(&self, token: u64, _result: &Result<Outcome, TransferError>) {
        (self.0)(token);
    }
}

/// Panics whenever it is called.
struct Panicker;

impl Observer for Panicker {
    fn notified(&self, _peer: &Peer, _data: Vec<u8>) -> Option<Vec<u8>> {
        panic!("in notified");
    }

    fn lost(&self, _peer: &Peer, _why: &polyrail::LostReason) {
        panic!("in lost");
    }
}

impl Mailbox for Panicker {
    fn place(&self, _offset: u64, _len: u64) -> Option<RegionSlice> {
        panic!("in place");
    }
}

/// Checks that every proxy moves data, both ways.
fn works(a: &Engine, to_b: &Peer, b: &Engine) {
    let (source, target) = (filled(a, 4 << 20, 1), zeroed(b, 4 << 20));
    let there = remote(a, &target);
    for _ in 0..3 {
        a.write(to_b, &source.all(), &there.all()).unwrap().ended().unwrap();
    }
    assert!(bytes(&target) == pattern(4 << 20, 1));
    let back = zeroed(a, 4 << 20);
    a.read(to_b, &back.all(), &there.all()).unwrap().ended().unwrap();
    assert!(bytes(&back) == pattern(4 << 20, 1));
}

#[test]
fn a_panic_in_the_user_s_code_is_caught_counted_and_stops_no_thread() {
    for settings in [&[][..], &[("progress", "caller")]] {
        let a = engine(settings);
        let builder = Engine::builder().config(config(settings)).observer(Arc::new(Panicker));
        let b = builder.build().unwrap();
        let (to_b, to_a) = (a.add_peer(&b.metadata()).unwrap(), b.add_peer(&a.metadata()).unwrap());
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let _tell = TellOnDrop(&over);
            // Makes progress where callers do.
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    b.wait_notification(Duration::from_millis(5));
                }
            });
            for _ in 0..3 {
                a.notify(&to_b, b"hello").unwrap().ended().unwrap();
            }
            let open = b.open(Arc::new(Panicker)).unwrap();
            let letter = a.import(&open.describe()).unwrap().slice(0, 8).unwrap();
            let source = filled(&a, 8, 1);
            match a.write(&to_b, &source.all(), &letter).unwrap().ended() {
                Err(TransferError::Refused { code: RefusalCode::NotExpected, .. }) => {}
                other => panic!("{other:?}"),
            }
            wait_for("four to be counted", || b.stats().callback_panics == 4);
            let told = Arc::new(Told(|token| panic!("told of {token}")));
            let request = Request::write(&to_b).notification(Vec::new()).tell(told, 7);
            for _ in 0..8 {
                a.post(request.clone()).unwrap().ended().unwrap();
            }
            assert!(a.drain(LONG).is_some());
            assert_eq!(a.stats().callback_panics, 8);
            works(&a, &to_b, &b);
            works(&b, &to_a, &a);
            a.remove_peer(&to_b);
            wait_for("the other to hear of it", || to_a.lost().is_some());
        });
    }
}

/// Posts another transfer whenever one ends, and cancels it at once.
struct Chain {
    engine: Engine,
    peer: Peer,
    local: Region,
    there: RemoteRegion,
    me: OnceLock<std::sync::Weak<Self>>,
    told: AtomicU32,
    depth: AtomicU32,
    deepest: AtomicU32,
}

impl OnEnd for Chain {
    fn ended(&self, token: u64, _result: &Result<Outcome, TransferError>) {
        let depth = self.depth.fetch_add(1, Ordering::SeqCst) + 1;
        self.deepest.fetch_max(depth, Ordering::SeqCst);
        self.told.fetch_add(1, Ordering::SeqCst);
        if token > 0
            && let Some(me) = self.me.get().and_then(std::sync::Weak::upgrade)
        {
            let request = Request::write(&self.peer).segment(self.local.all(), self.there.all());
            let prepared = self.engine.prepare(request.tell(me, token - 1)).unwrap();
            let transfer = prepared.post().unwrap();
            transfer.cancel();
            transfer.detach();
        }
        self.depth.fetch_sub(1, Ordering::SeqCst);
    }
}

#[test]
fn a_chain_of_posts_and_cancels_in_callbacks_does_not_fill_the_stack() {
    const LINKS: u32 = 20_000;
    // A cancelled transfer keeps its place until a thread that drives removes it.
    let p = pair(&[("ops_pool", "65536")]);
    // Nothing goes out, so that each cancel ends its transfer at once.
    let nobody = stranger_that_never_answers(&p.a);
    let (local, target) = (filled(&p.a, 9, 1), zeroed(&p.a, 9));
    let mut description = target.describe();
    description[6..22].copy_from_slice(&nobody.instance().0.to_le_bytes());
    let chain = Arc::new(Chain {
        there: p.a.import(&description).unwrap(),
        engine: p.a.clone(),
        peer: nobody,
        local,
        me: OnceLock::new(),
        told: AtomicU32::new(0),
        depth: AtomicU32::new(0),
        deepest: AtomicU32::new(0),
    });
    chain.me.set(Arc::downgrade(&chain)).unwrap();
    chain.ended(u64::from(LINKS), &Err(TransferError::Cancelled));
    wait_for("the end of the chain", || chain.told.load(Ordering::SeqCst) == LINKS + 1);
    // The first call is not the engine's.
    assert!(chain.deepest.load(Ordering::SeqCst) <= 2, "{:?}", chain.deepest);
    works(&p.a, &p.to_b, &p.b);
}

/// Adds a peer at an address where a listener never answers.
fn stranger_that_never_answers(engine: &Engine) -> Peer {
    static SILENT: Mutex<Vec<std::net::TcpListener>> = Mutex::new(Vec::new());
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let card = crate::common::stranger::card(&[listener.local_addr().unwrap()]);
    SILENT.lock().unwrap().push(listener);
    engine.add_peer(&crate::common::stranger::metadata(&card).encode()).unwrap()
}

#[test]
fn a_peer_that_is_removed_in_a_callback_holds_nobody_up_and_hears_of_it() {
    let settings = [("chunk_bytes", "64KiB")];
    let p = pair(&settings);
    works(&p.a, &p.to_b, &p.b);
    let waited = Arc::new(Mutex::new(None));
    let told = {
        let (engine, peer, waited) = (p.a.clone(), p.to_b.clone(), waited.clone());
        Arc::new(Told(move |_| {
            let since = Instant::now();
            engine.remove_peer(&peer);
            // If the callback had to wait for the goodbye, the peer is over by now; otherwise another thread ends it
            // later. A machine that stands still for a moment delays the goodbye, and does not end the peer.
            let is_over = peer.lost().is_some();
            *waited.lock().unwrap() = Some((is_over, since.elapsed()));
        }))
    };
    // Enough data to delay a goodbye behind it for long.
    let (source, target) = (zeroed(&p.a, 256 << 20), zeroed(&p.b, 256 << 20));
    let there = remote(&p.a, &target);
    let large: Vec<_> =
        (0..8).map(|_| p.a.write(&p.to_b, &source.all(), &there.all()).unwrap()).collect();
    let request = Request::write(&p.to_b).notification(b"now".to_vec()).tell(told, 1);
    p.a.post(request).unwrap().ended().unwrap();
    wait_for("the callback to return", || waited.lock().unwrap().is_some());
    let (is_over, took) = waited.lock().unwrap().unwrap();
    assert!(!is_over || took < Duration::from_millis(500), "it waited for {took:?}");
    let error = p.a.notify(&p.to_b, b"late").unwrap_err();
    assert!(error.to_string().contains("is gone"), "{error}");
    wait_for("the other to hear of it", || p.to_a.lost().is_some());
    assert_eq!(p.to_a.lost(), Some(LostReason::Closed));
    for transfer in large {
        let ended = transfer.ended();
        assert!(matches!(ended, Ok(_) | Err(TransferError::PeerLost { .. })), "{ended:?}");
    }
    wait_for("it to be gone here", || p.to_b.lost().is_some());
    assert_eq!(p.to_b.lost(), Some(LostReason::Removed));
}

#[test]
fn a_closure_that_panics_when_it_is_called_or_dropped_stops_no_thread() {
    struct PanicsAtItsEnd;
    impl Drop for PanicsAtItsEnd {
        fn drop(&mut self) {
            panic!("at its end");
        }
    }
    let p = pair(&[]);
    let target = zeroed(&p.b, 8);
    let (source, there) = (filled(&p.a, 8, 1), remote(&p.a, &target));
    for _ in 0..16 {
        let held = PanicsAtItsEnd;
        let write = Request::write(&p.to_b).segment(source.all(), there.all());
        let write = write.on_end(move |_| {
            let _held = &held;
            panic!("when called");
        });
        // The last owner to be dropped is on a thread of the engine, mostly.
        p.a.post(write).unwrap().detach();
    }
    assert!(p.a.drain(LONG).is_some());
    assert_eq!(p.a.stats().callback_panics, 16);
    works(&p.a, &p.to_b, &p.b);
}

/// Dropping a transfer cancels it, which takes the lock of its peer.
#[test]
fn what_a_closure_holds_ends_where_no_lock_is_held() {
    let p = pair(&[]);
    let (near, far) = (filled(&p.a, 1 << 16, 1), zeroed(&p.b, 1 << 16));
    let there = remote(&p.a, &far);
    for round in 0..600 {
        let other = p.a.receive(&p.to_b, 99, &near.all()).unwrap();
        let is_told = move |_: &_| {
            let _other = &other;
        };
        let len = 1 + round * 20;
        let (local, remote) = (near.slice(0, len).unwrap(), there.slice(0, len).unwrap());
        let posted = match round % 2 {
            0 => p.a.post(Request::read(&p.to_b).segment(local, remote).on_end(is_told)),
            _ => p.a.post(Request::write(&p.to_b).segment(local, remote).on_end(is_told)),
        };
        match round % 3 {
            0 => posted.unwrap().detach(),
            1 => drop(posted.unwrap().ended()),
            _ => posted.unwrap().cancel(),
        }
    }
    assert!(p.a.drain(LONG).is_some());
    works(&p.a, &p.to_b, &p.b);
}

#[test]
fn what_panics_at_its_own_end_stops_no_thread() {
    struct PanicsAtItsEnd;
    impl Drop for PanicsAtItsEnd {
        fn drop(&mut self) {
            if !std::thread::panicking() {
                panic!("at its end");
            }
        }
    }
    impl OnEnd for PanicsAtItsEnd {
        fn ended(&self, token: u64, _: &Result<Outcome, TransferError>) {
            if token == 1 {
                std::panic::panic_any(Self);
            }
        }
    }
    let p = pair(&[]);
    let target = zeroed(&p.b, 8);
    let (source, there) = (filled(&p.a, 8, 1), remote(&p.a, &target));
    for round in 0..64 {
        let read = Request::read(&p.to_b).segment(source.all(), there.all());
        let target: Arc<dyn OnEnd> = Arc::new(PanicsAtItsEnd);
        p.a.post(read.tell(target, round % 2)).unwrap().detach();
    }
    assert!(p.a.drain(LONG).is_some());
    works(&p.a, &p.to_b, &p.b);
}

#[test]
fn an_engine_may_be_closed_in_a_callback() {
    for settings in [&[][..], &[("progress", "caller")]] {
        let p = pair(settings);
        let (closer, told) = (p.a.clone(), std::sync::mpsc::channel());
        let room = zeroed(&p.a, 8);
        let waits = p.a.receive(&p.to_b, 1, &room.all()).unwrap();
        let hello = Request::write(&p.to_b).notification(b"last".to_vec());
        let hello = hello.on_end(move |ended| {
            closer.close();
            told.0.send(ended.clone()).unwrap();
        });
        let prepared = p.a.prepare(hello).unwrap();
        let posted = prepared.post().unwrap();
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let _tell = TellOnDrop(&over);
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    p.b.progress();
                    std::thread::yield_now();
                }
            });
            posted.ended().unwrap();
            assert!(told.1.recv_timeout(LONG).unwrap().is_ok());
            let ended = waits.ended();
            assert!(matches!(ended, Err(TransferError::PeerLost { .. })), "{ended:?}");
        });
        assert_eq!(prepared.post().unwrap_err(), PostError::Closed);
        assert_eq!(p.a.drain(LONG), Some(()));
        // Operations that need no peer still work.
        assert_eq!(p.a.import(&room.describe()).unwrap().len(), 8);
        let again = p.a.prepare(Request::write(&p.to_b).notification(b"late".to_vec()));
        assert!(matches!(again, Err(PostError::Closed)));
        assert!(matches!(p.a.register(vec![1; 8]), Err(RegionError::Closed)));
        assert!(matches!(p.a.open(Arc::new(Panicker)), Err(RegionError::Closed)));
    }
}
