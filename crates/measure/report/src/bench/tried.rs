//! Changes that were tried to find out what makes a size slow.

use serde::{Deserialize, Serialize};

use crate::Spread;

/// A change that was measured in turn with the settings in effect.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tried {
    /// What was otherwise: settings with their values, `depth=64` or `without RAIL`.
    pub change: String,
    /// Median rate with the change, in GB/s (10^9 bytes).
    pub gb_per_s: f64,
    /// The rate with the change over that without it, taken within each round: its median, least and
    /// greatest value. Where the change was measured again, those rounds alone.
    pub ratio: Spread,
    /// Where the true ratio is: all intervals of a size together miss one in 5 of 100 runs at most. `None` for a change
    /// that was not measured again, which nothing is concluded from.
    #[serde(default)]
    pub interval: Option<RatioInterval>,
    /// Whether the change makes it faster: its interval is above 1.
    pub helps: bool,
}

/// Ends of the interval of a ratio.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RatioInterval {
    pub low: f64,
    pub high: f64,
}
