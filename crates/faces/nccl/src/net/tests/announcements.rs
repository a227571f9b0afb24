//! Announcements of receives to the sender: when they leave, in which messages, and that none is lost.

use std::collections::VecDeque;

use polyrail::Observer;
use polyrail_nccl_abi::MAX_REQUESTS;

use super::*;

#[test]
fn what_receives_announce_leaves_together_when_one_is_tested() {
    let (hub, other) = (Arc::<Hub>::default(), Arc::<Hub>::default());
    let (here, there) = (net(&hub), net(&other));
    let pairs: Vec<_> = (0..4).map(|_| connected(&here, &there)).collect();
    const LEN: usize = 200_000;
    let said = || {
        let stats = here.engine.stats();
        stats.peers[0].rails.iter().map(|rail| rail.tx_chunks).sum::<u64>()
    };
    let until_still = || {
        until("the connections are made", || {
            let before = said();
            // Nothing may be sent for this long.
            std::thread::sleep(Duration::from_millis(20));
            said() == before
        });
        said()
    };
    let from = Memory::from((0..LEN).map(|at| at as u8).collect::<Vec<_>>());
    let before = until_still();
    let posted: Vec<_> = pairs
        .iter()
        .map(|(send, recv)| {
            let into = Memory::from(vec![0; LEN]);
            let into = recv.end.regions.add(&here.engine, into, 2000).unwrap();
            let received = taken(|| recv.receive(into, 2000, LEN));
            let from = send.end.regions.add(&there.engine, from.clone(), 1000).unwrap();
            (taken(|| send.send(from, 1000, LEN)), received, recv, into)
        })
        .collect();
    let notes = until_still() - before;
    assert!(notes < 4, "{notes} messages before one of them is tested");
    until("not there", || posted[0].1.test() == Progress::Done { bytes: LEN as u64 });
    for (sent, received, recv, into) in &posted[1..] {
        until("not there", || received.test() == Progress::Done { bytes: LEN as u64 });
        until("not sent", || sent.test() == Progress::Done { bytes: LEN as u64 });
        let mut bytes = vec![0; LEN];
        let region = recv.end.regions.get(*into, 2000, LEN).region;
        region.read_at(0, &mut bytes).unwrap();
        assert!(bytes.iter().enumerate().all(|(at, byte)| *byte == at as u8));
    }
    // One notification for four receives, plus messages of the engines themselves.
    let notes = said() - before;
    assert!((1..4).contains(&notes), "{notes} messages");
}

/// Messages of eight bytes one after another, each received before the next.
struct Small<'a> {
    send: &'a SendEnd,
    recv: &'a RecvEnd,
    from: usize,
    into: usize,
}

impl<'a> Small<'a> {
    fn new((here, recv): (&Net, &'a RecvEnd), (there, send): (&Net, &'a SendEnd)) -> Self {
        let memory = || Memory::from(vec![0; 8]);
        let from = send.end.regions.add(&there.engine, memory(), 1000).unwrap();
        let into = recv.end.regions.add(&here.engine, memory(), 1000).unwrap();
        Self { send, recv, from, into }
    }

    fn send(&self) -> &'a Request {
        taken(|| self.send.send(self.from, 1000, 8))
    }

    fn receive(&self) {
        let received = taken(|| self.recv.receive(self.into, 1000, 8));
        until("not there", || received.test() == Progress::Done { bytes: 8 });
    }

    fn exchange(&self) {
        let sent = self.send();
        self.receive();
        until("not sent", || sent.test() == Progress::Done { bytes: 8 });
    }
}

/// Chunks sent by a process's caller-driven engine.
fn sent_by_express(net: &Net) -> u64 {
    let peers = net.express.as_ref().unwrap().engine().stats().peers;
    peers.iter().flat_map(|peer| &peer.rails).map(|rail| rail.tx_chunks).sum()
}

#[test]
fn what_small_receives_have_to_say_goes_with_messages() {
    let (hub, other) = (Arc::<Hub>::default(), Arc::<Hub>::default());
    let (here, there) = (net(&hub), net(&other));
    let ((send, recv), (back, came_back)) = (connected(&here, &there), connected(&there, &here));
    let ping = Small::new((&here, &recv), (&there, &send));
    let pong = Small::new((&there, &came_back), (&here, &back));
    until("no express way", || {
        ping.exchange();
        pong.exchange();
        sent_by_express(&here) > 0 && sent_by_express(&there) > 0
    });
    let before = sent_by_express(&here) + sent_by_express(&there);
    for _ in 0..4 * WINDOW {
        ping.exchange();
        pong.exchange();
    }
    let sent = sent_by_express(&here) + sent_by_express(&there) - before;
    assert_eq!(sent, 8 * WINDOW, "a message for each, and no more");
    // Without traffic the other way, announcements travel alone.
    let before = sent_by_express(&here);
    (0..4 * WINDOW).for_each(|_| ping.exchange());
    let notes = sent_by_express(&here) - before;
    assert!((1..16).contains(&notes), "{notes} notes");
}

#[test]
fn what_an_express_way_that_is_lost_should_have_taken_along_is_said_again() {
    let (hub, other) = (Arc::<Hub>::default(), Arc::<Hub>::default());
    let (here, there) = (net(&hub), net(&other));
    let (send, recv) = connected(&here, &there);
    let small = Small::new((&here, &recv), (&there, &send));
    // Repeat until an announcement is queued with no message to carry it.
    until("nothing is left", || {
        small.exchange();
        recv.has_left_something()
    });
    let send_on = || {
        let sent = small.send();
        (sent.test() == Progress::Pending).then_some(sent)
    };
    let held = (0..2 * WINDOW).find_map(|_| send_on()).unwrap();
    let peer = here.express.as_ref().unwrap().engine().peers().pop().unwrap();
    hub.lost(&peer, &polyrail::LostReason::Removed);
    until("it is held for ever", || {
        // Like any test of a request in that process.
        hub.batches.flush();
        held.test() == Progress::Done { bytes: 8 }
    });
}

#[test]
fn receives_are_taken_before_any_message_came() {
    let (hub, other) = (Arc::<Hub>::default(), Arc::<Hub>::default());
    let (here, there) = (net(&hub), net(&other));
    let (_send, recv) = connected(&here, &there);
    let into = recv.end.regions.add(&here.engine, Memory::from(vec![0; 8]), 2000).unwrap();
    for _ in 0..MAX_REQUESTS {
        taken(|| recv.receive(into, 2000, 8));
    }
    assert!(recv.receive(into, 2000, 8).unwrap().is_none(), "NCCL has no more outstanding");
}

#[test]
fn receives_are_announced_though_only_sends_are_tested() {
    let (hub, other) = (Arc::<Hub>::default(), Arc::<Hub>::default());
    let (here, there) = (net(&hub), net(&other));
    const LEN: usize = 200_000;
    let memory = || Memory::from(vec![1; LEN]);
    let exchange = |to: &Net, from: &Net| {
        let (send, recv) = connected(to, from);
        let into = recv.end.regions.add(&to.engine, memory(), 1000).unwrap();
        let source = send.end.regions.add(&from.engine, memory(), 1000).unwrap();
        taken(|| recv.receive(into, 1000, LEN));
        // The second message stays pending: a process without a request to test would send nothing.
        for _ in 0..2 {
            taken(|| send.send(source, 1000, LEN));
        }
        (send, recv)
    };
    let ends = [exchange(&here, &there), exchange(&there, &here)];
    let mut over = [false; 2];
    until("a send waits for a receive that is posted", || {
        for (over, (send, _)) in over.iter_mut().zip(&ends) {
            let progress = send.end.request(0).test();
            assert_eq!(send.end.request(1).test(), Progress::Pending);
            assert!(
                progress != Progress::Failed,
                "{:?}",
                send.end.check().map_err(|e| e.to_string())
            );
            *over |= progress == Progress::Done { bytes: LEN as u64 };
        }
        over == [true; 2]
    });
}

#[test]
fn what_is_posted_counts_though_it_is_heard_before_the_welcome() {
    let (hub, other) = (Arc::<Hub>::default(), Arc::<Hub>::default());
    let (here, there) = (net(&hub), net(&other));
    let memory = || Memory::from(vec![0; 8]);
    let from = |send: &SendEnd| send.end.regions.add(&there.engine, memory(), 1000).unwrap();
    let into = |recv: &RecvEnd| recv.end.regions.add(&here.engine, memory(), 1000).unwrap();
    let both = |send: &Request, recv: &Request| {
        until("a message is held for ever", || {
            send.test();
            recv.test() != Progress::Pending
        });
    };
    let engine = there.express.as_ref().unwrap().engine();
    let (first, firsts) = connected(&here, &there);
    let (source, target) = (from(&first), into(&firsts));
    until("no express way", || {
        let received = taken(|| firsts.receive(target, 1000, 8));
        // Both ends are tested, as NCCL does: a posted message may leave only with a later call.
        let sent = taken(|| {
            received.test();
            first.send(source, 1000, 8)
        });
        both(sent, received);
        engine.peers().first().is_some_and(|peer| peer.flows().up > 0)
    });
    for _ in 0..50 {
        let (listener, mut attempt) = asked(&here, &there);
        let recv = accept(&here.hub, &listener).unwrap().unwrap();
        let target = into(&recv);
        let take = || taken(|| recv.receive(target, 1000, 8));
        let mut ahead: VecDeque<_> = (0..MAX_REQUESTS).map(|_| take()).collect();
        let mut send = None;
        until("not connected", || {
            // Like another connection of the process.
            engine.progress();
            send = there.advance(&mut attempt).unwrap();
            send.is_some()
        });
        let send = send.unwrap();
        let source = from(&send);
        for _ in 0..WINDOW + 1 {
            let received = ahead.pop_front().unwrap_or_else(take);
            let sent = taken(|| {
                received.test();
                send.send(source, 1000, 8)
            });
            both(sent, received);
        }
        drop((other.remove(send.end.key), hub.remove(recv.end.key)));
    }
}
