//! Events of rails during a measurement.

use serde::{Deserialize, Serialize};

/// An event of a rail while a result was measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RailEvent {
    /// Name of the rail at `end`.
    pub rail: String,
    /// End that saw the event: `here`, `there`, or a node such as `node3`.
    pub end: String,
    pub what: RailEventKind,
    /// Start of the first sample that shows the event, in seconds since the run began.
    pub at_s: f64,
    /// Round of that sample, from 1.
    pub round: u32,
    /// Number of chunks if `what` is `resent`; else 1.
    pub count: u64,
    /// Reason, if known.
    pub because: Option<String>,
}

/// The kinds of [`RailEvent`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RailEventKind {
    /// The rail carried nothing from then on.
    Down,
    /// The rail works again.
    Back,
    /// Chunks of the rail were sent again, over this or another rail.
    Resent,
    /// The rail carried less than half of its usual share.
    Slow,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_reads_back_as_it_was_written() {
        let event = RailEvent {
            rail: "rail1".into(),
            end: "here".into(),
            what: RailEventKind::Down,
            at_s: 4.5,
            round: 4,
            count: 1,
            because: None,
        };
        let json = serde_json::to_value(&event).unwrap();
        assert_eq!(json["what"], "down");
        assert!(json["because"].is_null());
        assert_eq!(serde_json::from_value::<RailEvent>(json).unwrap(), event);
    }
}
