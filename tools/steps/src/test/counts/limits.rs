//! Limits on the instructions of each call. A change that takes more raises its line, and says why.

use std::fmt;

/// The day on which the numbers were counted: Rust 1.95, Python 3.11, torch 2.15.
pub(super) const DATE: &str = "2026-11-29";

/// A case, with its limit.
#[derive(Debug)]
pub(super) struct Limit {
    /// `Rust`, `C`, or an argument of `eight_bytes.py`.
    pub(super) language: &'static str,
    pub(super) ranks: usize,
    /// The median on that day.
    pub(super) seen: u64,
    /// More fails. A tenth is for others' processors, which copy by other instructions, and for compilers.
    pub(super) most: u64,
}

const fn limit(language: &'static str, ranks: usize, seen: u64, most: u64) -> Limit {
    Limit { language, ranks, seen, most }
}

/// Limits for debug builds, which leave the library as it is: see `profile.dev` in the workspace's manifest.
///
/// A second rank adds the same from every language, so Python's calls are counted on one.
pub(super) const LIMITS: &[Limit] = &[
    limit("Rust", 1, 5_281, 5_850),
    limit("Rust", 2, 19_236, 21_200),
    limit("C", 1, 6_818, 7_500),
    limit("C", 2, 20_773, 22_900),
    limit("numpy", 1, 17_276, 19_000),
    // Since the group returns its own works: a call in Python more on the way there and on the way back.
    limit("torch", 1, 90_166, 99_200),
];

impl Limit {
    pub(super) fn is_python(&self) -> bool {
        matches!(self.language, "numpy" | "torch")
    }

    /// Advice about so many instructions, if they are too many.
    pub(super) fn exceeded(&self, now: u64) -> Option<String> {
        (now > self.most).then(|| {
            format!(
                "{self}: one call takes {now} instructions; it took {} on {DATE}, and {} are allowed. Profile the call (perf, or gdb with \
                 `record`), or raise the limit in tools/steps/src/test/counts/limits.rs, in the commit that says what they are for",
                self.seen, self.most
            )
        })
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ranks = if self.ranks == 1 { "1 rank".into() } else { format!("{} ranks", self.ranks) };
        write!(f, "{}, {ranks}", self.language)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_near_what_was_seen() {
        for Limit { seen, most, .. } in LIMITS {
            assert!(*most >= seen + seen / 20 && *most <= seen + seen / 5, "{seen} {most}");
        }
    }
}
