//! A netlink socket and its two kinds of requests.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::{self, AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use crate::wire::{
    BadMessage, Message, NLM_F_ACK, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NLMSG_DONE,
    NLMSG_ERROR, Reply, replies, verdict,
};

/// A netlink socket, bound to the network namespace in which it was opened.
#[derive(Debug)]
pub struct Socket {
    socket: OwnedFd,
    sequence: u32,
    buffer: Vec<u8>,
}

/// Part of the kernel that a socket talks to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// rtnetlink: links, addresses, routes, queue disciplines.
    Route,
    /// Generic netlink: families by name.
    Generic,
    /// Socket diagnostics: connections of sockets.
    SockDiag,
}

/// Reason why a query failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel refuses, or can't be reached.
    #[error("{}", refusal(source, said.as_deref()))]
    Refused {
        /// The error code.
        source: io::Error,
        /// Explanation by the kernel, if there is one.
        said: Option<String>,
    },
    /// The answer can't be understood.
    #[error("the kernel's answer has {0}")]
    Malformed(&'static str),
}

/// Buffer size. The kernel fills at most 32 KiB per datagram of a dump.
const RECEIVE_BYTES: usize = 64 * 1024;
/// Maximum attempts of a dump. The kernel requests another one if something changes meanwhile.
const DUMP_ATTEMPTS: usize = 16;
/// Maximum number of kept answers. The largest dump has a few hundred bytes per queue.
const DUMP_REPLIES: usize = 1 << 20;

/// Opens a socket in the calling thread's network namespace.
///
/// Makes bare system calls only, so it may run in a forked child; [`Socket::from`] takes the result.
///
/// # Errors
/// The system's error, if the socket can't be opened.
pub fn open(protocol: Protocol) -> Result<OwnedFd, Errno> {
    let protocol = match protocol {
        // The number of rtnetlink is 0, which this call spells `None`.
        Protocol::Route => None,
        Protocol::Generic => Some(netlink::GENERIC),
        Protocol::SockDiag => Some(netlink::SOCK_DIAG),
    };
    let flags = SocketFlags::CLOEXEC;
    let socket = net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol)?;
    net::bind(&socket, &SocketAddrNetlink::new(0, 0))?;
    // Requests explanations of refusals. Old kernels don't know the option.
    let _ = set_option(socket.as_fd(), libc::NETLINK_EXT_ACK, 1);
    Ok(socket)
}

impl Socket {
    /// Like [`open`], ready for requests.
    ///
    /// # Errors
    /// The system's error, if the socket can't be opened.
    pub fn open(protocol: Protocol) -> io::Result<Self> {
        Ok(Self::from(open(protocol)?))
    }

    /// Sends one request and returns the bodies of its answers. The answer to a change has no body. `flags` such as
    /// [`NLM_F_CREATE`](crate::NLM_F_CREATE) select the kind of change.
    ///
    /// # Errors
    /// [`Error::Refused`] by the kernel, with `ETIMEDOUT` if a time limit of the socket passes first;
    /// [`Error::Malformed`] if its answer makes no sense.
    pub fn request(&mut self, message: Message, flags: u16) -> Result<Vec<Vec<u8>>, Error> {
        let sequence = self.send(message, NLM_F_REQUEST | NLM_F_ACK | flags)?;
        let mut found = Vec::new();
        loop {
            for reply in replies(self.receive()?) {
                let reply = reply?;
                if reply.sequence != sequence {
                    continue;
                }
                if reply.kind == NLMSG_ERROR {
                    return judge(&reply).map(|()| found);
                }
                found.push(reply.body.to_vec());
            }
        }
    }

    /// Queries all objects of a kind and passes each answer to `each`. An error of `each` is returned after the kernel
    /// has sent the rest. Returns true if the answers are consistent, and false if something changed meanwhile.
    ///
    /// # Errors
    /// As [`Socket::request`], and the errors of `each`.
    pub fn dump(
        &mut self,
        request: Message,
        mut each: impl FnMut(Reply<'_>) -> Result<(), Error>,
    ) -> Result<bool, Error> {
        let sequence = self.send(request, NLM_F_REQUEST | NLM_F_DUMP)?;
        let mut is_torn = false;
        // The kernel refuses another dump until this one is complete.
        let mut outcome = Ok(());
        loop {
            for reply in replies(self.receive()?) {
                let reply = reply?;
                // An answer to an earlier request, which timed out.
                if reply.sequence != sequence {
                    continue;
                }
                is_torn |= reply.flags & NLM_F_DUMP_INTR != 0;
                match reply.kind {
                    NLMSG_DONE => return outcome.and(judge(&reply)).map(|()| !is_torn),
                    NLMSG_ERROR => judge(&reply)?,
                    _ if outcome.is_ok() => outcome = each(reply),
                    _ => {}
                }
            }
        }
    }

    /// Queries all objects of a kind, and repeats that if something changes meanwhile. Returns the bodies of the
    /// answers of type `wanted`.
    ///
    /// # Errors
    /// As [`Socket::request`]; `EINTR` if something changes each time.
    pub fn dump_whole(
        &mut self,
        request: impl Fn() -> Message,
        wanted: u16,
    ) -> Result<Vec<Vec<u8>>, Error> {
        for _ in 0..DUMP_ATTEMPTS {
            let mut found = Vec::new();
            let is_whole = self.dump(request(), |reply| {
                if found.len() == DUMP_REPLIES {
                    return Err(Error::Malformed("no end"));
                }
                if reply.kind == wanted {
                    found.push(reply.body.to_vec());
                }
                Ok(())
            })?;
            if is_whole {
                return Ok(found);
            }
        }
        Err(Errno::INTR.into())
    }

    /// Joins a group, whose messages arrive without a request.
    ///
    /// # Errors
    /// The system's error, if there is no such group.
    pub fn join(&self, group: u32) -> io::Result<()> {
        set_option(self.as_fd(), libc::NETLINK_ADD_MEMBERSHIP, group)
    }

    /// Receives a datagram if there is one.
    ///
    /// # Errors
    /// `ENOBUFS` if messages were lost, or another error of the system.
    pub fn try_receive(&mut self) -> io::Result<Option<&[u8]>> {
        let flags = RecvFlags::TRUNC | RecvFlags::DONTWAIT;
        match net::recv(&self.socket, self.buffer.as_mut_slice(), flags) {
            Ok((_, length)) => Ok(Some(self.buffer.get(..length).unwrap_or_default())),
            Err(Errno::AGAIN | Errno::INTR) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn send(&mut self, message: Message, flags: u16) -> Result<u32, Errno> {
        self.sequence = self.sequence.wrapping_add(1);
        let bytes = message.finish(flags, self.sequence);
        rustix::io::retry_on_intr(|| net::send(&self.socket, &bytes, SendFlags::empty()))?;
        Ok(self.sequence)
    }

    fn receive(&mut self) -> Result<&[u8], Errno> {
        let received = rustix::io::retry_on_intr(|| {
            net::recv(&self.socket, self.buffer.as_mut_slice(), RecvFlags::TRUNC)
        });
        match received {
            Ok((_, length)) => self.buffer.get(..length).ok_or(Errno::NOBUFS),
            // The socket blocks, so its time limit has passed. For routes of type `throw` the kernel itself answers
            // `EAGAIN`.
            Err(Errno::AGAIN) => Err(Errno::TIMEDOUT),
            Err(error) => Err(error),
        }
    }
}

impl From<OwnedFd> for Socket {
    fn from(socket: OwnedFd) -> Self {
        Self { socket, sequence: 0, buffer: vec![0; RECEIVE_BYTES] }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl From<Errno> for Error {
    fn from(errno: Errno) -> Self {
        Self::Refused { source: errno.into(), said: None }
    }
}

impl From<BadMessage> for Error {
    fn from(BadMessage: BadMessage) -> Self {
        Self::Malformed("a message of a wrong length")
    }
}

fn judge(reply: &Reply<'_>) -> Result<(), Error> {
    match verdict(reply) {
        None if reply.kind == NLMSG_DONE => Ok(()),
        None => Err(Error::Malformed("no verdict in it")),
        Some(verdict) if verdict.errno == 0 => Ok(()),
        Some(verdict) => Err(Error::Refused {
            source: io::Error::from_raw_os_error(verdict.errno),
            said: verdict.said,
        }),
    }
}

/// Formats an error code, after the kernel's explanation if there is one.
pub fn refusal(source: &io::Error, said: Option<&str>) -> String {
    match said {
        Some(said) => format!("{said} ({source})"),
        None => source.to_string(),
    }
}

/// Sets an option of a netlink socket to a number.
#[expect(unsafe_code, reason = "no safe crate here has the options of netlink sockets")]
fn set_option(socket: BorrowedFd<'_>, option: libc::c_int, value: u32) -> io::Result<()> {
    // SAFETY: the pointer and the size are those of a live local of the type the option takes.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_NETLINK,
            option,
            (&raw const value).cast(),
            size_of::<u32>() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{find, text};

    const RTM_NEWLINK: u16 = 16;
    const RTM_DELLINK: u16 = 17;
    const RTM_GETLINK: u16 = 18;
    /// `struct ifinfomsg`.
    const LINK: [u8; 16] = [0; 16];

    fn links(socket: &mut Socket) -> Vec<String> {
        let found = socket.dump_whole(|| Message::new(RTM_GETLINK, &LINK), RTM_NEWLINK).unwrap();
        found.iter().map(|body| text(find(&body[16..], 3).unwrap()).to_owned()).collect()
    }

    #[test]
    fn a_dump_has_every_object_and_leaves_nothing_for_the_next() {
        let mut socket = Socket::open(Protocol::Route).unwrap();
        let found = links(&mut socket);
        assert!(found.iter().any(|name| name == "lo"), "{found:?}");
        assert_eq!(links(&mut socket), found);
    }

    #[test]
    fn an_answer_that_is_refused_does_not_stand_in_the_way_of_the_next() {
        let mut socket = Socket::open(Protocol::Route).unwrap();
        let refused = socket.dump(Message::new(RTM_GETLINK, &LINK), |_| Err(Errno::NOENT.into()));
        let Err(Error::Refused { source, said: None }) = refused else { panic!("{refused:?}") };
        assert_eq!(source.raw_os_error(), Some(libc::ENOENT));
        assert!(links(&mut socket).iter().any(|name| name == "lo"));
    }

    #[test]
    fn the_kernels_refusal_comes_back_as_its_errno() {
        let mut socket = Socket::open(Protocol::Route).unwrap();
        let mut missing = LINK;
        missing[4..8].copy_from_slice(&(u32::MAX >> 1).to_ne_bytes());
        let refused = socket.request(Message::new(RTM_DELLINK, &missing), 0);
        let Err(Error::Refused { source, .. }) = refused else { panic!("{refused:?}") };
        let known = [libc::ENODEV, libc::EPERM].map(Some);
        assert!(known.contains(&source.raw_os_error()), "{source}");
    }

    #[test]
    fn a_request_that_times_out_says_so_and_its_late_answer_is_skipped() {
        let (own, kernel) = socketpair();
        rustix::net::sockopt::set_socket_timeout(
            &own,
            rustix::net::sockopt::Timeout::Recv,
            Some(std::time::Duration::from_millis(1)),
        )
        .unwrap();
        let mut socket = Socket::from(own);
        let late = socket.request(Message::new(RTM_GETLINK, &LINK), 0);
        let Err(Error::Refused { source, .. }) = late else { panic!("{late:?}") };
        assert_eq!(source.kind(), io::ErrorKind::TimedOut);
        // The late answer, then the requested one.
        for sequence in [1, 2] {
            let mut answer = Message::new(RTM_NEWLINK, &[sequence as u8; 4]).finish(0, sequence);
            answer.extend(Message::new(NLMSG_ERROR, &[0; 4]).finish(0, sequence));
            net::send(&kernel, &answer, SendFlags::empty()).unwrap();
        }
        let found = socket.request(Message::new(RTM_GETLINK, &LINK), 0).unwrap();
        assert_eq!(found, [vec![2; 4]]);
    }

    fn socketpair() -> (OwnedFd, OwnedFd) {
        let flags = SocketFlags::CLOEXEC;
        net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
    }

    #[test]
    fn nothing_is_received_unasked_and_a_group_that_is_not_there_is_refused() {
        let mut socket = Socket::open(Protocol::Generic).unwrap();
        assert!(matches!(socket.try_receive(), Ok(None)));
        assert!(socket.join(u32::MAX).is_err());
    }
}
