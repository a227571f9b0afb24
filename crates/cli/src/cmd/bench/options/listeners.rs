//! Addresses of this host with a listener on a port, for a client that names `localhost`.

use std::collections::HashSet;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Addresses of a listener on this host.
pub(super) struct Elsewhere {
    pub(super) addresses: Vec<SocketAddr>,
    /// Whether one program is known to listen on all the addresses.
    pub(super) is_one_program: bool,
}

/// Returns the addresses with a listener on the port, if all of `addresses` are loopback addresses and no listener
/// covers the loopback.
pub(super) fn elsewhere(addresses: &[SocketAddr]) -> Option<Elsewhere> {
    let table = |path| fs::read_to_string(path).unwrap_or_default();
    let listeners = found(addresses, &table("/proc/net/tcp"), &table("/proc/net/tcp6"))?;
    let (addresses, inodes): (Vec<_>, Vec<_>) = listeners.into_iter().unzip();
    Some(Elsewhere { addresses, is_one_program: is_one_program(&inodes) })
}

/// Whether one process has all of these sockets. Sockets of other users' processes can't be attributed. A single socket
/// always counts.
fn is_one_program(inodes: &[u64]) -> bool {
    let processes = || fs::read_dir("/proc").into_iter().flatten().flatten();
    let has_all = |folder: fs::DirEntry| {
        let files = fs::read_dir(folder.path().join("fd")).into_iter().flatten().flatten();
        let links = files.filter_map(|file| fs::read_link(file.path()).ok());
        let sockets: HashSet<u64> = links.filter_map(|link| socket(link.to_str()?)).collect();
        inodes.iter().all(|inode| sockets.contains(inode))
    };
    inodes.len() == 1 || processes().any(has_all)
}

/// Reads `socket:[4711]`.
fn socket(link: &str) -> Option<u64> {
    link.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

fn found(addresses: &[SocketAddr], tcp: &str, tcp6: &str) -> Option<Vec<(SocketAddr, u64)>> {
    let port = addresses.first()?.port();
    let is_loopback = addresses.iter().all(|one| one.ip().is_loopback());
    let lines = tcp.lines().chain(tcp6.lines());
    let listeners: Vec<(SocketAddr, u64)> =
        lines.filter_map(listener).filter(|(one, _)| one.port() == port).collect();
    let answers =
        |(one, _): &(SocketAddr, u64)| one.ip().is_unspecified() || one.ip().is_loopback();
    let is_elsewhere = is_loopback && !listeners.is_empty() && !listeners.iter().any(answers);
    is_elsewhere.then_some(listeners)
}

/// Reads the address and the inode in a line such as `0: 0100007F:1F90 00000000:0000 0A …`, if its socket listens.
fn listener(line: &str) -> Option<(SocketAddr, u64)> {
    let mut fields = line.split_whitespace();
    let (address, port) = fields.nth(1)?.split_once(':')?;
    let state = fields.nth(1)?;
    // Each word has the byte order of this machine.
    let word = |at: usize| u32::from_str_radix(address.get(at * 8..at * 8 + 8)?, 16).ok();
    let ip = match address.len() {
        8 => IpAddr::from(Ipv4Addr::from(word(0)?.to_ne_bytes())),
        32 => {
            let mut bytes = [0; 16];
            for (at, part) in bytes.chunks_exact_mut(4).enumerate() {
                part.copy_from_slice(&word(at)?.to_ne_bytes());
            }
            IpAddr::from(Ipv6Addr::from(bytes)).to_canonical()
        }
        _ => return None,
    };
    let port = u16::from_str_radix(port, 16).ok()?;
    let inode = fields.nth(INODE_AFTER_STATE)?.parse().ok()?;
    (state == LISTENS).then_some((SocketAddr::new(ip, port), inode))
}

/// State of a listening socket in the kernel's tables.
const LISTENS: &str = "0A";
/// Number of fields between the state and the inode: queues, timer, retransmits, user, timeout.
const INODE_AFTER_STATE: usize = 5;

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    const HEAD: &str =
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt\n";

    /// Returns a table with these addresses and ports in hexadecimal, in the format of a kernel with this machine's
    /// byte order.
    fn table(rows: &[(&str, &str)]) -> String {
        let row = |(local, state): &(&str, &str)| {
            format!(
                "   0: {local} 00000000:0000 {state} 00000000:00000000 00:00000000 00000000 0 0 17\n"
            )
        };
        HEAD.to_owned() + &rows.iter().map(row).collect::<String>()
    }

    /// Returns an address with port 7000 in the kernel's format.
    fn hex(ip: [u8; 4]) -> String {
        format!("{:08X}:1B58", u32::from_ne_bytes(ip))
    }

    #[test]
    fn a_listener_on_another_address_is_found_only_if_none_is_on_the_loopback() {
        let local: Vec<SocketAddr> = vec!["127.0.0.1:7000".parse().unwrap()];
        let [lan, loopback, any] = [[192, 0, 2, 2], [127, 0, 0, 1], [0; 4]].map(hex);
        let there = Some(vec![("192.0.2.2:7000".parse().unwrap(), 17)]);
        assert_eq!(found(&local, &table(&[(&lan, "0A")]), ""), there);
        assert_eq!(found(&local, &table(&[(&lan, "01")]), ""), None, "it is connected");
        for other in [&loopback, &any] {
            assert_eq!(found(&local, &table(&[(&lan, "0A"), (other, "0A")]), ""), None);
        }
        let other_port: Vec<SocketAddr> = vec!["127.0.0.1:7001".parse().unwrap()];
        assert_eq!(found(&other_port, &table(&[(&lan, "0A")]), ""), None);
        let remote: Vec<SocketAddr> = vec!["192.0.2.9:7000".parse().unwrap()];
        assert_eq!(found(&remote, &table(&[(&lan, "0A")]), ""), None, "not this host's loopback");
        assert_eq!(found(&[], "", ""), None);
    }

    #[test]
    fn addresses_of_ipv6_are_read_and_garbage_is_not() {
        let ip: Ipv6Addr = "fd00::1".parse().unwrap();
        let words: String = ip
            .octets()
            .chunks_exact(4)
            .map(|part| format!("{:08X}", u32::from_ne_bytes(part.try_into().unwrap())))
            .collect();
        let line =
            format!("0: {words}:1B58 00000000000000000000000000000000:0000 0A 0:0 0:0 0 0 0 17");
        assert_eq!(listener(&line), Some(("[fd00::1]:7000".parse().unwrap(), 17)));
        for garbage in ["", "0:", "0: 00:1B58 x 0A", "0: 0100007F 0:0 0A", "0: ZZZZZZZZ:1B58 x 0A"]
        {
            assert_eq!(listener(garbage), None, "{garbage}");
        }
    }

    #[test]
    fn sockets_of_one_process_are_one_program() {
        let bind = || TcpListener::bind("127.0.0.1:0").unwrap();
        let listeners = [bind(), bind()];
        let inodes = [0, 1].map(|at| rustix::fs::fstat(&listeners[at]).unwrap().st_ino);
        assert!(is_one_program(&inodes));
        assert!(is_one_program(&[u64::MAX]), "its process need not be known");
        assert!(!is_one_program(&[inodes[0], u64::MAX]));
    }
}
