//! No transfer waits for a timer: however long a device takes, the step after its copies follows at once. Alone in its
//! process, since the time that threads waited for a CPU is counted.

mod common;

use std::fs;
use std::time::{Duration, Instant};

use common::devices::{device, lone_device, on};
use common::*;
use polyrail::{Engine, PathKind, Peer, PreparedTransfer, Request};
use polyrail_gpu::fake::FakeDevice;
use polyrail_sys::threads::{allowed_cpus, bind_current, thread_cpu_time};

/// Copies take from nothing up to this.
const LATEST: Duration = Duration::from_millis(1);
const STEP: Duration = Duration::from_micros(2);
/// Allowed time in addition to the copies, far less than any timer of the engine.
const EXCESS: Duration = Duration::from_millis(5);
const TRIES: usize = 10;

/// Returns how long threads of this process were able to run and did not get a CPU: the engine is not responsible for
/// that.
fn starved() -> Duration {
    let tasks = fs::read_dir("/proc/self/task").unwrap().flatten();
    let waited = |task: fs::DirEntry| -> Option<u64> {
        // Time on a CPU, time in the run queue, slices.
        let text = fs::read_to_string(task.path().join("schedstat")).ok()?;
        text.split_whitespace().nth(1)?.parse().ok()
    };
    Duration::from_nanos(tasks.filter_map(waited).sum())
}

/// Returns how much longer a transfer takes than its copies.
fn excess_of(prepared: &PreparedTransfer, devices: [&FakeDevice; 2]) -> (Duration, String) {
    let copied = || devices[0].copied() + devices[1].copied();
    let (began, copied_before, starved_before) = (Instant::now(), copied(), starved());
    prepared.post().unwrap().ended().unwrap();
    let took = began.elapsed();
    let (copies, starved) = (copied() - copied_before, starved().saturating_sub(starved_before));
    let text = format!("{took:?}, of which {copies:?} of copies and {starved:?} without a CPU");
    (took.saturating_sub(copies + starved), text)
}

/// Writes from device to device, one transfer at a time, while copies take longer and longer.
fn write_ever_later(p: &Pair, path: PathKind) {
    let (here, there) = match path {
        PathKind::PeerCopy => (device(0), device(1)),
        _ => (lone_device(0), lone_device(1)),
    };
    // A single chunk, and several that wait for each other.
    for len in [50_000, 180_000] {
        let (source, _) = on(&here, &p.a, &pattern(len, 5));
        let (target, memory) = on(&there, &p.b, &vec![0; len]);
        let segment = (source.all(), remote(&p.a, &target).all());
        let prepared = p.a.prepare(Request::write(&p.to_b).segment(segment.0, segment.1)).unwrap();
        assert_eq!(prepared.path().kind, path, "{}", prepared.path());
        let mut late = Duration::ZERO;
        while late <= LATEST {
            here.set_late(late);
            there.set_late(late);
            // The hypervisor may take this machine's CPUs for a while, which no count of this process shows. That
            // happens now and then; a wait for a timer happens each time. A wake-up that is lost now and then is
            // counted, and makes the end of the engine panic.
            let mut slow = Vec::new();
            while slow.len() < TRIES {
                let (excess, text) = excess_of(&prepared, [&here, &there]);
                if excess < EXCESS {
                    break;
                }
                slow.push(text);
            }
            assert!(slow.len() < TRIES, "{len} bytes, {path:?}, {late:?} a copy: {slow:#?}");
            late += 2 * STEP;
        }
        assert!(FakeDevice::contents(&memory) == pattern(len, 5));
    }
}

const LAYOUTS: [&[(&str, &str)]; 2] =
    [&[("gpu_chunk_bytes", "64KiB")], &[("gpu_chunk_bytes", "64KiB"), ("proxy_layout", "merged")]];

#[test]
fn over_rails_what_follows_a_copy_follows_at_once() {
    for layout in LAYOUTS {
        let settings = [layout, &[("path", "tcp")]].concat();
        write_ever_later(&pair(&settings), PathKind::Tcp);
    }
}

#[test]
fn through_shared_memory_what_follows_a_copy_follows_at_once() {
    for layout in LAYOUTS {
        write_ever_later(&apart(layout, layout), PathKind::Shared);
    }
}

#[test]
fn from_end_to_end_what_follows_a_copy_follows_at_once() {
    for layout in LAYOUTS {
        write_ever_later(&pair(layout), PathKind::PeerCopy);
    }
}

/// A receiver that sends no answers and does not call again.
#[test]
fn a_message_is_acknowledged_when_it_has_come_though_its_receiver_does_not_call_again() {
    const MESSAGES: usize = 100;
    /// The first one, and one in 64: these test whether answers follow.
    const TRIED: usize = 4;
    for path in ["auto", "tcp"] {
        let p = pair(&[("preset", "latency"), ("path", path)]);
        let to_a = p.b.add_peer(&p.a.metadata()).unwrap();
        let (source, target) = (filled(&p.a, 8, 3), zeroed(&p.b, 8));
        let mut held = 0;
        for _ in 0..MESSAGES {
            let received = p.b.receive(&to_a, 1, &target.all()).unwrap();
            let sent = p.a.send(&p.to_b, 1, &source.all()).unwrap();
            wait_for("the message", || {
                p.a.progress();
                p.b.progress();
                received.is_over()
            });
            let alone = (0..1000).any(|_| {
                p.a.progress();
                sent.is_over()
            });
            held += usize::from(!alone);
            wait_for("the acknowledgement", || {
                p.b.progress();
                p.a.progress();
                sent.is_over()
            });
        }
        assert!(held <= TRIED, "{path}: {held} of {MESSAGES} senders waited for nothing");
    }
}

/// Two threads that poll for each other's messages on one CPU. A polling thread keeps the other from answering.
#[test]
fn callers_that_share_a_cpu_sleep_in_place_of_polling_against_each_other() {
    const MESSAGES: usize = 1000;
    /// A thread that polls for two milliseconds each time needs two milliseconds of CPU for a message there and back.
    const MOST: Duration = Duration::from_millis(1);
    let p = pair(&[("preset", "latency")]);
    let to_a = p.b.add_peer(&p.a.metadata()).unwrap();
    let cpu = [allowed_cpus().unwrap()[0]];
    let play = |engine: &Engine, other: &Peer, begins: bool| {
        bind_current(&cpu).unwrap();
        let (source, target) = (filled(engine, 8, 3), zeroed(engine, 8));
        let mut took = Vec::new();
        for message in 0..MESSAGES {
            let began = thread_cpu_time();
            let received = engine.receive(other, 1, &target.all()).unwrap();
            if begins || message > 0 {
                engine.send(other, 1, &source.all()).unwrap().detach();
            }
            finished(&received);
            took.push(thread_cpu_time() - began);
        }
        // The other one waits for an answer to its last message.
        if !begins {
            finished(&engine.send(other, 1, &source.all()).unwrap());
        }
        // If other processes want this CPU, too, an answer may be late, and polling for it is right.
        took.sort();
        took[MESSAGES / 2]
    };
    let used = std::thread::scope(|scope| {
        let one = scope.spawn(|| play(&p.a, &p.to_b, true));
        let two = scope.spawn(|| play(&p.b, &to_a, false));
        one.join().unwrap() + two.join().unwrap()
    });
    assert!(used < MOST, "half of the messages took {used:?} of CPU time there and back");
}
