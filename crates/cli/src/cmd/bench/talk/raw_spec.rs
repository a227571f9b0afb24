//! Agreement of both ends on a measurement of plain sockets.

use serde::{Deserialize, Serialize};

/// Baseline of plain sockets.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct RawSpec {
    /// Number of connections in each direction in use.
    pub(crate) flows: usize,
    /// Number of bytes of each write and read call.
    pub(crate) piece: u64,
    /// Memory that each flow walks through, in bytes; a multiple of `piece`.
    pub(crate) area: u64,
    pub(crate) to_peer: bool,
    pub(crate) to_us: bool,
    /// Send one piece back and forth instead of streaming.
    pub(crate) ping_pong: bool,
    /// Congestion control. If empty, the system chooses.
    pub(crate) congestion: String,
    pub(crate) send_buffer: u64,
    pub(crate) recv_buffer: u64,
    pub(crate) seed: u64,
}

/// Direction of a connection's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Traffic {
    ToServer,
    ToClient,
    PingPong,
}

impl RawSpec {
    /// Returns the flows of all directions, in the order of their numbers.
    pub(crate) fn traffic(&self) -> impl Iterator<Item = (usize, Traffic)> + use<> {
        let mut traffic = Vec::new();
        if self.ping_pong {
            traffic.push(Traffic::PingPong);
        } else {
            traffic.extend(self.to_peer.then_some(Traffic::ToServer));
            traffic.extend(self.to_us.then_some(Traffic::ToClient));
        }
        let flows = self.flows;
        let numbered = move |traffic| (0..flows).map(move |index| (index, traffic));
        traffic.into_iter().flat_map(numbered)
    }

    /// Returns the bytes of each flow's memory at either end: both halves of a ping-pong, or the area of a stream.
    pub(crate) fn flow_bytes(&self) -> u64 {
        if self.ping_pong { self.piece.saturating_mul(2) } else { self.area }
    }

    /// Returns the bytes of all flows' memory at either end.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.flow_bytes().saturating_mul(self.traffic().count() as u64)
    }

    /// Returns how many of the `pieces` in each direction the flow of this index carries.
    pub(crate) fn part(&self, index: usize, pieces: u64) -> u64 {
        let flows = self.flows as u64;
        pieces / flows + u64::from((index as u64) < pieces % flows)
    }
}
