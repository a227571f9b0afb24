//! The smallest values that settings allow work. Alone in their process, since a hello of 100 ms is one of them.

mod common;

use std::time::{Duration, Instant};

use common::*;

/// Limit on a loaded machine; the values below take milliseconds, and smaller ones took a minute.
const SOON: Duration = Duration::from_secs(20);

#[test]
fn data_moves_with_the_smallest_buffers_and_the_shortest_hello() {
    for setting in [("socket_buffer_bytes", "64KiB"), ("connect_timeout_ms", "300")] {
        let settings = [("rails", "127.0.0.1"), ("channels", "1"), setting];
        let p = pair(&settings);
        let (source, target) = (filled(&p.a, 3 << 20, 1), zeroed(&p.b, 3 << 20));
        let began = Instant::now();
        p.a.write(&p.to_b, &source.all(), &remote(&p.a, &target).all()).unwrap().ended().unwrap();
        assert!(began.elapsed() < SOON, "{setting:?}: {:?}", began.elapsed());
        assert!(bytes(&target) == pattern(3 << 20, 1), "{setting:?}");
    }
}

#[test]
fn what_does_not_work_is_refused_with_what_does() {
    let refused = |name: &str, value: &str| {
        let builder = polyrail::Config::builder();
        let set = builder.set(name, value).and_then(polyrail_config::ConfigBuilder::build);
        set.unwrap_err().to_string()
    };
    for (name, value, range) in [
        ("socket_buffer_bytes", "63KiB", "0 (kernel autotuning), or 64KiB to 1GiB"),
        ("connect_timeout_ms", "0", "1 to 600000 ms"),
    ] {
        let error = refused(name, value);
        let parts = [name, value.trim_end_matches(char::is_alphabetic), range];
        assert!(parts.iter().all(|part| error.contains(part)), "{error}");
    }
}
