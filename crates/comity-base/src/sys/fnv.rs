//! A hash for names that several processes make alike.

/// A small hash (FNV-1a) that is the same on every host and in every version.
pub fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3))
}
