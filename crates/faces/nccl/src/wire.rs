//! Messages between the two ends of a connection, sent as notifications of the engine, and the handle by which the ends
//! find each other.
//!
//! Notifications are unordered, so each message names the end that it is for, and each message of a connection has a
//! number. All integers are little-endian.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use polyrail::Invitation;
use polyrail_nccl_abi::HANDLE_BYTES;
use thiserror::Error;

/// Version of the format below. Increase it with every change.
pub(crate) const VERSION: u8 = 5;
/// Messages up to this size are sent inline (*told*): copied, so that they count as sent once they have left.
pub(crate) const TOLD_BYTES: usize = 1 << 10;
/// Maximum size of inline messages on the caller lane.
pub(crate) const EXPRESS_BYTES: usize = 32 << 10;
/// Messages up to this size are sent eagerly (*mailed*): the other end chooses their place on arrival. Larger ones wait
/// until the other end clears a place for them.
pub(crate) const MAILED_BYTES: usize = 64 << 10;
/// Bytes of a region's description.
pub(crate) const REGION_BYTES: usize = 46;
/// Maximum number of messages in flight to an end that has not posted receives for them.
pub(crate) const WINDOW: u64 = 32;
/// Bits by which a message number is shifted to get its offset in a mailbox.
const MAIL_SHIFT: u32 = 20;

const HANDLE_MAGIC: [u8; 8] = *b"PLYRNCCL";
/// Maximum addresses in a handle: any of them leads to the engine, which knows the others.
const HANDLE_ADDRESSES: usize = 3;
/// Offset of the bytes in a handle in which the connecting side keeps its state between two calls.
const HANDLE_NOTE: usize = 120;

/// Message to the end `to`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Message<'a> {
    pub(crate) to: u64,
    pub(crate) body: Body<'a>,
}

/// Content of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Body<'a> {
    /// To a listener: the sending end `from` asks to be accepted. Its small messages may come from a separate engine.
    Hello { nonce: u64, from: u64, express: Option<ExpressCard<'a>> },
    /// To a sending end: the receiving end `from` exists. Small messages to it may also use a separate engine.
    Welcome { from: u64, mailbox: &'a [u8; REGION_BYTES], express: Option<ExpressCard<'a>> },
    /// To a sending end: there is no listener.
    Refused,
    /// To a sending end: message `seq` may land at `offset` of a region.
    Clear { seq: u64, offset: u64, capacity: u64, region: &'a [u8; REGION_BYTES] },
    /// To a sending end: the number of receives posted so far.
    Posted { count: u64 },
    /// To a receiving end: message `seq`, whole.
    Told { seq: u64, bytes: &'a [u8] },
    /// To a receiving end: message `seq` is in place. Travels with its last byte.
    Landed { seq: u64, len: u64 },
    /// To either end: the other one is closed, after it sent or posted this many.
    Closed { count: u64 },
    /// To a receiving end: message `seq` is longer than its place.
    TooLong { seq: u64, len: u64 },
    /// To the process: messages to its ends, see [`parts`].
    Many { parts: &'a [u8] },
}

/// Instance and metadata of an engine for small messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExpressCard<'a> {
    pub(crate) instance: u128,
    pub(crate) metadata: &'a [u8],
}

/// Error for bytes that are not a valid message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(crate) enum WireError {
    #[error(
        "message of version {got}, this library speaks {VERSION}: install the same one on both sides"
    )]
    Version { got: u8 },
    #[error("message of unknown kind {0}")]
    Kind(u8),
    #[error("message of kind {kind} with {got} bytes")]
    Length { kind: u8, got: usize },
}

/// Error for a handle that is not one of this plugin's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(crate) enum HandleError {
    #[error("the other side does not use the Polyrail plugin: set NCCL_NET_PLUGIN there, too")]
    Foreign,
    #[error(
        "the other side's library speaks version {got}, this one {VERSION}: install the same one on both"
    )]
    Version { got: u8 },
    #[error("the handle holds no address")]
    NoAddress,
}

/// Address of a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Handle {
    pub(crate) listener: u64,
    pub(crate) nonce: u64,
    /// Credential that permits connecting.
    pub(crate) invitation: Invitation,
    pub(crate) addresses: Vec<SocketAddr>,
}

impl<'a> Message<'a> {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let more = match self.body {
            Body::Told { bytes, .. } => bytes.len(),
            Body::Many { parts } => parts.len(),
            Body::Hello { express: Some(card), .. } | Body::Welcome { express: Some(card), .. } => {
                card.metadata.len()
            }
            _ => 0,
        };
        let mut out = Vec::with_capacity(88 + more);
        out.extend_from_slice(&[VERSION, self.body.kind()]);
        out.extend_from_slice(&self.to.to_le_bytes());
        let mut put = |word: u64| out.extend_from_slice(&word.to_le_bytes());
        match self.body {
            Body::Hello { nonce, from, express } => {
                put(nonce);
                put(from);
                put_card(&mut out, express);
            }
            Body::Welcome { from, mailbox, express } => {
                put(from);
                out.extend_from_slice(mailbox);
                put_card(&mut out, express);
            }
            Body::Refused => {}
            Body::Clear { seq, offset, capacity, region } => {
                put(seq);
                put(offset);
                put(capacity);
                out.extend_from_slice(region);
            }
            Body::Posted { count } | Body::Closed { count } => put(count),
            Body::Told { seq, bytes } => {
                put(seq);
                out.extend_from_slice(bytes);
            }
            Body::Landed { seq, len } | Body::TooLong { seq, len } => {
                put(seq);
                put(len);
            }
            Body::Many { parts } => out.extend_from_slice(parts),
        }
        out
    }

    pub(crate) fn decode(bytes: &'a [u8]) -> Result<Self, WireError> {
        let (&version, rest) = bytes.split_first().ok_or(WireError::Version { got: 0 })?;
        if version != VERSION {
            return Err(WireError::Version { got: version });
        }
        let (&kind, mut rest) = rest.split_first().ok_or(WireError::Kind(0))?;
        let wrong = WireError::Length { kind, got: bytes.len() };
        let mut word = || {
            let (first, after) = rest.split_first_chunk::<8>().ok_or(wrong)?;
            rest = after;
            Ok(u64::from_le_bytes(*first))
        };
        let to = word()?;
        let body = match kind {
            1 => {
                let (nonce, from) = (word()?, word()?);
                let express = card(std::mem::take(&mut rest)).ok_or(wrong)?;
                Body::Hello { nonce, from, express }
            }
            2 => {
                let from = word()?;
                let (mailbox, express) = rest.split_first_chunk().ok_or(wrong)?;
                rest = &[];
                Body::Welcome { from, mailbox, express: card(express).ok_or(wrong)? }
            }
            3 => Body::Refused,
            4 => {
                let (seq, offset, capacity) = (word()?, word()?, word()?);
                let region = rest.first_chunk().ok_or(wrong)?;
                rest = &rest[REGION_BYTES..];
                Body::Clear { seq, offset, capacity, region }
            }
            5 => Body::Posted { count: word()? },
            6 => {
                let seq = word()?;
                let bytes = std::mem::take(&mut rest);
                if bytes.len() > EXPRESS_BYTES {
                    return Err(wrong);
                }
                Body::Told { seq, bytes }
            }
            7 => Body::Landed { seq: word()?, len: word()? },
            8 => Body::Closed { count: word()? },
            9 => Body::TooLong { seq: word()?, len: word()? },
            10 => Body::Many { parts: std::mem::take(&mut rest) },
            other => return Err(WireError::Kind(other)),
        };
        if rest.is_empty() { Ok(Self { to, body }) } else { Err(wrong) }
    }
}

/// Adds a message to [`Body::Many`]: two bytes of length, then the message.
pub(crate) fn put_part(message: &[u8], parts: &mut Vec<u8>) {
    // The largest message that is combined with others has [`EXPRESS_BYTES`].
    debug_assert!(message.len() <= usize::from(u16::MAX));
    parts.extend_from_slice(&(message.len() as u16).to_le_bytes());
    parts.extend_from_slice(message);
}

/// Iterates over the messages of [`Body::Many`], up to the first invalid one.
pub(crate) fn parts(mut bytes: &[u8]) -> impl Iterator<Item = Result<Message<'_>, WireError>> {
    std::iter::from_fn(move || {
        if bytes.is_empty() {
            return None;
        }
        let wrong = WireError::Length { kind: 10, got: bytes.len() };
        let part = bytes.split_first_chunk().and_then(|(len, rest)| {
            let part = rest.split_at_checked(u16::from_le_bytes(*len).into());
            part.inspect(|(_, after)| bytes = after)
        });
        let message = part.ok_or(wrong).and_then(|(part, _)| Message::decode(part));
        if message.is_err() {
            bytes = &[];
        }
        Some(message)
    })
}

/// Appends an optional card at the end of a message: nothing, or the card.
fn put_card(out: &mut Vec<u8>, card: Option<ExpressCard<'_>>) {
    if let Some(ExpressCard { instance, metadata }) = card {
        out.extend_from_slice(&instance.to_le_bytes());
        out.extend_from_slice(metadata);
    }
}

/// Reads the end of a message written by [`put_card`].
fn card(bytes: &[u8]) -> Option<Option<ExpressCard<'_>>> {
    if bytes.is_empty() {
        return Some(None);
    }
    let (instance, metadata) = bytes.split_first_chunk()?;
    Some(Some(ExpressCard { instance: u128::from_le_bytes(*instance), metadata }))
}

impl Body<'_> {
    fn kind(&self) -> u8 {
        match self {
            Self::Hello { .. } => 1,
            Self::Welcome { .. } => 2,
            Self::Refused => 3,
            Self::Clear { .. } => 4,
            Self::Posted { .. } => 5,
            Self::Told { .. } => 6,
            Self::Landed { .. } => 7,
            Self::Closed { .. } => 8,
            Self::TooLong { .. } => 9,
            Self::Many { .. } => 10,
        }
    }
}

impl Handle {
    pub(crate) fn encode(&self) -> [u8; HANDLE_BYTES] {
        let mut out = Vec::with_capacity(HANDLE_BYTES);
        out.extend_from_slice(&HANDLE_MAGIC);
        out.push(VERSION);
        out.extend_from_slice(&self.listener.to_le_bytes());
        out.extend_from_slice(&self.nonce.to_le_bytes());
        out.extend_from_slice(&self.invitation.to_bytes());
        let addresses = &self.addresses[..self.addresses.len().min(HANDLE_ADDRESSES)];
        out.push(addresses.len() as u8);
        for address in addresses {
            let ip = match address.ip() {
                IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                IpAddr::V6(ip) => ip,
            };
            out.extend_from_slice(&ip.octets());
            out.extend_from_slice(&address.port().to_le_bytes());
        }
        out.resize(HANDLE_BYTES, 0);
        // The length was set just above.
        out.try_into().unwrap_or([0; HANDLE_BYTES])
    }

    pub(crate) fn decode(bytes: &[u8; HANDLE_BYTES]) -> Result<Self, HandleError> {
        let (magic, rest) = bytes.split_at(8);
        if magic != HANDLE_MAGIC {
            return Err(HandleError::Foreign);
        }
        if rest[0] != VERSION {
            return Err(HandleError::Version { got: rest[0] });
        }
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&rest[at..at + 8]);
            u64::from_le_bytes(word)
        };
        let mut invitation = [0; Invitation::BYTES];
        invitation.copy_from_slice(&rest[17..17 + Invitation::BYTES]);
        let invitation = Invitation::from_bytes(&invitation);
        let rest = &rest[17 + Invitation::BYTES..];
        let count = usize::from(rest[0]).min(HANDLE_ADDRESSES);
        let addresses: Vec<SocketAddr> = rest[1..1 + count * 18]
            .as_chunks::<18>()
            .0
            .iter()
            .map(|entry| {
                let mut octets = [0; 16];
                octets.copy_from_slice(&entry[..16]);
                let port = u16::from_le_bytes([entry[16], entry[17]]);
                let ip = Ipv6Addr::from(octets);
                SocketAddr::new(ip.to_ipv4_mapped().map_or(ip.into(), Ipv4Addr::into), port)
            })
            .collect();
        if addresses.is_empty() {
            return Err(HandleError::NoAddress);
        }
        let (listener, nonce) = (word(1), word(9));
        Ok(Self { listener, nonce, invitation, addresses })
    }
}

/// Offset of message `seq` in the other end's mailbox. (2⁴⁴ messages take years.)
pub(crate) fn mail_offset(seq: u64) -> u64 {
    seq << MAIL_SHIFT
}

/// Message number of an offset in a mailbox, and the offset within that message.
pub(crate) fn mail_place(offset: u64) -> (u64, u64) {
    (offset >> MAIL_SHIFT, offset & ((1 << MAIL_SHIFT) - 1))
}

/// Number that the connecting side keeps in the handle, 0 at first. NCCL passes the same bytes again until the
/// connection is established.
pub(crate) fn note(handle: &[u8; HANDLE_BYTES]) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&handle[HANDLE_NOTE..]);
    u64::from_le_bytes(word)
}

/// Sets the number returned by [`note`].
pub(crate) fn set_note(handle: &mut [u8; HANDLE_BYTES], note: u64) {
    handle[HANDLE_NOTE..].copy_from_slice(&note.to_le_bytes());
}

const _: () = assert!(MAILED_BYTES <= 1 << MAIL_SHIFT);
const _: () = assert!(8 + 1 + 8 + 8 + Invitation::BYTES + 1 + HANDLE_ADDRESSES * 18 <= HANDLE_NOTE);

#[cfg(test)]
mod tests {
    use super::*;

    fn messages() -> Vec<Body<'static>> {
        let card = ExpressCard { instance: u128::MAX - 5, metadata: b"where it listens" };
        vec![
            Body::Hello { nonce: 7, from: u64::MAX, express: None },
            Body::Hello { nonce: 7, from: u64::MAX, express: Some(card) },
            Body::Welcome { from: 3, mailbox: &[4; REGION_BYTES], express: None },
            Body::Welcome { from: 3, mailbox: &[4; REGION_BYTES], express: Some(card) },
            Body::Refused,
            Body::Clear { seq: 1, offset: 2, capacity: 3, region: &[9; REGION_BYTES] },
            Body::Posted { count: 4 },
            Body::Told { seq: 5, bytes: b"" },
            Body::Told { seq: 5, bytes: b"all of it" },
            Body::Landed { seq: 6, len: 1 << 40 },
            Body::Closed { count: 0 },
            Body::TooLong { seq: 8, len: 9 },
        ]
    }

    #[test]
    fn every_message_reads_back_and_no_shorter_or_longer_one_does() {
        for body in messages() {
            let bytes = Message { to: 77, body }.encode();
            assert_eq!(Message::decode(&bytes), Ok(Message { to: 77, body }));
            // The last field of these messages may have any length.
            let is_open =
                matches!(body, Body::Told { .. } | Body::Hello { .. } | Body::Welcome { .. });
            for cut in 0..bytes.len() {
                assert_refused_or_another(&bytes[..cut], is_open);
            }
            assert_refused_or_another(&[&bytes[..], &[0]].concat(), is_open);
        }
    }

    /// A changed message that still decodes must encode to the same bytes: decoding adds nothing and ignores nothing.
    fn assert_refused_or_another(bytes: &[u8], may_be_another: bool) {
        if let Ok(message) = Message::decode(bytes) {
            assert!(may_be_another, "{message:?} of {bytes:?}");
            assert_eq!(message.encode(), bytes, "{message:?}");
        }
    }

    proptest::proptest! {
        /// Arbitrary bytes decode to a message that encodes back, or to an error; never to a panic.
        #[test]
        fn whatever_comes_is_a_message_or_an_error(
            kind in 0u8..12, words in 0..6usize, odd in 0..2 * REGION_BYTES, is_odd: bool,
            rest in proptest::collection::vec(0u8.., 200),
        ) {
            // Half of them have a length that some message has.
            let len = 8 * words + if is_odd { odd } else { REGION_BYTES * (words / 4) };
            let bytes = [&[VERSION, kind], &rest[..len]].concat();
            if let Ok(message) = Message::decode(&bytes) {
                assert_eq!(message.encode(), bytes);
            }
        }

        /// The same for handles, which come over NCCL's bootstrap.
        #[test]
        fn whatever_comes_is_a_handle_or_an_error(
            mut bytes in proptest::array::uniform32(0u8..), keeps in proptest::bool::ANY,
        ) {
            if keeps {
                bytes[..8].copy_from_slice(&HANDLE_MAGIC);
                bytes[8] = VERSION;
            }
            let mut handle = [0xa5; HANDLE_BYTES];
            handle[..32].copy_from_slice(&bytes);
            handle[8 + 33] = bytes[31];
            if let Ok(decoded) = Handle::decode(&handle) {
                let again = Handle::decode(&decoded.encode());
                assert_eq!(again, Ok(decoded));
            }
        }
    }

    #[test]
    fn the_corpus_of_the_fuzzer_holds() {
        let (mut kinds, mut handles) = (std::collections::BTreeSet::new(), 0);
        polyrail_skip::assert_corpus_holds("nccl", |data| {
            crate::fuzzer::nccl(data);
            kinds.extend(Message::decode(data).map(|message| message.body.kind()));
            let handle = data.first_chunk().map(Handle::decode);
            handles += usize::from(matches!(handle, Some(Ok(_))));
        });
        // A corpus of an older version would be refused before its content is checked.
        assert_eq!(kinds, (1..=10).collect(), "kinds that the corpus has in version {VERSION}");
        assert!(handles > 0, "no handle of version {VERSION}");
    }

    #[test]
    fn other_versions_kinds_and_sizes_are_told_apart() {
        let bytes = Message { to: 1, body: Body::Refused }.encode();
        let with = |at: usize, value: u8| {
            let mut bytes = bytes.clone();
            bytes[at] = value;
            bytes
        };
        let version = WireError::Version { got: 9 };
        assert_eq!(Message::decode(&with(0, 9)), Err(version));
        assert_eq!(Message::decode(&with(1, 99)), Err(WireError::Kind(99)));
        let large = vec![0; EXPRESS_BYTES + 1];
        let large = Message { to: 1, body: Body::Told { seq: 0, bytes: &large } }.encode();
        assert!(matches!(Message::decode(&large), Err(WireError::Length { kind: 6, .. })));
    }

    #[test]
    fn a_handle_carries_addresses_of_both_families_and_room_for_a_note() {
        let addresses: Vec<SocketAddr> =
            ["10.0.0.1:5", "[fd00::2]:65535", "10.0.0.3:1", "10.0.0.4:2", "10.0.0.5:3"]
                .map(|text| text.parse().unwrap())
                .to_vec();
        let invitation = Invitation::from_bytes(&[0xa5; Invitation::BYTES]);
        let handle = Handle { listener: 5, nonce: 6, invitation, addresses };
        let mut bytes = handle.encode();
        set_note(&mut bytes, 123);
        assert_eq!(note(&bytes), 123);
        let back = Handle::decode(&bytes).unwrap();
        assert_eq!(back.addresses, handle.addresses[..3], "the first three");
        assert_eq!((back.listener, back.nonce), (5, 6));
        assert_eq!(back.invitation, handle.invitation);
    }

    #[test]
    fn a_foreign_handle_says_what_to_do() {
        let handle = Handle {
            listener: 1,
            nonce: 2,
            invitation: Invitation::from_bytes(&[3; Invitation::BYTES]),
            addresses: vec!["10.0.0.1:5".parse().unwrap()],
        };
        let good = handle.encode();
        let mut foreign = good;
        foreign[0] = 2;
        assert_eq!(Handle::decode(&foreign), Err(HandleError::Foreign));
        assert!(HandleError::Foreign.to_string().contains("NCCL_NET_PLUGIN"));
        let mut other = good;
        other[8] = VERSION + 1;
        assert_eq!(Handle::decode(&other), Err(HandleError::Version { got: VERSION + 1 }));
        let mut empty = good;
        empty[8 + 17 + Invitation::BYTES] = 0;
        assert_eq!(Handle::decode(&empty), Err(HandleError::NoAddress));
    }
}
