//! Share of the large matrices that a run takes: the one that its commit chooses, or all of it. The crate `scope` deals it out.

use scope::{DEEP, SEED};
use tasks::child::Task;

/// A share of what is large, or all of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Scope {
    /// From the commit, or given.
    pub(crate) seed: u64,
    /// Everything, at full size.
    pub(crate) deep: bool,
    /// Hours of the soak.
    pub(crate) hours: f64,
}

impl Scope {
    /// A share, by this number or by the commit's.
    pub(crate) fn gate(seed: Option<u64>) -> Self {
        let seed = seed.or_else(|| number(&Task::new("git").args(["rev-parse", "HEAD"]).run().ok()?));
        Self { seed: seed.unwrap_or(0), deep: false, hours: 0.0 }
    }

    /// All of it.
    pub(crate) fn deep(hours: f64) -> Self {
        Self { deep: true, hours, ..Self::gate(None) }
    }

    /// Share that this run takes of a matrix that is dealt to so many hands.
    pub(crate) fn share<T>(&self, cases: Vec<T>, hands: u64) -> Vec<T> {
        scope::Scope { seed: self.seed, deep: self.deep }.share(cases, hands)
    }

    /// Flag by which nextest takes this run's share of tests that are dealt to so many hands.
    pub(crate) fn part(&self, hands: u64) -> String {
        if self.deep { String::new() } else { format!("--partition=hash:{}/{hands}", self.seed % hands + 1) }
    }

    /// Tell a program's tests.
    pub(crate) fn tell(&self, task: Task) -> Task {
        let task = task.env(SEED, self.seed.to_string());
        if self.deep { task.env(DEEP, "1") } else { task }
    }
}

/// The first 16 digits of a commit's name, as a number.
fn number(commit: &str) -> Option<u64> {
    u64::from_str_radix(commit.get(..16)?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_chooses_and_deep_takes_all() {
        assert_eq!(number("0123456789abcdef0123456789abcdef01234567"), Some(0x0123_4567_89ab_cdef));
        let share = Scope::gate(Some(1)).share((0..100).collect::<Vec<_>>(), 4);
        assert_eq!((share.len(), Scope::gate(Some(5)).share((0..100).collect(), 4)), (25, share));
        assert_eq!(Scope::deep(1.0).share((0..100).collect::<Vec<_>>(), 4).len(), 100);
        assert_eq!(
            (Scope::gate(Some(5)).part(4), Scope::deep(1.0).part(4)),
            ("--partition=hash:2/4".into(), String::new())
        );
    }
}
