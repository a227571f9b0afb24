//! Hardware addresses of a peer in a network where this host has several NICs.
//!
//! A kernel that asks by ARP for a peer's address tells its own address and the hardware address of the NIC that asks,
//! and the peer notes both. The answer to a connection from the peer may leave by another NIC than the rail's. If that
//! NIC has to ask first, the peer notes the wrong hardware address for the rail, and the rail's connections that are
//! bound to its device stall. So each rail asks for all addresses of the peer before anything else does.

use std::io;
use std::net::{IpAddr, SocketAddr};

use polyrail_config::BindDevice;
use socket2::{Domain, Protocol, Socket, Type};

use super::Control;
use crate::control::build::device;
use crate::engine::peer::PeerShared;
use crate::engine::rail_selection::ChosenRail;

impl Control {
    /// Has the kernel ask by each rail for the peer's addresses in its network, if another rail is in that network, too.
    pub(super) fn ask_for_neighbours(&self, peer: &PeerShared) {
        if self.engine.settings.bind_device != BindDevice::Auto {
            return;
        }
        for (rail, target) in
            questions(&self.engine.rails, peer.card.rails.iter().map(|rail| rail.address))
        {
            let device = device(rail, BindDevice::Auto);
            // Connections by the device fail in the same way, and those by the address follow.
            let _ = send_nothing(rail.address, device, target);
        }
    }
}

/// Each rail that shares its network with another rail, and the peer's addresses there.
fn questions(
    rails: &[ChosenRail],
    targets: impl Iterator<Item = SocketAddr> + Clone,
) -> Vec<(&ChosenRail, SocketAddr)> {
    let is_one = |rail: &&ChosenRail| !rail.loopback && rail.address.is_ipv4();
    let mut found = Vec::new();
    for target in targets.filter(SocketAddr::is_ipv4) {
        let near: Vec<&ChosenRail> = rails
            .iter()
            .filter(is_one)
            .filter(|rail| rail.network().contains(target.ip()))
            .collect();
        if near.len() > 1 {
            found.extend(near.into_iter().map(|rail| (rail, target)));
        }
    }
    found
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
    use polyrail_sys::interfaces::Interface;

    use super::*;

    #[test]
    fn rails_that_share_a_network_ask_for_the_peers_addresses_there() {
        let rail = |name: &str, address: &str| {
            let interface = Interface {
                prefix_len: 24,
                ..Interface::described(1, name, address.parse().unwrap())
            };
            ChosenRail::of(&interface)
        };
        let rails =
            [rail("eth1", "10.0.0.11"), rail("eth2", "10.0.0.12"), rail("eth3", "10.0.1.13")];
        let targets = ["10.0.0.21:1", "10.0.1.22:1", "10.9.0.23:1"]
            .map(|text| text.parse::<SocketAddr>().unwrap());
        let found = questions(&rails, targets.into_iter());
        let found: Vec<_> =
            found.iter().map(|(rail, target)| (rail.name.as_str(), target.to_string())).collect();
        let to = "10.0.0.21:1".to_owned();
        assert_eq!(found, [("eth1", to.clone()), ("eth2", to)]);
        send_nothing("127.0.0.1".parse().unwrap(), None, "127.0.0.1:9".parse().unwrap()).unwrap();
    }
}
