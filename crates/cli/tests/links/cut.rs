//! A rail that dies in the middle of a stream, over shaped links in two namespaces.

#[path = "../../examples/rail_cut.rs"]
mod rail_cut;

use std::time::Duration;

#[test]
fn a_cut_rail_loses_no_byte_and_comes_back() {
    // The engines run on threads inside the namespaces, and only root may move a thread into a namespace.
    let why = match polyrail_lab::availability() {
        Ok(polyrail_lab::Privilege::Root) => None,
        Ok(_) => Some("threads may enter namespaces as root only".to_owned()),
        Err(error) => Some(error.to_string()),
    };
    if let Some(why) = why {
        return polyrail_skip::skip(why, "sudo -E cargo test -p polyrail-cli --test links cut");
    }
    // Slow rails, so that a busy machine keeps up: 25 MB/s in all.
    let report = rail_cut::run("4x50mbit", 2, Duration::from_secs(6)).unwrap();
    assert!(report.verified > 0 && report.resent_chunks > 0, "{report:?}");
    assert!(report.of_the_rest > 0.7, "the others carry on: {report:?}");
    assert!(report.recovered_after.is_some_and(|t| t < Duration::from_secs(3)), "{report:?}");
    assert!(report.rejoined_after.is_some(), "the rail carries again: {report:?}");
}
