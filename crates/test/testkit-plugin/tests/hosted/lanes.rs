//! Connections of the test plugin as used by an engine: their registered memory, and their close.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use polyrail_carrier::{Bytes, Holder, Host, Lane, Piece, Wishes};
use polyrail_gpu::Ticket;
use polyrail_sys::Memory;

use crate::{inside, library, wait_for};

const LIMIT: Duration = Duration::from_secs(20);

fn host() -> Host {
    Host::load(library().to_str().unwrap(), Wishes::default()).unwrap()
}

/// Begins a connection. Returns receivers of its connecting end and its accepting end.
fn begun(host: &Host) -> [Receiver<Result<Lane, String>>; 2] {
    begun_within(LIMIT, host)
}

fn begun_within(limit: Duration, host: &Host) -> [Receiver<Result<Lane, String>>; 2] {
    let ((offer, offered), (accept, accepted), (connect, connected)) =
        (channel(), channel(), channel());
    host.accept(
        0,
        limit,
        || true,
        move |handle| offer.send(handle).unwrap(),
        move |lane| accept.send(lane).unwrap(),
    );
    let handle = offered.recv_timeout(LIMIT).unwrap().unwrap();
    host.connect(0, &handle, limit, || true, move |lane| connect.send(lane).unwrap());
    [connected, accepted]
}

fn come(lane: &Receiver<Result<Lane, String>>) -> Lane {
    lane.recv_timeout(LIMIT).unwrap().unwrap()
}

/// Both ends of a connection.
fn lanes(host: &Host) -> (Lane, Lane) {
    let [connected, accepted] = begun(host);
    (come(&connected), come(&accepted))
}

fn memory() -> Memory {
    Memory::from(vec![7; 64 << 10])
}

fn post(lane: &Lane, holder: Holder, memory: &Memory) -> Ticket {
    let bytes = Bytes::Host(memory.clone());
    lane.post([Piece { holder, bytes, offset: 0, len: memory.len() }], None)
}

fn is_done(ticket: &Ticket) -> bool {
    ticket.is_done().unwrap()
}

#[test]
fn who_waits_for_a_slow_accept_connects_all_the_same() {
    let test = "lanes::who_waits_for_a_slow_accept_connects_all_the_same";
    inside(test, &[("SCATTER_SLOW_CALL", "accept:0:4000")], || {
        let host = host();
        let begin = Instant::now();
        let [connected, accepted] = begun(&host);
        come(&connected).close();
        let took = begin.elapsed();
        assert!(took < Duration::from_secs(4), "only when the accept has returned: {took:?}");
        come(&accepted).close();
    });
}

#[test]
fn who_asks_where_the_plugin_listens_waits_for_no_accept() {
    let test = "lanes::who_asks_where_the_plugin_listens_waits_for_no_accept";
    inside(test, &[("SCATTER_SLOW_CALL", "accept:0:4000")], || {
        let host = host();
        let [connected, accepted] = begun(&host);
        let [other_connected, other_accepted] = begun(&host);
        assert!(accepted.try_recv().is_err(), "the other listens when this has been accepted");
        for end in [connected, accepted, other_connected, other_accepted] {
            come(&end).close();
        }
    });
}

#[test]
fn who_waits_while_the_plugin_accepts_others_loses_no_time() {
    let test = "lanes::who_waits_while_the_plugin_accepts_others_loses_no_time";
    inside(test, &[("SCATTER_SLOW_CALL", "accept:0:600")], || {
        let host = host();
        let (limit, begin) = (Duration::from_secs(2), Instant::now());
        let ends: Vec<_> = (0..8).flat_map(|_| begun_within(limit, &host)).collect();
        for end in &ends {
            come(end).close();
        }
        assert!(begin.elapsed() > 2 * limit, "or they are accepted at the same time");
    });
}

#[test]
fn what_nobody_wants_any_more_is_not_accepted() {
    let test = "lanes::what_nobody_wants_any_more_is_not_accepted";
    inside(test, &[("SCATTER_SLOW_CALL", "accept:1:600")], || {
        let host = host();
        let is_wanted = Arc::new(AtomicBool::new(true));
        let (offer, offered) = channel();
        let (accept, accepted) = channel();
        let asked = is_wanted.clone();
        host.accept(
            0,
            LIMIT,
            move || asked.load(Ordering::Relaxed),
            move |handle| offer.send(handle).unwrap(),
            move |lane| accept.send(lane).unwrap(),
        );
        let handle = offered.recv_timeout(LIMIT).unwrap().unwrap();
        is_wanted.store(false, Ordering::Relaxed);
        let gone = accepted.recv_timeout(LIMIT).map(|lane| lane.map(|lane| lane.close()));
        assert_eq!(gone, Err(RecvTimeoutError::Disconnected), "it is let go without a word");
        // There is no listener any more.
        let (connect, connected) = channel();
        host.connect(0, &handle, LIMIT, || true, move |lane| connect.send(lane).unwrap());
        assert!(connected.recv_timeout(LIMIT).unwrap().is_err());
    });
}

#[test]
fn a_call_that_does_not_return_keeps_no_connection_from_closing() {
    let test = "lanes::a_call_that_does_not_return_keeps_no_connection_from_closing";
    inside(test, &[("SCATTER_SLOW_CALL", "listen:1:40000")], || {
        let host = host();
        let (sender, receiver) = lanes(&host);
        host.accept(0, LIMIT, || true, |_| (), |_| ());
        let begin = Instant::now();
        for lane in [sender, receiver] {
            lane.close();
            wait_for("the lane is closed", || lane.is_closed());
        }
        assert!(begin.elapsed() < LIMIT, "not only when the call has returned");
        // Dropping the host would wait for the call.
        std::mem::forget(host);
    });
}

#[test]
fn a_connection_that_closes_knows_memory_until_it_is_closed() {
    let test = "lanes::a_connection_that_closes_knows_memory_until_it_is_closed";
    inside(test, &[("SCATTER_SLOW_CALL", "closeRecv:0:500")], || {
        let host = host();
        let (_sender, receiver) = lanes(&host);
        let (holder, memory) = (Holder::unique(), memory());
        let ticket = post(&receiver, holder, &memory);
        receiver.close();
        assert!(!receiver.forget(holder) && !receiver.is_closed());
        assert!(!is_done(&ticket), "it may still be written to");
        wait_for("the lane is closed", || receiver.is_closed());
        assert!(receiver.forget(holder));
        ticket.is_done().unwrap_err();
    });
}

#[test]
fn a_plugin_that_does_not_forget_is_closed() {
    let test = "lanes::a_plugin_that_does_not_forget_is_closed";
    inside(test, &[("SCATTER_FAIL_CALL", "deregMr")], || {
        let host = host();
        let (sender, receiver) = lanes(&host);
        let (holder, memory) = (Holder::unique(), memory());
        let sent = post(&sender, holder, &memory);
        post(&receiver, Holder::unique(), &memory);
        wait_for("the message is sent", || {
            sender.poll();
            is_done(&sent)
        });
        assert!(!sender.forget(holder));
        assert!(sender.broken().is_some_and(|why| why.contains("deregMr")));
        wait_for("the lane is closed", || sender.is_closed());
        receiver.close();
    });
}

#[test]
fn who_forgets_memory_leaves_others_theirs() {
    inside("lanes::who_forgets_memory_leaves_others_theirs", &[], || {
        let host = host();
        let (sender, receiver) = lanes(&host);
        let (one, other) = (Holder::unique(), Holder::unique());
        let (from, to) = (memory(), Memory::from(vec![0; 64 << 10]));
        let bring = |received: &Ticket| {
            post(&sender, one, &from);
            wait_for("the message comes", || {
                sender.poll();
                receiver.poll();
                is_done(received)
            });
        };
        let first = post(&receiver, one, &to);
        bring(&first);
        // The same bytes, posted by a holder that still waits for them.
        let second = post(&receiver, other, &to);
        assert!(receiver.forget(one));
        assert_eq!(receiver.broken(), None);
        bring(&second);
        assert!(receiver.forget(other));
        [sender, receiver].iter().for_each(Lane::close);
    });
}

#[test]
fn a_look_at_a_ticket_calls_no_plugin() {
    inside("lanes::a_look_at_a_ticket_calls_no_plugin", &[], || {
        let host = host();
        let (sender, receiver) = lanes(&host);
        let memory = memory();
        let received = post(&receiver, Holder::unique(), &memory);
        let sent = post(&sender, Holder::unique(), &memory);
        wait_for("the message is sent", || {
            sender.poll();
            is_done(&sent)
        });
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_millis(20) {
            assert!(!is_done(&received));
        }
        wait_for("the message has come", || {
            receiver.poll();
            is_done(&received)
        });
        [sender, receiver].iter().for_each(Lane::close);
    });
}

#[test]
fn what_closes_while_the_host_ends_is_closed() {
    let test = "lanes::what_closes_while_the_host_ends_is_closed";
    inside(test, &[("SCATTER_SLOW_CALL", "closeSend:0:50")], || {
        let host = host();
        let lanes: Vec<Lane> = (0..8).map(|_| lanes(&host).0).collect();
        let (busy, others) = lanes.split_at(2);
        // The thread is busy with them when the host ends.
        busy.iter().for_each(Lane::close);
        let end = std::thread::spawn(move || drop(host));
        // Some before the thread stops, some when it is about to, and some after that.
        for (place, lane) in others.iter().enumerate() {
            match place {
                0 | 1 => {}
                2 | 3 => wait_for("the thread is nearly through", || {
                    busy[place - 2].is_closed() || end.is_finished()
                }),
                _ => wait_for("the thread has stopped", || end.is_finished()),
            }
            lane.close();
        }
        end.join().unwrap();
        wait_for("all are closed", || lanes.iter().all(Lane::is_closed));
    });
}
