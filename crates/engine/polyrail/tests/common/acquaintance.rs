//! A stranger that an engine knows as a peer.

use std::net::TcpListener;

use polyrail::{Engine, Flows, Peer, RemoteRegion};
use polyrail_proto::TransferId;
use polyrail_proto::hello::{Capabilities, Card, Hello};
use polyrail_proto::message::Message;
use polyrail_proto::wire::{
    AckFrame, CHUNK_HEADER_BYTES, ChunkHeader, PIECE_BYTES, RING_BYTES, SharedPlace, WireOp,
};

use super::stranger::{
    Stranger, card, claiming_this_host, frame, hello, metadata, on_this_host, write_header,
};
use super::{wait_for, zeroed};

/// An engine that has a flow to a stranger and one from it.
pub(crate) struct Acquaintance {
    pub(crate) listener: TcpListener,
    /// Receives what the engine sends.
    pub(crate) from_engine: Stranger,
    pub(crate) to_engine: Stranger,
    pub(crate) peer: Peer,
    pub(crate) card: Card,
}

impl Acquaintance {
    /// Makes one on another host.
    pub(crate) fn of(engine: &Engine) -> Self {
        Self::with(engine, |card| card)
    }

    /// Makes one on this host, as the kernel confirms.
    pub(crate) fn neighbour(engine: &Engine) -> Self {
        Self::with(engine, |card| on_this_host(engine, card))
    }

    /// Makes one on another host that claims to be on this one.
    pub(crate) fn impostor(engine: &Engine) -> Self {
        Self::with(engine, |card| claiming_this_host(engine, card))
    }

    fn with(engine: &Engine, change: impl FnOnce(Card) -> Card) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let own = change(card(&[listener.local_addr().unwrap()]));
        let peer = engine.add_peer(&metadata(&own).encode()).unwrap();
        let (mut from_engine, asked) = Stranger::accept(&listener);
        let Hello::Flow(asked) = asked else { panic!("{asked:?}") };
        // A version without shared memory accepts the flow as well.
        assert_eq!(asked.capabilities, Capabilities::CHECKSUM);
        from_engine.welcome(&own);
        let to_engine = Stranger::welcome_at(engine, hello(engine, own.clone()));
        wait_for("the flow to be up", || peer.flows() == Flows { up: 1, total: 1 });
        Self { listener, from_engine, to_engine, peer, card: own }
    }

    /// Describes a region of the stranger, as if it had memory.
    pub(crate) fn region(&self, engine: &Engine, len: usize) -> RemoteRegion {
        let mut description = zeroed(engine, len).describe();
        description[6..22].copy_from_slice(&self.card.instance.0.to_le_bytes());
        engine.import(&description).unwrap()
    }

    /// Sends a message, as transfer and frame `number`.
    pub(crate) fn say(&mut self, number: u64, message: &Message) {
        self.to_engine.say(&control(number, message));
    }

    /// Reads the next message of the engine, and acknowledges it as frame `sequence`.
    pub(crate) fn message(&mut self, sequence: u64) -> Message {
        let (_, meta, _) = self.next().unwrap();
        self.from_engine.say(&AckFrame::Ack { sequence }.encode());
        Message::decode(&meta).unwrap()
    }

    /// Reads the next frame of the engine: its header, its message and its payload. Announcements of rings are left
    /// out.
    pub(crate) fn next(&mut self) -> std::io::Result<(ChunkHeader, Vec<u8>, Vec<u8>)> {
        let mut kind = [0];
        loop {
            self.from_engine.read_exact(&mut kind)?;
            if !SharedPlace::is_kind(kind[0]) {
                break;
            }
            self.from_engine.read_exact(&mut [0; RING_BYTES - 1])?;
        }
        let mut head = [0; CHUNK_HEADER_BYTES];
        head[0] = kind[0];
        self.from_engine.read_exact(&mut head[1..])?;
        let header = ChunkHeader::decode(&head).unwrap();
        let mut read = |bytes: usize| {
            let mut out = vec![0; bytes];
            self.from_engine.read_exact(&mut out).map(|()| out)
        };
        read(usize::from(header.pieces) * PIECE_BYTES)?;
        let meta = read(header.meta_len as usize)?;
        let payload = read(header.payload_on_wire() as usize)?;
        Ok((header, meta, payload))
    }
}

/// Makes a message of a peer to the engine, as transfer `number`.
pub(crate) fn control(number: u64, message: &Message) -> Vec<u8> {
    let meta = message.encode();
    let header = ChunkHeader {
        op: WireOp::Control,
        meta_len: meta.len() as u32,
        transfer: TransferId(number),
        ..write_header(0, 0)
    };
    frame(header, &[], &meta, &[])
}
