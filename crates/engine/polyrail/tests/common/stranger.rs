//! A peer made by hand, which sends whatever a test wants. It has a key pair and proves its knowledge like any other;
//! after that it need not follow the protocol.

use std::collections::{HashMap, VecDeque};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, LazyLock, Mutex};

use polyrail::{Engine, Region};
use polyrail_proto::hello::{
    Capabilities, Card, FlowHello, Hello, Kind, Metadata, PREFIX_BYTES, Prefix, RailCard, Reply,
};
use polyrail_proto::wire::{ACK_BYTES, AckFrame, ChunkHeader, Flags, Place, WireOp};
use polyrail_proto::{InstanceId, Piece, RegionKey, TransferId};
use polyrail_secure::{
    Capability, Identity, Initiator, Keyring, Keys, Opener, Proof, RECORD_HEADER_BYTES,
    RecordHeader, Responder,
};
use polyrail_sys::Badge;
use socket2::SockRef;

use super::LONG;

/// A connection of a stranger.
pub(crate) struct Stranger {
    pub(crate) stream: TcpStream,
    /// Set once both ends have proven who they are.
    keys: Option<Keys>,
    /// Bytes that came in records and were not read yet.
    opened: VecDeque<u8>,
}

/// Capability that all strangers hand out.
const CAPABILITY: [u8; 16] = [7; 16];
/// Most bytes of a stranger that go into one record.
const RECORD_BYTES: usize = 64 << 10;

/// The key pairs of strangers, by instance and by the address that they listen on.
#[derive(Default)]
struct Known {
    by_instance: HashMap<InstanceId, Arc<Identity>>,
    by_address: HashMap<SocketAddr, Arc<Identity>>,
    /// The kernel names of strangers that really are on this host.
    badges: Vec<Badge>,
}

static KNOWN: LazyLock<Mutex<Known>> = LazyLock::new(Mutex::default);

/// Makes the card of a stranger: a new one each time.
pub(crate) fn card(addresses: &[SocketAddr]) -> Card {
    let rail = |address: &SocketAddr| RailCard {
        name: "s".to_owned(),
        address: *address,
        prefix_len: 8,
        speed_mbps: 0,
    };
    let identity = Arc::new(Identity::fresh().unwrap());
    let instance = InstanceId(identity.public().instance());
    let mut known = KNOWN.lock().unwrap();
    known.by_instance.insert(instance, identity.clone());
    known.by_address.extend(addresses.iter().map(|address| (*address, identity.clone())));
    Card {
        instance,
        host: 1,
        name: "stranger".to_owned(),
        capabilities: Capabilities::CHECKSUM,
        rails: addresses.iter().map(rail).collect(),
    }
}

/// Makes the card of a stranger that only claims to be on the engine's host.
pub(crate) fn claiming_this_host(engine: &Engine, card: Card) -> Card {
    Card { host: card_of(engine).host, ..card }
}

/// Makes the card of a stranger on the engine's host. Its process is this one, as the kernel confirms.
pub(crate) fn on_this_host(engine: &Engine, card: Card) -> Card {
    let badge = Badge::take(&format!("polyrail-{:032x}", card.instance.0)).unwrap();
    KNOWN.lock().unwrap().badges.push(badge);
    claiming_this_host(engine, card)
}

/// Returns the key pair of a card, or a fresh one for an unknown card.
fn identity_of(instance: InstanceId) -> Arc<Identity> {
    let known = KNOWN.lock().unwrap().by_instance.get(&instance).cloned();
    known.unwrap_or_else(|| Arc::new(Identity::fresh().unwrap()))
}

/// Returns the metadata that a stranger, or an engine that it claims to be, hands over.
pub(crate) fn metadata(card: &Card) -> Metadata {
    Metadata { card: card.clone(), capability: Capability::new(CAPABILITY) }
}

/// Returns the metadata that an engine hands over.
pub(crate) fn metadata_of(engine: &Engine) -> Metadata {
    Metadata::decode(&engine.metadata()).unwrap()
}

pub(crate) fn card_of(engine: &Engine) -> Card {
    metadata_of(engine).card
}

/// Makes the hello of a flow to the engine.
pub(crate) fn hello(engine: &Engine, card: Card) -> FlowHello {
    FlowHello {
        card,
        capability: Capability::new(CAPABILITY),
        target: engine.instance(),
        from_rail: 0,
        to_rail: 0,
        channel: 0,
        flow: 0,
        flows: 1,
        epoch: 1,
        window_chunks: 4,
        capabilities: Capabilities::default(),
        stream: None,
    }
}

/// Makes the header of a chunk that is the whole of transfer 1: a write.
pub(crate) fn write_header(payload: u32, pieces: u16) -> ChunkHeader {
    ChunkHeader {
        op: WireOp::Write,
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

/// Makes a notification that is the whole of a transfer.
pub(crate) fn notice(transfer: u64, floor: u64) -> Vec<u8> {
    let header = ChunkHeader {
        flags: Flags::NOTIFY,
        meta_len: 1,
        transfer: TransferId(transfer),
        floor: TransferId(floor),
        ..write_header(0, 0)
    };
    frame(header, &[], b"x", &[])
}

/// Returns the key of a region, which only its description has.
pub(crate) fn key_of(region: &Region) -> RegionKey {
    let bytes = region.describe();
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    let nonce = u64::from_le_bytes(bytes[30..38].try_into().unwrap());
    RegionKey { slot: word(22), generation: word(26), nonce }
}

/// Makes a frame with its payload.
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
        Self::on(stream)
    }

    /// Connects, proves its right and its identity, and sends this hello.
    pub(crate) fn greeting(engine: &Engine, hello: &Hello) -> Self {
        let mut stranger = Self::at(engine);
        stranger.greet(engine, hello);
        stranger
    }

    /// Same as `greeting`, for a flow that is accepted.
    pub(crate) fn welcome_at(engine: &Engine, hello: FlowHello) -> Self {
        let mut stranger = Self::greeting(engine, &Hello::Flow(hello));
        let reply = stranger.reply();
        assert!(matches!(reply, Reply::Accepted(_)), "{reply:?}");
        stranger
    }

    /// Proves its right to connect and its identity, and sends a hello.
    pub(crate) fn greet(&mut self, engine: &Engine, hello: &Hello) {
        self.prove(engine, hello.card().instance, &hello.encode());
    }

    /// Same as `greet`, with any words. It has the identity of that stranger, or a fresh one if it is unknown.
    pub(crate) fn prove(&mut self, engine: &Engine, instance: InstanceId, words: &[u8]) {
        let identity = identity_of(instance);
        let secret = metadata_of(engine).capability.secret();
        let (mut initiator, first) = Initiator::new(&identity, Proof::Capability, &secret).unwrap();
        self.write(&Kind::First.framed(&first));
        let (prefix, second) = self.words();
        assert_eq!(prefix.kind(), Kind::Second);
        assert_eq!(initiator.read(&second).unwrap().instance(), engine.instance().0);
        let (third, keys) = initiator.finish(words).unwrap();
        self.write(&Kind::Third.framed(&third));
        self.keys = Some(keys);
    }

    /// Notes that both ends have proven who they are.
    pub(crate) fn is_proven(&mut self, keys: Keys) {
        self.keys = Some(keys);
    }

    /// Takes the next connection that the engine makes.
    pub(crate) fn accept(listener: &TcpListener) -> (Self, Hello) {
        Self::with(listener.accept().unwrap().0)
    }

    /// Takes a connection that the engine made. Returns its hello, to be answered.
    pub(crate) fn with(stream: TcpStream) -> (Self, Hello) {
        let mut stranger = Self::on(stream);
        let address = stranger.stream.local_addr().unwrap();
        let identity = KNOWN.lock().unwrap().by_address[&address].clone();
        let keyring = Keyring {
            capability: Capability::new(CAPABILITY).secret(),
            shared: Vec::new(),
            host: None,
            certified: None,
            open: false,
        };
        let (_, first) = stranger.words();
        let (responder, second) = Responder::new(&identity, &keyring, &first).unwrap();
        stranger.write(&Kind::Second.framed(&second));
        let (_, third) = stranger.words();
        let proven = responder.finish(&third).unwrap();
        stranger.keys = Some(proven.keys);
        (stranger, Hello::decode(&proven.words).unwrap())
    }

    /// Answers a hello.
    pub(crate) fn answer(&mut self, reply: &Reply) {
        let mut record = Vec::new();
        let sealer = &mut self.keys.as_mut().expect("the handshake is over").sealer;
        let begin = sealer.begin(&mut record);
        record.extend_from_slice(&reply.encode());
        sealer.seal(&mut record, begin, 0);
        self.write(&Kind::Reply.framed(&record));
    }

    /// Accepts the engine that connected.
    pub(crate) fn welcome(&mut self, card: &Card) {
        self.answer(&Reply::Accepted(metadata(card)));
    }

    /// Sends bytes: sealed, once it has proven its identity.
    pub(crate) fn say(&mut self, bytes: &[u8]) {
        let bytes = self.sealed(bytes);
        self.write(&bytes);
    }

    /// Sends the head of a frame sealed, and its payload in clear.
    pub(crate) fn say_raw(&mut self, head: &[u8], payload: &[u8]) {
        self.begin_raw(head, payload.len() as u32, payload);
    }

    /// Sends the head of a frame whose payload has `len` bytes, and the first of them.
    pub(crate) fn begin_raw(&mut self, head: &[u8], len: u32, payload: &[u8]) {
        let mut bytes = Vec::new();
        let sealer = &mut self.keys.as_mut().expect("the handshake is over").sealer;
        let begin = sealer.begin(&mut bytes);
        bytes.extend_from_slice(head);
        sealer.seal(&mut bytes, begin, len);
        bytes.extend_from_slice(payload);
        self.write(&bytes);
    }

    /// Sends the head of a frame sealed, and only these bytes of its payload, which is announced as `announced` bytes.
    pub(crate) fn say_beginning(&mut self, head: &[u8], announced: u32, payload: &[u8]) {
        let mut bytes = Vec::new();
        let sealer = &mut self.keys.as_mut().expect("the handshake is over").sealer;
        let begin = sealer.begin(&mut bytes);
        bytes.extend_from_slice(head);
        sealer.seal(&mut bytes, begin, announced);
        bytes.extend_from_slice(payload);
        self.write(&bytes);
    }

    /// Sends frames at once, each in its own record.
    pub(crate) fn say_each(&mut self, frames: impl IntoIterator<Item = Vec<u8>>) {
        let bytes: Vec<u8> = frames.into_iter().flat_map(|frame| self.sealed(&frame)).collect();
        self.write(&bytes);
    }

    /// Sends bytes, and the beginning of the next record.
    pub(crate) fn say_and_begin(&mut self, bytes: &[u8], next: &[u8]) {
        let (mut bytes, next) = (self.sealed(bytes), self.sealed(next));
        bytes.extend_from_slice(&next[..next.len() / 2]);
        self.write(&bytes);
    }

    /// Sends these frames, many in a record and none cut, until the engine hangs up.
    pub(crate) fn say_all(&mut self, frames: impl Iterator<Item = Vec<u8>>) {
        let stream = self.stream.try_clone().unwrap();
        self.records_of(frames).all(|record| (&stream).write_all(&record).is_ok());
    }

    /// Seals these frames into records, many in each and none cut, to be written in this order.
    pub(crate) fn records_of(
        &mut self,
        frames: impl Iterator<Item = Vec<u8>>,
    ) -> impl Iterator<Item = Vec<u8>> {
        let mut frames = frames.peekable();
        std::iter::from_fn(move || {
            let mut record = frames.next()?;
            while let Some(frame) =
                frames.next_if(|frame| record.len() + frame.len() <= RECORD_BYTES)
            {
                record.extend_from_slice(&frame);
            }
            Some(self.sealed(&record))
        })
    }

    /// Sends bytes and hangs up, both in one packet: the engine sees both at once.
    pub(crate) fn say_last(&mut self, bytes: &[u8]) {
        SockRef::from(&self.stream).set_tcp_cork(true).unwrap();
        self.say(bytes);
        self.stream.shutdown(Shutdown::Write).unwrap();
    }

    /// Sends bytes in clear.
    pub(crate) fn write(&mut self, bytes: &[u8]) {
        // The engine may have hung up in the middle.
        let _ = self.stream.write_all(bytes);
    }

    /// Reads the engine's answer to a hello, or the one in clear to something else.
    pub(crate) fn reply(&mut self) -> Reply {
        let (prefix, mut body) = self.words();
        match prefix.kind() {
            Kind::Refusal => Reply::decode(&body).unwrap(),
            Kind::Reply => Reply::decode(self.opener().open_whole(&mut body).unwrap()).unwrap(),
            other => panic!("{other:?}"),
        }
    }

    /// Reads the next answer to a chunk. A slow engine acknowledges frame 0 as a sign of life, which answers no chunk.
    pub(crate) fn ack(&mut self) -> AckFrame {
        loop {
            let ack = AckFrame::decode(&self.read_array::<ACK_BYTES>()).unwrap();
            if ack != (AckFrame::Ack { sequence: 0 }) {
                return ack;
            }
        }
    }

    /// Reads the next bytes that come in records.
    pub(crate) fn read_array<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        self.read_exact(&mut bytes).unwrap();
        bytes
    }

    /// Same as `read_array`, into a slice. An error loses the part of a record that was read, so the read can't be
    /// repeated.
    pub(crate) fn read_exact(&mut self, out: &mut [u8]) -> std::io::Result<()> {
        while self.opened.len() < out.len() {
            let mut lengths = [0; RECORD_HEADER_BYTES];
            self.stream.read_exact(&mut lengths)?;
            let header = RecordHeader::decode(&lengths).unwrap();
            let mut sealed = vec![0; header.bytes() - RECORD_HEADER_BYTES];
            self.stream.read_exact(&mut sealed)?;
            self.opener().open(header, &mut sealed).unwrap();
            self.opened.extend(&sealed[..header.sealed as usize]);
            let mut raw = vec![0; header.raw as usize];
            self.stream.read_exact(&mut raw)?;
            self.opened.extend(&raw);
        }
        let bytes: Vec<u8> = self.opened.drain(..out.len()).collect();
        out.copy_from_slice(&bytes);
        Ok(())
    }

    /// Waits until the engine hangs up, and returns whatever it sends before, as it came.
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

    /// Takes this end of a connection on which nothing was sent.
    pub(crate) fn on(stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(LONG)).unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream, keys: None, opened: VecDeque::new() }
    }

    fn opener(&mut self) -> &mut Opener {
        &mut self.keys.as_mut().expect("the handshake is over").opener
    }

    fn sealed(&mut self, bytes: &[u8]) -> Vec<u8> {
        let Some(keys) = &mut self.keys else { return bytes.to_vec() };
        let mut out = Vec::new();
        for part in bytes.chunks(RECORD_BYTES) {
            let begin = keys.sealer.begin(&mut out);
            out.extend_from_slice(part);
            keys.sealer.seal(&mut out, begin, 0);
        }
        out
    }

    /// Reads the next message in clear.
    pub(crate) fn words(&mut self) -> (Prefix, Vec<u8>) {
        let mut prefix = [0; PREFIX_BYTES];
        self.stream.read_exact(&mut prefix).unwrap();
        let prefix = Prefix::decode(&prefix).unwrap();
        let mut body = vec![0; prefix.body_bytes()];
        self.stream.read_exact(&mut body).unwrap();
        (prefix, body)
    }
}
