//! Waits with a timeout of zero return at once, and no wait exceeds its timeout.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::puppet::{PUPPET_BYTES, Puppet};
use crate::common::relay::CALLER;
use crate::common::*;

const LOOKS: u32 = 200;
/// Limit for all of them, on a loaded machine: another thread sleeps for 100 ms at a time, and waiting for it each time
/// would take 20 s.
const AT_ONCE: Duration = Duration::from_secs(10);

/// Polls all calls that have a timeout, many times.
fn look(p: &Pair) {
    let room = zeroed(&p.a, 8);
    let (never, gone) = (p.a.receive(&p.to_b, 1, &room.all()).unwrap(), p.to_b.gone());
    let began = Instant::now();
    for _ in 0..LOOKS {
        assert!(never.wait(Duration::ZERO).is_none() && gone.wait(Duration::ZERO).is_none());
        assert!(p.a.wait_notification(Duration::ZERO).is_none());
        assert!(p.a.accept_peer(Duration::ZERO).is_none() && p.a.drain(Duration::ZERO).is_none());
    }
    assert!(began.elapsed() < AT_ONCE, "{:?}", began.elapsed());
    never.cancel();
}

#[test]
fn a_look_waits_for_nobody() {
    for settings in [&[][..], &[CALLER]] {
        let p = pair(settings);
        p.a.notify(&p.to_b, b"so that there are flows").unwrap().ended().unwrap();
        look(&p);
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let _end = TellOnDrop(&over);
            // Drives and sleeps, alternating.
            scope.spawn(|| {
                let room = zeroed(&p.a, 8);
                let never = p.a.receive(&p.to_b, 2, &room.all()).unwrap();
                while !over.load(Ordering::Relaxed) {
                    assert!(never.wait(Duration::from_millis(50)).is_none());
                }
            });
            look(&p);
        });
    }
}

#[test]
fn a_look_may_find_that_it_is_over() {
    for settings in [&[][..], &[CALLER]] {
        let p = pair(settings);
        let room = zeroed(&p.a, 8);
        let received = p.a.receive(&p.to_b, 1, &room.all()).unwrap();
        let source = filled(&p.b, 8, 1);
        let sent = p.b.send(&p.to_a, 1, &source.all()).unwrap();
        let began = Instant::now();
        let (mut here, mut there) = (None, None);
        while here.is_none() || there.is_none() {
            assert!(began.elapsed() < LONG);
            here = here.or_else(|| received.wait(Duration::ZERO));
            there = there.or_else(|| sent.wait(Duration::ZERO));
        }
        assert_eq!((here.unwrap().unwrap().bytes, there.unwrap().unwrap().bytes), (8, 8));
    }
}

/// With `progress = caller`, a waiting thread moves all that comes; but not beyond its timeout.
#[test]
fn a_wait_ends_in_time_whatever_comes_meanwhile() {
    let engine = engine(&[CALLER, ("spin", "100ms")]);
    let room = zeroed(&engine, PUPPET_BYTES);
    // Together they send more than this thread can take.
    let mut puppets: Vec<_> = (0..3).map(|_| Puppet::start(&engine, &[])).collect();
    puppets.iter_mut().for_each(|puppet| puppet.flood(&engine, &room));
    let peer = engine.accept_peer(LONG).expect("it joins");
    let never = engine.receive(&peer, 1, &room.slice(0, 8).unwrap()).unwrap();
    let timeout = Duration::from_millis(20);
    for _ in 0..20 {
        let began = Instant::now();
        assert!(never.wait(timeout).is_none());
        assert!(began.elapsed() < timeout + AT_ONCE, "{:?}", began.elapsed());
    }
    never.cancel();
}
