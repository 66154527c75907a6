//! Messages of the store and of control connections.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| comity::fuzz::messages(bytes));
