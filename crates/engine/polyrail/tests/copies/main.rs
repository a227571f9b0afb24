//! Payload that CPUs or devices copy, between processes of one host or on its way to the rails.

#[path = "../common/mod.rs"]
mod common;

mod device_trouble;
mod devices;
mod direct;
mod file_limit;
mod files;
mod shared;
mod shared_stream;
mod single_copy;
mod single_copy_messages;
mod staged_copy;
mod ways;

use polyrail::{Engine, Region};

type Settings = &'static [(&'static str, &'static str)];

const ON: Settings = &[("path", "auto")];
const CALLER: Settings = &[("path", "auto"), ("progress", "caller")];
const QUICK: Settings =
    &[("path", "auto"), ("peer_timeout_ms", "1200"), ("reconnect_max_ms", "200")];

fn first_of(region: &Region) -> u8 {
    let mut first = [0];
    region.read_at(0, &mut first).unwrap();
    first[0]
}

/// Payload that rails carried.
fn by_rails(engine: &Engine) -> u64 {
    let stats = engine.stats();
    stats.totals.tx_bytes + stats.totals.rx_bytes
}
