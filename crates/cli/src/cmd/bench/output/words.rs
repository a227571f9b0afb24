//! Words and numbers that several tables use.

use polyrail_report::{LatencyUs, show_micros};

pub(crate) fn plural(count: usize, word: &str) -> String {
    if count == 1 { word.to_owned() } else { format!("{word}s") }
}

pub(crate) fn micros(latency: Option<LatencyUs>, part: impl Fn(&LatencyUs) -> f64) -> String {
    latency.as_ref().map_or(String::new(), |latency| show_micros(part(latency)))
}

/// Maximum number of rails whose shares are all printed. With more rails, only the least and the greatest share are.
pub(crate) const SHARES_MAX: usize = 6;
