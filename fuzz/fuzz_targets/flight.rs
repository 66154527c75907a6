//! Flight records, which `comity report` and the launcher read.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| comity::fuzz::flight(bytes));
