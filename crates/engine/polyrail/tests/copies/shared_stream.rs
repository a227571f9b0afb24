//! Connections of callers within one host, whose bytes go through memory that both ends have open.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::common::puppet::{PUPPET_BYTES, PUPPET_SEED, Puppet};
use crate::common::stranger::{Stranger, card, hello, on_this_host};
use crate::common::*;
use polyrail::{Engine, Request};
use polyrail_proto::hello::{Capabilities, Card, FlowHello};
use polyrail_proto::wire::SharedPlace;
use polyrail_sys::{SharedMemory, SharedWord};
use rustix::process::Signal;

const CALLER: &[(&str, &str)] = &[("progress", "caller"), ("rails", "127.0.0.1")];
const RING: u64 = 1 << 20;
/// Bytes of an offer: words, and a ring for each direction.
const OFFERED: u64 = 4096 + 2 * RING;
/// Offsets of words: whether the memory is open, the number of its layout, and how far the connecting end has written
/// and read.
const STATE: u64 = 0;
const LAYOUT: u64 = 8;
const WRITTEN: u64 = 128;
const READ: u64 = 512;

fn streams(engine: &Engine) -> usize {
    engine.dump().matches(", through shared memory").count()
}

/// Whether statistics have a round-trip time or a congestion control of a flow.
fn tells_of_sockets(engine: &Engine) -> bool {
    let stats = engine.stats();
    let flows = stats.peers.iter().flat_map(|peer| &peer.rails).flat_map(|rail| &rail.flows);
    flows.into_iter().any(|flow| flow.rtt_us > 0 || !flow.congestion.is_empty())
}

/// Makes writes, reads and messages of many sizes between two engines that one thread drives alternately.
fn exchange(p: &Pair) {
    for len in [1, 8, 513, 4096, 65_536, 300_001, 3 << 20] {
        let (source, target) = (filled(&p.a, len, len as u64), zeroed(&p.b, len));
        let there = remote(&p.a, &target);
        let message = zeroed(&p.b, len);
        let mut all = vec![p.b.receive(&p.to_a, 1, &message.all()).unwrap()];
        all.push(p.a.send(&p.to_b, 1, &source.all()).unwrap());
        let write = p.a.write(&p.to_b, &source.all(), &there.all()).unwrap();
        // The read may overtake the write that it reads.
        drive(p, || write.try_wait().is_some());
        let back = zeroed(&p.a, len);
        all.push(p.a.read(&p.to_b, &back.all(), &there.all()).unwrap());
        for transfer in &all {
            drive(p, || transfer.try_wait().is_some());
            finished(transfer);
        }
        let want = pattern(len, len as u64);
        assert!(bytes(&target) == want && bytes(&back) == want && bytes(&message) == want, "{len}");
    }
}

fn drive(p: &Pair, is_over: impl Fn() -> bool) {
    wait_for("a transfer", || {
        p.a.progress();
        p.b.progress();
        is_over()
    });
}

#[test]
fn callers_of_one_host_share_memory_and_every_byte_arrives() {
    for (extra, expected) in [
        (&[][..], true),
        (&[("payload", "crc32c")], true),
        (&[("payload", "aead")], true),
        (&[("path", "tcp")], false),
    ] {
        let p = pair(&[CALLER, extra].concat());
        exchange(&p);
        assert_eq!(streams(&p.a) > 0, expected, "{}", p.a.dump());
        assert_eq!(streams(&p.b) > 0, expected, "{}", p.b.dump());
        // The idle socket's statistics are not the flow's.
        assert_eq!(tells_of_sockets(&p.a), !expected, "{:?}", p.a.stats());
    }
    // One end alone does not decide.
    let (a, b) = (engine(CALLER), engine(&[CALLER, &[("path", "tcp")]].concat()));
    let to_b = a.add_peer(&b.metadata()).unwrap();
    let to_a = b.add_peer(&a.metadata()).unwrap();
    let p = Pair { a, b, to_b, to_a };
    exchange(&p);
    assert_eq!((streams(&p.a), streams(&p.b)), (0, 0));
}

#[test]
fn a_stopped_process_costs_its_connections_which_are_made_anew_and_nothing_is_lost() {
    let settings = [CALLER, &[("rail_stall_ms", "100"), ("reconnect_max_ms", "200")]].concat();
    let engine = engine(&settings);
    let mut puppet = Puppet::start(&engine, &settings);
    let peer = engine.add_peer(&puppet.metadata).unwrap();
    let seed = PUPPET_SEED + 1;
    let (source, back) =
        (filled(&engine, PUPPET_BYTES, seed), filled(&engine, PUPPET_BYTES, PUPPET_SEED + 2));
    let there = puppet.region.all();
    finished(&engine.write(&peer, &source.all(), &there).unwrap());
    assert!(streams(&engine) > 0, "{}", engine.dump());
    puppet.signal(Signal::STOP);
    let write = engine.write(&peer, &source.all(), &there).unwrap();
    wait_for("a connection to be given up", || {
        engine.progress();
        lost_flows(&engine) > 0
    });
    assert!(write.try_wait().is_none(), "nobody can have taken it");
    puppet.signal(Signal::CONT);
    finished(&write);
    // Bytes that it finds in the old memory when it goes on no longer count.
    finished(&engine.read(&peer, &back.all(), &there).unwrap());
    assert_eq!((peer.lost(), bytes(&back) == pattern(PUPPET_BYTES, seed)), (None, true));
    assert_eq!(puppet.ask(&format!("holds {seed}")), "true");
    assert!(streams(&engine) > 0, "{}", engine.dump());
}

/// Returns why CPUs do not copy a short write to the peer, which also names the path.
fn way_of_a_short_write(p: &Pair) -> String {
    let (source, target) = (zeroed(&p.a, 8), zeroed(&p.b, 8));
    let there = remote(&p.a, &target);
    let request = Request::write(&p.to_b).segment(source.all(), there.all());
    p.a.prepare(request).unwrap().path().to_string()
}

#[test]
fn the_path_of_a_short_write_says_whether_connections_share_memory_and_why_not() {
    let auto = [CALLER, &[("path", "auto")]].concat();
    let shared = [CALLER, &[("path", "shared")]].concat();
    let proxy = [("rails", "127.0.0.1")];
    let cases: [(&[(&str, &str)], &str); 3] = [
        (&auto, "connections to the peer go through shared memory"),
        (&shared, "connections to the peer go through shared memory"),
        (&proxy, "the peer does not want it: its progress or path setting says so"),
    ];
    for (settings, expected) in cases {
        let p = apart(&auto, settings);
        let (source, target) = (filled(&p.a, 8, 1), zeroed(&p.b, 8));
        let there = remote(&p.a, &target);
        let write = p.a.write(&p.to_b, &source.all(), &there.all()).unwrap();
        drive(&p, || write.try_wait().is_some());
        let way = way_of_a_short_write(&p);
        assert!(way.contains(expected), "{way}");
        assert_eq!(p.a.dump().contains("no shared memory for connections"), streams(&p.a) == 0);
    }
}

/// Returns how often threads that drive the engine have slept.
fn sleeps(engine: &Engine) -> u64 {
    engine.stats().proxies.iter().map(|proxy| proxy.sleeps).sum()
}

#[test]
fn a_caller_that_sleeps_is_woken_by_bytes_in_shared_memory() {
    let p = pair(&[CALLER, &[("spin", "off")]].concat());
    exchange(&p);
    let wait = |_| {
        let before = sleeps(&p.b);
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                p.b.wait_notification(LONG).expect("it comes");
                Instant::now()
            });
            wait_for("it to sleep", || sleeps(&p.b) > before);
            let posted = Instant::now();
            p.a.notify(&p.to_b, b"wake up").unwrap().detach();
            // Posting may leave the send to the next call.
            p.a.progress();
            waiter.join().unwrap().saturating_duration_since(posted)
        })
    };
    // A sleep without a wake-up takes 100 ms.
    let mut waits: Vec<Duration> = (0..20).map(wait).collect();
    waits.sort();
    assert!(waits[10] < Duration::from_millis(50), "{waits:?}");
}

/// Measures how long it takes to wake a thread through a channel, here and now.
fn plain_wake_up() -> Duration {
    let ((ready, is_ready), (tell, told)) = (mpsc::channel(), mpsc::channel());
    let waiter = std::thread::spawn(move || {
        ready.send(()).unwrap();
        told.recv().unwrap();
        Instant::now()
    });
    is_ready.recv_timeout(LONG).expect("it begins");
    let told_at = Instant::now();
    tell.send(()).unwrap();
    waiter.join().unwrap().saturating_duration_since(told_at)
}

/// Another thread drives the engine now and then, while one sleeps until something comes. Whatever the driving thread
/// takes, it wakes the sleeping one, which must not find it only at the end of its own sleep.
#[test]
fn a_caller_that_sleeps_is_woken_by_what_another_has_found() {
    const MESSAGES: usize = 150;
    /// Far below the 50 and 100 ms after which a thread looks without a wake-up.
    const LATE: Duration = Duration::from_millis(35);
    for path in ["auto", "tcp"] {
        let p = pair(&[CALLER, &[("path", path), ("spin", "off")]].concat());
        let over = AtomicBool::new(false);
        let (late, plain) = std::thread::scope(|scope| {
            let _tell = TellOnDrop(&over);
            for pause in [20, 60, 170, 900] {
                let (engine, over) = (&p.a, &over);
                scope.spawn(move || {
                    while !over.load(Ordering::Relaxed) {
                        engine.progress();
                        // Calls now and then.
                        std::thread::sleep(Duration::from_micros(pause));
                    }
                });
            }
            let (mut late, mut plain) = (0, 0);
            for _ in 0..MESSAGES {
                plain += (0..2).filter(|_| plain_wake_up() > LATE).count();
                let before = sleeps(&p.a);
                let told = scope.spawn(|| (p.a.wait_notification(LONG).is_some(), Instant::now()));
                wait_for("it to sleep", || sleeps(&p.a) > before);
                // Takes the acknowledgements.
                p.b.progress();
                p.b.notify(&p.to_a, b"wake up").unwrap().detach();
                p.b.progress();
                let told_at = Instant::now();
                let (came, woke_at) = told.join().unwrap();
                assert!(came);
                late += usize::from(woke_at.saturating_duration_since(told_at) > LATE);
            }
            (late, plain)
        });
        println!("{path}: {late} of {MESSAGES} came late; {plain} wake-ups without an engine did");
        // On a busy machine a thread sometimes has no CPU for that long, whatever wakes it.
        assert!(
            late <= 2 * plain + MESSAGES / 18,
            "{path}: {late} of {MESSAGES} came late, not {plain}"
        );
    }
}

/// Makes a stranger whose connection goes through memory that it can write to.
fn offered(engine: &Engine) -> (Stranger, SharedMemory) {
    let memory = SharedMemory::create(OFFERED, 7).unwrap();
    memory.populate().unwrap();
    word(&memory, LAYOUT).store(2, Ordering::Release);
    (stranger_with(engine, place(&memory)), memory)
}

fn place(memory: &SharedMemory) -> SharedPlace {
    SharedPlace {
        process: std::process::id(),
        descriptor: memory.descriptor(),
        bytes: memory.memory().len(),
        token: memory.token(),
    }
}

fn stranger_with(engine: &Engine, place: SharedPlace) -> Stranger {
    let own = card(&["127.0.0.1:9".parse().unwrap()]);
    let capabilities =
        own.capabilities.with(Capabilities::DUPLEX).with(Capabilities::SHARED_STREAM);
    let own = on_this_host(engine, Card { capabilities, ..own });
    let hello =
        FlowHello { capabilities: Capabilities::DUPLEX, stream: Some(place), ..hello(engine, own) };
    Stranger::welcome_at(engine, hello)
}

fn word(memory: &SharedMemory, at: u64) -> SharedWord {
    SharedWord::new(memory.memory(), at).unwrap()
}

#[test]
fn garbage_in_shared_memory_costs_its_peer_the_connection_and_nothing_else() {
    let engine = engine(&[CALLER, &[("channels", "1")]].concat());
    let garbage: [&dyn Fn(&SharedMemory); 7] = [
        &|memory| word(memory, WRITTEN).store(u64::MAX, Ordering::Release),
        &|memory| word(memory, WRITTEN).store(RING + 1, Ordering::Release),
        // No record begins with these bytes.
        &|memory| {
            memory.memory().write_at(4096, &[0xff; 64]).unwrap();
            word(memory, WRITTEN).store(64, Ordering::Release);
        },
        // A record that is long enough but not sealed.
        &|memory| {
            memory.memory().write_at(4096, &[40, 0, 0, 0, 0, 0, 0, 0]).unwrap();
            word(memory, WRITTEN).store(4096, Ordering::Release);
        },
        // More than it ever had to read. The engine checks when it has no room, or the connection ends.
        &|memory| {
            word(memory, READ).store(1 << 50, Ordering::Release);
            word(memory, WRITTEN).store(u64::MAX, Ordering::Release);
        },
        // The stranger marks the stream as given up.
        &|memory| word(memory, WRITTEN + 8).store(1, Ordering::Release),
        // The stranger writes anything anywhere while the engine reads.
        &|memory| {
            let mut random = Random(7);
            for _ in 0..20_000 {
                let (at, value) = (random.below(OFFERED / 8) * 8, random.below(u64::MAX));
                word(memory, at).store(value, Ordering::Release);
                word(memory, WRITTEN).store(random.below(RING), Ordering::Release);
            }
        },
    ];
    for spoil in garbage {
        let (mut stranger, memory) = offered(&engine);
        assert_eq!(word(&memory, STATE).load(Ordering::Acquire), 1, "the engine has opened it");
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let _tell = TellOnDrop(&over);
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    engine.progress();
                }
            });
            spoil(&memory);
            stranger.last_words();
        });
    }
    // Others are served as before.
    let other = crate::common::engine(CALLER);
    let to_other = engine.add_peer(&other.metadata()).unwrap();
    let to_engine = other.add_peer(&engine.metadata()).unwrap();
    exchange(&Pair { a: engine, b: other, to_b: to_other, to_a: to_engine });
}

#[test]
fn memory_that_may_not_be_opened_leaves_the_connection_to_its_socket() {
    let engine = engine(&[CALLER, &[("channels", "1")]].concat());
    let memory = SharedMemory::create(OFFERED, 7).unwrap();
    let small = SharedMemory::create(OFFERED / 2, 7).unwrap();
    let good = place(&memory);
    for (bad, why) in [
        (good, "has layout 0, this engine's is 2"),
        (SharedPlace { token: 8, ..good }, "another file"),
        (SharedPlace { bytes: OFFERED, ..place(&small) }, "another file"),
        (place(&small), "bytes were offered, allowed is"),
        // Opening it would have an effect.
        (SharedPlace { descriptor: 0, ..good }, "can't be opened"),
        (SharedPlace { process: u32::MAX, ..good }, "can't be opened"),
    ] {
        let _stranger = stranger_with(&engine, bad);
        assert_eq!(word(&memory, STATE).load(Ordering::Acquire), 0, "{why}");
        let dump = engine.dump();
        assert!(dump.contains("no shared memory for connections") && dump.contains(why), "{dump}");
    }
}
