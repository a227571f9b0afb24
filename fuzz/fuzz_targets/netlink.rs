#![no_main]

#[path = "../src/netlink.rs"]
mod netlink;

libfuzzer_sys::fuzz_target!(|data: &[u8]| netlink::netlink(data));
