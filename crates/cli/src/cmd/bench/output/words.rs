//! Words and figures that several tables have.

use polyrail_report::{LatencyUs, show_micros};

pub(crate) fn plural(count: usize, word: &str) -> String {
    if count == 1 { word.to_owned() } else { format!("{word}s") }
}

pub(crate) fn micros(latency: Option<LatencyUs>, part: impl Fn(&LatencyUs) -> f64) -> String {
    latency.as_ref().map_or(String::new(), |latency| show_micros(part(latency)))
}

/// Of more rails than these only the least and the most are told.
pub(crate) const SHARES_MAX: usize = 6;
