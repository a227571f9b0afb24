//! Changes that were tried, to find out what makes a size slow.

use serde::{Deserialize, Serialize};

use crate::Spread;

/// A change that was measured alternating with the settings in effect.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tried {
    /// The change: settings with their values, `depth=64` or `without RAIL`.
    pub change: String,
    /// Median rate with the change, in GB/s (10^9 bytes).
    pub gb_per_s: f64,
    /// Rate with the change over the rate without it, taken within each round: median, minimum and maximum. If the
    /// change was measured again, over those rounds alone.
    pub ratio: Spread,
    /// Interval of the true ratio: in at most 5 of 100 runs, one or more intervals of a size miss it. `None` for a
    /// change that was not measured again; nothing is concluded from such a change.
    #[serde(default)]
    pub interval: Option<RatioInterval>,
    /// Whether the change makes the size faster: its interval is above 1.
    pub helps: bool,
}

/// Ends of the interval of a ratio.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RatioInterval {
    pub low: f64,
    pub high: f64,
}
