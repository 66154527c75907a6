//! Bounds of time for a program that a sanitizer slows down.
use std::time::Duration;

/// So many times longer than otherwise does everything take, as the sanitizers' parts of `cargo xtask test --deep` say.
pub(crate) fn slowness() -> u32 {
    std::env::var("COMITY_TEST_SLOWNESS").ok().map_or(1, |n| n.parse().unwrap())
}

/// `limit`, so many times longer.
pub(crate) fn patient(limit: Duration) -> Duration {
    limit * slowness()
}
