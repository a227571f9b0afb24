//! Ports for programs that tests start.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};

use rustix::net::{Shutdown, shutdown};

/// A port of 127.0.0.1 for a program that can't choose a free one and report it.
///
/// A port that was free a moment ago may be given to another process in between. The connection in this value keeps it:
/// while it lives, the kernel gives the port only to sockets that request this very port and set `SO_REUSEADDR`, as
/// servers do. Until one listens there, connections are refused.
#[derive(Debug)]
pub struct HeldPort {
    address: SocketAddr,
    _connections: Vec<[TcpStream; 2]>,
}

/// A port that is free on one address is seldom taken on another.
const TRIES: usize = 100;

impl HeldPort {
    /// Holds a free port.
    ///
    /// # Panics
    /// If loopback accepts no connection.
    #[expect(clippy::new_without_default, reason = "each is another one")]
    pub fn new() -> Self {
        Self::on(&[Ipv4Addr::LOCALHOST])
    }

    /// Holds a port that is the same on each of these loopback addresses.
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

    /// Address of the port. With several addresses, the first.
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
    // A process that another thread is starting has a copy of the listener for a moment, which would continue to
    // listen.
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

    /// Checking all ports of a namespace would take long; it would be one of these, if any.
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
