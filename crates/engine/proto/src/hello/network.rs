//! IP networks, by which engines judge which addresses are on one link.

use std::net::IpAddr;

/// An address and the length of its network's prefix, such as `10.0.1.5/24`.
///
/// A prefix of 0 bits says nothing about the link: such a network contains no address and overlaps none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    /// Any address of the network, such as an interface's.
    pub address: IpAddr,
    /// Length of the network's prefix, in bits.
    pub prefix_len: u8,
}

impl Network {
    /// Returns whether the address is in the network. IPv4 addresses that IPv6 sockets report (`::ffff:10.0.1.7`) count
    /// as IPv4.
    pub fn contains(&self, address: IpAddr) -> bool {
        let bits = u32::from(self.prefix_len);
        let common_bits = match (self.address, address.to_canonical()) {
            (IpAddr::V4(a), IpAddr::V4(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros(),
            (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros(),
            _ => return false,
        };
        bits > 0 && common_bits >= bits
    }

    /// Returns whether any address is in both networks: the one with the shorter prefix contains the other.
    pub fn overlaps(&self, other: &Self) -> bool {
        match self.prefix_len <= other.prefix_len {
            true => self.contains(other.address),
            false => other.contains(self.address),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(text: &str) -> Network {
        let (address, prefix_len) = text.split_once('/').unwrap();
        Network { address: address.parse().unwrap(), prefix_len: prefix_len.parse().unwrap() }
    }

    #[test]
    fn a_network_contains_the_addresses_with_its_prefix() {
        for (of, address, is_inside) in [
            ("10.0.1.5/24", "10.0.1.200", true),
            ("10.0.1.5/24", "10.0.2.5", false),
            ("10.0.1.5/24", "::ffff:10.0.1.7", true),
            ("10.0.1.5/24", "fd00::5", false),
            ("10.0.1.5/32", "10.0.1.5", true),
            ("10.0.1.5/32", "10.0.1.4", false),
            ("10.0.1.5/0", "10.0.1.5", false),
            ("fd00::5/64", "fd00::9", true),
            ("fd00::5/64", "fd00:0:0:1::9", false),
            ("fd00::5/128", "fd00::5", true),
        ] {
            assert_eq!(network(of).contains(address.parse().unwrap()), is_inside, "{of} {address}");
        }
    }

    #[test]
    fn networks_overlap_if_the_shorter_prefix_is_common() {
        for (one, other, overlap) in [
            ("10.0.1.5/24", "10.0.1.200/24", true),
            ("10.0.1.5/24", "10.0.2.5/24", false),
            ("10.0.1.5/16", "10.0.2.5/24", true),
            ("10.0.1.5/32", "10.0.1.6/32", false),
            ("10.0.1.5/24", "10.0.1.6/0", false),
            ("10.0.1.5/24", "fd00::5/64", false),
            ("fd00::5/64", "fd00::9/64", true),
        ] {
            let (one, other) = (network(one), network(other));
            assert_eq!(one.overlaps(&other), overlap, "{one:?} {other:?}");
            assert_eq!(other.overlaps(&one), overlap, "{other:?} {one:?}");
        }
    }
}
