//! The numbers that a verdict is taken from.

use polyrail_report::Spread;

use super::machine::CopyRate;
use crate::cmd::bench::talk::{DownRail, Load};

/// A way of the bytes that is not the rails.
#[derive(Clone, Debug)]
pub(crate) struct BesideRails {
    pub(crate) name: String,
    /// Otherwise CPUs of the host copy.
    pub(crate) by_devices: bool,
}

/// The numbers of one size.
#[derive(Clone, Debug)]
pub(crate) struct Evidence {
    /// Chunks of rails that were down were sent again.
    pub(crate) has_resent: bool,
    /// The rate is a mean of samples that lie apart, so none of them has it.
    pub(crate) is_mixed: bool,
    /// Rails of this end and of the other one that were down in other samples than this one.
    pub(crate) down_elsewhen: [Vec<DownRail>; 2],
    /// Of both directions together.
    pub(crate) gb_per_s: f64,
    /// Directions in use: 1 or 2.
    pub(crate) ways: u64,
    pub(crate) local: Load,
    pub(crate) peer: Load,
    pub(crate) same_host: bool,
    /// What copying reaches that uses memory in this way, where that was measured.
    pub(crate) copy: Option<CopyRate>,
    /// Transfers of 8 bytes per second at the same depth, where these were measured.
    pub(crate) messages_per_s: Option<f64>,
    /// Of the rails here.
    pub(crate) line: Option<Line>,
    /// Of the rails at the other side, as that end says.
    pub(crate) peer_line: Option<Line>,
    /// What each rail carried, as a part of all, with its name.
    pub(crate) rails: Vec<(String, f64)>,
    /// The part of its bytes that a rail sent again, at least, with its name: the worst one.
    pub(crate) lost: Option<(String, f64)>,
    /// The way of the bytes, if it was not the rails.
    pub(crate) beside_rails: Option<BesideRails>,
    /// Of the sending side.
    pub(crate) window_full_share: f64,
    /// How the payload is protected, if it is.
    pub(crate) payload: Option<String>,
    pub(crate) ping_pong: bool,
    pub(crate) depth: u64,
    pub(crate) size: u64,
    /// What all channels together may have outstanding, in bytes.
    pub(crate) window_bytes: u64,
    /// What more transfers at once brought, where that was tried.
    pub(crate) deeper: Option<Deeper>,
    /// The median of a transfer, in microseconds.
    pub(crate) p50_us: Option<f64>,
}

/// What more transfers at once bring.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Deeper {
    pub(crate) depth: u64,
    /// Of the rates with and without, in pairs that were measured one after the other.
    pub(crate) ratio: Spread,
}

/// What the rails carry at most, one way.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Line {
    /// Each rail's name and rate, in GB/s.
    pub(crate) rails: Vec<(String, f64)>,
    /// Where these numbers come from, for people.
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
