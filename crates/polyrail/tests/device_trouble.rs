//! Memory of devices when things go wrong, or go both ways at once: with a device that copies late
//! and holds back when a test says so.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::*;
use polyrail::{Access, DeviceMemory, Engine, Region};
use polyrail_gpu::fake::FakeDevice;

const LATE: Duration = Duration::from_micros(100);

fn device(index: u32) -> Arc<FakeDevice> {
    FakeDevice::new(index, LATE, 7 + u64::from(index))
}

fn on(device: &Arc<FakeDevice>, engine: &Engine, bytes: &[u8]) -> (Region, DeviceMemory) {
    let memory = device.memory(bytes);
    (engine.register_device(memory.clone(), Access::ALL).unwrap(), memory)
}

/// Two engines of which one connects: data goes both ways on each connection.
fn duplex(settings: &[(&str, &str)]) -> Pair {
    let (a, b) = (engine(settings), engine(settings));
    let to_b = a.add_peer(&b.metadata()).unwrap();
    let to_a = b.accept_peer(LONG).unwrap();
    wait_for("flows both ways", || {
        a.progress();
        b.progress();
        to_a.flows_up().0 == to_a.flows_up().1
    });
    Pair { a, b, to_b, to_a }
}

#[test]
fn both_directions_of_one_connection_carry_device_memory_byte_exact() {
    // Sockets that take less than what is ready to be sent.
    let settings = [
        ("path", "tcp"),
        ("progress", "caller"),
        ("rails", "127.0.0.1"),
        ("channels", "1"),
        ("send_buffer_bytes", "64KiB"),
        ("recv_buffer_bytes", "64KiB"),
    ];
    for chunk in ["4KiB", "64KiB", "1MiB"] {
        let p = duplex(&[&settings[..], &[("gpu_chunk_bytes", chunk)]].concat());
        let devices = [device(0), device(1)];
        let len = 3_000_001;
        let over = [AtomicBool::new(false), AtomicBool::new(false)];
        let go = |from: &Engine, to: &Engine, peer, here: usize| {
            let _tell = TellOnDrop(&over[here]);
            for round in 0..4 {
                let want = pattern(len, round + 10 * here as u64);
                let (source, _) = on(&devices[here], from, &want);
                let (target, memory) = on(&devices[1 - here], to, &vec![0; len]);
                let all = remote(from, &target).all();
                finished(&from.write(peer, &source.all(), &all).unwrap());
                assert!(FakeDevice::contents(&memory) == want, "round {round}, {chunk}");
            }
        };
        let drive = |engine: &Engine, other: usize| {
            while !over[other].load(Ordering::Relaxed) {
                engine.progress();
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                go(&p.a, &p.b, &p.to_b, 0);
                drive(&p.a, 1);
            });
            go(&p.b, &p.a, &p.to_a, 1);
            drive(&p.b, 0);
        });
        for engine in [&p.a, &p.b] {
            let rails = engine.stats().peers.into_iter().flat_map(|peer| peer.rails);
            assert_eq!(rails.map(|rail| rail.down_count).sum::<u64>(), 0, "a flow was lost");
        }
    }
}

#[test]
fn acknowledgements_behind_a_chunk_that_waits_for_room_are_heard() {
    let settings = [
        ("path", "tcp"),
        ("progress", "caller"),
        ("rails", "127.0.0.1"),
        ("channels", "1"),
        ("gpu_chunk_bytes", "64KiB"),
        ("staging_bytes", "64KiB"),
        ("window_chunks", "1024"),
        ("rail_stall_ms", "20000"),
        ("peer_timeout_ms", "60000"),
    ];
    let p = duplex(&settings);
    let there = device(0);
    let (count, len) = (300, 200);
    let want = pattern(count * len, 1);
    let source = filled(&p.a, want.len(), 1);
    let (target, memory) = on(&there, &p.b, &vec![0; want.len()]);
    let all = remote(&p.a, &target);
    let (near, far) = (filled(&p.b, 100, 2), zeroed(&p.a, 100));
    for _ in 0..10 {
        there.hold(true);
        let back = p.b.write(&p.to_a, &near.all(), &remote(&p.b, &far).all()).unwrap();
        // The first 256 fill the ring, one waits for room, and behind it comes the acknowledgement
        // of what went the other way.
        let writes = (0..count as u64).map(|i| {
            let (at, len) = (i * len as u64, len as u64);
            p.a.write(&p.to_b, &source.slice(at, len).unwrap(), &all.slice(at, len).unwrap())
        });
        let mut transfers: Vec<_> = writes.collect::<Result<_, _>>().unwrap();
        transfers.push(back);
        for engine in [&p.a, &p.b] {
            for _ in 0..20 {
                engine.progress();
                std::thread::sleep(Duration::from_micros(100));
            }
        }
        there.hold(false);
        wait_for("all of them", || {
            p.a.progress();
            p.b.progress();
            transfers.iter().all(|transfer| transfer.is_over())
        });
        transfers.iter().for_each(finished);
    }
    assert!(FakeDevice::contents(&memory) == want);
}
