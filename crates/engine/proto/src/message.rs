//! Messages between two engines besides payload. Each message is the `meta` of a transfer with
//! [`crate::wire::WireOp::Control`], so it survives dead rails and arrives exactly once, like any data.

mod host_offer;

use crate::codec::{DecodeError, Reader, put_text};
use crate::id::{FlowIndex, RegionKey, TransferId};
use crate::wire::{Place, RefusalCode, SharedPlace};

pub use host_offer::HostOffer;

/// Maximum pieces of one read request or one posted receive: as many as fit into a message.
pub const MAX_MESSAGE_PIECES: usize = 1024;

/// Maximum file descriptors of an [`Offer`].
pub const MAX_OFFER_DESCRIPTORS: usize = 4096;
/// Maximum bytes of an [`Offer`] for the driver.
pub const MAX_OFFER_BYTES: usize = 40 << 10;
/// Maximum bytes of a plugin's name.
pub const MAX_PLUGIN_BYTES: usize = 128;
/// Maximum bytes of the handle that a plugin needs to connect to a device; NCCL's interface has 128.
pub const MAX_HANDLE_BYTES: usize = 256;
const MAX_REASON_BYTES: usize = 1000;

/// A message between engines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// The sender gave this transfer up. Once this is acknowledged, nothing of it lands any longer.
    Cancel {
        /// Number of the transfer at the sender.
        transfer: TransferId,
    },
    /// Requests these bytes, as [`crate::wire::WireOp::ReadData`] with `read` as the context.
    ReadRequest {
        /// Reader's number for this part of a read.
        read: u64,
        /// Bytes to send, and their destinations.
        pieces: Vec<ReadPiece>,
        /// Leave the payload in shared memory, which was tested before.
        shared: bool,
    },
    /// A read can't be served.
    ReadFailed {
        /// Reader's number.
        read: u64,
        /// Reason of the failure.
        code: RefusalCode,
    },
    /// The reader no longer wants this read.
    ReadCancelled {
        /// Reader's number.
        read: u64,
    },
    /// A receive waits for a message with this tag.
    ReceivePosted(PostedReceive),
    /// The receive is over without data: don't send to it.
    ReceiveWithdrawn {
        /// Receiver's number.
        receive: u64,
    },
    /// The message for this receive is longer than the receive: neither takes place.
    SendTooLong {
        /// Receiver's number.
        receive: u64,
        /// Length of the message in bytes.
        len: u64,
    },
    /// The send that was matched with this receive ended early.
    SendFailed {
        /// Receiver's number.
        receive: u64,
    },
    /// On one host: asks how to copy from and to this region of the other engine directly.
    RegionWanted {
        /// The region.
        key: RegionKey,
    },
    /// Answers [`Self::RegionWanted`].
    RegionOffered {
        /// The region.
        key: RegionKey,
        /// Access to the region, or the reason why there is none.
        offered: Result<Offer, String>,
    },
    /// A region that was offered ends. Once this is acknowledged, the peer does not touch the region any longer.
    RegionEnded {
        /// The region.
        key: RegionKey,
    },
    /// This engine closes: expect nothing more from it.
    Bye,
    /// On one host: asks whether the other engine can open this memory of the sender.
    MemoryShown {
        /// Place of the memory.
        place: SharedPlace,
    },
    /// Answers [`Self::MemoryShown`].
    MemorySeen {
        /// Memory of the answering engine for the same test, or why the first one failed.
        seen: Result<SharedPlace, String>,
    },
    /// A plugin is to carry the payload of this connection: asks for the device that the other engine listens on.
    CarrierWanted {
        /// The connection.
        of: Carried,
        /// Rail that it arrives on, by the card of the other engine.
        rail: u16,
        /// The plugin's own name, at most [`MAX_PLUGIN_BYTES`] bytes: both ends must host the same.
        plugin: String,
    },
    /// Answers [`Self::CarrierWanted`].
    CarrierOffered {
        /// The connection.
        of: Carried,
        /// The plugin's connect handle, at most [`MAX_HANDLE_BYTES`] bytes, or the reason why it can't connect.
        offered: Result<Vec<u8>, String>,
    },
    /// The plugin has accepted the other one's connection, perhaps long afterwards: only now may it carry anything.
    CarrierAccepted {
        /// The connection.
        of: Carried,
        /// Reason why it has not accepted.
        accepted: Result<(), String>,
    },
}

/// A connection of a flow, by its sender's numbers, whose payload a plugin carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Carried {
    /// The flow.
    pub flow: FlowIndex,
    /// Epoch of the connection.
    pub epoch: u64,
}

/// Resource that a message takes up at its receiver until something else is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    /// Nothing lasting.
    Nothing,
    /// The data of a read are in flight.
    Read,
    /// A receive waits for a message.
    Receive,
}

/// Part of an engine that a message is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Half {
    /// [`crate::peer::Outbound`].
    Outbound,
    /// [`crate::peer::Inbound`].
    Inbound,
    /// The driver. It checks the memory of a [`Message::ReadRequest`] before a side handles that.
    Driver,
}

/// Access to a region for another process of the same host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Number of the owner's process.
    pub process: u32,
    /// PID namespace in which that number holds, by the kernel's number; 0 if the owner doesn't know.
    pub namespace: u64,
    /// File descriptors of that process that are needed, at most [`MAX_OFFER_DESCRIPTORS`].
    pub descriptors: Vec<u32>,
    /// Bytes that the device's driver needs, at most [`MAX_OFFER_BYTES`].
    pub export: Vec<u8>,
}

/// A piece of a read: the source at the target, and the destination at the reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadPiece {
    /// Source of the bytes.
    pub from: Place,
    /// Destination region of the reader.
    pub to_key: RegionKey,
    /// Offset in that region, in bytes.
    pub to_offset: u64,
}

/// A receive, as announced to its future sender.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PostedReceive {
    /// Receiver's number; counts up from 1 without gaps, in the order of posting.
    pub receive: u64,
    /// Tag that a send must have.
    pub tag: u64,
    /// Destinations of the bytes, in order.
    pub places: Vec<Place>,
    /// Permission for the sender to copy there.
    pub leave: CopyLeave,
}

/// Permission for a sender on the same host to copy a message straight into the memory of its receive. If it does, the
/// data of its send is [`copied_message`]: no payload, only the number of bytes in place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CopyLeave {
    /// Not permitted.
    #[default]
    No,
    /// Not yet: the sender was not offered the regions, and may request them for the sake of later receives.
    Ask,
    /// Permitted, until the sender has acknowledged that the receive is withdrawn.
    Yes,
    /// Not permitted, as the receive is in a device's memory: the payload is best left in memory that both processes
    /// have open.
    Share,
}

/// Returns the message of a [`crate::wire::WireOp::SendData`] whose `bytes` bytes the sender has copied itself.
pub fn copied_message(bytes: u64) -> Vec<u8> {
    bytes.to_le_bytes().to_vec()
}

/// Returns how many bytes the sender has copied, by the message of a [`crate::wire::WireOp::SendData`]; `None` if that
/// brings its payload.
pub fn copied_bytes(message: &[u8]) -> Result<Option<u64>, DecodeError> {
    if message.is_empty() {
        return Ok(None);
    }
    let mut reader = Reader::new("copied message", message);
    let bytes = reader.u64("bytes")?;
    reader.end()?;
    Ok(Some(bytes))
}

const WHAT: &str = "control message";

/// Initial capacity: room for a message with one place, which most have.
const USUAL_BYTES: usize = 96;

impl Message {
    /// Returns the message as bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(USUAL_BYTES);
        match self {
            Self::Cancel { transfer } => put(&mut out, 1, &[transfer.0]),
            Self::ReadRequest { read, pieces, shared } => {
                put(&mut out, if *shared { 14 } else { 2 }, &[*read]);
                put_count(&mut out, pieces.len(), MAX_MESSAGE_PIECES);
                for piece in pieces {
                    put_place(&mut out, &piece.from);
                    put_key(&mut out, piece.to_key);
                    out.extend_from_slice(&piece.to_offset.to_le_bytes());
                }
            }
            Self::ReadFailed { read, code } => put(&mut out, 3, &[*read, *code as u64]),
            Self::ReadCancelled { read } => put(&mut out, 4, &[*read]),
            Self::ReceivePosted(posted) => {
                let kind = match posted.leave {
                    CopyLeave::No => 5,
                    CopyLeave::Ask => 18,
                    CopyLeave::Yes => 19,
                    CopyLeave::Share => 23,
                };
                put(&mut out, kind, &[posted.receive, posted.tag]);
                put_count(&mut out, posted.places.len(), MAX_MESSAGE_PIECES);
                for place in &posted.places {
                    put_place(&mut out, place);
                }
            }
            Self::ReceiveWithdrawn { receive } => put(&mut out, 6, &[*receive]),
            Self::SendTooLong { receive, len } => put(&mut out, 7, &[*receive, *len]),
            Self::SendFailed { receive } => put(&mut out, 8, &[*receive]),
            Self::Bye => put(&mut out, 9, &[]),
            Self::RegionWanted { key } => {
                put(&mut out, 10, &[]);
                put_key(&mut out, *key);
            }
            Self::RegionOffered { key, offered: Ok(offer) } => {
                put(&mut out, 11, &[]);
                put_key(&mut out, *key);
                out.extend_from_slice(&offer.process.to_le_bytes());
                out.extend_from_slice(&offer.namespace.to_le_bytes());
                put_count(&mut out, offer.descriptors.len(), MAX_OFFER_DESCRIPTORS);
                for descriptor in &offer.descriptors {
                    out.extend_from_slice(&descriptor.to_le_bytes());
                }
                put_count(&mut out, offer.export.len(), MAX_OFFER_BYTES);
                out.extend_from_slice(&offer.export);
            }
            Self::RegionOffered { key, offered: Err(reason) } => {
                put(&mut out, 12, &[]);
                put_key(&mut out, *key);
                put_text(&mut out, reason, MAX_REASON_BYTES);
            }
            Self::RegionEnded { key } => {
                put(&mut out, 13, &[]);
                put_key(&mut out, *key);
            }
            Self::MemoryShown { place } => {
                put(&mut out, 15, &[]);
                out.extend_from_slice(&place.encode());
            }
            Self::MemorySeen { seen: Ok(place) } => {
                put(&mut out, 16, &[]);
                out.extend_from_slice(&place.encode());
            }
            Self::MemorySeen { seen: Err(reason) } => {
                put(&mut out, 17, &[]);
                put_text(&mut out, reason, MAX_REASON_BYTES);
            }
            Self::CarrierWanted { of, rail, plugin } => {
                put(&mut out, 20, &[of.flow.0.into(), of.epoch, (*rail).into()]);
                put_text(&mut out, plugin, MAX_PLUGIN_BYTES);
            }
            Self::CarrierOffered { of, offered: Ok(handle) } => {
                put(&mut out, 21, &[of.flow.0.into(), of.epoch]);
                put_count(&mut out, handle.len(), MAX_HANDLE_BYTES);
                out.extend_from_slice(handle);
            }
            Self::CarrierOffered { of, offered: Err(reason) } => {
                put(&mut out, 22, &[of.flow.0.into(), of.epoch]);
                put_text(&mut out, reason, MAX_REASON_BYTES);
            }
            Self::CarrierAccepted { of, accepted: Ok(()) } => {
                put(&mut out, 24, &[of.flow.0.into(), of.epoch]);
            }
            Self::CarrierAccepted { of, accepted: Err(reason) } => {
                put(&mut out, 25, &[of.flow.0.into(), of.epoch]);
                put_text(&mut out, reason, MAX_REASON_BYTES);
            }
        }
        out
    }

    /// Returns the part of the engine that the message is for.
    pub fn half(&self) -> Half {
        match self {
            Self::Cancel { .. }
            | Self::ReadFailed { .. }
            | Self::SendTooLong { .. }
            | Self::SendFailed { .. } => Half::Inbound,
            Self::ReadCancelled { .. } | Self::ReceivePosted(_) | Self::ReceiveWithdrawn { .. } => {
                Half::Outbound
            }
            Self::ReadRequest { .. }
            | Self::RegionWanted { .. }
            | Self::RegionOffered { .. }
            | Self::RegionEnded { .. }
            | Self::Bye
            | Self::MemoryShown { .. }
            | Self::MemorySeen { .. }
            | Self::CarrierWanted { .. }
            | Self::CarrierOffered { .. }
            | Self::CarrierAccepted { .. } => Half::Driver,
        }
    }

    /// Returns the resource that the message with these bytes takes up, before it is decoded.
    pub fn takes(bytes: &[u8]) -> Takes {
        match bytes.first() {
            Some(2 | 14) => Takes::Read,
            Some(5 | 18 | 19 | 23) => Takes::Receive,
            _ => Takes::Nothing,
        }
    }

    /// Reads a message.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(WHAT, bytes);
        let message = match reader.u8("kind")? {
            1 => Self::Cancel { transfer: TransferId(reader.u64("transfer")?) },
            kind @ (2 | 14) => {
                let read = reader.u64("read")?;
                let count = reader.count("pieces", MAX_MESSAGE_PIECES, "at most 1024")?;
                let piece = |reader: &mut Reader<'_>| {
                    Ok(ReadPiece {
                        from: place(reader)?,
                        to_key: RegionKey::read(reader)?,
                        to_offset: reader.u64("to_offset")?,
                    })
                };
                let pieces = (0..count).map(|_| piece(&mut reader)).collect::<Result<_, _>>()?;
                Self::ReadRequest { read, pieces, shared: kind == 14 }
            }
            3 => Self::ReadFailed { read: reader.u64("read")?, code: code(&mut reader)? },
            4 => Self::ReadCancelled { read: reader.u64("read")? },
            kind @ (5 | 18 | 19 | 23) => {
                let leave = match kind {
                    18 => CopyLeave::Ask,
                    19 => CopyLeave::Yes,
                    23 => CopyLeave::Share,
                    _ => CopyLeave::No,
                };
                let (receive, tag) = (reader.u64("receive")?, reader.u64("tag")?);
                let count = reader.count("places", MAX_MESSAGE_PIECES, "at most 1024")?;
                let places = (0..count).map(|_| place(&mut reader)).collect::<Result<_, _>>()?;
                Self::ReceivePosted(PostedReceive { receive, tag, places, leave })
            }
            6 => Self::ReceiveWithdrawn { receive: reader.u64("receive")? },
            7 => Self::SendTooLong { receive: reader.u64("receive")?, len: reader.u64("len")? },
            8 => Self::SendFailed { receive: reader.u64("receive")? },
            9 => Self::Bye,
            10 => Self::RegionWanted { key: RegionKey::read(&mut reader)? },
            11 => {
                let key = RegionKey::read(&mut reader)?;
                let process = reader.u32("process")?;
                let namespace = reader.u64("namespace")?;
                let count = reader.count("descriptors", MAX_OFFER_DESCRIPTORS, "at most 4096")?;
                let descriptors = (0..count).map(|_| reader.u32("descriptor"));
                let descriptors = descriptors.collect::<Result<_, _>>()?;
                let count = reader.count("export", MAX_OFFER_BYTES, "at most 40 KiB")?;
                let export = reader.slice("export", count)?.to_vec();
                let offer = Offer { process, namespace, descriptors, export };
                Self::RegionOffered { key, offered: Ok(offer) }
            }
            12 => {
                let key = RegionKey::read(&mut reader)?;
                let reason = reader.text("reason", MAX_REASON_BYTES)?;
                Self::RegionOffered { key, offered: Err(reason) }
            }
            13 => Self::RegionEnded { key: RegionKey::read(&mut reader)? },
            15 => Self::MemoryShown { place: shared_place(&mut reader)? },
            16 => Self::MemorySeen { seen: Ok(shared_place(&mut reader)?) },
            17 => Self::MemorySeen { seen: Err(reader.text("reason", MAX_REASON_BYTES)?) },
            20 => {
                let of = carried(&mut reader)?;
                let rail = reader.u64("rail")?;
                let rail =
                    u16::try_from(rail).map_err(|_| reader.field("rail", rail, "0 to 65535"))?;
                let plugin = reader.text("plugin", MAX_PLUGIN_BYTES)?;
                Self::CarrierWanted { of, rail, plugin }
            }
            21 => {
                let of = carried(&mut reader)?;
                let count = reader.count("handle", MAX_HANDLE_BYTES, "at most 256")?;
                let handle = reader.slice("handle", count)?.to_vec();
                Self::CarrierOffered { of, offered: Ok(handle) }
            }
            22 => {
                let of = carried(&mut reader)?;
                let reason = reader.text("reason", MAX_REASON_BYTES)?;
                Self::CarrierOffered { of, offered: Err(reason) }
            }
            24 => Self::CarrierAccepted { of: carried(&mut reader)?, accepted: Ok(()) },
            25 => {
                let of = carried(&mut reader)?;
                let reason = reader.text("reason", MAX_REASON_BYTES)?;
                Self::CarrierAccepted { of, accepted: Err(reason) }
            }
            got => return Err(reader.field("kind", got.into(), "1 to 25")),
        };
        reader.end()?;
        Ok(message)
    }
}

fn put(out: &mut Vec<u8>, kind: u8, fields: &[u64]) {
    out.push(kind);
    for field in fields {
        out.extend_from_slice(&field.to_le_bytes());
    }
}

fn put_count(out: &mut Vec<u8>, count: usize, max: usize) {
    debug_assert!(count <= max, "callers split longer lists");
    out.extend_from_slice(&(count as u16).to_le_bytes());
}

fn put_key(out: &mut Vec<u8>, key: RegionKey) {
    out.extend_from_slice(&key.slot.to_le_bytes());
    out.extend_from_slice(&key.generation.to_le_bytes());
    out.extend_from_slice(&key.nonce.to_le_bytes());
}

fn put_place(out: &mut Vec<u8>, place: &Place) {
    put_key(out, place.key);
    out.extend_from_slice(&place.offset.to_le_bytes());
    out.extend_from_slice(&place.len.to_le_bytes());
}

fn place(reader: &mut Reader<'_>) -> Result<Place, DecodeError> {
    let place = Place {
        key: RegionKey::read(reader)?,
        offset: reader.u64("offset")?,
        len: reader.u64("len")?,
    };
    match place.offset.checked_add(place.len) {
        Some(_) => Ok(place),
        None => Err(reader.field("len", place.len, "0 to 2^64 - offset - 1")),
    }
}

fn carried(reader: &mut Reader<'_>) -> Result<Carried, DecodeError> {
    let flow = reader.u64("flow")?;
    let index = u32::try_from(flow).map_err(|_| reader.field("flow", flow, "0 to 2^32 - 1"))?;
    Ok(Carried { flow: FlowIndex(index), epoch: reader.u64("epoch")? })
}

/// Decoded as in the frame that announces a bounce buffer.
fn shared_place(reader: &mut Reader<'_>) -> Result<SharedPlace, DecodeError> {
    let bytes = reader.bytes("place")?;
    let not_one = |_| reader.field("place", bytes[0].into(), "memory as a ring's frame has it");
    SharedPlace::decode(&bytes).map_err(not_one)
}

fn code(reader: &mut Reader<'_>) -> Result<RefusalCode, DecodeError> {
    let got = reader.u64("code")?;
    let known = u8::try_from(got).ok().and_then(RefusalCode::from_wire);
    known.ok_or_else(|| reader.field("code", got, "1 to 16"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::wire::MAX_META_BYTES;

    fn some_place(n: u64) -> Place {
        let key = RegionKey { slot: n as u32, generation: 2, nonce: n ^ 99 };
        Place { key, offset: n * 10, len: n }
    }

    #[test]
    fn every_message_survives_the_wire_and_fits_in_a_frame() {
        let pieces: Vec<_> = (0..MAX_MESSAGE_PIECES as u64)
            .map(|n| ReadPiece { from: some_place(n), to_key: some_place(n).key, to_offset: n })
            .collect();
        let places: Vec<_> = (0..MAX_MESSAGE_PIECES as u64).map(some_place).collect();
        let posted = |leave| {
            let places = places.clone();
            Message::ReceivePosted(PostedReceive { receive: 1, tag: u64::MAX, places, leave })
        };
        let offer = Offer {
            process: 99,
            namespace: 1 << 40,
            descriptors: (0..MAX_OFFER_DESCRIPTORS as u32).collect(),
            export: vec![5; MAX_OFFER_BYTES],
        };
        let shared = SharedPlace { process: 3, descriptor: 4, bytes: 4096, token: 1 << 100 };
        let carried = Carried { flow: FlowIndex(3), epoch: u64::MAX };
        let messages = [
            Message::Cancel { transfer: TransferId(4) },
            Message::ReadRequest { read: 3, pieces: pieces.clone(), shared: true },
            Message::ReadRequest { read: 3, pieces, shared: false },
            Message::ReadFailed { read: 3, code: RefusalCode::StaleKey },
            Message::ReadCancelled { read: 3 },
            posted(CopyLeave::No),
            posted(CopyLeave::Ask),
            posted(CopyLeave::Yes),
            posted(CopyLeave::Share),
            Message::ReceiveWithdrawn { receive: 1 },
            Message::SendTooLong { receive: 1, len: 5 },
            Message::SendFailed { receive: 1 },
            Message::Bye,
            Message::RegionWanted { key: some_place(7).key },
            Message::RegionOffered { key: some_place(7).key, offered: Ok(offer) },
            Message::RegionOffered { key: some_place(7).key, offered: Err("no".into()) },
            Message::RegionEnded { key: some_place(7).key },
            Message::MemoryShown { place: shared },
            Message::MemorySeen { seen: Ok(shared) },
            Message::MemorySeen { seen: Err("no".into()) },
            Message::CarrierWanted { of: carried, rail: 5, plugin: "Socket".into() },
            Message::CarrierOffered { of: carried, offered: Ok(vec![7; 128]) },
            Message::CarrierOffered { of: carried, offered: Err("no plugin".into()) },
            Message::CarrierAccepted { of: carried, accepted: Ok(()) },
            Message::CarrierAccepted { of: carried, accepted: Err("not in time".into()) },
        ];
        for message in messages {
            let bytes = message.encode();
            assert!(bytes.len() <= MAX_META_BYTES, "{} bytes", bytes.len());
            assert_eq!(Message::decode(&bytes).unwrap(), message);
            let takes = match message {
                Message::ReadRequest { .. } => Takes::Read,
                Message::ReceivePosted(_) => Takes::Receive,
                _ => Takes::Nothing,
            };
            assert_eq!(Message::takes(&bytes), takes);
            assert!(Message::decode(&bytes[..bytes.len() - 1]).is_err());
            assert!(Message::decode(&[&bytes[..], &[0]].concat()).is_err());
        }
    }

    #[test]
    fn a_message_that_is_copied_says_how_long_it_is() {
        for bytes in [0, 1, u64::MAX] {
            assert_eq!(copied_bytes(&copied_message(bytes)).unwrap(), Some(bytes));
        }
        assert_eq!(copied_bytes(&[]).unwrap(), None, "it brings its payload");
        for wrong in [&[1; 7][..], &[1; 9]] {
            assert!(copied_bytes(wrong).is_err());
        }
    }

    proptest! {
        #[test]
        fn garbage_is_refused_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(message) = Message::decode(&bytes) {
                prop_assert_eq!(message.encode(), bytes);
            }
        }
    }
}
