//! Invariants for any bytes from outside.

use crate::ask::text_of;
use crate::exposition::{Exposition, Format};
use crate::http::answer_to;

/// Reads bytes as the answer of a process and as the request of a scraper, for fuzzers.
///
/// # Panics
/// If an accepted text does not read back as the same, or a refused one adds something.
pub fn examine(data: &[u8]) {
    let _ = answer_to(data);
    let text = text_of(data).or_else(|| Some(str::from_utf8(data).ok()?.to_owned()));
    let Some(text) = text else { return };
    let mut all = Exposition::default();
    let is_accepted = all.add(&text, &[("pid", "1")], |_| true).is_ok();
    let written = all.text(Format::OpenMetrics);
    if !is_accepted {
        assert_eq!(written, "# EOF\n", "what was refused was added");
        return;
    }
    let mut again = Exposition::default();
    again.add(&written, &[], |_| true).expect("what was written is read");
    assert_eq!(again.text(Format::OpenMetrics), written);
    assert_eq!(again.text(Format::Classic), all.text(Format::Classic));
    // The same process again gives the same labels.
    let has_samples = written.lines().any(|line| !line.starts_with('#'));
    assert_eq!(all.add(&text, &[("pid", "1")], |_| true).is_err(), has_samples);
}
