//! Messages, attributes, and the socket that carries them.

use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{self, AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

/// A netlink socket, bound for its life to the network namespace it was opened in.
///
/// Any thread of any namespace may use it; one request at a time is under way.
#[derive(Debug)]
pub(crate) struct Netlink {
    conversation: Mutex<Conversation>,
}

/// A request and its answers must not mix with another thread's.
#[derive(Debug)]
struct Conversation {
    socket: OwnedFd,
    sequence: u32,
}

/// One request under construction.
#[derive(Debug)]
pub(crate) struct Message {
    bytes: Vec<u8>,
}

pub(crate) const NLM_F_REPLACE: u16 = 0x100;
pub(crate) const NLM_F_EXCL: u16 = 0x200;
pub(crate) const NLM_F_CREATE: u16 = 0x400;

const NLM_F_REQUEST: u16 = 0x1;
const NLM_F_ACK: u16 = 0x4;
const NLM_F_DUMP_INTR: u16 = 0x10;
const NLM_F_DUMP: u16 = 0x300;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLA_F_NESTED: u16 = 0x8000;
const NLA_TYPE_MASK: u16 = 0x3fff;
const HEADER: usize = 16;
/// The kernel fills at most 32 KiB per datagram of a dump.
const RECEIVE_BYTES: usize = 64 * 1024;
/// Changes during a dump make the kernel ask for another one; it can't go on forever here.
const DUMP_ATTEMPTS: usize = 16;

/// Opens a socket in the calling thread's network namespace. Safe between fork and exec.
pub(crate) fn open_socket() -> Result<OwnedFd, Errno> {
    let socket =
        net::socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    net::bind(&socket, &SocketAddrNetlink::new(0, 0))?;
    Ok(socket)
}

impl Netlink {
    pub(crate) fn new(socket: OwnedFd) -> Self {
        Self { conversation: Mutex::new(Conversation { socket, sequence: 0 }) }
    }

    /// Sends one change and waits for the kernel's verdict.
    pub(crate) fn change(&self, message: Message, flags: u16) -> Result<(), Errno> {
        let mut conversation = self.conversation();
        let sequence = conversation.send(message, NLM_F_REQUEST | NLM_F_ACK | flags)?;
        let mut buffer = vec![0; RECEIVE_BYTES];
        loop {
            let received = conversation.receive(&mut buffer)?;
            for reply in replies(received) {
                if reply.sequence == sequence && reply.kind == NLMSG_ERROR {
                    return error_code(reply.body);
                }
            }
        }
    }

    /// Asks for all objects of a kind; returns the bodies of the answers of type `wanted`.
    pub(crate) fn dump(
        &self,
        request: impl Fn() -> Message,
        wanted: u16,
    ) -> Result<Vec<Vec<u8>>, Errno> {
        for _ in 0..DUMP_ATTEMPTS {
            if let Some(found) = self.dump_once(request(), wanted)? {
                return Ok(found);
            }
        }
        Err(Errno::INTR)
    }

    /// `None` when something changed on the way, so that the answer is of two minds.
    fn dump_once(&self, request: Message, wanted: u16) -> Result<Option<Vec<Vec<u8>>>, Errno> {
        let mut conversation = self.conversation();
        let sequence = conversation.send(request, NLM_F_REQUEST | NLM_F_DUMP)?;
        let mut buffer = vec![0; RECEIVE_BYTES];
        let mut found = Vec::new();
        let mut torn = false;
        loop {
            let received = conversation.receive(&mut buffer)?;
            for reply in replies(received).filter(|reply| reply.sequence == sequence) {
                torn |= reply.flags & NLM_F_DUMP_INTR != 0;
                match reply.kind {
                    NLMSG_DONE => return Ok((!torn).then_some(found)),
                    NLMSG_ERROR => error_code(reply.body)?,
                    kind if kind == wanted => found.push(reply.body.to_vec()),
                    _ => {}
                }
            }
        }
    }

    fn conversation(&self) -> MutexGuard<'_, Conversation> {
        // Answers left over by a thread that panicked carry a number that nobody waits for.
        self.conversation.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Conversation {
    fn send(&mut self, message: Message, flags: u16) -> Result<u32, Errno> {
        self.sequence = self.sequence.wrapping_add(1);
        let sequence = self.sequence;
        let mut bytes = message.bytes;
        let length = bytes.len() as u32;
        bytes[0..4].copy_from_slice(&length.to_ne_bytes());
        bytes[6..8].copy_from_slice(&flags.to_ne_bytes());
        bytes[8..12].copy_from_slice(&sequence.to_ne_bytes());
        rustix::io::retry_on_intr(|| net::send(&self.socket, &bytes, SendFlags::empty()))?;
        Ok(sequence)
    }

    fn receive<'a>(&self, buffer: &'a mut [u8]) -> Result<&'a [u8], Errno> {
        let (_, length) =
            rustix::io::retry_on_intr(|| net::recv(&self.socket, &mut *buffer, RecvFlags::TRUNC))?;
        buffer.get(..length).ok_or(Errno::NOBUFS)
    }
}

impl Message {
    /// `header` is the fixed struct that the kind asks for, in native byte order.
    pub(crate) fn new(kind: u16, header: &[u8]) -> Self {
        let mut bytes = vec![0; HEADER];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes.extend_from_slice(header);
        Self { bytes }
    }

    /// Appends raw bytes, for a fixed struct in front of attributes.
    pub(crate) fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    pub(crate) fn attribute(&mut self, kind: u16, value: &[u8]) {
        self.wrap(kind, |message| message.raw(value));
    }

    pub(crate) fn attribute_u32(&mut self, kind: u16, value: u32) {
        self.attribute(kind, &value.to_ne_bytes());
    }

    /// Text with the terminating zero that the kernel expects.
    pub(crate) fn attribute_text(&mut self, kind: u16, text: &str) {
        self.wrap(kind, |message| {
            message.raw(text.as_bytes());
            message.raw(&[0]);
        });
    }

    /// An attribute made of attributes.
    pub(crate) fn nested(&mut self, kind: u16, fill: impl FnOnce(&mut Self)) {
        self.wrap(kind | NLA_F_NESTED, fill);
    }

    fn wrap(&mut self, kind: u16, fill: impl FnOnce(&mut Self)) {
        let start = self.bytes.len();
        self.raw(&[0; 4]);
        fill(self);
        // Nothing here comes near 64 KiB: names, numbers, and a few levels of nesting.
        let length = (self.bytes.len() - start) as u16;
        self.bytes[start..start + 2].copy_from_slice(&length.to_ne_bytes());
        self.bytes[start + 2..start + 4].copy_from_slice(&kind.to_ne_bytes());
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
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

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

/// Text up to its terminating zero.
pub(crate) fn text(bytes: &[u8]) -> &str {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    std::str::from_utf8(&bytes[..end]).unwrap_or_default()
}

struct Reply<'a> {
    kind: u16,
    flags: u16,
    sequence: u32,
    body: &'a [u8],
}

fn replies(mut bytes: &[u8]) -> impl Iterator<Item = Reply<'_>> {
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

/// Zero is an acknowledgement, else a negated errno.
fn error_code(body: &[u8]) -> Result<(), Errno> {
    match u32_at(body, 0).map(|code| code as i32) {
        Some(0) => Ok(()),
        Some(code @ -4095..0) => Err(Errno::from_raw_os_error(-code)),
        _ => Err(Errno::BADMSG),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn attributes_written_are_the_attributes_read() {
        let mut message = Message::new(16, &[7; 16]);
        message.attribute_text(3, "rail0");
        message.nested(18, |inner| {
            inner.attribute_u32(1, 0xdead_beef);
            inner.attribute(2, &[]);
        });
        message.attribute(5, &[9; 3]);

        let body = &message.bytes[HEADER + 16..];
        assert_eq!(body.len() % 4, 0);
        assert_eq!(text(find(body, 3).unwrap()), "rail0");
        let inner = find(body, 18).unwrap();
        assert_eq!(u32_at(find(inner, 1).unwrap(), 0), Some(0xdead_beef));
        assert_eq!(find(inner, 2), Some(&[][..]));
        assert_eq!(find(body, 5), Some(&[9; 3][..]));
        assert_eq!(attributes(body).count(), 3);
    }

    #[test]
    fn a_negated_errno_is_read_as_that_error() {
        assert_eq!(error_code(&0i32.to_ne_bytes()), Ok(()));
        assert_eq!(error_code(&(-17i32).to_ne_bytes()), Err(Errno::EXIST));
        assert_eq!(error_code(&[0, 0]), Err(Errno::BADMSG));
    }

    #[test]
    fn threads_that_share_a_socket_get_their_own_answers() {
        let netlink = Netlink::new(open_socket().unwrap());
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..50).for_each(|_| assert!(!netlink.links().unwrap().is_empty())));
            }
        });
    }

    proptest! {
        #[test]
        fn whatever_is_read_of_any_bytes_is_within_them(
            bytes in proptest::collection::vec(prop_oneof![any::<u8>(), 0..24u8, Just(0)], 0..200),
        ) {
            // Each takes its own head and value, so that there is an end.
            let attributes = attributes(&bytes).take(bytes.len() + 1);
            let of_attributes: usize = attributes.map(|(_, value)| 4 + value.len()).sum();
            prop_assert!(of_attributes <= bytes.len(), "{} bytes", of_attributes);
            let replies = replies(&bytes).take(bytes.len() + 1);
            let of_replies: usize = replies.map(|reply| HEADER + reply.body.len()).sum();
            prop_assert!(of_replies <= bytes.len(), "{} bytes", of_replies);
            prop_assert!(text(&bytes).len() <= bytes.len() && !text(&bytes).contains('\0'));
            let is_ok = bytes.first_chunk() == Some(&[0; 4]);
            prop_assert_eq!(error_code(&bytes).is_ok(), is_ok);
        }
    }
}
