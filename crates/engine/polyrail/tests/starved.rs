//! Threads that get no CPU for a while: other threads do not wait for them, and peers do not take them for dead. Alone
//! in their process, so that no other test takes CPU time from these.

mod common;

use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::puppet::{PUPPET_BYTES, Puppet};
use common::relay::{Relay, metadata_through};
use common::*;
use polyrail::{Engine, OnEnd, Outcome, Request, TransferError};
use rustix::process::Signal;

/// Time after which the puppet gives up its peer, which itself waits without a limit.
const TIMEOUT: Duration = Duration::from_secs(3);
const IMPATIENT: &[(&str, &str)] =
    &[("rails", "127.0.0.1"), ("peer_timeout_ms", "3000"), ("reconnect_max_ms", "100")];
const PATIENT: &[(&str, &str)] = &[("peer_timeout_ms", "60000"), ("reconnect_max_ms", "100")];

/// Blocks the thread that reports an end, like a thread that gets no CPU.
struct Holdup {
    begins: Mutex<mpsc::Sender<()>>,
    ends: Mutex<mpsc::Receiver<()>>,
}

impl OnEnd for Holdup {
    fn ended(&self, _token: u64, _result: &Result<Outcome, TransferError>) {
        self.begins.lock().unwrap().send(()).unwrap();
        // Also if the test has failed, and the other half is gone.
        let _ = self.ends.lock().unwrap().recv_timeout(LONG);
    }
}

#[test]
fn to_post_waits_for_no_thread_that_drives_and_has_no_cpu() {
    for mode in [&[][..], &[("progress", "caller")]] {
        let p = pair(mode);
        let ((begins, begun), (end, ends)) = (mpsc::channel(), mpsc::channel());
        let holdup = Arc::new(Holdup { begins: Mutex::new(begins), ends: Mutex::new(ends) });
        let request = Request::write(&p.to_b).notification(b"first".to_vec());
        let first = p.a.prepare(request.tell(holdup, 1)).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| first.post().unwrap().ended().unwrap());
            // With `progress = caller`, b's caller has to drive for the answer, too.
            assert_eq!(p.b.wait_notification(LONG).expect("it comes").data, b"first");
            begun.recv_timeout(LONG).expect("the end is told");
            let (posts, posted) = mpsc::channel();
            let (a, to_b) = (p.a.clone(), p.to_b.clone());
            scope.spawn(move || {
                let transfer = a.notify(&to_b, b"second").unwrap();
                let _ = transfer.try_wait();
                transfer.detach();
                posts.send(()).unwrap();
            });
            let is_posted = posted.recv_timeout(Duration::from_secs(10)).is_ok();
            end.send(()).unwrap();
            assert!(is_posted, "{mode:?}: it waits for the thread that drives");
        });
        assert_eq!(p.b.wait_notification(LONG).expect("it comes").data, b"second");
    }
}

/// Stops the whole process for this time, as on a machine that is far too busy.
fn away(puppet: &Puppet, time: Duration) {
    puppet.signal(Signal::STOP);
    // The time that the test is about.
    std::thread::sleep(time);
    puppet.signal(Signal::CONT);
}

/// Stalls all relays, and waits until the puppet has read what passed: no pending acknowledgement may save it later.
fn hush(relays: &[Relay]) {
    relays.iter().for_each(Relay::stall);
    let ports: Vec<u16> = relays.iter().map(|relay| relay.address.port()).collect();
    // One look: the puppet counts the time until it is stopped as silence, and the table of a busy machine is long.
    wait_for("the puppet to read", || unread(&ports) == 0);
}

/// Returns the bytes on their way from these ports of this host to the connected clients: sent and not acknowledged by
/// the other's kernel, or not read, from `proc_net_tcp(5)`.
fn unread(ports: &[u16]) -> u64 {
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let hex = |text: &str| u64::from_str_radix(text, 16).unwrap();
    let is_one = |address: &str| {
        address.split_once(':').is_some_and(|(_, port)| ports.contains(&(hex(port) as u16)))
    };
    let of_line = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (sent, read) = words[4].split_once(':').unwrap();
        let is_sender = is_one(words[1]) && words[3] == ESTABLISHED;
        u64::from(is_sender) * hex(sent) + u64::from(is_one(words[2])) * hex(read)
    };
    table.lines().skip(1).map(of_line).sum()
}

/// State of a connection, in `/proc/net/tcp`.
const ESTABLISHED: &str = "01";

fn received(engine: &Engine) -> u64 {
    let rails = engine.stats().peers.into_iter().flat_map(|peer| peer.rails);
    rails.map(|rail| rail.rx_bytes).sum()
}

/// Checks that the puppet's writes still arrive.
fn goes_on(engine: &Engine, puppet: &Puppet) {
    let before = received(engine);
    wait_for("the puppet's writes to arrive", || {
        assert_eq!(puppet.says(), None);
        received(engine) > before + 2 * PUPPET_BYTES as u64
    });
}

#[test]
fn whoever_had_no_cpu_takes_no_silent_peer_for_dead() {
    for mode in [&[][..], &[("progress", "caller")]] {
        let engine = one_rail(PATIENT);
        let relays: Vec<Relay> = engine.addresses().into_iter().map(Relay::to).collect();
        let mut puppet = Puppet::start(&engine, &[IMPATIENT, mode].concat());
        let region = zeroed(&engine, PUPPET_BYTES);
        puppet.flood_through(&metadata_through(&engine, &relays), &region);
        goes_on(&engine, &puppet);
        hush(&relays);
        away(&puppet, TIMEOUT * 2);
        relays.iter().for_each(|relay| relay.set(|mood| mood.stalled = false));
        goes_on(&engine, &puppet);
    }
}

#[test]
fn whoever_had_no_cpu_gives_up_no_rail_for_it() {
    for mode in [&[][..], &[("progress", "caller")]] {
        let engine = one_rail(PATIENT);
        let relays: Vec<Relay> = engine.addresses().into_iter().map(Relay::to).collect();
        let settings = [&[("rail_stall_ms", "2000")], IMPATIENT, mode].concat();
        let mut puppet = Puppet::start(&engine, &settings);
        let region = zeroed(&engine, PUPPET_BYTES);
        puppet.flood_through(&metadata_through(&engine, &relays), &region);
        goes_on(&engine, &puppet);
        let accepted = || relays.iter().map(Relay::accepted).sum::<u64>();
        let before = accepted();
        hush(&relays);
        away(&puppet, TIMEOUT);
        // Time for some of its checks, and far less than a rail may stall.
        std::thread::sleep(Duration::from_millis(300));
        relays.iter().for_each(|relay| relay.set(|mood| mood.stalled = false));
        goes_on(&engine, &puppet);
        assert_eq!(accepted(), before, "{mode:?}: it has connected anew");
    }
}

#[test]
fn whoever_had_no_cpu_goes_on_to_connect() {
    let engine = one_rail(PATIENT);
    let relays: Vec<Relay> = engine.addresses().into_iter().map(Relay::to).collect();
    relays.iter().for_each(|relay| relay.set(|mood| mood.closed = true));
    let mut puppet = Puppet::start(&engine, IMPATIENT);
    let region = zeroed(&engine, PUPPET_BYTES);
    puppet.flood_through(&metadata_through(&engine, &relays), &region);
    away(&puppet, TIMEOUT * 2);
    relays.iter().for_each(|relay| relay.set(|mood| mood.closed = false));
    goes_on(&engine, &puppet);
}

#[test]
fn whoever_has_no_cpu_to_say_its_first_words_is_waited_for() {
    let engine = one_rail(&[("reconnect_max_ms", "200"), ("peer_timeout_ms", "30000")]);
    let puppet = Puppet::start(&engine, PATIENT);
    puppet.signal(Signal::STOP);
    let peer = engine.add_peer(&puppet.metadata).unwrap();
    let notified = engine.notify(&peer, b"hello").unwrap();
    // Ten times the pause before the next attempt, which was once the limit of an attempt.
    std::thread::sleep(Duration::from_secs(2));
    puppet.signal(Signal::CONT);
    notified.ended().unwrap();
    let dump = engine.dump();
    assert!(!dump.contains("timed out"), "{dump}");
}

/// The proxies of a process may be late where its control thread is not.
#[test]
fn a_peer_whose_answers_nobody_has_read_is_not_silent() {
    let settings = [("rails", "127.0.0.1"), ("proxy_layout", "merged")];
    let settings = [&settings[..], &[("proxies", "1"), ("peer_timeout_ms", "3000")]].concat();
    let mut was_under_way = false;
    for _ in 0..20 {
        let p = pair(&settings);
        let (from, to) = (zeroed(&p.a, 32 << 20), zeroed(&p.b, 32 << 20));
        let ((begins, begun), (end, ends)) = (mpsc::channel(), mpsc::channel());
        let holdup = Arc::new(Holdup { begins: Mutex::new(begins), ends: Mutex::new(ends) });
        p.a.write(&p.to_b, &from.all(), &remote(&p.b, &to).all()).unwrap().ended().unwrap();
        let large = p.a.write(&p.to_b, &from.all(), &remote(&p.b, &to).all()).unwrap();
        let request = Request::write(&p.to_b).notification(b"small".to_vec());
        p.a.post(request.tell(holdup, 1)).unwrap().detach();
        begun.recv_timeout(LONG).expect("the end is told");
        let is_under_way = !large.is_over();
        if is_under_way {
            // Blocks the proxy for longer than a peer may be silent.
            std::thread::sleep(TIMEOUT * 3 / 2);
        }
        end.send(()).unwrap();
        large.ended().unwrap();
        assert_eq!(p.to_b.lost(), None);
        was_under_way = is_under_way;
        if was_under_way {
            break;
        }
    }
    assert!(was_under_way, "the large write was over first each time");
}
