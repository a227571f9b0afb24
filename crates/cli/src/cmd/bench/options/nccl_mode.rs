//! NCCL's transports, for `--nccl-modes`.

use std::fmt;
use std::str::FromStr;

/// Transport that NCCL uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NcclMode {
    /// NCCL's own choice: peer copies if the devices reach each other.
    Peer,
    /// Sockets, with this number of threads and of sockets for each thread; 0 is NCCL's default.
    Socket { threads: u32, sockets: u32 },
}

impl NcclMode {
    /// Modes to measure if the user chooses none.
    pub(super) const DEFAULT: [Self; 4] =
        [Self::socket(0, 0), Self::socket(4, 4), Self::socket(8, 8), Self::Peer];

    const fn socket(threads: u32, sockets: u32) -> Self {
        Self::Socket { threads, sockets }
    }

    /// Returns the name in reports.
    pub(crate) fn name(self) -> String {
        match self {
            Self::Peer => "nccl p2p".into(),
            Self::Socket { .. } => format!("nccl socket {self}"),
        }
    }
}

impl FromStr for NcclMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "p2p" {
            return Ok(Self::Peer);
        }
        let both = text.split_once('x').and_then(|(threads, sockets)| {
            let in_range = |digits: &str| digits.parse().ok().filter(|count| *count <= 64u32);
            Some((in_range(threads)?, in_range(sockets)?))
        });
        match both {
            // NCCL's own limits.
            Some((threads, sockets)) if threads <= 16 && threads * sockets <= 64 => {
                Ok(Self::Socket { threads, sockets })
            }
            _ => Err(
                "is no such mode; allowed: p2p, or threads x sockets like 4x4, of which NCCL takes 16 and 64 in \
                      all; 0x0 is its default"
                    .into(),
            ),
        }
    }
}

impl fmt::Display for NcclMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Peer => f.write_str("p2p"),
            Self::Socket { threads, sockets } => write!(f, "{threads}x{sockets}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_peer_copies_or_threads_and_sockets() {
        assert_eq!("p2p".parse(), Ok(NcclMode::Peer));
        assert_eq!("4x8".parse(), Ok(NcclMode::Socket { threads: 4, sockets: 8 }));
        for wrong in ["", "4", "4x", "17x1", "16x5", "-1x2", "4x4x4", "P2P"] {
            assert!(wrong.parse::<NcclMode>().unwrap_err().contains("like 4x4"), "{wrong}");
        }
        let socket: NcclMode = "0x0".parse().unwrap();
        assert_eq!(socket.name(), "nccl socket 0x0");
        assert_eq!(NcclMode::Peer.name(), "nccl p2p");
    }
}
