//! Allocations per transfer, counted for the thread that posts and waits and for the engines' threads. Alone in its
//! process, since its allocator counts for all threads.

#[path = "../../proto/tests/common/allocations.rs"]
mod allocations;
mod common;

use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use allocations::{Allocations, during};
use common::*;
use polyrail::{PreparedTransfer, Request};

const BYTES: usize = 64 << 10;
const TIMES: u64 = 1000;
/// Transfers under way at once: more than a flow sends with one system call of a few pieces.
const DEPTH: usize = 16;

/// Keeps the other tests from running: the allocator counts for all threads.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Counts the allocations of `times` runs in the steady state.
fn steady(times: u64, mut run: impl FnMut()) -> Allocations {
    (0..2 * times).for_each(|_| run());
    during(|| (0..times).for_each(|_| run()))
}

/// Fails if a run costs more than `here` and `elsewhere` allocations, and shows which these are.
fn check(what: &str, here: u64, elsewhere: u64, run: impl FnMut()) {
    check_runs(TIMES, what, here, elsewhere, run);
}

/// Same as [`check`], with `times` runs.
fn check_runs(times: u64, what: &str, here: u64, elsewhere: u64, mut run: impl FnMut()) {
    // Allowance for what engines allocate meanwhile for other reasons, such as the check whether flows stand still.
    let beside = TIMES / 20;
    let cost = steady(times, &mut run);
    println!("{what}: {} by the caller, {} by others, of {times}", cost.here, cost.elsewhere);
    if cost.here > here * times + beside || cost.elsewhere > elsewhere * times + beside {
        allocations::shown(|| (0..20).for_each(|_| run()));
        panic!("{what}: {times} times cost {cost:?}, allowed is {here} and {elsewhere} each");
    }
}

fn ended(prepared: &PreparedTransfer) {
    prepared.post().unwrap().ended().unwrap();
}

#[test]
fn a_post_costs_few_allocations_and_one_that_is_prepared_none() {
    let _alone = alone();
    let by_caller: &[_] = &[("progress", "caller")];
    for (way, settings, of_sender) in [
        ("rails", &[("path", "tcp")][..], &[][..]),
        ("rails and a caller", &[("path", "tcp")], by_caller),
        ("one rail", &[("path", "tcp"), ("rails", "127.0.0.1"), ("channels", "1")], &[]),
    ] {
        let p = acquainted(engine(&[settings, of_sender].concat()), engine(settings));
        let (source, target) = (filled(&p.a, BYTES, 1), zeroed(&p.b, BYTES));
        let there = remote(&p.a, &target);
        let write = || Request::write(&p.to_b).segment(source.all(), there.all());

        check(&format!("a post, {way}"), 2, 0, || {
            p.a.post(write()).unwrap().ended().map(drop).unwrap()
        });

        let prepared = p.a.prepare(write()).unwrap();
        check(&format!("a prepared post, {way}"), 0, 0, || ended(&prepared));

        let notifying = p.a.prepare(write().notification(b"here".to_vec())).unwrap();
        check(&format!("an arrival with a notification, {way}"), 0, 1, || {
            ended(&notifying);
            assert_eq!(p.b.wait_notification(LONG).unwrap().data, b"here");
        });
        assert!(bytes(&target) == bytes(&source));
    }
}

/// Wakes the thread that polls.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

#[test]
fn a_task_that_awaits_an_arrival_costs_no_allocation_more() {
    let _alone = alone();
    let p = pair(&[("path", "tcp")]);
    let (source, target) = (filled(&p.a, BYTES, 1), zeroed(&p.b, BYTES));
    let write = Request::write(&p.to_b).segment(source.all(), remote(&p.a, &target).all());
    let notifying = p.a.prepare(write.notification(b"here".to_vec())).unwrap();
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    check("an arrival that a task awaits", 0, 1, || {
        let mut next = pin!(p.b.next_notification());
        assert!(next.as_mut().poll(&mut context).is_pending(), "nothing has come yet");
        ended(&notifying);
        let came = loop {
            if let Poll::Ready(came) = next.as_mut().poll(&mut context) {
                break came.unwrap();
            }
            thread::park_timeout(LONG);
        };
        assert_eq!(came.data, b"here");
    });
}

#[test]
fn prepared_posts_under_way_at_once_cost_none() {
    let _alone = alone();
    let p = pair(&[("path", "tcp"), ("rails", "127.0.0.1"), ("channels", "1")]);
    for bytes in [8, BYTES] {
        let (source, target) = (filled(&p.a, bytes, 1), zeroed(&p.b, bytes));
        let there = remote(&p.a, &target);
        let write = || Request::write(&p.to_b).segment(source.all(), there.all());
        let prepared: Vec<_> = (0..DEPTH).map(|_| p.a.prepare(write()).unwrap()).collect();
        let mut posted = Vec::with_capacity(DEPTH);
        check_runs(TIMES / 4, &format!("{DEPTH} prepared posts of {bytes} bytes"), 0, 0, || {
            posted.extend(prepared.iter().map(|prepared| prepared.post().unwrap()));
            posted.drain(..).for_each(|transfer| transfer.ended().map(drop).unwrap());
        });
    }
}

#[test]
fn a_post_where_the_engine_chooses_the_way_costs_few() {
    let _alone = alone();
    let p = pair(&[("path", "auto"), ("rails", "127.0.0.1")]);
    let (source, target) = (filled(&p.a, BYTES, 1), zeroed(&p.b, BYTES));
    let there = remote(&p.a, &target);
    let write = || Request::write(&p.to_b).segment(source.all(), there.all());
    // CPUs copy the bytes, but the rails are connected as soon as anything is posted.
    p.a.post(write()).unwrap().ended().unwrap();
    wait_for("the rails", || {
        let peers = p.a.stats().peers;
        peers.iter().flat_map(|peer| &peer.rails).flat_map(|rail| &rail.flows).all(|flow| flow.up)
    });
    check("a post, path=auto", 3, 0, || p.a.post(write()).unwrap().ended().map(drop).unwrap());
    let prepared = p.a.prepare(write()).unwrap();
    check("a prepared post, path=auto", 0, 0, || ended(&prepared));
    let notifying = p.a.prepare(write().notification(b"here".to_vec())).unwrap();
    // The notification goes over the rails, as a message that is made when the copy ends.
    check("an arrival with a notification, path=auto", 2, 1, || {
        ended(&notifying);
        assert_eq!(p.b.wait_notification(LONG).unwrap().data, b"here");
    });
    assert!(bytes(&target) == bytes(&source));
}
