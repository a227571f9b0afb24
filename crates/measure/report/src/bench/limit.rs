//! The limit of a run.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The part of the system that limits the rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LimitKind {
    /// The CPUs of this side, or one of its threads.
    Cpu,
    /// The memory bandwidth that copies need.
    Memory,
    /// The links between the two sides.
    Network,
    /// The windows of the channels.
    Window,
    /// The number of transfers outstanding at once: too few to keep everything busy.
    Depth,
    /// The posting thread.
    Posting,
    /// Messages per second, whatever their size.
    MessageRate,
    Peer,
    /// The devices that copy, or the link between them.
    Device,
}

/// A limit and the number that shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limit {
    pub verdict: LimitKind,
    /// The number that the verdict follows from, in one sentence without a full stop. Rails that carry nothing follow,
    /// one line each.
    pub because: String,
}

impl LimitKind {
    /// Name in the JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Memory => "memory",
            Self::Network => "network",
            Self::Window => "window",
            Self::Depth => "depth",
            Self::Posting => "posting",
            Self::MessageRate => "message_rate",
            Self::Peer => "peer",
            Self::Device => "device",
        }
    }
}

impl fmt::Display for LimitKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.verdict, self.because)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_for_people_is_the_name_in_the_json() {
        for kind in [
            LimitKind::Cpu,
            LimitKind::Memory,
            LimitKind::Network,
            LimitKind::Window,
            LimitKind::Depth,
            LimitKind::Posting,
            LimitKind::MessageRate,
            LimitKind::Peer,
            LimitKind::Device,
        ] {
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.name());
        }
    }
}
