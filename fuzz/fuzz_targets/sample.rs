#![no_main]

#[path = "../src/sample.rs"]
mod sample;

libfuzzer_sys::fuzz_target!(|data: &[u8]| sample::sample(data));
