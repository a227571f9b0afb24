//! Numbers that a verdict is based on.

use polyrail_report::Spread;

use super::machine::CopyRate;
use crate::cmd::bench::talk::{DownRail, Load};

/// Path of the bytes that uses no rails.
#[derive(Clone, Debug)]
pub(crate) struct BesideRails {
    pub(crate) name: String,
    /// Devices copy the bytes. Otherwise CPUs of the host do.
    pub(crate) by_devices: bool,
}

/// Numbers of one size.
#[derive(Clone, Debug)]
pub(crate) struct Evidence {
    /// Chunks of rails that were down were sent again.
    pub(crate) has_resent: bool,
    /// The rate is a mean of samples that lie apart, and a rail was down in some of them.
    pub(crate) down_in_some: bool,
    /// Rails of this end and of the other one that were down in other samples than this one.
    pub(crate) down_elsewhen: [Vec<DownRail>; 2],
    /// Rate of both directions together.
    pub(crate) gb_per_s: f64,
    /// Directions in use: 1 or 2.
    pub(crate) ways: u64,
    pub(crate) local: Load,
    pub(crate) peer: Load,
    pub(crate) same_host: bool,
    /// Rate of copies that use memory in the same way, if it was measured.
    pub(crate) copy: Option<CopyRate>,
    /// Transfers of 8 bytes per second at the same depth, if they were measured.
    pub(crate) messages_per_s: Option<f64>,
    /// Maximum rates of this end's rails.
    pub(crate) line: Option<Line>,
    /// Maximum rates of the other end's rails, as that end reports them.
    pub(crate) peer_line: Option<Line>,
    /// Name of each rail, and its share of all bytes.
    pub(crate) rails: Vec<(String, f64)>,
    /// Name of the rail with the most retransmissions, and at least what share of its bytes they are.
    pub(crate) lost: Option<(String, f64)>,
    /// Path of the bytes, if it was not the rails.
    pub(crate) beside_rails: Option<BesideRails>,
    /// Share of the time in which the sender's window was full.
    pub(crate) window_full_share: f64,
    /// Protection of the payload, if any.
    pub(crate) payload: Option<String>,
    pub(crate) ping_pong: bool,
    pub(crate) depth: u64,
    pub(crate) size: u64,
    /// Maximum number of outstanding bytes of all channels together.
    pub(crate) window_bytes: u64,
    /// Gain from more outstanding transfers, if that was tried.
    pub(crate) deeper: Option<Deeper>,
    /// Median time of a transfer, in microseconds.
    pub(crate) p50_us: Option<f64>,
}

/// Gain from more outstanding transfers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Deeper {
    pub(crate) depth: u64,
    /// Ratio of the rates with and without them, in pairs that were measured one after the other.
    pub(crate) ratio: Spread,
}

/// Maximum rates of an end's rails, in one direction.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Line {
    /// Name of each rail, and its rate in GB/s.
    pub(crate) rails: Vec<(String, f64)>,
    /// Source of these numbers, for people.
    pub(crate) source: String,
}

impl Line {
    pub(crate) fn gb_per_s(&self) -> f64 {
        self.rails.iter().map(|(_, rate)| rate).sum()
    }

    pub(crate) fn of_rail(&self, name: &str) -> Option<f64> {
        self.rails.iter().find(|(one, _)| one == name).map(|(_, rate)| *rate)
    }
}
