#![no_main]

#[path = "../src/metrics.rs"]
mod metrics;

libfuzzer_sys::fuzz_target!(|data: &[u8]| metrics::metrics(data));
