//! Writes the initial inputs of the fuzzers: `seed_corpus FOLDER` creates `FOLDER/<fuzzer>/seed-N`.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use polyrail_proto::hello::{
    Capabilities, Card, FlowHello, Hello, Kind, Metadata, RailCard, RefusedCode, Reply,
};
use polyrail_proto::message::{Carried, CopyLeave, Message, PostedReceive, ReadPiece};
use polyrail_proto::wire::{
    AckFrame, ChunkHeader, Flags, Place, RefusalCode, SharedPlace, WireOp, Words,
};
use polyrail_proto::{FlowIndex, InstanceId, Plan, RegionKey, Segment, TransferId};
use polyrail_secure::Capability;
use polyrail_testkit::Rng;

const KEY: RegionKey = RegionKey { slot: 2, generation: 3, nonce: 0x1122_3344_5566_7788 };
const RING: SharedPlace = SharedPlace { process: 1, descriptor: 2, bytes: 1 << 20, token: 3 };

/// Config files with each kind of value and each kind of mistake.
const CONFIGS: &[&str] = &[
    "",
    "# nothing\n",
    "preset: latency\n",
    "preset: throughput\nchunk_bytes: 1MiB\nchannels: 4\n",
    "polyrail:\n  preset: cpu\n  window_chunks: 32\n",
    "rails: eth1,eth2\nlisten: \"[::]:4000\"\n",
    "checksum: true\nstall_timeout_ms: 250\n",
    "chunk_bytes: 512K\n",
    "chunk_bytes: -1\n",
    "chnnels: 4\n",
    "channels: 4\nchannels: 8\n",
    "channels: [1, 2]\n",
    "channels: &a 4\nsockets: *a\n",
    "channels: !!int 4\n",
    "channels:\n  - 4\n",
    "tx_bindings: eth1:8-21,112-125;0-3\n",
    "log_file: \"/tmp/%h-%p.log\"\nlog_level: debug\n",
    "preset: \"\"\nrails: ~\n",
    "--- \nchannels: 2\n...\n--- \nsockets: 2\n",
    "channels: 99999999999999999999999\n",
    "channels=4\nchunk_bytes = 2MiB\nfoo\n",
    "\u{feff}channels: 4\r\nsockets: 2\r\n",
];

fn main() -> io::Result<()> {
    let Some(folder) = std::env::args_os().nth(1).map(PathBuf::from) else {
        return Err(io::Error::other("usage: seed_corpus FOLDER"));
    };
    let mut rng = Rng::new(1);
    let configs = CONFIGS.iter().map(|text| text.as_bytes().to_vec()).collect();
    let corpora: [(&str, Vec<Vec<u8>>); 6] = [
        ("wire", wire(&mut rng)),
        ("hello", hello()),
        ("receiver", calls(&mut rng)),
        ("quotas", calls(&mut Rng::new(2))),
        ("config", configs),
        ("handshake", handshake(&mut rng)),
    ];
    for (fuzzer, inputs) in corpora {
        let folder = folder.join(fuzzer);
        fs::create_dir_all(&folder)?;
        for (index, input) in inputs.iter().enumerate() {
            fs::write(folder.join(format!("seed-{index:02}")), input)?;
        }
        println!("{}: {} files", folder.display(), inputs.len());
    }
    Ok(())
}

fn wire(rng: &mut Rng) -> Vec<Vec<u8>> {
    let mut inputs: Vec<Vec<u8>> = messages().iter().map(Message::encode).collect();
    let refusals = RefusalCode::ALL.map(|code| AckFrame::Refusal { sequence: 7, code });
    inputs.push(refusals.iter().flat_map(|frame| frame.encode()).collect());
    inputs.push(AckFrame::Ack { sequence: 1 << 40 }.encode().to_vec());
    inputs.push(AckFrame::Bye.encode().to_vec());
    inputs.push(Words::of("none of its connections came up").flat_map(AckFrame::encode).collect());
    // One large chunk after another, many small ones, some of everything.
    for (bytes, chunk_bytes, segment_bytes) in
        [(0, 1, 1), (1, 1, 1), (100, 1000, 10), (3000, 500, 700), (20_000, 18_000, 17_000)]
    {
        let mut stream = frames(rng, bytes, chunk_bytes, segment_bytes);
        stream.extend(AckFrame::Ack { sequence: 3 }.encode());
        stream.extend(frames(rng, 200, 64, 50));
        inputs.push(stream);
    }
    inputs.push(in_ring());
    inputs.push(Message::MemoryShown { place: RING }.encode());
    inputs.push(Message::MemorySeen { seen: Err("no".into()) }.encode());
    let of = Carried { flow: FlowIndex(2), epoch: 1 << 48 };
    inputs.push(Message::CarrierWanted { of, rail: 1, plugin: "Socket".into() }.encode());
    inputs.push(Message::CarrierOffered { of, offered: Ok(vec![9; 128]) }.encode());
    inputs.push(Message::CarrierOffered { of, offered: Err("no".into()) }.encode());
    inputs.push(Message::CarrierAccepted { of, accepted: Ok(()) }.encode());
    inputs.push(Message::CarrierAccepted { of, accepted: Err("no".into()) }.encode());
    // The first bytes decide how the stream is cut into records and reads.
    inputs.iter().map(|input| [&rng.bits().to_le_bytes(), input.as_slice()].concat()).collect()
}

/// A ring, and a chunk whose payload lies there.
fn in_ring() -> Vec<u8> {
    let segment =
        Segment { local_region: 0, local_offset: 0, remote: KEY, remote_offset: 0, len: 100 };
    let plan = Plan::new([segment], 100).unwrap_or_else(|_| Plan::empty());
    let mut header = header(0, &plan, b"");
    let _ = header.set_place_in_ring(512);
    let mut stream = RING.encode().to_vec();
    header.encode(plan.pieces(0), b"", &mut stream);
    stream
}

fn frames(rng: &mut Rng, bytes: u64, chunk_bytes: u64, segment_bytes: u64) -> Vec<u8> {
    let segments = (0..bytes.div_ceil(segment_bytes)).map(|i| Segment {
        local_region: 0,
        local_offset: i * segment_bytes,
        remote: KEY,
        remote_offset: 3 * i * segment_bytes,
        len: segment_bytes.min(bytes - i * segment_bytes),
    });
    let plan = Plan::new(segments, chunk_bytes).unwrap_or_else(|_| Plan::empty());
    let mut stream = Vec::new();
    for chunk in 0..plan.chunk_count() {
        let pieces = plan.pieces(chunk);
        let meta: &[u8] = if chunk == 0 { b"done" } else { b"" };
        let op = [WireOp::Write, WireOp::ReadData, WireOp::SendData][rng.index(3)];
        let header = ChunkHeader { op, ..header(chunk, &plan, meta) };
        header.encode(pieces, meta, &mut stream);
        let mut payload = vec![0; plan.chunk_bytes(chunk) as usize];
        rng.fill(&mut payload);
        stream.extend(payload);
    }
    stream
}

fn header(chunk: u32, plan: &Plan, meta: &[u8]) -> ChunkHeader {
    ChunkHeader {
        op: WireOp::Write,
        flags: if chunk == 0 { Flags::NOTIFY } else { Flags::ACK_NOW },
        meta_len: meta.len() as u32,
        payload_len: plan.chunk_bytes(chunk),
        pieces: plan.pieces(chunk).len() as u16,
        transfer: TransferId(5),
        chunk,
        chunk_count: plan.chunk_count(),
        floor: TransferId(3),
        context: 0,
        checksum: 0,
        place: 0,
    }
}

fn messages() -> Vec<Message> {
    let place = Place { key: KEY, offset: 4096, len: 100 };
    let posted = |leave| {
        let places = vec![place; 2];
        Message::ReceivePosted(PostedReceive { receive: 1, tag: 7, places, leave })
    };
    vec![
        Message::Cancel { transfer: TransferId(9) },
        Message::ReadRequest {
            read: 1,
            pieces: vec![ReadPiece { from: place, to_key: KEY, to_offset: 8 }; 3],
            shared: false,
        },
        Message::ReadFailed { read: 1, code: RefusalCode::StaleKey },
        Message::ReadCancelled { read: 1 },
        posted(CopyLeave::No),
        posted(CopyLeave::Yes),
        Message::ReceiveWithdrawn { receive: 1 },
        Message::SendTooLong { receive: 1, len: 1 << 30 },
        Message::SendFailed { receive: 1 },
        Message::Bye,
    ]
}

fn hello() -> Vec<Vec<u8>> {
    let rail = |index: u16, ip: IpAddr| RailCard {
        name: format!("eth{index}"),
        address: SocketAddr::new(ip, 4000 + index),
        prefix_len: 24,
        speed_mbps: 200_000,
    };
    let card = |rails: u16| Card {
        instance: InstanceId(1 << 100 | 5),
        host: 77,
        name: "node-1:4242".to_owned(),
        capabilities: Capabilities::CHECKSUM,
        rails: (0..rails)
            .map(|i| match i % 2 {
                0 => rail(i, IpAddr::from([10, 0, 1, i as u8])),
                _ => rail(i, IpAddr::V6(Ipv6Addr::LOCALHOST)),
            })
            .collect(),
    };
    let capability = Capability::new([7; 16]);
    let metadata = |rails| Metadata { card: card(rails), capability: capability.clone() };
    let flow = |flows: u32| FlowHello {
        card: card(2),
        capability: capability.clone(),
        target: InstanceId(9),
        from_rail: 1,
        to_rail: 0,
        channel: 3,
        flow: flows - 1,
        flows,
        epoch: 2,
        window_chunks: 16,
        capabilities: Capabilities::default(),
        stream: flows.is_multiple_of(2).then_some(SharedPlace {
            process: 1,
            descriptor: 2,
            bytes: 3,
            token: 4,
        }),
    };
    let refused = |code, reason: &str| Reply::Refused { code, reason: reason.to_owned() };
    vec![
        metadata(1).encode(),
        metadata(4).encode(),
        metadata(64).encode(),
        Hello::Introduction(metadata(3)).encode(),
        Hello::Flow(flow(1)).encode(),
        Hello::Flow(flow(1024)).encode(),
        Reply::Accepted(metadata(2)).encode(),
        refused(RefusedCode::Limit, "").encode(),
        refused(RefusedCode::WrongInstance, "started since: Grüße").encode(),
        refused(RefusedCode::Capability, &"long ".repeat(200)).encode(),
        Kind::Refusal.framed(&refused(RefusedCode::Unproven, "no secret").encode()),
        Kind::First.framed(&[1; 49]),
        b"GET / HTTP/1.1\r\nHost: node-1\r\n\r\n".to_vec(),
        b"SSH-2.0-OpenSSH_9.6\r\n".to_vec(),
        b"PLYR\x01\x00\x01\x00\x00\x00\x00\x00".to_vec(),
    ]
}

/// Whole messages of unauthenticated clients, and changes to those of the other end: position, kind, bytes.
fn handshake(rng: &mut Rng) -> Vec<Vec<u8>> {
    let mut inputs = vec![Vec::new(), vec![0; 49], vec![1; 49], vec![4; 49], vec![1; 200]];
    for what in 0..4 {
        for at in [0, 1, 33, 48, 90] {
            let mut bytes = vec![0; 2 + 4 * usize::from(what)];
            rng.fill(&mut bytes);
            (bytes[0], bytes[1]) = (at, what);
            inputs.push(bytes);
        }
    }
    // Messages with an invalid certificate: length, signature, one certificate; and two empty ones.
    inputs.push(b"\x0d\0\x02\0\x01\x02\x01\x06\0\x30\x04\x30\x02\x05\0hello".to_vec());
    inputs.push(b"\x07\0\0\0\x02\0\0\0\0hello".to_vec());
    inputs
}

/// Bytes that encode calls: the first one selects receiver or sender.
fn calls(rng: &mut Rng) -> Vec<Vec<u8>> {
    (0..12)
        .map(|index| {
            let mut bytes = vec![0; 60 * (1 + index / 2)];
            rng.fill(&mut bytes);
            bytes[0] = (index % 2) as u8;
            bytes
        })
        .collect()
}
