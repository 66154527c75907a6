//! TCP framing of whatever comes over its connections.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| comity::fuzz::frame(bytes));
