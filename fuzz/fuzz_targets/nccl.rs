#![no_main]

// The plugin is a library that exports nothing but NCCL's tables, so its parsers come as a file.
#[allow(dead_code, reason = "sizes and helpers that only the plugin needs")]
#[path = "../../crates/faces/nccl/src/wire.rs"]
mod wire;

#[path = "../src/nccl.rs"]
mod fuzzer;

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzzer::nccl(data));
