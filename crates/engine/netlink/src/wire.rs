//! Netlink messages and attributes as bytes. All lengths are checked.

/// A request under construction.
#[derive(Debug)]
pub struct Message {
    bytes: Vec<u8>,
}

/// A message of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply<'a> {
    /// Type of the message; each protocol has its own numbers.
    pub kind: u16,
    /// Flags. The meaning of some depends on the type.
    pub flags: u16,
    /// Number of the request that this message answers; 0 for unrequested messages.
    pub sequence: u32,
    /// Content without the header.
    pub body: &'a [u8],
}

/// Error for a message that claims to be shorter than its header, or longer than the datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadMessage;

/// The kernel's result of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    /// Zero for success.
    pub(crate) errno: i32,
    /// Explanation by the kernel.
    pub(crate) said: Option<String>,
}

pub(crate) const NLM_F_REQUEST: u16 = 0x1;
pub(crate) const NLM_F_ACK: u16 = 0x4;
pub(crate) const NLM_F_DUMP_INTR: u16 = 0x10;
pub(crate) const NLM_F_DUMP: u16 = 0x300;
pub(crate) const NLMSG_ERROR: u16 = 2;
pub(crate) const NLMSG_DONE: u16 = 3;

/// Replaces an object that exists.
pub const NLM_F_REPLACE: u16 = 0x100;
/// Makes the kernel refuse if the object exists.
pub const NLM_F_EXCL: u16 = 0x200;
/// Creates the object if it does not exist.
pub const NLM_F_CREATE: u16 = 0x400;

const HEADER: usize = 16;
const NLM_F_CAPPED: u16 = 0x100;
const NLM_F_ACK_TLVS: u16 = 0x200;
const NLMSGERR_ATTR_MSG: u16 = 1;
const NLA_F_NESTED: u16 = 0x8000;
const NLA_TYPE_MASK: u16 = 0x3fff;
/// Maximum characters of an explanation. The kernel writes one sentence.
const SAID_CHARS: usize = 200;

impl Message {
    /// Creates a message. `header` is the fixed struct that the type requires, in native byte order.
    pub fn new(kind: u16, header: &[u8]) -> Self {
        let mut bytes = vec![0; HEADER];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes.extend_from_slice(header);
        Self { bytes }
    }

    /// Appends raw bytes, for a fixed struct in front of attributes.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Appends an attribute with these bytes.
    pub fn attribute(&mut self, kind: u16, value: &[u8]) {
        self.wrap(kind, |message| message.raw(value));
    }

    /// Appends an attribute with a 32-bit number.
    pub fn attribute_u32(&mut self, kind: u16, value: u32) {
        self.attribute(kind, &value.to_ne_bytes());
    }

    /// Appends text with the terminating zero that the kernel expects.
    pub fn attribute_text(&mut self, kind: u16, text: &str) {
        self.wrap(kind, |message| {
            message.raw(text.as_bytes());
            message.raw(&[0]);
        });
    }

    /// Appends an attribute made of attributes.
    pub fn nested(&mut self, kind: u16, fill: impl FnOnce(&mut Self)) {
        self.wrap(kind | NLA_F_NESTED, fill);
    }

    /// Returns the whole request with its length, flags and number.
    pub fn finish(mut self, flags: u16, sequence: u32) -> Vec<u8> {
        // Names and numbers in a few levels of nesting: far below 4 GiB.
        let length = self.bytes.len() as u32;
        self.bytes[0..4].copy_from_slice(&length.to_ne_bytes());
        self.bytes[6..8].copy_from_slice(&flags.to_ne_bytes());
        self.bytes[8..12].copy_from_slice(&sequence.to_ne_bytes());
        self.bytes
    }

    fn wrap(&mut self, kind: u16, fill: impl FnOnce(&mut Self)) {
        let start = self.bytes.len();
        self.raw(&[0; 4]);
        fill(self);
        // Far below 64 KiB: names are cut to the length of an interface name.
        let length = (self.bytes.len() - start) as u16;
        self.bytes[start..start + 2].copy_from_slice(&length.to_ne_bytes());
        self.bytes[start + 2..start + 4].copy_from_slice(&kind.to_ne_bytes());
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

/// Iterates over the messages of a datagram. Yields an error for the first one that does not fit, and then stops.
pub fn replies(mut bytes: &[u8]) -> impl Iterator<Item = Result<Reply<'_>, BadMessage>> {
    std::iter::from_fn(move || {
        let here = std::mem::take(&mut bytes);
        if here.is_empty() {
            return None;
        }
        let Some((reply, length)) = first_reply(here) else { return Some(Err(BadMessage)) };
        bytes = here.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(Ok(reply))
    })
}

fn first_reply(bytes: &[u8]) -> Option<(Reply<'_>, usize)> {
    let length = u32_at(bytes, 0)? as usize;
    let reply = Reply {
        kind: u16_at(bytes, 4)?,
        flags: u16_at(bytes, 6)?,
        sequence: u32_at(bytes, 8)?,
        body: bytes.get(HEADER..length)?,
    };
    Some((reply, length))
}

/// Iterates over attributes. Stops at the first one that does not fit.
pub fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(u16_at(bytes, 0)?);
        let kind = u16_at(bytes, 2)? & NLA_TYPE_MASK;
        let value = bytes.get(4..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// Value of the first attribute of a kind.
pub fn find(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    attributes(bytes).find_map(|(found, value)| (found == kind).then_some(value))
}

/// Like [`find`], for a 32-bit number.
pub fn find_u32(bytes: &[u8], kind: u16) -> Option<u32> {
    u32_at(find(bytes, kind)?, 0)
}

/// Reads a number of any width: the kernel sends a 64-bit number in 32 bits if it fits.
pub fn any_uint(value: &[u8]) -> Option<u64> {
    match value.len() {
        1 => Some(u64::from(value[0])),
        2 => u16_at(value, 0).map(u64::from),
        4 => u32_at(value, 0).map(u64::from),
        8 => u64_at(value, 0),
        _ => None,
    }
}

/// 16-bit number at an offset, in native byte order.
pub fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

/// Like [`u16_at`], for 32 bits.
pub fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// Like [`u16_at`], for 64 bits.
pub fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

/// Text up to its terminating zero. Empty if it is not UTF-8.
pub fn text(bytes: &[u8]) -> &str {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    std::str::from_utf8(&bytes[..end]).unwrap_or_default()
}

/// Text up to its terminating zero, with bytes that are not UTF-8 escaped as in `rail\xff`. The flag is true if any
/// were.
pub(crate) fn escaped_text(bytes: &[u8]) -> (String, bool) {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    let (mut shown, mut is_escaped) = (String::new(), false);
    for chunk in bytes[..end].utf8_chunks() {
        shown.push_str(chunk.valid());
        for byte in chunk.invalid() {
            shown.push_str(&format!("\\x{byte:02x}"));
            is_escaped = true;
        }
    }
    (shown, is_escaped)
}

/// Reads an acknowledgement or the end of a dump. Returns `None` if it is too short.
pub(crate) fn verdict(reply: &Reply<'_>) -> Option<Verdict> {
    let code = u32_at(reply.body, 0)? as i32;
    let errno = if (-4095..=0).contains(&code) { -code } else { libc::EBADMSG };
    let words = if reply.flags & NLM_F_ACK_TLVS == 0 {
        None
    } else if reply.kind == NLMSG_DONE {
        reply.body.get(4..)
    } else if reply.flags & NLM_F_CAPPED != 0 {
        // Only the header of the request comes back …
        reply.body.get(4 + HEADER..)
    } else {
        // … or all of it.
        let request = u32_at(reply.body, 4).and_then(|length| (length as usize).checked_add(4));
        request.and_then(|end| reply.body.get(end.next_multiple_of(4)..))
    };
    let said = words.and_then(|words| find(words, NLMSGERR_ATTR_MSG)).map(text);
    let said = said.filter(|said| !said.is_empty());
    let printable = |c: char| if polyrail_text::steers(c) { ' ' } else { c };
    Some(Verdict {
        errno,
        said: said.map(|said| said.chars().take(SAID_CHARS).map(printable).collect()),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn attributes_written_are_the_attributes_read() {
        let mut message = Message::new(16, &[7; 4]);
        message.attribute_text(3, "eth0");
        message.nested(18, |inner| {
            inner.attribute_u32(1, 0xdead_beef);
            inner.attribute(2, &[]);
        });
        message.attribute(5, &[9; 3]);
        let bytes = message.finish(NLM_F_REQUEST, 77);

        let reply = replies(&bytes).next().unwrap().unwrap();
        assert_eq!((reply.kind, reply.flags, reply.sequence), (16, NLM_F_REQUEST, 77));
        let body = &reply.body[4..];
        assert_eq!(text(find(body, 3).unwrap()), "eth0");
        let inner = find(body, 18).unwrap();
        assert_eq!(find_u32(inner, 1), Some(0xdead_beef));
        assert_eq!(find(inner, 2), Some(&[][..]));
        assert_eq!(find(body, 5), Some(&[9; 3][..]));
        assert_eq!(attributes(body).count(), 3);
    }

    /// Builds an error like the kernel's: the code, the request or its header, then the text.
    fn refusal(errno: i32, request: &[u8], capped: bool, words: &str) -> Vec<u8> {
        let mut body = (-errno).to_ne_bytes().to_vec();
        body.extend_from_slice(if capped { &request[..HEADER] } else { request });
        let mut tail = Message::new(0, &[]);
        tail.attribute_text(NLMSGERR_ATTR_MSG, words);
        body.extend_from_slice(&tail.bytes[HEADER..]);
        let flags = NLM_F_ACK_TLVS | if capped { NLM_F_CAPPED } else { 0 };
        Message::new(NLMSG_ERROR, &body).finish(flags, 1)
    }

    #[test]
    fn the_words_of_a_refusal_are_found_behind_the_request_or_its_header() {
        let mut request = Message::new(20, &[1, 1, 0, 0]);
        request.attribute_text(2, "eth12345");
        let request = request.finish(NLM_F_REQUEST, 1);
        for capped in [false, true] {
            let bytes = refusal(22, &request, capped, "requested channel count exceeds maximum");
            let reply = replies(&bytes).next().unwrap().unwrap();
            let found = verdict(&reply).unwrap();
            assert_eq!(found.errno, 22);
            assert_eq!(found.said.unwrap(), "requested channel count exceeds maximum");
        }
    }

    #[test]
    fn an_acknowledgement_is_a_verdict_of_zero_and_a_wild_code_a_bad_message() {
        let of = |code: i32| {
            let bytes = Message::new(NLMSG_ERROR, &code.to_ne_bytes()).finish(0, 1);
            verdict(&replies(&bytes).next().unwrap().unwrap()).unwrap().errno
        };
        assert_eq!((of(0), of(-95), of(5), of(-5000)), (0, 95, libc::EBADMSG, libc::EBADMSG));
        let short = Message::new(NLMSG_ERROR, &[0, 0]).finish(0, 1);
        assert_eq!(verdict(&replies(&short).next().unwrap().unwrap()), None);
    }

    #[test]
    fn numbers_are_read_in_every_width() {
        assert_eq!(any_uint(&[7]), Some(7));
        assert_eq!(any_uint(&300u32.to_ne_bytes()), Some(300));
        assert_eq!(any_uint(&u64::MAX.to_ne_bytes()), Some(u64::MAX));
        assert_eq!(any_uint(&[1, 2, 3]), None);
    }

    #[test]
    fn a_message_of_a_wrong_length_ends_the_walk() {
        let whole = Message::new(16, &[7; 4]).finish(0, 1);
        for length in [0u32, 15, 41, u32::MAX] {
            let mut bytes = [&whole[..], &whole, &whole].concat();
            bytes[20..24].copy_from_slice(&length.to_ne_bytes());
            let found: Vec<_> = replies(&bytes).take(4).map(|reply| reply.is_ok()).collect();
            assert_eq!(found, [true, false], "{length}");
        }
        assert!(replies(&whole[..10]).eq([Err(BadMessage)]));
        assert_eq!(replies(&[]).count(), 0);
    }

    proptest! {
        #[test]
        fn whatever_is_read_of_any_bytes_is_within_them(
            bytes in proptest::collection::vec(prop_oneof![any::<u8>(), 0..24u8, Just(0)], 0..300),
        ) {
            // Each attribute takes its own header and value, so the iteration ends.
            let attributes = attributes(&bytes).take(bytes.len() + 1);
            let of_attributes: usize = attributes.map(|(_, value)| 4 + value.len()).sum();
            prop_assert!(of_attributes <= bytes.len(), "{} bytes", of_attributes);
            let found: Vec<_> = replies(&bytes).take(bytes.len() + 1).collect();
            let whole = found.iter().filter_map(|reply| reply.as_ref().ok());
            let of_replies: usize = whole.map(|reply| HEADER + reply.body.len()).sum();
            prop_assert!(of_replies <= bytes.len(), "{} bytes", of_replies);
            let faults = found.iter().filter(|reply| reply.is_err()).count();
            prop_assert!(faults == 0 || faults == 1 && found.last().unwrap().is_err());
            prop_assert!(text(&bytes).len() <= bytes.len() && !text(&bytes).contains('\0'));
            // One whole message makes one reply, whatever its content, and each reply may be a verdict.
            for kind in [NLMSG_ERROR, NLMSG_DONE] {
                for flags in [0, NLM_F_ACK_TLVS, NLM_F_ACK_TLVS | NLM_F_CAPPED] {
                    let framed = Message::new(kind, &bytes).finish(flags, 1);
                    let reply = replies(&framed).next().unwrap().unwrap();
                    prop_assert_eq!(reply.body, &bytes[..]);
                    let verdict = verdict(&reply);
                    prop_assert_eq!(verdict.is_some(), bytes.len() >= 4);
                    let is_ok = bytes.first_chunk() == Some(&[0; 4]);
                    prop_assert_eq!(verdict.is_some_and(|verdict| verdict.errno == 0), is_ok);
                }
            }
        }
    }
}
