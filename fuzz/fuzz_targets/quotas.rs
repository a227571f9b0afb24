#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| polyrail_testkit::fuzz::quotas(data));
