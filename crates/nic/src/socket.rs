//! A netlink socket and the two kinds of conversation on it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::{self, AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use crate::error::NicError;
use crate::os;
use crate::wire::{
    Message, NLM_F_ACK, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NLMSG_DONE, NLMSG_ERROR,
    replies, verdict,
};

/// A netlink socket of the calling thread's network namespace.
#[derive(Debug)]
pub(crate) struct Socket {
    socket: OwnedFd,
    sequence: u32,
}

/// Which part of the kernel the socket leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// rtnetlink.
    Route,
    /// Generic netlink.
    Generic,
}

/// The kernel fills at most 32 KiB per datagram of a dump.
const RECEIVE_BYTES: usize = 64 * 1024;
/// Changes during a dump make the kernel ask for another one; it can't go on forever here.
const DUMP_ATTEMPTS: usize = 16;
/// No dump that is made here comes near: the largest has a few hundred bytes per queue.
const DUMP_REPLIES: usize = 1 << 20;

impl Socket {
    pub(crate) fn open(protocol: Protocol) -> Result<Self, NicError> {
        let protocol = match protocol {
            // The first protocol has the number 0, which is spelt as none.
            Protocol::Route => None,
            Protocol::Generic => Some(netlink::GENERIC),
        };
        let open = || -> io::Result<OwnedFd> {
            let flags = SocketFlags::CLOEXEC;
            let socket =
                net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol)?;
            net::bind(&socket, &SocketAddrNetlink::new(0, 0))?;
            // Asks for the kernel's own words when it refuses; kernels without have none.
            let _ = os::set_netlink_option(socket.as_fd(), libc::NETLINK_EXT_ACK, 1);
            Ok(socket)
        };
        let socket =
            open().map_err(|source| NicError::Open { what: "a netlink socket", source })?;
        Ok(Self { socket, sequence: 0 })
    }

    /// Sends one request and returns the bodies of its answers, of which a change has none.
    /// `asked` says in an error what it was about.
    pub(crate) fn request(
        &mut self,
        message: Message,
        asked: &str,
    ) -> Result<Vec<Vec<u8>>, NicError> {
        let failed = |source| NicError::Refused { asked: asked.to_owned(), source, said: None };
        let sequence = self.send(message, NLM_F_REQUEST | NLM_F_ACK).map_err(failed)?;
        let mut buffer = vec![0; RECEIVE_BYTES];
        let mut found = Vec::new();
        loop {
            let received = self.receive(&mut buffer).map_err(failed)?;
            for reply in replies(received).filter(|reply| reply.sequence == sequence) {
                if reply.kind == NLMSG_ERROR {
                    judge(&reply, asked)?;
                    return Ok(found);
                }
                found.push(reply.body.to_vec());
            }
        }
    }

    /// Asks for all objects of a kind; returns their bodies.
    pub(crate) fn dump(
        &mut self,
        request: impl Fn() -> Message,
        asked: &str,
    ) -> Result<Vec<Vec<u8>>, NicError> {
        for _ in 0..DUMP_ATTEMPTS {
            if let Some(found) = self.dump_once(request(), asked)? {
                return Ok(found);
            }
        }
        let source = io::Error::from_raw_os_error(libc::EINTR);
        Err(NicError::Refused { asked: asked.to_owned(), source, said: None })
    }

    /// Joins a group whose messages arrive unasked.
    pub(crate) fn join(&self, group: u32) -> io::Result<()> {
        os::set_netlink_option(self.socket.as_fd(), libc::NETLINK_ADD_MEMBERSHIP, group)
    }

    /// Takes a datagram if there is one.
    pub(crate) fn try_receive<'a>(&self, buffer: &'a mut [u8]) -> io::Result<Option<&'a [u8]>> {
        match net::recv(&self.socket, &mut *buffer, RecvFlags::TRUNC | RecvFlags::DONTWAIT) {
            Ok((_, length)) => Ok(Some(buffer.get(..length).unwrap_or_default())),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// `None` when something changed on the way, so that the answer is of two minds.
    fn dump_once(
        &mut self,
        request: Message,
        asked: &str,
    ) -> Result<Option<Vec<Vec<u8>>>, NicError> {
        let failed = |source| NicError::Refused { asked: asked.to_owned(), source, said: None };
        let sequence = self.send(request, NLM_F_REQUEST | NLM_F_DUMP).map_err(failed)?;
        let mut buffer = vec![0; RECEIVE_BYTES];
        let mut found = Vec::new();
        let mut torn = false;
        loop {
            let received = self.receive(&mut buffer).map_err(failed)?;
            for reply in replies(received).filter(|reply| reply.sequence == sequence) {
                torn |= reply.flags & NLM_F_DUMP_INTR != 0;
                match reply.kind {
                    NLMSG_DONE => {
                        judge(&reply, asked)?;
                        return Ok((!torn).then_some(found));
                    }
                    NLMSG_ERROR => judge(&reply, asked)?,
                    _ if found.len() == DUMP_REPLIES => {
                        let fault = "no end";
                        return Err(NicError::Malformed { asked: asked.to_owned(), fault });
                    }
                    _ => found.push(reply.body.to_vec()),
                }
            }
        }
    }

    fn send(&mut self, message: Message, flags: u16) -> io::Result<u32> {
        self.sequence = self.sequence.wrapping_add(1);
        let bytes = message.finish(flags, self.sequence);
        rustix::io::retry_on_intr(|| net::send(&self.socket, &bytes, SendFlags::empty()))?;
        Ok(self.sequence)
    }

    fn receive<'a>(&self, buffer: &'a mut [u8]) -> io::Result<&'a [u8]> {
        let (_, length) =
            rustix::io::retry_on_intr(|| net::recv(&self.socket, &mut *buffer, RecvFlags::TRUNC))?;
        buffer.get(..length).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOBUFS))
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn judge(reply: &crate::wire::Reply<'_>, asked: &str) -> Result<(), NicError> {
    match verdict(reply) {
        None if reply.kind == NLMSG_DONE => Ok(()),
        None => Err(NicError::Malformed { asked: asked.to_owned(), fault: "no verdict in it" }),
        Some(verdict) if verdict.errno == 0 => Ok(()),
        Some(verdict) => Err(NicError::Refused {
            asked: asked.to_owned(),
            source: io::Error::from_raw_os_error(verdict.errno),
            said: verdict.said,
        }),
    }
}
