//! What both ends of a handshake make of what a stranger sends.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| comity::fuzz::handshake(bytes));
