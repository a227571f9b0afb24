//! Bindings of connections that leave this host for a peer: to the device of their rail, or only to its address.

use std::fmt;
use std::time::Duration;

/// Head start of one way, or of one address of an engine, before the next is tried in parallel.
pub const STAGGER: Duration = Duration::from_millis(200);

/// Binding of a connection, besides its port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Source address and device: packets leave by this NIC, and count only if they arrive on it.
    Device,
    /// Source address only: the kernel's routes choose the NIC, and packets may arrive on any.
    Address,
}

/// Way that each rail pair takes first. Both are tried where the first one fails.
#[derive(Debug, Default)]
pub struct Ways {
    /// Way by which each pair came up last.
    known: Vec<((usize, usize), Way)>,
}

impl Way {
    /// Returns the other way.
    pub fn other(self) -> Self {
        match self {
            Self::Device => Self::Address,
            Self::Address => Self::Device,
        }
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Device => "by the rail's device",
            Self::Address => {
                "by the rail's address, not by its device: the routes choose the NIC that sends (several NICs in one \
                 network, rp_filter, or no privilege?)"
            }
        })
    }
}

impl Ways {
    /// Returns the way to try first: by the device, unless the other one has led to the peer.
    pub fn first(&self, pair: (usize, usize)) -> Way {
        self.known.iter().find(|(of, _)| *of == pair).map_or(Way::Device, |(_, way)| *way)
    }

    /// Makes later connections of the pair take this way first. Returns whether that is a change.
    pub fn prefer(&mut self, pair: (usize, usize), way: Way) -> bool {
        match self.known.iter_mut().find(|(of, _)| *of == pair) {
            Some((_, before)) => std::mem::replace(before, way) != way,
            None => {
                self.known.push((pair, way));
                way != Way::Device
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Way::{Address, Device};
    use super::*;

    #[test]
    fn a_pair_takes_the_way_first_that_led_to_the_peer_last() {
        let mut ways = Ways::default();
        assert_eq!(ways.first((1, 0)), Device);
        assert!(!ways.prefer((0, 0), Device));
        assert!(ways.prefer((1, 0), Address));
        assert!(!ways.prefer((1, 0), Address));
        assert_eq!((ways.first((1, 0)), ways.first((0, 1))), (Address, Device));
        assert!(ways.prefer((1, 0), Device));
        assert_eq!(ways.first((1, 0)), Device);
    }
}
