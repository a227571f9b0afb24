//! TCP sockets: options that the standard library lacks, and the kernel's counters of a connection.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};

/// Options of a flow's socket. Sizes of 0 leave the kernel's autotuning on.
#[derive(Clone, Debug, Default)]
pub struct FlowOptions {
    /// Congestion control by its kernel name. `None` for the system's default.
    pub congestion: Option<String>,
    /// `SO_SNDBUF` in bytes.
    pub send_buffer_bytes: usize,
    /// `SO_RCVBUF` in bytes.
    pub receive_buffer_bytes: usize,
    /// `TCP_USER_TIMEOUT`: how long sent bytes may stay unacknowledged.
    pub user_timeout: Option<Duration>,
}

/// Counters of a connection in the kernel (`TCP_INFO`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpInfo {
    /// Segments retransmitted since the start.
    pub retransmits: u64,
    /// Bytes that the other kernel has acknowledged.
    pub acked_bytes: u64,
    /// Bytes sent, without retransmissions; 0 before Linux 4.19.
    pub sent_bytes: u64,
    /// Bytes received in order.
    pub received_bytes: u64,
    /// Smoothed round-trip time in microseconds.
    pub rtt_us: u32,
    /// Congestion window in segments.
    pub congestion_window: u32,
    /// Bytes in the send queue that were never sent.
    pub notsent_bytes: u32,
    /// Time with anything to send, in microseconds.
    pub busy_us: u64,
    /// Time limited by the receiver's window, in microseconds.
    pub receive_window_limited_us: u64,
    /// Time limited by a full send buffer, in microseconds.
    pub send_buffer_limited_us: u64,
    /// Payload bytes of a full segment.
    pub segment_bytes: u32,
    /// Segments sent and not acknowledged.
    pub unacked: u32,
    /// Consecutive retransmissions of the oldest of them.
    pub timeouts: u8,
    /// Consecutive unsuccessful probes of the receiver's window.
    pub window_probes: u8,
    /// Room in the receiver's window in bytes; `None` before Linux 5.4.
    pub send_window_bytes: Option<u32>,
    /// Last delivery rate estimated by the kernel, in bytes per second.
    pub delivery_bytes_per_second: u64,
}

impl TcpInfo {
    /// Likely cause of a stall, as far as the counters show one.
    pub fn hindrance(&self) -> Option<String> {
        /// Number of full segments whose bytes prove that full segments have passed.
        const FULL_SEGMENTS: u64 = 4;
        let has_room = self.send_window_bytes.is_none_or(|room| room >= self.segment_bytes);
        // Probes with nothing to send only check that the other end is alive.
        let waits_for_room = self.window_probes > 0 && self.notsent_bytes > 0;
        if waits_for_room && !has_room {
            return Some(
                "the other end does not read: its receive window is full (is its process stopped?)"
                    .to_owned(),
            );
        }
        // A segment dropped by the interface itself is not in flight, and the kernel probes.
        if !waits_for_room && (self.timeouts == 0 || self.unacked == 0) {
            return None;
        }
        let (bytes, times) = (self.segment_bytes, self.timeouts.max(self.window_probes));
        let full = u64::from(bytes);
        let waiting_bytes =
            u64::from(self.notsent_bytes).max(self.sent_bytes.saturating_sub(self.acked_bytes));
        // The first large segments also stall on a cut or congested link, and if packets reach another NIC: the
        // counters are the same.
        let only_small_ones_pass = self.acked_bytes < FULL_SEGMENTS * full && waiting_bytes >= full;
        Some(if !only_small_ones_pass {
            let times =
                if times == 1 { "once".to_owned() } else { format!("{times} times in a row") };
            format!(
                "sent again {times} without an answer: the link loses packets or is cut, or the \
                 address has moved to another NIC"
            )
        } else {
            format!(
                "segments of {bytes} bytes are not acknowledged, smaller ones were: a smaller MTU on the way than \
                 that of this interface, packets that reach another NIC, or a link that loses most of them"
            )
        })
    }
}

/// Creates a non-blocking listening socket on `address`. Port 0 takes a free one.
pub fn listen(address: SocketAddr) -> io::Result<Socket> {
    let socket = stream_socket(address)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(1024)?;
    Ok(socket)
}

/// Starts to connect from `source` (any port) to `target`, without blocking. The socket becomes writable when it is
/// connected or has failed; [`Socket::take_error`] tells them apart.
pub fn start_connect(
    source: IpAddr,
    device: Option<&str>,
    target: SocketAddr,
    options: &FlowOptions,
) -> io::Result<Socket> {
    let socket = stream_socket(target)?;
    // Buffers must be set before the handshake, which fixes the window scale.
    apply(&socket, options)?;
    bind_device(&socket, device)?;
    if source.is_ipv4() == target.is_ipv4() {
        // The kernel chooses the port at connect time, by the whole 4-tuple: there are far more 4-tuples than ports.
        set_bind_address_no_port(&socket)?;
        socket.bind(&SocketAddr::new(source, 0).into())?;
    }
    match socket.connect(&target.into()) {
        Ok(()) => Ok(socket),
        Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => Ok(socket),
        Err(error) => Err(error),
    }
}

/// True if the last packet of an accepted connection's handshake arrived on the interface.
pub fn arrived_on(socket: &Socket, interface: &str) -> io::Result<bool> {
    let (level, info, options, kind, at) = match socket.local_addr()?.is_ipv4() {
        true => (libc::IPPROTO_IP, libc::IP_PKTINFO, libc::IP_PKTOPTIONS, libc::IP_PKTINFO, 0),
        false => {
            let options = libc::IPV6_2292PKTOPTIONS;
            (libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, options, libc::IPV6_PKTINFO, 16)
        }
    };
    set_int(socket, level, info, 1)?;
    let mut raw = [0u8; 256];
    let mut len = raw.len() as libc::socklen_t;
    let fd = socket.as_raw_fd();
    // SAFETY: `raw` has room for `len` bytes, and the kernel writes at most that many.
    let result =
        unsafe { libc::getsockopt(fd, level, options, raw.as_mut_ptr().cast(), &raw mut len) };
    let result = if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) };
    set_int(socket, level, info, 0)?;
    result?;
    // One control message: length, level and type, then an address and an index (`struct in_pktinfo` begins with the
    // index, `struct in6_pktinfo` ends with it).
    let head = size_of::<libc::cmsghdr>();
    let i32_at = |at: usize| i32::from_ne_bytes([raw[at], raw[at + 1], raw[at + 2], raw[at + 3]]);
    if (len as usize) < head + at + 4 || (i32_at(head - 8), i32_at(head - 4)) != (level, kind) {
        return Err(io::ErrorKind::Unsupported.into());
    }
    let name = std::ffi::CString::new(interface)?;
    // SAFETY: `name` is a string that ends with a zero byte.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    Ok(index != 0 && i64::from(index) == i64::from(i32_at(head + at)))
}

/// Binds a connection to a device: it sends and receives only there.
pub fn bind_to_device(socket: &Socket, device: &str) -> io::Result<()> {
    bind_device(socket, Some(device))
}

/// Sets a flow's options on a connected or connecting socket.
pub fn apply(socket: &impl AsFd, options: &FlowOptions) -> io::Result<()> {
    let socket = SockRef::from(socket);
    socket.set_tcp_nodelay(true)?;
    if let Some(name) = &options.congestion {
        socket.set_tcp_congestion(name.as_bytes())?;
    }
    if options.send_buffer_bytes > 0 {
        socket.set_send_buffer_size(options.send_buffer_bytes)?;
    }
    if options.receive_buffer_bytes > 0 {
        socket.set_recv_buffer_size(options.receive_buffer_bytes)?;
    }
    if let Some(timeout) = options.user_timeout {
        socket.set_tcp_user_timeout(Some(timeout))?;
        // Keepalive detects a dead idle connection within the same time.
        let every = (timeout / 4).max(Duration::from_secs(1));
        let keepalive = TcpKeepalive::new().with_time(every).with_interval(every).with_retries(3);
        socket.set_tcp_keepalive(&keepalive)?;
    }
    Ok(())
}

/// Tries whether sockets of this process may use a congestion control.
pub fn may_use(congestion: &str) -> bool {
    let families = [Domain::IPV4, Domain::IPV6];
    let socket =
        families.into_iter().find_map(|f| Socket::new(f, Type::STREAM, Some(Protocol::TCP)).ok());
    socket.is_some_and(|socket| socket.set_tcp_congestion(congestion.as_bytes()).is_ok())
}

/// Congestion control of a socket.
pub fn congestion(socket: &impl AsFd) -> io::Result<String> {
    let name = SockRef::from(socket).tcp_congestion()?;
    Ok(String::from_utf8_lossy(&name).trim_end_matches('\0').to_owned())
}

/// Makes closing the socket discard unsent data, so that none of it arrives later.
pub fn reset_on_close(socket: &impl AsFd) -> io::Result<()> {
    SockRef::from(socket).set_linger(Some(Duration::ZERO))
}

/// True if received bytes are waiting to be read.
pub fn has_unread(socket: &impl AsFd) -> io::Result<bool> {
    Ok(rustix::io::ioctl_fionread(socket)? > 0)
}

/// Reads the kernel's counters of a connection.
pub fn info(socket: &impl AsFd) -> io::Result<TcpInfo> {
    // `struct tcp_info` (include/uapi/linux/tcp.h) only ever grows at its end, so older kernels fill less of it. The
    // rest stays 0.
    let mut raw = [0u8; 256];
    let mut len = raw.len() as libc::socklen_t;
    // SAFETY: `raw` has room for `len` bytes, and the kernel writes at most that many.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            raw.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    let u32_at = |at: usize| u32::from_ne_bytes([raw[at], raw[at + 1], raw[at + 2], raw[at + 3]]);
    let u64_at = |at: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&raw[at..at + 8]);
        u64::from_ne_bytes(bytes)
    };
    Ok(TcpInfo {
        timeouts: raw[2],
        window_probes: raw[3],
        send_window_bytes: (len >= 232).then(|| u32_at(228)),
        segment_bytes: u32_at(16),
        unacked: u32_at(24),
        rtt_us: u32_at(68),
        congestion_window: u32_at(80),
        retransmits: u32_at(100).into(),
        acked_bytes: u64_at(120),
        received_bytes: u64_at(128),
        notsent_bytes: u32_at(144),
        sent_bytes: u64_at(200).saturating_sub(u64_at(208)),
        delivery_bytes_per_second: u64_at(160),
        busy_us: u64_at(168),
        receive_window_limited_us: u64_at(176),
        send_buffer_limited_us: u64_at(184),
    })
}

fn stream_socket(address: SocketAddr) -> io::Result<Socket> {
    let kind = Type::STREAM.nonblocking().cloexec();
    Socket::new(Domain::for_address(address), kind, Some(Protocol::TCP))
}

fn bind_device(socket: &Socket, device: Option<&str>) -> io::Result<()> {
    match device {
        Some(name) => socket.bind_device(Some(name.as_bytes())),
        None => Ok(()),
    }
}

fn set_bind_address_no_port(socket: &Socket) -> io::Result<()> {
    set_int(socket, libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, 1)
}

fn set_int(socket: &Socket, level: i32, option: i32, value: i32) -> io::Result<()> {
    // SAFETY: the option takes an int, whose address and size are given.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            (&raw const value).cast(),
            size_of_val(&value) as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn the_kernels_counters_are_read_at_their_places() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut a = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut b, _) = listener.accept().unwrap();
        a.write_all(&[7; 100_000]).unwrap();
        b.read_exact(&mut vec![0; 100_000]).unwrap();
        b.write_all(b"x").unwrap();
        a.peek(&mut [0]).unwrap();
        assert_eq!((has_unread(&a).unwrap(), has_unread(&b).unwrap()), (true, false));
        a.read_exact(&mut [0]).unwrap();
        assert!(!has_unread(&a).unwrap());
        let (sent, received) = (info(&a).unwrap(), info(&b).unwrap());
        // The SYN counts as a byte in bytes_acked.
        assert_eq!((sent.acked_bytes, received.received_bytes), (100_001, 100_000));
        assert!(sent.congestion_window >= 1 && sent.rtt_us > 0, "{sent:?}");
        assert_eq!(sent.notsent_bytes, 0);
    }

    #[test]
    fn the_interface_on_which_a_connection_arrived_is_known() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(address) else { continue };
            let _a = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let b = Socket::from(listener.accept().unwrap().0);
            assert!(arrived_on(&b, "lo").unwrap(), "{address}");
            assert!(!arrived_on(&b, "none-such").unwrap(), "{address}");
        }
    }

    #[test]
    fn a_stalled_connection_is_explained_by_its_counters() {
        let stalled =
            TcpInfo { segment_bytes: 8948, unacked: 10, timeouts: 3, ..TcpInfo::default() };
        let mtu = TcpInfo { acked_bytes: 900, sent_bytes: 90_000, ..stalled };
        let text = mtu.hindrance().unwrap();
        assert!(text.starts_with("segments of 8948 bytes are not acknowledged"), "{text}");
        let causes = ["a smaller MTU", "another NIC", "loses most of them"];
        assert!(causes.iter().all(|cause| text.contains(cause)), "{text}");
        // Large segments have passed, so the MTU is not among the causes.
        let passed = TcpInfo { acked_bytes: 4 * 8948, ..mtu };
        assert!(passed.hindrance().unwrap().starts_with("sent again 3 times"), "{passed:?}");
        let cut = TcpInfo { acked_bytes: 1 << 30, ..stalled };
        assert!(cut.hindrance().unwrap().starts_with("sent again 3 times"), "{cut:?}");
        let short = TcpInfo { acked_bytes: 900, sent_bytes: 1000, ..stalled };
        assert!(short.hindrance().unwrap().starts_with("sent again 3 times"), "{short:?}");
        let full = TcpInfo {
            window_probes: 2,
            notsent_bytes: 9000,
            segment_bytes: 1448,
            send_window_bytes: Some(0),
            ..TcpInfo::default()
        };
        assert!(full.hindrance().unwrap().contains("does not read"), "{full:?}");
        let dropped = TcpInfo { send_window_bytes: Some(65536), acked_bytes: 278, ..full };
        assert!(dropped.hindrance().unwrap().contains("segments of 1448 bytes"), "{dropped:?}");
        for quiet in [TcpInfo::default(), TcpInfo { timeouts: 0, ..mtu }] {
            assert_eq!(quiet.hindrance(), None);
        }
    }

    #[test]
    fn a_flow_gets_the_congestion_control_asked_for() {
        let listener = listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let target = listener.local_addr().unwrap().as_socket().unwrap();
        let options = FlowOptions { congestion: Some("reno".to_owned()), ..FlowOptions::default() };
        let source = "127.0.0.1".parse().unwrap();
        let socket = start_connect(source, None, target, &options).unwrap();
        assert_eq!(congestion(&socket).unwrap(), "reno");
        let options =
            FlowOptions { congestion: Some("no-such".to_owned()), ..FlowOptions::default() };
        assert!(start_connect(source, None, target, &options).is_err());
    }
}
