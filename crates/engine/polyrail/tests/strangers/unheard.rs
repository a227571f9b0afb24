//! Connections that are closed before their first byte, as the slower of two attempts to reach a rail is: they count as
//! refused, and the log has no warning about them.

use std::io::{self, Write};
use std::net::TcpStream;
use std::sync::{Arc, Mutex};

use crate::common::stranger::Stranger;
use crate::common::*;

/// The log of this process.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_connection_that_says_nothing_and_closes_counts_as_refused_without_a_warning() {
    let log = Log::default();
    let writer = log.clone();
    tracing_subscriber::fmt().with_writer(move || writer.clone()).with_ansi(false).init();
    // No other test has a rail of this name.
    let engine = engine(&[("rails", "127.66.0.1,127.66.0.2")]);
    let warnings = || {
        let text = String::from_utf8_lossy(&log.0.lock().unwrap()).into_owned();
        let of_rail = |line: &&str| line.contains("lo@127.66.0.1") && line.contains("turned away");
        text.lines().filter(of_rail).map(str::to_owned).collect::<Vec<_>>()
    };
    let refused = || engine.stats().refused_connections;
    (0..3).for_each(|_| drop(TcpStream::connect(engine.addresses()[0]).unwrap()));
    wait_for("the connections to be counted", || refused() == 3);
    let mut stranger = Stranger::at(&engine);
    let remote = stranger.stream.local_addr().unwrap().to_string();
    stranger.say(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    wait_for("the warning of one that says something", || !warnings().is_empty());
    let lines = warnings();
    assert!(lines.len() == 1 && lines[0].contains(&remote), "{lines:?}");
    assert_eq!(refused(), 4);
}
