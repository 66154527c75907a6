//! The engine's reading of a link's bytes: headers, padding, payloads, sends that nobody has asked for.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| comity::fuzz::stream(bytes));
