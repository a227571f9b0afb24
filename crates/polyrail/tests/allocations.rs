//! Allocations that a transfer costs, by the thread that posts and waits and by those of the engines. Alone in its
//! process, since its allocator counts for all threads.

#[path = "../../proto/tests/common/allocations.rs"]
mod allocations;
mod common;

use allocations::{Allocations, during};
use common::*;
use polyrail::{PreparedTransfer, Request};

const BYTES: usize = 64 << 10;
const WARM_UP: u64 = 2000;
const TIMES: u64 = 1000;
/// What engines allocate in the time of so many transfers for other reasons, for instance when they look whether flows
/// stand still.
const BESIDE: u64 = TIMES / 20;

/// The allocations of [`TIMES`] runs, once nothing is new any more.
fn steady(mut run: impl FnMut()) -> Allocations {
    (0..WARM_UP).for_each(|_| run());
    during(|| (0..TIMES).for_each(|_| run()))
}

/// Fails if runs cost more than `here` and `elsewhere` each, and shows which allocations those are.
fn check(what: &str, here: u64, elsewhere: u64, mut run: impl FnMut()) {
    let cost = steady(&mut run);
    println!("{what}: {} by the caller, {} by others, of {TIMES}", cost.here, cost.elsewhere);
    if cost.here > here * TIMES + BESIDE || cost.elsewhere > elsewhere * TIMES + BESIDE {
        allocations::shown(&mut run);
        panic!("{what}: {TIMES} times cost {cost:?}, allowed is {here} and {elsewhere} each");
    }
}

fn ended(prepared: &PreparedTransfer) {
    prepared.post().unwrap().ended().unwrap();
}

#[test]
fn a_post_costs_few_allocations_and_one_that_is_prepared_none() {
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
