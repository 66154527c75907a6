//! Hostfiles and variables.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| comity::fuzz::config(bytes));
