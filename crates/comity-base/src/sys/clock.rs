//! Nanoseconds that all processes of a host agree on.

use rustix::time::{ClockId, Timespec, clock_gettime};

#[inline]
fn ns(t: Timespec) -> u64 {
    (t.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(t.tv_nsec as u64)
}

#[inline]
pub fn exact() -> u64 {
    ns(clock_gettime(ClockId::Monotonic))
}

/// Returns the time at the kernel's last tick, in nanoseconds.
#[inline]
pub fn coarse() -> u64 {
    #[cfg(target_os = "linux")]
    return ns(clock_gettime(ClockId::MonotonicCoarse));
    #[cfg(not(target_os = "linux"))]
    exact()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_agree() {
        let a = exact();
        let b = coarse();
        let c = exact();
        assert!(a <= c && b <= c && c - b < 1_000_000_000, "{a} {b} {c}");
    }
}
