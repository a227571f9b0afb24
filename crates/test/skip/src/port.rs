//! Ports for programs that tests start.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};

use rustix::net::{Shutdown, shutdown};

/// A port of 127.0.0.1 for a program that can't take any and tell which one it has.
///
/// A port that was merely free a moment ago may be given to somebody else in between. The connection in here keeps
/// it: as long as this lives, the kernel gives it only to who asks for this very port and sets `SO_REUSEADDR`, as
/// servers do. Until one listens there, whoever connects is refused.
#[derive(Debug)]
pub struct HeldPort {
    address: SocketAddr,
    _connections: Vec<[TcpStream; 2]>,
}

/// A port that is free on one address is seldom taken on another.
const TRIES: usize = 100;

impl HeldPort {
    /// # Panics
    /// If loopback takes no connection.
    #[expect(clippy::new_without_default, reason = "each is another one")]
    pub fn new() -> Self {
        Self::on(&[Ipv4Addr::LOCALHOST])
    }

    /// A port that is the same on each of these addresses of loopback.
    ///
    /// # Panics
    /// If there is none, or no address.
    pub fn on(addresses: &[Ipv4Addr]) -> Self {
        let mut tries = (0..TRIES).filter_map(|_| Self::try_on(addresses));
        tries.next().expect("a port is free on all addresses")
    }

    fn try_on(addresses: &[Ipv4Addr]) -> Option<Self> {
        let (first, others) = addresses.split_first()?;
        let listener = TcpListener::bind((*first, 0)).ok()?;
        let address = listener.local_addr().ok()?;
        let mut connections = vec![connected(&listener)?];
        for other in others {
            connections.push(connected(&TcpListener::bind((*other, address.port())).ok()?)?);
        }
        Some(Self { address, _connections: connections })
    }

    /// Where it is, on the first address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn number(&self) -> u16 {
        self.address.port()
    }
}

fn connected(listener: &TcpListener) -> Option<[TcpStream; 2]> {
    let near = TcpStream::connect(listener.local_addr().ok()?).ok()?;
    let (far, _) = listener.accept().ok()?;
    // A process that another thread is starting has a copy of the listener for a moment, on which it would go on to listen.
    shutdown(listener, Shutdown::Read).ok()?;
    Some([near, far])
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

    #[test]
    fn a_copy_of_the_listener_does_not_listen() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let (address, copy) = (listener.local_addr().unwrap(), listener.try_clone().unwrap());
        let held = connected(&listener).unwrap();
        drop(listener);
        TcpListener::bind(address).unwrap();
        drop((copy, held));
    }

    /// All ports of a namespace would take long; of these it is one, if any.
    #[test]
    fn who_asks_for_any_port_gets_another() {
        let addresses = [Ipv4Addr::LOCALHOST, Ipv4Addr::new(127, 0, 0, 4)];
        let port = HeldPort::on(&addresses);
        for address in addresses {
            let others: Vec<TcpListener> =
                (0..500).map(|_| TcpListener::bind((address, 0)).unwrap()).collect();
            let number = |other: &TcpListener| other.local_addr().unwrap().port();
            assert!(others.iter().all(|other| number(other) != port.number()));
        }
    }
}
