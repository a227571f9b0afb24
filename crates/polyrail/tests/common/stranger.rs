//! A peer made by hand, which says whatever a test wants it to say.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};

use polyrail::{Engine, Region};
use polyrail_proto::hello::{
    Capabilities, Card, FlowHello, Hello, PREFIX_BYTES, Prefix, RailCard, Reply,
};
use polyrail_proto::wire::{ACK_BYTES, AckFrame, ChunkHeader, Flags, Op, Place};
use polyrail_proto::{InstanceId, Piece, RegionKey, TransferId};

use socket2::SockRef;

use super::LONG;

/// A connection of a stranger.
pub(crate) struct Stranger {
    pub(crate) stream: TcpStream,
}

/// Who a stranger claims to be: another instance each time.
pub(crate) fn card(addresses: &[SocketAddr]) -> Card {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let rail = |address: &SocketAddr| RailCard {
        name: "s".to_owned(),
        address: *address,
        prefix_len: 8,
        speed_mbps: 0,
    };
    Card {
        instance: InstanceId(u128::from(NEXT.fetch_add(1, Ordering::Relaxed)) << 64 | 0xbad),
        host: 1,
        name: "stranger".to_owned(),
        capabilities: Capabilities::CHECKSUM,
        rails: addresses.iter().map(rail).collect(),
    }
}

/// The first words of a flow to the engine.
pub(crate) fn hello(engine: &Engine, card: Card) -> FlowHello {
    FlowHello {
        card,
        target: Card::decode(&engine.metadata()).unwrap().instance,
        from_rail: 0,
        to_rail: 0,
        channel: 0,
        flow: 0,
        flows: 1,
        epoch: 1,
        window_chunks: 4,
        capabilities: Capabilities::default(),
    }
}

/// A chunk that is the whole of transfer 1: a write.
pub(crate) fn write_header(payload: u32, pieces: u16) -> ChunkHeader {
    ChunkHeader {
        op: Op::Write,
        flags: Flags::NONE,
        meta_len: 0,
        payload_len: payload,
        pieces,
        transfer: TransferId(1),
        chunk: 0,
        chunk_count: 1,
        floor: TransferId(1),
        context: 0,
        checksum: 0,
        place: 0,
    }
}

/// The key of a region, as only its description has it.
pub(crate) fn key_of(region: &Region) -> RegionKey {
    let bytes = region.describe();
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    let nonce = u64::from_le_bytes(bytes[30..38].try_into().unwrap());
    RegionKey { slot: word(22), generation: word(26), nonce }
}

/// A frame with its payload.
pub(crate) fn frame(header: ChunkHeader, places: &[Place], meta: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let pieces = places.iter().map(|place| Piece {
        local_region: 0,
        local_offset: 0,
        remote: place.key,
        remote_offset: place.offset,
        len: place.len,
    });
    header.encode(pieces, meta, &mut out);
    out.extend_from_slice(payload);
    out
}

impl Stranger {
    /// Connects to the first rail of the engine.
    pub(crate) fn at(engine: &Engine) -> Self {
        let stream = TcpStream::connect(engine.addresses()[0]).unwrap();
        Self::new(stream)
    }

    /// Connects, introduces itself as a peer, and is welcome.
    pub(crate) fn welcome_at(engine: &Engine, hello: FlowHello) -> Self {
        let mut stranger = Self::at(engine);
        stranger.say(&Hello::Flow(hello).encode());
        let reply = stranger.reply();
        assert!(matches!(reply, Reply::Accepted(_)), "{reply:?}");
        stranger
    }

    /// Takes the next connection that the engine makes.
    pub(crate) fn accept(listener: &TcpListener) -> (Self, Hello) {
        Self::with(listener.accept().unwrap().0)
    }

    /// Takes a connection that the engine made.
    pub(crate) fn with(stream: TcpStream) -> (Self, Hello) {
        let mut stranger = Self::new(stream);
        let (prefix, body) = stranger.words();
        let hello = Hello::decode(prefix, &body).unwrap();
        (stranger, hello)
    }

    pub(crate) fn say(&mut self, bytes: &[u8]) {
        // The engine may have hung up in the middle.
        let _ = self.stream.write_all(bytes);
    }

    /// Says something and hangs up, both in one packet: the engine learns of both at once.
    pub(crate) fn say_last(&mut self, bytes: &[u8]) {
        SockRef::from(&self.stream).set_tcp_cork(true).unwrap();
        self.say(bytes);
        self.stream.shutdown(Shutdown::Write).unwrap();
    }

    pub(crate) fn reply(&mut self) -> Reply {
        let (prefix, body) = self.words();
        Reply::decode(prefix, &body).unwrap()
    }

    pub(crate) fn ack(&mut self) -> AckFrame {
        let mut bytes = [0; ACK_BYTES];
        self.stream.read_exact(&mut bytes).unwrap();
        AckFrame::decode(&bytes).unwrap()
    }

    /// Waits until the engine hangs up; whatever it says before is returned.
    pub(crate) fn last_words(&mut self) -> Vec<u8> {
        let (mut all, mut buffer) = (Vec::new(), [0; 4096]);
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => return all,
                Ok(bytes) => all.extend_from_slice(&buffer[..bytes]),
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return all,
                Err(error) => panic!("the engine does not hang up: {error}"),
            }
        }
    }

    fn new(stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(LONG)).unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream }
    }

    fn words(&mut self) -> (Prefix, Vec<u8>) {
        let mut prefix = [0; PREFIX_BYTES];
        self.stream.read_exact(&mut prefix).unwrap();
        let prefix = Prefix::decode(&prefix).unwrap();
        let mut body = vec![0; prefix.body_bytes()];
        self.stream.read_exact(&mut body).unwrap();
        (prefix, body)
    }
}
