//! No transfer waits for a timer: whatever a device takes, what follows its copies follows at once.

mod common;

use std::fs;
use std::time::{Duration, Instant};

use common::devices::{device, lone_device, on};
use common::*;
use polyrail::{PathKind, PreparedTransfer, Request};
use polyrail_gpu::fake::FakeDevice;

/// Copies take from nothing up to this.
const LATEST: Duration = Duration::from_millis(1);
const STEP: Duration = Duration::from_micros(2);
/// What may come on top of the copies, far less than any timer of the engine.
const EXCESS: Duration = Duration::from_millis(5);
const TRIES: usize = 3;

/// How long threads of this process have been able to run and did not, because others did: that is
/// no fault of the engine.
fn starved() -> Duration {
    let tasks = fs::read_dir("/proc/self/task").unwrap().flatten();
    let waited = |task: fs::DirEntry| -> Option<u64> {
        // Time on a CPU, time in the run queue, slices.
        let text = fs::read_to_string(task.path().join("schedstat")).ok()?;
        text.split_whitespace().nth(1)?.parse().ok()
    };
    Duration::from_nanos(tasks.filter_map(waited).sum())
}

/// How much longer a transfer takes than the copies that belong to it.
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
    // A chunk, and some that wait for each other.
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
            // The hypervisor may take our CPUs for a while, which no count of this process shows. It
            // does so now and then; what waits for a timer here does so each time. A wake-up that is
            // lost now and then is counted, and makes the end of the engine panic.
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
