#![no_main]
#![allow(dead_code, reason = "the other bodies are for other fuzzers")]

#[path = "../src/host.rs"]
mod host;

libfuzzer_sys::fuzz_target!(|data: &[u8]| host::bindings(data));
