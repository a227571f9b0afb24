//! Requests of scrapers.
#![allow(dead_code, reason = "each test binary uses its own part")]

use std::io::{Read, Write};
use std::time::{Duration, Instant};

/// Long enough for a loaded machine; no test waits it out unless it fails.
pub(crate) const LONG: Duration = Duration::from_secs(30);

/// Asks for the metrics, and reads the whole answer.
pub(crate) fn get(mut stream: impl Read + Write, accept: &str) -> String {
    let request = format!("GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: {accept}\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

pub(crate) fn status(answer: &str) -> u32 {
    answer.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0)
}

pub(crate) fn body(answer: &str) -> &str {
    answer.split_once("\r\n\r\n").map_or("", |(_, body)| body)
}

/// Waits for a condition. Panics with its name if it does not come true.
pub(crate) fn wait_for(what: &str, condition: impl Fn() -> bool) {
    let since = Instant::now();
    while !condition() {
        assert!(since.elapsed() < LONG, "waited too long for {what}");
        // Looks again: nothing signals that the condition holds.
        std::thread::sleep(Duration::from_millis(5));
    }
}
