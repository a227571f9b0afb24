//! Hardware addresses of a peer in a network where this host has several NICs.
//!
//! A kernel that asks by ARP for a peer's address sends its own address and the hardware address of the asking NIC, and
//! the peer notes both. The answer to a connection from the peer may leave by another NIC than the rail's. If that NIC
//! has to ask first, the peer notes the wrong hardware address for the rail, and the rail's connections that are bound
//! to its device stall. So each rail asks for all addresses of the peer before anything else does.

use std::io;
use std::net::{IpAddr, SocketAddr};

use polyrail_proto::rails::crowded;
use socket2::{Domain, Protocol, Socket, Type};

use super::Control;
use crate::control::build::device;
use crate::engine::peer::PeerShared;

impl Control {
    /// Makes the kernel ask through each rail for the peer's addresses in its network, if another rail is in that
    /// network, too.
    pub(super) fn ask_for_neighbours(&self, peer: &PeerShared) {
        for (rail, target) in
            crowded(&self.engine.rails, peer.card.rails.iter().map(|rail| rail.address))
        {
            // Connections by the device fail in the same way, and are then made by the address.
            let _ = send_nothing(rail.address, device(rail), target);
        }
    }
}

/// Sends a datagram without content, whose answer, if any, is discarded.
fn send_nothing(source: IpAddr, device: Option<&str>, target: SocketAddr) -> io::Result<()> {
    let kind = Type::DGRAM.nonblocking().cloexec();
    let socket = Socket::new(Domain::for_address(target), kind, Some(Protocol::UDP))?;
    socket.bind_device(device.map(str::as_bytes))?;
    socket.bind(&SocketAddr::new(source, 0).into())?;
    socket.send_to(&[], &target.into()).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_datagram_without_content_leaves() {
        send_nothing("127.0.0.1".parse().unwrap(), None, "127.0.0.1:9".parse().unwrap()).unwrap();
    }
}
