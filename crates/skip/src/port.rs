//! Ports for programs that tests start.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};

/// A port of 127.0.0.1 for a program that can't take any and tell which one it has.
///
/// A port that was merely free a moment ago may be given to somebody else in between. The connection in here keeps
/// it: as long as this lives, the kernel gives it only to who asks for this very port and sets `SO_REUSEADDR`, as
/// servers do. Until one listens there, whoever connects is refused.
#[derive(Debug)]
pub struct HeldPort {
    address: SocketAddr,
    _connection: [TcpStream; 2],
}

impl HeldPort {
    /// # Panics
    /// If loopback takes no connection.
    #[expect(clippy::new_without_default, reason = "each is another one")]
    pub fn new() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port is free");
        let address = listener.local_addr().expect("it has an address");
        let near = TcpStream::connect(address).expect("it listens");
        let (far, _) = listener.accept().expect("it was connected");
        Self { address, _connection: [near, far] }
    }

    /// Where it is.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its number.
    pub fn number(&self) -> u16 {
        self.address.port()
    }
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;

    use super::*;

    #[test]
    fn who_asks_for_it_gets_it_again_and_again_and_until_then_nobody_listens() {
        let port = HeldPort::new();
        for _ in 0..3 {
            let refused = TcpStream::connect(port.address()).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
            let listener = TcpListener::bind(port.address()).unwrap();
            let connected = TcpStream::connect(port.address()).unwrap();
            let (taken, _) = listener.accept().unwrap();
            // This end closes first, and keeps the address for a while.
            drop(taken);
            drop(connected);
        }
    }

    /// All ports of a namespace would take long; of these it is one, if any.
    #[test]
    fn who_asks_for_any_port_gets_another() {
        let port = HeldPort::new();
        let others: Vec<TcpListener> =
            (0..500).map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap()).collect();
        assert!(others.iter().all(|other| other.local_addr().unwrap() != port.address()));
    }
}
