//! Both ends of a handshake, to which a stranger sends bytes.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| comity::fuzz::handshake(bytes));
