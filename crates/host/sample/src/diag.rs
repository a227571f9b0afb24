//! The kernel's data about all TCP connections of a network namespace (`NETLINK_SOCK_DIAG`).

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use polyrail_netlink::{
    Error, Message, Protocol, Socket, attributes, replies, text, u32_at, u64_at,
};
use rustix::net::sockopt;

/// A connection as the kernel describes it. Counts and times of activity are totals since it began;
/// `_us` is microseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connection {
    /// The socket's number in the process's table of open files.
    pub inode: u32,
    /// The kernel's id, which distinguishes it from any later connection of the same addresses.
    pub cookie: u64,
    /// Local address and port.
    pub local: SocketAddr,
    /// Remote address and port.
    pub remote: SocketAddr,
    /// Bytes received and not yet read by the process.
    pub unread_bytes: u32,
    /// Bytes written by the process and not yet acknowledged.
    pub unacked_bytes: u32,
    pub congestion: String,
    /// Smoothed round-trip time.
    pub rtt_us: u32,
    /// Shortest round-trip time.
    pub min_rtt_us: u32,
    /// Congestion window in segments.
    pub cwnd: u32,
    pub retransmits: u64,
    /// Bytes that the other kernel acknowledged.
    pub acked_bytes: u64,
    /// Bytes received in order.
    pub received_bytes: u64,
    /// The kernel's last estimate of the rate.
    pub delivery_bytes_per_s: u64,
    /// Time with data to send.
    pub busy_us: u64,
    /// Time held up by the receiver's window.
    pub rwnd_limited_us: u64,
    /// Time held up by the send buffer.
    pub sndbuf_limited_us: u64,
}

/// A socket for requests about connections. The answers concern the namespace that the opening
/// thread was in. One thread at a time.
#[derive(Debug)]
pub struct SockDiag {
    socket: Socket,
}

impl SockDiag {
    /// Opens the socket; needs no privileges.
    pub fn open() -> io::Result<Self> {
        let socket = Socket::open(Protocol::SockDiag)?;
        // The kernel answers at once; a lost answer must not block the sampler.
        sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(ANSWER_MAX))?;
        Ok(Self { socket })
    }

    /// Calls `each` with every TCP connection that is not only listening.
    pub fn connections(&mut self, mut each: impl FnMut(Connection)) -> io::Result<()> {
        for family in [AF_INET, AF_INET6] {
            let answered = self.socket.dump(request(family), |reply| {
                if reply.kind == SOCK_DIAG_BY_FAMILY {
                    each(connection(reply.body).ok_or(CUT_OFF)?);
                }
                Ok(())
            });
            // Connections come and go during the dump, so an answer that is marked as inconsistent
            // is accepted.
            answered.map_err(|error| match error {
                Error::Refused { source, .. } => source,
                malformed @ Error::Malformed(_) => {
                    io::Error::new(io::ErrorKind::InvalidData, malformed)
                }
            })?;
        }
        Ok(())
    }
}

const ANSWER_MAX: Duration = Duration::from_millis(500);

const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
const IPPROTO_TCP: u8 = 6;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const REQUEST_BYTES: usize = 56;
const MESSAGE_BYTES: usize = 72;
const INET_DIAG_INFO: u16 = 2;
const INET_DIAG_CONG: u16 = 4;
/// All states in which data may still move: established and the closing states.
const STATES: u32 = 1 << 1 | 1 << 4 | 1 << 5 | 1 << 8 | 1 << 9 | 1 << 11;
const CUT_OFF: Error = Error::Malformed("a connection that is cut off");

/// `inet_diag_req_v2` (include/uapi/linux/inet_diag.h), for all sockets of a family.
fn request(family: u8) -> Message {
    let mut header = [0; REQUEST_BYTES];
    let extensions = 1 << (INET_DIAG_INFO - 1) | 1 << (INET_DIAG_CONG - 1);
    header[..4].copy_from_slice(&[family, IPPROTO_TCP, extensions, 0]);
    header[4..8].copy_from_slice(&STATES.to_ne_bytes());
    Message::new(SOCK_DIAG_BY_FAMILY, &header)
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
        // Show an IPv4 connection of an IPv6 socket with its IPv4 address.
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
    for (kind, value) in attributes(&body[MESSAGE_BYTES..]) {
        match kind {
            INET_DIAG_INFO => connection.take_info(value),
            INET_DIAG_CONG => connection.congestion = text(value).to_owned(),
            _ => {}
        }
    }
    Some(connection)
}

impl Connection {
    /// Reads `struct tcp_info` (include/uapi/linux/tcp.h), which only ever grows at its end: fields
    /// that an older kernel does not have stay 0.
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

/// Returns the number of connections in a datagram that can be parsed.
pub(crate) fn connections_in(datagram: &[u8]) -> usize {
    replies(datagram).flatten().filter_map(|reply| connection(reply.body)).count()
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
                // Poll: the kernel does not announce arriving bytes.
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
    fn a_cut_off_connection_is_none_and_what_a_kernel_leaves_out_is_0() {
        let mut body = [0; MESSAGE_BYTES];
        body[0] = AF_INET;
        let mut message = Message::new(SOCK_DIAG_BY_FAMILY, &body);
        message.attribute(INET_DIAG_INFO, &[1; 84]);
        message.attribute(INET_DIAG_CONG, b"cubic\0");
        let datagram = message.finish(0, 1);
        assert_eq!(connections_in(&datagram), 1);
        assert_eq!(connections_in(&datagram[..datagram.len() - 1]), 0);
        let reply = replies(&datagram).next().unwrap().unwrap();
        let found = connection(reply.body).unwrap();
        assert_eq!((found.cwnd, found.acked_bytes), (0x0101_0101, 0));
        assert_eq!(found.congestion, "cubic");
        assert_eq!(connection(&body[1..]), None);
    }
}
