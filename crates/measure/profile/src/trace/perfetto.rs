//! `trace.pftrace`: Perfetto's own format. Each device keeps its raw clock. The viewer aligns the clocks by snapshots,
//! which are the windows of the alignment.
//!
//! Field numbers are those of `protos/perfetto/trace/trace_packet.proto` and the files that it imports.

use crate::plan::{Configuration, Endpoint};
use crate::protobuf::Message;
use crate::sample::End;

use super::{Event, Source};

pub(super) fn write(source: &Source<'_>) -> Vec<u8> {
    let mut trace = Message::new();
    let mut packet = |packet: Message| {
        trace.message(TRACE_PACKET, &packet);
    };
    for snapshot in snapshots(source) {
        packet(snapshot);
    }
    for endpoint in &source.folder.plan().endpoints {
        tracks(endpoint).into_iter().for_each(&mut packet);
    }
    for (index, event) in source.events.iter().enumerate() {
        for (end, rank, is_aligned) in [
            (&event.sample.source, event.configuration.src, event.source.is_some()),
            (&event.sample.sink, event.configuration.dst, event.sink.is_some()),
        ] {
            if is_aligned {
                slice(event, end, rank, index as u64 + 1).into_iter().for_each(&mut packet);
            }
        }
        host_slice(event).into_iter().for_each(&mut packet);
    }
    for look in &source.temperatures {
        if let (Some(celsius), Ok(at)) = (look.temperature_c, u64::try_from(look.at_ns)) {
            let mut counter = Message::new();
            counter.uint(EVENT_TYPE, 4).uint(EVENT_TRACK, temperature_track(look.rank));
            counter.double(EVENT_DOUBLE_COUNTER, celsius);
            packet(event_packet(at, 0, &counter));
        }
    }
    trace.as_bytes().to_vec()
}

fn snapshots(source: &Source<'_>) -> Vec<Message> {
    let run = source.folder.run();
    let reference = (clock_id(0), run.reference_ns);
    let mut all = vec![vec![reference, (BOOTTIME, run.reference_ns), (REALTIME, run.unix_ns)]];
    for fit in source.alignment.fits() {
        for window in &fit.windows {
            let parent_ns = window.clock_ns.saturating_add(window.offset_ns);
            all.push(vec![
                (clock_id(fit.clock), window.clock_ns),
                (clock_id(fit.parent), parent_ns),
            ]);
        }
    }
    let snapshot = |clocks: Vec<(u32, i64)>| {
        let mut snapshot = Message::new();
        for (id, ns) in clocks {
            let mut clock = Message::new();
            clock.uint(CLOCK_ID, id.into()).uint(CLOCK_TIMESTAMP, u64::try_from(ns).ok()?);
            snapshot.message(SNAPSHOT_CLOCKS, &clock);
        }
        let mut packet = Message::new();
        packet.message(PACKET_CLOCK_SNAPSHOT, &snapshot);
        packet.uint(PACKET_SEQUENCE, SEQUENCE);
        Some(packet)
    };
    // Perfetto has no times before zero.
    all.into_iter().filter_map(snapshot).collect()
}

fn tracks(endpoint: &Endpoint) -> [Message; 4] {
    let rank = endpoint.rank;
    let mut process = Message::new();
    process.uint(1, (rank * 1_000 + 1).into());
    process.text(6, &format!("{} (rank {rank})", endpoint.name));
    let mut root = Message::new();
    root.uint(TRACK_UUID, root_track(rank)).message(TRACK_PROCESS, &process);
    let child = |uuid, name: &str| {
        let mut track = Message::new();
        track.uint(TRACK_UUID, uuid).text(TRACK_NAME, name).uint(TRACK_PARENT, root_track(rank));
        track
    };
    let device = child(device_track(rank), "transfers at this end");
    let host = child(host_track(rank), "posted by the host");
    let mut temperature = child(temperature_track(rank), "temperature");
    let mut counter = Message::new();
    counter.text(6, "°C");
    temperature.message(TRACK_COUNTER, &counter);
    [root, device, host, temperature].map(|track| {
        let mut packet = Message::new();
        packet.message(PACKET_TRACK, &track).uint(PACKET_SEQUENCE, SEQUENCE);
        packet
    })
}

/// Start and end of a transfer at one end, in the raw time of its clock, with an arrow from source to sink.
fn slice(event: &Event<'_>, end: &End, rank: u32, flow: u64) -> Vec<Message> {
    let (Some(clock), Some(start), Some(stop)) = (end.clock, end.start_ns, end.end_ns) else {
        return Vec::new();
    };
    let (Ok(start), Ok(stop)) = (u64::try_from(start), u64::try_from(stop)) else {
        return Vec::new();
    };
    let mut begin = begin(event, device_track(rank));
    begin.fixed64(EVENT_FLOW, flow);
    vec![event_packet(start, clock, &begin), event_packet(stop, clock, &finish(device_track(rank)))]
}

fn host_slice(event: &Event<'_>) -> Vec<Message> {
    let (Ok(start), Some(length)) = (u64::try_from(event.sample.posted_ns), event.sample.t_host_ns)
    else {
        return Vec::new();
    };
    let track = host_track(event.configuration.src);
    let stop = start.saturating_add(length.round() as u64);
    vec![event_packet(start, 0, &begin(event, track)), event_packet(stop, 0, &finish(track))]
}

fn begin(event: &Event<'_>, track: u64) -> Message {
    let Configuration { path, size_bytes, .. } = event.configuration;
    let mut begin = Message::new();
    begin.uint(EVENT_TYPE, 1).uint(EVENT_TRACK, track);
    begin.text(EVENT_CATEGORY, &path.to_string()).text(EVENT_NAME, &event.name);
    let mut bytes = Message::new();
    bytes.text(10, "bytes").uint(3, *size_bytes);
    begin.message(EVENT_ANNOTATION, &bytes);
    if !event.sample.flags.is_empty() {
        let mut flags = Message::new();
        flags.text(10, "flags").text(6, &event.sample.flags.to_string());
        begin.message(EVENT_ANNOTATION, &flags);
    }
    begin
}

fn finish(track: u64) -> Message {
    let mut finish = Message::new();
    finish.uint(EVENT_TYPE, 2).uint(EVENT_TRACK, track);
    finish
}

fn event_packet(at: u64, clock: u32, event: &Message) -> Message {
    let mut packet = Message::new();
    packet.uint(PACKET_TIMESTAMP, at).uint(PACKET_CLOCK, clock_id(clock).into());
    packet.message(PACKET_EVENT, event).uint(PACKET_SEQUENCE, SEQUENCE);
    packet
}

/// Clock IDs from 128 on are global to the trace, which defines them.
fn clock_id(clock: u32) -> u32 {
    128 + clock
}

fn root_track(rank: u32) -> u64 {
    u64::from(rank) * 16 + 16
}

fn device_track(rank: u32) -> u64 {
    root_track(rank) + 1
}

fn host_track(rank: u32) -> u64 {
    root_track(rank) + 2
}

fn temperature_track(rank: u32) -> u64 {
    root_track(rank) + 3
}

const SEQUENCE: u64 = 1;
const REALTIME: u32 = 1;
const BOOTTIME: u32 = 6;

const TRACE_PACKET: u32 = 1;
const PACKET_CLOCK_SNAPSHOT: u32 = 6;
const PACKET_TIMESTAMP: u32 = 8;
const PACKET_SEQUENCE: u32 = 10;
const PACKET_EVENT: u32 = 11;
const PACKET_CLOCK: u32 = 58;
const PACKET_TRACK: u32 = 60;
const SNAPSHOT_CLOCKS: u32 = 1;
const CLOCK_ID: u32 = 1;
const CLOCK_TIMESTAMP: u32 = 2;
const TRACK_UUID: u32 = 1;
const TRACK_NAME: u32 = 2;
const TRACK_PROCESS: u32 = 3;
const TRACK_PARENT: u32 = 5;
const TRACK_COUNTER: u32 = 8;
const EVENT_ANNOTATION: u32 = 4;
const EVENT_TYPE: u32 = 9;
const EVENT_TRACK: u32 = 11;
const EVENT_CATEGORY: u32 = 22;
const EVENT_NAME: u32 = 23;
const EVENT_DOUBLE_COUNTER: u32 = 44;
const EVENT_FLOW: u32 = 47;
