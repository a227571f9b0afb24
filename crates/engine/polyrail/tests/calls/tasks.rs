//! Waiting by futures and by a descriptor: in tokio, in an executor of a few lines, and in a loop
//! around `poll(2)`.

use std::pin::pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use crate::common::*;
use polyrail::{PeerError, PostError, Request, TransferError};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;
use tokio::runtime::{Builder, Runtime};

/// The smallest possible executor.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let (mut future, start) = (pin!(future), Instant::now());
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        assert!(start.elapsed() < LONG, "nobody woke the task");
        thread::park_timeout(LONG);
    }
}

/// Counts how often it is woken.
#[derive(Default)]
struct Count(AtomicU32);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Count {
    fn pair() -> (Arc<Self>, Waker) {
        let count = Arc::<Self>::default();
        (count.clone(), Waker::from(count))
    }

    fn woken(&self) -> u32 {
        self.0.load(Ordering::SeqCst)
    }
}

const MODES: [&[(&str, &str)]; 2] = [&[], &[("progress", "caller")]];

/// Awaits every operation, on both sides.
async fn everything(p: &Pair) {
    let (local, target) = (filled(&p.a, 100_000, 3), zeroed(&p.b, 100_000));
    let there = remote(&p.a, &target);
    for round in 0..20u64 {
        let write = Request::write(&p.to_b).segment(local.all(), there.all());
        let write = p.a.post(write.notification(round.to_le_bytes().to_vec())).unwrap();
        let came = p.b.next_notification().await.unwrap();
        assert_eq!((came.data, came.peer), (round.to_le_bytes().to_vec(), p.to_a.clone()));
        assert_eq!(write.await.unwrap().bytes, 100_000);
        let receive = p.b.receive(&p.to_a, round, &target.all()).unwrap();
        let send = p.a.send(&p.to_b, round, &local.slice(0, 999).unwrap()).unwrap();
        assert_eq!(receive.await.unwrap().bytes, 999);
        assert_eq!(send.await.unwrap().bytes, 999);
    }
    let back = zeroed(&p.a, 100_000);
    assert_eq!(p.a.read(&p.to_b, &back.all(), &there.all()).unwrap().await.unwrap().bytes, 100_000);
    assert!(bytes(&back) == pattern(100_000, 3));
    let cancelled = p.a.receive(&p.to_b, 1000, &back.all()).unwrap();
    cancelled.cancel();
    assert_eq!(cancelled.await, Err(TransferError::Cancelled));
}

/// Only these two threads drive the engines: each task polls for what the other needs.
fn both_may_progress(p: &Pair, mode: &[(&str, &str)], work: impl FnOnce() + Send) {
    let over = std::sync::atomic::AtomicBool::new(false);
    thread::scope(|scope| {
        let _over = TellOnDrop(&over);
        if !mode.is_empty() {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    p.a.progress();
                    p.b.progress();
                    thread::yield_now();
                }
            });
        }
        work();
    });
}

#[test]
fn everything_can_be_awaited_in_an_executor_of_a_few_lines() {
    for mode in MODES {
        let p = pair(mode);
        both_may_progress(&p, mode, || block_on(everything(&p)));
    }
}

#[test]
fn everything_can_be_awaited_in_tokio() {
    let runtimes: [fn() -> Runtime; 2] = [
        || Builder::new_current_thread().enable_time().build().unwrap(),
        || Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap(),
    ];
    for runtime in runtimes {
        for mode in MODES {
            let (p, runtime) = (pair(mode), runtime());
            both_may_progress(&p, mode, || runtime.block_on(everything(&p)));
        }
    }
}

#[test]
fn many_tasks_wait_at_once_and_each_gets_its_own() {
    const TASKS: u64 = 64;
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap();
    let p = pair(&[]);
    let target = zeroed(&p.b, 8);
    let there = remote(&p.a, &target);
    let source = filled(&p.a, 8, 1);
    runtime.block_on(async {
        let takers: Vec<_> = (0..TASKS)
            .map(|_| {
                let engine = p.b.clone();
                tokio::spawn(async move { engine.next_notification().await.unwrap().data })
            })
            .collect();
        let writers: Vec<_> = (0..TASKS)
            .map(|n| {
                let write = Request::write(&p.to_b).segment(source.all(), there.all());
                let write = write.notification(n.to_le_bytes().to_vec());
                tokio::spawn(p.a.post(write).unwrap())
            })
            .collect();
        let mut seen = Vec::new();
        for taker in takers {
            seen.push(tokio::time::timeout(LONG, taker).await.unwrap().unwrap());
        }
        for writer in writers {
            assert_eq!(
                tokio::time::timeout(LONG, writer).await.unwrap().unwrap().unwrap().bytes,
                8
            );
        }
        seen.sort();
        let mut want: Vec<_> = (0..TASKS).map(|n| n.to_le_bytes().to_vec()).collect();
        want.sort();
        assert_eq!(seen, want);
    });
}

#[test]
fn only_the_waker_of_the_last_poll_is_woken() {
    let p = pair(&[]);
    let room = zeroed(&p.a, 8);
    let mut receive = p.a.receive(&p.to_b, 1, &room.all()).unwrap();
    let (first, first_waker) = Count::pair();
    let (second, second_waker) = Count::pair();
    for waker in [&first_waker, &second_waker] {
        let polled = pin!(&mut receive).poll(&mut Context::from_waker(waker));
        assert!(polled.is_pending());
    }
    finished(&p.b.send(&p.to_a, 1, &filled(&p.b, 8, 1).all()).unwrap());
    wait_for("the wake-up", || second.woken() == 1);
    assert_eq!(first.woken(), 0);
    assert_eq!(block_on(receive).unwrap().bytes, 8);
}

/// The end of a transfer meets polls with a changing waker, at every moment.
#[test]
fn a_waker_that_changes_while_the_end_comes_is_not_lost() {
    let p = pair(&[]);
    let (_, other) = Count::pair();
    let mut waited = 0;
    for round in 0..3000u64 {
        let mut notify = p.a.notify(&p.to_b, &round.to_le_bytes()).unwrap();
        for _ in 0..round % 8 {
            let _ = pin!(&mut notify).poll(&mut Context::from_waker(&other));
        }
        let (count, last) = Count::pair();
        if pin!(&mut notify).poll(&mut Context::from_waker(&last)).is_pending() {
            wait_for("the last waker", || count.woken() > 0);
            waited += 1;
        }
        notify.ended().unwrap();
        p.b.take_notifications();
    }
    assert!(waited > 0, "all were over at the first look");
}

#[test]
fn a_dropped_future_cancels_its_transfer_and_loses_no_notification() {
    let p = pair(&[]);
    let room = zeroed(&p.a, 8);
    let (_, waker) = Count::pair();
    let mut receive = Box::pin(p.a.receive(&p.to_b, 1, &room.all()).unwrap());
    assert!(receive.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    drop(receive);
    assert_eq!(p.a.drain(LONG), Some(()));
    {
        // This task is woken, and never polled again.
        let (count, waker) = Count::pair();
        let mut waits = pin!(p.a.next_notification());
        assert!(waits.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        p.b.notify(&p.to_a, b"one").unwrap().ended().unwrap();
        wait_for("the wake-up", || count.woken() == 1);
    }
    assert_eq!(block_on(p.a.next_notification()).unwrap().data, b"one");
}

#[test]
fn peers_and_connections_can_be_awaited() {
    let (a, b) = (engine(&[]), engine(&[("connect_timeout_ms", "300")]));
    let (to_a, to_b) = block_on(async {
        let to_a = b.connect(a.addresses()[0]).await.unwrap();
        b.notify(&to_a, b"hello").unwrap().await.unwrap();
        (to_a, a.accept().await.unwrap())
    });
    assert_eq!((to_a.instance(), to_b.instance()), (a.instance(), b.instance()));
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let error = block_on(b.connect(silent.local_addr().unwrap())).unwrap_err();
    assert!(matches!(error, PeerError::Connect { .. }), "{error}");
}

#[test]
fn closing_ends_every_wait() {
    for mode in MODES {
        let p = pair(mode);
        let hello = p.a.notify(&p.to_b, b"hello").unwrap();
        wait_for("a flow", || {
            p.b.progress();
            hello.is_over()
        });
        let room = zeroed(&p.a, 8);
        let receive = p.a.receive(&p.to_b, 1, &room.all()).unwrap();
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let connecting = p.a.connect(silent.local_addr().unwrap());
        let begun = AtomicU32::new(0);
        thread::scope(|scope| {
            let waits: [Box<dyn Fn() + Send + Sync>; 5] = [
                Box::new(|| assert!(block_on(p.a.next_notification()).is_none())),
                Box::new(|| assert!(block_on(p.a.accept()).is_none())),
                Box::new(|| assert!(p.a.wait_notification(LONG).is_none())),
                Box::new(|| assert!(p.a.accept_peer(LONG).is_none())),
                Box::new(|| {
                    let ended = receive.join();
                    assert!(matches!(ended, Err(TransferError::PeerLost { .. })), "{ended:?}");
                }),
            ];
            let start = Instant::now();
            for wait in waits {
                let begun = &begun;
                scope.spawn(move || {
                    begun.fetch_add(1, Ordering::SeqCst);
                    wait();
                });
            }
            wait_for("the threads", || begun.load(Ordering::SeqCst) == 5);
            p.a.close();
            assert!(start.elapsed() < LONG);
        });
        assert!(matches!(connecting.join(), Err(PeerError::Closed)));
        assert!(matches!(p.a.notify(&p.to_b, b"x"), Err(PostError::Closed)));
        assert!(matches!(p.a.add_peer(&p.b.metadata()), Err(PeerError::Closed)));
        assert!(matches!(p.a.connect(p.b.addresses()[0]).join(), Err(PeerError::Closed)));
        assert_eq!((p.a.peers(), p.a.stats().ops_outstanding), (Vec::new(), 0));
        // The closed engine's memory is still there, and closing again does nothing.
        room.write_at(0, &[1; 8]).unwrap();
        assert_eq!(bytes(&room), [1; 8]);
        p.a.close();
        wait_for("the peer to hear of it", || {
            p.b.progress();
            p.to_a.lost().is_some()
        });
    }
}

/// Waits until the descriptor is readable.
fn readable(events: &polyrail::Events, limit: Duration) -> bool {
    let limit = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: 0 };
    poll(&mut [PollFd::new(events, PollFlags::IN)], Some(&limit)).unwrap() == 1
}

/// Polls the descriptor and checks the condition, until it holds.
fn until(events: &polyrail::Events, mut over: impl FnMut() -> bool) {
    loop {
        assert!(readable(events, LONG), "nothing made it readable");
        events.clear();
        if over() {
            return;
        }
    }
}

#[test]
fn a_descriptor_is_readable_when_a_transfer_ended_and_a_notification_or_a_peer_came() {
    let p = pair(&[]);
    let (mine, twin) = (p.a.events().unwrap(), p.a.events().unwrap());
    let source = filled(&p.a, 1 << 20, 1);
    let target = zeroed(&p.b, 1 << 20);
    let there = remote(&p.a, &target);
    until(&mine, || true);
    assert!(!readable(&mine, Duration::ZERO), "armed, and nothing has happened");
    for _ in 0..100 {
        let write = p.a.write(&p.to_b, &source.all(), &there.all()).unwrap();
        until(&mine, || write.is_over());
        write.ended().unwrap();
    }
    until(&twin, || true);
    let c = engine(&[]);
    let (told, heard) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(move || {
            for round in 0..100u8 {
                p.b.notify(&p.to_a, &[round]).unwrap().ended().unwrap();
            }
            told.send(()).unwrap();
            p.b
        });
        let mut taken = Vec::new();
        until(&mine, || {
            taken.extend(p.a.take_notifications().into_iter().map(|came| came.data[0]));
            taken.len() == 100
        });
        taken.sort_unstable();
        assert!(taken.into_iter().eq(0..100));
        heard.recv().unwrap();
        until(&twin, || true);
        let to_a = c.connect(p.a.addresses()[0]).join().unwrap();
        c.notify(&to_a, b"").unwrap().detach();
        until(&twin, || p.a.accept_peer(Duration::ZERO).is_some());
        let connecting = p.a.connect(c.addresses()[0]);
        until(&twin, || connecting.try_wait().is_some());
    });
}

#[test]
fn a_waker_that_panics_harms_nobody() {
    struct Panics;
    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("on purpose");
        }
    }
    let p = pair(&[]);
    let room = zeroed(&p.a, 8);
    let mut receive = p.a.receive(&p.to_b, 1, &room.all()).unwrap();
    let waker = Waker::from(Arc::new(Panics));
    assert!(pin!(&mut receive).poll(&mut Context::from_waker(&waker)).is_pending());
    finished(&p.b.send(&p.to_a, 1, &filled(&p.b, 8, 1).all()).unwrap());
    receive.ended().unwrap();
    wait_for("the panic to be counted", || p.a.stats().callback_panics == 1);
}
