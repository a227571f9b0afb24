//! Times in the log's format, for other output.

use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};

/// Returns the current time in UTC: `2026-11-24T08:35:30.123456Z`.
pub fn utc_now() -> String {
    let mut text = String::new();
    // Writing to a String can't fail.
    let _ = SystemTime.format_time(&mut Writer::new(&mut text));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_has_a_date_a_time_and_the_mark_of_utc() {
        let stamp = utc_now();
        let (date, time) = stamp.split_once('T').unwrap();
        assert_eq!((date.len(), time.len()), (10, 16), "{stamp}");
        assert!(time.ends_with('Z') && date.starts_with("20"), "{stamp}");
    }
}
