//! Peers that take shared resources and keep them: the others must still get their turn.

use crate::common::devices::{lone_device, on};
use crate::common::stranger::{Stranger, card, frame, hello, key_of, write_header};
use crate::common::*;
use polyrail::{Engine, Region};
use polyrail_gpu::DeviceMemory;
use polyrail_gpu::fake::FakeDevice;
use polyrail_proto::TransferId;
use polyrail_proto::hello::FlowHello;
use polyrail_proto::wire::{ChunkHeader, Place};

const CHUNK: u32 = 64 << 10;
/// Each half has room for 8 rings.
const SHORT: [(&str, &str); 6] = [
    ("path", "tcp"),
    ("gpu_chunk_bytes", "64KiB"),
    ("staging_bytes", "64KiB"),
    ("staging_limit_bytes", "1MiB"),
    ("rail_stall_ms", "200"),
    ("peer_timeout_ms", "60000"),
];
/// More than fits into a ring.
const BYTES: usize = 1 << 20;

/// Makes a peer with this many flows, each in the middle of a chunk for a device.
fn hoarder(engine: &Engine, region: &Region, flows: u32) -> Vec<Stranger> {
    let own = card(&["127.0.0.1:9".parse().unwrap()]);
    let place = Place { key: key_of(region), offset: 0, len: CHUNK.into() };
    let begins = |flow| {
        let flow_hello = FlowHello { flow, flows, ..hello(engine, own.clone()) };
        let mut stranger = Stranger::welcome_at(engine, flow_hello);
        let transfer = TransferId(u64::from(flow) + 1);
        let head = frame(ChunkHeader { transfer, ..write_header(CHUNK, 1) }, &[place], &[], &[]);
        stranger.begin_raw(&head, CHUNK, &[1; 1000]);
        stranger
    };
    (0..flows).map(begins).collect()
}

/// Has another engine write to the region in a device's memory, and read it back.
fn others_write_and_read(engine: &Engine, region: &Region, memory: &DeviceMemory) {
    let other =
        one_rail(&[("path", "tcp"), ("gpu_chunk_bytes", "64KiB"), ("chunk_bytes", "64KiB")]);
    let to_engine = other.add_peer(&engine.metadata()).unwrap();
    let there = remote(&other, region);
    let (source, back) = (filled(&other, BYTES, 3), zeroed(&other, BYTES));
    finished(&other.write(&to_engine, &source.all(), &there.all()).unwrap());
    assert!(FakeDevice::contents(memory) == pattern(BYTES, 3));
    finished(&other.read(&to_engine, &back.all(), &there.all()).unwrap());
    assert!(bytes(&back) == pattern(BYTES, 3));
}

/// Waits until the rings for arriving data have this many bytes.
fn wait_for_rings(engine: &Engine, bytes: u32) {
    wait_for("rings", || engine.dump().contains(&format!(" {bytes} to receive, staging_limit")));
}

#[test]
fn one_that_begins_chunks_for_a_device_and_stops_leaves_memory_to_others() {
    let engine = one_rail(&SHORT);
    let device = lone_device(0);
    let (region, memory) = on(&device, &engine, &vec![0; BYTES]);
    let _hoarder = hoarder(&engine, &region, 32);
    wait_for_rings(&engine, 7 * CHUNK);
    others_write_and_read(&engine, &region, &memory);
}

#[test]
fn many_that_begin_chunks_for_a_device_and_stop_give_their_memory_back_when_others_wait() {
    let engine = one_rail(&SHORT);
    let device = lone_device(0);
    let (region, memory) = on(&device, &engine, &vec![0; BYTES]);
    let mut hoarders: Vec<_> = (0..12).map(|_| hoarder(&engine, &region, 2)).collect();
    wait_for_rings(&engine, 8 * CHUNK);
    others_write_and_read(&engine, &region, &memory);
    // A peer that had memory was cut off.
    hoarders.iter_mut().flatten().next().unwrap().last_words();
}
