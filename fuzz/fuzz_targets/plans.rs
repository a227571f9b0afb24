#![no_main]

#[path = "../src/plans.rs"]
mod plans;

libfuzzer_sys::fuzz_target!(|data: &[u8]| plans::plans(data));
