//! Messages and attributes of netlink as bytes. Nothing here trusts a length.

/// One request under construction.
#[derive(Debug)]
pub(crate) struct Message {
    bytes: Vec<u8>,
}

/// One message of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reply<'a> {
    pub(crate) kind: u16,
    pub(crate) flags: u16,
    pub(crate) sequence: u32,
    pub(crate) body: &'a [u8],
}

/// The kernel's verdict on a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    /// Zero for success.
    pub(crate) errno: i32,
    /// What the kernel says about it in words.
    pub(crate) said: Option<String>,
}

pub(crate) const NLM_F_REQUEST: u16 = 0x1;
pub(crate) const NLM_F_ACK: u16 = 0x4;
pub(crate) const NLM_F_DUMP_INTR: u16 = 0x10;
pub(crate) const NLM_F_DUMP: u16 = 0x300;
pub(crate) const NLMSG_ERROR: u16 = 2;
pub(crate) const NLMSG_DONE: u16 = 3;

/// The header of generic netlink: command, version, two reserved bytes.
pub(crate) const GENERIC_HEADER: usize = 4;

const HEADER: usize = 16;
const NLM_F_CAPPED: u16 = 0x100;
const NLM_F_ACK_TLVS: u16 = 0x200;
const NLMSGERR_ATTR_MSG: u16 = 1;
const NLA_F_NESTED: u16 = 0x8000;
const NLA_TYPE_MASK: u16 = 0x3fff;
/// An explanation is a sentence; what is longer is none.
const SAID_CHARS: usize = 200;

impl Message {
    /// `header` is the fixed struct that the kind asks for, in native byte order.
    pub(crate) fn new(kind: u16, header: &[u8]) -> Self {
        let mut bytes = vec![0; HEADER];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes.extend_from_slice(header);
        Self { bytes }
    }

    pub(crate) fn attribute(&mut self, kind: u16, value: &[u8]) {
        self.wrap(kind, |message| message.bytes.extend_from_slice(value));
    }

    pub(crate) fn attribute_u32(&mut self, kind: u16, value: u32) {
        self.attribute(kind, &value.to_ne_bytes());
    }

    /// Text with the terminating zero that the kernel expects.
    pub(crate) fn attribute_text(&mut self, kind: u16, text: &str) {
        self.wrap(kind, |message| {
            message.bytes.extend_from_slice(text.as_bytes());
            message.bytes.push(0);
        });
    }

    /// An attribute made of attributes.
    pub(crate) fn nested(&mut self, kind: u16, fill: impl FnOnce(&mut Self)) {
        self.wrap(kind | NLA_F_NESTED, fill);
    }

    /// The whole request with its length, flags and number.
    pub(crate) fn finish(mut self, flags: u16, sequence: u32) -> Vec<u8> {
        // Names and numbers in a few levels of nesting: far below 4 GiB.
        let length = self.bytes.len() as u32;
        self.bytes[0..4].copy_from_slice(&length.to_ne_bytes());
        self.bytes[6..8].copy_from_slice(&flags.to_ne_bytes());
        self.bytes[8..12].copy_from_slice(&sequence.to_ne_bytes());
        self.bytes
    }

    fn wrap(&mut self, kind: u16, fill: impl FnOnce(&mut Self)) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0; 4]);
        fill(self);
        // As above, far below 64 KiB: names are cut to what an interface's name may have.
        let length = (self.bytes.len() - start) as u16;
        self.bytes[start..start + 2].copy_from_slice(&length.to_ne_bytes());
        self.bytes[start + 2..start + 4].copy_from_slice(&kind.to_ne_bytes());
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

/// Walks over the messages of a datagram; stops at the first that does not fit.
pub(crate) fn replies(mut bytes: &[u8]) -> impl Iterator<Item = Reply<'_>> {
    std::iter::from_fn(move || {
        let length = u32_at(bytes, 0)? as usize;
        let reply = Reply {
            kind: u16_at(bytes, 4)?,
            flags: u16_at(bytes, 6)?,
            sequence: u32_at(bytes, 8)?,
            body: bytes.get(HEADER..length)?,
        };
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(reply)
    })
}

/// Walks over attributes; stops at the first that does not fit.
pub(crate) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(u16_at(bytes, 0)?);
        let kind = u16_at(bytes, 2)? & NLA_TYPE_MASK;
        let value = bytes.get(4..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

pub(crate) fn find(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    attributes(bytes).find_map(|(found, value)| (found == kind).then_some(value))
}

pub(crate) fn find_u32(bytes: &[u8], kind: u16) -> Option<u32> {
    u32_at(find(bytes, kind)?, 0)
}

/// A number of whatever width the kernel chose: it shortens to 32 bits what fits.
pub(crate) fn any_uint(value: &[u8]) -> Option<u64> {
    match value.len() {
        1 => Some(u64::from(value[0])),
        2 => u16_at(value, 0).map(u64::from),
        4 => u32_at(value, 0).map(u64::from),
        8 => Some(u64::from_ne_bytes(value.try_into().ok()?)),
        _ => None,
    }
}

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// Text up to its terminating zero.
pub(crate) fn text(bytes: &[u8]) -> &str {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    std::str::from_utf8(&bytes[..end]).unwrap_or_default()
}

/// Reads an acknowledgement or the end of a dump; `None` if it is too short to be one.
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
        let request = u32_at(reply.body, 4)? as usize;
        request.checked_add(4).and_then(|end| reply.body.get(end.next_multiple_of(4)..))
    };
    let said = words.and_then(|words| find(words, NLMSGERR_ATTR_MSG)).map(text);
    let said = said.filter(|said| !said.is_empty());
    let printable = |c: char| if c.is_control() { ' ' } else { c };
    Some(Verdict {
        errno,
        said: said.map(|said| said.chars().take(SAID_CHARS).map(printable).collect()),
    })
}

/// Runs every reader of this crate over bytes that may be anything, for fuzzing.
///
/// Answers with how many messages and attributes were seen, so that nothing is optimised away.
pub fn examine(bytes: &[u8]) -> usize {
    let mut seen = 0;
    for reply in replies(bytes) {
        seen += 1 + usize::from(verdict(&reply).is_some());
        let body = reply.body.get(GENERIC_HEADER..).unwrap_or_default();
        seen += attributes(body).map(|(_, value)| text(value).len().min(1)).sum::<usize>();
        seen += crate::generic::examine(body) + crate::ethtool::examine(body);
        seen += crate::netdev::examine(body) + crate::route::examine(reply.body);
        seen += usize::from(crate::events::examine(&reply));
    }
    seen += crate::rss::examine(bytes);
    seen + crate::writers::examine(bytes) + crate::ioctl::examine(bytes)
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

        let reply = replies(&bytes).next().unwrap();
        assert_eq!((reply.kind, reply.flags, reply.sequence), (16, NLM_F_REQUEST, 77));
        let body = &reply.body[4..];
        assert_eq!(text(find(body, 3).unwrap()), "eth0");
        let inner = find(body, 18).unwrap();
        assert_eq!(find_u32(inner, 1), Some(0xdead_beef));
        assert_eq!(find(inner, 2), Some(&[][..]));
        assert_eq!(find(body, 5), Some(&[9; 3][..]));
        assert_eq!(attributes(body).count(), 3);
    }

    /// An error as the kernel writes it: the code, the request or its header, then the words.
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
            let reply = replies(&bytes).next().unwrap();
            let found = verdict(&reply).unwrap();
            assert_eq!(found.errno, 22);
            assert_eq!(found.said.unwrap(), "requested channel count exceeds maximum");
        }
    }

    #[test]
    fn an_acknowledgement_is_a_verdict_of_zero_and_a_wild_code_a_bad_message() {
        let of = |code: i32| {
            let bytes = Message::new(NLMSG_ERROR, &code.to_ne_bytes()).finish(0, 1);
            verdict(&replies(&bytes).next().unwrap()).unwrap().errno
        };
        assert_eq!((of(0), of(-95), of(5), of(-5000)), (0, 95, libc::EBADMSG, libc::EBADMSG));
        let short = Message::new(NLMSG_ERROR, &[0, 0]).finish(0, 1);
        assert_eq!(verdict(&replies(&short).next().unwrap()), None);
    }

    #[test]
    fn numbers_are_read_in_every_width() {
        assert_eq!(any_uint(&[7]), Some(7));
        assert_eq!(any_uint(&300u32.to_ne_bytes()), Some(300));
        assert_eq!(any_uint(&u64::MAX.to_ne_bytes()), Some(u64::MAX));
        assert_eq!(any_uint(&[1, 2, 3]), None);
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_readers_panic_or_loop(
            bytes in proptest::collection::vec(any::<u8>(), 0..300),
        ) {
            let _ = examine(&bytes);
            // One whole message is one reply, whatever is in it.
            let framed = Message::new(NLMSG_ERROR, &bytes).finish(NLM_F_ACK_TLVS, 1);
            prop_assert_eq!(replies(&framed).count(), 1);
            prop_assert!(examine(&framed) >= 1);
        }
    }
}
