//! Messages of all sizes over a connection: their path, and their arrival.

use super::*;

#[test]
fn small_messages_pass_through_no_proxy_and_could_take_every_rail() {
    let (hub, other) = (Arc::<Hub>::default(), Arc::<Hub>::default());
    let rails = "127.0.0.1,127.0.0.2";
    let (here, there) = (net_of(rails, &hub), net_of(rails, &other));
    let (send, recv) = connected(&here, &there);
    let from = Memory::from((0..=255).collect::<Vec<u8>>());
    let from = send.end.regions.add(&there.engine, from, 1000).unwrap();
    let into = recv.end.regions.add(&here.engine, Memory::from(vec![0; 256]), 2000).unwrap();
    let exchange = |len: usize| {
        let sent = taken(|| send.send(from, 1000, len));
        let received = taken(|| recv.receive(into, 2000, 256));
        until("not there", || received.test() == Progress::Done { bytes: len as u64 });
        until("not sent", || sent.test() == Progress::Done { bytes: len as u64 });
    };
    let engine = there.express.as_ref().unwrap().engine();
    let chunks =
        |rails: &[polyrail::RailStats]| rails.iter().map(|rail| rail.tx_chunks).sum::<u64>();
    let by_express = || engine.stats().peers.iter().map(|peer| chunks(&peer.rails)).sum::<u64>();
    until("no express way", || {
        exchange(5);
        by_express() > 0
    });
    let express = engine.peers().pop().unwrap();
    until("not all rails", || {
        exchange(0);
        express.flows() == polyrail::Flows { up: 2, total: 2 }
    });
    let before = by_express();
    let by_proxies = || {
        let stats = here.engine.stats();
        stats.peers.iter().map(|peer| chunks(&peer.rails)).sum::<u64>()
    };
    let proxies_before = by_proxies();
    let start = Instant::now();
    (1..=256).for_each(exchange);
    // The 16 messages that announce posted receives use the lane, too.
    let noted = by_proxies() - proxies_before;
    assert!(noted < 8, "{noted} notes by proxies");
    // A message that finds too many unacknowledged ones uses a progress thread. None waits for the thread that looks
    // every 50 ms: that would take 12 s.
    let taken = by_express() - before;
    assert!(taken >= 64, "{taken} of 256");
    assert!(start.elapsed() < Duration::from_secs(7), "{:?}", start.elapsed());
    let mut bytes = [0; 256];
    recv.end.regions.get(into, 2000, 256).region.read_at(0, &mut bytes).unwrap();
    assert!(bytes.iter().enumerate().all(|(at, byte)| *byte == at as u8), "{bytes:?}");
}

#[test]
fn what_was_sent_before_the_sender_left_can_be_taken_later() {
    let (hub, other) = (Arc::<Hub>::default(), Arc::<Hub>::default());
    let (here, there) = (net(&hub), net(&other));
    let (send, recv) = connected(&here, &there);
    let memory = |text: &[u8]| Memory::from(text.to_vec());
    let from = send.end.regions.add(&there.engine, memory(b"from here"), 1000).unwrap();
    for _ in 0..WINDOW {
        let request = taken(|| send.send(from, 1000, 9));
        until("not sent", || request.test() == Progress::Done { bytes: 9 });
    }
    send.close();
    drop(other.remove(send.end.key));
    let instance = there.engine.instance();
    drop((send, there));
    until("it is not gone", || here.engine.peer(instance).is_none());
    let into = recv.end.regions.add(&here.engine, memory(&[0; 9]), 1000).unwrap();
    for _ in 0..WINDOW {
        let request = taken(|| recv.receive(into, 1000, 9));
        assert_eq!(request.test(), Progress::Done { bytes: 9 });
    }
    assert!(recv.receive(into, 1000, 9).is_err(), "there is no more");
    recv.close();
}

#[test]
fn messages_of_all_sizes_arrive_if_only_one_side_has_the_express_way() {
    let net = |express: &str, hub: &Arc<Hub>| {
        let config = Config::builder().set("rails", "127.0.0.1").unwrap();
        let config = config.set("nccl_express_bytes", express).unwrap().build().unwrap();
        Net::new(config, hub).unwrap()
    };
    for (receiver, sender) in [("0", "32KiB"), ("32KiB", "0"), ("1B", "32KiB")] {
        let (hub, other) = (Arc::<Hub>::default(), Arc::<Hub>::default());
        let (here, there) = (net(receiver, &hub), net(sender, &other));
        let (listener, mut attempt) = asked(&here, &there);
        let recv = accept(&hub, &listener).unwrap().unwrap();
        let mut connected = None;
        until("not connected", || {
            connected = there.advance(&mut attempt).unwrap();
            connected.is_some()
        });
        let send = connected.unwrap();
        let bytes: Vec<u8> = (0..200_000u32).map(|at| (at % 251) as u8).collect();
        let from = Memory::from(bytes.clone());
        let from = send.end.regions.add(&there.engine, from, 1000).unwrap();
        for len in [0, 1, 1 << 10, (1 << 10) + 1, 32 << 10, (32 << 10) + 1, 128 << 10, 200_000] {
            let into = Memory::from(vec![0; len.max(1)]);
            let into = recv.end.regions.add(&here.engine, into, 2000).unwrap();
            let sent = taken(|| send.send(from, 1000, len));
            let received = taken(|| recv.receive(into, 2000, len));
            let whole = Progress::Done { bytes: len as u64 };
            until("not there", || received.test() == whole);
            until("not sent", || sent.test() == whole);
            let mut got = vec![0; len];
            recv.end.regions.get(into, 2000, len).region.read_at(0, &mut got).unwrap();
            assert!(got == bytes[..len], "{len} bytes of {sender} to {receiver}");
            recv.end.regions.remove(into).unwrap();
        }
        send.close();
        recv.close();
        drop((other.remove(send.end.key), hub.remove(recv.end.key)));
    }
}
