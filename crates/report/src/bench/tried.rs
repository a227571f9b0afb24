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
    /// greatest value.
    pub ratio: Spread,
    /// Whether the change makes it faster, by more than the rate varies without any change, and did so
    /// again when it was tried anew.
    pub helps: bool,
}
