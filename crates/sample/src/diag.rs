//! What the kernel knows of all TCP connections of a network namespace (`NETLINK_SOCK_DIAG`).

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send, socket_with,
    sockopt,
};

/// A connection as the kernel describes it. Times are microseconds since it began.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connection {
    /// The socket's number in the process's table of open files.
    pub inode: u32,
    /// Tells it from any later one of the same addresses.
    pub cookie: u64,
    /// Address and port here.
    pub local: SocketAddr,
    /// Address and port there.
    pub remote: SocketAddr,
    /// Received and not yet read by the process.
    pub unread_bytes: u32,
    /// Written by the process and not yet acknowledged.
    pub unacked_bytes: u32,
    /// Congestion control.
    pub congestion: String,
    /// Smoothed round-trip time.
    pub rtt_us: u32,
    /// Shortest round-trip time.
    pub min_rtt_us: u32,
    /// Congestion window in segments.
    pub cwnd: u32,
    /// Segments sent again.
    pub retransmits: u64,
    /// Bytes that the other kernel acknowledged.
    pub acked_bytes: u64,
    /// Bytes received in order.
    pub received_bytes: u64,
    /// The rate that the kernel estimated last.
    pub delivery_bytes_per_s: u64,
    /// Time with anything to send.
    pub busy_us: u64,
    /// Time held up by the receiver's window.
    pub rwnd_limited_us: u64,
    /// Time held up by the send buffer.
    pub sndbuf_limited_us: u64,
}

/// A way to ask the kernel. The answers are of the namespace that the thread was in when it was
/// opened. One thread at a time.
#[derive(Debug)]
pub struct SockDiag {
    socket: OwnedFd,
    buffer: Vec<u8>,
    sequence: u32,
}

impl SockDiag {
    /// Opens it; needs no right.
    pub fn open() -> io::Result<Self> {
        let socket = socket_with(
            AddressFamily::NETLINK,
            SocketType::DGRAM,
            SocketFlags::CLOEXEC,
            Some(netlink::SOCK_DIAG),
        )?;
        bind(&socket, &SocketAddrNetlink::new(0, 0))?;
        // The kernel answers at once; a lost answer must not hold up the sampler.
        sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(ANSWER_MAX))?;
        Ok(Self { socket, buffer: vec![0; BUFFER_BYTES], sequence: 0 })
    }

    /// Hands every TCP connection that is not only listening to `each`.
    pub fn connections(&mut self, mut each: impl FnMut(Connection)) -> io::Result<()> {
        for family in [AF_INET, AF_INET6] {
            self.sequence = self.sequence.wrapping_add(1);
            send(&self.socket, &request(family, self.sequence), SendFlags::empty())?;
            while !self.answer(&mut each)? {}
        }
        Ok(())
    }

    /// Reads one datagram; says whether it was the last of the answer.
    fn answer(&mut self, each: &mut impl FnMut(Connection)) -> io::Result<bool> {
        let (_, len) = recv(&self.socket, self.buffer.as_mut_slice(), RecvFlags::TRUNC)?;
        let datagram = self.buffer.get(..len).ok_or_else(|| invalid("answer is too long"))?;
        match parse(datagram, self.sequence, each) {
            Ok(is_last) => Ok(is_last),
            Err(Refusal::Errno(errno)) => Err(io::Error::from_raw_os_error(errno)),
            Err(Refusal::Malformed(what)) => Err(invalid(what)),
        }
    }
}

const ANSWER_MAX: Duration = Duration::from_millis(500);
/// The kernel fills at most 32 KiB per datagram of a dump.
const BUFFER_BYTES: usize = 32 << 10;

const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
const IPPROTO_TCP: u8 = 6;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLM_F_REQUEST_DUMP: u16 = 0x301;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const HEADER_BYTES: usize = 16;
const MESSAGE_BYTES: usize = 72;
const INET_DIAG_INFO: u16 = 2;
const INET_DIAG_CONG: u16 = 4;
/// All states in which data may still move: established, closing in its several ways.
const STATES: u32 = 1 << 1 | 1 << 4 | 1 << 5 | 1 << 8 | 1 << 9 | 1 << 11;

#[derive(Debug, PartialEq, Eq)]
enum Refusal {
    Errno(i32),
    Malformed(&'static str),
}

fn invalid(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// `nlmsghdr` and `inet_diag_req_v2` (include/uapi/linux/inet_diag.h), for all sockets of a family.
fn request(family: u8, sequence: u32) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER_BYTES + 56);
    bytes.extend(((HEADER_BYTES + 56) as u32).to_ne_bytes());
    bytes.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    bytes.extend(NLM_F_REQUEST_DUMP.to_ne_bytes());
    bytes.extend(sequence.to_ne_bytes());
    bytes.extend(0u32.to_ne_bytes());
    let extensions = 1 << (INET_DIAG_INFO - 1) | 1 << (INET_DIAG_CONG - 1);
    bytes.extend([family, IPPROTO_TCP, extensions, 0]);
    bytes.extend(STATES.to_ne_bytes());
    bytes.resize(HEADER_BYTES + 56, 0);
    bytes
}

/// Reads a datagram of answers to request `sequence`.
fn parse(
    mut datagram: &[u8],
    sequence: u32,
    each: &mut impl FnMut(Connection),
) -> Result<bool, Refusal> {
    while !datagram.is_empty() {
        let len = u32_at(datagram, 0).ok_or(Refusal::Malformed("header is cut off"))? as usize;
        let message = datagram.get(..len).filter(|message| message.len() >= HEADER_BYTES);
        let message = message.ok_or(Refusal::Malformed("message length is wrong"))?;
        datagram = datagram.get(len.next_multiple_of(4)..).unwrap_or_default();
        // Left over from a request whose answer was given up.
        if u32_at(message, 8) != Some(sequence) {
            continue;
        }
        match u16_at(message, 4) {
            Some(NLMSG_DONE) => return Ok(true),
            Some(NLMSG_ERROR) => {
                let errno = u32_at(message, HEADER_BYTES).unwrap_or(0) as i32;
                return Err(Refusal::Errno(errno.wrapping_neg()));
            }
            Some(SOCK_DIAG_BY_FAMILY) => each(
                connection(&message[HEADER_BYTES..])
                    .ok_or(Refusal::Malformed("connection is cut off"))?,
            ),
            _ => {}
        }
    }
    Ok(false)
}

/// Reads `inet_diag_msg` and its attributes.
fn connection(body: &[u8]) -> Option<Connection> {
    let fixed = body.get(..MESSAGE_BYTES)?;
    let address = |port_at: usize, at: usize| {
        let port = u16::from_be_bytes([fixed[port_at], fixed[port_at + 1]]);
        let ip = match fixed[0] {
            AF_INET => IpAddr::V4(Ipv4Addr::from(<[u8; 4]>::try_from(&fixed[at..at + 4]).ok()?)),
            _ => IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(&fixed[at..at + 16]).ok()?)),
        };
        // An IPv4 connection of an IPv6 socket reads like any other.
        Some(SocketAddr::new(ip.to_canonical(), port))
    };
    let mut connection = Connection {
        inode: u32_at(fixed, 68)?,
        cookie: u64_at(fixed, 44)?,
        local: address(4, 8)?,
        remote: address(6, 24)?,
        unread_bytes: u32_at(fixed, 56)?,
        unacked_bytes: u32_at(fixed, 60)?,
        congestion: String::new(),
        rtt_us: 0,
        min_rtt_us: 0,
        cwnd: 0,
        retransmits: 0,
        acked_bytes: 0,
        received_bytes: 0,
        delivery_bytes_per_s: 0,
        busy_us: 0,
        rwnd_limited_us: 0,
        sndbuf_limited_us: 0,
    };
    let mut attributes = &body[MESSAGE_BYTES..];
    while attributes.len() >= 4 {
        let len = u16_at(attributes, 0)? as usize;
        let value = attributes.get(4..len)?;
        match u16_at(attributes, 2)? {
            INET_DIAG_INFO => connection.take_info(value),
            INET_DIAG_CONG => {
                let name = value.split(|byte| *byte == 0).next().unwrap_or_default();
                connection.congestion = String::from_utf8_lossy(name).into_owned();
            }
            _ => {}
        }
        attributes = attributes.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
    Some(connection)
}

impl Connection {
    /// Reads `struct tcp_info` (include/uapi/linux/tcp.h), which only ever grows at its end: a
    /// kernel that knows less leaves the rest 0.
    fn take_info(&mut self, info: &[u8]) {
        self.rtt_us = u32_at(info, 68).unwrap_or(0);
        self.cwnd = u32_at(info, 80).unwrap_or(0);
        self.retransmits = u32_at(info, 100).unwrap_or(0).into();
        self.acked_bytes = u64_at(info, 120).unwrap_or(0);
        self.received_bytes = u64_at(info, 128).unwrap_or(0);
        self.min_rtt_us = u32_at(info, 148).unwrap_or(0);
        self.delivery_bytes_per_s = u64_at(info, 160).unwrap_or(0);
        self.busy_us = u64_at(info, 168).unwrap_or(0);
        self.rwnd_limited_us = u64_at(info, 176).unwrap_or(0);
        self.sndbuf_limited_us = u64_at(info, 184).unwrap_or(0);
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

/// How many connections a datagram holds, as far as it can be understood.
pub(crate) fn connections_in(datagram: &[u8]) -> usize {
    let mut count = 0;
    let sequence = u32_at(datagram, 8).unwrap_or(0);
    // Whether it is refused in the end does not matter here.
    let _ = parse(datagram, sequence, &mut |_| count += 1);
    count
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    use super::*;

    fn find(local: SocketAddr, remote: SocketAddr) -> Option<Connection> {
        let mut found = None;
        let mut diag = SockDiag::open().unwrap();
        diag.connections(|connection| {
            if (connection.local, connection.remote) == (local, remote) {
                found = Some(connection);
            }
        })
        .unwrap();
        found
    }

    #[test]
    fn a_connection_is_found_with_what_it_moved_and_what_was_not_read() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(address) else {
                assert!(address.starts_with('['), "only IPv6 may be missing here");
                continue;
            };
            let mut a = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (mut b, _) = listener.accept().unwrap();
            for _ in 0..5 {
                a.write_all(&[7; 10_000]).unwrap();
            }
            b.read_exact(&mut [0; 10_000]).unwrap();
            let (here, there) = (a.local_addr().unwrap(), a.peer_addr().unwrap());
            let arrived = || find(there, here).filter(|received| received.received_bytes == 50_000);
            let mut tries = (0..200).map(|_| {
                std::thread::sleep(Duration::from_millis(10));
                arrived()
            });
            let received = tries.find_map(|received| received).expect("it arrives within 2 s");
            let sent = find(here, there).unwrap();
            assert_eq!(received.unread_bytes, 40_000);
            assert!(sent.rtt_us > 0 && sent.cwnd > 0 && sent.acked_bytes > 0, "{sent:?}");
            assert!(!sent.congestion.is_empty());
            assert_ne!(sent.inode, 0);
        }
    }

    #[test]
    fn a_cut_off_answer_is_an_error_and_a_foreign_one_is_skipped() {
        let mut message = request(AF_INET, 9);
        let mut nothing = |_| panic!("there is no connection in it");
        // A request has the header of an answer, and too short a body.
        assert_eq!(
            parse(&message, 9, &mut nothing),
            Err(Refusal::Malformed("connection is cut off"))
        );
        assert_eq!(parse(&message, 8, &mut nothing), Ok(false));
        assert!(parse(&message[..10], 9, &mut nothing).is_err());
        message[0] = 8;
        assert!(parse(&message, 9, &mut nothing).is_err(), "a length below the header's");
    }
}
