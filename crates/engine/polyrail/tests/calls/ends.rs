//! Notifications of a peer's end, without polling.

use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use crate::common::puppet::Puppet;
use crate::common::relay::CALLER;
use crate::common::*;
use polyrail::{Engine, LostReason, Peer};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::Signal;
use rustix::time::Timespec;
use tokio::runtime::{Builder, Runtime};

/// Far above what the end takes on a loaded machine, and far below `peer_timeout_ms`.
const AT_ONCE: Duration = Duration::from_secs(7);

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_time().build().unwrap()
}

/// Starts a peer in another process that has been used, and is idle now.
fn idle_puppet(settings: &[(&str, &str)]) -> (Engine, Puppet, Peer) {
    let engine = engine(settings);
    let puppet = Puppet::start(&engine, settings);
    let peer = engine.add_peer(&puppet.metadata).unwrap();
    engine.notify(&peer, b"so that it is used").unwrap().ended().unwrap();
    wait_for("its flows", || {
        engine.progress();
        peer.flows().are_all_up()
    });
    (engine, puppet, peer)
}

#[test]
fn the_end_of_an_idle_peer_that_is_killed_wakes_whoever_waits_for_it() {
    for settings in [&[][..], &[CALLER]] {
        let (_engine, mut puppet, peer) = idle_puppet(settings);
        let gone = peer.gone();
        assert_eq!((gone.try_wait(), gone.wait(Duration::from_millis(1))), (None, None));
        let killed = Instant::now();
        puppet.kill();
        let why = gone.wait(LONG).expect("it is gone");
        assert!(matches!(why, LostReason::NobodyThere { .. }), "{why:?}");
        assert!(killed.elapsed() < AT_ONCE, "{:?}", killed.elapsed());
        assert_eq!((gone.join(), peer.lost()), (why.clone(), Some(why)));
    }
}

/// The peer keeps its connections: its end shows only when it is asked for a sign of life.
#[test]
fn the_end_of_an_idle_peer_that_is_stopped_is_noticed_while_somebody_waits_for_it() {
    let (_engine, puppet, peer) = idle_puppet(&[("peer_timeout_ms", "500")]);
    let gone = peer.gone();
    puppet.signal(Signal::STOP);
    let why = gone.wait(LONG);
    puppet.signal(Signal::CONT);
    // The peer's flows stall first, and may have been given up by then.
    let is_silent = |why: &LostReason| {
        matches!(why, LostReason::NoProgress { .. } | LostReason::Unreachable { .. })
    };
    assert!(why.as_ref().is_some_and(is_silent), "{why:?}");
}

#[test]
fn the_end_of_a_peer_makes_the_descriptor_readable() {
    let (engine, mut puppet, peer) = idle_puppet(&[]);
    // A `Gone` watches the peer.
    let _gone = peer.gone();
    let events = engine.events().unwrap();
    puppet.kill();
    let long = Timespec::try_from(LONG).unwrap();
    loop {
        let readable = poll(&mut [PollFd::new(&events, PollFlags::IN)], Some(&long)).unwrap();
        assert_eq!(readable, 1, "nothing has rung, and lost() is {:?}", peer.lost());
        events.clear();
        if peer.lost().is_some() {
            break;
        }
    }
}

#[test]
fn a_task_that_awaits_the_end_is_woken_and_a_dropped_one_leaves_nothing() {
    for settings in [&[][..], &[CALLER]] {
        let p = pair(settings);
        wait_for("flows both ways", || {
            // With `progress = caller`, the test has to drive both.
            p.a.progress();
            p.b.progress();
            p.to_b.flows().are_all_up() && p.to_a.flows().are_all_up()
        });
        for _ in 0..3 {
            let mut early = pin!(p.to_b.gone());
            assert!(early.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        }
        let why = std::thread::scope(|scope| {
            scope.spawn(|| p.b.close());
            runtime().block_on(async { tokio::time::timeout(LONG, p.to_b.gone()).await })
        });
        // The first of several reasons depends on how much of the goodbye arrives.
        assert_eq!(Some(why.expect("the task is woken")), p.to_b.lost());
    }
}

#[test]
fn every_way_in_which_a_peer_ends_here_is_told() {
    let p = pair(&[]);
    let removed = p.to_b.gone();
    p.a.remove_peer(&p.to_b);
    assert_eq!(removed.wait(Duration::ZERO), Some(LostReason::Removed));

    let (a, b) = (engine(&[]), engine(&[]));
    let to_b = a.add_peer(&b.metadata()).unwrap();
    let gone = to_b.gone();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| gone.join());
        drop(a);
        assert_eq!(waits.join().unwrap(), LostReason::EngineClosed);
    });
    // Also after the engine is dropped, and at once.
    let late = to_b.gone();
    assert_eq!((late.try_wait(), late.join()), (gone.try_wait(), LostReason::EngineClosed));
    let mut late = pin!(late);
    let polled = late.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert_eq!(polled, Poll::Ready(LostReason::EngineClosed));
}
